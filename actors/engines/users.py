"""Users: who may log in, and what they may do in which vhost. The rules and the JSON are RabbitMQ's.

A user may *use* a vhost where it has permissions, and do there what their three patterns allow: ``configure`` (declare
and delete), ``write`` (publish, bind) and ``read`` (consume, get, purge, bind from). A pattern is a regular expression
that is searched for in the name of a queue or exchange; an empty one matches empty names only. For a topic exchange
there may be *topic permissions* besides, whose patterns are searched for in the routing key.

Passwords are kept as a salt of 4 bytes and the hash of salt and password, never as themselves.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal

import attrs

from warren.actors.engines.errors import AccessRefusedError, ArgumentsError, NotFoundError, PreconditionFailedError

Right = Literal["configure", "write", "read"]
Kind = Literal["queue", "exchange"]

_SALT_BYTES: Final = 4
_HASHES: Final[dict[str, Callable[[bytes], Any]]] = {
    "rabbit_password_hashing_sha256": hashlib.sha256,
    "rabbit_password_hashing_sha512": hashlib.sha512,
    "rabbit_password_hashing_md5": hashlib.md5,
}
DEFAULT_HASHING: Final = "rabbit_password_hashing_sha256"
DEFAULT_EXCHANGE_AS: Final = "amq.default"
"""What patterns see of the exchange whose name is empty."""
_MAX_PATTERN: Final = 1000
"""Characters."""


@attrs.frozen
class User:
    """Who may log in."""

    name: str
    password_hash: bytes = attrs.field(repr=False)
    """Salt and hash; empty: no password is right."""
    hashing_algorithm: str = DEFAULT_HASHING
    tags: tuple[str, ...] = ()
    """``administrator``, ``monitoring``, ``policymaker``, ``management``, ``impersonator``, or any other."""

    def has_password(self, password: bytes) -> bool:
        """Whether this is the user's password."""
        salt, expected = self.password_hash[:_SALT_BYTES], self.password_hash[_SALT_BYTES:]
        return bool(expected) and hmac.compare_digest(
            _HASHES[self.hashing_algorithm](salt + password).digest(), expected
        )

    def to_json(self) -> dict[str, Any]:
        """As in RabbitMQ's definitions."""
        return {
            "name": self.name,
            "password_hash": base64.b64encode(self.password_hash).decode(),
            "hashing_algorithm": self.hashing_algorithm,
            "tags": list(self.tags),
            "limits": {},
        }


@attrs.frozen
class Permissions:
    """What a user may do in a vhost."""

    configure: str
    write: str
    read: str


@attrs.frozen
class TopicPermissions:
    """With which routing keys a user may publish to a topic exchange, and bind queues to it."""

    write: str
    read: str


def hashed(password: bytes, salt: bytes) -> bytes:
    """What is kept of a password; ``salt``: 4 random bytes."""
    if len(salt) != _SALT_BYTES:
        raise RuntimeError(f"a salt of {len(salt)} bytes")
    digest: bytes = _HASHES[DEFAULT_HASHING](salt + password).digest()
    return salt + digest


