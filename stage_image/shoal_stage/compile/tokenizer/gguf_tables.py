"""tokenizer.json from the tables in a GGUF file: byte-level BPE (`gpt2`) and SentencePiece (`llama`) vocabularies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from shoal.errors import CheckpointError
from shoal_stage.compile.tokenizer.built import (
    CHAT_TEMPLATE,
    GENERATION_CONFIG,
    TOKENIZER_JSON,
    BuiltTokenizer,
    end_ids,
)
from shoal_stage.compile.tokenizer.pretokenizers import KNOWN
from shoal_stage.compile.tokenizer.source import GgufTokenizer

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # of tokenizer.ggml.token_type
_SPACE = "▁"


@dataclass(frozen=True, slots=True)
class _Tables:
    """The `tokenizer.ggml.*` metadata of one file."""

    origin: str
    metadata: Mapping[str, Any]
    tokens: list[str]
    kinds: list[int]

    def get(self, key: str) -> Any:
        return self.metadata.get(f"tokenizer.ggml.{key}")

    def token_id(self, key: str) -> int | None:
        """A token id that the file names; None when it names none, or one beyond the vocabulary."""
        value = self.get(key)
        return value if isinstance(value, int) and 0 <= value < len(self.tokens) else None

    def specials(self) -> dict[str, int]:
        """Control and user-defined tokens with their ids."""
        pairs = zip(self.tokens, self.kinds, strict=True)
        return {token: number for number, (token, kind) in enumerate(pairs) if kind in (_CONTROL, _USER_DEFINED)}


def from_gguf(source: GgufTokenizer, vocab_size: int) -> BuiltTokenizer:
    """Raises CheckpointError when the file has no tokenizer, or one of an unknown kind."""
    tables = _read_tables(source, vocab_size)
    match kind := tables.get("model"):
        case "gpt2":
            tokenizer, adds_bos, notes = _byte_level(tables)
        case "llama":
            tokenizer, adds_bos, notes = _sentence_piece(tables)
        case _:
            raise CheckpointError(f"{source.path}: its tokenizer is of the kind {kind!r}; known are gpt2 and llama")
    _add_specials(tokenizer, tables)
    bos, eos = tables.token_id("bos_token_id"), tables.token_id("eos_token_id")
    wants_bos, wants_eos = tables.get("add_bos_token"), tables.get("add_eos_token")
    prefix = bos if (adds_bos if wants_bos is None else wants_bos) else None
    _add_template(tokenizer, tables, prefix, eos if wants_eos else None)
    ends = end_ids([eos, tables.token_id("eot_token_id"), tables.token_id("eom_token_id")], tables.specials())
    files = {
        TOKENIZER_JSON: tokenizer.to_str().encode(),
        GENERATION_CONFIG: json.dumps({"bos_token_id": bos, "eos_token_id": list(ends)}).encode(),
    }
    template = source.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        try:
            files[CHAT_TEMPLATE] = template.encode()
        except UnicodeEncodeError:
            raise CheckpointError(f"{source.path}: its chat template is not UTF-8: fetch it again") from None
    return BuiltTokenizer(files, bos, ends, notes)


def _read_tables(source: GgufTokenizer, vocab_size: int) -> _Tables:
    tokens, kinds = (source.metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise CheckpointError(
            f"{source.path} holds no tokenizer: tokenizer.ggml.tokens is missing; use a complete GGUF"
        )
    if kinds is None:
        kinds = [1] * len(tokens)
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise CheckpointError(f"{source.path}: its tokenizer names {len(tokens)} tokens, but not the type of each")
    if len(tokens) > vocab_size:
        raise CheckpointError(
            f"{source.path}: its tokenizer has {len(tokens)} tokens, its model a vocabulary of {vocab_size}"
        )
    return _Tables(str(source.path), source.metadata, tokens, kinds)


def _byte_level(tables: _Tables) -> tuple[Tokenizer, bool, tuple[str, ...]]:
    name = tables.get("pre")
    notes: tuple[str, ...] = ()
    if name is None:
        name = "default"
        notes = ("the GGUF does not say how its tokenizer cuts text: GPT-2's way is taken, answers may suffer",)
    if name not in KNOWN:
        raise CheckpointError(
            f"{tables.origin}: its tokenizer cuts text the way of {name!r}, which is not known; known are "
            + ", ".join(sorted(KNOWN))
        )
    cut = KNOWN[name]()
    merges = tables.get("merges")
    if not isinstance(merges, list):
        raise CheckpointError(f"{tables.origin} holds no complete tokenizer: tokenizer.ggml.merges is missing")
    pairs = [_pair(tables, merge) for merge in merges]
    vocabulary = {token: number for number, token in enumerate(tables.tokens)}
    model = _model(tables, vocab=vocabulary, merges=pairs, ignore_merges=cut.ignore_merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = cut.pre_tokenizer
    if cut.normalizer is not None:
        tokenizer.normalizer = cut.normalizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, cut.adds_bos, notes


def _pair(tables: _Tables, merge: str) -> tuple[str, str]:
    left, found, right = merge.partition(" ")
    if not found:
        raise CheckpointError(f"{tables.origin}: its tokenizer's merge {merge!r} is no pair")
    return left, right


def _sentence_piece(tables: _Tables) -> tuple[Tokenizer, bool, tuple[str, ...]]:
    scores = tables.get("scores")
    if not isinstance(scores, list) or len(scores) != len(tables.tokens):
        raise CheckpointError(f"{tables.origin} holds no complete tokenizer: tokenizer.ggml.scores is missing")
    vocabulary = {token: number for number, token in enumerate(tables.tokens)}
    unknown = tables.kinds.index(_UNKNOWN) if _UNKNOWN in tables.kinds else tables.token_id("unknown_token_id")
    model = _model(
        tables,
        vocab=vocabulary,
        merges=_merges_of_scores(tables, vocabulary, scores),
        unk_token=None if unknown is None else tables.tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    prepends = tables.get("add_space_prefix") is not False
    replace = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace] if prepends else [replace])
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prepends else steps)
    return tokenizer, True, ()


def _merges_of_scores(tables: _Tables, vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """SentencePiece's merges: every way to make a piece of two others, the best score first.

    Only whole pieces merge in SentencePiece: control tokens and bytes (`<0x0A>`) neither merge nor arise.
    """
    normal = {token for token, kind in zip(tables.tokens, tables.kinds, strict=True) if kind in (1, _USER_DEFINED)}
    found = [
        (-scores[vocabulary[piece]], len(piece), vocabulary[piece], piece[:cut], piece[cut:])
        for piece in normal
        for cut in range(1, len(piece))
        if piece[:cut] in normal and piece[cut:] in normal
    ]
    found.sort(key=lambda merge: (merge[0], merge[2], vocabulary[merge[3]], vocabulary[merge[4]]))
    return [(left, right) for _, _, _, left, right in found]


def _model(tables: _Tables, **arguments: Any) -> models.BPE:
    try:
        return models.BPE(**arguments)
    except Exception as error:  # the library raises nothing narrower, such as for a merge outside the vocabulary
        raise CheckpointError(f"{tables.origin}: its tokenizer's tables do not hold together: {error}") from error


def _add_specials(tokenizer: Tokenizer, tables: _Tables) -> None:
    kinds = dict(zip(tables.tokens, tables.kinds, strict=True))
    specials = list(tables.specials())
    if _UNKNOWN in tables.kinds:
        specials.append(tables.tokens[tables.kinds.index(_UNKNOWN)])
    tokenizer.add_tokens(
        [AddedToken(token, special=kinds[token] != _USER_DEFINED, normalized=False) for token in specials]
    )


def _add_template(tokenizer: Tokenizer, tables: _Tables, bos: int | None, eos: int | None) -> None:
    before = [tables.tokens[bos]] if bos is not None else []
    after = [tables.tokens[eos]] if eos is not None else []
    if before or after:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *(f"{token}:1" for token in before), "$B:1", *(f"{t}:1" for t in after)],
            special_tokens=[(tables.tokens[number], number) for number in (bos, eos) if number is not None],
        )
