"""Reasoning before the answer, cut at every point."""

import pytest

from shoal_router.text.reasoning import ReasoningReader, begins_within, thinks


def read(pieces, *, within=False):
    reader = ReasoningReader(within=within)
    reasoning = answer = ""
    for piece in pieces:
        more, text = reader.push(piece)
        reasoning, answer = reasoning + more, answer + text
    more, text = reader.flush()
    return reasoning + more, answer + text


@pytest.mark.parametrize(
    ("text", "within", "reasoning", "answer"),
    [
        ("<think>\nHm, 3 < 4.\n\nSo.\n</think>\n\nYes. ", False, "Hm, 3 < 4.\n\nSo.", "Yes. "),
        ("\n<think>a</think>b</think>c", False, "a", "b</think>c"),
        ("<think>\n\n</think>\n\nNo thought.", False, "", "No thought."),
        ("<think>cut in the", False, "cut in the", ""),
        ("<think>cut </thin", False, "cut </thin", ""),
        ("Plain <think>text</think>", False, "", "Plain <think>text</think>"),
        ("<thin", False, "", "<thin"),
        ("\nA thought.\n</think>\nAnswer", True, "A thought.", "Answer"),
        ("", True, "", ""),
    ],
)
def test_the_parts_do_not_depend_on_the_cuts(text, within, reasoning, answer) -> None:
    assert read([text], within=within) == (reasoning, answer)
    assert read(list(text), within=within) == (reasoning, answer)
    for cut in range(1, len(text)):
        assert read([text[:cut], text[cut:]], within=within) == (reasoning, answer), cut


def test_templates_and_prompts_tell() -> None:
    assert thinks("{{ message.content.split('</think>')[-1] }}")
    assert not thinks("{{ message.content }}")
    assert begins_within("<|Assistant|><think>\n")
    assert not begins_within("<|im_start|>assistant\n<think>\n\n</think>\n\n")
