"""Transaction: a message that stays hidden until its producer commits it.

It is prepared, which is safe on the disk, and then committed or rolled back. A message that was undecided when the
process stopped is found by :meth:`warren.Node.pending_transactions` after a restart: the producer decides then.
"""

from __future__ import annotations

from warren.handles.topic_reader import TopicRecord
from warren.msg_store.commit_log.packed_records import packed_again
from warren.verbs.steps import blocking, run
from warren.verbs.topics.transaction_verbs import TransactionHandle, TransactionVerbs


class Transaction(TransactionHandle):
    """One prepared message."""

    @property
    def message(self) -> TopicRecord:
        """The message as it was prepared."""
        return TopicRecord(packed_again(run(self._verbs.record())))

    commit = blocking(TransactionVerbs.commit)
    rollback = blocking(TransactionVerbs.rollback)
