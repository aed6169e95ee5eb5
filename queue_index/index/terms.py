"""Taking bodies and properties out of many encoded messages at once.

Messages of one publisher and one length differ in their bodies and ids alone, so the body lies in the same place in all
of them. For a batch in one buffer this is checked once, column by column; then a body is a slice. Messages that were
sent to one address but differ in their properties and length, too, have the same bytes around these: the places of the
parts are computed for all in columns, and the bytes around them compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import attrs

from warren.queue_index.message.message_format import (
    LENGTH_BYTES,
    addresses_of,
    decode_message,
    locate_addresses,
    locate_content,
)
from warren.queue_index.properties import encode_properties
from warren.queue_index.queue.run import PackedTerms, Run, UnencodedTerms
from warren.storage.errors import MessageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_NOWHERE: Final = (-1, 0)
_ROWS_AT_A_TIME: Final = 1024
_WORTH_COLUMNS: Final = 16
"""Fewer messages are looked at one by one."""

Places: TypeAlias = "npt.NDArray[np.int64]"
T = TypeVar("T")


def bodies_of(run: Run, terms: Sequence[bytes] | None) -> Sequence[bytes | None]:
    """Return the payloads of a run; ``terms``: its encoded messages, if they are not in RAM.

    ``None`` stands for one whose bytes are not a message: the others are sound.
    """
    packed = run.batch.terms if terms is None else None
    if isinstance(packed, UnencodedTerms):
        return packed.bodies(run.low, run.high)
    at, size = _place_in_all(run, packed)
    if at >= 0 and size and isinstance(packed, PackedTerms):
        bodies: list[bytes | None] = packed.column(run.low, run.high, at, size).tolist()
        return bodies
    located = _Located.of(run, terms)
    if located is None:
        return list(map(_body, run.terms() if terms is None else terms))
    return located.parts(located.body_at, located.body_end, _body)


def properties_of(run: Run, terms: Sequence[bytes] | None) -> list[bytes]:
    """The encoded properties of a run; ``terms`` as with :func:`bodies_of`.

    Raises :class:`~warren.storage.errors.MessageError` if the bytes of one are no message.
    """
    packed = run.batch.terms if terms is None else None
    if isinstance(packed, UnencodedTerms):
        return packed.many_properties(run.low, run.high)
    if _place_in_all(run, packed)[0] >= 0:
        return [_properties(run.batch.term(run.low))] * run.count
    located = _Located.of(run, terms)
    if located is None:
        return list(map(_properties, run.terms() if terms is None else terms))
    return located.parts(located.properties_at, located.properties_end, _properties)


def _place_in_all(run: Run, packed: object) -> tuple[int, int]:
    """Where the body lies in all messages of the run's batch, and its size; else :data:`_NOWHERE`."""
    batch = run.batch
    if not isinstance(packed, PackedTerms) or not isinstance(packed.lengths, int):
        return _NOWHERE
    if batch.body_place is None:
        batch.body_place = _common_place(packed) or _NOWHERE
    return batch.body_place


@attrs.frozen(eq=False, repr=False)
class _Located:
    """Where parts of messages stand in the buffer that they lie in."""

    terms: PackedTerms
    low: int
    high: int
    fits: npt.NDArray[np.bool_]
    """The messages to which the offsets apply."""
    properties_at: Places
    properties_end: Places
    body_at: Places
    body_end: Places

    @classmethod
    def of(cls, run: Run, terms: Sequence[bytes] | None) -> _Located | None:
        """Return ``None`` if it is not worth it, or the first message is not of the plain shape, or has no body."""
        low, high, packed = run.low, run.high, run.batch.terms
        if terms is not None or not isinstance(packed, PackedTerms):
            all_terms = run.terms() if terms is None else terms
            if run.count < _WORTH_COLUMNS:
                return None
            lengths = list(map(len, all_terms))
            low, high, packed = 0, run.count, PackedTerms(b"".join(all_terms), [0, *accumulate(lengths[:-1])], lengths)
        return cls._like_the_first(packed, low, high) if high - low >= _WORTH_COLUMNS else None

    @classmethod
    def _like_the_first(cls, packed: PackedTerms, low: int, high: int) -> _Located | None:
        import numpy as np

        first = packed.term(low)
        addresses = addresses_of(first)
        content = None if addresses is None else locate_content(first, len(addresses) + LENGTH_BYTES)
        if addresses is None or content is None or content.body == content.body_end:
            return None
        to_body = first[content.properties_end : content.body - LENGTH_BYTES]
        tail, end = first[content.body_end : content.msg_id], first[content.end :]
        begins, lengths = packed.places(low, high), packed.lengths
        ends = begins + (lengths if isinstance(lengths, int) else np.asarray(lengths[low:high], np.int64))
        # The last comparison detects wrong lengths, so bytes that are read beyond the buffer do not matter.
        properties_at = begins + (len(addresses) + LENGTH_BYTES)
        properties_end = properties_at + packed.numbers(properties_at - LENGTH_BYTES)
        body_at = properties_end + (len(to_body) + LENGTH_BYTES)
        body_end = body_at + packed.numbers(body_at - LENGTH_BYTES)
        end_at = body_end + (len(tail) + content.end - content.msg_id)
        fits = packed.holds(addresses, begins) & (end_at + len(end) == ends)
        for constant, places in ((to_body, properties_end), (tail, body_end), (end, end_at)):
            fits &= packed.holds(constant, places)
        return cls(packed, low, high, fits, properties_at, properties_end, body_at, body_end)

    def parts(self, starts: Places, ends: Places, otherwise: Callable[[bytes], T]) -> list[bytes | T]:
        """Return a part of each message; for a message that does not fit, ``otherwise`` of the whole message."""
        import numpy as np

        blob, fits = self.terms.blob, self.fits
        all_fit = bool(fits.all())
        stops = (ends if all_fit else np.where(fits, ends, starts)).tolist()
        pieces: list[bytes | T] = [blob[start:stop] for start, stop in zip(starts.tolist(), stops, strict=True)]
        if not all_fit:
            for index in np.flatnonzero(~fits).tolist():
                pieces[index] = otherwise(self.terms.term(self.low + index))
        return pieces


def _body(term: bytes) -> bytes | None:
    located = locate_addresses(term)
    if located is not None:
        return term[located.body_at : located.body_end]
    try:
        return decode_message(term).body
    except MessageError:
        return None


def _properties(term: bytes) -> bytes:
    located = locate_addresses(term)
    return encode_properties(decode_message(term).properties) if located is None else located.properties


def _common_place(packed: PackedTerms) -> tuple[int, int] | None:
    """Where the body lies in every one of the terms; ``None`` unless they differ in body and id alone."""
    import numpy as np

    from warren.queue_index.message.message_template import MessageTemplate

    template = MessageTemplate.of(packed.term(0))
    if template is None:
        return None
    size = len(template.sample)
    for low in range(0, len(packed), _ROWS_AT_A_TIME):
        rows = packed.column(low, low + _ROWS_AT_A_TIME, 0, size).view(np.uint8).reshape(-1, size)
        if not template.fits(rows):
            return None
    return template.body_at, template.body_bytes
