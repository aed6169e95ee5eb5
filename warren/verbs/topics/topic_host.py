"""Hosts of topics: what takes a topic's messages, reads them, and performs its operations.

:class:`LocalTopic` is a topic of this process. In a guest of a shared directory it is a
:class:`warren.client.link_topic.LinkTopic`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from warren.actors.node.admission import Admission
from warren.actors.node.node_errors import TopicsDownError
from warren.actors.runtime.future import Confirm
from warren.actors.topics.log_intake import AppendConfirm, LogIntake, size_of
from warren.hosting.running_node import RunningNode
from warren.msg_store.commit_log.message_batch import Batch
from warren.msg_store.commit_log.packed_records import PackedRecords
from warren.values.topic_record import Moment
from warren.verbs.operation import Host, Operation
from warren.verbs.publishing import room
from warren.verbs.steps import Steps, answered, run
from warren.verbs.topics.member import Member
from warren.verbs.topics.reader_host import LocalReader, ReaderHost
from warren.verbs.topics.topic_lookup import find
from warren.verbs.topics.transaction_verbs import HalfPlace, LocalTransaction, TransactionHost

T = TypeVar("T")


class TopicHost(Protocol):
    """What takes a topic's messages, and performs its operations."""

    name: str

    @property
    def host(self) -> Host:
        """The node, or the link to the process that hosts it."""

    def open(self) -> Steps[None]:
        """Wait until messages can be handed over without a wait."""

    def perform(self, verbs: Any, operation: Operation[T]) -> Steps[T]:
        """Perform an operation; return its answer."""

    def queues_now(self) -> int:
        """Return how many queues the topic has, as far as it is known without a request."""

    def ready(self) -> Steps[None]:
        """Raise why nothing can be appended now."""

    def check_now(self) -> None:
        """Raise it without waiting for topics that are being reopened."""

    def append_here(
        self, verbs: Any, body: bytes, block: bool, timeout: float | None, arguments: Mapping[str, Any]
    ) -> AppendConfirm:
        """``verbs.append`` for a thread: the message joins those that wait, if there is room."""

    def append(self, message: AppendConfirm, block: bool, timeout: float | None) -> Steps[AppendConfirm]:
        """Append a message."""

    def hand_over(self, batches: list[Batch], block: bool, timeout: float | None) -> Steps[Confirm]:
        """Append messages; the confirm's result lists where they went."""

    def room(self, timeout: float | None) -> Steps[None]:
        """Wait until a message would be taken at once."""

    def transaction(self, place: HalfPlace) -> TransactionHost:
        """Return the host of a prepared message."""

    def reader(self, member: Member) -> ReaderHost:
        """Return the host of a reader of the topic."""

    def find_here(
        self, verbs: Any, key: str, *, begin: Moment | None, end: Moment | None, limit: int, exact: bool
    ) -> list[PackedRecords]:
        """``verbs.find`` for a thread, which reads the files itself if it can."""


class LocalTopic:
    """A topic of a node in this process."""

    def __init__(self, node: RunningNode, name: str) -> None:
        self.node = self.host = node
        self.name = name

    def open(self) -> Steps[None]:
        return answered(None)

    def perform(self, verbs: Any, operation: Operation[T]) -> Steps[T]:
        return operation.performed_by(verbs)

    def queues_now(self) -> int:
        return self.node.topics_now().table.queues(self.name) or 1

    # ── appending ───────────────────────────────────────────────────────────────────────────────────────────────

    def ready(self) -> Steps[None]:
        yield from self.node.topics()

    def check_now(self) -> None:
        self.node.topics_now()

    def append_here(
        self, verbs: Any, body: bytes, block: bool, timeout: float | None, arguments: Mapping[str, Any]
    ) -> AppendConfirm:
        appended: AppendConfirm
        try:
            topics = self.node.topics_now()
        except TopicsDownError:
            appended = run(verbs.append(body, block=block, timeout=timeout, **arguments))
            return appended
        log = topics.log.intake
        message: AppendConfirm = verbs.message(body, topics.table.queues(self.name) or 1, **arguments)
        if log.inbox.weight < log.gate.limit and log.join(message):
            return message
        appended = self._admission(message, block, timeout).get()
        return appended

    def append(self, message: AppendConfirm, block: bool, timeout: float | None) -> Steps[AppendConfirm]:
        appended: AppendConfirm = yield self._admission(message, block, timeout)
        return appended

    def _admission(self, message: AppendConfirm, block: bool, timeout: float | None) -> Admission:
        def give(logs: Sequence[LogIntake], reserved_bytes: int, _: bool) -> AppendConfirm:
            return logs[0].append(message, reserved_bytes)

        return Admission(self._logs, lambda _: message.size_bytes, give, block, timeout, ahead=True)

    def _logs(self) -> list[LogIntake]:
        """Return the intake of the CommitLog. Raises the reason if it is not running."""
        return [self.node.topics_now().log.intake]

    def hand_over(self, batches: list[Batch], block: bool, timeout: float | None) -> Steps[Confirm]:
        return hand_over(self.node, batches, block, timeout)

    def room(self, timeout: float | None) -> Steps[None]:
        yield room(self._logs, timeout)

    def transaction(self, place: HalfPlace) -> LocalTransaction:
        return LocalTransaction(self.node, place)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def reader(self, member: Member) -> LocalReader:
        return LocalReader(self.node, member)

    def find_here(
        self, verbs: Any, key: str, *, begin: Moment | None, end: Moment | None, limit: int, exact: bool
    ) -> list[PackedRecords]:
        running = self.node.caught_up_now(with_index=True)
        if running is not None:
            return find(running, self.name, key, begin=begin, end=end, limit=limit, exact=exact)
        matches: list[PackedRecords] = run(verbs.find(key, begin=begin, end=end, limit=limit, exact=exact))
        return matches


def hand_over(
    node: RunningNode, batches: list[Batch], block: bool, timeout: float | None, *, passes_alarms: bool | None = None
) -> Steps[Confirm]:
    """Hand messages of any topics to the CommitLog; the confirm's result lists what was appended."""

    def give(logs: Sequence[LogIntake], reserved_bytes: int, _: bool) -> Confirm:
        [log] = logs
        confirm = Confirm(log)
        if batches:
            log.hand_over(batches, confirm, reserved_bytes)
        else:
            log.gate.leave(reserved_bytes, unused_bytes=reserved_bytes)
            confirm.set([])
        return confirm

    def logs() -> list[LogIntake]:
        return [node.topics_now().log.intake]

    admission = Admission(logs, lambda _: size_of(batches), give, block, timeout, passes_alarms=passes_alarms)
    handed_over: Confirm = yield admission
    return handed_over
