"""WatchedTurn: a queue's turns, and a log of the fate of each message. For tests of programs.

It behaves like :class:`~warren.actors.engines.queue.queue_turn.QueueTurn`, except that no message bypasses the turns
(:mod:`warren.actors.queue.early_deliveries`), so that each one is seen here. The log outlives the turns: a restarted
queue continues in the same :class:`QueueLog`.

A message is identified by its id, which a restart does not change. One that existed before the log is added when it is
delivered.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import attrs

from warren.actors.engines.queue.consumers import Consumer
from warren.actors.engines.queue.dead_letters import Reason
from warren.actors.engines.queue.effects import Delivered, Effects
from warren.actors.engines.queue.queue_turn import QueueTurn
from warren.actors.engines.queue.queue_turn_host import Receiver
from warren.queue_index.message.message_format import Envelope, Message, decode_message
from warren.queue_index.properties import Properties, decode_properties
from warren.queue_index.queue.variable_queue import VariableQueue
from warren.storage.errors import MessageError, WarrenError

if TYPE_CHECKING:
    from warren.queue_index.queue.removal import ChosenIds

Event = Literal[
    "published", "refused", "delivered", "acked", "requeued", "retried", "timed_out", "rejected", "expired", "dropped",
    "delivery_limit", "purged", "removed", "dead_lettered",
]  # fmt: skip
"""What can happen to a message. ``dropped``: the queue's limits left no room for it."""
EVENTS: Final[tuple[Event, ...]] = get_args(Event)
_SETTLED: Final[Mapping[str, Event]] = {
    "ack": "acked",
    "requeue": "requeued",
    "failed": "requeued",
    "retry": "retried",
    "lapse": "timed_out",
}
_DIED: Final[Mapping[str, Event]] = {"expired": "expired", "maxlen": "dropped"}


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

    def note(self, msg_ids: Iterable[bytes], *events: Event) -> None:
        """Note the same events for several messages."""
        for msg_id in msg_ids:
            if (seen := self.by_id.get(msg_id)) is not None:
                seen.events += events
        self.changed()

    def begin(self) -> None:
        """Note that the queue was started or restarted: no message is held."""
        for msg_id in self.held.values():
            self.ready[msg_id] = None
        self.held.clear()


