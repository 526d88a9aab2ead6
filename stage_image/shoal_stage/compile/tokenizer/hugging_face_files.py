"""The tokenizer of a Hugging Face directory: tokenizer.json as it is, the chat template from wherever it stands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from shoal.errors import CheckpointError
from shoal_stage.compile.tokenizer.built import (
    CHAT_TEMPLATE,
    GENERATION_CONFIG,
    TOKENIZER_JSON,
    BuiltTokenizer,
    end_ids,
)
from shoal_stage.compile.tokenizer.source import HuggingFaceTokenizer

_TOKENIZER_CONFIG = "tokenizer_config.json"


def from_hugging_face(source: HuggingFaceTokenizer, vocab_size: int) -> BuiltTokenizer:
    """Raises CheckpointError when tokenizer.json is missing or does not fit the vocabulary."""
    path = source.directory / TOKENIZER_JSON
    if not path.exists():
        raise CheckpointError(
            f"{source.directory} has no {TOKENIZER_JSON}; save the tokenizer in its fast form, or compile a GGUF"
        )
    raw = path.read_bytes()
    try:
        tokenizer = Tokenizer.from_buffer(raw)
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{path} cannot be used: {error}") from error
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if highest >= vocab_size:
        raise CheckpointError(f"{path} has the token {highest}, its model a vocabulary of {vocab_size}")
    settings = _json(source.directory / _TOKENIZER_CONFIG)
    generation = _json(source.directory / GENERATION_CONFIG)
    specials = {
        token.content: number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special
    }
    named = [*_ids(generation.get("eos_token_id")), *_ids(source.config.get("eos_token_id"))]
    ends = end_ids([*named, _named_id(tokenizer, settings.get("eos_token"))], specials)
    bos = next(iter([*_ids(generation.get("bos_token_id")), *_ids(source.config.get("bos_token_id"))]), None)
    if bos is None:
        bos = _named_id(tokenizer, settings.get("bos_token"))
    generation |= {"bos_token_id": bos, "eos_token_id": list(ends)}
    files = {TOKENIZER_JSON: raw, GENERATION_CONFIG: json.dumps(generation).encode()}
    template = _chat_template(source.directory, settings)
    if template is not None:
        files[CHAT_TEMPLATE] = template.encode()
    return BuiltTokenizer(files, bos, ends)


def _chat_template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    if (path := directory / CHAT_TEMPLATE).exists():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise CheckpointError(f"{path} is not UTF-8: fetch it again") from None
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named ones
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return value


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [number for number in values if isinstance(number, int) and not isinstance(number, bool)]


def _named_id(tokenizer: Tokenizer, token: Any) -> int | None:
    content = token.get("content") if isinstance(token, dict) else token
    number = tokenizer.token_to_id(content) if isinstance(content, str) else None
    return number if isinstance(number, int) else None
