"""ChannelSettlements: the unacked deliveries of a channel, and how the client settles them.

Each delivery tag of the channel stands for a tag of a queue (:class:`~warren.handles.channel.Channel`). They are kept
as runs, so an ack of many is a few ranges for each queue.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
from pamqp import commands as c

from warren.actors.engines.errors import UnknownTagError
from warren.actors.engines.queue.delivery_tags import DeliveryTags, TagRun
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.queue.queue_consumers import SharedPrefetch
from warren.amqp.errors import ProtocolError
from warren.amqp.own_methods import Settle
from warren.handles.channel import Channel
from warren.queue_index.queue.acking import tag_ranges
from warren.server.channels.channel_link import ChannelLink, Work
from warren.server.replies import NOT_IMPLEMENTED, PRECONDITION_FAILED, Refusal
from warren.storage.errors import WarrenError
from warren.verbs.steps import Steps

if TYPE_CHECKING:
    from warren.server.channels.stream_consumer import StreamConsumer

UNLESS_GONE: Final = contextlib.suppress(WarrenError)
"""A queue may end at any time, in its own thread; it then has all its deliveries back."""

_OUTCOMES: Final = frozenset(("ack", "requeue", "failed", "reject", "retry"))

CONSUMED: Final = 0
OF_GET: Final = 1
"""Levels of a channel's delivery tags: deliveries to consumers, and messages of ``basic.get``."""

Settler: TypeAlias = "Channel | StreamConsumer"
"""The object through which deliveries of a queue, or of a stream, came and are settled."""
Unacked: TypeAlias = TagRun[Settler]


