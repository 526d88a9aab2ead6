"""How byte-level BPE vocabularies cut text before merging, by the name that GGUF gives (`tokenizer.ggml.pre`).

The regular expressions are the published ones of each vocabulary's tokenizer.json.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Cut:
    """How a vocabulary cuts text. `ignore_merges` takes a piece that is a token whole; `adds_bos` is the default."""

    pre_tokenizer: PreTokenizer
    normalizer: Normalizer | None = None
    ignore_merges: bool = False
    adds_bos: bool = False


def _by_regex(pattern: str) -> PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _gpt2() -> Cut:
    return Cut(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))


def _single_digits() -> Cut:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return Cut(pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]))


def _llama3() -> Cut:
    return Cut(_by_regex(_LLAMA3), ignore_merges=True, adds_bos=True)


def _qwen2() -> Cut:
    return Cut(_by_regex(_QWEN2), normalizer=normalizers.NFC())


def _tekken() -> Cut:
    return Cut(_by_regex(_TEKKEN), ignore_merges=True, adds_bos=True)


KNOWN = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "gpt2": _gpt2,
    "smollm": _single_digits,
    "starcoder": _single_digits,
    "refact": _single_digits,
    "command-r": _single_digits,
    "llama-bpe": _llama3,
    "llama3": _llama3,
    "llama-v3": _llama3,
    "qwen2": _qwen2,
    "deepseek-r1-qwen": _qwen2,
    "tekken": _tekken,
}
