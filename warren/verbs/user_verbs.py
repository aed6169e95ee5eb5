"""The verbs of a node about users and their permissions, limits and parameters.

Users, permissions and parameters have the form of RabbitMQ's definitions JSON. They are kept, crash-safe, with the
node's definitions. This process does not check them; a server that gives others access to the node does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import attrs

from warren.actors.engines.declared.definitions import Definitions
from warren.actors.engines.declared.parameters import LIMITS_COMPONENT, LIMITS_NAME
from warren.actors.engines.declared.permissions import Permissions, TopicPermissions
from warren.actors.engines.declared.vhost_metadata import VhostMetadata
from warren.actors.engines.errors import ArgumentsError
from warren.hosting.running_node import RunningNode
from warren.verbs.operation import Operation, Performer, local, operation
from warren.verbs.steps import Steps
from warren.verbs.vhost_host import LocalVhost, VhostHost

T = TypeVar("T")


class UserVerbs(Performer):
    """The verbs of a node's users."""

    def __init__(self, host: VhostHost) -> None:
        self.host = host

    def perform(self, operation: Operation[T]) -> Steps[T]:
        return self.host.perform(self, operation)

    @property
    def node(self) -> RunningNode:
        """The node in this process, which performs the operations."""
        return local(self.host, LocalVhost).node

    def _asked(self, work: Callable[[Definitions], T]) -> Steps[T]:
        return self.node.change(lambda registry: work(registry.definitions))

    def _define(self, work: Callable[[Definitions], T]) -> Steps[T]:
        return self.node.change(lambda registry: registry.define(work))

    # ── users ───────────────────────────────────────────────────────────────────────────────────────────────────

    @operation("users")
    def users(self) -> Steps[list[dict[str, Any]]]:
        """Return all users, by name: ``name``, ``tags``, ``limits``, ``password_hash`` and ``hashing_algorithm``."""
        return self._asked(lambda definitions: definitions.users.to_json()["users"])

    @operation("users")
    def add_user(self, name: str, password: str | bytes, tags: Iterable[str] = ()) -> Steps[None]:
        """Add a user without access to any vhost. Raises :class:`PreconditionFailedError` if the user exists.

        ``tags``: ``administrator``, ``monitoring``, ``policymaker``, ``management``, or others.
        """
        tag_names = tuple(tags)
        yield from self._define(lambda definitions: definitions.users.add(name, _as_bytes(password), tag_names))

    @operation("users")
    def delete_user(self, name: str) -> Steps[None]:
        """Delete a user with all permissions, and close its connections. Raises :class:`NotFoundError`, as the other
        methods for users do."""
        yield from self._define(lambda definitions: definitions.users.delete(name))

    @operation("users")
    def change_password(self, name: str, password: str | bytes | None) -> Steps[None]:
        """Change a password. ``None``: no password is valid from now on."""
        new = None if password is None else _as_bytes(password)
        yield from self._define(lambda definitions: definitions.users.change_password(name, new))

    @operation("users")
    def set_user_tags(self, name: str, tags: Iterable[str]) -> Steps[None]:
        """Replace the user's tags."""
        tag_names = tuple(tags)
        yield from self._define(lambda definitions: definitions.users.set_tags(name, tag_names))

    @operation("users")
    def authenticate(self, name: str, password: str | bytes) -> Steps[dict[str, Any]]:
        """Return the user's ``name`` and ``tags``. Raises :class:`AccessRefusedError` if the password is wrong.

        The error does not reveal whether the user exists. An empty password is never valid.
        """
        user = yield from self._asked(lambda definitions: definitions.users.authenticate(name, _as_bytes(password)))
        return {"name": user.name, "tags": list(user.tags)}

    @operation("users")
    def set_user_limits(self, name: str, limits: Mapping[str, int]) -> Steps[None]:
        """Set ``max-connections`` or ``max-channels``; a number below 0: no limit. Other limits stay."""
        new_limits = dict(limits)
        yield from self._define(
            lambda definitions: definitions.users.set_limits(name, {**definitions.users[name].limits, **new_limits})
        )

    def clear_user_limits(self, name: str, *limits: str) -> Steps[None]:
        """Remove the limits with these names; without names, all."""
        return self.remove_user_limits(name, limits)

    @operation("users")
    def remove_user_limits(self, name: str, limits: Iterable[str]) -> Steps[None]:
        """Do what :meth:`clear_user_limits` does."""

        def clear(definitions: Definitions) -> None:
            had = definitions.users[name].limits
            remaining = {limit: value for limit, value in had.items() if limits and limit not in limits}
            definitions.users.set_limits(name, remaining)

        yield from self._define(clear)

    # ── permissions ─────────────────────────────────────────────────────────────────────────────────────────────

    @operation("users")
    def permissions(self, user: str | None = None, vhost: str | None = None) -> Steps[list[dict[str, str]]]:
        """Return permissions: ``user``, ``vhost``, ``configure``, ``write``, ``read``; of a user, of a vhost."""
        return self._permissions("permissions", user, vhost)

    @operation("users")
    def set_permissions(self, user: str, configure: str, write: str, read: str, *, vhost: str = "/") -> Steps[None]:
        """Let a user use a vhost, and in it the names that the patterns match.

        Each is a regular expression that is searched for in names of queues and exchanges: ``configure`` to declare and
        delete, ``write`` to publish and bind, ``read`` to consume, get, purge and bind from. Raises
        :class:`ArgumentsError` for an invalid one.
        """
        granted = Permissions(configure, write, read)
        yield from self._define(lambda definitions: definitions.grant(user, vhost, granted))

    @operation("users")
    def clear_permissions(self, user: str, *, vhost: str = "/") -> Steps[None]:
        """Revoke a user's access to a vhost."""

        def clear(definitions: Definitions) -> None:
            definitions.users.clear_permissions(user, definitions.vhost(vhost).name)

        yield from self._define(clear)

    @operation("users")
    def topic_permissions(self, user: str | None = None, vhost: str | None = None) -> Steps[list[dict[str, str]]]:
        """Return the restrictions of routing keys: ``user``, ``vhost``, ``exchange``, ``write``, ``read``."""
        return self._permissions("topic_permissions", user, vhost)

    @operation("users")
    def set_topic_permissions(
        self, user: str, exchange: str, write: str, read: str, *, vhost: str = "/"
    ) -> Steps[None]:
        """Restrict the routing keys with which a user publishes to a topic exchange, and binds to it.

        The values are regular expressions; ``{username}`` and ``{vhost}`` stand for the names. Without restrictions for
        an exchange every key is allowed.
        """
        granted = TopicPermissions(write, read)
        yield from self._define(lambda definitions: definitions.grant_topics(user, vhost, exchange, granted))

    @operation("users")
    def clear_topic_permissions(self, user: str, exchange: str | None = None, *, vhost: str = "/") -> Steps[None]:
        """Remove the restrictions for one exchange, or for all of the vhost."""

        def clear(definitions: Definitions) -> None:
            definitions.users.clear_topic_permissions(user, definitions.vhost(vhost).name, exchange)

        yield from self._define(clear)

    def _permissions(self, part: str, user: str | None, vhost: str | None) -> Steps[list[dict[str, str]]]:
        def selected(definitions: Definitions) -> list[dict[str, str]]:
            if user is not None:
                definitions.users[user]
            if vhost is not None:
                definitions.vhost(vhost)
            items = definitions.users.to_json()[part]
            return [item for item in items if user in (None, item["user"]) and vhost in (None, item["vhost"])]

        return self._asked(selected)

    # ── vhosts ──────────────────────────────────────────────────────────────────────────────────────────────────

    @operation("users")
    def vhost_metadata(self, vhost: str = "/") -> Steps[dict[str, Any]]:
        """Return a vhost's ``description``, ``tags``, and ``default_queue_type`` if set."""
        return self._asked(lambda definitions: definitions.metadata(vhost).to_json())

    @operation("users")
    def set_vhost_metadata(
        self,
        vhost: str = "/",
        *,
        description: str | None = None,
        tags: Iterable[str] | None = None,
        default_queue_type: str | None = None,
    ) -> Steps[None]:
        """Set these values; ``None`` keeps the old one. They are kept for people and tools, without other effect."""
        new: dict[str, Any] = {
            "description": description,
            "tags": None if tags is None else tuple(tags),
            "default_queue_type": default_queue_type,
        }
        changes = {name: value for name, value in new.items() if value is not None}

        def describe(definitions: Definitions) -> None:
            old: VhostMetadata = definitions.metadata(vhost)
            definitions.describe_vhost(vhost, attrs.evolve(old, **changes))

        yield from self._define(describe)

    @operation("users")
    def vhost_limits(self, vhost: str = "/") -> Steps[dict[str, int]]:
        """Return a vhost's ``max-connections`` and ``max-queues``, if set."""
        return self._asked(lambda definitions: dict(definitions.parameters.vhost_limits(definitions.vhost(vhost).name)))

    @operation("users")
    def set_vhost_limits(self, limits: Mapping[str, int], *, vhost: str = "/") -> Steps[None]:
        """Replace the limits ``max-connections`` and ``max-queues``; a number below 0: no limit.

        A queue over the limit is refused with :class:`PreconditionFailedError`.
        """
        yield from self.set_parameter(LIMITS_COMPONENT, LIMITS_NAME, dict(limits), vhost=vhost)

    @operation("users")
    def clear_vhost_limits(self, *, vhost: str = "/") -> Steps[None]:
        """Remove all limits."""

        def clear(definitions: Definitions) -> None:
            if definitions.parameters.in_vhost(definitions.vhost(vhost).name, LIMITS_COMPONENT):
                definitions.parameters.clear(vhost, LIMITS_COMPONENT, LIMITS_NAME)

        yield from self._define(clear)

    # ── parameters ──────────────────────────────────────────────────────────────────────────────────────────────

    @operation("users")
    def parameters(self, vhost: str | None = None, component: str | None = None) -> Steps[list[dict[str, Any]]]:
        """Return runtime parameters: ``vhost``, ``component``, ``name``, ``value``. They include limits of vhosts."""
        return self._asked(lambda definitions: definitions.parameters.in_vhost(vhost, component))

    @operation("users")
    def set_parameter(self, component: str, name: str, value: Any, *, vhost: str = "/") -> Steps[None]:
        """Keep a runtime parameter; ``value`` is JSON. Those of ``shovel``, ``federation`` and so on have no effect.

        Raises :class:`AccessRefusedError` for policies, which are not parameters here.
        """
        yield from self._define(lambda definitions: definitions.set_parameter(vhost, component, name, value))

    @operation("users")
    def clear_parameter(self, component: str, name: str, *, vhost: str = "/") -> Steps[None]:
        """Raises :class:`NotFoundError`."""
        yield from self._define(lambda definitions: definitions.parameters.clear(vhost, component, name))

    @operation("users")
    def global_parameters(self) -> Steps[list[dict[str, Any]]]:
        """Return the node's global parameters: ``name``, ``value``. They have no effect."""
        return self._asked(lambda definitions: definitions.parameters.of_node())

    @operation("users")
    def set_global_parameter(self, name: str, value: Any) -> Steps[None]:
        """Keep a global parameter; ``value`` is JSON."""
        yield from self._define(lambda definitions: definitions.parameters.set_global(name, value))

    @operation("users")
    def clear_global_parameter(self, name: str) -> Steps[None]:
        """Raises :class:`NotFoundError`."""
        yield from self._define(lambda definitions: definitions.parameters.clear_global(name))


def _as_bytes(password: str | bytes) -> bytes:
    try:
        return password.encode("utf-8", "surrogateescape") if isinstance(password, str) else password
    except UnicodeEncodeError as error:
        raise ArgumentsError(f"a password cannot be that: {error.reason}") from None
