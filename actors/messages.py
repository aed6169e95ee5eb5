"""Messages between actors: sender, receiver, and reply.

*Ask* goes one way only, user → node → queue → store; everything upwards is a *tell*. Code with access to the actor
itself asks by a :class:`~warren.actors.runtime.inbox.Call`. :class:`~warren.actors.runtime.inbox.Control` messages
overtake data. Single publishes and acks reach a queue as pending batches (:mod:`warren.actors.queue.intake`), not as
messages.

Messages are never compared, so they have no ``__eq__``: creating one for each class would slow down every import.
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

# ── queue and its users ──────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(eq=False, repr=False)
class Publish:
    """User or queue (dead letters) → queue. Tell. ``msg_ids``: 16 bytes each; ``confirm`` is answered when all is safe.

    ``expiration_ms``: the time to live that the messages have themselves.
    """

    envelope: Envelope
    msg_ids: bytes
    bodies: Sequence[bytes]
    expiration_ms: int | None
    priority: int
    confirm: Future
    reserved_bytes: int = 0
    """Bytes that the gate counts for it (:mod:`warren.actors.node.gate`)."""


@attrs.frozen(eq=False, repr=False)
class Subscribe:
    """User → queue. Ask; the reply is ``None``. Messages are delivered into ``deliveries``."""

    consumer: Consumer
    deliveries: Deliveries


# ── queue and store ──────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(eq=False, repr=False)
class WriteBodies:
    """Queue → store. Tell. ``ticket``: how many messages this client has handed over, including these."""

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
    """Queue → store. Tell, before the first body. Registers a client."""

    client: int
    queue: ActorRef[Any]


@attrs.frozen(eq=False, repr=False)
class LeaveStore:
    """Queue → store. Tell. The client gets no more messages."""

    client: int


@attrs.frozen(eq=False, repr=False)
class CountReferences:
    """Queue → store. Tell, once after a dirty start: the stored bodies that the queue's index refers to."""

    entry: str
    references: Counter[bytes]


@attrs.frozen(eq=False, repr=False)
class ExpectReferences(Control):
    """Node → store. Tell. The queue directories whose references must come before the store may delete anything."""

    entries: frozenset[str]


@attrs.frozen(eq=False, repr=False)
class SyncStore:
    """Queue → store. Tell. A caller waits: do not wait for the timer."""


@attrs.frozen(eq=False, repr=False)
class StoreProgress(Control):
    """Store → queue. Tell. Up to which tickets the client's bodies are in the store, and safe."""

    client: int
    taken_ticket: int
    safe_ticket: int


@attrs.frozen(eq=False, repr=False)
class StoreFull(Control):
    """Store → queue. Tell. There was no room to make bodies safe; :class:`StoreProgress` follows once there was."""

    client: int
    error: NoRoomError


@attrs.frozen(eq=False, repr=False)
class CloseStore:
    """Node → store. Ask. Handled after all messages from queues. ``token``: ties the shortcut of the clean stop to the
    recovery terms.

    ``None``: leave no shortcut.
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
    """Whether it hibernates, and needs no RAM if others want it."""


@attrs.frozen(eq=False, repr=False)
class LeaveMonitor(Control):
    """Queue → memory monitor. Tell. The queue stops, or hibernates: it has nothing to page."""

    queue: ActorRef[Any]


@attrs.frozen
class DeadLettersSafe(Control):
    """Queue → itself. Tell. The dead letters of a batch are safe elsewhere, or lost on purpose."""

    number: int


@attrs.frozen(eq=False, repr=False)
class SetDurationTarget(Control):
    """Memory monitor → queue. Tell. How long messages in RAM may last (seconds); ``None``: without limit."""

    duration_s: float | None


@attrs.frozen(eq=False, repr=False)
class SampleQueue(Control):
    """Recorder → queue. Tell. The answer is :class:`QueueSampled`; it neither wakes a queue nor delays its rest."""

    step: int


@attrs.frozen(eq=False, repr=False)
class DiskRoom(Control):
    """Any actor → memory monitor. Tell. Whether there was room for what it wrote; if not, the disk alarm is set."""

    actor: ActorRef[Any]
    has_room: bool


@attrs.frozen(eq=False, repr=False)
class GetMemory:
    """User → memory monitor. Ask; the reply is a dict: used, limit, ratio, alarms."""

    high_watermark: float | None = None
    """A limit to set first; ``None``: the limit stays."""


@attrs.frozen(eq=False, repr=False)
class SampleMemory(Control):
    """Recorder → memory monitor. Tell. The answer is :class:`MemorySampled`."""

    step: int


# ── recorder ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(eq=False, repr=False)
class QueueSampled:
    """Queue → recorder. Tell. The queue's state (:func:`warren.actors.queue.sampling.sample_queue`) and its counts
    since its last sample.

    ``step``: the step of the message that it answers; ``None``: its last sample. ``turns``: the number of its turns so
    far.
    """

    urn: str
    step: int | None
    at_ns: int
    turns: int
    ram_bytes: int
    row: Mapping[str, Any]


@attrs.frozen(eq=False, repr=False)
class MemorySampled:
    """Memory monitor → recorder. Tell. The reply of :class:`GetMemory`."""

    step: int
    at_ns: int
    numbers: Mapping[str, Any]


@attrs.frozen(eq=False, repr=False)
class CloseRecord:
    """Node → recorder. Ask; answered when everything before is written and the record is closed."""


# ── node ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(eq=False, repr=False)
class QueueFailed(Control):
    """Queue → node. Tell. The queue has stopped by an error; the node restarts it from its files."""

    queue: ActorRef[Any]
    error: BaseException


@attrs.frozen(eq=False, repr=False)
class MonitorFailed(Control):
    """Memory monitor → node. Tell. The monitor has stopped by an error; the node starts another one."""

    error: BaseException


@attrs.frozen(eq=False, repr=False)
class StoreFailed(Control):
    """Store → node. Tell. The store has stopped by an error; its vhost is restarted from its files."""

    store: ActorRef[Any]
    error: BaseException


@attrs.frozen(eq=False, repr=False)
class TopicsFailed(Control):
    """One of the topics' actors → node. Tell. The node gives them all up, and reopens them."""

    topic_actor: ActorRef[Any]
    error: BaseException


@attrs.frozen
class DelaysFailed(Control):
    """Delayed messages → node. Tell. The actor of a vhost has stopped by an error."""

    vhost: str
    error: BaseException


@attrs.frozen(eq=False, repr=False)
class QueueUnused:
    """Queue → node. Tell. An auto-delete queue has lost its last consumer, or x-expires has run out: delete it."""

    queue: ActorRef[Any]
