"""The verbs of a prepared message."""

from __future__ import annotations

from typing import Any

from warren.actors.engines.topics.transactions import Half
from warren.actors.runtime.future import Confirm
from warren.hosting.running_node import RunningNode
from warren.msg_store.commit_log.commit_log_format import Record
from warren.verbs.steps import Handle, Reading, Steps, call


class TransactionVerbs:
    """The verbs of one prepared message. A requested decision is carried out even if the caller does not wait."""

    def __init__(self, node: RunningNode, topic: str, half_offset: int, physical_offset: int, size: int) -> None:
        self._node = node
        self.topic = topic
        self.half_offset = half_offset
        self._physical_offset = physical_offset
        self._size = size

    def __str__(self) -> str:
        return f"{self.half_offset} for {self.topic}"

    @property
    def place(self) -> dict[str, Any]:
        """What identifies it: the constructor's arguments after the node."""
        return {
            "topic": self.topic,
            "half_offset": self.half_offset,
            "physical_offset": self._physical_offset,
            "size": self._size,
        }

    def record(self) -> Steps[Record]:
        """The message as it was prepared."""
        running = yield from self._node.topics()
        log = running.store.commit_log
        record: Record = yield Reading(lambda: log.record(self._physical_offset, self._size))
        return record

    def commit(self) -> Steps[Confirm]:
        """Append the message to its topic. The confirm comes when that is safe.

        It fails with :class:`TransactionError` if the message was decided before.
        """
        return self._decide(commit=True)

    def rollback(self) -> Steps[Confirm]:
        """Drop the message. The confirm comes when that is safe; it fails as that of :meth:`commit` does."""
        return self._decide(commit=False)

    def _decide(self, *, commit: bool) -> Steps[Confirm]:
        running = yield from self._node.caught_up()
        decided = Confirm(running.log.intake)
        transactions = running.transactions
        call(transactions, lambda: transactions.decide(self.half_offset, commit=commit)).on_done(decided.follow)
        return decided


class TransactionHandle(Handle[TransactionVerbs]):
    """The properties of a prepared message that need no request."""

    made_by = "topic.prepare(body)"

    @property
    def topic(self) -> str:
        """The topic that it goes to when it is committed."""
        return self._verbs.topic

    @property
    def half_offset(self) -> int:
        """Its number among all that were ever prepared."""
        return self._verbs.half_offset


def pending_places(node: RunningNode) -> Steps[list[dict[str, Any]]]:
    """Return the :attr:`TransactionVerbs.place` of a node's undecided messages."""
    if (yield from node.change(lambda registry: registry.topics)) is None:
        return []
    running = yield from node.caught_up()
    halves: tuple[Half, ...] = yield call(running.transactions, running.transactions.pending)
    return [
        TransactionVerbs(node, half.topic, half.queue_offset, half.physical_offset, half.size).place for half in halves
    ]
