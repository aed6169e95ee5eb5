"""Taking the bodies out of many encoded messages at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from queue_index.message_format import MSG_ID_BYTES, decode_message, locate_body
from queue_index.run import PackedTerms, Run


def bodies_of(run: Run, terms: Sequence[bytes] | None) -> list[bytes]:
    """The payloads of a run; ``terms``: its encoded messages, where they are not in RAM."""
    packed = run.batch.terms
    if terms is None and isinstance(packed, PackedTerms) and isinstance(packed.lengths, int):
        place = _common_place(run, packed)
        if place is not None:
            at, size = place
            blob = packed.blob
            return [blob[start + at : start + at + size] for start in packed.offsets[run.low : run.high]]
    return [body_of(term) for term in (run.terms() if terms is None else terms)]


def body_of(term: bytes) -> bytes:
    """One encoded message's payload."""
    place = locate_body(term)
    return decode_message(term).body if place is None else term[place[0] : place[0] + place[1]]


def _common_place(run: Run, packed: PackedTerms) -> tuple[int, int] | None:
    """Where the body lies in every one of a run's messages; ``None`` unless they differ in body and id alone."""
    first = packed.one(run.low)
    place = locate_body(first)
    if place is None or not isinstance(packed.offsets, range):
        return None
    body_at, size, id_at = place
    if run.count > 1 and not run.batch.record_size:
        step = packed.offsets.step
        start = packed.offsets[run.low if step > 0 else run.high - 1]
        blob = np.frombuffer(packed.blob, np.uint8)[start:]
        rows = np.lib.stride_tricks.as_strided(blob, (run.count, len(first)), (abs(step), 1), writeable=False)
        sample = np.frombuffer(first, np.uint8)
        for low, high in ((0, body_at), (body_at + size, id_at), (id_at + MSG_ID_BYTES, len(first))):
            if not (rows[:, low:high] == sample[low:high]).all():
                return None
    return body_at, size
