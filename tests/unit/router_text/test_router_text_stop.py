"""Stop strings over token borders: no leak, no loss, the same answer however the text is cut."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_router.text.stop import StopMatcher


def run(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    """All that is shown, and whether a stop string ended it."""
    matcher = StopMatcher(stops)
    shown = ""
    for piece in pieces:
        shown += matcher.push(piece)
        if matcher.stopped:
            return shown, True
    return shown + matcher.flush(), False


def expected(text: str, stops: list[str]) -> tuple[str, bool]:
    """The definition, spelled out: read character by character until a stop string is complete."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - len(max(complete, key=len))], True
    return text, False


def test_case_68_every_way_to_cut_a_known_text_gives_the_same_answer() -> None:
    text, stops = "one</to</stop>x", ["</stop>", "<|end|>"]
    for count in range(4):
        for cuts in itertools.combinations(range(1, len(text)), count):
            borders = [0, *cuts, len(text)]
            pieces = [text[a:b] for a, b in itertools.pairwise(borders)]
            assert run(pieces, stops) == ("one</to", True)


# Few letters, so that partial and overlapping matches are the rule.
few = st.text(alphabet="ab", max_size=14)


@given(pieces=st.lists(st.text(alphabet="abc", max_size=4), max_size=10), stops=st.lists(few.filter(bool), max_size=4))
@settings(max_examples=100, deadline=None)
def test_case_68_stop_strings_neither_leak_nor_lose(pieces: list[str], stops: list[str]) -> None:
    assert run(pieces, stops) == expected("".join(pieces), stops)


@given(pieces=st.lists(st.text(alphabet="ab", max_size=3), max_size=8), stops=st.lists(few.filter(bool), min_size=1))
@settings(max_examples=100, deadline=None)
def test_only_what_could_become_a_stop_string_is_held_back(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = text = ""
    for piece in pieces:
        text += piece
        shown += matcher.push(piece)
        if matcher.stopped:
            return
        held = text[len(shown) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)
        longer = [text[at:] for at in range(len(shown)) if any(s.startswith(text[at:]) for s in stops)]
        assert longer == [], "a longer tail that may become a stop string was shown"


def test_a_partial_stop_string_is_shown_at_the_end() -> None:
    matcher = StopMatcher(["STOP"])
    assert matcher.push("go ST") == "go "
    assert matcher.flush() == "ST"


def test_without_stop_strings_nothing_waits() -> None:
    assert StopMatcher([]).push("anything") == "anything"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])
