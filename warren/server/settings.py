"""ServerSettings: the settings of a server, under RabbitMQ's names (with underscores for dots)."""

from __future__ import annotations

import os
import re
from typing import Final

import attrs

from warren.amqp.connection import CHANNEL_MAX, FRAME_MAX, FRAME_MIN_SIZE
from warren.management.settings import ManagementSettings
from warren.storage.call_arguments import checked_class
from warren.storage.errors import SettingsError, StorageError

DEFAULT_PORT: Final = 5672
DEFAULT_TLS_PORT: Final = 5671
MAX_PORT: Final = 65_535
DEFAULT_MAX_MESSAGE_SIZE: Final = 134_217_728
"""128 MiB, RabbitMQ 3.10's."""

DEFAULT_CONSUMER_TIMEOUT: Final = 1_800_000
"""Half an hour, RabbitMQ 3.10's."""


class ListenError(StorageError):
    """A server cannot listen at its address."""


@checked_class
@attrs.frozen(kw_only=True)
class TlsSettings:
    """TLS by Python's :mod:`ssl`. Raises :class:`SettingsError` if a file is missing."""

    certfile: str
    """The server's certificate (PEM), followed by those of intermediate authorities."""
    keyfile: str
    cacertfile: str | None = None
    """The authorities whose certificates clients may show."""
    verify: bool = False
    """Whether clients have to show a certificate; it names the user, with the mechanism EXTERNAL."""
    login_from: str = "distinguished_name"
    """The part of the certificate that is the user's name: ``distinguished_name`` or ``common_name``."""

    def __attrs_post_init__(self) -> None:
        for name in ("certfile", "keyfile", "cacertfile"):
            path = getattr(self, name)
            if path is not None and not os.path.exists(path):
                raise SettingsError(f"{name}: no file {path}")
        if self.verify and self.cacertfile is None:
            raise SettingsError("verify needs a cacertfile: whose certificates clients may show")
        if self.login_from not in ("distinguished_name", "common_name"):
            raise SettingsError(f"login_from is 'distinguished_name' or 'common_name', not {self.login_from!r}")


@checked_class
@attrs.frozen(kw_only=True)
class ServerSettings:
    """Where a server listens, and what its clients may do. Raises :class:`SettingsError`."""

    host: str = "127.0.0.1"
    """The address to listen on; by default the loopback one."""
    port: int | None = DEFAULT_PORT
    """0: a free one; ``None``: listen for no plain connections."""
    tls_port: int | None = None
    """As ``port``, for connections by TLS."""
    tls: TlsSettings | None = None
    listeners_tcp: tuple[str, ...] = ()
    """``"host:port"`` of each address for plain connections, in place of ``host`` and ``port``; a port alone
    belongs to ``host``."""
    listeners_ssl: tuple[str, ...] = ()
    """The same for connections by TLS, in place of ``tls_port``."""
    tcp_listen_options_backlog: int = 1024
    """Connections that wait to be accepted."""
    tcp_listen_options_nodelay: bool = True
    """Whether small packets go out at once (``TCP_NODELAY``)."""
    tcp_listen_options_sndbuf: int | None = None
    """Bytes of a socket's send buffer; ``None``: the system's default."""
    tcp_listen_options_recbuf: int | None = None
    """Bytes of its receive buffer."""
    channel_max: int = CHANNEL_MAX
    """Channels per connection; 0: no limit."""
    frame_max: int = FRAME_MAX
    """Bytes; 0: no limit."""
    heartbeat: int = 60
    """Seconds; 0: none."""
    handshake_timeout: float = 10.0
    """Seconds in which a client has to reach ``connection.open``."""
    connection_max: int | None = None
    """Connections at a time; ``None``: no limit."""
    max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE
    """Bytes."""
    consumer_timeout: int | None = DEFAULT_CONSUMER_TIMEOUT
    """Milliseconds for which a delivery may be unacked; then its channel is closed. Checked once a minute. ``None``:
    for ever."""
    announced_version: str = "3.10.8"
    """RabbitMQ's version that is announced to clients, as some adapt to it; the answers stay those of 3.10.8."""
    loopback_users: tuple[str, ...] = ("guest",)
    """Users that may connect from this machine only."""
    directory: str | None = None
    """A data directory with a socket for processes of its user (:mod:`warren.server.directory_socket`); ``None``:
    none."""
    management: ManagementSettings | None = None
    """If set, the management API and its page are served, too."""

    def __attrs_post_init__(self) -> None:
        if self.frame_max and self.frame_max < FRAME_MIN_SIZE:
            raise SettingsError(f"frame_max is at least {FRAME_MIN_SIZE} bytes, or 0 for no limit")
        if (self.tls_port is not None or self.listeners_ssl) and self.tls is None:
            raise SettingsError("tls_port and listeners_ssl need tls: a certificate and its key")
        for name in ("backlog", "sndbuf", "recbuf"):
            number = getattr(self, f"tcp_listen_options_{name}")
            if number is not None and number < 1:
                raise SettingsError(f"tcp_listen_options_{name} is at least 1, not {number}")
        for name in ("port", "tls_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port <= MAX_PORT:
                raise SettingsError(f"{name} is 0 … {MAX_PORT}, not {port}")
        if self.channel_max < 0 or self.heartbeat < 0 or self.max_message_size < 1:
            raise SettingsError("channel_max, heartbeat and max_message_size are not negative")
        if re.fullmatch(r"\d+\.\d+\.\d+", self.announced_version, re.ASCII) is None:
            raise SettingsError(f"announced_version is a version such as 4.1.0, not {self.announced_version!r:.100}")
        if self.consumer_timeout is not None and self.consumer_timeout < 1:
            raise SettingsError("consumer_timeout is at least 1 ms, or None for no limit")
        _ = self.plain_addresses, self.tls_addresses  # which raise what is wrong with them

    @property
    def announces_stream_filters(self) -> bool:
        """Whether a RabbitMQ of the announced version filters streams: from 3.13 on."""
        return tuple(map(int, self.announced_version.split("."))) >= (3, 13)

    @property
    def plain_addresses(self) -> list[tuple[str, int]]:
        """Where to listen for plain connections."""
        return self._addresses("listeners_tcp", self.port)

    @property
    def tls_addresses(self) -> list[tuple[str, int]]:
        """Where to listen for connections by TLS."""
        return self._addresses("listeners_ssl", self.tls_port)

    def _addresses(self, name: str, port: int | None) -> list[tuple[str, int]]:
        listeners: tuple[str, ...] = getattr(self, name)
        if not listeners:
            return [] if port is None else [(self.host, port)]
        addresses = []
        for listener in listeners:
            host, _, number = str(listener).rpartition(":")
            if not number.isascii() or not number.isdigit() or int(number) > MAX_PORT:
                raise SettingsError(f"{name} are of the form host:port, not {listener!r}")
            addresses.append((host.removeprefix("[").removesuffix("]") or self.host, int(number)))
        return addresses
