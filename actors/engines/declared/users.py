"""Users: who may log in, and what they may do in which vhost. The rules and the JSON are RabbitMQ's.

A user may *use* a vhost if it has permissions there. Their three patterns say what it may do: ``configure`` (declare
and delete), ``write`` (publish, bind) and ``read`` (consume, get, purge, bind from). A pattern is a regular expression
that is searched for in the name of a queue or exchange; an empty one matches empty names only. A topic exchange may
also have *topic permissions*, whose patterns are searched for in the routing key.

Passwords are never stored, only a salt of 4 bytes and the hash of salt and password.

One thread changes users; any thread may read them. Users and permissions are immutable values that are replaced as a
whole. Permissions cache the answers of their patterns, so no answer outlives them.
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
"""The user of a new node: its password is its name, it is an administrator and has all permissions in vhost ``/``."""
USER_LIMITS: Final = ("max-connections", "max-channels")
DEFAULT_EXCHANGE_AS: Final = "amq.default"
"""The name of the default exchange for patterns."""


@attrs.frozen
class User:
    """A user who may log in."""

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
        """Parse a user of RabbitMQ's definitions, also of earlier versions; ``password`` is hashed. Raises
        :class:`ArgumentsError`."""
        if not isinstance(item, Mapping) or not isinstance(name := item.get("name"), str):
            raise ArgumentsError("a user without a name")
        tags = item.get("tags", ())
        if isinstance(tags, str):  # as RabbitMQ wrote them before 3.9
            tags = tuple(tag.strip() for tag in tags.split(",") if tag.strip())
        algorithm = item.get("hashing_algorithm", DEFAULT_HASHING)
        if isinstance(password := item.get("password"), str) and "password_hash" not in item:
            password_hash, algorithm = (
                hashed(password.encode(errors="surrogateescape"), salt(_SALT_BYTES)),
                DEFAULT_HASHING,
            )
        else:
            try:
                password_hash = base64.b64decode(item.get("password_hash", ""), validate=True)
            except (binascii.Error, TypeError, ValueError):
                raise ArgumentsError(f"user '{name}': password_hash is not base64") from None
        return checked_user(cls(name, password_hash, algorithm, tags, item.get("limits") or {}))


def checked_user(user: User) -> User:
    """Check a user and return it with normalized values. Raises :class:`ArgumentsError`."""
    if not isinstance(user.name, str) or not user.name:
        raise ArgumentsError("a user's name cannot be empty")
    check_utf8("a user's name", user.name)
    if not isinstance(user.hashing_algorithm, str) or user.hashing_algorithm not in _HASHES:
        raise ArgumentsError(
            f"user '{user.name}': hashing_algorithm {user.hashing_algorithm!r} is not one of {', '.join(_HASHES)}"
        )
    if not isinstance(user.tags, list | tuple) or not all(isinstance(tag, str) for tag in user.tags):
        raise ArgumentsError(f"user '{user.name}': tags are a list of strings, not {user.tags!r:.100}")
    check_texts(f"user '{user.name}': a tag", user.tags)
    limits = checked_limits(f"user '{user.name}'", user.limits, USER_LIMITS)
    return attrs.evolve(user, tags=tuple(dict.fromkeys(user.tags)), limits=limits)


def checked_limits(whose: str, limits: Any, allowed_names: Iterable[str]) -> dict[str, int]:
    """Check limits and their names, and return them sorted. Raises :class:`ArgumentsError`."""
    if not isinstance(limits, Mapping):
        raise ArgumentsError(f"{whose}: limits are an object, not {limits!r:.100}")
    for name, value in limits.items():
        if name not in allowed_names:
            raise ArgumentsError(f"{whose}: limit {name!r:.100} is not one of {', '.join(allowed_names)}")
        if not isinstance(value, int) or isinstance(value, bool):
            raise ArgumentsError(f"{whose}: {name} is a number, not {value!r:.100}")
    return dict(sorted(limits.items()))


def hashed(password: bytes, salt: bytes) -> bytes:
    """Hash a password for storage; ``salt``: 4 random bytes."""
    if len(salt) != _SALT_BYTES:
        raise RuntimeError(f"a salt of {len(salt)} bytes")
    digest: bytes = _HASHES[DEFAULT_HASHING](salt + password).digest()
    return salt + digest


@attrs.frozen
class _GrantedTopics:
    """Topic permissions with the patterns for their user and vhost."""

    permissions: TopicPermissions
    patterns: Patterns = attrs.field(eq=False)


class Users:
    """All users and their permissions. One thread changes them, any thread may read.

    ``random``: returns as many random bytes, for salts. ``notes`` collects the changes.
    """

    __slots__ = ("_permissions", "_random", "_topic_permissions", "_users", "version")

    def __init__(self, random: Callable[[int], bytes], notes: ChangeNotes | None = None) -> None:
        change_notes = ChangeNotes() if notes is None else notes
        self._random = random
        self.version = 0
        """Changes with every change of a user or a permission, so that other parts can cache rights."""
        self._users: NotedTable[str, User] = NotedTable(
            change_notes, "user", lambda _, user: user.to_json(), self._changed
        )
        self._permissions: NotedTable[tuple[str, str], Permissions] = NotedTable(
            change_notes,
            "permission",
            lambda key, permissions: {"user": key[0], "vhost": key[1], **permissions.to_json()},
            self._changed,
        )
        """By user and vhost."""
        self._topic_permissions: NotedTable[tuple[str, str, str], _GrantedTopics] = NotedTable(
            change_notes,
            "topic_permission",
            lambda key, granted: {
                "user": key[0],
                "vhost": key[1],
                "exchange": key[2],
                **granted.permissions.to_json(),
            },
            self._changed,
        )
        """By user, vhost and exchange."""

    def _changed(self) -> None:
        self.version += 1

    # ── users ───────────────────────────────────────────────────────────────────────────────────────────────────

    def __iter__(self) -> Iterator[User]:
        """The current users, sorted by name."""
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
        """Add a user. Raises :class:`PreconditionFailedError` if the name is taken."""
        user = checked_user(User(name, self._hashed(password), tags=tuple(tags)))
        if name in self._users:
            raise PreconditionFailedError(f"user '{name}' exists already")
        self._users.put(name, user)
        return user

    def add_default(self, vhost: str | None) -> None:
        """Add :data:`DEFAULT_USER`, who may do everything in a vhost."""
        self.add(DEFAULT_USER, DEFAULT_USER.encode(), ["administrator"])
        if vhost is not None:
            self.set_permissions(DEFAULT_USER, vhost, ".*", ".*", ".*")

    def put(self, user: User) -> bool:
        """Add or replace a user; return whether that changed anything."""
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
        """Set a user's password; ``None``: none is accepted from now on."""
        password_hash = b"" if password is None else self._hashed(password)
        self.put(attrs.evolve(self[name], password_hash=password_hash, hashing_algorithm=DEFAULT_HASHING))

    def set_tags(self, name: str, tags: Iterable[str]) -> None:
        self.put(attrs.evolve(self[name], tags=tuple(tags)))

    def set_limits(self, name: str, limits: Mapping[str, int]) -> None:
        """Replace a user's limits. Raises :class:`ArgumentsError` for unknown ones."""
        self.put(attrs.evolve(self[name], limits=limits))

    def authenticate(self, name: str, password: bytes) -> User:
        """Return the user. Raises the same :class:`AccessRefusedError` for an unknown name and a wrong password.

        An empty password is never accepted.
        """
        user = self._users.get(name)
        if not password or user is None or not user.has_password(password):
            raise AccessRefusedError(f"user '{name}' - invalid credentials")
        return user

    def _hashed(self, password: bytes) -> bytes:
        return hashed(password, self._random(_SALT_BYTES))

    # ── permissions ─────────────────────────────────────────────────────────────────────────────────────────────

    def set_permissions(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        """Raises :class:`ArgumentsError` for an invalid pattern."""
        self.grant(user, vhost, Permissions(configure, write, read))

    def grant(self, user: str, vhost: str, permissions: Permissions) -> bool:
        """Return whether that changed anything. Raises :class:`NotFoundError`."""
        return self._permissions.put((self[user].name, vhost), permissions)

    def clear_permissions(self, user: str, vhost: str) -> None:
        self._permissions.drop((self[user].name, vhost))

    def set_topic_permissions(self, user: str, vhost: str, exchange: str, write: str, read: str) -> None:
        """Raises :class:`ArgumentsError` for an invalid pattern."""
        self.grant_topics(user, vhost, exchange, TopicPermissions(write, read))

    def grant_topics(self, user: str, vhost: str, exchange: str, permissions: TopicPermissions) -> bool:
        """Return whether that changed anything. Raises :class:`NotFoundError`."""
        granted = _GrantedTopics(permissions, permissions.for_user(user, vhost))
        return self._topic_permissions.put((self[user].name, vhost, exchange), granted)

    def clear_topic_permissions(self, user: str, vhost: str, exchange: str | None = None) -> None:
        """Remove a user's topic permissions for one exchange, or for all in the vhost."""
        name = self[user].name
        for key, _ in self._topic_permissions:
            if key[:2] == (name, vhost) and exchange in (None, key[2]):
                self._topic_permissions.drop(key)

    def forget_vhost(self, vhost: str) -> None:
        """Remove the permissions in a deleted vhost."""
        self._forget(lambda _, granted_vhost: granted_vhost == vhost)

    def _forget(self, is_gone: Callable[[str, str], bool]) -> None:
        for key, _ in self._permissions:
            if is_gone(*key):
                self._permissions.drop(key)
        for topic_key, _ in self._topic_permissions:
            if is_gone(*topic_key[:2]):
                self._topic_permissions.drop(topic_key)

    def permissions(self, user: str) -> dict[str, Permissions]:
        """A user's permissions, by vhost."""
        return {vhost: permissions for (name, vhost), permissions in self._permissions if name == user}

    def topic_permissions(self) -> dict[tuple[str, str, str], TopicPermissions]:
        """All topic permissions, by user, vhost and exchange."""
        return {key: granted.permissions for key, granted in self._topic_permissions}

    def may_use(self, user: str, vhost: str) -> bool:
        """Whether a user may open a connection to a vhost."""
        return (user, vhost) in self._permissions

    def check(self, user: str, vhost: str, kind: Kind, name: str, right: Right) -> None:
        """Raise :class:`AccessRefusedError` if the user may not do this to the queue or exchange of that name."""
        resource = DEFAULT_EXCHANGE_AS if kind == "exchange" and not name else name
        permissions = self._permissions.get((user, vhost))
        if permissions is None or not permissions.allow(right, resource):
            raise AccessRefusedError(f"access to {kind} '{resource}' in vhost '{vhost}' refused for user '{user}'")

    def check_topic(
        self, user: str, vhost: str, exchange: str, routing_key: str, right: Literal["write", "read"]
    ) -> None:
        """Raise :class:`AccessRefusedError` if the exchange has topic permissions for the user that do not match."""
        granted = self._topic_permissions.get((user, vhost, exchange))
        if granted is not None and not granted.patterns.match(0 if right == "write" else 1, routing_key):
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
        vhost_names = set(vhosts)
        for user, vhost, *_ in [*(key for key, _ in self._permissions), *(key for key, _ in self._topic_permissions)]:
            if user not in self._users or vhost not in vhost_names:
                raise RuntimeError(f"permissions of user '{user}' in vhost '{vhost}'")
