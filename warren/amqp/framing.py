"""Frames: from a stream of bytes to frames, contents and runs of them.

A frame is ``kind u8 · channel u16 · size u32 · payload · 0xCE``, big-endian. A message is a method frame, a header
frame and, unless it is empty, one or more body frames. AMQP 0-9-1 specification, section 2.3.5.

Most traffic repeats itself: a publisher sends messages to one routing key with the same properties, a consumer acks one
delivery after the other. Where consecutive messages differ in nothing but their delivery tags and their bodies, which
have one length, :class:`FrameReader` compares the bytes as rows of a matrix to find how many there are, and gives them
as one :class:`ContentRun`; and consecutive acks as one :class:`MethodRun`. A single message is a run of one. A message
that was cut by the end of the data, or that stands in several body frames, comes frame by frame.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from warren.amqp.errors import LostFramingError

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8

FRAME_END: Final = 0xCE
OVERHEAD: Final = 8
"""Bytes of a frame around its payload."""

BASIC: Final = 60
PUBLISH: Final = BASIC << 16 | 40
RETURN: Final = BASIC << 16 | 50
DELIVER: Final = BASIC << 16 | 60
GET_OK: Final = BASIC << 16 | 71
ACK: Final = BASIC << 16 | 80
REJECT: Final = BASIC << 16 | 90
NACK: Final = BASIC << 16 | 120
CONTENT_METHODS: Final = frozenset((PUBLISH, RETURN, DELIVER, GET_OK))
SETTLEMENTS: Final = frozenset((ACK, REJECT, NACK))
"""Methods that are a delivery tag and an octet of flags."""

_START: Final = struct.Struct(">BHI")
_INDEX: Final = struct.Struct(">I")
_CONTENT: Final = struct.Struct(">HHQ")
_TAG_BYTES: Final = 8
_SETTLEMENT_BYTES: Final = _INDEX.size + _TAG_BYTES + 1
_FEW: Final = 32
"""Fewer rows than these are compared one by one."""
END: Final = bytes((FRAME_END,))


@attrs.frozen
class Frame:
    """One frame as it came."""

    kind: int
    channel: int
    payload: bytes


@attrs.frozen
class MethodRun:
    """Consecutive acks, nacks or rejects of one channel with the same flags."""

    channel: int
    index: int
    """Class id and method id, 16 bits each."""
    flags: int
    tags: list[int]


@attrs.frozen
class ContentRun:
    """Consecutive messages of one channel that differ in their bodies and delivery tags only."""

    channel: int
    index: int
    method: bytes
    """The first one's method: everything behind the index."""
    tags: list[int]
    """Their delivery tags; empty where the method has none (publish, return)."""
    properties: bytes
    """The content header's property flags and list."""
    bodies: list[bytes]


Item = Frame | MethodRun | ContentRun


