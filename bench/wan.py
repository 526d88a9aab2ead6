"""Three stages with 100 ms on every hop: what drafts give where a token costs four delays, against the naive pipeline.

The naive system is our plain path with one user: no drafts, one step in flight. A token goes over three hops and comes
back from the last stage, so four delays are the least it takes. The target is the deep fixture in INT8, the draft model
SmolLM2 in INT4; its acceptance is measured. It keeps the numbers of its file, which holds 4 bits, as every draft model
that is compiled from such a file does; `rounded` is one that was rounded once more, in groups of 64. `copy` is a prompt
that holds a text twice and begins it a third time. Rates are those after the first token, which no draft makes come
sooner.
"""

from __future__ import annotations

from contextlib import ExitStack

from bench.fixtures import deep_smollm2
from bench.latency import Latencies
from bench.measure import Spread, alternate
from bench.models import smollm2
from bench.prompts import KINDS, copy_prompt, prompts
from bench.report import Report
from bench.workers import Message, Worker, two_cores
from shoal.manifest import Precision
from shoal_router.text.model import load_text_model

TITLE = "three stages, 100 ms a hop: drafts against the naive pipeline; jitter and a stall; bytes returned"

STAGES, DELAY_MS, JITTER_MS, STALL_S = 3, 100, 50, 2.0
_RATIOS = {
    "one_user_draft_over_naive": "model, 1 user",
    "one_user_draft_rounded_over_naive": "rounded, 1 user",
    "one_user_text_over_naive": "text, 1 user",
    "two_users_over_naive_one": "model, 2 users",
    "two_users_plain_over_naive_one": "naive, 2 users",
    "one_user_draft_jitter_over_naive": "jitter, 1 user",
    "one_user_draft_stall_over_naive": "stall, 1 user",
}


def run(quick: bool) -> Report:
    """Measure; `quick` makes few tokens in one round."""
    target, cores = deep_smollm2(Precision.INT8), two_cores()
    draft, rounded = smollm2(Precision.INT4, keep_stored=True), smollm2(Precision.INT4)
    tokens, rounds = (16, 1) if quick else (64, len(KINDS))
    text = load_text_model(target.directory)
    novel = [list(text.encode(prompt, add_special_tokens=False)) for prompt in prompts()[: len(KINDS)]]
    copied = list(text.encode(copy_prompt(), add_special_tokens=False))
    placed = ",".join(str(cores[index % 2]) for index in range(STAGES))
    naive = [str(target.directory), placed, "--no-prefix-cache", "--delay-ms", str(DELAY_MS), "--max-context", "512"]
    drafting = [*naive, "--speculative-mode", "Auto"]
    modelled = [*drafting, "--draft", str(draft.directory)]
    variants = {
        "naive": naive,
        "text": drafting,
        "model": modelled,
        "rounded": [*drafting, "--draft", str(rounded.directory)],
        "jitter": [*modelled, "--jitter-ms", str(JITTER_MS)],
    }
    report, latencies = Report(), Latencies(decoding=True)
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker("bench.systems.whole_path", arguments, cores))
            for name, arguments in variants.items()
        }
        asked = {
            "1 user": [[prompt] for prompt in novel],
            "2 users": [[prompt, other] for prompt, other in zip(novel, novel[1:] + novel[:1], strict=True)],
            "copy": [[copied]],
        }

        def requests_of(what: str, **more: float) -> list[Message]:
            return [{"prompts": together, "tokens": tokens, **more} for together in asked[what]]

        requests = {
            f"{variant}, {what}": (workers[variant], requests_of(what))
            for variant, whats in {
                "naive": asked,
                "text": ("1 user", "copy"),
                "model": asked,
                "rounded": ("1 user",),
                "jitter": ("1 user",),
            }.items()
            for what in whats
        }
        requests["stall, 1 user"] = (workers["model"], requests_of("1 user", stall_s=STALL_S))
        measured = alternate(
            {name: latencies.rate(name, worker, *asks) for name, (worker, asks) in requests.items()}, rounds
        )
    for key, system in _RATIOS.items():
        report.add(key, measured.ratio(system, "naive, 1 user"))
    report.add("one_user_copy_over_naive", measured.ratio("text, copy", "naive, copy"))
    for name in requests:
        report.add(f"tokens_per_s.{name}", measured.spread(name))
    back = [reply["bytes_back"] / sum(map(len, reply["answers"])) for reply in latencies.counted("naive, 1 user")]
    report.add("bytes_returned_per_token", Spread.of(back))
    latencies.add_to(report)
    report.notes += [
        f"{STAGES} stages on cores {cores}, a relay with {DELAY_MS} ms each way before each; jitter +-{JITTER_MS} ms; "
        f"the stall holds every hop up for {STALL_S:.0f} s",
        "tokens per second from each user's first token on; no user drafts from another one's answers",
        f"{tokens} greedy tokens after prompts of about {len(novel[0])} (copy: {len(copied)}), each round of another "
        f"kind: {', '.join(KINDS)}",
        "bytes returned: all that comes back from the last stage, gRPC's framing included",
    ]
    return report
