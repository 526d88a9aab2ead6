"""Drawing one token from one row of logits: pure functions of (logits, parameters, seed, position).

A draw is stateless: the random number belongs to the sequence's seed and the new token's absolute position. So the
text does not depend on batch mates, chunking, drafts or how often a step was replayed after a node was lost.
Order of the filters, as in Hugging Face's generation: temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from shoal.wire.errors import StageFailed
from shoal.wire.messages import SamplingParams, TokenLogprob

Logits = NDArray[np.float32]


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
    """The id at absolute `position`: inverse CDF, in float64, over the ids that the filters left, by rising id."""
    if params.temperature == 0.0:
        return greedy(logits)
    best = float(logits[greedy(logits)])
    ids = None if params.top_k == 0 or params.top_k >= logits.size else _top_k(logits, params.top_k)
    kept = (logits if ids is None else logits[ids]).astype(np.float64)
    kept -= best
    kept /= params.temperature
    weights = np.exp(kept, out=kept)
    if params.top_p < 1.0:
        nucleus = _nucleus(weights, params.top_p)
        weights = weights[nucleus]
        ids = nucleus if ids is None else ids[nucleus]
    if params.min_p > 0.0:
        likely = np.flatnonzero(weights >= params.min_p)  # the best id's weight is exp(0) = 1
        weights = weights[likely]
        ids = likely if ids is None else ids[likely]
    cumulative = np.cumsum(weights)
    total = cumulative[-1]
    index = int(cumulative.searchsorted(uniform(params.seed, position) * total, side="right"))
    # u < 1, but the product may round up to the total itself: the last id with a weight is meant then.
    index = min(index, int(cumulative.searchsorted(total, side="left")))
    return index if ids is None else int(ids[index])


def logprob(logits: Logits, token: int, top: int) -> TokenLogprob:
    """Natural-log probability of `token`, and of the `top` most likely ids, highest first."""
    wide = logits.astype(np.float64)
    best = wide.max()
    norm = best + np.log(np.exp(wide - best).sum())
    ids = _top_k(logits, min(top, logits.size)) if top else np.empty(0, np.intp)
    order = ids[np.lexsort((ids, -wide[ids]))]
    return TokenLogprob(
        logprob=float(wide[token] - norm),
        top=tuple((int(other), float(wide[other] - norm)) for other in order),
    )


def _top_k(logits: Logits, count: int) -> NDArray[np.intp]:
    """The ids of the `count` largest logits, rising; of equal logits the lower ids are taken."""
    bound = np.partition(logits, logits.size - count)[logits.size - count]
    above = np.flatnonzero(logits > bound)
    equal = np.flatnonzero(logits == bound)[: count - above.size]
    return np.sort(np.concatenate((above, equal)))


def _nucleus(weights: NDArray[np.float64], top_p: float) -> NDArray[np.intp]:
    """The indices, rising, of the fewest likeliest weights that together hold `top_p` of the sum (Holtzman 2020).

    Weights that all together hold less than 1 - top_p cannot be in the nucleus: only the others are sorted.
    """
    total = weights.sum()
    floor = (1.0 - top_p) * total / weights.size
    candidates = np.flatnonzero(weights >= floor)
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    before = np.cumsum(weights[order]) - weights[order]
    count = max(int(np.count_nonzero(before < top_p * total)), 1)
    return np.sort(order[:count])
