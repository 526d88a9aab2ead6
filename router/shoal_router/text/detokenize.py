"""Token ids of a growing answer -> text, one id at a time.

Each id stands for bytes; text is what an incremental UTF-8 decoder makes of them. So a character that is cut by a
token border appears when its last byte has come, and never as U+FFFD before. The bytes are derived from the
tokenizer's decoder, of which two kinds are in use with the model families that shoal compiles:

- ByteLevel (GPT-2, Llama 3, Qwen, SmolLM2): every character of a token stands for one byte;
- a sequence with ByteFallback (Llama 2, Mistral, Gemma): "▁" is a space, `<0xE2>` is the byte E2.

The `tokenizers` library has a DecodeStream for the same purpose. It is not used because it has no flush at the end,
holds everything back while a model emits invalid bytes, and knows no bytes of a single token, which `logprobs` report.

For valid text the result equals `Tokenizer.decode` of all ids. For invalid bytes, ByteLevel equals it too (one U+FFFD
for each maximal subpart, as Unicode recommends); ByteFallback decodes a run of byte tokens all or nothing there,
which no stream can do without holding the run back, so here its valid characters survive.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Any

from tokenizers import Tokenizer

from shoal.errors import ManifestError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE_MARK = "▁"


def byte_level_alphabet() -> dict[str, int]:
    """The 256 characters that stand for bytes in a byte-level vocabulary.

    Source: `bytes_to_unicode` of GPT-2 (Radford et al. 2019): printable Latin-1 bytes stand for themselves, the
    others are numbered from U+0100 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(0x100 + number): byte for number, byte in enumerate(others)})
    return alphabet


class TokenBytes:
    """The bytes that each id contributes to a text; computed when an id is first met.

    Special tokens and ids outside the vocabulary contribute nothing to `shown`; `spelled` gives a special token's
    own name, for logprobs.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        decoder = json.loads(tokenizer.to_str())["decoder"]
        steps = _steps(decoder)
        kinds = {step["type"] for step in steps}
        self._alphabet = byte_level_alphabet() if "ByteLevel" in kinds else None
        if self._alphabet is None and "ByteFallback" not in kinds:
            kind = decoder["type"] if decoder else "none"
            raise ManifestError(f"tokenizer.json has a decoder of kind {kind}; known are ByteLevel and ByteFallback")
        self._spelled: dict[int, bytes] = {}
        self.strips_leading_space = any(step["type"] == "Strip" and step["start"] > 0 for step in steps)

    def shown(self, token_id: int) -> bytes:
        """What the id adds to an answer."""
        return b"" if token_id in self._special else self.spelled(token_id)

    def spelled(self, token_id: int) -> bytes:
        """What the id adds to an answer, or a special token's name."""
        try:
            return self._spelled[token_id]
        except KeyError:
            return self._spelled.setdefault(token_id, self._spell(token_id))

    def _spell(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if self._alphabet is not None:
            try:
                return bytes(self._alphabet[character] for character in token)
            except KeyError:  # an added token is spelled as text
                return token.encode()
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(match[1], 16)])
        return token.replace(_SPACE_MARK, " ").encode()


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The decoder's single steps: itself, or the members of a sequence."""
    if decoder is None:
        return []
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


class Detokenizer:
    """The text of one answer. `push` returns what an id completes, `flush` what is left at the end.

    `begins_text`: the answer begins a text (a chat message), so a sentencepiece model's mark for the first word is
    not a space. An answer that continues a prompt keeps it. `revealed`: special tokens that are shown nevertheless,
    since whoever reads the text acts on them.
    """

    __slots__ = ("_decoder", "_revealed", "_shown", "_spelled", "_strip")

    def __init__(self, token_bytes: TokenBytes, *, begins_text: bool, revealed: frozenset[int] = frozenset()) -> None:
        self._shown = token_bytes.shown
        self._spelled = token_bytes.spelled
        self._revealed = revealed
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = begins_text and token_bytes.strips_leading_space

    def push(self, token_id: int) -> str:
        """The characters that this id completes; often none while a character's bytes are still coming."""
        shown = self._spelled(token_id) if token_id in self._revealed else self._shown(token_id)
        return self._stripped(self._decoder.decode(shown))

    def flush(self) -> str:
        """Called once at the end: U+FFFD when the answer stops within a character, else nothing."""
        return self._stripped(self._decoder.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text
