"""Two nodes of one core each: 1, 2 and 16 users, against one node and against llama.cpp over RPC on the same cores.

A node is one core. The router and the load generator share the two cores with the stages, as they do in an office where
some user's PC is also the router's; one node alone carries its router, too. `deep.` figures are those of the deep
fixture (bench.fixtures), which shows how they move when a step costs what a larger model's step costs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench.fixtures import DEPTH, deep_smollm2
from bench.latency import Latencies
from bench.measure import alternate
from bench.models import BenchModel, bench_cache, smollm2
from bench.peers.llamacpp.build import VERSION, build
from bench.prompts import prompts
from bench.report import Report
from bench.systems.cut import even_steps
from bench.workers import Worker, two_cores
from shoal.errors import ResourceError
from shoal.manifest import read_manifest
from shoal_router.text.model import load_text_model

TITLE = "two one-core nodes: 1, 2 and 16 users against one node and llama.cpp over RPC"

USERS = 16
SEQUENCES = 8
HEAD_LAYERS = 7
"""Layers that take as long as the head in a step: measured with one core of an AVX2 processor without VNNI. The planner
counts weights, by which it is 8; both cuts are measured."""

_LLAMACPP = f"llama.cpp rpc, {SEQUENCES} users"
_RATIOS = {
    "users2_over_one_node_one_user": ("2 nodes, 2 users", "1 node, 1 user", 1.0),
    "users1_over_one_node_one_user": ("2 nodes, 1 user", "1 node, 1 user", 1.0),
    "users16_over_twice_one_node": ("2 nodes, 16 users", "1 node, 16 users", 2.0),
    "users16_over_two_replicas": ("2 nodes, 16 users", "1 node, 8 users", 2.0),
    "planned.users2_over_one_node_one_user": ("2 nodes as planned, 2 users", "1 node, 1 user", 1.0),
    "planned.users16_over_twice_one_node": ("2 nodes as planned, 16 users", "1 node, 16 users", 2.0),
}


def run(quick: bool) -> Report:
    """Measure; `quick` makes few tokens in one round and leaves the deep fixture out, which loads for a minute."""
    report = Report()
    cores = two_cores()
    plain = _measure(report, "", smollm2(), cores, 8 if quick else 32, 1 if quick else 5)
    if not quick:
        deep = _measure(report, "deep.", deep_smollm2(), cores, 12, 3)
        report.add("deep.same_text_as_plain", int(deep == plain[: len(deep)]))
    report.notes += [
        f"cores {cores}: one stage each; the router (without HTTP) and the users' side run on the same two cores",
        "one node: stage, router and users on one core; two nodes: cut by manual ranges for equal step times, a head "
        f"counted as {HEAD_LAYERS} layers; `planned`: as the planner cuts for equal nodes, by weights",
        f"{USERS} users are one batch on one node, two micro-batches on two; two replicas are twice one node with half "
        "of the users",
        f"deep: SmolLM2 with {DEPTH - 1} pass-through layers after each of its layers (output projections zero): the "
        "same text and no model of its own",
    ]
    return report


def _measure(report: Report, prefix: str, model: BenchModel, cores: list[int], tokens: int, rounds: int) -> list[int]:
    """Measure and report one model; returns the first user's answer."""
    text = load_text_model(model.directory)
    ids = [list(text.encode(prompt, add_special_tokens=False)) for prompt in prompts()[:USERS]]
    latencies = Latencies()
    with ExitStack() as stack:
        systems: dict[str, Callable[[], float]] = {}
        layers = ",".join(map(str, even_steps(read_manifest(model.directory).shape.layers, HEAD_LAYERS)))
        for nodes, options, counts in (
            ("1 node", [], (1, SEQUENCES, USERS)),
            ("2 nodes", ["--layers", layers], (1, 2, USERS)),
            ("2 nodes as planned", [], (2, USERS)),
        ):
            placed = cores[1:] if nodes == "1 node" else cores
            arguments = [str(model.directory), ",".join(map(str, placed)), "--no-prefix-cache", *options]
            arguments += ["--streams", str(USERS), "--max-context", "512"]
            worker = stack.enter_context(Worker("bench.systems.whole_path", arguments, placed))
            for users in counts:
                name = f"{nodes}, {users} user{'s' * (users > 1)}"
                systems[name] = latencies.rate(name, worker, {"prompts": ids[:users], "tokens": tokens})
        try:
            systems[_LLAMACPP] = _llamacpp(stack, model.checkpoint, cores, len(ids[0]), tokens, report)
        except ResourceError as error:
            report.notes.append(f"{prefix}llama.cpp is missing: {error}")
        measured = alternate(systems, rounds)
    for key, (system, over, times) in _RATIOS.items():
        report.add(prefix + key, measured.ratio(system, over).over(times))
    report.add(
        f"{prefix}users16_over_llamacpp_rpc8",
        measured.ratio("2 nodes, 16 users", _LLAMACPP) if _LLAMACPP in systems else "missing",
    )
    for name in systems:
        report.add(f"{prefix}tokens_per_s.{name}", measured.spread(name))
    latencies.add_to(report, prefix)
    report.notes.append(
        f"{prefix or 'plain: '}{rounds} rounds, {tokens} greedy tokens each after prompts of about {len(ids[0])}"
    )
    answer: list[int] = latencies.counted("1 node, 1 user")[0]["answers"][0]
    return answer


def _llamacpp(
    stack: ExitStack, gguf: Path, cores: list[int], prompt: int, tokens: int, report: Report
) -> Callable[[], float]:
    """Tokens per second of llama.cpp; run once here, so that what is missing shows before anything is measured."""
    programs = build(bench_cache())
    worker = stack.enter_context(Worker("bench.peers.llamacpp.rpc", [str(gguf), ",".join(map(str, cores))], cores))

    def tokens_per_second() -> float:
        reply = worker.ask({"sequences": SEQUENCES, "prompt": prompt, "tokens": tokens})
        return float(reply["tokens"]) / float(reply["seconds"])

    tokens_per_second()
    report.notes.append(
        f"llama.cpp of llama-cpp-python {VERSION}, built with {', '.join(programs.instruction_sets)}, on {gguf.name}; "
        f"{SEQUENCES} sequences; llama-batched-bench draws no tokens and makes no text"
    )
    return tokens_per_second
