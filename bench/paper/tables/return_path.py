"""What comes back from the last stage: the chosen id against all logits in FP32."""

from __future__ import annotations

from typing import Any

from bench.measure import Spread
from bench.models import smollm2
from bench.paper.rates import Rates
from bench.paper.table import Entry, Picture, Table, Unit
from bench.prompts import prompts
from bench.report import Report
from bench.workers import Worker, two_cores
from shoal.manifest import read_manifest
from shoal_router.text.model import load_text_model

_DELAY_MS, _MB_PER_S = 8.0, 2.0
_LLAMA = 128_256


def _measure(table: Table, quick: bool) -> Report:
    model = smollm2()
    prompt = list(load_text_model(model.directory).encode(prompts()[0], add_special_tokens=False))
    own = read_manifest(model.directory).shape.vocab_size
    rates = Rates(8 if quick else 24)
    relay: dict[str, Any] = {"delay_ms": _DELAY_MS, "mb_per_s": _MB_PER_S}
    with Worker("bench.systems.return_path", [str(model.directory)], two_cores()) as worker:
        for place, link in (("relay", relay), ("loopback", {})):
            rates.add(f"ids, {place}", worker, [prompt], vocabulary=0, **link)
            rates.add(f"logits, {place}", worker, [prompt], vocabulary=own, **link)
            rates.add(f"Llama's logits, {place}", worker, [prompt], vocabulary=_LLAMA, **link)
        report = rates.report(table, rates.measure(1 if quick else 3))
    for system in ("ids", "logits", "Llama's logits"):
        replies = rates.counted(f"{system}, relay")
        report.add(f"bytes.{system}", Spread.of([reply["bytes_back"] / len(reply["answers"][0]) for reply in replies]))
    return report


RETURN_PATH = Table(
    name="return-path",
    title="Top-1 ids against full logits on the way back",
    source="tables topk_compression and tiber",
    text=(
        f"Two stages, one stream, through a link of {_DELAY_MS:.0f} ms and {_MB_PER_S:.0f} MB/s each way, which is "
        "what the paper's two rates over its relay come to; then on the bare loopback. Padded: as many logits as Llama "
        "3.1 has."
    ),
    entries=(
        Entry.of_rates("ids ÷ logits, relay", "ids, relay", "logits, relay"),
        Entry.of_rates(
            "ids ÷ logits padded, relay", "ids, relay", "Llama's logits, relay", paper=22.88, paper_over=2.80
        ),
        Entry.of_rates("ids ÷ logits, loopback", "ids, loopback", "logits, loopback"),
        Entry.of_rates(
            "ids ÷ logits padded, loopback", "ids, loopback", "Llama's logits, loopback", paper=47.38, paper_over=42.42
        ),
        Entry("bytes back a token, ids", "bytes.ids", Unit.BYTES, 8.0),
        Entry("bytes back a token, logits", "bytes.logits", Unit.BYTES),
        Entry("bytes back a token, logits padded", "bytes.Llama's logits", Unit.BYTES, 4.0 * _LLAMA),
    ),
    differs=(
        "SmolLM2-135M in INT4, two stages in one process on two cores, no drafts; the paper has two streams with three "
        "drafts, which send four rows of logits for about three tokens.",
        "The paper's relay is a public one whose queues it does not control; the link here has a fixed rate.",
        "shoal itself sends ids only; the pipeline of this table is made for it (bench.systems.return_path).",
    ),
    measure=_measure,
    picture=Picture("ids over logits on the way back"),
)
