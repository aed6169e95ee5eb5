"""Peer: the other end of a socket; and the options of sockets that an event loop has."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable
from typing import Any, Final

import attrs

_SHORT: Final = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "domainComponent": "DC",
    "userId": "UID",
}
_DATA_SEGMENTS: Final = struct.Struct("=II")
_TCP_INFO_BYTES: Final = 160
"""Linux's ``struct tcp_info`` up to ``tcpi_data_segs_in`` and ``tcpi_data_segs_out``."""


@attrs.frozen(kw_only=True)
class Peer:
    """Both ends of a connection."""

    host: str
    port: int
    peer_host: str
    peer_port: int
    ssl: bool = False
    certificate_name: str | None = None
    """The name in its certificate."""
    is_owner: bool = False
    """Whether it is a process of the directory's user: it may do everything, and needs no password."""

    @property
    def name(self) -> str:
        """As RabbitMQ names connections."""
        return f"{_shown(self.peer_host)}:{self.peer_port} -> {_shown(self.host)}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether it is on this machine."""
        return is_loopback(self.peer_host)

    @classmethod
    def of(cls, transport: asyncio.Transport, login_from: str = "distinguished_name") -> Peer:
        """Return the peer of a TCP socket, with or without TLS."""
        local_address = transport.get_extra_info("sockname") or ("", 0)
        peer_address = transport.get_extra_info("peername") or ("", 0)
        certificate = transport.get_extra_info("peercert")
        return cls(
            host=local_address[0],
            port=local_address[1],
            peer_host=peer_address[0],
            peer_port=peer_address[1],
            ssl=transport.get_extra_info("ssl_object") is not None,
            certificate_name=_name_in(certificate["subject"], login_from) if certificate else None,
        )


def is_loopback(host: str) -> bool:
    """Whether an address is one that only this machine reaches."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _name_in(subject: Iterable[Iterable[tuple[str, Any]]], login_from: str) -> str | None:
    parts = [pair for relative in subject for pair in relative]
    if login_from == "common_name":
        return next((str(value) for name, value in parts if name == "commonName"), None)
    return ",".join(f"{_SHORT.get(name, name)}={value}" for name, value in reversed(parts))


def set_option(number: int, level: int, option: int, value: int) -> None:
    """Set an option of the socket with that file descriptor. Raises ``OSError``."""
    with socket.socket(fileno=os.dup(number)) as duplicate:
        duplicate.setsockopt(level, option, value)


def packet_counts(transport: asyncio.Transport | None) -> tuple[int, int]:
    """Return how many TCP segments with data a socket has received and sent; 0 where the system does not count them."""
    tcp_info = getattr(socket, "TCP_INFO", None)
    connected = None if transport is None else transport.get_extra_info("socket")
    if tcp_info is None or connected is None or connected.family == socket.AF_UNIX:
        return 0, 0
    try:
        answer = connected.getsockopt(socket.IPPROTO_TCP, tcp_info, _TCP_INFO_BYTES)
        return _DATA_SEGMENTS.unpack_from(answer, _TCP_INFO_BYTES - _DATA_SEGMENTS.size)
    except (OSError, ValueError, struct.error):  # it is closed, or the kernel is older than 4.6
        return 0, 0
