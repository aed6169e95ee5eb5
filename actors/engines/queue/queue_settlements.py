"""QueueSettlements: one queue's consumers and channels, their unacked messages, and how they settle them.

A part of a queue (:class:`~warren.actors.engines.queue.queue_process.QueueProcess`). A message that is not acked comes
back to its old position, now or later (:mod:`~warren.actors.engines.queue.retries`), or dies. After an ack timeout this
happens automatically (:mod:`~warren.actors.engines.queue.ack_deadlines`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import attrs

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.policies import NO_POLICIES, AppliedPolicies
from warren.actors.engines.declared.queue_arguments import QueueArguments, effective
from warren.actors.engines.queue.backing import Backing
from warren.actors.engines.queue.consumers import Consumer, Consumers, ConsumerState, Run, Shared
from warren.actors.engines.queue.counts import Counts
from warren.actors.engines.queue.effects import DeadLetterBatch, Effects
from warren.actors.engines.queue.expiry import DeathWatcher, Expiry, WallClock
from warren.actors.log_events import log_event, logger

if TYPE_CHECKING:
    from warren.actors.engines.queue.ack_deadlines import AckDeadlines
    from warren.actors.engines.queue.retries import Retries
    from warren.storage.record_log import RecordLog

_LOG = logger("queue")


@attrs.define(eq=False, repr=False)
class QueueSettlements:
    """The unacked messages of one queue. See the module's prose."""

    declaration: QueueDeclaration
    backing: Backing
    """Public for paging, syncs and recovery. Messages are published and taken only by the queue's own methods."""
    _wall_clock: WallClock = attrs.field(kw_only=True)
    counts: Counts | None = attrs.field(default=None, kw_only=True)
    """Event counts; ``None`` if they are not wanted."""
    policies: AppliedPolicies = attrs.field(default=NO_POLICIES, kw_only=True)
    arguments: QueueArguments = attrs.field(init=False)
    """The declaration's arguments merged with the policies."""
    _consumers: Consumers = attrs.field(init=False)
    _effects: Effects | None = attrs.field(init=False, default=None)
    _expiry: Expiry = attrs.field(init=False)
    _used_at_us: int = attrs.field(init=False)
    _returned_log: Callable[[QueueDeclaration], RecordLog] | None = attrs.field(default=None, kw_only=True)
    """Creates a queue's log of requeued messages; ``None`` for a queue that does not survive a restart."""
    _sync: bool = attrs.field(default=True, kw_only=True)
    """Whether safe messages survive a power loss, or only a crash of the process."""
    _tells_out: bool = attrs.field(default=True, kw_only=True)
    """Whether the files record which messages were out when the queue stopped."""
    _crashed: bool = attrs.field(default=False, kw_only=True)
    """Whether the queue was recovered after a crash."""
    _remembers: bool = attrs.field(init=False)
    """Whether there may be messages that came back, or were out before the queue was started."""
    _retries: Retries | None = attrs.field(init=False, default=None)
    """Created when the first message comes back, or when one is delivered that may have come back before a restart."""
    _deadlines: AckDeadlines | None = attrs.field(init=False, default=None)
    """Created for the first delivery with a timeout."""

    def __attrs_post_init__(self) -> None:
        self._consumers = Consumers(single_active=self.declaration.single_active_consumer)
        self.arguments = effective(self.declaration, self.policies.definition)
        self._expiry = Expiry(self.arguments, self.backing, self._wall_clock, self._send_dead_letters)
        self._used_at_us = self._wall_clock()
        self._remembers = len(self.backing) > 0 or self.backing.recovering

    def load_returned(self) -> None:
        """Read the log of messages that came back before the last stop."""
        self._open_retries().load(self.backing.next_seq_id)

    def _open_retries(self) -> Retries:
        self._remembers = True
        if self._retries is None:
            from warren.actors.engines.queue.retries import SUSPECTS, Retries

            log = None if self._returned_log is None else self._returned_log(self.declaration)
            self._retries = Retries(self.arguments, log, self._sync, SUSPECTS if self._crashed else 0)
        return self._retries

    @property
    def retries(self) -> Retries | None:
        """The retries; ``None`` if no message came back."""
        return self._retries

    @property
    def effects(self) -> Effects:
        """The collected effects; :meth:`drain_effects` takes them."""
        if self._effects is None:
            self._effects = Effects()
        return self._effects

    def tell_deaths_to(self, watcher: DeathWatcher) -> None:
        """Report to ``watcher`` which messages die, and how, and which were held for too long."""
        self._expiry.watcher = watcher

    def _send_dead_letters(self, batch: DeadLetterBatch) -> None:
        if self.counts is not None:
            self.counts.dead_lettered += len(batch.publications)
        self.effects.dead_letters.append(batch)

    # ── consumers and channels ──────────────────────────────────────────────────────────────────────────────────

    def add_consumer(self, consumer: Consumer) -> None:
        """Add a consumer; :meth:`deliver` gives it messages.

        Raises :class:`~warren.actors.engines.errors.AccessRefusedError` if it is exclusive and not alone, or another
        one is exclusive.
        """
        before = self._consumers.active
        self._consumers.add(consumer)
        self._note_active(before)

    def set_room(self, tag: str, room: int) -> None:
        """Let a consumer have room for ``room`` more messages, regardless of what it has unacked."""
        self._consumers.set_room(tag, room)

    def set_prefetch(self, tag: str, prefetch: int, shared: Shared | None = None) -> None:
        """Set a consumer's prefetch for the next :meth:`deliver`."""
        self._consumers.set_prefetch(tag, prefetch, shared)

    def resume(self, shared: Shared) -> None:
        """Note that a shared prefetch has room again."""
        self._consumers.resume(shared)

    def cancel_consumer(self, tag: str) -> bool:
        """Remove a consumer; its unacked messages stay with the channel. Return whether it existed."""
        before = self._consumers.active
        if self._consumers.remove(tag) is None:
            return False
        self._used_at_us = self._wall_clock()
        self._note_active(before)
        return True

    def close_channel(self, channel: str, seen_up_to: int | None = None) -> int:
        """Remove a channel's consumers and requeue its unacked messages; return how many these were.

        ``seen_up_to``: messages delivered after this tag were not seen; ``None``: all were.
        """
        before = self._consumers.active
        tags, runs = self._consumers.remove_channel(channel)
        if self._deadlines is not None:
            self._deadlines.close_channel(channel)
        if tags or runs:
            self._used_at_us = self._wall_clock()
        self._note_active(before)
        if seen_up_to is None or not runs or runs[-1].end <= seen_up_to + 1:
            return self._come_back(runs, failed=True)
        seen = [run.part(run.first, min(run.end, seen_up_to + 1)) for run in runs if run.first <= seen_up_to]
        unseen = [run.part(max(run.first, seen_up_to + 1), run.end) for run in runs if run.end > seen_up_to + 1]
        return self._come_back(seen, failed=True) + self._come_back(unseen, seen=False)

    def lose_channel(self, channel: str) -> int:
        """Close a channel for which it is unknown what was seen. See :meth:`close_channel`."""
        return self.close_channel(channel, self._consumers.oldest_tag(channel))

    def _note_active(self, before: ConsumerState | None) -> None:
        active = self._consumers.active
        if active is not None and active is not before and self.declaration.single_active_consumer:
            self.effects.activated.append(active.consumer.tag)

    def ack(self, channel: str, tags: Sequence[range]) -> None:
        """Ack messages by their delivery tags. Those that are settled already, or were held for too long, are ignored.

        Raises :class:`~warren.actors.engines.errors.UnknownTagError` if a tag was never given to the channel.
        """
        runs = self._ack(self._consumers.settle(channel, tags))
        if self.counts is not None:
            self.counts.note_acked(runs)

    def ack_up_to(self, channel: str, tag: int) -> None:
        """Ack everything up to a tag; 0: everything."""
        runs = self._ack(self._consumers.settle_up_to(channel, tag))
        if self.counts is not None:
            self.counts.note_acked(runs)

    def nack(self, channel: str, tags: Sequence[range], *, requeue: bool, failed: bool = False) -> None:
        """Requeue messages to their old positions, or reject them; then they become dead letters, or are dropped.

        ``failed``: whether requeued ones count as failed (``x-delayed-retry-type``).
        """
        self._nack(self._consumers.settle(channel, tags), requeue=requeue, failed=failed)

    def nack_up_to(self, channel: str, tag: int, *, requeue: bool) -> None:
        """As :meth:`nack`, everything up to a tag; 0: everything."""
        self._nack(self._consumers.settle_up_to(channel, tag), requeue=requeue)

    def retry(self, channel: str, tags: Sequence[range], wait_ms: int | None = None) -> None:
        """Requeue messages that failed to their old positions after a wait. ``wait_ms`` ``None``: as the queue's
        arguments say."""
        self._come_back(self._consumers.settle(channel, tags), retried=True, wait_ms=wait_ms)

    def extend(self, channel: str, tag: int, time_ms: int) -> None:
        """Let a channel hold a message for ``time_ms`` from now on, if its time is limited.

        Raises :class:`~warren.actors.engines.errors.UnknownTagError` if the channel no longer has it.
        """
        self._consumers.check_present(channel, tag)
        if self._deadlines is not None:
            self._deadlines.extend(channel, tag, self._wall_clock() + time_ms * 1000)

    def _ack(self, runs: Sequence[Run]) -> Sequence[Run]:
        for level, seq_ids in _by_level(runs).items():
            self.backing.level(level).ack(seq_ids)
        if self._retries is not None:
            self._retries.forget([(run.level, run.seq_ids) for run in runs])
        return runs

    def _nack(self, runs: list[Run], *, requeue: bool, failed: bool = False) -> None:
        if requeue:
            self._come_back(runs, failed=failed)
            return
        if not runs:
            return
        if self.counts is not None:
            self.counts.rejected += sum(run.count for run in runs)
        if self._retries is not None:
            self._retries.forget([(run.level, run.seq_ids) for run in runs])
        if not self._expiry.reject([(run.level, run.seq_ids) for run in runs]):
            self._ack(runs)

    # ── what comes back ─────────────────────────────────────────────────────────────────────────────────────────

    def _come_back(
        self,
        runs: Sequence[Run],
        *,
        seen: bool = True,
        failed: bool = False,
        retried: bool = False,
        wait_ms: int | None = None,
    ) -> int:
        """Put messages back that a channel no longer has; return their number."""
        if not runs:
            return 0
        held = [(run.level, run.seq_ids) for run in runs]
        returned = self._open_retries().came_back(
            held, self._wall_clock(), seen=seen, failed=failed, retried=retried, wait_ms=wait_ms
        )
        self._put_back(returned.ready)
        self._die_of_limit(returned.over)
        count = sum(run.count for run in runs)
        if self.counts is not None:
            self.counts.requeued += count
        self._consumers.hand_out_anew()
        self.tick()
        return count

    def _put_back(self, held: Iterable[tuple[int, range]]) -> None:
        """Put pending messages back in their old positions."""
        levels: dict[int, list[range]] = {}
        for level, seq_ids in held:
            levels.setdefault(level, []).append(seq_ids)
        for level, parts in levels.items():
            self.backing.level(level).requeue(parts)

    def _die_of_limit(self, held: list[tuple[int, range]]) -> None:
        """Dead-letter or drop pending messages that exceed the delivery limit."""
        if not held:
            return
        if self._expiry.watcher is not None:
            self._expiry.watcher.over_limit([(self.backing.level(level), seq_ids) for level, seq_ids in held])
        count, arguments = sum(len(seq_ids) for _, seq_ids in held), self.arguments
        is_gone = arguments.dead_letter_exchange is None
        fate = "they are gone" if is_gone else f"they are dead-lettered to {arguments.dead_letter_target}"
        _LOG.warning(
            "%s: %d messages were returned more than %s times: %s",
            self.declaration,
            count,
            arguments.delivery_limit,
            fate,
            extra=log_event("queue_delivery_limit", of=self.declaration, count=count),
        )
        if not self._expiry.reject(held, "delivery_limit"):
            for level, seq_ids in held:
                self.backing.level(level).ack([seq_ids])

    def tick(self) -> None:
        """Handle due messages: those that waited, were held for too long, expired, or exceed the limits."""
        if self._retries is not None or self._deadlines is not None:
            self._come_due(self._wall_clock())
        self._expiry.shed()
        self._expiry.expire()

    def _come_due(self, now_us: int) -> None:
        if self._deadlines is not None and (due := self._deadlines.take_due(now_us)):
            self._lapse(due)
        if self._retries is not None and (waited := self._retries.take_due(now_us)):
            self._put_back(waited)
            self._consumers.hand_out_anew()

    def _purge_waiting(self) -> int:
        """Delete the messages that wait to be redelivered; return their number."""
        if self._retries is None:
            return 0
        held = self._retries.take_all()
        self._retries.forget(held)
        for level, seq_ids in held:
            self.backing.level(level).ack([seq_ids])
        return sum(len(seq_ids) for _, seq_ids in held)

    def _limit_time(self, channel: str, first: int, count: int, timeout_ms: int) -> None:
        """Limit how long a channel may hold the messages it just got."""
        if self._deadlines is None:
            from warren.actors.engines.queue.ack_deadlines import AckDeadlines

            self._deadlines = AckDeadlines()
        self._deadlines.given(channel, first, count, timeout_ms, self._wall_clock())

    def _lapse(self, due: Iterable[tuple[str, range]]) -> None:
        """Take back messages that were held for too long."""
        runs: list[Run] = []
        for channel, tags in due:
            for run in self._consumers.settle(channel, (tags,)):
                lapsed_tags = range(run.first, run.end)
                if self._expiry.watcher is not None:
                    self._expiry.watcher.lapsed(channel, lapsed_tags)
                if run.owner is not None:
                    self.effects.lapsed.append((run.owner.consumer.tag, lapsed_tags))
                runs.append(run)
        if runs:
            count = sum(run.count for run in runs)
            _LOG.warning(
                "%s: %d messages were not acked in time and are requeued",
                self.declaration,
                count,
                extra=log_event("queue_ack_timeout", of=self.declaration, count=count),
            )
            self._come_back(runs)

    @property
    def next_due_us(self) -> int | None:
        """When the next wait or ack timeout ends; ``None``: never, for the present messages."""
        times = (
            None if self._retries is None else self._retries.next_due_us(),
            None if self._deadlines is None else self._deadlines.next_due_us(),
        )
        return min((time for time in times if time is not None), default=None)


def _by_level(runs: Sequence[Run]) -> dict[int, list[range]]:
    """The seq_ids of runs, by level."""
    if len(runs) == 1:
        return {runs[0].level: [runs[0].seq_ids]}
    levels: dict[int, list[range]] = {}
    for run in runs:
        levels.setdefault(run.level, []).append(run.seq_ids)
    return levels
