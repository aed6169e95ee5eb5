"""The bytes of a queue's index: the journal's records and the segments'.

All integers are big-endian; ``p`` is 1 for a persistent message.

Journal (``journal.jif``), in the order in which things happened::

     0        2                64         0 0 | seq_id   publish, persistent     1 0 | seq_id   deliver
    ┌────────┬─────────────────┐          0 1 | seq_id   publish, transient      1 1 | seq_id   ack
    │ kind 2 │    seq_id 62    │ + body of a publish
    └────────┴─────────────────┘

Segment (``<n>.idx``), in any order but publish < deliver < ack for each message::

     0        2                16         1 p | rel_seq  publish
    ┌────────┬─────────────────┐          0 1 | rel_seq  the first for that rel_seq: deliver; the second: ack
    │ kind 2 │   rel_seq 14    │ + body of a publish
    └────────┴─────────────────┘

Body of a publish, the same in both::

     0          16          24        28              32
    ┌──────────┬───────────┬─────────┬───────────────┬──────────────────────────┐
    │  msg_id  │ expiry µs │  size   │ embedded_size │ embedded (the message)   │
    └──────────┴───────────┴─────────┴───────────────┴──────────────────────────┘

An *expiry* of 0 means none; an *embedded_size* of 0 means that the message is in the store under its msg_id.

Reading is columnar. A broker writes long runs of records of one length; :func:`parse` takes such a run as a
matrix and checks it column by column, and falls back to one record at a time where lengths vary. The order of records
of one message carries nothing beyond publish < deliver < ack, so what comes out are three columns of numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import attrs

from warren.storage.filesystem import File

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_U32 = struct.Struct(">L")

Ints: TypeAlias = "npt.NDArray[np.int64]"
Bools: TypeAlias = "npt.NDArray[np.bool_]"
Octets: TypeAlias = "npt.NDArray[np.uint8]"

BODY = struct.Struct(">16sQLL")
BODY_SIZE: Final = BODY.size
EMBEDDED_SIZE_AT: Final = BODY_SIZE - 4
PERSISTENT_PUBLISH, TRANSIENT_PUBLISH, DELIVER, ACK = range(4)
SEGMENT_SHORT: Final = 1
MAX_MESSAGE_BYTES: Final = 512 << 20
"""RabbitMQ's own limit, which no setting raises; a larger *size* is not believed before the message is looked at."""
READ_WINDOW_BYTES: Final = 512 << 10
"""Small enough for a processor's own cache: data that was just read is then parsed in half the time."""

_FEW_SHORTS: Final = 16
"""Up to as many are made one by one: a program that settles a few messages need not import what makes columns."""
_STRETCH_FIRST_GUESS: Final = 32
_SAME_BEFORE_MATRIX: Final = 32  # a matrix costs as much as a hundred single records: first see that they are the same
_LONG_STRETCH: Final = 512  # the next one must begin with more of the same if the last was shorter


@attrs.frozen
class Layout:
    """What differs between the two files."""

    name: str
    head: str  # dtype of a record's head
    number_bits: int
    publish_kinds: tuple[int, ...]
    persistent_kind: int
    short_kinds: tuple[int, ...]
    zero_record_ends: bool

    @property
    def head_size(self) -> int:
        return int(self.head[2:])


JOURNAL = Layout(
    name="journal",
    head=">u8",
    number_bits=62,
    publish_kinds=(PERSISTENT_PUBLISH, TRANSIENT_PUBLISH),
    persistent_kind=PERSISTENT_PUBLISH,
    short_kinds=(DELIVER, ACK),
    zero_record_ends=True,
)
SEGMENT = Layout(
    name="segment",
    head=">u2",
    number_bits=14,
    publish_kinds=(2, 3),
    persistent_kind=3,
    short_kinds=(SEGMENT_SHORT,),
    zero_record_ends=False,
)

EndReason = Literal["complete", "torn", "zeros", "not a record"]


