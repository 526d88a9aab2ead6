"""Two one-core nodes: what speculation gives one and more users, by kind of text and by source of drafts.

The target is the deep fixture in INT8, some five times the work of the draft model a token; the draft model is the
plain SmolLM2 in INT4, which computes the same text but for quantisation: its acceptance is measured, not set. It keeps
the numbers of its file, which holds 4 bits, as every draft model that is compiled from such a file does; `rounded` is
one that was rounded once more, in groups of 64, and is right less often. Router and draft process share the two cores
with the stages. Every ratio but one is to our own plain pipeline with one user on the same two nodes;
`two_users_two_nodes_over_unsplit` is to one user of the unsplit model on one node. Rates are those after the first
token, which no draft makes come sooner. Every second round goes backwards. The crowds are compared with the mean of two
plain pipelines, one measured before and one after the others: `users8_same` says how far these two were apart, which is
what a difference must exceed to mean something.

`copy`: the prompt holds a text twice and begins it a third time. `novel`: prompts of bench.prompts, drafts from the
text alone (no draft model); each round has another kind of prompt, so that no kind stands for all. `draft`: the same
prompts with the draft model. `depth_gain`: several chunks of one sequence in flight against one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from bench.fixtures import deep_smollm2
from bench.latency import decode_rate
from bench.measure import Rounds, Spread, alternate
from bench.models import smollm2
from bench.prompts import KINDS, copy_prompt, prompts, turned
from bench.report import Report
from bench.workers import Message, Worker, two_cores
from shoal.manifest import Precision
from shoal_router.text.model import TextModel, load_text_model

TITLE = "two one-core nodes: speculation by source of drafts and number of users"

_CROWDS = (8, 16)
_CROWD_TOKENS = 48
_CROWD_ROUNDS = 4


def run(quick: bool) -> Report:
    """Measure; `quick` makes few tokens in one round and leaves the crowds out."""
    tokens, rounds = (16, 1) if quick else (64, len(KINDS))
    target, draft = deep_smollm2(Precision.INT8), smollm2(Precision.INT4, keep_stored=True)
    rounded = smollm2(Precision.INT4)
    text = load_text_model(target.directory)
    cores = two_cores()
    both = ",".join(map(str, cores))
    common = [str(target.directory), both, "--no-prefix-cache", "--streams", str(max(_CROWDS)), "--max-context", "512"]
    with_draft = ["--speculative-mode", "Auto", "--draft", str(draft.directory)]
    variants = {
        "plain": common,
        "plain again": common,
        "text": [*common, "--speculative-mode", "Auto"],
        "model": [*common, *with_draft],
        "rounded model": [*common, *with_draft[:-1], str(rounded.directory)],
        "model, one chunk": [*common, *with_draft, "--max-chunks", "1"],
        "unsplit": [common[0], str(cores[1]), *common[2:]],
    }
    report, replies = Report(), _Replies()
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(
                Worker("bench.systems.whole_path", arguments, cores if name != "unsplit" else cores[1:])
            )
            for name, arguments in variants.items()
        }
        novel, copied = _novel(text), [_ids(text, copy_prompt())]

        def systems(names: Sequence[str], tokens: int) -> dict[str, Callable[[], float]]:
            asked = {"1 user": (novel, 1), "2 users": (novel, 2), "copy": (copied, 1)}
            asked |= {f"{users} users": (novel, users) for users in _CROWDS}
            chosen = {name: name.rsplit(", ", 1) for name in names}
            return {
                name: replies.rate(name, workers[variant], *asked[what], tokens)
                for name, (variant, what) in chosen.items()
            }

        small = (
            "plain, 1 user",
            "text, 1 user",
            "model, 1 user",
            "model, one chunk, 1 user",
            "rounded model, 1 user",
            "rounded model, 2 users",
            "unsplit, 1 user",
            "plain, 2 users",
            "model, 2 users",
            "plain, copy",
            "text, copy",
        )
        _add_small(report, alternate(systems(small, tokens), rounds, mirrored=True))
        if not quick:
            for users in _CROWDS:
                names = [f"{variant}, {users} users" for variant in ("plain", "text", "model", "plain again")]
                crowded = alternate(systems(names, _CROWD_TOKENS), _CROWD_ROUNDS, mirrored=True)
                _add_crowd(report, crowded, users)
    replies.add_acceptance(report)
    same, compared = replies.equal_to_plain()
    report.notes += [
        "tokens per second from each user's first token on; no user drafts from another one's answers",
        f"target: deep fixture in INT8, draft model: SmolLM2 in its file's 4 bits; cores {cores}",
        f"{tokens} greedy tokens each, {_CROWD_TOKENS} in a crowd",
        f"novel prompts: {', '.join(KINDS)}, about {len(novel[0])} tokens, one kind more by round and user; "
        f"copy: {len(copied[0])} tokens",
        f"answers equal those of the plain pipeline in {same} of {compared}: the fast mode's results "
        "depend on how many tokens a step has; exact mode is tested apart",
    ]
    return report


def _add_small(report: Report, measured: Rounds) -> None:
    plain = "plain, 1 user"
    report.add("one_user_two_nodes_copy", measured.ratio("text, copy", "plain, copy"))
    report.add("one_user_two_nodes_draft", measured.ratio("model, 1 user", plain))
    report.add("one_user_two_nodes_draft_rounded", measured.ratio("rounded model, 1 user", plain))
    report.add("one_user_two_nodes_novel", measured.ratio("text, 1 user", plain))
    report.add("two_users_two_nodes_plain", measured.ratio("plain, 2 users", plain))
    report.add("two_users_two_nodes_draft", measured.ratio("model, 2 users", plain))
    report.add("two_users_two_nodes_draft_rounded", measured.ratio("rounded model, 2 users", plain))
    report.add("two_users_two_nodes_over_unsplit", measured.ratio("model, 2 users", "unsplit, 1 user"))
    report.add("depth_gain", measured.ratio("model, 1 user", "model, one chunk, 1 user"))
    for name in measured.figures:
        report.add(f"tokens_per_s.{name}", measured.spread(name))


def _add_crowd(report: Report, measured: Rounds, users: int) -> None:
    before, after = f"plain, {users} users", f"plain again, {users} users"
    plain = [both / 2 for both in measured.sums(before, after)]
    for variant in ("text", "model"):
        rates = measured.figures[f"{variant}, {users} users"]
        ratios = [rate / off for rate, off in zip(rates, plain, strict=True)]
        report.add(f"users{users}_{variant}_over_off", Spread.of(ratios))
    report.add(f"users{users}_same", measured.ratio(after, before))


def _novel(text: TextModel) -> list[list[int]]:
    return [_ids(text, prompt) for prompt in prompts()]


def _ids(text: TextModel, prompt: str) -> list[int]:
    return list(text.encode(prompt, add_special_tokens=False))


class _Replies:
    """What the systems answered: how many drafts were right, and whether the text is the plain pipeline's."""

    def __init__(self) -> None:
        self._accepted: dict[str, list[float]] = {}
        self._answers: dict[str, dict[str, list[list[int]]]] = {}

    def rate(
        self, name: str, worker: Worker, pool: Sequence[list[int]], users: int, tokens: int
    ) -> Callable[[], float]:
        """A measure for bench.measure.alternate. Each round has other prompts: those of another kind, lest one kind
        of text stand for all, and of another topic, lest finished answers help.
        """
        turn = 0

        def tokens_per_second() -> float:
            nonlocal turn
            asked = [turned(pool[(turn + user) % len(pool)], turn) for user in range(users)]
            reply = worker.ask({"prompts": asked, "tokens": tokens}, 600)
            self._note(name, f"{turn} {users} {len(asked[0])}", reply)
            turn += 1
            return decode_rate(reply)

        return tokens_per_second

    def _note(self, name: str, what: str, reply: Message) -> None:
        for source, (verified, accepted) in reply["drafts"].items():
            if verified:
                self._accepted.setdefault(f"{name}.{source}", []).append(accepted / verified)
        self._answers.setdefault(what, {})[name] = reply["answers"]

    def equal_to_plain(self) -> tuple[int, int]:
        """Answers that are those of the plain pipeline to the same prompts, and answers compared."""
        same = compared = 0
        for by_system in self._answers.values():
            (plain,) = [given for name, given in by_system.items() if name.startswith("plain,")]
            for name, given in by_system.items():
                if not name.startswith("plain,"):
                    same += sum(mine == theirs for mine, theirs in zip(given, plain, strict=True))
                    compared += len(given)
        return same, compared

    def add_acceptance(self, report: Report) -> None:
        """Accepted drafts over verified ones, by system and source."""
        for name, shares in self._accepted.items():
            report.add(f"acceptance.{name}", Spread.of(shares))
