"""Permissions: regular expressions that say what a user may do in a vhost. The rules and the JSON are RabbitMQ's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import attrs

from warren.actors.engines.declared.name_patterns import NamePattern
from warren.actors.engines.errors import ArgumentsError

Right = Literal["configure", "write", "read"]
Kind = Literal["queue", "exchange"]

_MAX_PATTERN: Final = 1000
"""Characters."""
_MAX_ANSWERS: Final = 4096
"""How many match results are cached before the cache is emptied."""


class Patterns:
    """Regular expressions with a cache of their answers. Any thread may use it."""

    __slots__ = ("_answers", "_compiled")

    def __init__(self, patterns: Iterable[object]) -> None:
        """Raise :class:`ArgumentsError` for an invalid pattern."""
        self._compiled = [_compiled(pattern) for pattern in patterns]
        self._answers: dict[tuple[int, str], bool] = {}

    def match(self, which: int, name: str) -> bool:
        answer = self._answers.get((which, name))
        if answer is None:
            answer = self._compiled[which].matches(name)
            if len(self._answers) >= _MAX_ANSWERS:
                self._answers = {}
            self._answers[which, name] = answer
        return answer


@attrs.frozen
class Permissions:
    """What a user may do in a vhost: three patterns. Raises :class:`ArgumentsError` for an invalid pattern."""

    configure: str
    write: str
    read: str
    _patterns: Patterns = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_patterns", Patterns((self.configure, self.write, self.read)))

    def allow(self, right: Right, name: str) -> bool:
        """Whether the pattern of a right matches a name."""
        return self._patterns.match(0 if right == "configure" else 1 if right == "write" else 2, name)

    def to_json(self) -> dict[str, str]:
        return {"configure": self.configure, "write": self.write, "read": self.read}


@attrs.frozen
class TopicPermissions:
    """The routing keys with which a user may publish to a topic exchange, and bind queues to it.

    ``{username}`` and ``{vhost}`` in the patterns stand for the user's and the vhost's names. Raises
    :class:`ArgumentsError` for an invalid pattern.
    """

    write: str
    read: str

    def __attrs_post_init__(self) -> None:
        Patterns((self.write, self.read))

    def for_user(self, user: str, vhost: str) -> Patterns:
        """The patterns ``write`` and ``read`` for a user in a vhost."""
        return Patterns(_filled_in(pattern, user, vhost) for pattern in (self.write, self.read))

    def to_json(self) -> dict[str, str]:
        return {"write": self.write, "read": self.read}


def permissions_of(item: Mapping[str, Any]) -> Permissions:
    """Parse an item of RabbitMQ's definitions. Raises :class:`ArgumentsError`."""
    return Permissions(*(_part(item, name) for name in ("configure", "write", "read")))


def topic_permissions_of(item: Mapping[str, Any]) -> TopicPermissions:
    """Parse an item of RabbitMQ's definitions. Raises :class:`ArgumentsError`."""
    return TopicPermissions(*(_part(item, name) for name in ("write", "read")))


def _part(item: Mapping[str, Any], name: str) -> Any:
    try:
        return item[name]
    except KeyError:
        raise ArgumentsError(f"permissions of '{item.get('user')!s:.100}' without '{name}'") from None


def _filled_in(pattern: str, user: str, vhost: str) -> str:
    for variable, value in (("{username}", user), ("{vhost}", vhost)):
        pattern = pattern.replace(variable, re.escape(value))
    return pattern


def _compiled(pattern: object) -> NamePattern:
    if not isinstance(pattern, str) or len(pattern) > _MAX_PATTERN:
        raise ArgumentsError(f"a pattern is a text of at most {_MAX_PATTERN} characters")
    try:
        return NamePattern(pattern or "^$")
    except re.error as error:
        raise ArgumentsError(f"no regular expression: {pattern!r}: {error}") from None
