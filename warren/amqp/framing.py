"""Frames: parsing a stream of bytes into frames, contents and runs of them.

A frame is ``kind u8 · channel u16 · size u32 · payload · 0xCE``, big-endian. A message is a method frame, a header
frame and, unless it is empty, one or more body frames. AMQP 0-9-1 specification, section 2.3.5.

Most traffic repeats itself: a publisher sends messages to one routing key, a consumer acks delivery after delivery.
:class:`FrameReader` returns consecutive messages with the same method as one :class:`ContentRun`, and consecutive acks
as one :class:`MethodRun`. Messages with the same properties and bodies of one length are found by comparing the bytes
as rows of a matrix. A message that was cut by the end of the data, that is too large, or that has several body frames,
comes frame by frame.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Sequence
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
LARGE_BYTES: Final = 4096
"""A body of this many bytes or more is sent as it is, without copying it into a frame."""

BASIC: Final = 60
PUBLISH: Final = BASIC << 16 | 40
RETURN: Final = BASIC << 16 | 50
DELIVER: Final = BASIC << 16 | 60
GET: Final = BASIC << 16 | 70
GET_OK: Final = BASIC << 16 | 71
ACK: Final = BASIC << 16 | 80
REJECT: Final = BASIC << 16 | 90
NACK: Final = BASIC << 16 | 120
CONTENT_METHODS: Final = frozenset((PUBLISH, RETURN, DELIVER, GET_OK))
SETTLEMENTS: Final = frozenset((ACK, REJECT, NACK))
"""Methods that consist of a delivery tag and an octet of flags."""

_START: Final = struct.Struct(">BHI")
_INDEX: Final = struct.Struct(">I")
_TAG: Final = struct.Struct(">Q")
_CONTENT: Final = struct.Struct(">HHQ")
_HEADER: Final = struct.Struct(">BHIHHQ")
"""A header frame up to its properties."""
_NO_TAG: Final = bytes(_TAG.size)
_SETTLEMENT_BYTES: Final = _INDEX.size + _TAG.size + 1
_FEW: Final = 32
"""Fewer rows than these are compared one by one."""
END: Final = bytes((FRAME_END,))


@attrs.define
class Frame:
    """One frame as it came."""

    kind: int
    channel: int
    payload: bytes


@attrs.define
class MethodRun:
    """Consecutive acks, nacks or rejects of one channel with the same flags."""

    channel: int
    index: int
    """Class id and method id, 16 bits each."""
    flags: int
    tags: list[int]


@attrs.define
class ContentRun:
    """Consecutive messages of one channel with the same method, except for delivery tags."""

    channel: int
    index: int
    method: bytes
    """The method's payload, with 0 for its delivery tag."""
    tags: list[int]
    """Their delivery tags; empty for methods without one (publish, return)."""
    properties: list[bytes]
    """The property flags and list of each content header."""
    bodies: list[bytes]


Item = Frame | MethodRun | ContentRun


