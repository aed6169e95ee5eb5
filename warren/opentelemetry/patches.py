"""Patches: replacements of methods and functions, which can be undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs


@attrs.define(eq=False, repr=False)
class Patches:
    """The replaced methods and functions, in order."""

    _originals: list[tuple[Any, str, Any]] = attrs.Factory(list)

    def __bool__(self) -> bool:
        return bool(self._originals)

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Put what ``make`` makes of the attribute of a class or module in its place."""
        original = vars(owner)[name]
        self._originals.append((owner, name, original))
        setattr(owner, name, make(original))

    def restore(self) -> None:
        """Put everything back."""
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)
