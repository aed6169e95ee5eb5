"""Users: who may log in, and what they may do in which vhost. The rules and the JSON are RabbitMQ's.

A user may *use* a vhost where it has permissions, and do there what their three patterns allow: ``configure`` (declare
and delete), ``write`` (publish, bind) and ``read`` (consume, get, purge, bind from). A pattern is a regular expression
that is searched for in the name of a queue or exchange; an empty one matches empty names only. For a topic exchange
there may be *topic permissions* besides, whose patterns are searched for in the routing key.

Passwords are kept as a salt of 4 bytes and the hash of salt and password, never as themselves.

One thread changes users; any thread may ask for them. Users and permissions are values that are put in the place of
others, and a pattern's answers are remembered with the permissions that it stands in: no answer outlives them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal

import attrs

from warren.actors.engines.declared.changes import ChangeNotes, NotedTable
from warren.actors.engines.declared.permissions import Kind, Patterns, Permissions, Right, TopicPermissions
from warren.actors.engines.declared.texts import check_texts, check_utf8
from warren.actors.engines.errors import AccessRefusedError, ArgumentsError, NotFoundError, PreconditionFailedError

_SALT_BYTES: Final = 4
_HASHES: Final[dict[str, Callable[[bytes], Any]]] = {
    "rabbit_password_hashing_sha256": hashlib.sha256,
    "rabbit_password_hashing_sha512": hashlib.sha512,
    "rabbit_password_hashing_md5": hashlib.md5,
}
DEFAULT_HASHING: Final = "rabbit_password_hashing_sha256"
DEFAULT_USER: Final = "guest"
"""Whom a new node has, with the name for a password, as administrator, with every permission in the vhost ``/``."""
USER_LIMITS: Final = ("max-connections", "max-channels")
DEFAULT_EXCHANGE_AS: Final = "amq.default"
"""What patterns see of the exchange whose name is empty."""


@attrs.frozen
class User:
    """Who may log in."""

    name: str
    password_hash: bytes = attrs.field(repr=False)
    """Salt and hash; empty: no password is right."""
    hashing_algorithm: str = DEFAULT_HASHING
    tags: tuple[str, ...] = ()
    """``administrator``, ``monitoring``, ``policymaker``, ``management``, ``impersonator``, or any other."""
    limits: Mapping[str, int] = attrs.Factory(dict)
    """How many connections and channels it may have at a time (:data:`USER_LIMITS`); below 0: any number."""

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
            "limits": dict(self.limits),
        }

    @classmethod
    def from_json(cls, item: Any, salt: Callable[[int], bytes]) -> User:
        """As in RabbitMQ's definitions, of earlier versions too; ``password`` is hashed. Raises
        :class:`ArgumentsError`."""
        if not isinstance(item, Mapping) or not isinstance(name := item.get("name"), str):
            raise ArgumentsError("a user without a name")
        tags = item.get("tags", ())
        if isinstance(tags, str):  # as RabbitMQ wrote them before 3.9
            tags = tuple(tag.strip() for tag in tags.split(",") if tag.strip())
        algorithm = item.get("hashing_algorithm", DEFAULT_HASHING)
        if isinstance(password := item.get("password"), str) and "password_hash" not in item:
            kept, algorithm = hashed(password.encode(errors="surrogateescape"), salt(_SALT_BYTES)), DEFAULT_HASHING
        else:
            try:
                kept = base64.b64decode(item.get("password_hash", ""), validate=True)
            except (binascii.Error, TypeError, ValueError):
                raise ArgumentsError(f"user '{name}': password_hash is not base64") from None
        return checked_user(cls(name, kept, algorithm, tags, item.get("limits") or {}))


def checked_user(user: User) -> User:
    """The user, made of values as they ought to be. Raises :class:`ArgumentsError`."""
    if not isinstance(user.name, str) or not user.name:
        raise ArgumentsError("a user's name cannot be empty")
    check_utf8("a user's name", user.name)
    if not isinstance(user.hashing_algorithm, str) or user.hashing_algorithm not in _HASHES:
        raise ArgumentsError(
            f"user '{user.name}': hashing_algorithm {user.hashing_algorithm!r} is none of {', '.join(_HASHES)}"
        )
    if not isinstance(user.tags, list | tuple) or not all(isinstance(tag, str) for tag in user.tags):
        raise ArgumentsError(f"user '{user.name}': tags are a list of strings, not {user.tags!r:.100}")
    check_texts(f"user '{user.name}': a tag", user.tags)
    limits = checked_limits(f"user '{user.name}'", user.limits, USER_LIMITS)
    return attrs.evolve(user, tags=tuple(dict.fromkeys(user.tags)), limits=limits)


def checked_limits(whose: str, limits: Any, known: Iterable[str]) -> dict[str, int]:
    """Numbers by the names of ``known`` limits. Raises :class:`ArgumentsError`."""
    if not isinstance(limits, Mapping):
        raise ArgumentsError(f"{whose}: limits are an object, not {limits!r:.100}")
    for name, value in limits.items():
        if name not in known:
            raise ArgumentsError(f"{whose}: limit {name!r:.100} is none of {', '.join(known)}")
        if not isinstance(value, int) or isinstance(value, bool):
            raise ArgumentsError(f"{whose}: {name} is a number, not {value!r:.100}")
    return dict(sorted(limits.items()))


def hashed(password: bytes, salt: bytes) -> bytes:
    """What is kept of a password; ``salt``: 4 random bytes."""
    if len(salt) != _SALT_BYTES:
        raise RuntimeError(f"a salt of {len(salt)} bytes")
    digest: bytes = _HASHES[DEFAULT_HASHING](salt + password).digest()
    return salt + digest


@attrs.frozen
class _GrantedTopics:
    """Topic permissions, as they are for the user that has them in a vhost."""

    permissions: TopicPermissions
    patterns: Patterns = attrs.field(eq=False)


class Users:
    """All users and their permissions. One thread changes them, any thread may look.

    ``random``: random bytes by their number, for salts. ``notes``: where is noted what changes.
    """

    __slots__ = ("_permissions", "_random", "_topic_permissions", "_users", "version")

    def __init__(self, random: Callable[[int], bytes], notes: ChangeNotes | None = None) -> None:
        told = ChangeNotes() if notes is None else notes
        self._random = random
        self.version = 0
        """Changes with every change of a user or a permission; while it is the same, so are all rights."""
        self._users: NotedTable[str, User] = NotedTable(told, "user", lambda _, user: user.to_json(), self._changed)
        self._permissions: NotedTable[tuple[str, str], Permissions] = NotedTable(
            told, "permission", lambda key, kept: {"user": key[0], "vhost": key[1], **kept.to_json()}, self._changed
        )
        """By user and vhost."""
        self._topic_permissions: NotedTable[tuple[str, str, str], _GrantedTopics] = NotedTable(
            told,
            "topic_permission",
            lambda key, kept: {
                "user": key[0],
                "vhost": key[1],
                "exchange": key[2],
                **kept.permissions.to_json(),
            },
            self._changed,
        )
        """By user, vhost and exchange."""

    def _changed(self) -> None:
        self.version += 1

    # ── users ───────────────────────────────────────────────────────────────────────────────────────────────────

    def __iter__(self) -> Iterator[User]:
        """By their names, as they are now."""
        return iter([user for _, user in self._users])

    def __contains__(self, name: str) -> bool:
        return name in self._users

    def __getitem__(self, name: str) -> User:
        """Raises :class:`NotFoundError`."""
        user = self._users.get(name)
        if user is None:
            raise NotFoundError(f"no user '{name}'")
        return user

    def add(self, name: str, password: bytes, tags: Iterable[str] = ()) -> User:
        """A new user. Raises :class:`PreconditionFailedError` where the name is taken."""
        user = checked_user(User(name, self._hashed(password), tags=tuple(tags)))
        if name in self._users:
            raise PreconditionFailedError(f"there is a user '{name}'")
        self._users.put(name, user)
        return user

    def add_default(self, vhost: str | None) -> None:
        """Add :data:`DEFAULT_USER`, who may do everything in a vhost."""
        self.add(DEFAULT_USER, DEFAULT_USER.encode(), ["administrator"])
        if vhost is not None:
            self.set_permissions(DEFAULT_USER, vhost, ".*", ".*", ".*")

    def put(self, user: User) -> bool:
        """A user as it is to be, new or in the place of another one; returns whether that is news."""
        checked = checked_user(user)
        return self._users.put(checked.name, checked)

    def from_json(self, item: Any) -> User:
        """Parse a user of RabbitMQ's definitions, without adding it. Raises :class:`ArgumentsError`."""
        return User.from_json(item, self._random)

    def delete(self, name: str) -> None:
        """Remove a user, with all permissions. Raises :class:`NotFoundError`."""
        self[name]
        self._forget(lambda user, _: user == name)
        self._users.drop(name)

    def change_password(self, name: str, password: bytes | None) -> None:
        """``None``: no password is right from now on."""
        kept = b"" if password is None else self._hashed(password)
        self.put(attrs.evolve(self[name], password_hash=kept, hashing_algorithm=DEFAULT_HASHING))

    def set_tags(self, name: str, tags: Iterable[str]) -> None:
        self.put(attrs.evolve(self[name], tags=tuple(tags)))

    def set_limits(self, name: str, limits: Mapping[str, int]) -> None:
        """Replace a user's limits. Raises :class:`ArgumentsError` for unknown ones."""
        self.put(attrs.evolve(self[name], limits=limits))

    def authenticate(self, name: str, password: bytes) -> User:
        """The user. Raises :class:`AccessRefusedError`, which does not tell an unknown name from a wrong password.

        An empty password is never right.
        """
        user = self._users.get(name)
        if not password or user is None or not user.has_password(password):
            raise AccessRefusedError(f"user '{name}' - invalid credentials")
        return user

    def _hashed(self, password: bytes) -> bytes:
        return hashed(password, self._random(_SALT_BYTES))

    # ── permissions ─────────────────────────────────────────────────────────────────────────────────────────────

    def set_permissions(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        """Raises :class:`ArgumentsError` for what is no pattern."""
        self.grant(user, vhost, Permissions(configure, write, read))

    def grant(self, user: str, vhost: str, permissions: Permissions) -> bool:
        """Returns whether that is news. Raises :class:`NotFoundError`."""
        return self._permissions.put((self[user].name, vhost), permissions)

    def clear_permissions(self, user: str, vhost: str) -> None:
        self._permissions.drop((self[user].name, vhost))

    def set_topic_permissions(self, user: str, vhost: str, exchange: str, write: str, read: str) -> None:
        """Raises :class:`ArgumentsError` for what is no pattern."""
        self.grant_topics(user, vhost, exchange, TopicPermissions(write, read))

    def grant_topics(self, user: str, vhost: str, exchange: str, permissions: TopicPermissions) -> bool:
        """Returns whether that is news. Raises :class:`NotFoundError`."""
        granted = _GrantedTopics(permissions, permissions.for_user(user, vhost))
        return self._topic_permissions.put((self[user].name, vhost, exchange), granted)

    def clear_topic_permissions(self, user: str, vhost: str, exchange: str | None = None) -> None:
        """Of one exchange, or of all in the vhost."""
        name = self[user].name
        for key, _ in self._topic_permissions:
            if key[:2] == (name, vhost) and exchange in (None, key[2]):
                self._topic_permissions.drop(key)

    def forget_vhost(self, vhost: str) -> None:
        """The vhost was deleted."""
        self._forget(lambda _, where: where == vhost)

    def _forget(self, is_gone: Callable[[str, str], bool]) -> None:
        for key, _ in self._permissions:
            if is_gone(*key):
                self._permissions.drop(key)
        for topic_key, _ in self._topic_permissions:
            if is_gone(*topic_key[:2]):
                self._topic_permissions.drop(topic_key)

    def permissions(self, user: str) -> dict[str, Permissions]:
        """Of a user, by vhost."""
        return {vhost: kept for (name, vhost), kept in self._permissions if name == user}

    def permissions_in(self, vhost: str) -> dict[str, Permissions]:
        """In a vhost, by user."""
        return {name: kept for (name, where), kept in self._permissions if where == vhost}

    def topic_permissions(self) -> dict[tuple[str, str, str], TopicPermissions]:
        """All of them, by user, vhost and exchange."""
        return {key: kept.permissions for key, kept in self._topic_permissions}

    def may_use(self, user: str, vhost: str) -> bool:
        """Whether a user may open a connection to a vhost."""
        return (user, vhost) in self._permissions

    def check(self, user: str, vhost: str, kind: Kind, name: str, right: Right) -> None:
        """Raises :class:`AccessRefusedError` where the user may not do this to the queue or exchange of that name."""
        seen = DEFAULT_EXCHANGE_AS if kind == "exchange" and not name else name
        kept = self._permissions.get((user, vhost))
        if kept is None or not kept.allow(right, seen):
            raise AccessRefusedError(f"access to {kind} '{seen}' in vhost '{vhost}' refused for user '{user}'")

    def check_topic(
        self, user: str, vhost: str, exchange: str, routing_key: str, right: Literal["write", "read"]
    ) -> None:
        """Raise :class:`AccessRefusedError` if the exchange has topic permissions for the user that do not match."""
        kept = self._topic_permissions.get((user, vhost, exchange))
        if kept is not None and not kept.patterns.match(0 if right == "write" else 1, routing_key):
            raise AccessRefusedError(
                f"access to topic '{routing_key}' in exchange '{exchange}' in vhost '{vhost}' refused for user '{user}'"
            )

    # ── definitions ─────────────────────────────────────────────────────────────────────────────────────────────

    def to_json(self) -> dict[str, list[dict[str, Any]]]:
        """The parts ``users``, ``permissions`` and ``topic_permissions`` of RabbitMQ's definitions."""
        return {
            "users": self._users.to_json(),
            "permissions": self._permissions.to_json(),
            "topic_permissions": self._topic_permissions.to_json(),
        }

    def check_invariants(self, vhosts: Iterable[str]) -> None:
        """Raise ``RuntimeError`` if permissions name a user or a vhost that does not exist."""
        known = set(vhosts)
        for user, vhost, *_ in [*(key for key, _ in self._permissions), *(key for key, _ in self._topic_permissions)]:
            if user not in self._users or vhost not in known:
                raise RuntimeError(f"permissions of user '{user}' in vhost '{vhost}'")
