"""Logs: one JSON object a line, for machines, or plain text for people at a terminal."""

from __future__ import annotations

import datetime
import json
import logging
import sys
from typing import Final

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_QUIET: Final = ("aiohttp.access", "kopf.objects")


class JsonFormatter(logging.Formatter):
    """A record with its time, level, logger, text, and whatever plain values were given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, str | int | float] = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in vars(record).items():
            if key not in _STANDARD and isinstance(value, str | int | float | bool):
                line.setdefault(key, value)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logs(style: str, level: str) -> None:
    """Everything to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    if style == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
