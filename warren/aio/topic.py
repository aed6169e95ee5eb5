"""Topic: the handle of :mod:`warren.topic`, for coroutines. Any number of event loops may share it.

``append`` waits until the message is safe, ``append_nowait`` gives a confirm to be awaited later. Entries, keys and
groups are asked for from the actors, and messages are read in the loop's default executor, many at a time.

An await that is cancelled stops waiting. Before there was room nothing was appended; after that it is appended, a
half message is prepared, a group sought.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from actors import future
from actors import topic_messages as tm
from actors.commit_log_actor import CommitLogActor, Position, size_of
from actors.engines.topics.consumer_group import Place
from actors.running_topics import RunningTopics
from warren import topic
from warren.aio.bridge import answer, ask, caught_up, in_thread, running_now, running_topics
from warren.aio.publishing import admitted, admitted_now, has_room, safe
from warren.aio.topic_reader import Reader
from warren.aio.topic_record import TopicRecord
from warren.aio.transaction import Transaction
from warren.broadcast import group_key
from warren.node import Node
from warren.topic import Chooser
from warren.topic_append import Positions
from warren.topic_lookup import find, message_at, message_of_id, offsets_at, offsets_of, record_at
from warren.topic_record import Moment

W = TypeVar("W")


class OriginArguments(TypedDict, total=False):
    """What is said of a message's producer."""

    flag: int
    born_at: Moment | None
    born_host: str | None


class PrepareArguments(OriginArguments, total=False):
    """What a message is prepared with."""

    key: str | Iterable[str] | None
    tag: str | None
    properties: Mapping[str, str] | None
    queue: int | Chooser | None


class AppendArguments(PrepareArguments, total=False):
    """What a message is appended with."""

    delay: float | None
    delay_level: int | None


class AppendManyArguments(OriginArguments, total=False):
    """What messages are appended with."""

    keys: Sequence[str] | None
    tag: str | None
    tags: Sequence[str | None] | None
    properties: Mapping[str, str] | None
    queue: int | Chooser | None


class AppendConfirm(Generic[W]):
    """Await it to know that a message is as safe as the store promises, and where it is; raises why it never will be.

    It may be awaited by many, from any event loop, and by nobody: the message gets safe all the same.
    """

    __slots__ = ("_confirm", "_where")

    def __init__(self, confirm: future.Confirm, where: Callable[[], W]) -> None:
        self._confirm = confirm
        self._where = where

    @property
    def done(self) -> bool:
        """Whether it is known."""
        return self._confirm.done

    @property
    def error(self) -> BaseException | None:
        """Why it will not be safe, as far as that is known."""
        return self._confirm.error

    def __await__(self) -> Generator[Any, None, W]:
        yield from safe(self._confirm).__await__()
        return self._where()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'failed' if self.error else 'safe' if self.done else 'pending'}>"


class _Messages(topic.Topic):
    """Makes messages in an event loop, which must not wait for topics that are just opened anew."""

    def _running(self) -> RunningTopics:
        return running_now(self._node)


