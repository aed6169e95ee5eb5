"""What was logged, by event."""

from __future__ import annotations

import pytest


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[tuple[int, object]]:
    """Level and count of each record of an event."""
    found = [record for record in caplog.records if getattr(record, "event", None) == name]
    return [(record.levelno, getattr(record, "count", None)) for record in found]
