"""How the options of commands are shown: a flag takes no value, and its help says no type.

Typer shows one for flags too (from 0.29 on). What is set here is what it asks for first.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


def without_types_of_flags(params: list[Any]) -> list[Any]:
    """The same parameters."""
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    return params


class Command(TyperCommand):
    """One command."""

    def get_params(self, ctx: Any) -> list[Any]:
        return without_types_of_flags(super().get_params(ctx))


class Group(TyperGroup):
    """Commands together."""

    def get_params(self, ctx: Any) -> list[Any]:
        return without_types_of_flags(super().get_params(ctx))
