"""Which router serves a model's name. Where the table comes from is the caller's business: options, or a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

from shoal.errors import UsageError


class Routes(Protocol):
    """A table that may change at any time."""

    def table(self) -> Mapping[str, str]:
        """Served name -> the router's URL, without a path."""
        ...


class FixedRoutes:
    """Routes from the command line."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self._table = dict(table)

    def table(self) -> Mapping[str, str]:
        """See Routes."""
        return self._table


def parse_routes(options: list[str]) -> FixedRoutes:
    """`NAME=URL` options. Raises UsageError."""
    table: dict[str, str] = {}
    for option in options:
        name, _, url = option.rpartition("=")
        parts = urlsplit(url)
        if not name or parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
            raise UsageError(f"argument --route: {option!r} is not NAME=URL, such as qwen=http://127.0.0.1:8000")
        if name in table:
            raise UsageError(f"argument --route: {name!r} is given twice: a name has one router")
        table[name] = url.rstrip("/")
    return FixedRoutes(table)
