"""Taking the bodies out of many encoded messages at once.

Messages of one publisher and one length differ in their bodies and ids alone, so the body lies in the same place in all
of them. For a batch that lies in one buffer this is checked once, column by column; then a body is a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from warren.queue_index.message_format import LENGTH_BYTES, Content, addresses_of, decode_message, locate_content
from warren.queue_index.message_template import MessageTemplate
from warren.queue_index.run import PackedTerms, Run, UnencodedTerms
from warren.storage.errors import MessageError

_NOWHERE: Final = (-1, 0)
_NOTHING: Final = b"\0"
"""What no encoded message begins with."""
_ROWS_AT_A_TIME: Final = 1024
_MISSES: Final = 16
"""Where each message has properties of its own, what is around a body is looked at only so often."""


def bodies_of(run: Run, terms: Sequence[bytes] | None) -> Sequence[bytes | None]:
    """The payloads of a run; ``terms``: its encoded messages, where they are not in RAM.

    ``None`` in place of one whose bytes are no message: the others are sound.
    """
    batch = run.batch
    packed = batch.terms
    if terms is None and isinstance(packed, UnencodedTerms):
        return packed.bodies(run.low, run.high)
    if terms is None and isinstance(packed, PackedTerms) and isinstance(packed.lengths, int):
        if batch.body_place is None:
            batch.body_place = _common_place(packed) or _NOWHERE
        at, size = batch.body_place
        if at >= 0 and size:
            bodies: list[bytes | None] = packed.column(run.low, run.high, at, size).tolist()
            return bodies
    if terms is None and isinstance(packed, PackedTerms) and (found := _unequal_bodies(packed, run.low, run.high)):
        return found
    return _bodies(run.terms() if terms is None else terms)


class _Around(NamedTuple):
    """What stands around a message's body: up to its length, from there to the id, and behind that."""

    head: bytes
    tail: bytes
    id_bytes: int
    end: bytes
    size: int
    """Of all of it, length and id included."""

    @classmethod
    def of(cls, term: bytes, content: Content) -> _Around | None:
        """``None``: the body is empty, and has no length."""
        _, body_at, body_end, msg_id_at, msg_id_end, _ = content
        if body_at == body_end:
            return None
        head, tail = term[: body_at - LENGTH_BYTES], term[body_end:msg_id_at]
        return cls(head, tail, msg_id_end - msg_id_at, term[msg_id_end:], len(term) - (body_end - body_at))


def _unequal_bodies(packed: PackedTerms, low: int, high: int) -> list[bytes | None] | None:
    """Bodies of several lengths, of messages that have all but them and their ids in common; else ``None``."""
    first = packed.one(low)
    addresses = addresses_of(first)
    content = None if addresses is None else locate_content(first, len(addresses) + LENGTH_BYTES)
    around = None if content is None else _Around.of(first, content)
    if around is None or isinstance(packed.lengths, int):
        return None
    head, tail, end = around.head, around.tail, around.end
    begins = packed.places(low, high)
    starts = begins + (len(head) + LENGTH_BYTES)
    sizes = np.asarray(packed.lengths[low:high], np.int64) - around.size
    ends = starts + sizes
    if sizes.min() < 1 or not (
        (packed.pieces(begins, len(head)) == np.void(head)).all()
        and (packed.pieces(starts - LENGTH_BYTES, LENGTH_BYTES).view(">u4") == sizes).all()
        and (packed.pieces(ends, len(tail)) == np.void(tail)).all()
        and (packed.pieces(ends + (len(tail) + around.id_bytes), len(end)) == np.void(end)).all()
    ):
        return None
    blob = packed.blob
    return [blob[start:stop] for start, stop in zip(starts.tolist(), ends.tolist(), strict=True)]


def _bodies(terms: Sequence[bytes]) -> list[bytes | None]:
    """Bodies one by one; what the message before had around its body is tried first, then its addresses."""
    bodies: list[bytes | None] = []
    addresses = head = tail = end = _NOTHING
    head_size = around = misses = 0
    for term in terms:
        size = len(term) - around
        body_end = head_size + size
        if (
            size > 0
            and term.startswith(head)
            and term.startswith(tail, body_end)
            and term.endswith(end)
            and int.from_bytes(term[head_size - LENGTH_BYTES : head_size], "big") == size
        ):
            bodies.append(term[head_size:body_end])
            misses = 0
            continue
        if not term.startswith(addresses):
            addresses = addresses_of(term) or _NOTHING
        content = locate_content(term, len(addresses) + LENGTH_BYTES) if addresses is not _NOTHING else None
        if content is None:
            bodies.append(_decoded_body(term))
            continue
        bodies.append(term[content.body : content.body_end])
        if misses % _MISSES == 0 and (found := _Around.of(term, content)) is not None:
            head, tail, _, end, around = found
            head_size = content.body
        misses += 1
    return bodies


def _decoded_body(term: bytes) -> bytes | None:
    try:
        return decode_message(term).body
    except MessageError:
        return None


def _common_place(packed: PackedTerms) -> tuple[int, int] | None:
    """Where the body lies in every one of the terms; ``None`` unless they differ in body and id alone."""
    template = MessageTemplate.of(packed.one(0))
    if template is None:
        return None
    size = len(template.sample)
    for low in range(0, len(packed), _ROWS_AT_A_TIME):
        rows = packed.column(low, low + _ROWS_AT_A_TIME, 0, size).view(np.uint8).reshape(-1, size)
        if not template.fits(rows):
            return None
    return template.body_at, template.body_bytes
