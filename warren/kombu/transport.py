"""Transport: what Kombu asks of one, for connections to a node in this process."""

from __future__ import annotations

from typing import Any, Final

from amqp import exceptions as amqp
from kombu.transport import base

from warren.actors.node.node_errors import ForeignDirectoryError, VhostDownError
from warren.actors.runtime.pool import ActorStoppedError, WrongProcessError
from warren.hosting.running_broker import BrokerRunningError
from warren.hosting.running_node import ClosedError
from warren.kombu.address import address_of
from warren.kombu.channel import Channel
from warren.kombu.connection import Connection
from warren.storage.errors import DataError, DirectoryLockedError, DiskFullError, StorageError

CANNOT_OPEN: Final = (
    StorageError,
    DiskFullError,
    DirectoryLockedError,
    BrokerRunningError,
    ForeignDirectoryError,
    DataError,
    VhostDownError,
)
"""Why a directory cannot be opened. Each by itself, for some look for the type and not for what it is derived from."""


class Management(base.Management):
    """What Kombu's managers can ask."""

    def get_bindings(self) -> Any:
        """Every binding of the vhost."""
        with self.transport.client.channel() as channel:
            return channel.get_bindings()


class Transport(base.Transport):
    """Kombu's transport ``warren``."""

    Management = Management

    can_parse_url = True
    driver_type = "warren"
    driver_name = "warren"

    implements = base.Transport.implements.extend(asynchronous=True, heartbeats=False)

    connection_errors: tuple[Any, ...] = (
        amqp.ConnectionError,
        ClosedError,
        WrongProcessError,
        ActorStoppedError,
        *CANNOT_OPEN,
    )
    channel_errors: tuple[Any, ...] = (amqp.ChannelError,)
    recoverable_connection_errors = (amqp.RecoverableConnectionError, ClosedError, ActorStoppedError)
    recoverable_channel_errors = (amqp.RecoverableChannelError,)

    def driver_version(self) -> str:
        """warren's."""
        from importlib.metadata import version  # noqa: PLC0415 - asked for once, by Celery's banner

        return version("warrenmq")

    def establish_connection(self) -> Connection:
        """Open the node, or share the one that is open. Raises what :func:`warren.open` does.

        Where Kombu has several URLs, an error that makes it try the next one: a directory that is somebody else's, or
        damaged, is no better a second later, so without another one the program is told at once.
        """
        client: Any = self.client
        options = client.transport_options or {}
        try:
            return Connection(client, address_of(client.hostname, client.virtual_host, options))
        except CANNOT_OPEN as error:
            if len(client.alt or ()) > 1:
                raise amqp.RecoverableConnectionError(str(error)) from error
            raise

    def create_channel(self, connection: Connection) -> Channel:
        return Channel(connection)

    def drain_events(self, connection: Connection, timeout: float | None = None, **_: Any) -> None:
        connection.drain_events(timeout)

    def verify_connection(self, connection: Connection) -> bool:
        """Whether it can be used."""
        return connection.is_usable

    def close_connection(self, connection: Connection) -> None:
        connection.client = None
        connection.close()

    def _collect(self, connection: Connection | None) -> None:
        """Kombu drops the connection, maybe in a forked child, where this touches nothing."""
        if connection is not None:
            self.close_connection(connection)

    def register_with_event_loop(self, connection: Connection, loop: Any) -> None:
        connection.watch(loop)

    def unregister_from_event_loop(self, connection: Connection, loop: Any) -> None:
        connection.unwatch()

    def qos_semantics_matches_spec(self, connection: Connection) -> bool:
        """A prefetch count is the channel's, as the specification has it."""
        return True

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """A warren URL has no password."""
        return uri

    @property
    def default_connection_params(self) -> dict[str, Any]:
        return {"hostname": "warren://"}
