"""How many requests of a key may come in a minute: a token bucket for each. Pure: time is an argument.

A bucket holds a minute's worth, so a key that was quiet may send them all at once, and is then held to the rate.
"""

from __future__ import annotations

from dataclasses import dataclass

_MINUTE = 60.0


@dataclass(slots=True)
class _Bucket:
    """`left` requests at `since`."""

    left: float
    since: float


class Rates:
    """Invariant: a bucket never holds more than `per_minute`; a full one is not kept."""

    def __init__(self, per_minute: int) -> None:
        self._most = per_minute
        self._buckets: dict[str, _Bucket] = {}

    def take(self, owner: str, now: float) -> float:
        """0 when the request may come in now, else the seconds until one may."""
        bucket = self._buckets.setdefault(owner, _Bucket(self._most, now))
        bucket.left = min(bucket.left + (now - bucket.since) * self._most / _MINUTE, self._most)
        bucket.since = now
        if bucket.left < 1:
            return (1 - bucket.left) * _MINUTE / self._most
        bucket.left -= 1
        return 0.0

    def headers(self, owner: str, now: float) -> dict[str, str]:
        """The bucket as OpenAI tells of it: what a minute allows, what is left, and when all of it is back."""
        bucket = self._buckets.get(owner, _Bucket(self._most, now))
        left = min(bucket.left + (now - bucket.since) * self._most / _MINUTE, self._most)
        return {
            "x-ratelimit-limit-requests": str(self._most),
            "x-ratelimit-remaining-requests": str(int(left)),
            "x-ratelimit-reset-requests": f"{(self._most - left) * _MINUTE / self._most:.0f}s",
        }

    def forget_idle(self, now: float) -> None:
        """Drop buckets that are full again: keys come and go with their file."""
        for owner in [owner for owner, bucket in self._buckets.items() if now - bucket.since >= _MINUTE]:
            del self._buckets[owner]
