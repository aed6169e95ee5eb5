"""What actors tell each other: who, whom, and what comes back.

*Ask* goes one way only, user → node → queue → store; everything upwards is a *tell*. Whoever has an actor asks it by a
:class:`~warren.actors.runtime.inbox.Call`. :class:`~warren.actors.runtime.inbox.Control` messages overtake data. Single
publishes and acks reach a queue as pending batches (:mod:`warren.actors.queue.intake`), not as messages.

Nobody compares messages, so they have no ``__eq__``: making one for each class would take time in every import.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from pykka import ActorRef

from warren.actors.engines.queue.consumers import Consumer
from warren.actors.runtime.inbox import Control
from warren.queue_index.message.message_format import Envelope
from warren.storage.errors import NoRoomError
from warren.storage.pieces import Whole

if TYPE_CHECKING:
    from warren.actors.queue.deliveries import Deliveries
    from warren.actors.runtime.future import Future

# ── timer ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(eq=False, repr=False)
class StartTimer(Control):
    """Any actor → timer. Tell. ``message`` comes to ``target`` once it is ``at_ns``; replaces that key's last timer."""

    target: ActorRef[Any]
    key: str
    at_ns: int
    message: object


@attrs.frozen(eq=False, repr=False)
class CancelTimers(Control):
    """Any actor → timer. Tell. Forget all timers of ``target``."""

    target: ActorRef[Any]


# ── queue and its users ──────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(eq=False, repr=False)
class Publish:
    """User or queue (dead letters) → queue. Tell. ``msg_ids``: 16 bytes each; ``confirm`` is answered when all is safe.

    ``expiration_ms``: the messages' own time to live.
    """

    envelope: Envelope
    msg_ids: bytes
    bodies: Sequence[bytes]
    expiration_ms: int | None
    priority: int
    confirm: Future
    reserved_bytes: int = 0
    """What is on the way for it (:mod:`warren.actors.node.gate`)."""


@attrs.frozen(eq=False, repr=False)
class Subscribe:
    """User → queue. Ask; the reply is ``None``. What is delivered goes into ``deliveries``."""

    consumer: Consumer
    deliveries: Deliveries


# ── queue and store ──────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(eq=False, repr=False)
class WriteBodies:
    """Queue → store. Tell. ``ticket``: how many messages this client has handed over with these."""

    client: int
    msg_ids: Sequence[bytes]
    messages: Sequence[Whole]
    ticket: int


@attrs.frozen(eq=False, repr=False)
class RemoveBodies:
    """Queue → store. Tell."""

    msg_ids: Sequence[bytes]


@attrs.frozen(eq=False, repr=False)
class JoinStore(Control):
    """Queue → store. Tell, before the first body. A client begins."""

    client: int
    queue: ActorRef[Any]


@attrs.frozen(eq=False, repr=False)
class LeaveStore:
    """Queue → store. Tell. The client is told nothing more."""

    client: int


@attrs.frozen(eq=False, repr=False)
class CountReferences:
    """Queue → store. Tell, once after a dirty start: the stored bodies that the queue's index refers to."""

    entry: str
    references: Counter[bytes]


@attrs.frozen(eq=False, repr=False)
class ExpectReferences(Control):
    """Node → store. Tell. Whose references have to come before anything may be deleted."""

    entries: frozenset[str]


@attrs.frozen(eq=False, repr=False)
class SyncStore:
    """Queue → store. Tell. Somebody waits: do not wait for the timer."""


@attrs.frozen(eq=False, repr=False)
class StoreProgress(Control):
    """Store → queue. Tell. Up to which tickets the client's bodies are in the store, and safe."""

    client: int
    taken_ticket: int
    safe_ticket: int


@attrs.frozen(eq=False, repr=False)
class StoreFull(Control):
    """Store → queue. Tell. No room to make safe what was written; :class:`StoreProgress` says when there was."""

    client: int
    error: NoRoomError


