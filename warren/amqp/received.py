"""The events of a connection: what the peer sent, and messages that have not arrived completely."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
from pamqp.base import Frame as Method

from warren.amqp.errors import FRAME_ERROR, UNEXPECTED_FRAME, ProtocolError
from warren.amqp.framing import BASIC, DELIVER, PUBLISH, ContentRun, MethodRun, content_header


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
    """Consecutive messages of one channel, as columns."""

    channel: int
    methods: list[Method]
    """Publish, deliver, get-ok or return, with 0 for a delivery tag. The same object for equal methods; it may belong
    to other events, too, and must not be changed."""
    tags: list[int]
    """The delivery tags; empty for publish and return."""
    properties: list[bytes]
    """Flags and list, as in the content header and on the disk: :mod:`warren.queue_index.properties`."""
    bodies: list[bytes]

    @property
    def method(self) -> Method:
        """The first message's method."""
        return self.methods[0]

    def alike(self) -> Iterator[Messages]:
        """Yield stretches of messages that differ in bodies and delivery tags only."""
        methods, properties, count, low = self.methods, self.properties, len(self.bodies), 0
        while low < count:
            method, encoded, high = methods[low], properties[low], low + 1
            while high < count and methods[high] is method and properties[high] == encoded:
                high += 1
            if high - low == count:
                yield self
                return
            each = self.channel, methods[low:high], self.tags[low:high], properties[low:high], self.bodies[low:high]
            yield Messages(*each)
            low = high


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


_JOINING: Final = frozenset((PUBLISH, DELIVER))
MOST_TOGETHER: Final = 256
"""At most this many messages that differ in more than their bodies are one event: others have their turn in between."""


def _may_join(last: Messages, method: Method, run: ContentRun) -> bool:
    if last.method is method and last.properties[0] == run.properties[0]:
        return True
    return run.index in _JOINING and last.method.index == run.index and len(last.bodies) < MOST_TOGETHER


def add_messages(events: list[Event], method: Method, run: ContentRun) -> None:
    """Append messages with the same method to the previous event, if they belong together."""
    count = len(run.bodies)
    last = events[-1] if events else None
    if isinstance(last, Messages) and last.channel == run.channel and _may_join(last, method, run):
        last.methods += [method] * count
        last.tags += run.tags
        last.properties += run.properties
        last.bodies += run.bodies
    else:
        events.append(Messages(run.channel, [method] * count, run.tags, run.properties, run.bodies))


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
