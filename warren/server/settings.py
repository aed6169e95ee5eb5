"""ServerSettings: what a server can be told, under RabbitMQ's names (dots are underscores)."""

from __future__ import annotations

import os
from typing import Final

import attrs

from warren.amqp.connection import CHANNEL_MAX, FRAME_MAX, FRAME_MIN_SIZE
from warren.management.settings import ManagementSettings
from warren.storage.errors import SettingsError

DEFAULT_PORT: Final = 5672
DEFAULT_TLS_PORT: Final = 5671
DEFAULT_MAX_MESSAGE_SIZE: Final = 134_217_728
"""128 MiB, RabbitMQ 3.10's."""

DEFAULT_CONSUMER_TIMEOUT: Final = 1_800_000
"""Half an hour, RabbitMQ 3.10's."""


@attrs.frozen(kw_only=True)
class TlsSettings:
    """TLS by Python's :mod:`ssl`. Raises :class:`SettingsError` where a file is missing."""

    certfile: str
    """The server's certificate (PEM), with those of the authorities between it and the root behind it."""
    keyfile: str
    cacertfile: str | None = None
    """Whose certificates clients may show."""
    verify: bool = False
    """Whether clients have to show a certificate; what it says is who they are, with the mechanism EXTERNAL."""
    login_from: str = "distinguished_name"
    """What of the certificate is the user's name: ``distinguished_name`` or ``common_name``."""

    def __attrs_post_init__(self) -> None:
        for name in ("certfile", "keyfile", "cacertfile"):
            path = getattr(self, name)
            if path is not None and not os.path.exists(path):
                raise SettingsError(f"{name}: no file {path}")
        if self.verify and self.cacertfile is None:
            raise SettingsError("verify needs a cacertfile: whose certificates clients may show")
        if self.login_from not in ("distinguished_name", "common_name"):
            raise SettingsError(f"login_from is 'distinguished_name' or 'common_name', not {self.login_from!r}")


@attrs.frozen(kw_only=True)
class ServerSettings:
    """Where a server listens, and what it lets its clients do. Raises :class:`SettingsError`."""

    host: str = "127.0.0.1"
    """The address to listen on: the loopback one, unless something else is said."""
    port: int | None = DEFAULT_PORT
    """0: a free one; ``None``: listen for no plain connections."""
    tls_port: int | None = None
    """As ``port``, for connections by TLS."""
    tls: TlsSettings | None = None
    channel_max: int = CHANNEL_MAX
    """Channels a connection; 0: no limit."""
    frame_max: int = FRAME_MAX
    """Bytes; 0: no limit."""
    heartbeat: int = 60
    """Seconds; 0: none."""
    handshake_timeout: float = 10.0
    """Seconds in which a client has to come as far as ``connection.open``."""
    connection_max: int | None = None
    """Connections at a time; ``None``: no limit."""
    max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE
    """Bytes."""
    consumer_timeout: int | None = DEFAULT_CONSUMER_TIMEOUT
    """Milliseconds for which a delivery may be unacked; then its channel is closed, looked for once a minute. ``None``:
    for ever."""
    loopback_users: tuple[str, ...] = ("guest",)
    """Who may connect from this machine only."""
    directory: str | None = None
    """A data directory with a socket for processes of its user (:mod:`warren.server.directory_socket`); ``None``:
    none."""
    default_queue_type_for_quorum: str | None = None
    """``"classic"``: a queue that is declared with ``x-queue-type: quorum`` is a durable classic one; ``None``: it is
    refused."""
    management: ManagementSettings | None = None
    """With them, the management API and its page are served, too; ``None``: they are not."""

    def __attrs_post_init__(self) -> None:
        if self.frame_max and self.frame_max < FRAME_MIN_SIZE:
            raise SettingsError(f"frame_max is at least {FRAME_MIN_SIZE} bytes, or 0 for no limit")
        if self.tls_port is not None and self.tls is None:
            raise SettingsError("tls_port needs tls: a certificate and its key")
        for name in ("port", "tls_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port <= 65535:
                raise SettingsError(f"{name} is 0 … 65535, not {port}")
        if self.channel_max < 0 or self.heartbeat < 0 or self.max_message_size < 1:
            raise SettingsError("channel_max, heartbeat and max_message_size are not negative")
        if self.consumer_timeout is not None and self.consumer_timeout < 1:
            raise SettingsError("consumer_timeout is at least 1 ms, or None for no limit")
