"""The address of a broker: an AMQP URL. The password is never shown.

Heartbeats are off unless the URL asks for them: reading a large directory may delay our answers for longer than a
broker waits. TCP keepalive detects a vanished peer instead.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, urlsplit

import attrs
import pika

from warren.salvage.archives import over_ssh
from warren.shovel.errors import ShovelError

SCHEMES = ("amqp://", "amqps://")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
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

    parameters: Any
    """pika's."""
    vhost: bytes
    shown: str
    """The URL without the password."""

    @classmethod
    def of(cls, url: str) -> Address:
        """Parse a broker's URL. Raises :class:`ShovelError` if it is invalid."""
        try:
            parts = urlsplit(url)
            if "/" in parts.path[1:]:  # pika would take the vhost to end there
                raise ShovelError("not an amqp:// URL: a slash in a vhost's name is written %2F")
            parameters = pika.URLParameters(url)
            user = f"{quote(parameters.credentials.username, safe='')}@"
            vhost = parameters.virtual_host
            shown = f"{parts.scheme}://{user}{parameters.host}:{parameters.port}/{quote(vhost, safe='')}"
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            # Not pika's own message: it quotes the URL with the password.
            raise ShovelError(f"not an amqp:// URL that can be understood: {type(error).__name__}") from None
        parameters.client_properties = {"connection_name": "warren shovel"}
        if "heartbeat=" not in parts.query:
            parameters.heartbeat = 0
        if "tcp_options=" not in parts.query:
            parameters.tcp_options = _PROBES
        return cls(parameters, vhost.encode(), shown)

    @property
    def place(self) -> tuple[str, int, bytes]:
        """What tells one place from another, whatever the user."""
        return self.parameters.host, self.parameters.port, self.vhost

    def __str__(self) -> str:
        return self.shown
