"""What a start goes by that takes up a classic queue, whichever the version of its index: what a clean stop said."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from warren.queue_index.record_format import Bools, Ints
from warren.queue_index.recovery_terms import RecoveryTerms
from warren.salvage.queue_directory import MSG_IDS, MsgIds

NO_EXPIRY_US: Final = 1 << 63
"""No broker writes such an expiry, and columns cannot hold it."""

CHANGED: Final = "changed since the clean stop"
"""Kind of a finding: what is there is not what the clean stop counted."""


def seen(terms: RecoveryTerms | None, first_seq_id: int, count: int) -> Bools:
    """Which of ``count`` positions from ``first_seq_id`` on are looked at: those below ``next_seq_id``."""
    looked_at = np.ones(count, np.bool_)
    if terms is not None and terms.next_seq_id is not None:
        looked_at[max(terms.next_seq_id - first_seq_id, 0) :] = False
    return looked_at


def redelivered(terms: RecoveryTerms | None, seq_ids: Ints) -> Bools:
    """Which were delivered before: those below ``next_deliver_seq_id``; without terms all, as far as one can know."""
    below = None
    if terms is not None:
        below = terms.next_seq_id if terms.next_deliver_seq_id is None else terms.next_deliver_seq_id
    return np.ones(len(seq_ids), np.bool_) if below is None else seq_ids < below


def msg_ids_of(entries: npt.NDArray[Any]) -> MsgIds:
    """The column of ids of index entries."""
    return np.ascontiguousarray(entries["msg_id"]).view(MSG_IDS)
