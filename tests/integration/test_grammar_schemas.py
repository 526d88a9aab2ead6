"""A thousand JSON schemas, made at random of every keyword that llguidance takes: each answer is valid.

The vocabulary is SmolLM2's; the logits are noise in which quotes and brackets are likely, more so the longer the
answer, and nothing but the grammar makes an answer valid. The judge is jsonschema.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from llguidance import LLTokenizer

from shoal.grammar import tokenizer_of
from shoal.resource import load_sharded_model
from shoal.wire.messages import Row, SamplingParams, SequenceStart
from shoal_cli.cache import checkpoints_dir
from shoal_router.constrain.constraint import Constraint, Form, GrammarRefused
from shoal_router.constrain.worker import compiled
from shoal_stage.compile import resolve_source
from shoal_stage.compile.readers import open_checkpoint
from shoal_stage.compile.tokenizer import build_tokenizer, write_tokenizer
from shoal_stage.sample.grammar import Grammars
from shoal_stage.sample.sampler import Sampler

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2.yaml"
VOCAB = 49152
LONGEST = 600
Schema = dict[str, Any]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> tuple[LLTokenizer, tuple[int, ...]]:
    source = load_sharded_model(EXAMPLE).spec.model.source
    assert source is not None
    checkpoint = open_checkpoint(resolve_source(source.uri, checkpoints_dir(), source.sha256).path)
    built = build_tokenizer(checkpoint.tokenizer, VOCAB)
    directory = tmp_path_factory.mktemp("smollm2")
    write_tokenizer(built, directory)
    return tokenizer_of(directory, VOCAB, built.eos_token_ids), built.eos_token_ids


@pytest.fixture(scope="module")
def answer(tokenizer: tuple[LLTokenizer, tuple[int, ...]]) -> Iterator[Callable[[str, int], str]]:
    """The whole answer under a grammar."""
    reader, ends = tokenizer
    grammars = Grammars(lambda: reader, VOCAB)
    noise = np.random.default_rng(1).normal(0, 2, (32, VOCAB)).astype(np.float32)
    quotes, brackets = (
        np.array([bool(set(reader.decode_str([token])) & set(marks)) for token in range(VOCAB)], np.float32)
        for marks in ('"@', "}]")
    )
    brackets[list(ends)] = 1

    def closing(length: int) -> np.ndarray:
        """Both kinds at first; then they take turns, since each alone may go on for ever where the other would end."""
        turn = length // 50
        return (quotes + brackets if turn < 2 else (quotes, brackets)[turn % 2]) * np.float32(5 + length / 20)

    def of(grammar: str, seed: int) -> str:
        sampler = Sampler(grammars)
        params = SamplingParams(temperature=0.0, seed=seed, grammar=grammar)
        ids = [5]
        while ids[-1] not in ends:
            assert len(ids) < LONGEST, f"no end: {reader.decode_str(ids[1:])!r}"
            start = SequenceStart(params, 1) if len(ids) == 1 else None
            row = Row(1, 0, len(ids) - 1, (ids[-1],), 1, True, start=start)
            sampler.prepare((row,))
            logits = noise[[zlib.crc32(repr((seed, ids)).encode()) % len(noise)]]
            (outcome,) = sampler.sample((row,), logits + closing(len(ids)))
            assert not outcome.error, outcome.error
            ids += outcome.tokens
        return str(reader.decode_str(ids[1:-1]))

    yield of
    grammars.close()


def check(answer: Callable[[str, int], str], reader: LLTokenizer, schema: Schema, seed: int) -> None:
    grammar = compiled(reader, Constraint(Form.JSON_SCHEMA, json.dumps(schema), "schema"))
    text = answer(grammar, seed)
    errors = [error.message for error in Draft202012Validator(schema).iter_errors(json.loads(text))]
    assert not errors, (schema, text, errors)


EACH_KEYWORD: list[Schema] = [
    {"type": "null"},
    {"type": ["integer", "null"]},
    {"type": "boolean"},
    {"const": {"a": [1, None]}},
    {"enum": ["x", 2, None, {"k": []}]},
    {"type": "string", "minLength": 3, "maxLength": 4},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    {"type": "integer", "minimum": -5, "maximum": 5},
    {"type": "integer", "exclusiveMinimum": 7, "exclusiveMaximum": 10},
    {"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 99},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    {"type": "array", "prefixItems": [{"const": 1}, {"type": "null"}], "items": False, "minItems": 2},
    {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False},
    {"type": "object", "properties": {}, "additionalProperties": {"enum": [1]}, "maxProperties": 2},
    {"type": "object", "patternProperties": {"^[a-z]{2}$": {"enum": [1]}}, "additionalProperties": False},
    {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": {"type": "null"}},
    {"anyOf": [{"const": 1}, {"type": "string", "maxLength": 2}]},
    {"oneOf": [{"type": "null"}, {"type": "boolean"}]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 4}]},
    {"$ref": "#/$defs/node", "$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}}},
    *(
        {"type": "string", "format": name}
        for name in ("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
    ),
]


@pytest.mark.parametrize("schema", EACH_KEYWORD, ids=json.dumps)
def test_each_keyword_is_held_to(answer, tokenizer, schema: Schema) -> None:
    for seed in range(3):
        check(answer, tokenizer[0], schema, seed)


def random_schema(rng: random.Random, depth: int) -> Schema:
    kinds = ["string", "integer", "number", "boolean", "enum", "const", "pattern", "format"]
    if depth:
        kinds += ["array", "object", "object", "tuple", "anyOf", "allOf", "map"]
    low, below = rng.randint(-50, 50), depth - 1
    match rng.choice(kinds):
        case "string":
            least = rng.randint(0, 4)
            return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 8)}
        case "integer":
            bound = {"minimum": low, "maximum": low + rng.randint(20, 500)}
            return {"type": "integer", **bound, **rng.choice([{}, {"multipleOf": rng.randint(2, 9)}])}
        case "number":
            return {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": low + rng.randint(1, 90)}
        case "boolean":
            return {"type": rng.choice(["boolean", "null", ["boolean", "null"]])}
        case "enum":
            return {"enum": rng.sample(["a", "b c", 'q"uote', 1, 2.5, None, True, [1], {"k": "v"}, "日本"], 3)}
        case "const":
            return {"const": rng.choice(["x", 7, [], {"a": {"b": None}}])}
        case "pattern":
            return {"type": "string", "pattern": rng.choice(["^[a-c]{1,4}$", r"^\d{3}-\d{2}$", "^(ja|nein)$"])}
        case "format":
            return {"type": "string", "format": rng.choice(["date", "time", "ipv4", "uuid", "date-time"])}
        case "array":
            least = rng.randint(0, 2)
            items = random_schema(rng, below)
            return {"type": "array", "items": items, "minItems": least, "maxItems": least + rng.randint(0, 2)}
        case "tuple":
            first = [random_schema(rng, below) for _ in range(rng.randint(1, 2))]
            return {"type": "array", "prefixItems": first, "items": False, "minItems": len(first)}
        case "map":
            return {"type": "object", "additionalProperties": random_schema(rng, below), "maxProperties": 2}
        case "anyOf":
            return {"anyOf": [random_schema(rng, below) for _ in range(2)]}
        case "allOf":
            return {"allOf": [{"type": "integer", "minimum": low}, {"maximum": low + 30}]}
        case _:
            names = rng.sample(["id", "name", "value", "items", "größe", "a b", 'x"y'], rng.randint(1, 4))
            return {
                "type": "object",
                "properties": {name: random_schema(rng, below) for name in names},
                "required": rng.sample(names, rng.randint(0, len(names))),
                "additionalProperties": False,
            }


def test_case_81_answers_of_a_thousand_schemas_are_valid(answer, tokenizer) -> None:
    rng = random.Random(20)
    refused = 0
    for number in range(1000):
        try:
            check(answer, tokenizer[0], random_schema(rng, 3), number)
        except GrammarRefused:
            refused += 1
    assert refused < 20, "hardly any may be beyond llguidance"
