"""What a grammar costs: the time of a token under a JSON schema over that of a free one.

`time_ratio`: seconds from token to token with the schema over those without, the same prompt on the same two nodes.
"""

from __future__ import annotations

import json

from bench.latency import Latencies
from bench.measure import alternate
from bench.models import smollm2
from bench.prefill import random_prompts
from bench.report import Report
from bench.workers import Worker, two_cores
from shoal.manifest import read_manifest
from shoal_router.constrain.constraint import Constraint, Form, grammar_of

TITLE = "a JSON schema: the time of each token over that without one"

PROMPT, TOKENS = 32, 128

# Long enough that no answer comes to its end: every round has as many tokens.
_ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["person", "place", "thing"]},
        "size": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "kind", "size", "tags"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": _ITEM, "minItems": 400}


def run(quick: bool) -> Report:
    """Measure; `quick` takes one round."""
    model, cores = smollm2(), two_cores()
    prompts = random_prompts(read_manifest(model.directory).shape.vocab_size)
    grammar = grammar_of(Constraint(Form.JSON_SCHEMA, json.dumps(SCHEMA), "schema"))
    free = {"prompts": [prompts(PROMPT)], "tokens": TOKENS}
    latencies = Latencies(decoding=True)
    arguments = [str(model.directory), ",".join(map(str, cores))]
    with Worker("bench.systems.whole_path", arguments, cores) as worker:
        systems = {
            "free": latencies.rate("free", worker, free),
            "schema": latencies.rate("schema", worker, {**free, "grammar": grammar}),
        }
        measured = alternate(systems, 1 if quick else 11)
    report = Report()
    report.add("time_ratio", measured.ratio("free", "schema"))
    for name in systems:
        report.add(f"decode_tok_s.{name}", measured.spread(name))
    latencies.add_to(report)
    report.notes.append(
        f"{TOKENS} tokens after a prompt of {PROMPT} random ones, no drafts, two nodes on cores {cores}"
    )
    return report