class FrameReader:
    """Cuts what it is fed into frames and runs."""

    def __init__(self, frame_max: int) -> None:
        self.frame_max = frame_max
        """Bytes that the peer's frames may have, overhead included; 0: no limit."""
        self.finds_runs = False
        """Else every frame comes as it is: a connection that does not run has to look at each."""
        self._data = b""
        self._at = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait for the rest of their frame."""
        return len(self._data) - self._at

    def feed(self, data: bytes) -> None:
        """Hand over what came from the peer."""
        self._data = self._data[self._at :] + data if self._at < len(self._data) else data
        self._at = 0

    def take(self, count: int) -> bytes | None:
        """The next ``count`` bytes as they are; ``None`` where there are fewer."""
        if self.pending_bytes < count:
            return None
        self._at += count
        return self._data[self._at - count : self._at]

    def next(self) -> Item | None:
        """The next frame or run; ``None`` where there is no whole one. Raises :class:`LostFramingError`."""
        found = self._frame(self._at)
        if found is None:
            return None
        kind, channel, start, stop = found
        if self.finds_runs and channel and kind == METHOD and stop - start >= _INDEX.size:
            (index,) = _INDEX.unpack_from(self._data, start)
            if index in SETTLEMENTS and stop - start == _SETTLEMENT_BYTES:
                return self._settlements(channel, index, start)
            if index in CONTENT_METHODS and (run := self._contents(channel, index, start, stop)) is not None:
                return run
        self._at = stop + 1
        return Frame(kind, channel, self._data[start:stop])

    def _frame(self, at: int) -> tuple[int, int, int, int] | None:
        """Kind, channel, and where the payload begins and ends, of the frame at this offset."""
        data = self._data
        if len(data) - at < _START.size:
            return None
        kind, channel, size = _START.unpack_from(data, at)
        if self.frame_max and size > self.frame_max:  # RabbitMQ forgives 8 bytes: clients count the overhead otherwise
            raise LostFramingError(kind, b"", f"{{frame_too_large,{size},{self.frame_max - OVERHEAD}}}")
        start = at + _START.size
        stop = start + size
        if stop >= len(data):
            return None
        if data[stop] != FRAME_END:
            raise LostFramingError(kind, data[start:stop], f"{{invalid_frame_end_marker,{data[stop]}}}")
        return kind, channel, start, stop

    # ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _settlements(self, channel: int, index: int, start: int) -> MethodRun:
        tag_at = start - self._at + _INDEX.size
        length = tag_at + _TAG_BYTES + 2
        flags = self._data[start + _SETTLEMENT_BYTES - 1]
        rows = self._rows(length, length, tag_at)
        tags = self._tags(rows, length, tag_at)
        self._at += rows * length
        return MethodRun(channel, index, flags, tags)

    def _contents(self, channel: int, index: int, start: int, stop: int) -> ContentRun | None:
        """The message that begins here and those like it; ``None`` where it is not whole, or in several body frames."""
        header_start, header_stop = self._payload(stop + 1, HEADER, channel)
        if header_stop - header_start < _CONTENT.size:
            return None
        class_id, weight, body_bytes = _CONTENT.unpack_from(self._data, header_start)
        if class_id != BASIC or weight:
            return None
        end = body_start = header_stop + 1
        if body_bytes:
            body_start, body_stop = self._payload(header_stop + 1, BODY, channel)
            if body_stop - body_start != body_bytes:
                return None
            end = body_stop + 1
        at, length = self._at, end - self._at
        tag_at = self._tag_at(index, start, stop)
        rows = self._rows(length, body_start - at, tag_at)
        run = ContentRun(
            channel,
            index,
            self._data[start + _INDEX.size : stop],
            [] if tag_at is None else self._tags(rows, length, tag_at),
            self._data[header_start + _CONTENT.size : header_stop],
            [self._data[first : first + body_bytes] for first in range(body_start, body_start + rows * length, length)],
        )
        self._at += rows * length
        return run

    def _payload(self, at: int, kind: int, channel: int) -> tuple[int, int]:
        """Where the payload of the frame at this offset begins and ends; nothing where it is not one of these, or not
        whole, or no frame, which is found out when its turn comes."""
        try:
            found = self._frame(at)
        except LostFramingError:
            return 0, 0
        return found[2:] if found is not None and found[:2] == (kind, channel) else (0, 0)

    def _tag_at(self, index: int, start: int, stop: int) -> int | None:
        """Where in a row the delivery tag stands; ``None`` where there is none."""
        if index == GET_OK:
            at = start + _INDEX.size
        elif index == DELIVER and start + _INDEX.size < stop:
            at = start + _INDEX.size + 1 + self._data[start + _INDEX.size]
        else:
            return None
        return at - self._at if at + _TAG_BYTES <= stop else None

    def _rows(self, length: int, prefix: int, tag_at: int | None) -> int:
        """How many rows of ``length`` bytes begin here with the same ``prefix`` bytes, but for the tag, and end with a
        frame's end."""
        data, at = self._data, self._at
        most = (len(data) - at) // length
        cut = (prefix, prefix) if tag_at is None else (tag_at, tag_at + _TAG_BYTES)
        left, right = data[at : at + cut[0]], data[at + cut[1] : at + prefix]
        rows = 1
        while rows < min(most, _FEW):
            row = at + rows * length
            if not (
                data.startswith(left, row)
                and data.startswith(right, row + cut[1])
                and data[row + length - 1] == FRAME_END
            ):
                return rows
            rows += 1
        if rows == most:
            return rows
        matrix = np.frombuffer(data, np.uint8, most * length, at).reshape(most, length)
        same = matrix[:, -1] == FRAME_END
        for columns in (slice(0, cut[0]), slice(cut[1], prefix)):
            same &= (matrix[:, columns] == matrix[0, columns]).all(axis=1)
        return most if same.all() else int(np.argmin(same))

    def _tags(self, rows: int, length: int, tag_at: int) -> list[int]:
        if rows == 1:
            return [int.from_bytes(self._data[self._at + tag_at : self._at + tag_at + _TAG_BYTES], "big")]
        matrix = np.frombuffer(self._data, np.uint8, rows * length, self._at).reshape(rows, length)
        tags: npt.NDArray[np.uint64] = np.ascontiguousarray(matrix[:, tag_at : tag_at + _TAG_BYTES]).view(">u8")
        found: list[int] = tags.ravel().tolist()
        return found


def content_header(payload: bytes) -> tuple[int, int, int, bytes]:
    """Class id, weight, size of the body (bytes) and properties (flags and list) of a header frame of at least 12
    bytes."""
    return *_CONTENT.unpack_from(payload), payload[_CONTENT.size :]


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One frame's bytes."""
    return b"".join((_START.pack(kind, channel, len(payload)), payload, END))


def contents(
    channel: int,
    index: int,
    method: tuple[bytes, bytes],
    properties: bytes,
    bodies: Iterable[bytes],
    *,
    tags: Iterable[int] | None = None,
    frame_max: int,
) -> bytes:
    """The frames of messages that differ in bodies and delivery tags only.

    ``method``: its bytes behind the index, before and behind the delivery tag; without ``tags`` they are one.
    """
    before, behind = method
    method_bytes = _INDEX.size + len(before) + len(behind) + (0 if tags is None else _TAG_BYTES)
    opening = _START.pack(METHOD, channel, method_bytes) + _INDEX.pack(index) + before
    middle = behind + END + _START.pack(HEADER, channel, _CONTENT.size + len(properties))
    parts: list[bytes] = []
    next_tag = None if tags is None else iter(tags)
    size, head = -1, b""
    for body in bodies:
        if len(body) != size:
            size = len(body)
            head = middle + _CONTENT.pack(BASIC, 0, size) + properties + END
            if size and (not frame_max or size <= frame_max - OVERHEAD):
                head += _START.pack(BODY, channel, size)
        parts.append(opening)
        if next_tag is not None:
            parts.append(next(next_tag).to_bytes(_TAG_BYTES, "big"))
        parts.append(head)
        if frame_max and size > frame_max - OVERHEAD:
            step = frame_max - OVERHEAD
            parts += (frame(BODY, channel, body[at : at + step]) for at in range(0, size, step))
        elif size:
            parts += (body, END)
    return b"".join(parts)


def settlements(channel: int, index: int, tags: Iterable[int], flags: int) -> bytes:
    """The frames of acks, nacks or rejects."""
    opening = _START.pack(METHOD, channel, _SETTLEMENT_BYTES) + _INDEX.pack(index)
    ending = bytes((flags, FRAME_END))
    return b"".join([opening + tag.to_bytes(_TAG_BYTES, "big") + ending for tag in tags])
