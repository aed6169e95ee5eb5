"""Taking the bodies out of many encoded messages at once.

Messages of one publisher and one length differ in their bodies and ids alone, so the body lies in the same place in all
of them. For a batch that lies in one buffer this is checked once, column by column; then a body is a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from warren.queue_index.message_format import decode_message, locate_body
from warren.queue_index.message_template import MessageTemplate
from warren.queue_index.run import PackedTerms, Run, UnencodedTerms
from warren.storage.errors import MessageError

_NOWHERE: Final = (-1, 0)
_ROWS_AT_A_TIME: Final = 1024


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
    return _bodies(run.terms() if terms is None else terms)


def _bodies(terms: Sequence[bytes]) -> list[bytes | None]:
    """Bodies one by one; what the message before had around its body is tried first."""
    bodies: list[bytes | None] = []
    head = tail = end = b"\0"
    head_size = around = 0
    for term in terms:
        size = len(term) - around
        body_end = head_size + size
        if (
            size > 0
            and term.startswith(head)
            and term.startswith(tail, body_end)
            and term.endswith(end)
            and int.from_bytes(term[head_size - 4 : head_size], "big") == size
        ):
            bodies.append(term[head_size:body_end])
            continue
        try:
            bodies.append(body_of(term))
        except MessageError:
            bodies.append(None)
            continue
        template = MessageTemplate.of(term)
        if template is not None and template.body_bytes:
            head, tail, end = template.around_body()
            head_size, around = template.body_at, len(term) - template.body_bytes
    return bodies


def body_of(term: bytes) -> bytes:
    """One encoded message's payload."""
    place = locate_body(term)
    return decode_message(term).body if place is None else term[place[0] : place[0] + place[1]]


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
