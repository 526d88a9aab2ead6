"""Log probabilities in OpenAI's two forms. An id's exact bytes come from the tokenizer, as a token may be no text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shoal_router.text.answer import ScoredToken
from shoal_router.text.detokenize import TokenBytes

# JSON knows no -Infinity; OpenAI writes this for a token that cannot occur.
IMPOSSIBLE = -9999.0


def chat_logprobs(scored: Sequence[ScoredToken], token_bytes: TokenBytes) -> dict[str, Any]:
    """`choices[].logprobs` of a chat completion."""
    content = []
    for token in scored:
        entry = _chat_entry(token.token_id, token.score.logprob, token_bytes)
        entry["top_logprobs"] = [_chat_entry(i, logprob, token_bytes) for i, logprob in token.score.top]
        content.append(entry)
    return {"content": content, "refusal": None}


def completion_logprobs(scored: Sequence[ScoredToken], token_bytes: TokenBytes) -> dict[str, Any]:
    """`choices[].logprobs` of a text completion. The chosen token is always among its `top_logprobs`."""
    return {
        "tokens": [_spelling(token.token_id, token_bytes) for token in scored],
        "token_logprobs": [_finite(token.score.logprob) for token in scored],
        "top_logprobs": [_top(token, token_bytes) for token in scored],
        "text_offset": [token.offset for token in scored],
    }


def _chat_entry(token_id: int, logprob: float, token_bytes: TokenBytes) -> dict[str, Any]:
    spelled = token_bytes.spelled(token_id)
    return {"token": spelled.decode(errors="replace"), "logprob": _finite(logprob), "bytes": list(spelled)}


def _top(token: ScoredToken, token_bytes: TokenBytes) -> dict[str, float] | None:
    if not token.score.top:
        return None
    top = {_spelling(token_id, token_bytes): _finite(logprob) for token_id, logprob in token.score.top}
    top.setdefault(_spelling(token.token_id, token_bytes), _finite(token.score.logprob))
    return top


def _spelling(token_id: int, token_bytes: TokenBytes) -> str:
    r"""The token's text, or `bytes:\xe2\x80` where it is none: keys of `top_logprobs` must differ."""
    spelled = token_bytes.spelled(token_id)
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else IMPOSSIBLE