class FrameReader:
    """Cuts data into frames and runs."""

    def __init__(self, frame_max: int, max_body_bytes: int) -> None:
        self.frame_max = frame_max
        """The size limit of the peer's frames in bytes, with overhead; 0: no limit."""
        self._max_body_bytes = max_body_bytes
        self.finds_runs = False
        """If false, every frame is returned on its own: a connection that is not running has to check each."""
        self._data = b""
        self._at = 0
        self._cut = bytearray()
        """The start of a frame that was cut by the end of the data."""
        self._missing = 0
        """Bytes of it that are still missing."""
        self._behind, self._behind_at = b"", 0
        """The data that came with the rest of the cut frame, and the position after that rest."""

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait for the rest of their frame."""
        return len(self._cut) + len(self._data) - self._at + len(self._behind) - self._behind_at

    def feed(self, data: bytes) -> None:
        """Add data from the peer."""
        if self._missing:
            self._feed_cut(data)
        elif self._at == len(self._data) and not self._behind:
            self._data, self._at = data, 0
        else:
            self._data, self._at = self._data[self._at :] + self._behind[self._behind_at :] + data, 0
            self._behind, self._behind_at = b"", 0

    def _feed_cut(self, data: bytes) -> None:
        """Assemble the cut frame separately: the data after its end need not be copied."""
        self._cut += data[: self._missing]
        if len(data) < self._missing:
            self._missing -= len(data)
            return
        self._data, self._at = bytes(self._cut), 0
        self._behind, self._behind_at = data, self._missing
        self._cut, self._missing = bytearray(), 0

    def _next_behind(self) -> Item | None:
        """Continue after the current data, which has no whole frame left, or wait for the rest."""
        if self._behind:
            self._data, self._at = self._behind, self._behind_at
            self._behind, self._behind_at = b"", 0
            return self.next()
        pending = len(self._data) - self._at
        if pending >= _START.size:
            (_, _, size) = _START.unpack_from(self._data, self._at)
            self._cut += self._data[self._at :]
            self._missing = size + OVERHEAD - pending
            self._data, self._at = b"", 0
        return None

    def take(self, count: int) -> bytes | None:
        """Return the next ``count`` bytes as they are; ``None`` if there are fewer."""
        if len(self._data) - self._at < count:
            return None
        self._at += count
        return self._data[self._at - count : self._at]

    def next(self) -> Item | None:
        """Return the next frame or run; ``None`` if it is incomplete. Raises :class:`LostFramingError`."""
        data, at = self._data, self._at
        start = at + _START.size
        if start > len(data):
            return self._next_behind()
        kind, channel, size = _START.unpack_from(data, at)
        if self.frame_max and size > self.frame_max:  # RabbitMQ forgives 8 bytes: clients count the overhead otherwise
            raise LostFramingError(kind, b"", f"{{frame_too_large,{size},{self.frame_max - OVERHEAD}}}")
        stop = start + size
        if stop >= len(data):
            return self._next_behind()
        if data[stop] != FRAME_END:
            raise LostFramingError(kind, data[start:stop], f"{{invalid_frame_end_marker,{data[stop]}}}")
        if self.finds_runs and channel and kind == METHOD and size >= _INDEX.size:
            (index,) = _INDEX.unpack_from(data, start)
            if index in SETTLEMENTS:
                if size == _SETTLEMENT_BYTES:
                    return self._settlements(channel, index, start)
            elif index in CONTENT_METHODS and (run := self._contents(channel, index, start, stop)) is not None:
                return run
        self._at = stop + 1
        return Frame(kind, channel, data[start:stop])

    # ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _settlements(self, channel: int, index: int, start: int) -> MethodRun:
        tag_at = start - self._at + _INDEX.size
        length = tag_at + _TAG.size + 2
        flags = self._data[start + _SETTLEMENT_BYTES - 1]
        rows = self._rows(self._at, length, length, tag_at)
        tags = self._tags(self._at, rows, length, tag_at)
        self._at += rows * length
        return MethodRun(channel, index, flags, tags)

    def _contents(self, channel: int, index: int, start: int, stop: int) -> ContentRun | None:
        """Return the message that begins here and following ones with the same method; ``None`` if it is incomplete,
        malformed, or in several body frames: then the frames are read one by one."""
        data, at = self._data, self._at
        method, tags = without_tag(index, data[start:stop])
        tag_at = _tag_at(index, method) + start - at if tags else None
        opening = data[at : stop + 1]
        run = ContentRun(channel, index, method, [], [], [])
        while (spans := self._message(channel, at + len(opening))) is not None:
            properties, properties_end, body, body_end, end = spans
            rows, length = 1, end - at
            header = data[at + len(opening) : body]
            if index != GET_OK and end + length <= len(data) and data.startswith(header, end + len(opening)):
                rows = self._rows(at, length, body - at, tag_at)
            if tag_at is not None:
                run.tags += self._tags(at, rows, length, tag_at)
            if rows == 1:
                run.properties.append(data[properties:properties_end])
                run.bodies.append(data[body:body_end])
            else:
                run.properties += [data[properties:properties_end]] * rows
                size = body_end - body
                run.bodies += [data[first : first + size] for first in range(body, body + rows * length, length)]
            at += rows * length
            if index == GET_OK or not self._opens(opening, at, tag_at):  # each get has its own answer
                break
        self._at = at
        return run if run.bodies else None

    def _opens(self, opening: bytes, at: int, tag_at: int | None) -> bool:
        """Whether a frame with the same bytes, except the tag, begins at ``at``."""
        if tag_at is None:
            return self._data.startswith(opening, at)
        behind = tag_at + _TAG.size
        return self._data.startswith(opening[:tag_at], at) and self._data.startswith(opening[behind:], at + behind)

    def _message(self, channel: int, header: int) -> tuple[int, int, int, int, int] | None:
        """Return where properties and body of a message begin and end, and where it ends, if its content header
        begins at ``header``, and it is complete, well-formed, not too large, and has at most one body frame."""
        data, frame_max = self._data, self.frame_max
        if header + _HEADER.size >= len(data):
            return None
        kind, number, size, class_id, weight, body_bytes = _HEADER.unpack_from(data, header)
        header_stop = header + _START.size + size
        if (
            kind != HEADER
            or number != channel
            or class_id != BASIC
            or weight
            or size < _CONTENT.size
            or (frame_max and size > frame_max)
            or body_bytes > self._max_body_bytes
            or header_stop >= len(data)
            or data[header_stop] != FRAME_END
        ):
            return None
        properties, end = header + _HEADER.size, header_stop + 1
        if not body_bytes:
            return properties, header_stop, end, end, end
        body = end + _START.size
        body_end = body + body_bytes
        if (
            body_end >= len(data)
            or _START.unpack_from(data, end) != (BODY, channel, body_bytes)
            or (frame_max and body_bytes > frame_max)
            or data[body_end] != FRAME_END
        ):
            return None
        return properties, header_stop, body, body_end, body_end + 1

    def _rows(self, at: int, length: int, prefix: int, tag_at: int | None) -> int:
        """Count rows of ``length`` bytes from ``at`` on that begin with the same ``prefix`` bytes, except the tag, and
        end in a frame's end."""
        data = self._data
        max_rows = (len(data) - at) // length
        if max_rows == 1:
            return 1
        tag_span = (prefix, prefix) if tag_at is None else (tag_at, tag_at + _TAG.size)
        left, right = data[at : at + tag_span[0]], data[at + tag_span[1] : at + prefix]
        rows = 1
        while rows < min(max_rows, _FEW):
            row = at + rows * length
            if not (
                data.startswith(left, row)
                and data.startswith(right, row + tag_span[1])
                and data[row + length - 1] == FRAME_END
            ):
                return rows
            rows += 1
        if rows == max_rows:
            return rows
        matrix = np.frombuffer(data, np.uint8, max_rows * length, at).reshape(max_rows, length)
        alike = matrix[:, -1] == FRAME_END
        for columns in (slice(0, tag_span[0]), slice(tag_span[1], prefix)):
            alike &= (matrix[:, columns] == matrix[0, columns]).all(axis=1)
        return max_rows if alike.all() else int(np.argmin(alike))

    def _tags(self, at: int, rows: int, length: int, tag_at: int) -> list[int]:
        if rows == 1:
            return [*_TAG.unpack_from(self._data, at + tag_at)]
        matrix = np.frombuffer(self._data, np.uint8, rows * length, at).reshape(rows, length)
        tags: npt.NDArray[np.uint64] = np.ascontiguousarray(matrix[:, tag_at : tag_at + _TAG.size]).view(">u8")
        tag_list: list[int] = tags.ravel().tolist()
        return tag_list


