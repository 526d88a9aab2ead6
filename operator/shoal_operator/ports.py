"""What is said when one of the operator's ports is not to be had: there are two operators on one PC, for example."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from shoal.errors import ResourceError
from shoal_operator.settings import PREFIX


@contextmanager
def listening(what: str, setting: str, port: int) -> Iterator[None]:
    """What begins to listen within. Raises ResourceError, which names the variable to set, where it cannot."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise ResourceError(
            f"{what} cannot listen on port {port}: {why}; is another operator running here? "
            f"Set {PREFIX}{setting.upper()} to a free port, or to 0 to do without"
        ) from error
