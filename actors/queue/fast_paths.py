"""FastPaths: what is delivered and acked between a queue's turns.

Before a turn has handled them, messages may leave the inbox of an empty queue, to a caller that gets or to the only
waiting consumer (:mod:`warren.actors.queue.early_deliveries`), and the copy of the queue's head that the last turn left
(:mod:`warren.actors.engines.queue.read_ahead`). Everything here happens under the inbox's lock, while no thread runs a
turn. A turn begins with taking in what happened here.
"""

from __future__ import annotations

from collections.abc import Callable

from warren.actors.engines.queue.effects import Delivered
from warren.actors.engines.queue.queue_process import QueueProcess
from warren.actors.engines.queue.queue_turn import QueueTurn
from warren.actors.engines.queue.read_ahead import ReadAhead
from warren.actors.queue.deliveries import Deliveries
from warren.actors.queue.early_deliveries import AckBatch, EarlyBatch, only_acks
from warren.actors.runtime.future import Future
from warren.actors.runtime.inbox import Entry
from warren.actors.runtime.pooled_actor import Turns


class FastPaths:
    """The fast paths of one queue, open from its start to its end."""

    __slots__ = ("_deliveries", "_inbox", "_process", "_turn", "_turns", "ahead", "batch")

    def __init__(self, turns: Turns, deliveries: dict[str, Deliveries]) -> None:
        self._turns = turns
        self._inbox = turns.inbox
        self._deliveries = deliveries
        self._process: QueueProcess | None = None
        self._turn: QueueTurn | None = None
        self.batch: EarlyBatch | None = None
        """The last batch from which a message went out early."""
        self.ahead: ReadAhead | None = None
        """Messages that a turn has read ahead for gets; the next turn removes those that were taken."""

    def open(self, process: QueueProcess, turn: QueueTurn) -> None:
        """Allow them, because the queue is open."""
        self._process, self._turn = process, turn

    def close(self) -> None:
        """Allow none any more; what went out can still be acked until the queue stops."""
        self._turn = None

    # ── delivering ──────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, channel: str, most: int, give_back: Callable[[Delivered], None]) -> Delivered | None:
        """Return the message at the head if it was read ahead or waits in the inbox; ``None``: ask for a turn.

        Returns up to ``most`` messages if they wait in the inbox. ``give_back`` is called with what was taken if an
        interrupt comes in between.
        """
        delivered = None
        try:
            with self._inbox.lock:
                if self.ahead is not None:
                    if most == 1 and self._comes_first():
                        delivered = self.ahead.deliver(channel)
                elif (
                    (batch := self._batch_to_deliver()) is not None
                    and self._process is not None
                    and not self._deliveries
                ):
                    delivered = batch.deliver(channel, None, self._process.consumers.channel(channel), most)
        except BaseException:
            if delivered is not None:
                give_back(delivered)
            raise
        return delivered

    def _comes_first(self) -> bool:
        """Whether nothing waits that must be done before a get. The inbox's lock is held."""
        if self._turn is None or self._turns.lock.locked() or self._inbox.has_control:
            return False
        return all(isinstance(entry, (EarlyBatch, AckBatch)) for entry in self._inbox.line)

    def give(self) -> bool:
        """Give waiting messages to the only consumer, if nothing comes before them; return whether all of them went."""
        waiting: list[Future] = []
        with self._inbox.lock:
            batch = self._batch_to_deliver()
            if batch is None or self._process is None or len(self._deliveries) != 1:
                return False
            (deliveries,) = self._deliveries.values()
            while batch.waits:
                consumer = self._process.consumers.lone(batch.delivered - batch.acked_count)
                if consumer is None:
                    break
                delivered = batch.deliver(
                    consumer.channel, consumer.tag, self._process.consumers.channel(consumer.channel)
                )
                if delivered is None:
                    break
                waiting += deliveries.add(delivered)
            all_went = not batch.waits
        for future in waiting:
            future.set()
        return all_went

    def _batch_to_deliver(self) -> EarlyBatch | None:
        """Return the batch in the inbox that may go out early. The inbox's lock is held."""
        inbox, turn = self._inbox, self._turn
        batch = inbox.open_entry
        if not isinstance(batch, EarlyBatch) or not batch.waits or not batch.lasts:
            return None
        if turn is None or self._turns.lock.locked() or not turn.takes_early:
            return None
        if not only_acks(inbox.line, beside=batch):
            return None
        self.batch = batch
        return batch

    # ── acking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def ack(self, channel: str, tag: int) -> bool:
        """Remove an acked message that went out early; return ``False`` if it did not, or if a turn has taken it in."""
        inbox, batch, ahead = self._inbox, self.batch, self.ahead
        with inbox.lock:
            if ahead is not None and ahead is self.ahead and ahead.ack(channel, tag):
                return True
            if batch is None or batch.taken or not batch.ack(channel, tag, inbox):
                return False
            makes_room = batch.consumer is not None and batch.waits
        if makes_room:
            self._turns.submit()
        return True

    def ack_range(self, channel: str, tags: range) -> bool:
        """Like :meth:`ack`, for messages that were fetched together."""
        inbox = self._inbox
        with inbox.lock:
            batch = self.batch
            return (
                batch is not None
                and batch.consumer is None
                and not batch.taken
                and batch.ack_range(channel, tags, inbox)
            )

    # ── what the next turn has to do ────────────────────────────────────────────────────────────────────────────

    def batch_to_write(self) -> EarlyBatch | None:
        """Return the batch in the inbox that may be written ahead: nothing but acks waits beside it, and no consumer is
        to get it now. The inbox's lock is held, and the caller runs the turn."""
        inbox, turn = self._inbox, self._turn
        batch = inbox.open_entry
        if not isinstance(batch, EarlyBatch) or not batch.lasts or (batch.waits and self._deliveries):
            return None
        if turn is None or not turn.takes_ahead or inbox.has_control:
            return None
        return batch if only_acks(inbox.line, beside=batch) else None

    def take_ahead(self) -> ReadAhead | None:
        """Return what was read ahead, and forget it."""
        with self._inbox.lock:
            ahead, self.ahead = self.ahead, None
        return ahead

    def may_still_give(self) -> bool:
        """Whether a message of the last early batch waits in the inbox."""
        batch = self.batch
        return batch is not None and batch.waits and not batch.taken

    def all_went_out(self) -> bool:
        """Whether messages went out early and nothing else waits but acks."""
        batch = self.batch
        return batch is not None and not batch.taken and not batch.waits and self.only_early()

    def only_early(self) -> bool:
        """Whether nothing waits but the last early batch, and acks."""
        batch = self.batch
        return self._inbox.holds_only(lambda entry: entry is batch or isinstance(entry, AckBatch))

    def may_wait(self, entry: Entry) -> bool:
        """Whether an entry of the inbox may wait for the next sync: it is acks, or written and not to be delivered."""
        return isinstance(entry, AckBatch) or (
            isinstance(entry, EarlyBatch)
            and entry.written == len(entry.items)
            and not (entry.waits and bool(self._deliveries))
        )
