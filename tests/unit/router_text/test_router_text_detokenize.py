"""Incremental decoding: the stream's concatenation is the whole text, and no character is shown in pieces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE

from shoal.errors import ManifestError
from shoal_router.text.detokenize import Detokenizer, TokenBytes

TEXTS = ["Hello world", "สวัสดีชาวโลก", "你好，世界。", "a 😀 b 👩‍👩‍👧 c 🇩🇪", "naïve café\n\n  indented", "hello ö世 wo"]


def stream(tokenizer: Tokenizer, ids: list[int], *, begins_text: bool = True) -> tuple[list[str], str]:
    """The pieces of every id, and what the flush gives."""
    detokenizer = Detokenizer(TokenBytes(tokenizer), begins_text=begins_text)
    return [detokenizer.push(token_id) for token_id in ids], detokenizer.flush()


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_byte_level_stream_equals_the_whole_decode_for_any_ids(byte_level: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, byte_level.get_vocab_size() + 3), max_size=40))
    pieces, rest = stream(byte_level, ids)
    assert "".join(pieces) + rest == byte_level.decode(ids, skip_special_tokens=True)


@given(text=st.text(max_size=30))
@settings(max_examples=100, deadline=None)
def test_any_text_survives_both_kinds_of_tokenizer(byte_level: Tokenizer, sentencepiece: Tokenizer, text: str) -> None:
    for tokenizer, lost in ((byte_level, ""), (sentencepiece, "▁")):
        if lost and lost in text:  # the mark itself cannot be told from a space
            continue
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        pieces, rest = stream(tokenizer, ids)
        assert "".join(pieces) == tokenizer.decode(ids)
        assert rest == ""


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_byte_fallback_stream_equals_the_whole_decode_where_that_is_valid(
    sentencepiece: Tokenizer, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, sentencepiece.get_vocab_size() - 1), max_size=40))
    whole = sentencepiece.decode(ids, skip_special_tokens=True)
    pieces, rest = stream(sentencepiece, ids)
    if "\ufffd" not in whole:
        assert "".join(pieces) + rest == whole
    else:
        assert "\ufffd" in "".join(pieces) + rest


@pytest.mark.parametrize("text", TEXTS)
def test_case_67_no_character_is_shown_before_its_last_byte(byte_level: Tokenizer, text: str) -> None:
    ids = byte_level.encode(text, add_special_tokens=False).ids
    pieces, rest = stream(byte_level, ids)
    assert all("\ufffd" not in piece for piece in pieces)
    assert ("".join(pieces), rest) == (text, "")


def test_the_test_texts_do_cut_characters(byte_level: Tokenizer) -> None:
    cut = [text for text in TEXTS if "" in stream(byte_level, byte_level.encode(text).ids)[0]]
    assert len(cut) >= 3


def test_invalid_bytes_show_as_soon_as_they_are_certain(byte_level: Tokenizer) -> None:
    vocabulary = byte_level.get_vocab()
    lead, letter = vocabulary["ð"], vocabulary["a"]  # F0 opens a character of four bytes
    pieces, rest = stream(byte_level, [lead, letter, lead])
    assert pieces == ["", "\ufffda", ""]
    assert rest == "\ufffd"


def test_a_special_token_within_a_character_does_not_break_it(byte_level: Tokenizer) -> None:
    ids = [byte_level.get_vocab()[token] for token in ("Ã", "<|im_start|>", "©")]
    pieces, rest = stream(byte_level, ids)
    assert "".join(pieces) + rest == "é"


def test_case_66_special_tokens_are_not_shown_but_added_ones_are(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("<|im_start|>hi<tool_call>two words<|im_end|>").ids
    pieces, _ = stream(byte_level, ids)
    assert "".join(pieces) == "hi<tool_call>two words"
    spelled = TokenBytes(byte_level).spelled(ids[0])
    assert spelled == b"<|im_start|>"


def test_an_answer_that_begins_a_text_loses_the_mark_of_its_first_word_only(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode("hello hello", add_special_tokens=False).ids
    assert "".join(stream(sentencepiece, ids)[0]) == "hello hello"
    assert "".join(stream(sentencepiece, ids, begins_text=False)[0]) == " hello hello"


def test_an_unknown_decoder_is_refused_when_loading() -> None:
    tokenizer = Tokenizer(BPE())
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ManifestError, match="WordPiece; known are ByteLevel and ByteFallback"):
        TokenBytes(tokenizer)
    tokenizer = Tokenizer(BPE())
    with pytest.raises(ManifestError, match="kind none"):
        TokenBytes(tokenizer)
