"""The events of a connection: what the peer sent."""

from __future__ import annotations

import attrs
from pamqp.base import Frame as Method

from warren.amqp.errors import ProtocolError
from warren.amqp.framing import MethodRun


@attrs.frozen
class HeaderReceived:
    """A client's protocol header. The answer is ``connection.start``; if it is ``refused``, our own header was sent,
    and the socket is to be closed."""

    header: bytes
    refused: bool = False


@attrs.define
class MethodReceived:
    """A method without content."""

    channel: int
    method: Method


@attrs.define
class Messages:
    """Consecutive messages of one channel that differ in their bodies and delivery tags only."""

    channel: int
    method: Method
    """Their common method: publish, deliver, get-ok or return, with 0 for a delivery tag. It may belong to other
    events, too, and must not be changed."""
    tags: list[int]
    """The delivery tags; empty for publish and return."""
    properties: bytes
    """Flags and list, as in the content header and on the disk: :mod:`warren.queue_index.properties`."""
    bodies: list[bytes]


@attrs.frozen
class Heartbeat:
    """The peer sent a heartbeat."""


@attrs.frozen
class Violation:
    """The peer broke the protocol. ``connection.close`` was sent (if the connection was open); everything that
    comes from now on is ignored, and the socket is to be closed once the peer has answered, or after a while."""

    error: ProtocolError


Settlements = MethodRun
Event = HeaderReceived | MethodReceived | Messages | Settlements | Heartbeat | Violation
