"""Runs: sequences of consecutive messages of one kind, with columns instead of an object a message.

A :class:`Batch` holds the columns of messages that came together (published in one call, loaded from one segment). It
never changes, except the open batch at a queue's tail, which single publishes join. A :class:`Run` is a window on a
batch: seq_ids ``start … start+count-1``, all of one kind. Cutting a run in two makes two windows on the same columns.

*Kind* (``flags``) says what of a message lies where:

=============  ====================================================================================================
PERSISTENT     written, payload and position, as soon as it is published; comes back after a restart
EMBEDDED       its payload belongs in the index record (else in the message store)
IN_RAM         its payload is here, in the batch's ``terms``
IN_STORE       its payload is in the message store
INDEXED        its position is on disk (the journal counts)
DELIVERED      the index has, or will get with the position, a deliver record
=============  ====================================================================================================

An alpha is IN_RAM and was never moved; a beta is not INDEXED; a gamma is. A run never crosses a segment boundary.

A window keeps its whole batch alive, so a small remainder of a large batch is copied out (:meth:`Run.settle`): a batch
is never more than four times as large as what the windows cut from it still need.

If several consumers take turns, each gets every n-th message of a run: an :class:`EveryNth` run.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import attrs

from warren.queue_index.message.message_format import (
    CONTENT_OVERHEAD_BYTES,
    LENGTH_BYTES,
    Envelope,
    encode_in_pieces,
    encode_many,
    encode_message,
    properties_in,
    properties_sizes,
)
from warren.storage.pieces import Whole

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PERSISTENT: Final = 1
EMBEDDED: Final = 2
IN_RAM: Final = 4
IN_STORE: Final = 8
INDEXED: Final = 16
DELIVERED: Final = 32

SMALL_BATCH: Final = 64  # messages; not worth copying out of,
_LARGE_BATCH_BYTES: Final = 32 << 10  # unless its bodies are so large together

Terms = list[bytes]
"""Encoded messages, or ids, one each."""


@attrs.frozen
class PackedTerms:
    """Encoded messages that lie in one buffer: a segment as it was read."""

    blob: bytes
    offsets: Sequence[int]
    lengths: int | Sequence[int]

    def __len__(self) -> int:
        return len(self.offsets)

    def term(self, index: int) -> bytes:
        at = self.offsets[index]
        return self.blob[at : at + (self.lengths if isinstance(self.lengths, int) else self.lengths[index])]

    def column(self, low: int, high: int, at: int, size: int) -> npt.NDArray[np.void]:
        """Bytes ``at … at+size-1`` of each of the terms ``low … high-1``, in an array of their own."""
        return self.pieces(self.places(low, high) + at, size)

    def places(self, low: int, high: int) -> npt.NDArray[np.int64]:
        """Where the terms ``low … high-1`` begin."""
        import numpy as np

        offsets = self.offsets[low:high]
        if isinstance(offsets, range):
            return np.arange(offsets.start, offsets.stop, offsets.step)
        return np.asarray(offsets, np.int64)

    def pieces(self, places: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.void]:
        """Return ``size`` bytes at each place of the buffer; for a place too close to the end, the last bytes."""
        import numpy as np

        from warren.storage.columns import gather

        return gather(self.blob, np.minimum(places, len(self.blob) - size), np.dtype((np.void, size)))

    def numbers(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The numbers of 32 bits that stand there."""
        import numpy as np

        return self.pieces(places, 4).view(">u4").astype(np.int64)

    def holds(self, constant: bytes, places: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which places hold these bytes."""
        import numpy as np

        pieces = self.pieces(places, len(constant))
        if pieces.tobytes() == constant * len(pieces):  # as it mostly is, in a twentieth of the time
            return np.ones(len(pieces), np.bool_)
        matches: npt.NDArray[np.bool_] = pieces == np.void(constant)
        return matches

    def many(self, low: int, high: int) -> list[bytes]:
        blob = self.blob
        if isinstance(self.lengths, int):
            terms: list[bytes] = self.column(low, high, 0, self.lengths).tolist()
            return terms
        pairs = zip(self.offsets[low:high], self.lengths[low:high], strict=True)
        return [blob[at : at + length] for at, length in pairs]

    def part(self, low: int, high: int) -> PackedTerms:
        """The terms ``low … high-1``, one at least, in a buffer that holds little else."""
        import numpy as np

        starts = self.places(low, high)
        lengths = self.lengths if isinstance(self.lengths, int) else self.lengths[low:high]
        begin, end = int(starts.min()), int((starts + np.asarray(lengths)).max())
        total = lengths * (high - low) if isinstance(lengths, int) else sum(lengths)
        if end - begin > 2 * total:  # they lie far apart
            terms = self.many(low, high)
            return PackedTerms(b"".join(terms), [0, *accumulate(map(len, terms[:-1]))], lengths)
        offsets = self.offsets[low:high]
        if isinstance(offsets, range):
            moved: range | array[int] = range(offsets.start - begin, offsets.stop - begin, offsets.step)
        else:
            moved = array("q", (starts - begin).tobytes())
        return PackedTerms(self.blob[begin:end], moved, lengths)


@attrs.frozen(eq=False, repr=False)
class UnencodedTerms:
    """Messages as they came from one publisher, encoded on demand."""

    envelope: Envelope
    ids: bytes
    given: Sequence[bytes]
    """Bodies, or contents that include properties."""

    def __len__(self) -> int:
        return len(self.given)

    def term(self, index: int) -> bytes:
        return encode_message(self.envelope, self.ids[index * 16 : index * 16 + 16], self.given[index])

    def many(self, low: int, high: int) -> list[bytes]:
        return encode_many(self.envelope, self.ids[low * 16 : high * 16], self.given[low:high])

    def to_write(self, low: int, high: int) -> Sequence[Whole]:
        """:meth:`many`, the large ones in pieces."""
        return encode_in_pieces(self.envelope, self.ids[low * 16 : high * 16], self.given[low:high])

    def part(self, low: int, high: int) -> UnencodedTerms:
        """Messages ``low … high-1`` by themselves."""
        if high - low == len(self.given):
            return self
        return UnencodedTerms(self.envelope, self.ids[low * 16 : high * 16], self.given[low:high])

    def bodies(self, low: int, high: int) -> Sequence[bytes]:
        """The payloads of the messages ``low … high-1``."""
        given = self._given(low, high)
        if not self.envelope.of_contents:
            return given
        sizes = properties_sizes(given)
        return [content[CONTENT_OVERHEAD_BYTES + size :] for content, size in zip(given, sizes, strict=True)]

    def many_properties(self, low: int, high: int) -> list[bytes]:
        """The encoded properties of the messages ``low … high-1``."""
        given = self._given(low, high)
        if not self.envelope.of_contents:
            return [self.envelope.properties] * len(given)
        sizes = properties_sizes(given)
        return [content[LENGTH_BYTES : LENGTH_BYTES + size] for content, size in zip(given, sizes, strict=True)]

    def _given(self, low: int, high: int) -> Sequence[bytes]:
        return self.given if high - low == len(self.given) else self.given[low:high]

    def properties(self, index: int) -> bytes:
        """One message's encoded properties."""
        return properties_in(self.given[index]) if self.envelope.of_contents else self.envelope.properties


BatchTerms = list[bytes] | PackedTerms | UnencodedTerms
"""Encoded messages, in the cheapest form for their source."""


@attrs.define
class Batch:
    """Columns. ``ids``: 16 bytes a message; ``sizes`` and ``expiries`` (µs, 0 none): one for all, or one each."""

    count: int
    ids: bytes | bytearray
    sizes: int | list[int]
    expiries: int | list[int]
    terms: BatchTerms | None
    body_place: tuple[int, int] | None = None
    """The body's place in every term, and its size; ``(-1, 0)``: the places differ. Computed when needed."""

    @property
    def is_large(self) -> bool:
        """Whether its bodies are large enough to be released one by one."""
        sizes = self.sizes
        return (sizes * self.count if isinstance(sizes, int) else sum(sizes)) > _LARGE_BATCH_BYTES

    def size(self, index: int) -> int:
        return self.sizes if isinstance(self.sizes, int) else self.sizes[index]

    def expiry(self, index: int) -> int:
        return self.expiries if isinstance(self.expiries, int) else self.expiries[index]

    def term(self, index: int) -> bytes:
        terms = self.terms
        if isinstance(terms, list):
            return terms[index]
        if terms is None:
            raise RuntimeError("the payload of a paged message was asked of its batch")
        return terms.term(index)

    def slice_terms(self, low: int, high: int) -> list[bytes]:
        terms = self.terms
        if isinstance(terms, list):
            return terms[low:high]
        if terms is None:
            raise RuntimeError("the payloads of paged messages were asked of their batch")
        return terms.many(low, high)

    def part_of_terms(self, low: int, high: int) -> BatchTerms:
        """Terms that hold on to nothing else."""
        terms = self.terms
        return terms.part(low, high) if isinstance(terms, PackedTerms | UnencodedTerms) else self.slice_terms(low, high)

    def copy(self, low: int, high: int, *, terms: BatchTerms | None) -> Batch:
        return self._columns(slice(low, high), bytes(self.ids[low * 16 : high * 16]), terms)

    def every(self, rows: slice, *, with_terms: bool) -> Batch:
        """Return some of the messages; if they lie in one buffer they share it."""
        import numpy as np

        ids = np.frombuffer(self.ids, "V16", self.count)[rows].tobytes()
        batch, terms = self._columns(rows, ids, None), self.terms if with_terms else None
        if isinstance(terms, UnencodedTerms):
            batch.terms = UnencodedTerms(terms.envelope, ids, terms.given[rows])
        elif isinstance(terms, PackedTerms):
            lengths = terms.lengths if isinstance(terms.lengths, int) else terms.lengths[rows]
            batch.terms = PackedTerms(terms.blob, terms.offsets[rows], lengths)
        elif terms is not None:
            batch.terms = terms[rows]
        return batch

    def _columns(self, rows: slice, ids: bytes, terms: BatchTerms | None) -> Batch:
        return Batch(
            count=len(ids) // 16,
            ids=ids,
            sizes=self.sizes if isinstance(self.sizes, int) else self.sizes[rows],
            expiries=self.expiries if isinstance(self.expiries, int) else self.expiries[rows],
            terms=terms,
            body_place=self.body_place,
        )

    def join(self, other: Batch) -> None:
        """Append other messages; for the open batch only, whose columns are lists."""
        if not (isinstance(self.ids, bytearray) and isinstance(self.sizes, list) and isinstance(self.expiries, list)):
            raise RuntimeError("a sealed batch was appended to")  # noqa: TRY004 - a bug, whatever shows it
        count = other.count
        self.ids += other.ids
        self.sizes += [other.sizes] * count if isinstance(other.sizes, int) else other.sizes
        self.expiries += [other.expiries] * count if isinstance(other.expiries, int) else other.expiries
        if isinstance(self.terms, list):
            self.terms += other.slice_terms(0, count)
        self.count += count


def open_batch(msg_id: bytes, size: int, expiry_us: int, term: bytes) -> Batch:
    """A batch of one message that others may join."""
    return Batch(count=1, ids=bytearray(msg_id), sizes=[size], expiries=[expiry_us], terms=[term])


class Run:
    """A window on a batch; see the module's prose."""

    __slots__ = ("batch", "count", "flags", "low", "start")

    def __init__(self, start: int, batch: Batch, low: int, count: int, flags: int) -> None:
        self.start = start
        self.batch = batch
        self.low = low
        self.count = count
        self.flags = flags

    def __repr__(self) -> str:
        return f"Run({self.start}…{self.end - 1}, flags={self.flags:#04x})"

    @property
    def end(self) -> int:
        """The seq_id after the last one."""
        return self.start + self.count

    @property
    def seq_ids(self) -> range:
        return range(self.start, self.start + self.count)

    @property
    def high(self) -> int:
        return self.low + self.count

    @property
    def in_ram(self) -> bool:
        return bool(self.flags & IN_RAM)

    @property
    def persistent(self) -> bool:
        return bool(self.flags & PERSISTENT)

    @property
    def embedded(self) -> bool:
        return bool(self.flags & EMBEDDED)

    @property
    def bytes(self) -> int:
        """The messages' sizes, added up."""
        sizes = self.batch.sizes
        return sizes * self.count if isinstance(sizes, int) else sum(sizes[self.low : self.high])

    def msg_ids(self) -> Terms:
        import numpy as np

        ids: Terms = np.frombuffer(self.batch.ids, "V16", self.count, self.low * 16).tolist()
        return ids

    def terms(self) -> Terms:
        return self.batch.slice_terms(self.low, self.high)

    def terms_to_write(self) -> Sequence[Whole]:
        """:meth:`terms`, the large ones in pieces where their bodies still are as they came."""
        terms = self.batch.terms
        return terms.to_write(self.low, self.high) if isinstance(terms, UnencodedTerms) else self.terms()

    def window(self, offset: int, count: int) -> Run:
        """A run of its own over ``count`` messages from the ``offset``-th on."""
        return Run(self.start + offset, self.batch, self.low + offset, count, self.flags)

    def every(self, rows: range, *, with_terms: bool) -> Run:
        """Return a separate run of some rows of this one; with payloads only on request."""
        if rows.step == 1:
            return self.window(rows.start, len(rows))
        places = slice(self.low + rows.start, self.low + rows.stop, rows.step)
        batch = self.batch.every(places, with_terms=with_terms)
        return EveryNth(self.start + rows.start, batch, len(rows), self.flags, rows.step)

    def emptied(self, mask: bytearray) -> Run:
        """Return the same messages, without the payloads marked 1 in ``mask``, which has a byte for each."""
        low, high, terms = self.low, self.high, self.batch.terms
        batch = self.batch.copy(low, high, terms=None)
        if isinstance(terms, UnencodedTerms):
            given = [b"" if row else content for row, content in zip(mask, terms.given[low:high], strict=True)]
            batch.terms = UnencodedTerms(terms.envelope, bytes(batch.ids), given)
        else:
            batch.terms = [b"" if row else self.batch.term(place) for place, row in enumerate(mask, low)]
            batch.body_place = None
        return Run(self.start, batch, 0, self.count, self.flags)

    def take_left(self, count: int) -> Run:
        """Cut the first ``count`` messages off; this run keeps the rest."""
        head = self.window(0, count)
        self.start += count
        self.low += count
        self.count -= count
        return head

    def take_right(self, count: int) -> Run:
        """Cut the last ``count`` messages off; this run keeps the rest."""
        self.count -= count
        return self.window(self.count, count)

    def settle(self) -> Run:
        """Copy the window out of its batch if it needs less than half of that."""
        if self.count * 2 < self.batch.count and self.worth_copying:
            terms = self.batch.part_of_terms(self.low, self.high) if self.in_ram else None
            self.batch = self.batch.copy(self.low, self.high, terms=terms)
            self.low = 0
        return self

    @property
    def worth_copying(self) -> bool:
        """Whether a small part is to be copied out of its batch."""
        return self.batch.count > SMALL_BATCH or (self.in_ram and self.batch.is_large)

    def paged(self, flags: int) -> Run:
        """The same messages without their payloads, as ``flags``."""
        batch = self.batch.copy(self.low, self.high, terms=None)
        return Run(self.start, batch, 0, self.count, flags & ~IN_RAM)

    def with_terms(self, terms: Terms) -> Run:
        """The same messages with their payloads read back."""
        batch = self.batch.copy(self.low, self.high, terms=terms)
        return Run(self.start, batch, 0, self.count, self.flags | IN_RAM)

    def continues(self, other: Run) -> bool:
        """Whether ``other`` starts in the same batch where this run ends, and is of the same kind."""
        return (
            other.batch is self.batch
            and other.low == self.high
            and other.start == self.end
            and other.flags == self.flags
        )


class EveryNth(Run):
    """Messages whose seq_ids are ``step`` apart, with a batch of their own, as delivered to one consumer of several.

    For deliveries and acks. No list of the queue holds one.
    """

    __slots__ = ("step",)

    def __init__(self, start: int, batch: Batch, count: int, flags: int, step: int) -> None:
        super().__init__(start, batch, 0, count, flags)
        self.step = step

    @property
    def seq_ids(self) -> range:
        return range(self.start, self.end, self.step)

    @property
    def end(self) -> int:
        return self.start + (self.count - 1) * self.step + 1