def _tag_at(index: int, payload: bytes) -> int:
    """Return the offset of the delivery tag in the payload of a method with content; 0 if it has no tag."""
    if index == DELIVER and len(payload) > _INDEX.size:
        at = _INDEX.size + 1 + payload[_INDEX.size]
    elif index == GET_OK:
        at = _INDEX.size
    else:
        return 0
    return at if at + _TAG.size <= len(payload) else 0


def split_at_tag(index: int, payload: bytes) -> tuple[bytes, bytes]:
    """Split the payload of a method with content into the parts before and after its delivery tag."""
    at = _tag_at(index, payload)
    return payload[:at], payload[at + _TAG.size :]


def without_tag(index: int, payload: bytes) -> tuple[bytes, list[int]]:
    """Return the payload of a method with content, with 0 for its delivery tag, and a list of the tag, if any."""
    at = _tag_at(index, payload)
    if not at:
        return payload, []
    return payload[:at] + _NO_TAG + payload[at + _TAG.size :], [*_TAG.unpack_from(payload, at)]


def content_header(payload: bytes) -> tuple[int, int, int, bytes]:
    """Return class id, weight, body size (bytes) and properties (flags and list) of a header frame of at least 12
    bytes."""
    return *_CONTENT.unpack_from(payload), payload[_CONTENT.size :]


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def frame(kind: int, channel: int, *payload: bytes) -> bytes:
    """Return a frame's bytes; the payload may be in pieces."""
    return b"".join((_START.pack(kind, channel, sum(map(len, payload))), *payload, END))


