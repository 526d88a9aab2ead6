"""What the pages of router and operator share: style, small modules of JavaScript, and how files are handed out. Pure.

A page's own files lie in a package of its part. Nothing is loaded from elsewhere and no script is inline, which the
content security policy holds every browser to. The files tell nobody anything, so they come without a key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Final

PAGE_PREFIX: Final = "/page/"
EVENTS_PATH: Final = "/watch/events"
MOST_WATCHERS: Final = 32

HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it goes out."""

    body: bytes
    kind: str
    etag: str


def page_files(package: str) -> dict[str, PageFile]:
    """Every file of a page by its name: what all share, and the folder `page` of that package."""
    found = {}
    for folder in (files("shoal") / "page", files(package) / "page"):
        for entry in folder.iterdir():
            if (kind := _TYPES.get(PurePosixPath(entry.name).suffix)) is not None:
                body = entry.read_bytes()
                found[entry.name] = PageFile(body, kind, f'"{hashlib.sha256(body).hexdigest()[:16]}"')
    return found
