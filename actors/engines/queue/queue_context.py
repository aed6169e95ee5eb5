"""QueueContext: what the parts of a queue (:class:`~warren.actors.engines.queue.queue_process.QueueProcess`) share.

*Counts* of a queue's messages exist only in a node that is recorded (:mod:`warren.actors.node.recorder_actor`) or
managed. Each call of a queue adds once, whatever the number of its messages. A recorder takes the changes since its
last reading.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.policies import NO_POLICIES, AppliedPolicies
from warren.actors.engines.declared.queue_arguments import QueueArguments, effective
from warren.actors.engines.queue.backing import Backing
from warren.actors.engines.queue.consumers import Consumers, Run
from warren.actors.engines.queue.effects import DeadLetterBatch, Effects

if TYPE_CHECKING:
    from warren.actors.engines.queue.queue_log import QueueLog
    from warren.queue_index.message.message_format import Envelope
    from warren.storage.record_log import RecordLog


@attrs.define(eq=False, repr=False)
class Counts:
    """One queue's counters. Only its actor writes them."""

    published: int = 0
    """Published messages, refused ones included."""
    published_bytes: int = 0
    """The bytes of their bodies."""
    persistent: int = 0
    """Published persistent messages."""
    refused: int = 0
    delivered: int = 0
    delivered_no_ack: int = 0
    """Delivered messages that need no ack, and are removed on delivery."""
    got: int = 0
    """Delivered messages that need an ack and went to gets, not to consumers."""
    redelivered: int = 0
    """Delivered messages that were redelivered."""
    acked: int = 0
    """Acked messages, and those that needed no ack."""
    requeued: int = 0
    """Messages that consumers, or closed channels, gave back."""
    rejected: int = 0
    """Messages that consumers rejected; they may have become dead letters."""
    dead_lettered: int = 0
    purged: int = 0
    _taken: dict[str, int] = attrs.Factory(dict)

    # Positional arguments, because these are called for every batch.

    def note_published(self, count: int, size_bytes: int, persistent: bool) -> None:
        """Count published messages."""
        self.published += count
        self.published_bytes += size_bytes
        if persistent:
            self.persistent += count

    def note_delivered(self, count: int, redelivered: bool, ack_required: bool) -> None:
        """Count delivered messages."""
        self.delivered += count
        if redelivered:
            self.redelivered += count
        if not ack_required:
            self.delivered_no_ack += count
            self.acked += count

    def note_acked(self, runs: Sequence[Run]) -> None:
        """Count acked messages."""
        self.acked += runs[0].count if len(runs) == 1 else sum([run.count for run in runs])

    @property
    def any(self) -> bool:
        """Whether a counter has changed since the last :meth:`take`."""
        return any(getattr(self, name) != self._taken.get(name, 0) for name in _NAMES)

    def take(self) -> Counts:
        """The changes since the last call."""
        now = {name: getattr(self, name) for name in _NAMES}
        taken = Counts(**{name: count - self._taken.get(name, 0) for name, count in now.items()})
        self._taken = now
        return taken

    def to_json(self) -> dict[str, int]:
        """All counters by name."""
        return {name: getattr(self, name) for name in _NAMES}


_NAMES = tuple(field.name for field in attrs.fields(Counts) if not field.name.startswith("_"))


WallClock = Callable[[], int]
"""µs since the Unix epoch."""


