"""Logs for programs: warren's records, and anybody's, as JSON, one object on a line.

warren's records carry, beside their text, an ``event`` and fields (:mod:`warren.actors.log_events`). Any formatter that
knows of ``extra`` sees them; :class:`JsonFormatter` is one.
"""

from __future__ import annotations

import datetime
import enum
import json
import logging
from typing import Any, Final

TEXT_FORMAT: Final = "%(asctime)s [%(levelname)s] %(message)s"
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; the others were given as ``extra``."""


class JsonFormatter(logging.Formatter):
    """A record as a JSON object on one line: ``time`` (UTC, ISO 8601), ``level``, ``logger``, ``message``, whatever was
    given as ``extra``, and ``exception``, a traceback, where there is one. Fields of no value are left out."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD and name not in said and value is not None:
                said[name] = value
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            said["stack"] = self.formatStack(record.stack_info)
        return json.dumps(said, default=str)


class LogFormat(enum.StrEnum):
    """How records look."""

    TEXT = "text"
    JSON = "json"


def log_to_stderr(log_format: LogFormat) -> None:
    """Write warnings and errors of the whole process to stderr, unless somebody has said already where logs go."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
