"""One sequence's answer: independent of how deltas are grouped, exact counts, logprobs beside their text."""

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.wire.messages import TokenLogprob
from shoal_router.generation import FinishReason, TokenDelta
from shoal_router.text.answer import AnswerText, Piece
from shoal_router.text.fake import EOS_ID, fake_text_model

TEXT = fake_text_model()
STOP_IDS = frozenset({EOS_ID})


def ids_of(text: str) -> tuple[int, ...]:
    return TEXT.encode(text, add_special_tokens=False)


def answer(stops: list[str] | None = None) -> AnswerText:
    return AnswerText(TEXT.detokenizer(begins_text=True), stops or [], STOP_IDS)


def play(ids: tuple[int, ...], sizes: list[int], stops: list[str], finish: FinishReason) -> tuple[list[Piece], int]:
    """Feed the ids in deltas of the given sizes (the last one takes the rest)."""
    growing = answer(stops)
    pieces, at = [], 0
    for size in [*sizes, len(ids)]:
        chunk, at = ids[at : at + size], at + size
        last = at >= len(ids)
        scores = tuple(TokenLogprob(-float(i)) for i in chunk)
        pieces.append(growing.push(TokenDelta(chunk, scores, finish if last else None)))
        if pieces[-1].finish is not None or last:
            break
    return pieces, growing.completion_tokens


@given(
    text=st.text(alphabet="ab😀ไ。", max_size=12),
    sizes=st.lists(st.integers(1, 5), max_size=12),
    stops=st.lists(st.text(alphabet="ab😀", min_size=1, max_size=3), max_size=2),
    finish=st.sampled_from(FinishReason),
)
@settings(max_examples=100, deadline=None)
def test_an_answer_does_not_depend_on_how_ids_are_grouped(
    text: str, sizes: list[int], stops: list[str], finish: FinishReason
) -> None:
    ids = (*ids_of(text), EOS_ID) if finish is FinishReason.STOP else (*ids_of(text), ids_of("b")[0])
    grouped, grouped_tokens = play(ids, sizes, stops, finish)
    single, single_tokens = play(ids, [1] * len(ids), stops, finish)
    for pieces in (grouped, single):
        assert pieces[-1].finish is not None
    assert "".join(p.text for p in grouped) == "".join(p.text for p in single)
    assert [s for p in grouped for s in p.scored] == [s for p in single for s in p.scored]
    assert grouped_tokens == single_tokens


def test_the_stop_id_counts_but_is_not_shown() -> None:
    pieces, tokens = play((*ids_of("hi"), EOS_ID), [], [], FinishReason.STOP)
    assert [piece.text for piece in pieces] == ["hi"]
    assert tokens == 3
    assert [entry.token_id for entry in pieces[0].scored] == list(ids_of("hi"))


def test_ids_after_a_stop_string_do_not_count() -> None:
    growing = answer(["l"])
    piece = growing.push(TokenDelta(ids_of("hello")))
    assert piece == Piece("he", (), FinishReason.STOP)
    assert growing.completion_tokens == 3


def test_logprobs_leave_with_the_text_they_belong_to() -> None:
    growing = answer(["xyz"])
    first = growing.push(TokenDelta(ids_of("ax"), (TokenLogprob(-1.0), TokenLogprob(-2.0))))
    assert (first.text, [entry.offset for entry in first.scored]) == ("a", [0])
    second = growing.push(TokenDelta(ids_of("b"), (TokenLogprob(-3.0),)))
    assert (second.text, [entry.offset for entry in second.scored]) == ("xb", [1, 2])


def test_logprobs_of_a_cut_stop_string_are_not_shown() -> None:
    growing = answer(["xy"])
    scores = tuple(TokenLogprob(-float(n)) for n in range(4))
    piece = growing.push(TokenDelta(ids_of("abxy"), scores))
    assert piece.finish is FinishReason.STOP
    assert [entry.score.logprob for entry in piece.scored] == [0.0, -1.0]


def test_the_bytes_of_one_character_share_its_offset() -> None:
    growing = answer()
    ids = ids_of("a😀b")
    piece = growing.push(TokenDelta(ids, tuple(TokenLogprob(-1.0) for _ in ids)))
    assert [entry.offset for entry in piece.scored] == [0, 1, 1, 1, 1, 2]


def test_case_67_a_character_cut_by_the_length_limit_is_left_out() -> None:
    pieces, tokens = play(ids_of("ok😀")[:-1], [], [], FinishReason.LENGTH)
    assert "".join(piece.text for piece in pieces) == "ok"
    assert tokens == 5


def test_a_model_that_ends_within_a_character_shows_it() -> None:
    pieces, _ = play((*ids_of("ok😀")[:-1], EOS_ID), [], [], FinishReason.STOP)
    assert "".join(piece.text for piece in pieces) == "ok\ufffd"


def test_a_held_back_beginning_is_shown_when_the_length_limit_ends_the_answer() -> None:
    pieces, _ = play(ids_of("ab"), [], ["bc"], FinishReason.LENGTH)
    assert pieces[-1] == Piece("ab", pieces[-1].scored, FinishReason.LENGTH)


def test_cached_tokens_are_kept() -> None:
    growing = answer()
    growing.push(TokenDelta(ids_of("a"), cached_tokens=32))
    growing.push(TokenDelta(ids_of("b")))
    assert growing.cached_tokens == 32