class ContentFrames:
    """Writes messages of one channel with the same method, except for the delivery tag.

    They are appended to a list, in any number of pieces. A large body is a separate piece, and is not copied.
    """

    __slots__ = ("_behind", "_channel", "_head", "_opening", "_properties", "_size", "_small_bytes", "_whole_bytes")

    def __init__(self, channel: int, method: tuple[bytes, bytes], *, tagged: bool, frame_max: int) -> None:
        """``method``: its payload, before and after the delivery tag; without a tag, the two parts are joined."""
        before, behind = method
        self._channel = channel
        self._opening = _START.pack(METHOD, channel, len(before) + len(behind) + (_TAG.size if tagged else 0)) + before
        self._behind = behind + END
        self._whole_bytes = frame_max - OVERHEAD if frame_max else sys.maxsize
        self._small_bytes = min(self._whole_bytes, LARGE_BYTES - 1)
        self._properties, self._size, self._head = b"", -1, b""

    def write(
        self,
        properties: bytes | Sequence[bytes],
        bodies: Sequence[bytes],
        tags: Iterable[int] | None,
        out: list[bytes],
    ) -> None:
        """Write messages; ``properties``: those that all have, or those of each."""
        if not isinstance(properties, bytes) and properties.count(properties[0]) == len(properties):
            properties = properties[0]
        if not isinstance(properties, bytes):
            heads = [self._head_of(encoded, len(body)) for encoded, body in zip(properties, bodies, strict=True)]
            self._write(bodies, tags, heads, out)
            return
        if len(bodies) == 1 and len(body := bodies[0]) <= self._small_bytes:  # the most frequent: no lists
            tag = b"" if tags is None else _TAG.pack(*tags)
            out.append(b"".join((self._opening, tag, self._head_of(properties, len(body)), body, END)))
            return
        sizes = set(map(len, bodies))
        by_size = {size: self._head_of(properties, size) for size in sizes}
        message_heads = (
            [*by_size.values()] * len(bodies) if len(sizes) == 1 else [by_size[len(body)] for body in bodies]
        )
        self._write(bodies, tags, message_heads, out)

    def _head_of(self, properties: bytes, size: int) -> bytes:
        """Return the bytes after the delivery tag: up to the body, or up to the end of the message if it is empty."""
        if size != self._size or properties != self._properties:
            self._properties, self._size = properties, size
            self._head = b"".join(
                (
                    self._behind,
                    _START.pack(HEADER, self._channel, _CONTENT.size + len(properties)),
                    _CONTENT.pack(BASIC, 0, size),
                    properties,
                    END + _START.pack(BODY, self._channel, size) if 0 < size <= self._whole_bytes else b"",
                )
            )
        return self._head

    def _write(
        self, bodies: Sequence[bytes], tags: Iterable[int] | None, heads: Sequence[bytes], out: list[bytes]
    ) -> None:
        encoded_tags: Iterable[bytes] = [b""] * len(bodies) if tags is None else map(_TAG.pack, tags)
        if len(bodies) > 1 and max(map(len, bodies)) <= self._small_bytes:
            parts = [END + self._opening] * (4 * len(bodies))  # a table, made column by column
            parts[0] = self._opening
            parts[1::4] = encoded_tags
            parts[2::4] = heads
            parts[3::4] = bodies
            parts.append(END)
            out.append(b"".join(parts))
            return
        previous_end = b""
        for tag, head, body in zip(encoded_tags, heads, bodies, strict=True):
            size, step = len(body), self._whole_bytes
            if size <= self._small_bytes:
                out.append(b"".join((previous_end, self._opening, tag, head, body)))
            elif size <= step:
                out += (b"".join((previous_end, self._opening, tag, head)), body)
            else:
                out += (previous_end, self._opening, tag, head, END)
                out += [frame(BODY, self._channel, body[at : at + step]) for at in range(0, size, step)]
            previous_end = END if size <= step else b""
        if previous_end:
            out.append(previous_end)


def contents(
    channel: int,
    index: int,
    method: tuple[bytes, bytes],
    properties: bytes,
    bodies: Sequence[bytes],
    *,
    tags: Iterable[int] | None = None,
    frame_max: int,
) -> bytes:
    """Return the frames of messages that differ only in bodies and delivery tags.

    ``method``: its arguments, before and after the delivery tag; without ``tags``, the two parts are joined.
    """
    before, behind = method
    out: list[bytes] = []
    frames = ContentFrames(channel, (_INDEX.pack(index) + before, behind), tagged=tags is not None, frame_max=frame_max)
    frames.write(properties, bodies, tags, out)
    return b"".join(out)


def settlements(channel: int, index: int, tags: Iterable[int], flags: int) -> bytes:
    """Return the frames of acks, nacks or rejects."""
    opening = _START.pack(METHOD, channel, _SETTLEMENT_BYTES) + _INDEX.pack(index)
    ending = bytes((flags, FRAME_END))
    return b"".join([opening + tag.to_bytes(_TAG.size, "big") + ending for tag in tags])
