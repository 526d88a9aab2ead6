"""Responses that a later one may go on from, in memory: the oldest goes when there are too many or too large ones.

A restart forgets them, and so does every other router: a client that must not depend on it sends its whole input.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from shoal_router.api.errors import ApiError

MOST_RESPONSES: Final = 2048
MOST_CHARACTERS: Final = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Kept:
    """One response, and the conversation up to its end as chat messages, without its instructions."""

    owner: str
    response: dict[str, Any]
    messages: list[dict[str, Any]]
    size: int


class KeptResponses:
    """Invariant: `_size` is the sum of the sizes of what is kept, and within the bounds."""

    def __init__(self, most: int = MOST_RESPONSES, characters: int = MOST_CHARACTERS) -> None:
        self._most = most
        self._characters = characters
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._size = 0

    def keep(self, owner: str, response: dict[str, Any], messages: list[dict[str, Any]]) -> None:
        """Keep a finished response for the API key `owner`."""
        size = len(json.dumps(messages)) + len(json.dumps(response))
        self._kept[response["id"]] = Kept(owner, response, messages, size)
        self._size += size
        while len(self._kept) > self._most or self._size > self._characters:
            self._size -= self._kept.popitem(last=False)[1].size

    def get(self, response_id: str, owner: str, *, param: str | None) -> Kept:
        """Raises ApiError (404) when it is not there, or is another key's."""
        kept = self._kept.get(response_id)
        if kept is None or kept.owner != owner:
            message = f"Response with id '{response_id[:128]}' not found: this server keeps the last ones in memory."
            raise ApiError(404, message, param=param, code="response_not_found")
        self._kept.move_to_end(response_id)
        return kept

    def forget(self, response_id: str, owner: str) -> None:
        """Raises ApiError as `get` does."""
        self._size -= self.get(response_id, owner, param=None).size
        del self._kept[response_id]
