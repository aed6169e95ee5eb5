"""Logs for programs: warren's records, and all others, as JSON, one object on a line.

warren's records carry, beside their text, an ``event`` and fields (:mod:`warren.actors.log_events`). Any formatter that
handles ``extra`` sees them; :class:`JsonFormatter` is one.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys
from typing import Any, Final

from warren.actors.log_events import logger
from warren.salvage.names import printable

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; the others were given as ``extra``."""


class TextFormatter(logging.Formatter):
    """A record as a line for people, followed by the traceback if there is one. Names that clients and other people's
    files chose are escaped if a terminal would obey them or break the line."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return "\n".join(map(printable, super().formatException(ei).split("\n")))


class JsonFormatter(logging.Formatter):
    """A record as a JSON object on one line: ``time`` (UTC, ISO 8601), ``level``, ``logger``, ``message``, everything
    given as ``extra``, and ``exception``, a traceback, if there is one. Fields without a value are left out."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD and name not in fields and value is not None:
                fields[name] = value
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = self.formatStack(record.stack_info)
        return json.dumps(fields, default=str)


def log_files() -> list[str]:
    """Where warren's records go: the names of files, and ``<stdout>`` and ``<stderr>``."""
    files = list[str]()
    source: logging.Logger | None = logger()
    while source is not None:
        for handler in source.handlers:
            if isinstance(handler, logging.FileHandler):
                files.append(handler.baseFilename)
            elif isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stdout, sys.stderr):
                files.append("<stdout>" if handler.stream is sys.stdout else "<stderr>")
        source = source.parent if source.propagate else None
    return files
