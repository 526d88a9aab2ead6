"""Two models share ids only when the ids mean the same tokens, whatever their files look like."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.errors import ManifestError, UsageError
from shoal.vocabulary import Vocabulary, check_draft_vocabulary, read_vocabulary


def vocabulary_of(directory: Path, document: Any, name: str = "tiny") -> Vocabulary:
    (directory / "tokenizer").mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer" / "tokenizer.json").write_text(
        document if isinstance(document, str) else json.dumps(document)
    )
    return read_vocabulary(directory, SimpleNamespace(name=name))  # type: ignore[arg-type]


BPE = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "<end>"}]}


def test_the_order_and_the_rest_of_the_file_do_not_matter(tmp_path: Path) -> None:
    other = {
        "version": "1.0",
        "added_tokens": [{"id": 2, "content": "<end>", "special": True}],
        "model": {"vocab": {"b": 1, "a": 0}, "merges": []},
    }
    unigram = {"model": {"type": "Unigram", "vocab": [["a", -1.5], ["b", -2]]}, "added_tokens": other["added_tokens"]}
    first = vocabulary_of(tmp_path / "one", BPE)
    assert first.size == 3
    for number, document in enumerate((other, unigram)):
        check_draft_vocabulary(first, vocabulary_of(tmp_path / str(number), document))


def test_other_tokens_are_refused_by_the_names_of_both_models(tmp_path: Path) -> None:
    target = vocabulary_of(tmp_path / "target", BPE, "big")
    swapped = {**BPE, "model": {"vocab": {"a": 1, "b": 0}}}
    with pytest.raises(UsageError, match="draft model small and big have as many tokens, 3, but not the same ones"):
        check_draft_vocabulary(target, vocabulary_of(tmp_path / "swapped", swapped, "small"))
    fewer = {"model": BPE["model"]}
    with pytest.raises(UsageError, match="draft model small has a vocabulary of 2 tokens, big one of 3"):
        check_draft_vocabulary(target, vocabulary_of(tmp_path / "fewer", fewer, "small"))


@pytest.mark.parametrize("document", ["{", '{"model": {}}', '{"model": {"vocab": 3}}'])
def test_a_tokenizer_that_cannot_be_used_is_one_line(tmp_path: Path, document: str) -> None:
    with pytest.raises(ManifestError, match=r"tokenizer\.json cannot be used"):
        vocabulary_of(tmp_path, document)
    with pytest.raises(ManifestError, match="is missing"):
        read_vocabulary(tmp_path / "nowhere", SimpleNamespace(name="x"))  # type: ignore[arg-type]