@attrs.frozen(eq=False, repr=False)
class CloseStore:
    """Node → store. Ask. Behind what queues have told it. ``token``: what the shortcut of the clean stop is tied to.

    ``None``: leave none.
    """

    token: bytes | None


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(eq=False, repr=False)
class ReportDuration(Control):
    """Queue → memory monitor. Tell; the answer is a :class:`SetDurationTarget`. ``pageable``: it has bodies in RAM."""

    queue: ActorRef[Any]
    duration_s: float | None
    pageable: bool
    resting: bool = False
    """It hibernates, and needs no RAM if others want it."""


@attrs.frozen(eq=False, repr=False)
class LeaveMonitor(Control):
    """Queue → memory monitor. Tell. It stops, or hibernates: it has nothing to page."""

    queue: ActorRef[Any]


@attrs.frozen(eq=False, repr=False)
class SetDurationTarget(Control):
    """Memory monitor → queue. Tell. How long messages in RAM may last (seconds); ``None``: without limit."""

    duration_s: float | None


@attrs.frozen(eq=False, repr=False)
class SampleQueue(Control):
    """Recorder → queue. Tell. The answer is :class:`QueueSampled`; it wakes nothing, and keeps nobody from its rest."""

    step: int


@attrs.frozen(eq=False, repr=False)
class DiskRoom(Control):
    """Any actor → memory monitor. Tell. Whether there was room for what it wrote; without, the disk alarm is set."""

    actor: ActorRef[Any]
    found: bool


@attrs.frozen(eq=False, repr=False)
class GetMemory:
    """User → memory monitor. Ask; the reply is a dict: used, limit, ratio, alarms."""


@attrs.frozen(eq=False, repr=False)
class SampleMemory(Control):
    """Recorder → memory monitor. Tell. The answer is :class:`MemorySampled`."""

    step: int


# ── recorder ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(eq=False, repr=False)
class QueueSampled:
    """Queue → recorder. Tell. How it stands (:func:`warren.actors.queue.sampling.sample_queue`), what came since it
    last said
    so.

    ``step``: whose message it answers; ``None``: its last word. ``turns``: how many it has had in all.
    """

    urn: str
    step: int | None
    at_ns: int
    turns: int
    ram_bytes: int
    row: Mapping[str, Any]


@attrs.frozen(eq=False, repr=False)
class MemorySampled:
    """Memory monitor → recorder. Tell. What :class:`GetMemory` answers."""

    step: int
    at_ns: int
    numbers: Mapping[str, Any]


@attrs.frozen(eq=False, repr=False)
class CloseRecord:
    """Node → recorder. Ask; answered when all that came before is written and the record is closed."""


# ── node ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(eq=False, repr=False)
class QueueFailed(Control):
    """Queue → node. Tell. It has stopped by an error; the node restarts it from its files."""

    queue: ActorRef[Any]
    error: BaseException


@attrs.frozen(eq=False, repr=False)
class MonitorFailed(Control):
    """Memory monitor → node. Tell. It has stopped by an error; the node starts another one."""

    error: BaseException


@attrs.frozen(eq=False, repr=False)
class StoreFailed(Control):
    """Store → node. Tell. It has stopped by an error; its vhost is restarted from its files."""

    store: ActorRef[Any]
    error: BaseException


@attrs.frozen(eq=False, repr=False)
class TopicsFailed(Control):
    """One of the topics' actors → node. Tell. The node gives them all up, and opens them anew."""

    topic_actor: ActorRef[Any]
    error: BaseException


@attrs.frozen
class DelaysFailed(Control):
    """Delayed messages → node. Tell. Those of a vhost have stopped by an error."""

    vhost: str
    error: BaseException


@attrs.frozen(eq=False, repr=False)
class QueueUnused:
    """Queue → node. Tell. An auto-delete queue has lost its last consumer, or x-expires has run out: delete it."""

    queue: ActorRef[Any]
