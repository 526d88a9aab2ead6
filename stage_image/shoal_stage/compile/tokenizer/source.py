"""Where a checkpoint's tokenizer comes from, before anything is built of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """Tables in a GGUF file's metadata."""

    path: Path
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HuggingFaceTokenizer:
    """Files in a Hugging Face directory; `config` is config.json."""

    directory: Path
    config: Mapping[str, Any]


TokenizerSource = GgufTokenizer | HuggingFaceTokenizer
