"""Server-sent events as the OpenAI API uses them: `data: {json}` lines, comments, and `data: [DONE]` at the end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from shoal.errors import StageError


async def chunks(lines: AsyncIterable[str]) -> AsyncIterator[dict[str, Any]]:
    """The JSON chunks of a stream, up to `[DONE]`. Comments (keep-alive) and other fields are skipped.

    Raises StageError when the server reports an error in mid-stream, or ends without `[DONE]`.
    """
    async for line in lines:
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        try:
            chunk = json.loads(data)
        except ValueError:
            chunk = None
        if not isinstance(chunk, dict):
            raise StageError(f"the router sent a line that is not a JSON object: {data[:80]!r}")
        if "error" in chunk:
            raise StageError(f"the answer broke off: {chunk['error'].get('message', chunk['error'])}")
        yield chunk
    raise StageError("the answer broke off: the router closed the stream before its end")
