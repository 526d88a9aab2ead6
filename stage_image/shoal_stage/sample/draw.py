"""Drawing one token from one row of logits: pure functions of (logits, parameters, seed, position).

A draw is stateless: the random number belongs to the sequence's seed and the new token's absolute position. So the
text does not depend on batch mates, chunking, drafts or how often a step was replayed after a node was lost.
Order of the filters, as in Hugging Face's generation: temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

import math
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from shoal.wire.errors import StageFailed
from shoal.wire.messages import SamplingParams, TokenLogprob

Logits = NDArray[np.float32]

_RUN = 64
_COLD = 1e-6
"""Below this temperature logits that f32 can tell apart leave all weight with the likeliest, and much below it 1 /
temperature is no f32 any more."""


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, fixed by `seed` and `position`."""
    key = seed.to_bytes(8, "little") + position.to_bytes(8, "little")
    return float(int.from_bytes(blake2b(key, digest_size=8).digest(), "little") >> 11) * 2.0**-53


def greedy(logits: Logits) -> int:
    """The most likely id, the lowest one on ties. Raises StageFailed when the logits are not numbers."""
    token = int(logits.argmax())
    if not np.isfinite(logits[token]):
        raise StageFailed("the model's logits are not finite: the device or the model's blocks are faulty")
    return token


def draw(logits: Logits, params: SamplingParams, position: int) -> int:
    """The id at absolute `position`: inverse CDF by rising id, over the ids that the filters left.

    Weights are f32, whose rounding no draw can show; they are summed in float64, so that the tail is not lost.
    """
    best = greedy(logits)
    if params.temperature < _COLD:
        return best
    ids = None if params.top_k == 0 or params.top_k >= logits.size else _top_k(logits, params.top_k)
    weights = (logits if ids is None else logits[ids]) - logits[best]
    weights *= np.float32(1.0 / params.temperature)
    np.exp(weights, out=weights)
    if params.top_p < 1.0:
        weights, ids = _keep(weights, ids, _nucleus(weights, params.top_p))
    if params.min_p > 0.0:  # the best id's weight is exp(0) = 1
        weights, ids = _keep(weights, ids, np.flatnonzero(weights >= params.min_p))
    index = _invert(weights, uniform(params.seed, position))
    return index if ids is None else int(ids[index])


def logprob(logits: Logits, token: int, top: int) -> TokenLogprob:
    """Natural-log probability of `token`, and of the `top` most likely ids that are possible, highest first."""
    best = float(logits.max())
    norm = best + math.log(float(np.exp(logits - np.float32(best)).sum(dtype=np.float64)))
    ids = _top_k(logits, min(top, logits.size)) if top else np.empty(0, np.intp)
    ids = ids[logits[ids] > -np.inf]
    order = ids[np.lexsort((ids, -logits[ids]))]
    return TokenLogprob(
        logprob=float(logits[token]) - norm,
        top=tuple((int(other), float(logits[other]) - norm) for other in order),
    )


def _keep(
    weights: NDArray[np.float32], ids: NDArray[np.intp] | None, kept: NDArray[np.intp]
) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    return weights[kept], kept if ids is None else ids[kept]


def _invert(weights: NDArray[np.float32], u: float) -> int:
    """The index where the cumulative weight passes `u` of the whole: first its run of 64 weights, then inside it."""
    starts = np.arange(0, weights.size, _RUN)
    runs = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    target = u * runs[-1]
    # u < 1, but the product may round up to the whole itself: the last run, or id, that has a weight is meant then.
    run = min(int(runs.searchsorted(target, side="right")), int(runs.searchsorted(runs[-1], side="left")))
    if run:
        target -= runs[run - 1]
    inside = np.cumsum(weights[run * _RUN : (run + 1) * _RUN], dtype=np.float64)
    index = min(int(inside.searchsorted(target, side="right")), int(inside.searchsorted(inside[-1], side="left")))
    return run * _RUN + index


def _top_k(values: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """The indices of the `count` largest values, rising; of equal values the lower indices are taken."""
    bound = np.partition(values, values.size - count)[values.size - count]
    above = np.flatnonzero(values > bound)
    equal = np.flatnonzero(values == bound)[: count - above.size]
    return np.sort(np.concatenate((above, equal)))


def _nucleus(weights: NDArray[np.float32], top_p: float) -> NDArray[np.intp]:
    """The indices, rising, of the fewest likeliest weights that together hold `top_p` of the sum (Holtzman 2020).

    Only candidates are sorted: weights above a bound that hold enough together. A thousandth of the largest weight
    usually will do; the last bound always does, since all weights below it hold less than 1 - top_p.
    """
    largest, total = weights.max(), float(weights.sum(dtype=np.float64))
    for bound in (largest / 2**10, largest / 2**15, (1.0 - top_p) * total / weights.size):
        candidates = np.flatnonzero(weights >= bound)
        chosen = weights[candidates]
        if float(chosen.sum(dtype=np.float64)) >= top_p * total:
            break
    upto = np.cumsum(np.sort(chosen)[::-1], dtype=np.float64)
    count = int(upto[:-1].searchsorted(top_p * total, side="left")) + 1
    return candidates[_top_k(chosen, count)]