class Topic:
    """One topic. Made by :meth:`warren.aio.Node.topic`."""

    def __init__(self, node: Node, name: str) -> None:
        self._node = node
        self._messages = _Messages(node, name)
        self.plain = topic.Topic(node, name)
        """The same topic, for threads."""

    @property
    def name(self) -> str:
        return self.plain.name

    @property
    def queues(self) -> int:
        """How many it has."""
        return self._messages.queues

    def __repr__(self) -> str:
        return f"<warren.aio.Topic {self.name!r}>"

    def _logs(self) -> list[CommitLogActor]:
        return [self._messages.log]

    # ── appending ───────────────────────────────────────────────────────────────────────────────────────────────

    async def append(
        self, body: bytes, *, timeout: float | None = None, **arguments: Unpack[AppendArguments]
    ) -> Position:
        """Append a message, and come back when it is safe, with where it is. Arguments: :meth:`warren.Topic.append`'s.

        While the disk is behind, or an alarm is set, it waits before that: for ``timeout`` seconds, then it raises
        :class:`BlockedError`, and the message was not taken.
        """
        await running_topics(self._node)
        message = self._messages.message(body, **arguments)
        [log], reserved_bytes = await admitted(self._logs, lambda _: message.size_bytes, timeout)
        message = log.append(message, reserved_bytes)
        await safe(message.confirm)
        return message.position()

    def append_nowait(self, body: bytes, **arguments: Unpack[AppendArguments]) -> AppendConfirm[Position]:
        """Hand over a message; await what comes back to know it safe. Never waits: raises :class:`BlockedError`."""
        message = self._messages.message(body, **arguments)
        [log] = self._logs()
        admitted_now([log], message.size_bytes, functools.partial(log.append, message))
        return AppendConfirm(message.confirm, message.position)

    async def append_many(
        self, bodies: Iterable[bytes], *, timeout: float | None = None, **arguments: Unpack[AppendManyArguments]
    ) -> Positions:
        """Append messages in one go, and come back when all are safe. Otherwise as :meth:`append`.

        Arguments: :meth:`warren.Topic.append_many`'s.
        """
        await running_topics(self._node)
        messages = self._messages.messages(bodies, **arguments)
        batches = self._messages.batches(messages)
        [log], reserved_bytes = await admitted(self._logs, lambda _: size_of(batches), timeout)
        appended = self._messages.hand_over(log, messages, batches, reserved_bytes)
        await safe(appended.confirm)
        return appended.positions()

    async def room(self, timeout: float | None = None) -> None:
        """Wait until :meth:`append_nowait` may go on; after ``timeout`` seconds raises :class:`BlockedError`."""
        await has_room(self._logs, timeout)

    async def prepare(
        self,
        body: bytes,
        *,
        group: str = "warren",
        timeout: float | None = None,
        **arguments: Unpack[PrepareArguments],
    ) -> Transaction:
        """Store a message that nobody sees until the transaction is committed; comes back when it is safe.

        ``group``: the producer's; it is stored with the message. Cancelled after there was room, the message is
        prepared, and one of :meth:`warren.aio.Node.pending_transactions`.
        """
        await running_topics(self._node)
        half = self._messages.half(body, group=group, **arguments)
        [log], reserved_bytes = await admitted(self._logs, lambda _: size_of([half]), timeout)
        confirm = future.Confirm(log)
        log.hand_over([half], confirm, reserved_bytes)
        await safe(confirm)
        return Transaction(self._node, self._messages.prepared(confirm))

    async def sync(self) -> None:
        """Come back when everything that was appended before is on the disk."""
        running = await running_topics(self._node)
        await answer(ask(running.log, tm.SyncLog()))

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
        """A member of a group, to be used in an ``async with``; it joins when it is entered or first asked.

        Arguments: :meth:`warren.Topic.reader`'s.
        """
        return Reader(
            self._node,
            self.name,
            group,
            broadcast=broadcast,
            tags=tags,
            auto_commit=auto_commit,
            consume_from=consume_from,
            positions=positions,
            instance_name=instance_name,
        )

    async def read(
        self,
        group: str,
        *,
        max_records: int | None = None,
        timeout: float | None = 0.0,
        tags: str | Iterable[str] | None = None,
        auto_commit: bool = True,
        consume_from: Place | Moment | Mapping[int, int] = "first",
    ) -> AsyncGenerator[TopicRecord, None]:
        """Read on where the group is: up to ``max_records`` messages, until none comes for ``timeout`` seconds.

        With ``auto_commit`` a message is done when the next one is asked for, or the loop ends; a loop that is left in
        the middle of a message gets that one again. A member of the group while it lasts: after a ``break`` until the
        event loop comes round, or in an :func:`contextlib.aclosing` until that ends.
        """
        async with (
            self.reader(group, tags=tags, auto_commit=auto_commit, consume_from=consume_from) as reader,
            aclosing(reader.records(max_records, timeout)) as records,
        ):
            async for record in records:
                yield record

    async def find(
        self,
        key: str,
        *,
        begin: Moment | None = None,
        end: Moment | None = None,
        limit: int = 64,
        exact: bool = True,
    ) -> list[TopicRecord]:
        """Messages with this key, the newest first. As :meth:`warren.Topic.find`."""
        running = await caught_up(self._node, with_index=True)
        found = await in_thread(
            lambda: find(running, self.name, key, begin=begin, end=end, limit=limit, exact=exact),
        )
        return [TopicRecord(one.record) for one in found]

    async def get(self, queue_id: int, queue_offset: int) -> TopicRecord:
        """One message by its number in its queue; raises ``LookupError``."""
        running = await caught_up(self._node)
        return TopicRecord((await in_thread(lambda: record_at(running, self.name, queue_id, queue_offset))).record)

    async def message_at(self, physical_offset: int) -> TopicRecord:
        """One message by where it begins in the CommitLog; raises ``LookupError``."""
        running = await running_topics(self._node)
        return TopicRecord((await in_thread(lambda: message_at(running, self.name, physical_offset))).record)

    async def view_message(self, message_id: str) -> TopicRecord:
        """One message by its id, as :attr:`TopicRecord.message_id` shows it (RocketMQ's offsetMsgId).

        Raises ``LookupError``, and :class:`RecordError` for what is no id.
        """
        running = await running_topics(self._node)
        return TopicRecord((await in_thread(lambda: message_of_id(running, self.name, message_id))).record)

    # ── where groups and messages are ───────────────────────────────────────────────────────────────────────────

    async def offsets(self) -> dict[int, tuple[int, int]]:
        """By queue: the number of the first message that there is, and the next one's."""
        return offsets_of(await caught_up(self._node), self.name, self.queues)

    async def offset_at(self, moment: Moment) -> dict[int, int]:
        """By queue: the number of the first message that was stored then or later (the next one's where none was)."""
        running, queues = await caught_up(self._node), self.queues
        return await in_thread(lambda: offsets_at(running, self.name, queues, moment))

    async def seek(
        self,
        group: str,
        place: Place | Moment | Mapping[int, Place],
        *,
        broadcast: bool = False,
        instance_name: str | None = None,
    ) -> dict[int, int]:
        """Let a group go on somewhere else. As :meth:`warren.Topic.seek`."""
        group = group_key(group, instance_name, broadcast=broadcast)
        if not isinstance(place, str | Mapping | int):
            place = dict(await self.offset_at(place))
        sought: dict[int, int] = await self._ask_groups(tm.SeekGroup(self.name, group, place))
        return sought

    async def lag(self, group: str, *, broadcast: bool = False, instance_name: str | None = None) -> dict[int, int]:
        """By queue: messages that are there and that the group, or an instance of it, has not finished."""
        group = group_key(group, instance_name, broadcast=broadcast)
        lag: dict[int, int] = await self._ask_groups(tm.GetLag(self.name, group))
        return lag

    async def groups(self, *, broadcast: bool = False) -> dict[str, dict[str, Any]]:
        """By group: members and their queues, committed queue offsets, lag. As :meth:`warren.Topic.groups`."""
        described: dict[str, dict[str, dict[str, Any]]] = await self._ask_groups(tm.GetGroups(broadcast))
        return described.get(self.name, {})

    async def _ask_groups(self, message: object) -> Any:
        running = await caught_up(self._node)
        return await answer(ask(running.groups, message))
