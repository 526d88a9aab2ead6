"""One file over HTTP: to a temporary name, continued when an earlier attempt was interrupted, renamed when complete."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path

from shoal.errors import ResourceError
from shoal_stage.compile.progress import OnProgress, Report, silent

CHUNK = 1 << 20
SILENCE_SECONDS = 60.0
"""A server that sends nothing for this long has failed."""


def download(url: str, final: Path, progress: OnProgress = silent) -> None:
    """Fetch `url` to `final`. Raises ResourceError; what has come stays for the next attempt."""
    partial = final.with_name(f"{final.name}.partial")
    have = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=SILENCE_SECONDS) as response:
            continues = response.status == 206
            have = have if continues else 0
            length = int(response.headers.get("Content-Length") or 0)
            total = have + length
            with partial.open("ab" if continues else "wb") as out:
                while chunk := response.read(CHUNK):
                    out.write(chunk)
                    have += len(chunk)
                    progress(Report(f"fetching {final.name}", have, max(total, have)))
                out.flush()
                os.fsync(out.fileno())
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing left: the earlier download was complete but not renamed
            partial.rename(final)
            return
        raise ResourceError(f"{url} cannot be fetched: HTTP {error.code} {error.reason}") from error
    except (urllib.error.URLError, HTTPException, OSError) as error:
        raise ResourceError(f"{url} cannot be fetched: {error}; run it again to go on where it stopped") from error
    if length and have < total:
        raise ResourceError(f"{url} ended after {have} of {total} bytes; run it again to go on where it stopped")
    partial.rename(final)
