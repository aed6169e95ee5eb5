"""The events of a connection: what the peer sent, and messages that have not arrived completely."""

from __future__ import annotations

from typing import Final

import attrs
from pamqp.base import Frame as Method

from warren.amqp.errors import FRAME_ERROR, UNEXPECTED_FRAME, ProtocolError
from warren.amqp.framing import BASIC, MethodRun, content_header


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


def add_messages(events: list[Event], messages: Messages) -> None:
    """Append messages to the previous event if only bodies and delivery tags differ."""
    last = events[-1] if events else None
    if (
        isinstance(last, Messages)
        and last.method is messages.method
        and last.channel == messages.channel
        and last.properties == messages.properties
    ):
        last.tags.extend(messages.tags)
        last.bodies.extend(messages.bodies)
    else:
        events.append(messages)


_LOOSE: Final = 1024
"""At most this many pieces of a body are kept apart."""


@attrs.define
class Content:
    """A message that has not arrived completely."""

    method: Method
    tags: list[int]
    """The delivery tag, if it has one."""
    has_header: bool = False
    properties: bytes = b""
    left: int = 0
    """Bytes of the body that are still missing."""
    fragments: list[bytes] = attrs.Factory(list)
    size: int = 0
    """Total bytes of the fragments."""
    _loose: int = 0

    def add(self, payload: bytes) -> None:
        """Add a piece of the body. Many small pieces are joined: each would take many times its bytes."""
        self.fragments.append(payload)
        self.size += len(payload)
        self._loose += 1
        if self._loose == _LOOSE:
            self.fragments[-_LOOSE:] = [b"".join(self.fragments[-_LOOSE:])]
            self._loose = 0

    def begin(self, payload: bytes, max_message_size: int) -> None:
        """Read the content header."""
        class_id, weight, size, properties = content_header(payload)
        if weight:
            raise self.unexpected()
        if class_id != BASIC:
            raise ProtocolError(
                UNEXPECTED_FRAME,
                f"expected content header for class {BASIC}, got one for class {class_id} instead",
                self.method.index,
            )
        check_size(size, max_message_size, self.method.index)
        self.has_header, self.properties, self.left = True, properties, size

    def unexpected(self) -> ProtocolError:
        """The error for a frame that does not continue it."""
        expected = (
            f"expected content header for class {BASIC}, got non content header frame instead"
            if not self.has_header
            else "expected content body, got non content body frame instead"
        )
        return ProtocolError(UNEXPECTED_FRAME, expected, self.method.index)


def check_size(size: int, max_message_size: int, method_index: int) -> None:
    """Raise if a body of ``size`` bytes is too large."""
    if size > max_message_size:
        raise ProtocolError(
            FRAME_ERROR,
            f"content body size {size} exceeds maximum allowed size {max_message_size}",
            method_index,
        )
