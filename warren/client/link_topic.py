"""LinkTopic and LinkTransaction: a topic that another process hosts, and its prepared messages.

A message is made, checked and given its queue here, with the host's settings, and appended there.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from warren.actors.runtime.future import Confirm, Future
from warren.client.appending import ConfirmedCalls
from warren.client.calls import call
from warren.client.remote import RemoteVhost
from warren.verbs.operation import Operation
from warren.verbs.steps import Steps, answered, run

if TYPE_CHECKING:
    from warren.actors.topics.log_intake import AppendConfirm
    from warren.client.link_reader import LinkReader
    from warren.msg_store.commit_log.commit_log_format import Record
    from warren.msg_store.commit_log.message_batch import Batch
    from warren.msg_store.commit_log.packed_records import PackedRecords
    from warren.values.topic_record import Moment
    from warren.verbs.topics.member import Member
    from warren.verbs.topics.transaction_verbs import HalfPlace

T = TypeVar("T")


class LinkTopic:
    """A topic whose host is another process; a :class:`~warren.verbs.topics.topic_host.TopicHost`."""

    def __init__(self, remote: RemoteVhost, name: str, queues: int) -> None:
        self.remote = self.host = remote
        self.name = name
        remote.topic_queues[name] = queues

    def open(self) -> Steps[None]:
        yield from self.remote.open_calls()

    def perform(self, _: object, operation: Operation[T]) -> Steps[T]:
        arguments = {name: _as_seconds(value) for name, value in operation.arguments.items()}
        result: Any = yield from self.remote.perform(Operation[T](operation.definition, arguments), self.name)
        if operation.definition.name == "topic.count_queues":
            self.remote.topic_queues[self.name] = result
        answer: T = result
        return answer

    def queues_now(self) -> int:
        return self.remote.topic_queues[self.name]

    # ── appending ───────────────────────────────────────────────────────────────────────────────────────────────

    def ready(self) -> Steps[None]:
        return answered(None)

    def check_now(self) -> None:
        """Do nothing: the host raises it."""

    def append_here(
        self, verbs: Any, body: bytes, block: bool, timeout: float | None, arguments: Mapping[str, Any]
    ) -> AppendConfirm:
        appended: AppendConfirm = run(verbs.append(body, block=block, timeout=timeout, **arguments))
        return appended

    def append(self, message: AppendConfirm, block: bool, timeout: float | None) -> Steps[AppendConfirm]:
        topics = self.remote.topic_queues
        message.confirm = yield from self.remote.hand_over(
            lambda calls: calls.append(message, topics), block=block, timeout=timeout
        )
        return message

    def hand_over(self, batches: list[Batch], block: bool, timeout: float | None) -> Steps[Confirm]:
        if not batches:
            self.remote.check_process()
            confirm = Confirm()
            confirm.set([])
            return confirm

        def give(calls: ConfirmedCalls) -> Confirm | Future:
            return calls.append_many(batches, self.remote.topic_queues)

        return (yield from self.remote.hand_over(give, block=block, timeout=timeout))

    def room(self, timeout: float | None) -> Steps[None]:
        return self.remote.room_for_calls(timeout)

    def transaction(self, place: HalfPlace) -> LinkTransaction:
        return LinkTransaction(self.remote, place)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def reader(self, member: Member) -> LinkReader:
        from warren.client.link_reader import LinkReader

        return LinkReader(self.remote, member)

    def find_here(
        self, verbs: Any, key: str, *, begin: Moment | None, end: Moment | None, limit: int, exact: bool
    ) -> list[PackedRecords]:
        matches: list[PackedRecords] = run(verbs.find(key, begin=begin, end=end, limit=limit, exact=exact))
        return matches


@attrs.frozen
class LinkTransaction:
    """A prepared message whose host is another process.

    A :class:`~warren.verbs.topics.transaction_verbs.TransactionHost`.
    """

    _remote: RemoteVhost
    place: HalfPlace

    def record(self) -> Steps[Record]:
        from warren.msg_store.commit_log.commit_log_format import decode

        return decode((yield from call(self._remote, "transaction", verb="record", **attrs.asdict(self.place))))

    def decide(self, *, commit: bool) -> Steps[Confirm]:
        arguments = {"verb": "commit" if commit else "rollback", **attrs.asdict(self.place)}

        def decided(calls: ConfirmedCalls) -> Confirm | Future:
            return calls.call("transaction", arguments)

        return self._remote.hand_over(decided, block=True, timeout=None)


def _as_seconds(value: Any) -> Any:
    """Return a moment as seconds since 1970; other values as they are."""
    from warren.values.topic_record import to_ms

    return to_ms(value) / 1000 if isinstance(value, datetime.datetime) else value
