"""Transaction: the handle of :mod:`warren.transaction`, for coroutines."""

from __future__ import annotations

import functools

from warren import transaction
from warren.aio.bridge import awaited, awaited_safe
from warren.topic_record import StoredMessage
from warren.transaction_verbs import TransactionHandle, TransactionVerbs


class Transaction(TransactionHandle):
    """One prepared message. ``commit`` and ``rollback`` come back when the decision is safe."""

    @functools.cached_property
    def blocking(self) -> transaction.Transaction:
        """The same transaction, for threads."""
        return transaction.Transaction(self._verbs)

    message = awaited(TransactionVerbs.record, StoredMessage)
    commit = awaited_safe(TransactionVerbs.commit)
    rollback = awaited_safe(TransactionVerbs.rollback)
