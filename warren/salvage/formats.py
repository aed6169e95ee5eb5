"""The formats in which messages are written and read, and how the ending of a file's name selects one."""

from __future__ import annotations

import enum
from typing import Final

from warren.storage.errors import SettingsError


class Format(enum.StrEnum):
    """How messages are written."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    BODIES = "bodies"


_ENDINGS: Final = {".parquet": Format.PARQUET, ".csv": Format.CSV}


def format_of(out: str | None) -> Format:
    """The format by the name's ending; else lines of JSON."""
    return next(
        (file_format for end, file_format in _ENDINGS.items() if out and out.lower().endswith(end)), Format.JSONL
    )


def format_called(name: str) -> Format:
    """Return the format of that name; raise :class:`SettingsError` if it is unknown."""
    try:
        return Format(name)
    except ValueError:
        raise SettingsError(f"a format is {', '.join(Format)}, not {name!r}") from None
