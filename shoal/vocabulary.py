"""Which token each id stands for: two models may share ids (a draft model's are the target's) only when this is equal.

Taken from tokenizer.json, not from the checkpoint's embedding, which many families pad to a round number of rows. The
files of two sizes of one family differ in bytes more often than in tokens, so the digest is of the ids and tokens.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import ManifestError, UsageError
from shoal.manifest import TOKENIZER_DIR, Manifest


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Ids below `size`, and the digest (sha256, hex) of their tokens; `model` is whose they are."""

    model: str
    size: int
    digest: str


def read_vocabulary(directory: Path, manifest: Manifest) -> Vocabulary:
    """The vocabulary of a model directory. Raises ManifestError when its tokenizer cannot be used."""
    path = directory / TOKENIZER_DIR / "tokenizer.json"
    try:
        document = json.loads(path.read_bytes())
        tokens = _tokens(document)
    except FileNotFoundError:
        raise ManifestError(f"{path} is missing: compile the model again") from None
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ManifestError(f"{path} cannot be used: {type(error).__name__}: {error}") from error
    text = json.dumps(sorted(tokens.items()), ensure_ascii=True, separators=(",", ":"))
    return Vocabulary(manifest.name, max(tokens) + 1, hashlib.sha256(text.encode()).hexdigest())


def check_draft_vocabulary(target: Vocabulary, draft: Vocabulary) -> None:
    """Raises UsageError when drafts of `draft` would be other words in `target`."""
    if target.size != draft.size:
        raise UsageError(
            f"draft model {draft.model} has a vocabulary of {draft.size} tokens, {target.model} one of {target.size}: "
            "choose a draft model of the same family"
        )
    if target.digest != draft.digest:
        raise UsageError(
            f"draft model {draft.model} and {target.model} have as many tokens, {target.size}, but not the same ones: "
            "choose a draft model of the same family"
        )


def _tokens(document: dict[str, Any]) -> dict[int, str]:
    """Id -> token. A unigram model's vocabulary is a list of tokens and scores, the others' is token -> id."""
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, list):
        tokens = {number: str(token) for number, (token, _) in enumerate(vocabulary)}
    else:
        tokens = {int(number): str(token) for token, number in vocabulary.items()}
    return tokens | {int(added["id"]): str(added["content"]) for added in document.get("added_tokens", ())}
