"""The records of a segment file whose messages are long, read without them: of each record its head alone.

Who counts a queue's messages, or asks which of them stand in the store, needs no message. A file of short messages is
not worth it, and one that is not sound from its first byte to its last is for the parser that looks closer.
"""

from __future__ import annotations

from typing import Final, Self

import attrs
import numpy as np

from warren.queue_index.index.record_format import BODY_SIZE, EMBEDDED_SIZE_AT, SEGMENT, Columns, Ints, Octets
from warren.storage.filesystem import File

_HEAD_BYTES: Final = SEGMENT.head_size + BODY_SIZE
_LONG_BYTES: Final = 512
"""Of a record with its message, on average. Shorter ones are read faster than they are passed over."""
_WINDOW_BYTES: Final = 4096
"""What is read where short records stand."""
_FEW_BYTES: Final = 64 << 10
"""No more than this is read of a file before its records are seen to be short."""


@attrs.frozen(eq=False, repr=False)
class RecordHeads:
    """A segment's records."""

    columns: Columns
    _heads: Octets
    """A row for each publish, in the order of the file."""

    @classmethod
    def read(cls, file: File, size: int) -> Self | None:
        """The records of a file of that size; ``None`` if its messages are short, or if it is not sound."""
        first_kind, last_kind = SEGMENT.publish_kinds[0] << 6, SEGMENT.publish_kinds[-1] + 1 << 6
        short_kind, publishes, places, shorts = SEGMENT.short_kinds[0], list[bytes](), list[int](), bytearray()
        size_at, at, bytes_read = SEGMENT.head_size + EMBEDDED_SIZE_AT, 0, 0
        while at < size:
            window = file.pread(_HEAD_BYTES, at)
            bytes_read += len(window)
            if not window or bytes_read > max(_FEW_BYTES, at * _HEAD_BYTES // _LONG_BYTES):
                return None
            if first_kind <= window[0] < last_kind:
                if len(window) < _HEAD_BYTES:
                    return None
                publishes.append(window)
                places.append(at)
                at += _HEAD_BYTES + int.from_bytes(window[size_at : size_at + 4], "big")
                continue
            run = _run_of_shorts(file.pread(_WINDOW_BYTES, at), short_kind)
            if not run:
                return None
            shorts += run
            at += len(run)
        return cls._of(publishes, places, bytes(shorts), size) if at == size else None

    @classmethod
    def _of(cls, publishes: list[bytes], places: list[int], shorts: bytes, size: int) -> Self:
        heads = np.frombuffer(b"".join(publishes), np.uint8).reshape(len(publishes), _HEAD_BYTES)
        numbers, mask = heads[:, : SEGMENT.head_size].copy().view(SEGMENT.head).ravel(), (1 << SEGMENT.number_bits) - 1
        embedded = heads[:, SEGMENT.head_size + EMBEDDED_SIZE_AT :].copy().view(">u4").ravel()
        columns = Columns(
            publish_numbers=(numbers & mask).astype(np.int64),
            publish_persistent=numbers >> SEGMENT.number_bits == SEGMENT.persistent_kind,
            body_at=np.array(places, np.int64) + SEGMENT.head_size,
            embedded_sizes=embedded.astype(np.int64),
            delivers=(np.frombuffer(shorts, SEGMENT.head) & mask).astype(np.int64),
            acks=np.empty(0, np.int64),
            end=size,
            reason="complete",
        )
        return cls(columns, heads)

    def bodies(self, offsets: Ints) -> Octets:
        """The publish bodies at these offsets, of :data:`~warren.queue_index.index.record_format.BODY_SIZE` each."""
        rows = np.searchsorted(self.columns.body_at, offsets)
        return np.ascontiguousarray(self._heads[rows, SEGMENT.head_size :]).ravel()


def _run_of_shorts(window: bytes, kind: int) -> bytes:
    """The short records with which a window begins."""
    heads = np.frombuffer(window, SEGMENT.head, len(window) // SEGMENT.head_size)
    is_other = heads >> SEGMENT.number_bits != kind
    count = int(is_other.argmax()) if is_other.any() else len(heads)
    return window[: count * SEGMENT.head_size]
