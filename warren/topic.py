"""Topic: a user's handle on one topic of a node. Safe to share between threads; hold on to it as long as you like.

Messages are appended to one of the topic's queues and stay there, in order; groups read them, each at its own pace
(:mod:`warren.topic_reader`). They go with their CommitLog file when that is old (``file_reserved_time``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from actors import topic_messages as tm
from actors.commit_log_actor import AppendConfirm, AppendKey, CommitLogActor, size_of
from actors.engines.topics.consumer_group import Place
from actors.engines.topics.routing import Part, Router
from actors.engines.topics.schedule import level_of_delay, to_scheduled
from actors.engines.topics.transactions import prepare
from actors.future import Confirm
from actors.running_topics import RunningTopics
from msg_store.commit_log import Batch
from msg_store.commit_log_format import FIXED_BYTES, MAX_PROPERTIES_BYTES, Host
from storage.errors import MessageError
from warren.broadcast import group_key
from warren.messages import as_bodies, as_body
from warren.process_bound import ProcessBound
from warren.topic_append import AppendManyConfirm, Messages
from warren.topic_lookup import find, message_at, message_of_id, offsets_at, offsets_of, record_at
from warren.topic_reader import Reader
from warren.topic_record import HERE, Moment, Origin, TopicRecord, check_key, encode_message_properties
from warren.transaction import Transaction

if TYPE_CHECKING:
    from actors.node_actor import NodeActor
    from warren.node import Node

Chooser = Callable[[bytes], int]
"""Says which queue a body goes to."""

_BLANK_BYTES: Final = 8
_OWN: Final = Origin()


class Topic(ProcessBound):
    """One topic. Made by :meth:`warren.Node.topic`."""

    def __init__(self, node: Node, name: str) -> None:
        self._node = node
        self._name = name
        settings = node.config.topics
        self._store_host = Host.parse(f"{settings.broker_ip1}:{settings.listen_port}")
        self._key = AppendKey(name, HERE, self._store_host)
        self._router = Router(self.queues)

    @property
    def name(self) -> str:
        return self._name

    @property
    def queues(self) -> int:
        """How many it has."""
        return self._running().table.queues(self._name) or 1

    def __repr__(self) -> str:
        return f"<warren.Topic {self._name!r}>"

    @property
    def log(self) -> CommitLogActor:
        """Whom messages are handed to; raises why there is nobody."""
        return self._running().log

    def _running(self) -> RunningTopics:
        return self._node.running_topics()

    # ── appending ───────────────────────────────────────────────────────────────────────────────────────────────

    def append(
        self,
        body: bytes,
        *,
        key: str | Iterable[str] | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | Chooser | None = None,
        delay: float | None = None,
        delay_level: int | None = None,
        flag: int = 0,
        born_at: Moment | None = None,
        born_host: str | None = None,
        block: bool = True,
        timeout: float | None = None,
    ) -> AppendConfirm:
        """Append a message; the confirm's ``wait`` comes back with where it is, once it is safe.

        ``key``: one, or several; it is found by them (:meth:`find`). The queue is that of the first key, the one named
        or chosen by ``queue``, or (without either) the one whose turn it is. ``delay``: seconds before it can be read,
        rounded up to the next of the store's delay levels; or ``delay_level``, 1 … 18. ``flag``: a number of 32 bits,
        the producer's own; ``born_at``, ``born_host``: when and where (``"10.1.2.3:50123"``) it was made, if not here
        and now. While the disk is behind, or an alarm is set, this waits (``block``, ``timeout``), then raises
        :class:`BlockedError`.
        """
        message = self.message(
            body,
            key=key,
            tag=tag,
            properties=properties,
            queue=queue,
            delay=delay,
            delay_level=delay_level,
            flag=flag,
            born_at=born_at,
            born_host=born_host,
        )
        log = self.log
        give = functools.partial(log.append, message)
        return log.admit(message.size_bytes, give, block=block, timeout=timeout)

    def message(
        self,
        body: bytes,
        *,
        key: str | Iterable[str] | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | Chooser | None = None,
        delay: float | None = None,
        delay_level: int | None = None,
        flag: int = 0,
        born_at: Moment | None = None,
        born_host: str | None = None,
    ) -> AppendConfirm:
        """What :meth:`append` hands over."""
        body = as_body(body)
        encoded = encode_message_properties(key, tag, properties)
        [part] = self._route([body], [_first(key)] if key is not None else None, queue)
        self.check([body], [encoded])
        key_of = self._key
        if flag or born_at is not None or born_host is not None:
            origin = Origin.of(flag, born_at, born_host)
            key_of = AppendKey(self._name, origin.born_host, self._store_host, origin.born_timestamp, origin.flag)
        level = 0 if delay is None and delay_level is None else self._level(delay, delay_level)
        if not level:
            return AppendConfirm(key_of, part.queue_id, body, encoded)
        batch = to_scheduled(
            self.batch(Part(part.queue_id, range(1)), [body], encoded), level, self._node.config.topics
        )
        waiting = _only(batch.properties)
        self.check([body], [waiting], batch.topic)
        return AppendConfirm(attrs.evolve(key_of, topic=batch.topic), batch.queue_id, body, waiting)

    def _level(self, delay: float | None, delay_level: int | None) -> int:
        settings = self._node.config.topics
        return delay_level or 0 if delay is None else level_of_delay(round(delay * 1000), settings)

    def append_many(
        self,
        bodies: Iterable[bytes],
        *,
        keys: Sequence[str] | None = None,
        tag: str | None = None,
        tags: Sequence[str | None] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | Chooser | None = None,
        flag: int = 0,
        born_at: Moment | None = None,
        born_host: str | None = None,
        block: bool = True,
        timeout: float | None = None,
    ) -> AppendManyConfirm:
        """Append messages in one go; ``keys`` and ``tags``: one for each. Otherwise as :meth:`append`.

        Without ``keys`` and ``queue`` all go to one queue (up to 1024 of them), the next time to the next one.
        """
        messages = self.messages(
            bodies,
            keys=keys,
            tag=tag,
            tags=tags,
            properties=properties,
            queue=queue,
            flag=flag,
            born_at=born_at,
            born_host=born_host,
        )
        log = self.log
        batches = self.batches(messages)
        give = functools.partial(self.hand_over, log, messages, batches)
        return log.admit(size_of(batches), give, block=block, timeout=timeout)

    def messages(
        self,
        bodies: Iterable[bytes],
        *,
        keys: Sequence[str] | None = None,
        tag: str | None = None,
        tags: Sequence[str | None] | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | Chooser | None = None,
        flag: int = 0,
        born_at: Moment | None = None,
        born_host: str | None = None,
    ) -> Messages:
        """What :meth:`append_many` hands over."""
        found = as_bodies(bodies)
        parts = self._route(found, keys, queue)
        encoded = self._many_properties(len(found), keys, tag, tags, properties)
        self.check(found, [encoded] if isinstance(encoded, bytes) else encoded)
        return Messages(parts, found, encoded, Origin.of(flag, born_at, born_host))

    def batches(self, messages: Messages) -> list[Batch]:
        """What goes to each queue, as it is appended now."""
        return [self.batch(part, messages.bodies, messages.properties, messages.origin) for part in messages.parts]

    def hand_over(
        self, log: CommitLogActor, messages: Messages, batches: Sequence[Batch], reserved_bytes: int
    ) -> AppendManyConfirm:
        """Hand batches of messages over to a log, with what is reserved there for them."""
        confirm = Confirm(log)
        if batches:
            log.hand_over(batches, confirm, reserved_bytes)
        else:
            log.gate.leave(reserved_bytes, unused_bytes=reserved_bytes)
            confirm.set([])
        return AppendManyConfirm(self._name, messages.parts, confirm)

    def _route(self, bodies: Sequence[bytes], keys: Sequence[str] | None, queue: int | Chooser | None) -> list[Part]:
        if (queues := self.queues) != self._router.queues:  # there are more meanwhile
            self._router.queues = queues
        if queue is None:
            return self._router.in_turn(len(bodies)) if keys is None else self._router.by_keys(keys)
        if callable(queue):
            return self._router.by_choice(len(bodies), lambda number: queue(bodies[number]))
        return self._router.to_queue(len(bodies), queue)

    @staticmethod
    def _many_properties(
        count: int,
        keys: Sequence[str] | None,
        tag: str | None,
        tags: Sequence[str | None] | None,
        properties: Mapping[str, str] | None,
    ) -> bytes | list[bytes]:
        """One for all, or one for each."""
        for column in (keys, tags):
            if column is not None and len(column) != count:
                raise MessageError(f"{len(column)} keys or tags for {count} messages")
        if tags is not None:
            named = [None] * count if keys is None else keys
            return [encode_message_properties(key, own, properties) for key, own in zip(named, tags, strict=True)]
        common = encode_message_properties(None, tag, properties)
        if keys is None:
            return common
        check_key("".join(keys) or "-")
        if not all(keys):
            check_key("")
        rest = b"\x02" + common if common else b""
        return [b"KEYS\x01" + key.encode("utf-8") + rest for key in keys]

    def batch(
        self, part: Part, bodies: Sequence[bytes], properties: bytes | Sequence[bytes], origin: Origin = _OWN
    ) -> Batch:
        """What goes to one queue, as it is appended now."""
        born_ms = origin.born_timestamp
        return Batch(
            topic=self._name,
            queue_id=part.queue_id,
            bodies=part.of(bodies),
            properties=properties if isinstance(properties, bytes) else part.of(properties),
            born_timestamp=self._node.now_ms() if born_ms is None else born_ms,
            born_host=origin.born_host,
            store_host=self._store_host,
            flag=origin.flag,
            as_one=False,
        )

    def check(self, bodies: Sequence[bytes], properties: Sequence[bytes], waiting_in: str = "") -> None:
        """Raise :class:`MessageError` where one of these is too large for a record, or for a file.

        ``waiting_in``: it is stored in that topic of the store's own first.
        """
        settings = self._node.config.topics
        around = max(map(len, properties), default=0)
        topic_bytes = max(len(self._name), len(waiting_in))
        largest = max(map(len, bodies), default=0) + around + topic_bytes + FIXED_BYTES
        most = min(settings.max_message_size, settings.mapped_file_size_commit_log - _BLANK_BYTES)
        if largest > most:
            raise MessageError(f"a message of {largest} bytes with all that is around it; {most} at most")
        if around > MAX_PROPERTIES_BYTES:
            raise MessageError(f"{around} bytes of properties; {MAX_PROPERTIES_BYTES} at most")

    def prepare(
        self,
        body: bytes,
        *,
        group: str = "warren",
        key: str | Iterable[str] | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | Chooser | None = None,
        flag: int = 0,
        born_at: Moment | None = None,
        born_host: str | None = None,
    ) -> Transaction:
        """Store a message that nobody sees until the transaction is committed; comes back when it is safe.

        ``group``: the producer's; it is stored with the message.
        """
        half = self.half(
            body,
            group=group,
            key=key,
            tag=tag,
            properties=properties,
            queue=queue,
            flag=flag,
            born_at=born_at,
            born_host=born_host,
        )
        log = self.log
        confirm = Confirm(log)
        log.admit(size_of([half]), functools.partial(log.hand_over, [half], confirm))
        confirm.wait()
        return self.prepared(confirm)

    def half(
        self,
        body: bytes,
        *,
        group: str = "warren",
        key: str | Iterable[str] | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | Chooser | None = None,
        flag: int = 0,
        born_at: Moment | None = None,
        born_host: str | None = None,
    ) -> Batch:
        """What :meth:`prepare` hands over."""
        body = as_body(body)
        encoded = encode_message_properties(key, tag, properties)
        [part] = self._route([body], [_first(key)] if key is not None else None, queue)
        half = prepare(self.batch(part, [body], encoded, Origin.of(flag, born_at, born_host)), group)
        self.check([body], [_only(half.properties)], half.topic)
        return half

    def prepared(self, confirm: Confirm) -> Transaction:
        """The half message that was appended."""
        [appended] = confirm.get()
        return Transaction(
            self._node,
            self._name,
            appended.queue_offset,
            int(appended.physical_offsets[0]),
            int(appended.sizes[0]),
        )

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def reader(
        self,
        group: str,
        *,
        broadcast: bool = False,
        tags: str | Iterable[str] | None = None,
        auto_commit: bool = True,
        consume_from: Place | Moment | Mapping[int, int] = "first",
        positions: Mapping[int, int] | None = None,
        instance_name: str | None = None,
    ) -> Reader:
        """Join a group and read (:class:`~warren.topic_reader.Reader`).

        ``tags``: only messages with one of these; RocketMQ's ``"a || b"`` will do. ``consume_from``: where a group that
        has never read this topic begins: "first", "last", a time, or a queue offset for each queue (a whole number: for
        all of them). ``broadcast``: read all queues and share nothing; where it is, is kept for the group and this
        instance of it (``None``: the first one that reads nothing now). ``positions``: it goes on there instead.
        """
        if isinstance(consume_from, str | Mapping | int):
            place: Place | Mapping[int, int] = consume_from
        else:
            place = self.offset_at(consume_from)
        return Reader(
            self._node,
            self._name,
            group,
            broadcast=broadcast,
            tags=tags,
            auto_commit=auto_commit,
            consume_from=place,
            positions=positions,
            instance_name=instance_name,
        )

    def read(
        self,
        group: str,
        *,
        max_records: int | None = None,
        timeout: float | None = 0.0,
        tags: str | Iterable[str] | None = None,
        auto_commit: bool = True,
        consume_from: Place | Moment | Mapping[int, int] = "first",
    ) -> Iterator[TopicRecord]:
        """Read on where the group is: up to ``max_records`` messages, until none comes for ``timeout`` seconds.

        With ``auto_commit`` a message is done when the next one is asked for, or the loop ends; a loop that is left in
        the middle of a message gets that one again. A member of the group while it lasts.
        """
        with self.reader(group, tags=tags, auto_commit=auto_commit, consume_from=consume_from) as reader:
            yield from reader.records(max_records, timeout)

    def find(
        self,
        key: str,
        *,
        begin: Moment | None = None,
        end: Moment | None = None,
        limit: int = 64,
        exact: bool = True,
    ) -> list[TopicRecord]:
        """Messages with this key (or this UNIQ_KEY), the newest first, stored from ``begin`` to ``end`` inclusive.

        ``exact=False``: what the index says, without a look at the messages' keys: other keys of the same hash are
        among them, and a message can come twice.
        """
        running = self._node.running_topics()
        running.catch_up(with_index=True)
        return find(running, self._name, key, begin=begin, end=end, limit=limit, exact=exact)

    def get(self, queue_id: int, queue_offset: int) -> TopicRecord:
        """One message by its number in its queue; raises ``LookupError``."""
        running = self._node.running_topics()
        running.catch_up()
        return record_at(running, self._name, queue_id, queue_offset)

    def message_at(self, physical_offset: int) -> TopicRecord:
        """One message by where it begins in the CommitLog; raises ``LookupError``."""
        return message_at(self._node.running_topics(), self._name, physical_offset)

    def view_message(self, message_id: str) -> TopicRecord:
        """One message by its id, as :attr:`TopicRecord.message_id` shows it (RocketMQ's offsetMsgId).

        Raises ``LookupError``, and :class:`RecordError` for what is no id.
        """
        return message_of_id(self._node.running_topics(), self._name, message_id)

    # ── where groups and messages are ───────────────────────────────────────────────────────────────────────────

    def offsets(self) -> dict[int, tuple[int, int]]:
        """By queue: the number of the first message that there is, and the next one's."""
        running = self._node.running_topics()
        running.catch_up()
        return offsets_of(running, self._name, self.queues)

    def offset_at(self, moment: Moment) -> dict[int, int]:
        """By queue: the number of the first message that was stored then or later (the next one's where none was)."""
        running = self._node.running_topics()
        running.catch_up()
        return offsets_at(running, self._name, self.queues, moment)

    def seek(
        self,
        group: str,
        place: Place | Moment | Mapping[int, Place],
        *,
        broadcast: bool = False,
        instance_name: str | None = None,
    ) -> dict[int, int]:
        """Let a group go on somewhere else: "first", "last", a time, or a place for each queue; returns queue offsets.

        A whole number is a queue offset, for all queues; for a time use a ``float`` or a ``datetime``. ``broadcast``:
        an instance of a group of broadcast readers; ``None`` is the first one.
        """
        group = group_key(group, instance_name, broadcast=broadcast)
        running = self._node.running_topics()
        running.catch_up()
        if not isinstance(place, str | Mapping | int):
            place = dict(self.offset_at(place))
        sought: dict[int, int] = running.ask_groups(tm.SeekGroup(self._name, group, place))
        return sought

    def lag(self, group: str, *, broadcast: bool = False, instance_name: str | None = None) -> dict[int, int]:
        """By queue: messages that are there and that the group, or an instance of it, has not finished."""
        group = group_key(group, instance_name, broadcast=broadcast)
        running = self._node.running_topics()
        running.catch_up()
        lag: dict[int, int] = running.ask_groups(tm.GetLag(self._name, group))
        return lag

    def groups(self, *, broadcast: bool = False) -> dict[str, dict[str, Any]]:
        """By group: members and their queues, committed queue offsets, lag. ``broadcast``: by ``group@instance``."""
        described: dict[str, dict[str, dict[str, Any]]] = self._node.running_topics().ask_groups(
            tm.GetGroups(broadcast)
        )
        return described.get(self._name, {})

    def sync(self) -> None:
        """Come back when everything that was appended before is on the disk."""
        self.log.actor_ref.ask(tm.SyncLog())


def declare(actor: NodeActor, name: str, queues: int | None, otherwise: int) -> None:
    """See that a topic is there, with at least so many queues (``None``: whatever it has, ``otherwise`` if new)."""
    known = None if actor.topics is None else actor.topics.table.queues(name)
    if known is None or (queues is not None and queues > known):
        actor.declare_topic(name, otherwise if queues is None else queues)


def _first(key: str | Iterable[str]) -> str:
    return key if isinstance(key, str) else next(iter(key), "")


def _only(properties: bytes | Sequence[bytes]) -> bytes:
    return properties if isinstance(properties, bytes) else properties[0]
