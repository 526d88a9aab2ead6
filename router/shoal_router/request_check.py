"""The second wall: what a stage would refuse must not reach it.

The API refuses bad parameters by name. A request that got past it would be refused by a stage, which ends the epoch
for every other request, too, and again with each replay; so it is stopped here, where it hurts only itself.
"""

from __future__ import annotations

from math import inf

from shoal.wire.messages import LARGEST_ADDED, LARGEST_GRAMMAR, REPETITION_PENALTIES
from shoal_router.generation import GenerationRequest

_U32, _U64 = 1 << 32, 1 << 64


def check_request(request: GenerationRequest, vocab_size: int) -> None:
    """Raises ValueError when a stage would refuse the request's rows: a defect of the caller."""
    params = request.params
    least, most = REPETITION_PENALTIES
    ids = (*request.prompt, *(token for token, _ in params.logit_bias))
    wrong = [
        name
        for name, right in (
            ("token ids", all(0 <= token < vocab_size for token in ids)),
            ("logit_bias", all(abs(bias) <= LARGEST_ADDED for _, bias in params.logit_bias)),
            ("temperature", 0 <= params.temperature < inf),
            ("top_p", 0 < params.top_p <= 1),
            ("top_k", 0 <= params.top_k < _U32),
            ("min_p", 0 <= params.min_p <= 1),
            ("repetition_penalty", least <= params.repetition_penalty <= most),
            ("presence_penalty", abs(params.presence_penalty) <= LARGEST_ADDED),
            ("frequency_penalty", abs(params.frequency_penalty) <= LARGEST_ADDED),
            ("seed", 0 <= params.seed < _U64),
            ("grammar", len(params.grammar.encode()) <= LARGEST_GRAMMAR),
            ("logprobs", params.logprobs is None or 0 <= params.logprobs < _U32),
        )
        if not right
    ]
    if wrong:
        raise ValueError(f"request {request.request_id}: out of range: {', '.join(wrong)} (vocabulary: {vocab_size})")
