"""Transaction: the handle of :mod:`warren.handles.transaction`, for coroutines."""

from __future__ import annotations

import functools

from warren.aio.bridge import awaited, awaited_safe
from warren.handles import transaction
from warren.msg_store.commit_log.commit_log_format import Record
from warren.msg_store.commit_log.packed_records import packed_again
from warren.values.topic_record import StoredMessage
from warren.verbs.topics.transaction_verbs import TransactionHandle, TransactionVerbs


def _message(record: Record) -> StoredMessage:
    return StoredMessage(packed_again(record))


class Transaction(TransactionHandle):
    """One prepared message. ``commit`` and ``rollback`` come back when the decision is safe."""

    @functools.cached_property
    def blocking(self) -> transaction.Transaction:
        """The same transaction, for threads."""
        return transaction.Transaction(self._verbs)

    message = awaited(TransactionVerbs.record, _message)
    commit = awaited_safe(TransactionVerbs.commit)
    rollback = awaited_safe(TransactionVerbs.rollback)
