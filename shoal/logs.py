"""What a process of shoal says: logs as JSON lines on stderr, events as JSON lines on stdout.

One object a line, so that a cluster's log store can search by request id or epoch, and whoever started the process can
wait for its events.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from datetime import UTC, datetime

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message"}


class JsonFormatter(logging.Formatter):
    """time, level, logger, message, whatever was passed as `extra`, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def log_to_stderr() -> None:
    """Set up the process's logging."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def announce(event: str, **facts: object) -> None:
    """One event on stdout, for whoever started this process, if it still reads."""
    with suppress(BrokenPipeError):
        sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
        sys.stdout.flush()
