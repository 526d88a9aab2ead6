"""The last act of a process that served over gRPC: leave without the destructors of native libraries.

At interpreter exit gRPC's and OpenVINO's threads race static destructors: one stage in eight that had been stopped in
order then died of `std::terminate`, and whoever supervises it read a crash. What has to be finished is finished by
`await`, never by a destructor, so nothing is lost by skipping them.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End the process with `code`, everything said."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # whoever read it has gone
            stream.flush()
    os._exit(code)
