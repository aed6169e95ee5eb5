"""What a start goes by that takes up a classic queue, whichever the version of its index: what a clean stop said."""

from __future__ import annotations

from typing import Final

import numpy as np

from queue_index.record_format import Bools
from queue_index.recovery_terms import RecoveryTerms

CHANGED: Final = "changed since the clean stop"
"""Kind of a finding: what is there is not what the clean stop counted."""


def seen(terms: RecoveryTerms | None, first_seq_id: int, count: int) -> Bools:
    """Which of ``count`` positions from ``first_seq_id`` on are looked at: those below ``next_seq_id``."""
    looked_at = np.ones(count, np.bool_)
    if terms is not None and terms.next_seq_id is not None:
        looked_at[max(terms.next_seq_id - first_seq_id, 0) :] = False
    return looked_at


def redelivered_below(terms: RecoveryTerms | None) -> int | None:
    """The first seq_id that was not delivered before; ``None``: all were, as far as one can know."""
    if terms is None:
        return None
    return terms.next_seq_id if terms.next_deliver_seq_id is None else terms.next_deliver_seq_id
