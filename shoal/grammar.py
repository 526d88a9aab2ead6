"""What router and last stage must see alike in a grammar: its bounds, and how llguidance is told of a vocabulary.

A grammar is llguidance's text (Lark, or its JSON around Lark and JSON schemas). The router checks it and sends it with
a sequence's sampling parameters; the last stage follows it. Both compile the same text with the same bounds, so what
the router accepts, the stage accepts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from shoal.errors import ManifestError
from shoal.manifest import TOKENIZER_DIR

_STEP_FUEL: Final = 100_000
_STEP_ITEMS: Final = 25_000
"""Half of llguidance's own bounds: by its authors' rates one mask takes at most some ten milliseconds."""


def tokenizer_of(directory: Path, vocab_size: int, stop_ids: tuple[int, ...]) -> LLTokenizer:
    """A model directory's vocabulary. `vocab_size`: of the logits, which many families pad; `stop_ids` end an answer.

    Takes half a second. Raises ManifestError when tokenizer.json cannot be used.
    """
    path = directory / TOKENIZER_DIR / "tokenizer.json"
    try:
        return LLTokenizer(path.read_text(encoding="utf-8"), n_vocab=vocab_size, eos_token=list(stop_ids) or None)
    except OSError as error:
        raise ManifestError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:  # the library raises plain exceptions for whatever it cannot use
        raise ManifestError(f"{path} cannot be used for grammars: {error}") from error


def matcher_of(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """The grammar at its beginning. Never raises: see LLMatcher.is_error and get_error."""
    limits = LLParserLimits(step_lexer_fuel=_STEP_FUEL, step_max_items=_STEP_ITEMS, verbose_errors=False)
    return LLMatcher(tokenizer, grammar, log_level=0, limits=limits)


def first_line(message: Any) -> str:
    """What is wrong, without the drawing of where that llguidance puts below it."""
    return " ".join(str(message).split())[:300]
