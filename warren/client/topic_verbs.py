"""The verbs of :mod:`warren.verbs.topic_verbs` and :mod:`warren.verbs.transaction_verbs`, for topics that another
process hosts.

A message is made, checked and given its queue here, with the host's settings, and appended there.
"""

from __future__ import annotations

import datetime
from typing import Any, TypeVar, Unpack

from warren.actors.runtime.future import Confirm, Future
from warren.actors.topics.log_intake import AppendConfirm
from warren.client.appending import ConfirmedCalls
from warren.client.calls import call
from warren.client.reader_verbs import RemoteReaderVerbs
from warren.client.remote import RemoteVhost
from warren.msg_store.commit_log.commit_log_format import Record, decode
from warren.msg_store.commit_log.message_batch import Batch
from warren.msg_store.commit_log.packed_records import PackedRecords
from warren.storage.topic_settings import TopicSettings
from warren.values.topic_record import Moment, to_ms
from warren.verbs.operation import Operation
from warren.verbs.reader_verbs import ReaderArguments
from warren.verbs.steps import Steps, run
from warren.verbs.topic_verbs import AppendArguments, PrepareArguments, TopicVerbs
from warren.verbs.transaction_verbs import TransactionVerbs

T = TypeVar("T")


class RemoteTopicVerbs(TopicVerbs):
    """The verbs of one topic."""

    def __init__(self, remote: RemoteVhost, name: str, queues: int, settings: TopicSettings) -> None:
        """``queues``: how many it has; ``settings``: the host's."""
        self.remote = remote
        self.name = name
        self.node = remote  # type: ignore[assignment]
        remote.topic_queues[name] = queues
        self._begin(settings)

    def perform(self, operation: Operation[T]) -> Steps[T]:
        arguments = {name: _as_seconds(value) for name, value in operation.arguments.items()}
        return self.remote.perform(Operation(operation.definition, arguments), self.name)

    @property
    def queues(self) -> int:
        count = run(self.count_queues())
        self.remote.topic_queues[self.name] = count
        return count

    def _queues_now(self) -> int:
        return self.remote.topic_queues[self.name]

    # ── appending ───────────────────────────────────────────────────────────────────────────────────────────────

    def _ready(self) -> Steps[None]:
        return
        yield

    def check_now(self) -> None:
        """Nothing: the host says it."""

    def append_here(self, body: bytes, block: bool, timeout: float | None, arguments: AppendArguments) -> AppendConfirm:
        return run(self.append(body, block=block, timeout=timeout, **arguments))

    def _append(self, message: AppendConfirm, block: bool, timeout: float | None) -> Steps[AppendConfirm]:
        topics = self.remote.topic_queues
        message.confirm = yield from self.remote.hand_over(
            lambda calls: calls.append(message, topics), block=block, timeout=timeout
        )
        return message

    def _hand_over(self, batches: list[Batch], block: bool, timeout: float | None) -> Steps[Confirm]:
        if not batches:
            self.remote.check_process()
            confirm = Confirm()
            confirm.set([])
            return confirm

        def give(calls: ConfirmedCalls) -> Confirm | Future:
            return calls.append_many(batches, self.remote.topic_queues)

        return (yield from self.remote.hand_over(give, block=block, timeout=timeout))

    def prepare(
        self,
        body: bytes,
        *,
        group: str = "warren",
        block: bool = True,
        timeout: float | None = None,
        **arguments: Unpack[PrepareArguments],
    ) -> Steps[TransactionVerbs]:
        steps = super().prepare(body, group=group, block=block, timeout=timeout, **arguments)
        return self.remote.within(timeout, steps)

    def _transaction(self, half_offset: int, physical_offset: int, size: int) -> TransactionVerbs:
        return RemoteTransactionVerbs(self.remote, self.name, half_offset, physical_offset, size)

    def room(self, timeout: float | None = None) -> Steps[None]:
        return self.remote.room_for_calls(timeout)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def reader(self, group: str, **arguments: Unpack[ReaderArguments]) -> RemoteReaderVerbs:
        return RemoteReaderVerbs(self.remote, self.name, group, **arguments)

    def find_here(
        self, key: str, begin: Moment | None, end: Moment | None, limit: int, exact: bool
    ) -> list[PackedRecords]:
        return run(self.find(key, begin=begin, end=end, limit=limit, exact=exact))


class RemoteTransactionVerbs(TransactionVerbs):
    """The verbs of one prepared message."""

    def __init__(self, remote: RemoteVhost, topic: str, half_offset: int, physical_offset: int, size: int) -> None:
        super().__init__(remote, topic, half_offset, physical_offset, size)  # type: ignore[arg-type]
        self._remote = remote

    def record(self) -> Steps[Record]:
        return decode((yield from call(self._remote, "transaction", verb="record", **self.place)))

    def _decide(self, *, commit: bool) -> Steps[Confirm]:
        arguments = {"verb": "commit" if commit else "rollback", **self.place}

        def decided(calls: ConfirmedCalls) -> Confirm | Future:
            return calls.call("transaction", arguments)

        return self._remote.hand_over(decided, block=True, timeout=None)


def _as_seconds(value: Any) -> Any:
    """Return a moment as seconds since 1970; other values as they are."""
    return to_ms(value) / 1000 if isinstance(value, datetime.datetime) else value
