"""The verbs of a topic.

Messages are appended to one of the topic's queues and stay there, in order; groups read them, each at its own pace
(:mod:`warren.handles.topic`). They expire with their CommitLog file (``file_reserved_time``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict, TypeVar, Unpack

import attrs

from warren.actors.engines.topics.consumer_group import StartOffset
from warren.actors.engines.topics.consumer_groups import ConsumerGroups
from warren.actors.engines.topics.routing import Part, Router, queue_of_key
from warren.actors.engines.topics.schedule import level_of_delay, to_scheduled
from warren.actors.engines.topics.transactions import prepare
from warren.actors.topics.log_intake import AppendConfirm, AppendKey
from warren.hosting.running_node import RunningNode
from warren.msg_store.commit_log.commit_log import Batch
from warren.msg_store.commit_log.commit_log_format import FIXED_BYTES, MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES, Host
from warren.msg_store.commit_log.packed_records import PackedRecords, packed
from warren.storage.call_arguments import as_texts
from warren.storage.errors import MessageError
from warren.storage.topic_settings import TopicSettings
from warren.values.messages import as_bodies, as_body
from warren.values.topic_record import HERE, Moment, Origin, encode_message_properties, properties_of_keys
from warren.verbs.operation import Operation, Performer, local, operation
from warren.verbs.steps import NamedHandle, Reading, Steps, answered, call, run
from warren.verbs.topics.member import Member, MemberArguments, group_key
from warren.verbs.topics.reader_verbs import ReaderVerbs
from warren.verbs.topics.topic_append import AppendManyConfirm
from warren.verbs.topics.topic_host import LocalTopic, TopicHost
from warren.verbs.topics.topic_lookup import (
    find,
    message_at,
    message_of_id,
    offsets_at,
    offsets_of,
    record_at,
    records_from,
)
from warren.verbs.topics.transaction_verbs import HalfPlace, TransactionVerbs

T = TypeVar("T")

Chooser = Callable[[bytes], int]
"""Chooses the queue of a body."""

_BLANK_BYTES: Final = 8
_HERE_AND_NOW: Final = Origin()


class OriginArguments(TypedDict, total=False):
    """What is recorded about a message's producer."""

    flag: int
    """A number of 32 bits, the producer's own."""
    born_at: Moment | None
    """When it was made, if not now."""
    born_host: str | None
    """Where (``"10.1.2.3:50123"``) it was made, if not here."""


class PrepareArguments(OriginArguments, total=False):
    """The options of a prepared message."""

    key: str | Iterable[str] | None
    """One or several keys to find the message by."""
    tag: str | None
    properties: Mapping[str, str] | None
    queue: int | Chooser | None
    """Its number, or a function. ``None``: the queue of the first key, or without a key the next in turn."""


class AppendArguments(PrepareArguments, total=False):
    """The options of an appended message."""

    delay: float | None
    """Seconds before it can be read, rounded up to the next of the store's delay levels."""
    delay_level: int | None
    """1 … 18."""


class AppendManyArguments(OriginArguments, total=False):
    """The options of messages that are appended together."""

    keys: Sequence[str] | None
    """One for each."""
    tag: str | None
    tags: Sequence[str | None] | None
    """One for each."""
    properties: Mapping[str, str] | None
    queue: int | Chooser | None


def records_to_plain(records: list[PackedRecords]) -> list[bytes]:
    """Encode records, each by itself, for a guest."""
    return [record.data() for record in records]


def records_of(answer: list[bytes]) -> list[PackedRecords]:
    """Undo :func:`records_to_plain`."""
    return list(map(packed, answer))


def _bounds_of(answer: dict[int, list[int]]) -> dict[int, tuple[int, int]]:
    return {queue_id: (first, end) for queue_id, (first, end) in answer.items()}