@attrs.define(eq=False, repr=False)
class Columns:
    """Records as columns. ``body_at`` is the file offset of a publish's body; numbers are seq_ids or rel_seqs."""

    publish_numbers: Ints
    publish_persistent: Bools
    body_at: Ints
    embedded_sizes: Ints
    delivers: Ints
    """Deliver records; in a segment, every short record."""
    acks: Ints
    end: int
    """File offset after the last good record."""
    reason: EndReason


class PublishBody(NamedTuple):
    """A publish's body, without the embedded message after it."""

    msg_id: bytes
    expiry_us: int
    size: int
    embedded_size: int


def body_at(data: bytes | memoryview, offset: int) -> PublishBody:
    """The publish body at ``offset``; the embedded message follows it."""
    return PublishBody(*BODY.unpack_from(data, offset))


def journal_publish_head(seq_id: int, *, persistent: bool) -> bytes:
    return (seq_id | (0 if persistent else TRANSIENT_PUBLISH << 62)).to_bytes(8, "big")


def segment_publish_head(rel_seq: int, *, persistent: bool) -> bytes:
    return (0x8000 | (persistent << 14) | rel_seq).to_bytes(2, "big")


def journal_short(kind: int, seq_id: int) -> bytes:
    """One deliver or ack record."""
    return (seq_id | kind << 62).to_bytes(8, "big")


def journal_shorts(kind: int, seq_ids: Ints) -> bytes:
    """Deliver or ack records for ``seq_ids``, in their order."""
    import numpy as np

    return (seq_ids.astype(np.uint64) | np.uint64(kind << 62)).astype(">u8").tobytes()


def journal_shorts_of(kind: int, ranges: Sequence[range]) -> bytes:
    """Deliver or ack records for the seq_ids of ``ranges``, in their order."""
    if sum(map(len, ranges)) <= _FEW_SHORTS:
        return b"".join([journal_short(kind, seq_id) for seq_ids in ranges for seq_id in seq_ids])
    import numpy as np

    columns = [np.arange(seq_ids.start, seq_ids.stop, seq_ids.step, dtype=np.int64) for seq_ids in ranges]
    return journal_shorts(kind, columns[0] if len(columns) == 1 else np.concatenate(columns))


