"""QueueLog: what happens to each message of a queue. For tests of programs.

The parts of a queue report to the log, if its :class:`~warren.actors.engines.queue.queue_context.QueueContext` has one;
then no message bypasses the queue, so that the log is complete. It outlives restarts of the queue.

A message is identified by its id, which a restart does not change. One that existed before the log is added when it is
delivered.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, get_args

import attrs

from warren.actors.engines.queue.consumers import Run
from warren.actors.engines.queue.effects import Delivered
from warren.queue_index.message.message_format import Envelope, Message, decode_message
from warren.queue_index.properties import Properties, decode_properties
from warren.queue_index.queue.variable_queue import VariableQueue
from warren.storage.errors import MessageError, WarrenError

Event = Literal[
    "published", "refused", "delivered", "acked", "requeued", "retried", "timed_out", "rejected", "expired", "dropped",
    "delivery_limit", "purged", "removed", "dead_lettered",
]  # fmt: skip
"""What can happen to a message. ``dropped``: the queue's limits left no room for it."""
EVENTS: Final[tuple[Event, ...]] = get_args(Event)


@attrs.define(eq=False)
class SeenMessage:
    """A message that a queue had, and its fate."""

    message: Message = attrs.field(repr=False)
    """The whole message."""
    events: list[Event] = attrs.Factory(list)
    """What happened to it, in order."""

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def properties(self) -> Properties:
        """AMQP's basic properties."""
        return self.message.properties

    @property
    def headers(self) -> Mapping[str, Any]:
        return self.message.properties.headers or {}

    @property
    def exchange(self) -> str:
        """The exchange that it was published to; "": the default one."""
        return self.message.exchange.decode("utf-8", "surrogateescape")

    @property
    def routing_key(self) -> str:
        return self.message.routing_keys[0].decode("utf-8", "surrogateescape")

    @property
    def persistent(self) -> bool:
        return self.message.persistent

    def __str__(self) -> str:
        return f"{self.body[:60]!r}{'…' if len(self.body) > 60 else ''} {', '.join(self.events)}"


@attrs.define(eq=False, repr=False)
class QueueLog:
    """The log of one queue. ``changed``: called when it has grown."""

    changed: Callable[[], None]
    messages: list[SeenMessage] = attrs.Factory(list)
    """All messages, in order of arrival."""
    by_id: dict[bytes, SeenMessage] = attrs.Factory(dict)
    ready: dict[bytes, None] = attrs.Factory(dict)
    """The ids of ready messages."""
    held: dict[tuple[str, int], bytes] = attrs.Factory(dict)
    """The ids of unacked messages, by channel and delivery tag."""

    def begin(self) -> None:
        """Note that the queue was started or restarted: no message is held."""
        for msg_id in self.held.values():
            self.ready[msg_id] = None
        self.held.clear()

    @contextlib.contextmanager
    def publishing(self, envelope: Envelope, msg_ids: bytes, bodies: Sequence[bytes]) -> Iterator[None]:
        """Note messages that are published in this context; none of them if it raises an error of ours."""
        arriving = dict[bytes, SeenMessage]()
        for place, body in enumerate(bodies):
            msg_id = msg_ids[16 * place : 16 * place + 16]
            arriving[msg_id] = SeenMessage(_message(envelope, msg_id, body), ["published"])
        self.by_id |= arriving
        self.ready |= dict.fromkeys(arriving)
        try:
            yield
        except WarrenError:
            for msg_id in arriving:
                del self.by_id[msg_id], self.ready[msg_id]
            raise
        self.messages += arriving.values()
        self.changed()

    def delivered(self, delivered: Delivered) -> None:
        """Note a delivery; if no acks are expected, the messages are acked by it."""
        fetched = delivered.fetched
        for place, msg_id in enumerate(fetched.msg_ids):
            if msg_id not in self.by_id:
                with_it = _decoded(fetched.term(place))
                if with_it is None:
                    continue
                self.by_id[msg_id] = SeenMessage(with_it)
                self.messages.append(self.by_id[msg_id])
            self.ready.pop(msg_id, None)
            if delivered.first_tag:
                self.held[delivered.channel, delivered.first_tag + place] = msg_id
        self._note(fetched.msg_ids, "delivered", *(() if delivered.first_tag else ("acked",)))

    def acked(self, channel: str, runs: Iterable[Run]) -> None:
        """Note messages that a channel acks."""
        self._note(self._no_longer_held(channel, runs), "acked")

    def came_back(self, channel: str, runs: Iterable[Run], event: Event) -> None:
        """Note messages that a channel no longer holds, and that go back to the queue."""
        msg_ids = self._no_longer_held(channel, runs)
        self.ready |= dict.fromkeys(msg_ids)
        self._note(msg_ids, event)

    def rejected(self, channel: str, runs: Iterable[Run], *, dead_lettered: bool) -> None:
        """Note messages that a channel rejects."""
        self._die(self._no_longer_held(channel, runs), "rejected", dead_lettered=dead_lettered)

    def _no_longer_held(self, channel: str, runs: Iterable[Run]) -> list[bytes]:
        tags = (tag for run in runs for tag in range(run.first, run.end))
        return [msg_id for tag in tags if (msg_id := self.held.pop((channel, tag), None)) is not None]

    def refused(self, msg_ids: Sequence[bytes], *, dead_lettered: bool) -> None:
        """Note messages that the queue refuses on arrival."""
        self._die(msg_ids, "refused", dead_lettered=dead_lettered)

    def dying(
        self, queue: VariableQueue, count: int, event: Literal["expired", "dropped"], *, dead_lettered: bool
    ) -> None:
        """Note that ``count`` messages at the head of a level are about to die."""
        ready = (message.msg_id for message in queue.browse() if not message.unacked)
        self._die(list(itertools.islice(ready, count)), event, dead_lettered=dead_lettered)

    def over_limit(self, queue: VariableQueue, seq_ids: range, *, dead_lettered: bool) -> None:
        """Note that messages of a level, which came back too often, are about to die."""
        messages = [_decoded(term) for _, term in queue.read_pending([seq_ids])]
        msg_ids = [message.msg_id for message in messages if message is not None]
        self._die(msg_ids, "delivery_limit", dead_lettered=dead_lettered)

    def purged(self) -> None:
        """Note that every ready message is deleted."""
        msg_ids, self.ready = list(self.ready), {}
        self._note(msg_ids, "purged")

    def removed(self, msg_ids: Iterable[bytes]) -> None:
        """Note messages that were deleted by their ids."""
        logged = [msg_id for msg_id in msg_ids if msg_id in self.ready]
        self._die(logged, "removed", dead_lettered=False)

    def _die(self, msg_ids: Sequence[bytes], event: Event, *, dead_lettered: bool) -> None:
        for msg_id in msg_ids:
            self.ready.pop(msg_id, None)
        self._note(msg_ids, event, *(("dead_lettered",) if dead_lettered else ()))

    def _note(self, msg_ids: Iterable[bytes], *events: Event) -> None:
        """Note the same events for several messages."""
        for msg_id in msg_ids:
            if (seen := self.by_id.get(msg_id)) is not None:
                seen.events += events
        self.changed()


def _message(envelope: Envelope, msg_id: bytes, body: bytes) -> Message:
    if envelope.of_contents:
        envelope, body = envelope.with_content(body)
    e = envelope
    return Message(msg_id, e.vhost, e.exchange, e.routing_keys, decode_properties(e.properties), body, e.persistent)


def _decoded(term: bytes) -> Message | None:
    try:
        return decode_message(term)
    except MessageError:
        return None
