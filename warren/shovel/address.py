"""The address of a broker: an AMQP URL, with parameters of RabbitMQ's names. The password is never shown.

Heartbeats are off unless the URL asks for them: reading a large directory may delay our answers for longer than a
broker waits. TCP keepalive detects a vanished peer instead.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import attrs

from warren.client.handshake import Login
from warren.salvage.archives import over_ssh
from warren.shovel.errors import ShovelError

SCHEMES = ("amqp://", "amqps://")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

CONNECT_S: Final = 10.0
"""How long a host may take to accept a connection, and for each step of a TLS handshake."""
_PARAMETERS: Final = ("heartbeat", "cacertfile", "certfile", "keyfile", "server_name_indication")
_PROBES: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
"""Seconds of silence before the system probes a connection, between two probes, and how many may go unanswered."""


def is_broker(place: str) -> bool:
    """Whether a place that the user named is a broker, not a directory; raises :class:`ShovelError` for other URLs."""
    scheme = _SCHEME.match(place)
    if place.startswith(over_ssh.SCHEME):
        return False
    if scheme is not None and scheme[0].lower() not in SCHEMES:  # what follows may be a password
        raise ShovelError(
            f"{scheme[0]}…: neither a directory nor a broker, whose URL begins with {' or '.join(SCHEMES)}"
        )
    return scheme is not None


@attrs.frozen
class Address:
    """A broker's vhost, and the user to log in as."""

    host: str
    port: int
    login: Login = attrs.field(repr=False)
    has_tls: bool
    parameters: Mapping[str, str]
    """The URL's parameters."""
    heartbeat_s: int
    """0: no heartbeats."""
    shown: str
    """The URL without the password."""

    @classmethod
    def of(cls, url: str) -> Address:
        """Parse a broker's URL. Raises :class:`ShovelError` if it is invalid."""
        try:
            parts = urlsplit(url)
            if "/" in parts.path[1:]:
                raise ShovelError("not an amqp:// URL: a slash in a vhost's name is written %2F")
            pairs = parse_qsl(parts.query, strict_parsing=bool(parts.query))
            parameters = dict(pairs)
            if len(parameters) < len(pairs) or not parameters.keys() <= set(_PARAMETERS):
                raise ShovelError(f"not an amqp:// URL: its parameters may be {', '.join(_PARAMETERS)}, each once")
            has_tls = parts.scheme == "amqps"
            host, port = parts.hostname or "localhost", parts.port or (5671 if has_tls else 5672)
            user, password, vhost = "guest", "guest", unquote(parts.path[1:]) or "/"
            if parts.username is not None:
                user, password = unquote(parts.username), unquote(parts.password or "")
            heartbeat_s = int(parameters.get("heartbeat", 0))
        except ValueError as error:  # its text may quote the password
            raise ShovelError(f"not an amqp:// URL that can be understood: {type(error).__name__}") from None
        login = Login(vhost, user, password, {"connection_name": "warren shovel"})
        shown = f"{parts.scheme}://{quote(user, safe='')}@{host}:{port}/{quote(vhost, safe='')}"
        return cls(host, port, login, has_tls, parameters, heartbeat_s, shown)

    @property
    def vhost(self) -> bytes:
        return self.login.vhost.encode()

    @property
    def place(self) -> tuple[str, int, bytes]:
        """What tells one place from another, whatever the user."""
        return self.host, self.port, self.vhost

    def connect(self) -> socket.socket:
        """Return a non-blocking connection, with TLS if the URL asks for it. Raises ``OSError`` or ``ValueError``."""
        connection = socket.create_connection((self.host, self.port), CONNECT_S)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _PROBES.items():
                if hasattr(socket, name):  # not every system has them
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            if self.has_tls:
                server_name = self.parameters.get("server_name_indication", self.host)
                connection = self._tls_context().wrap_socket(connection, server_hostname=server_name)
            connection.setblocking(False)
        except (OSError, ValueError):
            connection.close()
            raise
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.parameters.get("cacertfile"))
        if "certfile" in self.parameters:
            context.load_cert_chain(self.parameters["certfile"], self.parameters.get("keyfile"))
        return context

    def __str__(self) -> str:
        return self.shown
