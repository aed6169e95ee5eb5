"""The verbs of :mod:`warren.verbs.topic_verbs` and :mod:`warren.verbs.transaction_verbs`, for topics that another
process hosts.

A message is made, checked and given its queue here, with the host's settings, and appended there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from warren.actors.engines.topics.consumer_group import StartOffset
from warren.actors.runtime.future import Confirm, Future
from warren.actors.topics.commit_log_actor import AppendConfirm
from warren.client.appending import KeptCalls
from warren.client.calls import call
from warren.client.reader_verbs import RemoteReaderVerbs
from warren.client.remote import RemoteVhost
from warren.msg_store.commit_log.commit_log_format import Record, decode
from warren.msg_store.commit_log.message_batch import Batch
from warren.msg_store.commit_log.packed_records import PackedRecords, packed
from warren.storage.topic_settings import TopicSettings
from warren.values.topic_record import Moment, to_ms
from warren.verbs.reader_verbs import ReaderArguments
from warren.verbs.steps import Steps, run
from warren.verbs.topic_verbs import AppendArguments, TopicVerbs
from warren.verbs.transaction_verbs import TransactionVerbs


class RemoteTopicVerbs(TopicVerbs):
    """The verbs of one topic."""

    def __init__(self, remote: RemoteVhost, name: str, queues: int, settings: TopicSettings) -> None:
        """``queues``: how many it has; ``settings``: the host's."""
        self.remote = remote
        self.name = name
        self.node = remote  # type: ignore[assignment]
        remote.topic_queues[name] = queues
        self._begin(settings)

    def _call(self, verb: str, /, *arguments: Any, **keywords: Any) -> Steps[Any]:
        return call(self.remote, "topic", name=self.name, verb=verb, arguments=arguments, keywords=keywords)

    @property
    def queues(self) -> int:
        found: int = run(self._call("queues"))
        self.remote.topic_queues[self.name] = found
        return found

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
            confirm = Confirm()
            confirm.set([])
            return confirm

        def give(calls: KeptCalls) -> Confirm | Future:
            return calls.append_many(batches, self.remote.topic_queues)

        return (yield from self.remote.hand_over(give, block=block, timeout=timeout))

    def _transaction(self, half_offset: int, physical_offset: int, size: int) -> TransactionVerbs:
        return RemoteTransactionVerbs(self.remote, self.name, half_offset, physical_offset, size)

    def room(self, timeout: float | None = None) -> Steps[None]:
        return self.remote.room_for_calls(timeout)

    def sync(self) -> Steps[None]:
        yield from self.remote.flush()
        yield from self._call("sync")

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def reader(self, group: str, **arguments: Unpack[ReaderArguments]) -> RemoteReaderVerbs:
        return RemoteReaderVerbs(self.remote, self.name, group, **arguments)

    def find(
        self,
        key: str,
        *,
        begin: Moment | None = None,
        end: Moment | None = None,
        limit: int = 64,
        exact: bool = True,
    ) -> Steps[list[PackedRecords]]:
        times = {"begin": _seconds(begin), "end": _seconds(end)}
        return list(map(packed, (yield from self._call("find", key, **times, limit=limit, exact=exact))))

    def find_here(
        self, key: str, begin: Moment | None, end: Moment | None, limit: int, exact: bool
    ) -> list[PackedRecords]:
        return run(self.find(key, begin=begin, end=end, limit=limit, exact=exact))

    def get(self, queue_id: int, queue_offset: int) -> Steps[PackedRecords]:
        return packed((yield from self._call("get", queue_id, queue_offset)))

    def pull(self, queue_id: int, queue_offset: int, max_records: int = 32) -> Steps[list[PackedRecords]]:
        return list(map(packed, (yield from self._call("pull", queue_id, queue_offset, max_records))))

    def message_at(self, physical_offset: int) -> Steps[PackedRecords]:
        return packed((yield from self._call("message_at", physical_offset)))

    def view_message(self, message_id: str) -> Steps[PackedRecords]:
        return packed((yield from self._call("view_message", message_id)))

    # ── where groups and messages are ───────────────────────────────────────────────────────────────────────────

    def offsets(self) -> Steps[dict[int, tuple[int, int]]]:
        found = yield from self._call("offsets")
        return {queue_id: (first, last) for queue_id, (first, last) in found.items()}

    def offset_at(self, moment: Moment) -> Steps[dict[int, int]]:
        return self._call("offset_at", _seconds(moment))

    def seek(
        self,
        group: str,
        place: StartOffset | Moment | Mapping[int, StartOffset],
        *,
        broadcast: bool = False,
        instance_name: str | None = None,
    ) -> Steps[dict[int, int]]:
        where = place if isinstance(place, str | Mapping | int) else _seconds(place)
        return self._call("seek", group, where, broadcast=broadcast, instance_name=instance_name)

    def lag(self, group: str, *, broadcast: bool = False, instance_name: str | None = None) -> Steps[dict[int, int]]:
        return self._call("lag", group, broadcast=broadcast, instance_name=instance_name)

    def groups(self, *, broadcast: bool = False) -> Steps[dict[str, dict[str, Any]]]:
        return self._call("groups", broadcast=broadcast)


class RemoteTransactionVerbs(TransactionVerbs):
    """The verbs of one prepared message."""

    def __init__(self, remote: RemoteVhost, topic: str, half_offset: int, physical_offset: int, size: int) -> None:
        super().__init__(remote, topic, half_offset, physical_offset, size)  # type: ignore[arg-type]
        self._remote = remote

    def record(self) -> Steps[Record]:
        return decode((yield from call(self._remote, "transaction", verb="record", **self.place)))

    def _decide(self, *, commit: bool) -> Steps[Confirm]:
        arguments = {"verb": "commit" if commit else "rollback", **self.place}

        def decided(calls: KeptCalls) -> Confirm | Future:
            return calls.call("transaction", arguments)

        return self._remote.hand_over(decided, block=True, timeout=None)


def _seconds(moment: Moment | None) -> float | None:
    return None if moment is None else to_ms(moment) / 1000