class TopicVerbs(Performer):
    """The verbs of one topic."""

    def __init__(self, host: TopicHost, settings: TopicSettings) -> None:
        """``settings``: those of the node."""
        self.host = host
        self.name = host.name
        self._settings = settings
        self._store_host = Host.parse(f"{settings.broker_ip1}:{settings.listen_port}")
        self._most_bytes = min(settings.max_message_size, settings.mapped_file_size_commit_log - _BLANK_BYTES)
        self._key = AppendKey(self.name, HERE, self._store_host)
        self._router = Router(host.queues_now())

    def __str__(self) -> str:
        return repr(self.name)

    def perform(self, operation: Operation[T]) -> Steps[T]:
        return self.host.perform(self, operation)

    @property
    def node(self) -> RunningNode:
        """The node in this process, which performs the operations."""
        return local(self.host, LocalTopic).node

    @property
    def queues(self) -> int:
        """How many it has."""
        return run(self.count_queues())

    @operation("topic")
    def count_queues(self) -> Steps[int]:
        """Return how many queues it has."""
        return answered(self.host.queues_now())

    # ── appending ───────────────────────────────────────────────────────────────────────────────────────────────

    def append(
        self,
        body: bytes,
        *,
        block: bool = True,
        timeout: float | None = None,
        **arguments: Unpack[AppendArguments],
    ) -> Steps[AppendConfirm]:
        """Append a message; the confirm's ``wait`` returns its position once it is safe.

        While the disk lags, or an alarm is set, this waits (``block``, ``timeout``), then raises :class:`BlockedError`;
        the message was not taken.
        """
        yield from self.host.ready()
        return (yield from self.host.append(self.message(body, self.host.queues_now(), **arguments), block, timeout))

    def append_many(
        self,
        bodies: Iterable[bytes],
        *,
        block: bool = True,
        timeout: float | None = None,
        **arguments: Unpack[AppendManyArguments],
    ) -> Steps[AppendManyConfirm]:
        """Append messages in one go. Otherwise as :meth:`append`.

        Without ``keys`` and ``queue`` all (up to 1024) go to one queue, those of the next call to the next one.
        """
        yield from self.host.ready()
        parts, batches = self._batches(bodies, **arguments)
        confirm = yield from self.host.hand_over(batches, block, timeout)
        return AppendManyConfirm(self.name, parts, confirm)

    def prepare(
        self,
        body: bytes,
        *,
        group: str = "warren",
        block: bool = True,
        timeout: float | None = None,
        **arguments: Unpack[PrepareArguments],
    ) -> Steps[TransactionVerbs]:
        """Store a message that stays hidden until the transaction is committed; return when it is safe.

        ``group``: the producer's; it is stored with the message. If this is cancelled after there was room, the message
        is prepared, and listed in :meth:`warren.Node.pending_transactions`.
        """
        return self.host.host.within(timeout, self._prepare(body, group, block, timeout, arguments))

    def _prepare(
        self, body: bytes, group: str, block: bool, timeout: float | None, arguments: PrepareArguments
    ) -> Steps[TransactionVerbs]:
        yield from self.host.ready()
        confirm = yield from self.host.hand_over([self._half(body, group, **arguments)], block, timeout)
        [half] = yield confirm
        place = HalfPlace(self.name, half.queue_offset, int(half.physical_offsets[0]), int(half.sizes[0]))
        verbs = TransactionVerbs(self.host.transaction(place))
        self.host.host.move_at_fork(verbs, lambda: self.host.transaction(place))
        return verbs

    def room(self, timeout: float | None = None) -> Steps[None]:
        """Wait until a message would be taken at once; raise :class:`BlockedError` after ``timeout`` seconds."""
        return self.host.room(timeout)

    @operation("topic", flushes=True)
    def sync(self) -> Steps[None]:
        """Return when everything that was appended before is on the disk."""
        running = yield from self.node.topics()
        yield call(running.log, running.log.sync)

    # ── what is handed over ─────────────────────────────────────────────────────────────────────────────────────

    def message(
        self,
        body: bytes,
        queues: int,
        *,
        key: str | Iterable[str] | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | Chooser | None = None,
        delay: float | None = None,
        delay_level: int | None = None,
        **origin: Unpack[OriginArguments],
    ) -> AppendConfirm:
        """Return a message that can be appended. ``queues``: how many the topic has."""
        body = as_body(body)
        if key is not None and not isinstance(key, str):
            key = as_texts(key, "key")
        encoded = encode_message_properties(key, tag, properties)
        queue_id = self._route_one(body, queues, key, queue)
        self._check_size(len(body) + len(encoded))
        key_of = self._key
        if origin:
            of = Origin.of(**origin)
            key_of = AppendKey(self.name, of.born_host, self._store_host, of.born_timestamp, of.flag)
        if delay is not None and delay_level is not None:
            raise MessageError("a message has a delay or a delay_level, not both")
        level = 0
        if delay is not None:
            level = level_of_delay(round(delay * 1000), self._settings)
        elif delay_level is not None:
            level = delay_level
        if not level:
            return AppendConfirm(key_of, queue_id, body, encoded)
        plain = self.batch(Part(queue_id, range(1)), [body], encoded)
        batch = to_scheduled(plain, level, self._settings)
        waiting = _only(batch.properties)
        self._check([body], [waiting], batch.topic)
        return AppendConfirm(attrs.evolve(key_of, topic=batch.topic), batch.queue_id, body, waiting)

    def _batches(
        self,
        bodies: Iterable[bytes],
        *,
        keys: Sequence[str] | None = None,
        tag: str | None = None,
        tags: Sequence[str | None] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | Chooser | None = None,
        **origin: Unpack[OriginArguments],
    ) -> tuple[list[Part], list[Batch]]:
        """Return which messages go to which queue, and the batches to append now."""
        checked_bodies = as_bodies(bodies)
        keys, tags = None if keys is None else as_texts(keys, "keys"), None if tags is None else list(tags)
        parts = self._route(checked_bodies, keys, queue)
        encoded = _many_properties(len(checked_bodies), keys, tag, tags, properties)
        self._check(checked_bodies, [encoded] if isinstance(encoded, bytes) else encoded)
        of = Origin.of(**origin)
        return parts, [self.batch(part, checked_bodies, encoded, of) for part in parts]

    def _half(
        self,
        body: bytes,
        group: str,
        *,
        key: str | Iterable[str] | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | Chooser | None = None,
        **origin: Unpack[OriginArguments],
    ) -> Batch:
        body = as_body(body)
        if key is not None and not isinstance(key, str):
            key = as_texts(key, "key")
        encoded = encode_message_properties(key, tag, properties)
        part = Part(self._route_one(body, self.host.queues_now(), key, queue), range(1))
        half = prepare(self.batch(part, [body], encoded, Origin.of(**origin)), group)
        self._check([body], [_only(half.properties)], half.topic)
        return half

    def _route(self, bodies: Sequence[bytes], keys: Sequence[str] | None, queue: int | Chooser | None) -> list[Part]:
        if (queues := self.host.queues_now()) != self._router.queues:  # queues were added meanwhile
            self._router.queues = queues
        if queue is None:
            return self._router.in_turn(len(bodies)) if keys is None else self._router.by_keys(keys)
        if callable(queue):
            return self._router.by_choice(len(bodies), lambda number: queue(bodies[number]))
        return self._router.to_queue(len(bodies), queue)

    def _route_one(self, body: bytes, queues: int, key: str | Iterable[str] | None, queue: int | Chooser | None) -> int:
        """Choose the queue of one message; ``queues``: how many the topic has."""
        if queue is None and queues == self._router.queues:
            if key is None:
                return self._router.one_in_turn()
            return queue_of_key(_first(key), queues) if queues > 1 else 0
        [part] = self._route([body], None if key is None else [_first(key)], queue)
        return part.queue_id

    def batch(
        self, part: Part, bodies: Sequence[bytes], properties: bytes | Sequence[bytes], origin: Origin = _HERE_AND_NOW
    ) -> Batch:
        """Return the batch of messages to append to one queue now."""
        born_ms = origin.born_timestamp
        return Batch(
            topic=self.name,
            queue_id=part.queue_id,
            bodies=part.of(bodies),
            properties=properties if isinstance(properties, bytes) else part.of(properties),
            born_timestamp=self.host.host.now_ms() if born_ms is None else born_ms,
            born_host=origin.born_host,
            store_host=self._store_host,
            flag=origin.flag,
            as_one=False,
        )

    def _check(self, bodies: Sequence[bytes], properties: Sequence[bytes], waiting_in: str = "") -> None:
        """Raise :class:`MessageError` if a message is too large for a record or for a file.

        ``waiting_in``: the topic of the store's own that it is stored in first.
        """
        around = max(map(len, properties), default=0)
        topic_bytes = max(len(self.name), len(waiting_in))
        self._check_size(max(map(len, bodies), default=0) + around, topic_bytes)
        if around > MAX_PROPERTIES_BYTES:
            raise MessageError(f"{around} bytes of properties; {MAX_PROPERTIES_BYTES} at most")

    def _check_size(self, size: int, topic_bytes: int = 0) -> None:
        """Raise it if ``size`` bytes of body and properties together, or of the topic's name, are too many."""
        if len(self.name) > MAX_TOPIC_BYTES:
            raise MessageError(f"a topic of {len(self.name)} characters can only be read; {MAX_TOPIC_BYTES} at most")
        size += FIXED_BYTES + (topic_bytes or len(self.name))
        if size > self._most_bytes:
            raise MessageError(f"a message of {size} bytes with all that is around it; {self._most_bytes} at most")

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def reader(self, group: str, *, auto_commit: bool = True, **arguments: Unpack[MemberArguments]) -> ReaderVerbs:
        """Return the verbs of a reader, which joins its group when it begins."""
        return ReaderVerbs(self.host.reader(Member(self.name, group, **arguments)), auto_commit=auto_commit)

    # ── looking messages up ─────────────────────────────────────────────────────────────────────────────────────

    @operation("topic", encode=records_to_plain, decode=records_of)
    def find(
        self,
        key: str,
        *,
        begin: Moment | None = None,
        end: Moment | None = None,
        limit: int = 64,
        exact: bool = True,
    ) -> Steps[list[PackedRecords]]:
        """Return messages with this key (or UNIQ_KEY), the newest first, stored from ``begin`` to ``end`` inclusive.

        ``exact=False``: trust the index, without a look at the messages' keys: other keys of the same hash are
        included, and a message can come twice.
        """
        running = yield from self.node.caught_up(with_index=True)
        matches: list[PackedRecords] = yield Reading(
            lambda: find(running, self.name, key, begin=begin, end=end, limit=limit, exact=exact)
        )
        return matches

    @operation("topic", encode=PackedRecords.data, decode=packed)
    def get(self, queue_id: int, queue_offset: int) -> Steps[PackedRecords]:
        """Return a message by its number in its queue; raises ``LookupError``."""
        running = yield from self.node.caught_up()
        record: PackedRecords = yield Reading(lambda: record_at(running, self.name, queue_id, queue_offset))
        return record

    @operation("topic", encode=records_to_plain, decode=records_of)
    def pull(self, queue_id: int, queue_offset: int, max_records: int = 32) -> Steps[list[PackedRecords]]:
        """Return messages of a queue from a number on, or from its first: at least one unless it ends there, and fewer
        than ``max_records`` if they are large. It moves no group. Raises :class:`QueueRangeError` if the queue ends
        before that number."""
        running = yield from self.node.caught_up()
        records: list[PackedRecords] = yield Reading(
            lambda: records_from(running, self.name, queue_id, queue_offset, max_records)
        )
        return records

    @operation("topic", encode=PackedRecords.data, decode=packed)
    def message_at(self, physical_offset: int) -> Steps[PackedRecords]:
        """Return a message by its offset in the CommitLog; raises ``LookupError``."""
        running = yield from self.node.topics()
        record: PackedRecords = yield Reading(lambda: message_at(running, self.name, physical_offset))
        return record

    @operation("topic", encode=PackedRecords.data, decode=packed)
    def view_message(self, message_id: str) -> Steps[PackedRecords]:
        """Return a message by its id, as :attr:`TopicRecord.message_id` shows it (RocketMQ's offsetMsgId).

        Raises ``LookupError``, and :class:`RecordError` for an invalid id.
        """
        running = yield from self.node.topics()
        record: PackedRecords = yield Reading(lambda: message_of_id(running, self.name, message_id))
        return record

    # ── where groups and messages are ───────────────────────────────────────────────────────────────────────────

    @operation("topic", decode=_bounds_of)
    def offsets(self) -> Steps[dict[int, tuple[int, int]]]:
        """Return, by queue, the number of the first message, and that of the next one to be stored."""
        running = yield from self.node.caught_up()
        return offsets_of(running, self.name, self.host.queues_now())

    @operation("topic")
    def offset_at(self, moment: Moment) -> Steps[dict[int, int]]:
        """Return, by queue, the number of the first message stored at this time or later, or of the next if none."""
        running = yield from self.node.caught_up()
        queues = self.host.queues_now()
        offsets: dict[int, int] = yield Reading(lambda: offsets_at(running, self.name, queues, moment))
        return offsets

    @operation("topic")
    def seek(
        self,
        group: str,
        place: StartOffset | Moment | Mapping[int, StartOffset],
        *,
        broadcast: bool = False,
        instance_name: str | None = None,
    ) -> Steps[dict[int, int]]:
        """Move a group to "first", "last", a time, or a place for each queue; return the queue offsets.

        A whole number is a queue offset, for all queues; for a time use a ``float`` or a ``datetime``. ``broadcast``:
        an instance of a group of broadcast readers; ``None`` is the first one.
        """
        group = group_key(group, instance_name, broadcast=broadcast)
        if not isinstance(place, str | Mapping | int):
            place = dict((yield from self.offset_at(place)))
        places = place
        sought: dict[int, int] = yield from self._ask_groups(lambda groups: groups.seek(self.name, group, places))
        return sought

    @operation("topic")
    def lag(self, group: str, *, broadcast: bool = False, instance_name: str | None = None) -> Steps[dict[int, int]]:
        """Return, by queue, how many messages the group, or an instance of it, has not finished."""
        group = group_key(group, instance_name, broadcast=broadcast)
        lag: dict[int, int] = yield from self._ask_groups(lambda groups: groups.lag(self.name, group))
        return lag

    @operation("topic")
    def groups(self, *, broadcast: bool = False) -> Steps[dict[str, dict[str, Any]]]:
        """Return, by group, members with queues, committed queue offsets, lag. ``broadcast``: by ``group@instance``."""
        described: dict[str, dict[str, dict[str, Any]]] = yield from self._ask_groups(
            lambda groups: groups.described(broadcast=broadcast)
        )
        return described.get(self.name, {})

    def _ask_groups(self, work: Callable[[ConsumerGroups], object]) -> Steps[Any]:
        running = yield from self.node.caught_up()
        return (yield call(running.groups, lambda: work(running.groups.consumer_groups)))


