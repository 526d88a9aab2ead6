"""A tokenizer ready to be written, whatever it was made from."""

from __future__ import annotations

from dataclasses import dataclass

TOKENIZER_JSON = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"
GENERATION_CONFIG = "generation_config.json"

END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
)
"""Special tokens that end an answer. Checkpoints often name only one of theirs; a chat model may emit another."""


@dataclass(frozen=True, slots=True)
class BuiltTokenizer:
    """Files by name, and the ids that the manifest carries. `notes` are for the user."""

    files: dict[str, bytes]
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    notes: tuple[str, ...] = ()


def end_ids(named: list[int | None], specials: dict[str, int]) -> tuple[int, ...]:
    """The ids that a checkpoint names, in its order, then those of well-known end tokens among its special tokens."""
    known = [specials[token] for token in END_OF_TURN if token in specials]
    return tuple(dict.fromkeys([*(token for token in named if token is not None), *known]))