@attrs.define
class Users:
    """All users and their permissions. ``random``: random bytes by their number, for salts."""

    _random: Callable[[int], bytes]
    _users: dict[str, User] = attrs.Factory(dict)
    _permissions: dict[tuple[str, str], Permissions] = attrs.Factory(dict)
    """By user and vhost."""
    _topic_permissions: dict[tuple[str, str, str], TopicPermissions] = attrs.Factory(dict)
    """By user, vhost and exchange."""

    # ── users ───────────────────────────────────────────────────────────────────────────────────────────────────

    def __iter__(self) -> Iterator[User]:
        return iter([self._users[name] for name in sorted(self._users)])

    def __getitem__(self, name: str) -> User:
        """Raises :class:`NotFoundError`."""
        try:
            return self._users[name]
        except KeyError:
            raise NotFoundError(f"no user '{name}'") from None

    def add(self, name: str, password: bytes, tags: Iterable[str] = ()) -> User:
        """A new user. Raises :class:`PreconditionFailedError` where the name is taken."""
        if not name:
            raise ArgumentsError("a user's name cannot be empty")
        if name in self._users:
            raise PreconditionFailedError(f"there is a user '{name}'")
        user = self._users[name] = User(name, hashed(password, self._random(_SALT_BYTES)), tags=tuple(tags))
        return user

    def delete(self, name: str) -> None:
        """Remove a user, with all permissions."""
        del self._users[self[name].name]
        self._permissions = {key: kept for key, kept in self._permissions.items() if key[0] != name}
        self._topic_permissions = {key: kept for key, kept in self._topic_permissions.items() if key[0] != name}

    def change_password(self, name: str, password: bytes | None) -> None:
        """``None``: no password is right from now on."""
        kept = b"" if password is None else hashed(password, self._random(_SALT_BYTES))
        self._users[name] = attrs.evolve(self[name], password_hash=kept, hashing_algorithm=DEFAULT_HASHING)

    def set_tags(self, name: str, tags: Iterable[str]) -> None:
        self._users[name] = attrs.evolve(self[name], tags=tuple(tags))

    def authenticate(self, name: str, password: bytes) -> User:
        """The user. Raises :class:`AccessRefusedError`, which does not tell an unknown name from a wrong password."""
        user = self._users.get(name)
        if user is None or not user.has_password(password):
            raise AccessRefusedError(f"user '{name}' - invalid credentials")
        return user

    # ── permissions ─────────────────────────────────────────────────────────────────────────────────────────────

    def set_permissions(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        """Raises :class:`ArgumentsError` for what is no pattern."""
        for pattern in (configure, write, read):
            _compiled(pattern)
        self._permissions[self[user].name, vhost] = Permissions(configure, write, read)

    def clear_permissions(self, user: str, vhost: str) -> None:
        self._permissions.pop((self[user].name, vhost), None)

    def set_topic_permissions(self, user: str, vhost: str, exchange: str, write: str, read: str) -> None:
        """Raises :class:`ArgumentsError` for what is no pattern."""
        for pattern in (write, read):
            _compiled(pattern)
        self._topic_permissions[self[user].name, vhost, exchange] = TopicPermissions(write, read)

    def clear_topic_permissions(self, user: str, vhost: str, exchange: str | None = None) -> None:
        """Of one exchange, or of all in the vhost."""
        name = self[user].name
        for key in [key for key in self._topic_permissions if key[:2] == (name, vhost) and exchange in (None, key[2])]:
            del self._topic_permissions[key]

    def forget_vhost(self, vhost: str) -> None:
        """The vhost was deleted."""
        self._permissions = {key: kept for key, kept in self._permissions.items() if key[1] != vhost}
        self._topic_permissions = {key: kept for key, kept in self._topic_permissions.items() if key[1] != vhost}

    def permissions(self, user: str) -> dict[str, Permissions]:
        """Of a user, by vhost."""
        return {vhost: kept for (name, vhost), kept in sorted(self._permissions.items(), key=_key) if name == user}

    def may_use(self, user: str, vhost: str) -> bool:
        """Whether a user may open a connection to a vhost."""
        return (user, vhost) in self._permissions

    def check(self, user: str, vhost: str, kind: Kind, name: str, right: Right) -> None:
        """Raises :class:`AccessRefusedError` where the user may not do this to the queue or exchange of that name."""
        seen = DEFAULT_EXCHANGE_AS if kind == "exchange" and not name else name
        kept = self._permissions.get((user, vhost))
        if kept is None or not _matches(getattr(kept, right), seen):
            raise AccessRefusedError(f"access to {kind} '{seen}' in vhost '{vhost}' refused for user '{user}'")

    def check_topic(
        self, user: str, vhost: str, exchange: str, routing_key: str, right: Literal["write", "read"]
    ) -> None:
        """Raises :class:`AccessRefusedError` where there are topic permissions for the exchange that do not match.

        ``{username}`` and ``{vhost}`` in their patterns stand for the user's and the vhost's names.
        """
        kept = self._topic_permissions.get((user, vhost, exchange))
        if kept is None:
            return
        pattern: str = getattr(kept, right)
        for variable, value in (("{username}", user), ("{vhost}", vhost)):
            pattern = pattern.replace(variable, re.escape(value))
        if not _matches(pattern, routing_key):
            raise AccessRefusedError(
                f"access to topic '{routing_key}' in exchange '{exchange}' in vhost '{vhost}' refused for user '{user}'"
            )

    # ── definitions ─────────────────────────────────────────────────────────────────────────────────────────────

    def to_json(self) -> dict[str, list[dict[str, Any]]]:
        """The parts ``users``, ``permissions`` and ``topic_permissions`` of RabbitMQ's definitions."""
        return {
            "users": [self._users[name].to_json() for name in sorted(self._users)],
            "permissions": [
                {"user": user, "vhost": vhost, **attrs.asdict(kept)}
                for (user, vhost), kept in sorted(self._permissions.items(), key=_key)
            ],
            "topic_permissions": [
                {"user": user, "vhost": vhost, "exchange": exchange, **attrs.asdict(kept)}
                for (user, vhost, exchange), kept in sorted(self._topic_permissions.items(), key=_key)
            ],
        }

    def add_from_json(self, parts: Mapping[str, Any]) -> None:
        """What the parts of :meth:`to_json` say, besides or in place of what is there.

        Raises :class:`ArgumentsError`, and then nothing was changed.
        """
        users = dict(self._users)
        for item in parts.get("users", []):
            user = self._user_of(item)
            users[user.name] = user
        permissions, topic_permissions = dict(self._permissions), dict(self._topic_permissions)
        try:
            for item in parts.get("permissions", []):
                patterns = _patterns(item, ("configure", "write", "read"))
                permissions[_known(item, users), item["vhost"]] = Permissions(*patterns)
            for item in parts.get("topic_permissions", []):
                key = _known(item, users), item["vhost"], item["exchange"]
                topic_permissions[key] = TopicPermissions(*_patterns(item, ("write", "read")))
        except (KeyError, TypeError) as error:
            raise ArgumentsError(f"permissions without {error}") from None
        self._users, self._permissions, self._topic_permissions = users, permissions, topic_permissions

    def _user_of(self, item: Any) -> User:
        if not isinstance(item, Mapping) or not isinstance(name := item.get("name"), str) or not name:
            raise ArgumentsError("a user without a name")
        tags = item.get("tags", ())
        if isinstance(tags, str):  # as RabbitMQ wrote them before 3.9
            tags = [tag for tag in tags.split(",") if tag]
        algorithm = item.get("hashing_algorithm", DEFAULT_HASHING)
        if algorithm not in _HASHES:
            raise ArgumentsError(f"user '{name}': hashing_algorithm {algorithm!r} is none of {', '.join(_HASHES)}")
        if isinstance(password := item.get("password"), str) and "password_hash" not in item:
            return User(name, hashed(password.encode(), self._random(_SALT_BYTES)), tags=tuple(tags))
        try:
            kept = base64.b64decode(item.get("password_hash", ""), validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise ArgumentsError(f"user '{name}': password_hash is not base64") from None
        return User(name, kept, algorithm, tuple(map(str, tags)))


def _key(item: tuple[tuple[str, ...], object]) -> tuple[str, ...]:
    return item[0]


def _known(item: Mapping[str, Any], users: Mapping[str, User]) -> str:
    name = item["user"]
    if name not in users:
        raise ArgumentsError(f"permissions of '{name}', who is no user")
    return str(name)


def _patterns(item: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    found = [item[name] for name in names]
    for pattern in found:
        _compiled(pattern)
    return found


def _compiled(pattern: object) -> re.Pattern[str]:
    if not isinstance(pattern, str) or len(pattern) > _MAX_PATTERN:
        raise ArgumentsError(f"a pattern is a text of at most {_MAX_PATTERN} characters")
    try:
        return re.compile(pattern or "^$")
    except re.error as error:
        raise ArgumentsError(f"no regular expression: {pattern!r}: {error}") from None


def _matches(pattern: str, name: str) -> bool:
    return _compiled(pattern).search(name) is not None
