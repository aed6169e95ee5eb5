"""Transport: Kombu's transport interface, for connections to a node in this process."""

from __future__ import annotations

from typing import Any, Final

from amqp import exceptions as amqp
from kombu.transport import base

from warren.actors.node.node_errors import ClosedError, ForeignDirectoryError, VhostDownError
from warren.actors.runtime.pooled_actor import ActorStoppedError, WrongProcessError
from warren.client.errors import HostUnresponsiveError
from warren.hosting.data_directory import BrokerRunningError
from warren.kombu.channel import Channel
from warren.kombu.connection import Connection, address_of
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
"""Reasons why a directory cannot be opened. All are listed, as some callers compare the exact type."""


class Management(base.Management):
    """The interface of Kombu's managers."""

    def get_bindings(self) -> Any:
        """Return every binding of the vhost."""
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
        HostUnresponsiveError,
        *CANNOT_OPEN,
    )
    channel_errors: tuple[Any, ...] = (amqp.ChannelError,)
    recoverable_connection_errors = (
        amqp.RecoverableConnectionError,
        ClosedError,
        ActorStoppedError,
        HostUnresponsiveError,
    )
    recoverable_channel_errors = (amqp.RecoverableChannelError,)

    def driver_version(self) -> str:
        """Return warren's version."""
        from importlib.metadata import version

        return version("warrenmq")

    def establish_connection(self) -> Connection:
        """Open the node, or share the one that is open. Raises what :func:`warren.open` does.

        With several URLs, raise an error that makes Kombu try the next one. With one, tell the program at once: a
        directory that another process has, or that is damaged, is no better a second later.
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
        """Return whether the connection can be used."""
        return connection.is_usable

    def close_connection(self, connection: Connection) -> None:
        connection.client = None
        connection.close()

    def _collect(self, connection: Connection | None) -> None:
        """Drop a connection. In a forked child this has no effect."""
        if connection is not None:
            self.close_connection(connection)

    def register_with_event_loop(self, connection: Connection, loop: Any) -> None:
        connection.watch(loop)

    def unregister_from_event_loop(self, connection: Connection, loop: Any) -> None:
        connection.unwatch()

    def qos_semantics_matches_spec(self, connection: Connection) -> bool:
        """Return whether a prefetch count applies to the channel, as in the specification."""
        return True

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL: a warren URL has no password."""
        return uri

    @property
    def default_connection_params(self) -> dict[str, Any]:
        return {"hostname": "warren://"}
