"""The verbs of a prepared message."""

from __future__ import annotations

from typing import Protocol

import attrs

from warren.actors.engines.topics.transactions import Half
from warren.actors.runtime.future import Confirm
from warren.hosting.running_node import RunningNode
from warren.msg_store.commit_log.commit_log_format import Record
from warren.verbs.steps import Handle, Reading, Steps, call


@attrs.frozen
class HalfPlace:
    """Where a prepared message is."""

    topic: str
    half_offset: int
    physical_offset: int
    size: int


class TransactionHost(Protocol):
    """What decides a prepared message."""

    @property
    def place(self) -> HalfPlace:
        """The message's place."""

    def record(self) -> Steps[Record]:
        """Return the message as it was prepared."""

    def decide(self, *, commit: bool) -> Steps[Confirm]:
        """Commit it, or roll it back. The confirm comes when that is safe."""


class TransactionVerbs:
    """The verbs of one prepared message. A requested decision is carried out even if the caller does not wait."""

    def __init__(self, host: TransactionHost) -> None:
        self.host = host

    def __str__(self) -> str:
        return f"{self.host.place.half_offset} for {self.host.place.topic}"

    def record(self) -> Steps[Record]:
        """The message as it was prepared."""
        return self.host.record()

    def commit(self) -> Steps[Confirm]:
        """Append the message to its topic. The confirm comes when that is safe.

        It fails with :class:`TransactionError` if the message was decided before.
        """
        return self.host.decide(commit=True)

    def rollback(self) -> Steps[Confirm]:
        """Drop the message. The confirm comes when that is safe; it fails as that of :meth:`commit` does."""
        return self.host.decide(commit=False)


@attrs.frozen
class LocalTransaction:
    """A prepared message of a node in this process."""

    _node: RunningNode
    place: HalfPlace

    def record(self) -> Steps[Record]:
        running = yield from self._node.topics()
        log = running.store.commit_log
        record: Record = yield Reading(lambda: log.record(self.place.physical_offset, self.place.size))
        return record

    def decide(self, *, commit: bool) -> Steps[Confirm]:
        running = yield from self._node.caught_up()
        decided = Confirm(running.log.intake)
        transactions, half_offset = running.transactions, self.place.half_offset
        call(transactions, lambda: transactions.decide(half_offset, commit=commit)).on_done(decided.follow)
        return decided


class TransactionHandle(Handle[TransactionVerbs]):
    """The properties of a prepared message that need no request."""

    made_by = "topic.prepare(body)"

    @property
    def topic(self) -> str:
        """The topic that it goes to when it is committed."""
        return self._verbs.host.place.topic

    @property
    def half_offset(self) -> int:
        """Its number among all that were ever prepared."""
        return self._verbs.host.place.half_offset


def pending_places(node: RunningNode) -> Steps[list[HalfPlace]]:
    """Return where a node's undecided messages are."""
    if (yield from node.change(lambda registry: registry.topics)) is None:
        return []
    running = yield from node.caught_up()
    halves: tuple[Half, ...] = yield call(running.transactions, running.transactions.pending)
    return [HalfPlace(half.topic, half.queue_offset, half.physical_offset, half.size) for half in halves]
