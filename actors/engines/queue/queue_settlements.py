"""QueueSettlements: one queue's unacked messages, and how their channels settle them.

A part of a queue (:class:`~warren.actors.engines.queue.queue_process.QueueProcess`). A message that is not acked comes
back to its old position, now or later (:mod:`~warren.actors.engines.queue.retries`), or dies. After an ack timeout this
happens automatically (:mod:`~warren.actors.engines.queue.ack_deadlines`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from warren.actors.engines.queue.consumers import Run
from warren.actors.engines.queue.expiry import Expiry
from warren.actors.engines.queue.queue_context import QueueContext
from warren.actors.log_events import log_event, logger
from warren.queue_index.queue.fetching import Fetched, FetchedAgain

if TYPE_CHECKING:
    from warren.actors.engines.queue.ack_deadlines import AckDeadlines
    from warren.actors.engines.queue.retries import Retries

_LOG = logger("queue")


@attrs.define(eq=False, repr=False)
class QueueSettlements:
    """The unacked messages of one queue. See the module's prose."""

    _context: QueueContext
    _expiry: Expiry
    remembers: bool = attrs.field(init=False)
    """Whether there may be messages that came back, or were out before the queue was started."""
    retries: Retries | None = attrs.field(init=False, default=None)
    """Created when the first message comes back, or when one is delivered that may have come back before a restart."""
    _deadlines: AckDeadlines | None = attrs.field(init=False, default=None)
    """Created for the first delivery with a timeout."""

    def __attrs_post_init__(self) -> None:
        backing = self._context.backing
        self.remembers = len(backing) > 0 or backing.recovering

    def load_returned(self) -> None:
        """Read the log of messages that came back before the last stop."""
        self._open_retries().load(self._context.backing.next_seq_id)

    def _open_retries(self) -> Retries:
        self.remembers = True
        if self.retries is None:
            from warren.actors.engines.queue.retries import SUSPECTS, Retries

            context = self._context
            log = None if context.returned_log is None else context.returned_log(context.declaration)
            backing, suspects = context.backing, SUSPECTS if context.crashed else 0
            write_index = (lambda level: backing.level(level).write_out()) if context.tells_out else None
            self.retries = Retries(context.arguments, log, context.sync, suspects, write_index)
        return self.retries

    # ── what channels settle ────────────────────────────────────────────────────────────────────────────────────

    def close_channel(self, channel: str, seen_up_to: int | None = None) -> int:
        """Remove a channel's consumers and requeue its unacked messages; return how many these were.

        ``seen_up_to``: messages delivered after this tag were not seen; ``None``: all were.
        """
        context = self._context
        tags, runs = context.consumers.remove_channel(channel)
        if context.log is not None:
            context.log.came_back(channel, runs, "requeued")
        if self._deadlines is not None:
            self._deadlines.close_channel(channel)
        if tags or runs:
            context.touch()
        if seen_up_to is None or not runs or runs[-1].end <= seen_up_to + 1:
            return self._come_back(runs, failed=True)
        seen = [run.part(run.first, min(run.end, seen_up_to + 1)) for run in runs if run.first <= seen_up_to]
        unseen = [run.part(max(run.first, seen_up_to + 1), run.end) for run in runs if run.end > seen_up_to + 1]
        return self._come_back(seen, failed=True) + self._come_back(unseen, seen=False)

    def ack(self, channel: str, tags: Sequence[range]) -> None:
        """Ack messages by their delivery tags. Those that are settled already, or were held for too long, are ignored.

        Raises :class:`~warren.actors.engines.errors.UnknownTagError` if a tag was never given to the channel.
        """
        self._ack(channel, self._context.consumers.settle(channel, tags))

    def ack_up_to(self, channel: str, tag: int) -> None:
        """Ack everything up to a tag; 0: everything."""
        self._ack(channel, self._context.consumers.settle_up_to(channel, tag))

    def nack(self, channel: str, tags: Sequence[range], *, requeue: bool, failed: bool = False) -> None:
        """Requeue messages to their old positions, or reject them; then they become dead letters, or are dropped.

        ``failed``: whether requeued ones count as failed (``x-delayed-retry-type``).
        """
        self._nack(channel, self._context.consumers.settle(channel, tags), requeue=requeue, failed=failed)

    def nack_up_to(self, channel: str, tag: int, *, requeue: bool) -> None:
        """As :meth:`nack`, everything up to a tag; 0: everything."""
        self._nack(channel, self._context.consumers.settle_up_to(channel, tag), requeue=requeue)

    def retry(self, channel: str, tags: Sequence[range], wait_ms: int | None = None) -> None:
        """Requeue messages that failed to their old positions after a wait. ``wait_ms`` ``None``: as the queue's
        arguments say."""
        runs = self._context.consumers.settle(channel, tags)
        if self._context.log is not None:
            self._context.log.came_back(channel, runs, "retried")
        self._come_back(runs, retried=True, wait_ms=wait_ms)

    def extend(self, channel: str, tag: int, time_ms: int) -> None:
        """Let a channel hold a message for ``time_ms`` from now on, if its time is limited.

        Raises :class:`~warren.actors.engines.errors.UnknownTagError` if the channel no longer has it.
        """
        self._context.consumers.check_present(channel, tag)
        if self._deadlines is not None:
            self._deadlines.extend(channel, tag, self._context.wall_clock() + time_ms * 1000)

    def _ack(self, channel: str, runs: Sequence[Run]) -> None:
        context = self._context
        for level, seq_ids in _by_level(runs).items():
            context.backing.level(level).ack(seq_ids)
        if self.retries is not None:
            self.retries.forget([(run.level, run.seq_ids) for run in runs])
        if context.counts is not None:
            context.counts.note_acked(runs)
        if context.log is not None:
            context.log.acked(channel, runs)

    def _nack(self, channel: str, runs: list[Run], *, requeue: bool, failed: bool = False) -> None:
        context = self._context
        if requeue:
            if context.log is not None:
                context.log.came_back(channel, runs, "requeued")
            self._come_back(runs, failed=failed)
            return
        if not runs:
            return
        if context.counts is not None:
            context.counts.rejected += sum(run.count for run in runs)
        held = [(run.level, run.seq_ids) for run in runs]
        if self.retries is not None:
            self.retries.forget(held)
        dead_lettered = self._expiry.reject(held)
        if not dead_lettered:
            self._drop(held)
        if context.log is not None:
            context.log.rejected(channel, runs, dead_lettered=dead_lettered)

    def _drop(self, held: Iterable[tuple[int, range]]) -> None:
        """Delete pending messages."""
        for level, seq_ids in held:
            self._context.backing.level(level).ack([seq_ids])

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
        context = self._context
        held = [(run.level, run.seq_ids) for run in runs]
        returned = self._open_retries().came_back(
            held, context.wall_clock(), seen=seen, failed=failed, retried=retried, wait_ms=wait_ms
        )
        self._put_back(returned.ready)
        self._die_of_limit(returned.over)
        count = sum(run.count for run in runs)
        if context.counts is not None:
            context.counts.requeued += count
        context.consumers.hand_out_anew()
        self.tick()
        return count

    def _put_back(self, held: Iterable[tuple[int, range]]) -> None:
        """Put pending messages back in their old positions."""
        levels: dict[int, list[range]] = {}
        for level, seq_ids in held:
            levels.setdefault(level, []).append(seq_ids)
        for level, parts in levels.items():
            self._context.backing.level(level).requeue(parts)

    def _die_of_limit(self, held: list[tuple[int, range]]) -> None:
        """Dead-letter or drop pending messages that exceed the delivery limit."""
        if not held:
            return
        declaration, arguments = self._context.declaration, self._context.arguments
        is_gone = arguments.dead_letter_exchange is None
        if (log := self._context.log) is not None:
            for level, seq_ids in held:
                log.over_limit(self._context.backing.level(level), seq_ids, dead_lettered=not is_gone)
        count = sum(len(seq_ids) for _, seq_ids in held)
        fate = "they are gone" if is_gone else f"they are dead-lettered to {arguments.dead_letter_target}"
        _LOG.warning(
            "%s: %d messages were returned more than %s times: %s",
            declaration,
            count,
            arguments.delivery_limit,
            fate,
            extra=log_event("queue_delivery_limit", of=declaration, count=count),
        )
        if not self._expiry.reject(held, "delivery_limit"):
            self._drop(held)

    def to_deliver(self, level: int, fetched: Fetched, ack_required: bool) -> list[Fetched]:
        """Return those of redelivered messages that may be delivered now, with their delivery counts."""
        retries = self._open_retries()
        if (
            ack_required
            and (waiting := retries.go_on_waiting(level, fetched.seq_ids, self._context.wall_clock())) is not None
        ):
            return [
                part
                for at, waits in enumerate(waiting)
                if not waits
                for part in self.to_deliver(level, fetched.part(at, 1), ack_required)
            ]
        was_out = self._context.tells_out and fetched.has_deliver_record
        counts = retries.delivered_again(level, fetched.seq_ids, was_out=was_out)
        if counts is None:
            return [fetched]
        redelivered = FetchedAgain.of(fetched, counts, tells_count=self._context.arguments.tells_delivery_count)
        if not ack_required:
            retries.forget([(level, fetched.seq_ids)])
            return [redelivered]
        over = retries.over_limit(counts)
        if over is None:
            return [redelivered]
        self._die_of_limit([(level, fetched.seq_ids[at : at + 1]) for at, is_over in enumerate(over) if is_over])
        return [redelivered.part(at, 1) for at, is_over in enumerate(over) if not is_over]

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────

    def tick(self) -> None:
        """Handle due messages: those that waited, were held for too long, expired, or exceed the limits."""
        if self.retries is not None or self._deadlines is not None:
            self._come_due(self._context.wall_clock())
        self._expiry.shed()
        self._expiry.expire()

    def _come_due(self, now_us: int) -> None:
        if self._deadlines is not None and (due := self._deadlines.take_due(now_us)):
            self._lapse(due)
        if self.retries is not None and (waited := self.retries.take_due(now_us)):
            self._put_back(waited)
            self._context.consumers.hand_out_anew()

    def limit_time(self, channel: str, first: int, count: int, timeout_ms: int) -> None:
        """Limit how long a channel may hold the messages it just got."""
        if self._deadlines is None:
            from warren.actors.engines.queue.ack_deadlines import AckDeadlines

            self._deadlines = AckDeadlines()
        self._deadlines.given(channel, first, count, timeout_ms, self._context.wall_clock())

    def _lapse(self, due: Iterable[tuple[str, range]]) -> None:
        """Take back messages that were held for too long."""
        context = self._context
        runs: list[Run] = []
        for channel, tags in due:
            lapsed_runs = context.consumers.settle(channel, (tags,))
            if context.log is not None:
                context.log.came_back(channel, lapsed_runs, "timed_out")
            for run in lapsed_runs:
                if run.owner is not None:
                    context.effects.lapsed.append((run.owner.consumer.tag, range(run.first, run.end)))
            runs += lapsed_runs
        if runs:
            count = sum(run.count for run in runs)
            _LOG.warning(
                "%s: %d messages were not acked in time and are requeued",
                context.declaration,
                count,
                extra=log_event("queue_ack_timeout", of=context.declaration, count=count),
            )
            self._come_back(runs)

    @property
    def next_due_us(self) -> int | None:
        """When the next wait or ack timeout ends; ``None``: never, for the present messages."""
        of_wait = None if self.retries is None else self.retries.next_due_us()
        of_timeout = None if self._deadlines is None else self._deadlines.next_due_us()
        if of_wait is None or of_timeout is None:
            return of_timeout if of_wait is None else of_wait
        return min(of_wait, of_timeout)

    # ── the whole queue ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def waiting(self) -> int:
        """How many messages wait to be redelivered."""
        return 0 if self.retries is None else self.retries.waiting

    @property
    def held(self) -> Iterator[tuple[int, range]]:
        """The messages that wait to be redelivered, by level and seq_ids."""
        return iter(()) if self.retries is None else self.retries.held

    def purge_waiting(self) -> int:
        """Delete the messages that wait to be redelivered; return their number."""
        if self.retries is None:
            return 0
        held = self.retries.take_all()
        self.retries.forget(held)
        self._drop(held)
        return sum(len(seq_ids) for _, seq_ids in held)

    def delete(self) -> None:
        """Delete the log of messages that came back, because the queue is deleted."""
        if self.retries is not None:
            self.retries.delete()
        self.retries = self._deadlines = None

    def close(self) -> None:
        """Stop cleanly: what channels have comes back."""
        consumers = self._context.consumers
        if self.retries is not None or consumers.unacked:
            out = [(run.level, run.seq_ids) for run in consumers.runs()]
            self._open_retries().close(out, [(run.level, run.seq_ids[0]) for run in consumers.oldest_runs()])
        self.retries = self._deadlines = None

    def rest(self) -> None:
        """Free what is not needed while no message is unacked or waits."""
        backing = self._context.backing
        if self.retries is not None:
            self.retries.begin_anew([level for level in backing.numbers if not backing.length_of(level)])
            self.retries = self.retries if self.retries.counts else None
        self.remembers = self.remembers and len(backing) > 0

    def check_invariants(self) -> None:
        """Raise ``RuntimeError`` if retries or deadlines contradict themselves."""
        if self._deadlines is not None:
            self._deadlines.check_invariants()
        if self.retries is not None:
            self.retries.check_invariants()


def _by_level(runs: Sequence[Run]) -> dict[int, list[range]]:
    """The seq_ids of runs, by level."""
    if len(runs) == 1:
        return {runs[0].level: [runs[0].seq_ids]}
    levels: dict[int, list[range]] = {}
    for run in runs:
        levels.setdefault(run.level, []).append(run.seq_ids)
    return levels