class TopicHandle(NamedHandle[TopicVerbs]):
    """The properties of a topic that need no request."""

    made_by = "node.topic(name)"

    def _identity(self) -> tuple[object, str, str]:
        return self._verbs.host.host.identity, "", self.name

    @property
    def name(self) -> str:
        return self._verbs.name

    @property
    def queues(self) -> int:
        """How many it has."""
        return self._verbs.queues


def _many_properties(
    count: int,
    keys: Sequence[str] | None,
    tag: str | None,
    tags: Sequence[str | None] | None,
    properties: Mapping[str, str] | None,
) -> bytes | list[bytes]:
    """One for all, or one for each."""
    if tag is not None and tags is not None:
        raise MessageError("messages have one tag or a list of tags, not both")
    for column in (keys, tags):
        if column is not None and len(column) != count:
            raise MessageError(f"{len(column)} keys or tags for {count} messages")
    if tags is not None:
        named = [None] * count if keys is None else keys
        return [encode_message_properties(key, own, properties) for key, own in zip(named, tags, strict=True)]
    common = encode_message_properties(None, tag, properties)
    return common if keys is None else properties_of_keys(keys, common)


def _first(key: str | Iterable[str]) -> str:
    return key if isinstance(key, str) else next(iter(key), "")


def _only(properties: bytes | Sequence[bytes]) -> bytes:
    return properties if isinstance(properties, bytes) else properties[0]
