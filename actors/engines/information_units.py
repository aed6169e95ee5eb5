"""Amounts of memory and disk as a person writes them: ``2GB``, ``512MiB``, or a bare number of bytes.

The units are RabbitMQ's: a single letter is binary (``1k`` is 1024, ``1G`` is 2**30), while two letters are decimal
(``1kB`` is 1000). Fractions and blanks are not allowed. ``KiB`` is allowed here; RabbitMQ 3.10.8 accepts it in its
check and then fails.
"""

from __future__ import annotations

import re
from typing import Final

from warren.storage.errors import SettingsError, shown

_BYTES_OF_UNIT: Final = (
    dict.fromkeys(("k", "K", "kiB", "KiB", "kib", "KIB"), 1 << 10)
    | dict.fromkeys(("m", "M", "MiB", "mib", "MIB"), 1 << 20)
    | dict.fromkeys(("g", "G", "GiB", "gib", "GIB"), 1 << 30)
    | dict.fromkeys(("kB", "KB", "kb", "Kb"), 10**3)
    | dict.fromkeys(("MB", "mb", "Mb"), 10**6)
    | dict.fromkeys(("GB", "gb", "Gb"), 10**9)
    | {"": 1}
)
_AMOUNT: Final = re.compile(r"([0-9]{1,18})([A-Za-z]*)")  # more digits are a mistake


def parse_information_unit(key: str, value: object) -> int:
    """Return the number of bytes. Raises :class:`SettingsError`, which names the setting ``key``."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise SettingsError(f"{key} must be at least 0 bytes, not {value}")
        return value
    matched = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if matched is None or matched[2] not in _BYTES_OF_UNIT:
        raise SettingsError(
            f"{key} must be a number of bytes, or one with a unit such as '2GB' or '512MiB', not {shown(value)}"
        )
    return int(matched[1]) * _BYTES_OF_UNIT[matched[2]]
