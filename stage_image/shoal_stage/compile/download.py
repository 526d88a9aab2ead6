"""One file over HTTP: to a temporary name, continued when an earlier attempt was interrupted, renamed when complete.

The temporary file is locked while it grows: two processes that fetch the same file would mix their bytes. Beside it
stands what the server calls this state of the file (ETag or Last-Modified), so that a part of an older one is never
continued (If-Range, RFC 9110 section 13.1.5).
"""

from __future__ import annotations

import fcntl
import os
import urllib.error
import urllib.request
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO

from shoal.errors import ResourceError
from shoal_stage.compile.progress import OnProgress, Report, silent

CHUNK = 1 << 20
SILENCE_SECONDS = 60.0
"""A server that sends nothing for this long has failed."""


def download(url: str, final: Path, progress: OnProgress = silent) -> None:
    """Fetch `url` to `final`. Raises ResourceError; what has come stays for the next attempt."""
    partial = final.with_name(f"{final.name}.partial")
    try:
        with partial.open("ab") as out:
            fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                _fetch(url, out, final.name, _state_file(partial), progress)
            except BaseException:
                if os.fstat(out.fileno()).st_size == 0:
                    partial.unlink()
                    _state_file(partial).unlink(missing_ok=True)
                raise
            out.flush()
            os.fsync(out.fileno())
            partial.rename(final)
            _state_file(partial).unlink(missing_ok=True)
    except BlockingIOError:
        raise ResourceError(f"another process is fetching {url}: run this one again when it is done") from None
    except urllib.error.HTTPError as error:
        raise ResourceError(f"{url} cannot be fetched: HTTP {error.code} {error.reason}") from error
    except (urllib.error.URLError, HTTPException, OSError) as error:
        raise ResourceError(f"{url} cannot be fetched: {error}; run it again to go on where it stopped") from error


def _state_file(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.state")


def _fetch(url: str, out: BinaryIO, name: str, state: Path, progress: OnProgress) -> None:
    """Append to `out` what it lacks of `url`."""
    have = os.fstat(out.fileno()).st_size
    headers = {"Range": f"bytes={have}-"} if have else {}
    if have and state.exists():
        headers["If-Range"] = state.read_text()
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=SILENCE_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:
            _check_complete(url, out, have, error.headers.get("Content-Range", ""))
            return
        raise
    with response:
        if url.startswith("https://") and not response.url.startswith("https://"):
            raise ResourceError(
                f"{url} leads to {response.url}, which is not protected on its way: name another source"
            )
        if response.status != 206:
            out.truncate(0)
            have = 0
            _note_state(state, response.headers)
        length = int(response.headers.get("Content-Length") or 0)
        total = have + length
        while chunk := response.read(CHUNK):
            out.write(chunk)
            have += len(chunk)
            progress(Report(f"fetching {name}", have, max(total, have)))
    if length and have < total:
        raise ResourceError(f"{url} ended after {have} of {total} bytes; run it again to go on where it stopped")


def _note_state(state: Path, headers: Message) -> None:
    """Keep a strong validator; a weak one may stand for different bytes."""
    tag = headers.get("ETag") or headers.get("Last-Modified") or ""
    if tag and not tag.startswith("W/"):
        state.write_text(tag)
    else:
        state.unlink(missing_ok=True)


def _check_complete(url: str, out: BinaryIO, have: int, content_range: str) -> None:
    """The server has nothing beyond what came: an earlier attempt was not renamed, or the file is another one now."""
    total = content_range.rpartition("/")[2]
    if total.isdecimal() and int(total) != have:
        out.truncate(0)
        raise ResourceError(f"{url} has changed since a part of it was fetched; run it again to fetch it anew")
