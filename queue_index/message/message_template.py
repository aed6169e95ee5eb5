"""The common bytes of messages that differ only in body and id.

Messages of one publisher and one length are such: their bodies and ids lie at the same places. A template is made of
one of them. It takes the bodies and the ids out of a matrix of encoded messages, a row each, as columns; and it says
which bytes messages of another length have as well.
"""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

from warren.queue_index.message.message_format import MSG_ID_BYTES, locate_body

Octets = npt.NDArray[np.uint8]


@attrs.frozen(eq=False, repr=False)
class MessageTemplate:
    """The bytes around body and id of one encoded message, and the places of both."""

    sample: bytes
    body_at: int
    body_bytes: int
    msg_id_at: int

    @classmethod
    def of(cls, encoded: bytes) -> MessageTemplate | None:
        """``None``: body and id do not lie in one piece in ``encoded``, or it has no id."""
        place = locate_body(encoded)
        return None if place is None else cls(encoded, *place)

    def fits(self, rows: Octets) -> bool:
        """Whether all rows, which have the sample's length, differ from it in body and id alone."""
        sample = np.frombuffer(self.sample, np.uint8)
        around = (
            slice(0, self.body_at),
            slice(self.body_at + self.body_bytes, self.msg_id_at),
            slice(self.msg_id_at + MSG_ID_BYTES, len(self.sample)),
        )
        return all(bool((rows[:, columns] == sample[columns]).all()) for columns in around)

    def bodies(self, rows: Octets) -> Octets:
        """Of rows that fit."""
        return rows[:, self.body_at : self.body_at + self.body_bytes]

    def msg_ids(self, rows: Octets) -> Octets:
        """Of rows that fit."""
        return np.ascontiguousarray(rows[:, self.msg_id_at : self.msg_id_at + MSG_ID_BYTES])
