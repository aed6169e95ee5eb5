"""Checks of single settings, for the classes that hold settings: each raises :class:`SettingsError` with the setting's
name and what it must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from warren.storage.errors import SettingsError

Check: TypeAlias = "Callable[[object, attrs.Attribute[Any], Any], None]"
"""What ``attrs.field`` takes as a validator."""


def whole(name: str, value: object, least: int) -> int:
    """``value``, a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingsError(f"{name} must be a whole number, not {value!r}")
    if value < least:
        raise SettingsError(f"{name} must be at least {least}, not {value}")
    return value


def at_least(least: int) -> Check:
    """A whole number of at least ``least``."""

    def check(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        whole(attribute.name, value, least)

    return check


def one_of(*choices: str) -> Check:
    """One of these texts."""

    def check(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value not in choices:
            raise SettingsError(f"{attribute.name} must be one of {', '.join(map(repr, choices))}, not {value!r}")

    return check


def yes_or_no(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """True or False."""
    if not isinstance(value, bool):
        raise SettingsError(f"{attribute.name} must be True or False, not {value!r}")
