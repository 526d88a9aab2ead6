"""Three stages with 100 ms on every hop: the naive pipeline, which waits for each token, and what more users give.

The naive system is our plain path with one user: no drafts, one step in flight. A token goes over three hops and comes
back from the last stage, so four delays are the least it takes.
"""

from __future__ import annotations

from contextlib import ExitStack

from bench.latency import Latencies
from bench.measure import Spread, alternate
from bench.models import smollm2
from bench.prompts import prompts
from bench.report import Report
from bench.workers import Worker, two_cores
from shoal_router.text.model import load_text_model

TITLE = "three stages, 100 ms a hop: the naive pipeline; plain users beside each other; bytes returned"

STAGES, DELAY_MS, JITTER_MS = 3, 100, 50
_USERS = (1, 2, 4)


def run(quick: bool) -> Report:
    """Measure; `quick` makes few tokens in one round."""
    model, cores = smollm2(), two_cores()
    tokens, rounds = (12, 1) if quick else (32, 5)
    text = load_text_model(model.directory)
    ids = [list(text.encode(prompt, add_special_tokens=False)) for prompt in prompts()[: max(_USERS)]]
    placed = ",".join(str(cores[index % 2]) for index in range(STAGES))
    arguments = [str(model.directory), placed, "--no-prefix-cache", "--delay-ms", str(DELAY_MS)]
    report = Report()
    latencies = Latencies()
    with ExitStack() as stack:
        calm = stack.enter_context(Worker("bench.systems.whole_path", arguments, cores))
        rough = stack.enter_context(
            Worker("bench.systems.whole_path", [*arguments, "--jitter-ms", str(JITTER_MS)], cores)
        )
        systems = {
            f"plain, users {users}": latencies.rate(
                f"plain, users {users}", calm, {"prompts": ids[:users], "tokens": tokens}
            )
            for users in _USERS
        }
        naive, jittery = "plain, users 1", "jitter, users 1"
        systems[jittery] = latencies.rate(jittery, rough, {"prompts": ids[:1], "tokens": tokens})
        measured = alternate(systems, rounds)
    for users in _USERS[1:]:
        report.add(f"plain_users{users}_over_naive_one", measured.ratio(f"plain, users {users}", naive))
    report.add("jitter_over_naive_one", measured.ratio(jittery, naive))
    for name in systems:
        report.add(f"tokens_per_s.{name}", measured.spread(name))
    back = [reply["bytes_back"] / sum(map(len, reply["answers"])) for reply in latencies.counted(naive)]
    report.add("bytes_returned_per_token", Spread.of(back))
    latencies.add_to(report)
    same = all(reply["answers"][0] == latencies.counted(naive)[0]["answers"][0] for reply in latencies.counted(jittery))
    report.add("jitter_changes_no_token", int(same))
    report.notes += [
        f"{STAGES} stages on cores {cores}, a relay with {DELAY_MS} ms each way before each; jitter +-{JITTER_MS} ms",
        f"{tokens} greedy tokens after prompts of about {len(ids[0])}; no drafts: speculation is not in these figures",
        "bytes returned: all that comes back from the last stage, gRPC's framing included",
    ]
    return report