@attrs.define(eq=False, repr=False, kw_only=True)
class WatchedTurn(QueueTurn):
    """One queue's turns, watched. See the module's prose."""

    log_of: Callable[[str, str], QueueLog]
    """The log of a vhost's queue."""
    _log: QueueLog = attrs.field(init=False)
    _arriving: dict[int, list[bytes]] = attrs.field(init=False, factory=dict)
    """The ids of the messages of the current publish, by ``id(body)``, because the queue may refuse some. Messages may
    share a body."""

    def __attrs_post_init__(self) -> None:
        declaration = self.process.context.declaration
        self._log = self.log_of(declaration.vhost, declaration.name)
        self._log.begin()
        self.process.expiry.watcher = self

    # ── no short ways ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def comes_soon(self) -> bool:
        return False

    @property
    def takes_early(self) -> bool:
        return False

    @property
    def takes_ahead(self) -> bool:
        return False

    def read_ahead(self) -> None:
        return None

    def subscribe(self, consumer: Consumer, receiver: Receiver) -> None:
        receiver.acks_unseen = False  # type: ignore[attr-defined]  # nothing is handed past the queue
        super().subscribe(consumer, receiver)

    # ── messages in ─────────────────────────────────────────────────────────────────────────────────────────────

    def publish(  # noqa: PLR0917
        self,
        envelope: Envelope,
        msg_ids: bytes,
        bodies: Sequence[bytes],
        expiration_ms: int | None,
        priority: int,
        token: Any,
    ) -> None:
        log, arriving = self._log, dict[bytes, SeenMessage]()
        for place, body in enumerate(bodies):
            msg_id = msg_ids[16 * place : 16 * place + 16]
            arriving[msg_id] = SeenMessage(_message(envelope, msg_id, body), ["published"])
            self._arriving.setdefault(id(body), []).append(msg_id)
        log.by_id |= arriving
        log.ready |= dict.fromkeys(arriving)
        try:
            super().publish(envelope, msg_ids, bodies, expiration_ms, priority, token)
        except WarrenError:
            for msg_id in arriving:
                del log.by_id[msg_id], log.ready[msg_id]
            raise
        finally:
            self._arriving.clear()
        log.messages += arriving.values()
        log.changed()

    def refused(self, bodies: Sequence[bytes]) -> None:
        """See :class:`~warren.actors.engines.queue.expiry.DeathWatcher`."""
        arriving = [ids for body in reversed(bodies) if (ids := self._arriving.get(id(body)))]
        self._die([ids.pop() for ids in arriving][::-1], "refused")  # if a body is shared, the last ones were refused

    def dying(self, queue: VariableQueue, count: int, reason: Reason) -> None:
        """See :class:`~warren.actors.engines.queue.expiry.DeathWatcher`."""
        ready = (message.msg_id for message in queue.browse() if not message.unacked)
        self._die(list(itertools.islice(ready, count)), _DIED.get(reason, "dropped"))

    def over_limit(self, held: list[tuple[VariableQueue, range]]) -> None:
        """See :class:`~warren.actors.engines.queue.expiry.DeathWatcher`."""
        terms = [term for queue, seq_ids in held for _, term in queue.read_pending([seq_ids])]
        self._die([message.msg_id for message in map(_decoded, terms) if message is not None], "delivery_limit")

    def lapsed(self, channel: str, tags: range) -> None:
        """See :class:`~warren.actors.engines.queue.expiry.DeathWatcher`."""
        self._note_settled(channel, "lapse", tags)

    def _die(self, msg_ids: list[bytes], event: Event) -> None:
        for msg_id in msg_ids:
            self._log.ready.pop(msg_id, None)
        heard_of = self.process.context.arguments.dead_letter_exchange is not None
        if event == "refused":
            heard_of = heard_of and self.process.context.arguments.overflow == "reject-publish-dlx"
        self._log.note(msg_ids, event, *(("dead_lettered",) if heard_of else ()))

    # ── messages out ────────────────────────────────────────────────────────────────────────────────────────────

    def get_many(
        self, channel: str, count: int, *, ack_required: bool, limit_bytes: int | None = None
    ) -> list[Delivered]:
        deliveries = super().get_many(channel, count, ack_required=ack_required, limit_bytes=limit_bytes)
        for delivered in deliveries:
            self._note_delivered(delivered)
        return deliveries

    def take(self, channel: str, chosen: Mapping[int, ChosenIds]) -> list[Delivered]:
        deliveries = super().take(channel, chosen)
        for delivered in deliveries:
            self._note_delivered(delivered)
        return deliveries

    def _hand_over_deliveries(self, effects: Effects) -> None:
        for delivered in effects.deliveries[self._handed_over :]:
            self._note_delivered(delivered)
        super()._hand_over_deliveries(effects)

    def _note_delivered(self, delivered: Delivered) -> None:
        log, fetched = self._log, delivered.fetched
        for place, msg_id in enumerate(fetched.msg_ids):
            if msg_id not in log.by_id:
                with_it = _decoded(fetched.term(place))
                if with_it is None:
                    continue
                log.by_id[msg_id] = SeenMessage(with_it)
                log.messages.append(log.by_id[msg_id])
            log.ready.pop(msg_id, None)
            if delivered.first_tag:
                log.held[delivered.channel, delivered.first_tag + place] = msg_id
        log.note(fetched.msg_ids, "delivered", *(() if delivered.first_tag else ("acked",)))

    # ── messages settled ────────────────────────────────────────────────────────────────────────────────────────

    def settle(self, channel: str, outcome: str, tags: Sequence[range]) -> None:
        self._note_settled(channel, outcome, [tag for part in tags for tag in part])
        super().settle(channel, outcome, tags)

    def settle_up_to(self, channel: str, outcome: str, tag: int) -> None:
        self._note_settled(
            channel, outcome, [held_tag for held_tag in self._tags(channel) if held_tag <= tag or not tag]
        )
        super().settle_up_to(channel, outcome, tag)

    def retry_in(self, channel: str, tags: Sequence[range], wait_ms: int) -> None:
        self._note_settled(channel, "retry", [tag for part in tags for tag in part])
        super().retry_in(channel, tags, wait_ms)

    def close_channel(self, channel: str, tags: Sequence[str], seen_up_to: int | None = None) -> int:
        self._note_settled(channel, "requeue", self._tags(channel))
        return super().close_channel(channel, tags, seen_up_to)

    def _tags(self, channel: str) -> list[int]:
        return [tag for name, tag in self._log.held if name == channel]

    def _note_settled(self, channel: str, outcome: str, tags: Iterable[int]) -> None:
        log = self._log
        msg_ids = [msg_id for tag in tags if (msg_id := log.held.pop((channel, tag), None)) is not None]
        if not msg_ids:
            return
        if outcome == "reject":
            self._die(msg_ids, "rejected")
            return
        if outcome != "ack":
            log.ready |= dict.fromkeys(msg_ids)
        log.note(msg_ids, _SETTLED[outcome])

    def purge(self) -> int:
        self.hand_out()
        msg_ids, self._log.ready = list(self._log.ready), {}
        purged = super().purge()
        self._log.note(msg_ids, "purged")
        return purged

    def remove(self, chosen: Mapping[int, ChosenIds]) -> int:
        removed = super().remove(chosen)
        remaining = {message.msg_id for _, queue in self.process.backing.awake() for message in queue.browse()}
        msg_ids = [
            msg_id for level_ids in chosen.values() for msg_id in level_ids.values() if msg_id in self._log.ready
        ]
        msg_ids = [msg_id for msg_id in msg_ids if msg_id not in remaining]
        for msg_id in msg_ids:
            del self._log.ready[msg_id]
        self._log.note(msg_ids, "removed")
        return removed


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
