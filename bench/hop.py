"""What a hop costs: the time that one more stage adds to a step when it computes nothing, and the bytes it sends.

A step goes round a ring of one stage and round one of three; half of the difference is a hop: encode, send, receive,
check, decode, and the way to the compute thread and back. Real stage servers as processes on two cores, on the
loopback: the wire itself costs nothing here.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np

from bench.measure import Spread, alternate
from bench.report import Report
from bench.systems.hop import PAST, RINGS, decode_rows
from bench.workers import Worker, two_cores
from shoal.wire.codec import encode_frame
from shoal.wire.messages import DType, Frame, StageTiming, Step

TITLE = "added time and bytes of one hop: hidden 576 and 4096, 1 and 16 rows"

WIDTHS = (576, 4096)
ROWS = (1, 16)


def run(quick: bool) -> Report:
    """Measure; `quick` sends few steps."""
    steps, rounds = (100, 2) if quick else (500, 5)
    report = Report()
    cores = two_cores()
    for width in WIDTHS:
        # The router's end shares the second core with the middle stage, so that each hop crosses to the other core.
        with Worker("bench.systems.hop", [str(width), ",".join(map(str, cores))], cores[1:]) as worker:
            for rows in ROWS:
                systems = {str(stages): _p50(worker, stages, rows, steps) for stages in RINGS}
                measured = alternate(systems, rounds)
                short, long = (measured.figures[str(stages)] for stages in RINGS)
                hops = max(RINGS) - min(RINGS)
                added = [(three - one) / hops * 1000 for one, three in zip(short, long, strict=True)]
                suffix = f"{width}" if rows == 1 else f"{width}_rows{rows}"
                report.add(f"p50_ms_{suffix}", Spread.of(added))
                report.add(f"ring_of_one_ms_{suffix}", Spread.of([seconds * 1000 for seconds in short]))
                report.add(f"bytes_per_token_{suffix}", hop_bytes(width, rows) / rows)
    report.notes += [
        f"{steps} steps a round, one in flight; hidden states in BF16; {PAST} tokens behind each row",
        "bytes: the frame between two stages, without gRPC's and TCP's framing",
    ]
    return report


def _p50(worker: Worker, stages: int, rows: int, steps: int) -> Callable[[], float]:
    def seconds() -> float:
        return float(statistics.median(worker.ask({"stages": stages, "rows": rows, "steps": steps})["seconds"]))

    return seconds


def hop_bytes(width: int, rows: int) -> int:
    """Bytes of a decode step's frame from one stage to the next."""
    hidden = np.ones((rows, width), np.float32)
    timing = StageTiming(0, compute_us=20_000, queue_us=50, idle_us=1000, send_us=50)
    step = Step(decode_rows(rows, PAST, first=False), hidden, (timing,))
    return encode_frame(Frame(1_700_000_000, 1000, step), DType.BF16).ByteSize()