class ChannelSettlements:
    """The unacked deliveries of one channel."""

    def __init__(self, channel: ChannelLink) -> None:
        self._channel = channel
        self.unacked: DeliveryTags[Settler] = DeliveryTags()
        self.uncommitted: list[tuple[str, list[Unacked]]] = []
        """The settlements that a transaction holds back: outcomes, and their deliveries."""
        self.together = SharedPrefetch()
        """The prefetch that the channel's consumers share."""
        self.through: dict[QueueActor, Channel] = {}
        """The channels through which queues deliver."""
        self._lapsed: dict[Channel, set[int]] = {}
        """The queue's tags of messages that exceeded their ack timeout and that the client has not settled."""

    def through_for(self, actor: QueueActor) -> Channel:
        """Return the channel for this channel's deliveries of a queue."""
        through = self.through.get(actor)
        if through is None or not through.alive:
            name = f"{self._channel.connection.name} ({self._channel.number})"
            through = self.through[actor] = Channel(actor, name)
        return through

    def settle(self, outcome: str, tags: Sequence[int], *, multiple: bool) -> None:
        """Settle deliveries by their tags. Raises :class:`Refusal` for an unknown tag.

        Guests may settle a delivery twice, as the host may; the second time has no effect.
        """
        if multiple:
            for tag in tags:
                self._settle(outcome, self._take_up_to(tag))
        elif len(tags) == 1:
            self._settle(outcome, self._take_one(tags[0]))
        else:
            try:
                self._settle(outcome, self._take(tag_ranges(list(tags))))
            except UnknownTagError:
                for tag in tags:  # those before the wrong one count
                    self._settle(outcome, self._take_one(tag))

    def settle_stretch(self, method: Settle) -> None:
        """Settle consecutive deliveries of a guest, as :meth:`settle`."""
        if method.outcome not in _OUTCOMES:
            raise Refusal(PRECONDITION_FAILED, f"unknown outcome '{method.outcome}'")
        try:
            runs = self._take([range(method.first, method.last + 1)])
        except UnknownTagError as error:
            raise Refusal(PRECONDITION_FAILED, str(error)) from None
        self._settle(method.outcome, runs)

    def retry_in(self, tag: int, wait_ms: int) -> Steps[None]:
        """Return one delivery as failed; it comes again after ``wait_ms``."""
        for run in self._take_one(tag):
            if isinstance(run.owner, Channel):
                yield from run.owner.retry_in(run.seq_id, wait_ms)
                if self.together.limit and run.level == CONSUMED:
                    self.together.give_back(self._still_counted(run))

    def extend(self, tag: int, time_ms: int) -> Steps[None]:
        """Set the ack timeout of one delivery to ``time_ms`` from now. Raises :class:`UnknownTagError`."""
        self.unacked.check_present(tag)
        for run in self.unacked.runs:
            if run.first <= tag < run.end and isinstance(run.owner, Channel):
                yield from run.owner.extend(run.part(tag, tag + 1).seq_id, time_ms)

    def ack_up_to(self, tag: int) -> None:
        """Ack everything of a guest up to a tag; 0: everything. Raises :class:`UnknownTagError` if the tag was never
        given, or the reason if its queue has stopped."""
        runs = self.unacked.take_present_up_to(tag)
        self._settle("ack", runs)
        for run in runs:
            if isinstance(run.owner, Channel):
                _ = run.owner.actor  # raises if the queue has stopped

    def _take(self, tags: Sequence[range]) -> list[Unacked]:
        is_guests = self._channel.connection.is_owner
        return self.unacked.take_present(tags) if is_guests else self.unacked.take(tags)

    def _take_one(self, tag: int) -> list[Unacked]:
        try:
            return self._take([range(tag, tag + 1)])
        except UnknownTagError:
            raise Refusal(PRECONDITION_FAILED, f"unknown delivery tag {tag}") from None

    def _take_up_to(self, tag: int) -> list[Unacked]:
        is_guests = self._channel.connection.is_owner
        try:
            return self.unacked.take_present_up_to(tag) if is_guests else self.unacked.take_up_to(tag)
        except UnknownTagError:
            raise Refusal(PRECONDITION_FAILED, f"unknown delivery tag {tag}") from None

    def _settle(self, outcome: str, runs: list[Unacked]) -> None:
        if self._channel.transactional:
            self.uncommitted.append((outcome, runs))
        else:
            self._settle_runs(outcome, runs)

    def commit(self) -> None:
        """Apply the transaction's settlements."""
        settlements, self.uncommitted = self.uncommitted, []
        for outcome, runs in settlements:
            self._settle_runs(outcome, runs)

    def _settle_runs(self, outcome: str, runs: Sequence[Unacked]) -> None:
        """Settle the deliveries of each queue in one message; a queue that is gone has them already."""
        traffic = self._channel.traffic
        parts: dict[Settler, list[range]] = {}
        for run in runs:
            parts.setdefault(run.owner, []).append(run.seq_ids)
            if traffic is not None and outcome == "ack":
                traffic.acked += len(run.seq_ids)
        # First, or a queue that gets its message back would always be served before the others.
        if self.together.limit:
            self.together.give_back(sum(self._still_counted(run) for run in runs if run.level == CONSUMED))
        for through, ranges in parts.items():
            if not isinstance(through, Channel):
                through.settle_ranges(outcome, ranges)
                continue
            with UNLESS_GONE:
                through.settle_ranges(outcome, ranges)

    def post_lapsed(self, through: Channel, tags: range) -> None:
        """Called in the queue's thread."""
        self._channel.server.rounds.post(functools.partial(self._note_lapsed, through, tags))

    def _note_lapsed(self, through: Channel, tags: range) -> None:
        """Make room under the shared prefetch: these messages exceeded their ack timeout and were requeued."""
        if self.together.limit:
            self._lapsed.setdefault(through, set()).update(tags)
            self.together.give_back(len(tags))

    def _still_counted(self, run: Unacked) -> int:
        """Return how many messages of a run still counted under the shared prefetch."""
        lapsed = self._lapsed.get(run.owner) if isinstance(run.owner, Channel) else None
        if not lapsed:
            return run.count
        requeued = lapsed.intersection(run.seq_ids)
        lapsed -= requeued
        return run.count - len(requeued)

    def roll_back(self) -> None:
        """Drop the transaction's settlements: the deliveries are unacked again."""
        settlements, self.uncommitted = self.uncommitted, []
        self.unacked.put_back([run for _, runs in settlements for run in runs])

    def recover(self, method: c.Basic.Recover | c.Basic.RecoverAsync, *, answer: bool) -> Work:
        if not method.requeue:
            raise ProtocolError(NOT_IMPLEMENTED, "requeue=false", method.index)
        self._settle_runs("requeue", self.unacked.take_all())
        if answer:
            self._channel.send(c.Basic.RecoverOk())
        return None


@attrs.define(eq=False)
class UnackedAge:
    """The age of a channel's oldest unsettled delivery, to the tick.

    Nothing is recorded with a delivery. Each tick records the next tag: deliveries with a smaller one were made before.
    """

    _marks: deque[tuple[float, int]] = attrs.Factory(deque)
    """Moments, each with the next tag at that time; the first has a tag above the oldest unsettled one."""

    def tick(self, now_s: float, oldest_tag: int | None, next_tag: int) -> float:
        """Return the age of ``oldest_tag`` in seconds, at most a tick too low. ``None``: everything is settled."""
        marks = self._marks
        while marks and (oldest_tag is None or marks[0][1] <= oldest_tag):
            marks.popleft()
        if oldest_tag is None:
            return 0.0
        if not marks or marks[-1][1] != next_tag:
            marks.append((now_s, next_tag))
        return now_s - marks[0][0]
