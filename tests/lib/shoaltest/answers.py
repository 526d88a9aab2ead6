"""What a generator over fake pipelines answers, whole: as it came, and as it must be."""

from __future__ import annotations

from shoal_router.generation import FinishReason, GenerationRequest, Generator, TokenDelta
from shoal_router.pipeline.fake import FAKE_CAPACITY, hashed_token


async def collect(generator: Generator, request: GenerationRequest) -> tuple[list[int], FinishReason | None]:
    """All ids of the answer, and why it ended; it ends once, with the last of it."""
    tokens: list[int] = []
    deltas: list[TokenDelta] = []
    async for delta in generator.generate(request):
        deltas.append(delta)
        tokens += delta.tokens
    assert [delta.finish is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    return tokens, deltas[-1].finish


def solo_answer(request: GenerationRequest, max_context: int = FAKE_CAPACITY.max_context) -> list[int]:
    """The ids that a fake pipeline draws for it, whoever else is there and whatever happens."""
    ids = list(request.prompt)
    end = min(len(ids) + (request.max_tokens or max_context), max_context)
    while len(ids) < end:
        ids.append(hashed_token(ids, request.params))
        if ids[-1] in request.stop_token_ids:
            break
    return ids[len(request.prompt) :]
