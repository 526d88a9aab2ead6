"""API keys: who may call, read from a file that may be replaced while the router runs.

The file is an entry of a Secret, one key a line; a line `sha256:<64 hex digits>` is a key of which only the hash is
known here. Memory holds hashes alone, and a caller's key is compared with every one of them in constant time, so that
neither a dump nor the time of an answer tells a key.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shoal.errors import ResourceError, UsageError

CHECK_SECONDS: Final = 2.0
"""How often the file is looked at; a kubelet takes up to a minute to bring a changed Secret anyway."""
MAX_KEYS: Final = 4096
ID_DIGITS: Final = 8

_HASHED: Final = re.compile(r"sha256:([0-9a-fA-F]{64})")
_log = logging.getLogger(__name__)


class ApiKeys:
    """The keys of a file. A file that becomes unreadable leaves the last keys in force; an empty one lets nobody in."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """Raises ResourceError when the file cannot be read, UsageError when it holds no key or a bad line."""
        self._path = path
        self._clock = clock
        self._looked = clock()
        text = _read(path)
        self._text = text
        self._hashes = parse_keys(text, str(path))
        if not self._hashes:
            raise UsageError(f"{path} holds no API key: give it one key a line")

    def owner(self, key: str) -> str | None:
        """A short name for the key, fit for logs; None when it is none of ours."""
        self._refresh()
        digest = hashlib.sha256(key.encode()).digest()
        found = False
        for known in self._hashes:
            # No early end: the time must not tell which key it was nearly.
            found |= hmac.compare_digest(known, digest)
        return digest.hex()[:ID_DIGITS] if found else None

    def _refresh(self) -> None:
        now = self._clock()
        if now < self._looked + CHECK_SECONDS:
            return
        self._looked = now
        try:
            text = _read(self._path)
            if text == self._text:
                return
            self._hashes = parse_keys(text, str(self._path))
        except (ResourceError, UsageError) as error:
            _log.warning("the last API keys stay in force: %s", error)
            return
        self._text = text
        _log.info("the API keys were read anew", extra={"keys": len(self._hashes)})


def parse_keys(text: str, where: str) -> tuple[bytes, ...]:
    """SHA-256 of each key. Blank lines and lines that begin with `#` are skipped. Raises UsageError."""
    hashes = []
    for number, line in enumerate(text.splitlines(), start=1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        hashed = _HASHED.fullmatch(key)
        if hashed is None and (key.startswith("sha256:") or len(key.split()) > 1):
            raise UsageError(f"{where}:{number}: neither a key without spaces nor sha256: and 64 hex digits")
        hashes.append(bytes.fromhex(hashed[1]) if hashed else hashlib.sha256(key.encode()).digest())
    if len(hashes) > MAX_KEYS:
        raise UsageError(f"{where}: {len(hashes)} API keys, {MAX_KEYS} are the most")
    return tuple(dict.fromkeys(hashes))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"the API keys in {path} are not text in UTF-8") from None
    except OSError as error:
        raise ResourceError(f"the API keys in {path} cannot be read: {error.strerror}") from error
