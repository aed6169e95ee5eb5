"""Changes of what is declared: noted until they are saved, with the step that undoes each of them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Generic, Literal, TypeVar

import attrs

from warren.actors.engines.declared.texts import MAX_LEVELS, check_depth
from warren.actors.engines.errors import ArgumentsError

Kind = Literal[
    "vhost",
    "user",
    "permission",
    "topic_permission",
    "parameter",
    "global_parameter",
    "policy",
    "operator_policy",
    "exchange",
    "queue",
    "binding",
]

K = TypeVar("K", str, tuple[str, str], tuple[str, str, str])
V = TypeVar("V")


@attrs.frozen
class Change:
    """A durable definition that was added, changed or removed."""

    action: Literal["put", "drop"]
    kind: Kind
    definition: str
    """Its JSON."""


_LEVELS_ABOVE: Final = 2
"""The nesting levels of a definition above its arguments or its value."""


@attrs.define(eq=False, repr=False)
class ChangeNotes:
    """The changes since the last save. Each change is noted here before it is made."""

    changes: list[Change] = attrs.Factory(list)
    """The durable changes, in order."""
    undo: list[Callable[[], object]] = attrs.Factory(list)
    """Undoes each step, durable or not."""

    def note(self, action: Literal["put", "drop"], kind: Kind, definition: Mapping[str, Any]) -> None:
        """Note a change. Raises :class:`ArgumentsError` if it cannot be stored."""
        check_depth("what is written down", definition, MAX_LEVELS + _LEVELS_ABOVE)
        try:
            text = json.dumps(definition, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise ArgumentsError(f"{definition!s:.200} cannot be written down: {error}") from error
        self.changes.append(Change(action, kind, text))


class NotedTable(Generic[K, V]):
    """The definitions of one kind, all durable, by their names. One writer; any thread may read."""

    __slots__ = ("_changed", "_items", "_kind", "_notes", "_to_json")

    def __init__(
        self,
        notes: ChangeNotes,
        kind: Kind,
        to_json: Callable[[K, V], Mapping[str, Any]],
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        """``changed``: called after every change."""
        self._notes = notes
        self._changed = changed
        self._kind = kind
        self._to_json: Callable[[K, V], Mapping[str, Any]] = to_json
        self._items: dict[K, V] = {}

    def put(self, key: K, value: V) -> bool:
        """Put a definition; return whether it changed. Raises :class:`ArgumentsError` if it cannot be stored."""
        if key not in self._items:
            undo: Callable[[], object] = functools.partial(self._unset, key)
        elif (old := self._items[key]) == value:
            return False
        else:
            undo = functools.partial(self._set, key, old)
        self._notes.note("put", self._kind, self._to_json(key, value))
        self._set(key, value)
        self._notes.undo.append(undo)
        return True

    def drop(self, key: K) -> bool:
        """Remove a definition; return whether it existed."""
        if key not in self._items:
            return False
        value = self._items[key]
        self._notes.note("drop", self._kind, self._to_json(key, value))
        self._unset(key)
        self._notes.undo.append(lambda: self._set(key, value))
        return True

    def _set(self, key: K, value: V) -> None:
        self._items[key] = value
        self._changed()

    def _unset(self, key: K) -> None:
        del self._items[key]
        self._changed()

    def get(self, key: K) -> V | None:
        return self._items.get(key)

    def __contains__(self, key: K) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[tuple[K, V]]:
        """Keys and values, in the keys' order, as they are now."""
        return iter(sorted(self._items.items(), key=_key))

    def to_json(self) -> list[dict[str, Any]]:
        """All of them, in the keys' order."""
        return [dict(self._to_json(key, value)) for key, value in self]


def _key(item: tuple[Any, object]) -> Any:
    return item[0]
