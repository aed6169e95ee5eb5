"""Transaction: a message that nobody sees until its producer says so.

It is prepared, which is safe on the disk, and then committed or rolled back. What was neither when the process stopped
is found by :meth:`warren.Node.pending_transactions` after a restart: the producer decides then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors import topic_messages as tm
from actors.engines.topics.transactions import Half
from actors.future import Confirm, Future
from msg_store.commit_log_format import Record
from warren.topic_record import TopicRecord

if TYPE_CHECKING:
    from warren.node import Node


class Transaction:
    """One prepared message."""

    __slots__ = ("_node", "_physical_offset", "_size", "half_offset", "topic")

    def __init__(self, node: Node, topic: str, half_offset: int, physical_offset: int, size: int) -> None:
        self._node = node
        self.topic = topic
        """Where it goes when it is committed."""
        self.half_offset = half_offset
        """Its number among all that were ever prepared."""
        self._physical_offset = physical_offset
        self._size = size

    @property
    def message(self) -> TopicRecord:
        """The message as it was prepared."""
        record: Record = self._node.running_topics().store.commit_log.record(self._physical_offset, self._size)
        return TopicRecord(record)

    def commit(self) -> Confirm:
        """Append the message to its topic. The confirm comes when that is safe.

        It fails with :class:`TransactionError` where it was decided before.
        """
        return self._decide(commit=True)

    def rollback(self) -> Confirm:
        """Never append it. The confirm comes when that is safe; it fails as that of :meth:`commit` does."""
        return self._decide(commit=False)

    def _decide(self, *, commit: bool) -> Confirm:
        running = self._node.running_topics()
        running.catch_up()
        decided = Confirm(running.log)
        message = tm.Decide(self.half_offset, commit)
        answer: Future = running.transactions.actor_ref.ask(message, block=False)  # type: ignore[assignment]
        answer.on_done(decided.follow)
        return decided

    def __repr__(self) -> str:
        return f"<warren.Transaction {self.half_offset} for {self.topic}>"


def pending_transactions(node: Node) -> list[Transaction]:
    """Those of a node that are not decided."""
    if node.change(lambda actor: actor.topics) is None:
        return []
    running = node.running_topics()
    running.catch_up()
    halves: tuple[Half, ...] = running.transactions.actor_ref.ask(tm.GetPending())  # type: ignore[assignment]
    return [Transaction(node, one.topic, one.queue_offset, one.physical_offset, one.size) for one in halves]