@attrs.define(eq=False, repr=False)
class QueueContext:
    """One queue's settings, messages, consumers and effects."""

    declaration: QueueDeclaration
    backing: Backing
    """For paging, syncs and recovery, too. Messages are published and taken only by the queue's parts."""
    wall_clock: WallClock
    policies: AppliedPolicies = NO_POLICIES
    counts: Counts | None = None
    """Event counts; ``None`` if they are not wanted."""
    returned_log: Callable[[QueueDeclaration], RecordLog] | None = attrs.field(default=None, kw_only=True)
    """Creates a queue's log of requeued messages; ``None`` for a queue that does not survive a restart."""
    log: QueueLog | None = attrs.field(default=None, kw_only=True)
    """What notes the fate of each message; for tests."""
    sync: bool = attrs.field(default=True, kw_only=True)
    """Whether safe messages survive a power loss, or only a crash of the process."""
    tells_out: bool = attrs.field(default=True, kw_only=True)
    """Whether the files record which messages were out when the queue stopped."""
    quorum_delivery_limit: int | None = attrs.field(default=None, kw_only=True)
    """The delivery limit of a quorum queue whose arguments and policies set no limit."""
    crashed: bool = attrs.field(default=False, kw_only=True)
    """Whether the queue was recovered after a crash."""
    single_below_bytes: int = attrs.field(default=1 << 62, kw_only=True)
    """A single message whose body is smaller than this is stored encoded, together with the message before it.

    That takes the least memory, unless many messages share one body object, as simulated ones do.
    """
    consumers: Consumers = attrs.field(init=False)
    arguments: QueueArguments = attrs.field(init=False)
    """The declaration's arguments merged with the policies."""
    is_plain: bool = attrs.field(init=False, default=False)
    """Whether arriving messages need no checks: :attr:`takes_all`, no keys, no ack timeouts, no log, no tails."""
    takes_all: bool = attrs.field(init=False, default=False)
    """Whether all arriving messages go to the same level and none expires or is refused: no TTL, limits or levels."""
    used_at_us: int = attrs.field(init=False)
    """When the queue was last used, for ``x-expires``."""
    _effects: Effects | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self.consumers = Consumers(single_active=self.declaration.single_active_consumer)
        self.arguments = self.merged(self.policies)
        self.used_at_us = self.wall_clock()
        if self.log is not None:
            self.log.begin()

    def merged(self, policies: AppliedPolicies) -> QueueArguments:
        """The declaration's arguments merged with policies."""
        return effective(self.declaration, policies.definition, self.quorum_delivery_limit)

    def as_stored(self, envelope: Envelope) -> Envelope:
        """The envelope that arriving messages are stored with: a quorum queue keeps transient messages, too."""
        return envelope if envelope.persistent or not self.arguments.is_quorum else envelope.made_persistent

    def touch(self) -> None:
        """Note that the queue was used: it was declared again, or its status was read."""
        self.used_at_us = self.wall_clock()

    @property
    def has_counted(self) -> bool:
        """Whether anything was counted since the counts were last taken."""
        return self.counts is not None and self.counts.any

    # ── effects ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def effects(self) -> Effects:
        """The collected effects; :meth:`drain_effects` takes them."""
        if self._effects is None:
            self._effects = Effects()
        return self._effects

    def drain_effects(self) -> Effects:
        """Take the collected effects."""
        effects, self._effects = self._effects, None
        return Effects() if effects is None else effects

    def release_effects(self) -> None:
        """Free their memory if nothing was collected."""
        if self._effects == Effects():
            self._effects = None

    def send_dead_letters(self, batch: DeadLetterBatch) -> None:
        """Add dead letters to the effects."""
        if self.counts is not None:
            self.counts.dead_lettered += len(batch.publications)
        self.effects.dead_letters.append(batch)


@attrs.define(eq=False, repr=False)
class PendingConfirms:
    """The tokens of publishes that wait until their messages are safe, by level. Truth value: whether there are any.

    A publisher's *token* stands for one call. A level reports publishes as safe in the order in which they arrived, so
    each level has one line of tokens.
    """

    _context: QueueContext
    _waiting: dict[int, deque[object]] | None = None

    def __bool__(self) -> bool:
        return self._waiting is not None and any(self._waiting.values())

    def note(self, level: int, token: object, *, confirm: bool) -> None:
        """Confirm the last publish to a level when it is safe, or at once if it never can be (``confirm`` false)."""
        if not confirm:
            self._context.effects.confirmed.append(token)
            return
        if self._waiting is None:
            self._waiting = {}
        waiting = self._waiting.get(level)
        if waiting is None:
            waiting = self._waiting[level] = deque()
        waiting.append(token)

    def when_safe(self, level: int, token: object) -> None:
        """Return ``token`` when everything published to a level until now is safe."""
        backing = self._context.backing
        if backing.durable:
            backing.level(level).confirms.expect(range(0))
        self.note(level, token, confirm=backing.durable)

    def drain(self) -> None:
        """Move the tokens of publishes that have become safe into the effects."""
        context = self._context
        for level, waiting in self._waiting.items() if self._waiting is not None else ():
            if waiting:
                safe = context.backing.level(level).drain_confirmed()
                context.effects.confirmed += [waiting.popleft() for _ in safe]

    def confirm_all(self) -> None:
        """Move every token into the effects, those of each level in order."""
        for waiting in self._waiting.values() if self._waiting is not None else ():
            self._context.effects.confirmed += waiting
        self.forget()

    def forget(self) -> None:
        """Forget every token."""
        self._waiting = None


def queue_stats(context: QueueContext, waiting: int) -> dict[str, Any]:
    """All statistics. Wakes nothing. ``waiting``: messages that came back and wait to be redelivered.

    Warren's own are ``messages_retrying``, the waiting ones; ``messages_dead_lettering``, dead letters that are not
    safe yet at their target; and ``recovering``: the queue is still being scanned after a crash, and the counts are
    preliminary.
    """
    declaration, policies, backing, consumers = (
        context.declaration,
        context.policies,
        context.backing,
        context.consumers,
    )
    status = backing.status()
    counts = {key: status.pop(key) for key in list(status) if key.startswith(("message", "disk_"))}
    ready, unacked = len(backing), consumers.unacked
    active = None if consumers.active is None else consumers.active.consumer.tag
    single = declaration.single_active_consumer
    return counts | {
        **declaration.columns(),
        **policies.to_json(),
        "state": "hibernated" if backing.asleep else "running",
        "messages": ready + unacked + waiting,
        "messages_ready": ready,
        "messages_unacknowledged": unacked,
        "messages_retrying": waiting,
        "messages_dead_lettering": backing.depth - ready - unacked - waiting,
        "recovering": backing.recovering,
        "unacknowledged_by_channel": consumers.unacked_by_channel(),
        "consumers": len(consumers),
        "exclusive_consumer_tag": None if single else active,
        "single_active_consumer_tag": active if single else None,
        "backing_queue_status": status,
    }