class _Collector:
    """Columns under construction, as lists of arrays (runs) and lists of numbers (single records)."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.publishes: list[tuple[Ints, Bools, Ints, Ints]] = []
        self.shorts: dict[int, list[Ints]] = {kind: [] for kind in layout.short_kinds}
        self.single_shorts: list[tuple[int, int]] = []

    def take_singles(self, data: bytes, positions: list[int], base: int) -> None:
        """Add publishes that were read one by one from ``data``, which begins at ``base`` of the file."""
        import numpy as np

        from warren.storage.columns import gather

        layout, at = self.layout, np.array(positions, np.int64)
        heads = gather(data, at, np.dtype(layout.head)).astype(np.uint64)
        body_at = at + layout.head_size
        embedded = gather(data, body_at + EMBEDDED_SIZE_AT, np.dtype(">u4")).astype(np.int64)
        shift = np.uint64(layout.number_bits)
        numbers = (heads & np.uint64((1 << layout.number_bits) - 1)).astype(np.int64)
        self.publishes.append((numbers, heads >> shift == layout.persistent_kind, base + body_at, embedded))

    def columns(self, end: int, reason: EndReason) -> Columns:
        import numpy as np

        from warren.storage.columns import is_rising

        for kind, parts in self.shorts.items():
            singles = [number for record_kind, number in self.single_shorts if record_kind == kind]
            parts.append(np.array(singles, np.int64))
        empty = np.empty(0, np.int64)
        joined = [np.concatenate(column) for column in zip(*self.publishes, strict=True)] or [empty] * 4
        if not is_rising(joined[2]):
            in_file_order = np.argsort(joined[2], kind="stable")  # fast if they nearly are in order
            joined = [column[in_file_order] for column in joined]
        shorts = [np.concatenate(parts) for parts in self.shorts.values()]
        return Columns(
            publish_numbers=joined[0],
            publish_persistent=joined[1].astype(np.bool_),
            body_at=joined[2],
            embedded_sizes=joined[3],
            delivers=shorts[0],
            acks=shorts[1] if len(shorts) > 1 else empty,
            end=end,
            reason=reason,
        )


class Parser:
    """Reads one file's records, window by window: ``feed`` the next window, finally call ``columns``.

    ``feed`` returns how many bytes it consumed; the rest belongs in front of the next window.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._collected = _Collector(layout)
        self._base = 0
        self._reason: EndReason | None = None

    @property
    def finished(self) -> bool:
        """Whether reading has ended: no more records follow the consumed bytes."""
        return self._reason is not None

    def columns(self) -> Columns:
        return self._collected.columns(self._base, self._reason or "complete")

    def feed(self, data: bytes, *, final: bool) -> int:  # noqa: PLR0912 - one loop: a call per record is slow
        layout, collected = self._layout, self._collected
        head_size, mask = layout.head_size, (1 << layout.number_bits) - 1
        publish_size, read_size = head_size + BODY_SIZE, _U32.unpack_from
        first_publish, after_publishes = layout.publish_kinds[0] << 6, layout.publish_kinds[-1] + 1 << 6
        singles: list[int] = []
        add_publish, add_short = singles.append, collected.single_shorts.append
        short_kinds, zeros_end = layout.short_kinds, layout.zero_record_ends
        size, last_start, size_at = len(data), len(data) - publish_size, publish_size - 4
        position, in_a_row, last_embedded, short_streak, needed = 0, 0, -1, 0, _SAME_BEFORE_MATRIX
        reason: EndReason | None = None
        while (body := position + head_size) <= size:
            if first_publish <= (octet := data[position]) < after_publishes:
                if position > last_start:
                    break
                short_streak = 0
                while position <= last_start and first_publish <= data[position] < after_publishes:
                    (embedded,) = read_size(data, position + size_at)
                    if zeros_end and not embedded and not any(data[position : position + publish_size]):
                        reason = "zeros"
                        break
                    if embedded != last_embedded:
                        in_a_row, last_embedded = 0, embedded
                    elif (in_a_row := in_a_row + 1) >= needed:
                        in_a_row = 0
                        stretch, needed = self._try_stretch(data, position, publish_size + embedded, needed)
                        if stretch:
                            position += stretch
                            continue
                    add_publish(position)
                    position += publish_size + embedded
                if reason is not None:
                    break
            elif (kind := octet >> 6) in short_kinds:
                if (short_streak := short_streak + 1) > _SAME_BEFORE_MATRIX:
                    short_streak = 0
                    position += self._stretch_of_shorts(data, position)
                else:
                    add_short((kind, int.from_bytes(data[position:body], "big") & mask))
                    position = body
            else:
                reason = "not a record"
                break
        if position > size:
            position = singles.pop()  # the last publish is not whole
        if singles:
            collected.take_singles(data, singles, self._base)
        self._base += position
        self._reason = reason or ("torn" if final and position < size else None)
        return position

    def _try_stretch(self, data: bytes, position: int, record_size: int, needed: int) -> tuple[int, int]:
        """Take a run of publishes if the first is whole; return its bytes, and how many alike the next try needs."""
        stretch = self._stretch_of_publishes(data, position, record_size) if position + record_size <= len(data) else 0
        is_long = stretch > _LONG_STRETCH * record_size
        return stretch, _SAME_BEFORE_MATRIX if is_long else min(2 * needed, _LONG_STRETCH)

    def _stretch_of_publishes(self, data: bytes, position: int, record_size: int) -> int:
        """Take the run of equal publishes that begins here; return its bytes, or 0 if that is not worth it.

        A unit is a publish directly followed by the short records of the same message. Row k of the matrix is a unit if
        all rows above it are, so the prefix of rows that look like the first one is exactly what single reading finds.
        """
        import numpy as np

        layout = self._layout
        head_size, shift = layout.head_size, layout.number_bits
        mask, head_dtype = (1 << shift) - 1, np.dtype(layout.head)
        kind = int.from_bytes(data[position : position + head_size], "big") >> shift
        shorts = self._shorts_of_same(data, position, record_size)
        unit = record_size + len(shorts) * head_size
        guess, available = _STRETCH_FIRST_GUESS, (len(data) - position) // unit
        taken = 0
        while True:
            rows = min(guess, available)
            matrix = np.frombuffer(data, np.uint8, rows * unit, position).reshape(rows, unit)
            heads = matrix[:, :head_size].copy().view(head_dtype).ravel().astype(np.uint64)
            alike = heads >> np.uint64(shift) == kind
            size_at = head_size + BODY_SIZE - 4
            alike &= (matrix[:, size_at : size_at + 4] == matrix[0, size_at : size_at + 4]).all(axis=1)
            if layout.zero_record_ends and kind == 0:
                alike &= heads != 0
                alike[0] = True  # the caller has looked at this one itself
            numbers = heads & np.uint64(mask)
            for index, short in enumerate(shorts):
                at = record_size + index * head_size
                follower_heads = matrix[:, at : at + head_size].copy().view(head_dtype).ravel().astype(np.uint64)
                alike &= follower_heads == (numbers | np.uint64(short << shift))
            taken = rows if alike.all() else int(np.argmin(alike))
            if taken < rows or rows == available:
                break
            guess *= 8
        if taken < _SAME_BEFORE_MATRIX:
            return 0
        column = numbers[:taken].astype(np.int64)
        body_at: Ints = self._base + position + head_size + unit * np.arange(taken, dtype=np.int64)
        embedded = np.full(taken, record_size - head_size - BODY_SIZE, np.int64)
        persistent = np.full(taken, kind == layout.persistent_kind, np.bool_)
        self._collected.publishes.append((column, persistent, body_at, embedded))
        for short in shorts:
            self._collected.shorts[short].append(column)
        return taken * unit

    def _shorts_of_same(self, data: bytes, position: int, record_size: int) -> list[int]:
        """Return the kinds of the same message's short records that directly follow the publish at ``position``."""
        layout, head_size = self._layout, self._layout.head_size
        mask = (1 << layout.number_bits) - 1
        number = int.from_bytes(data[position : position + head_size], "big") & mask
        shorts: list[int] = []
        at = position + record_size
        while len(shorts) < 2:
            follower = data[at : at + head_size]
            head = int.from_bytes(follower, "big")
            kind = head >> layout.number_bits
            if len(follower) < head_size or kind not in layout.short_kinds or head & mask != number:
                break
            shorts.append(kind)
            at += head_size
        return shorts

    def _stretch_of_shorts(self, data: bytes, position: int) -> int:
        """Take all consecutive short records that begin here; return their bytes."""
        import numpy as np

        layout = self._layout
        guess, available = _STRETCH_FIRST_GUESS, (len(data) - position) // layout.head_size
        while True:
            count = min(guess, available)
            heads = np.frombuffer(data, layout.head, count, position).astype(np.uint64)
            kinds = heads >> np.uint64(layout.number_bits)
            is_short = np.isin(kinds, layout.short_kinds)
            taken = count if is_short.all() else int(np.argmin(is_short))
            if taken < count or count == available:
                break
            guess *= 8
        numbers = (heads[:taken] & np.uint64((1 << layout.number_bits) - 1)).astype(np.int64)
        for kind, parts in self._collected.shorts.items():
            parts.append(numbers[kinds[:taken] == kind])
        return taken * layout.head_size


def parse(layout: Layout, data: bytes) -> Columns:
    """The records of a whole file that is in memory."""
    parser = Parser(layout)
    parser.feed(data, final=True)
    return parser.columns()


def parse_file(layout: Layout, file: File) -> Columns:
    """The records of a file of any size, read in windows: the bodies do not stay in memory."""
    parser, size, window = Parser(layout), file.size(), READ_WINDOW_BYTES
    start, final = 0, False
    while not (final or parser.finished):
        data = file.pread(window, start)
        final = start + len(data) >= size
        consumed = parser.feed(data, final=final)
        start += consumed
        if not consumed:  # one record is larger than the window
            window *= 2
    return parser.columns()
