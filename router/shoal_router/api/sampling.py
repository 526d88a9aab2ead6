"""From a request's parameters to what the last stage is told, filled up from the model's and OpenAI's defaults."""

from __future__ import annotations

import secrets
from typing import TypeVar

from shoal.wire.messages import SamplingParams
from shoal_router.api.errors import ApiError, invalid
from shoal_router.api.requests import ChatRequest, CompletionRequest
from shoal_router.text.model import TextModel

UINT64 = 2**64
# An odd number near 2^64 / golden ratio (Knuth, TAOCP 6.4): consecutive choices get far-apart seeds.
_SEED_STRIDE = 0x9E3779B97F4A7C15
# OpenAI takes 0 and means the likeliest token alone; the stages take shares above 0, and this one is that token's.
_SMALLEST_TOP_P = 1e-9

T = TypeVar("T", int, float)


def sampling_params(request: ChatRequest | CompletionRequest, text: TextModel, grammar: str = "") -> SamplingParams:
    """The parameters of the request's first sequence. Raises ApiError for a logit_bias that names no token."""
    defaults = text.defaults
    seed = secrets.randbits(64) if request.seed is None else request.seed % UINT64
    return SamplingParams(
        temperature=_first(request.temperature, defaults.temperature, 1.0),
        top_p=max(_first(request.top_p, defaults.top_p, 1.0), _SMALLEST_TOP_P),
        top_k=max(0, _first(request.top_k, defaults.top_k, 0)),
        min_p=_first(request.min_p, defaults.min_p, 0.0),
        repetition_penalty=_first(request.repetition_penalty, defaults.repetition_penalty, 1.0),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        logit_bias=_logit_bias(request.logit_bias or {}, text.vocab_size),
        seed=seed,
        logprobs=request.alternatives,
        grammar=grammar,
    )


def seed_of_choice(seed: int, choice: int) -> int:
    """Each choice of one request draws its own numbers; choice 0 draws those of the request with n=1."""
    return (seed + choice * _SEED_STRIDE) % UINT64


def _first(asked: T | None, model: T | None, default: T) -> T:
    if asked is not None:
        return asked
    return default if model is None else model


def _logit_bias(biases: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    return tuple(sorted((_token_id(key, vocab_size), bias) for key, bias in biases.items()))


def _token_id(key: str, vocab_size: int) -> int:
    plain = key.isascii() and key.isdecimal() and (key == "0" or not key.startswith("0"))
    if not plain or len(key) > 9 or int(key) >= vocab_size:
        raise _no_such_token(key, vocab_size)
    return int(key)


def _no_such_token(key: str, vocab_size: int) -> ApiError:
    return invalid(
        f"Invalid key in 'logit_bias': '{key[:32]}'. Keys are token ids from 0 to {vocab_size - 1}.",
        param="logit_bias",
    )
