"""The actor of one queue: it hosts a :class:`~warren.actors.engines.queue.queue_turn.QueueTurn`.

It translates messages into calls of the turn. The engine defines what happens in a turn, and in which order.
:mod:`warren.actors.queue.queue_intake` describes how messages get in and which publishers wait; the results of a turn
leave by :mod:`warren.actors.queue.queue_output`.

After a crash or an error, the files are given up as they are, and the node reopens the queue from them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import attrs

from warren.actors import messages as m
from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.policies import NO_POLICIES, AppliedPolicies
from warren.actors.engines.declared.queue_arguments import QueueArguments, effective
from warren.actors.engines.queue.queue_context import Counts
from warren.actors.engines.queue.queue_process import QueueProcess
from warren.actors.engines.queue.queue_turn import LOST, QueueTurn
from warren.actors.engines.queue.queue_turn_host import TurnContext
from warren.actors.node.backpressure import PublishBatch
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_part import NodePart
from warren.actors.node.store_actor import RemoteStore
from warren.actors.queue.early_deliveries import EarlyBatch
from warren.actors.queue.intake import QueueDownError, QueueGoneError, SettleKey
from warren.actors.queue.queue_arrivals import QueueArrivals
from warren.actors.queue.queue_consumers import QueueConsumers
from warren.actors.queue.queue_intake import QueueIntake
from warren.actors.queue.queue_output import Dispatch, QueueOutput
from warren.actors.queue.queue_shortcuts import QueueShortcuts
from warren.actors.queue.sampling import sample_queue
from warren.actors.runtime.future import CountDown, Future
from warren.actors.runtime.inbox import PendingBatch
from warren.actors.runtime.pooled_actor import ActorStoppedError, WrongProcessError
from warren.actors.runtime.timer import tell
from warren.queue_index.index.recovery_terms import RecoveryTerms
from warren.queue_index.queue.acking import tag_ranges
from warren.storage.errors import DirectoryLostError, DiskFullError, NoRoomError, WarrenError

if TYPE_CHECKING:
    from warren.actors.queue.tails import Tails


_rest_numbers = itertools.count(1)


@attrs.frozen(eq=False, repr=False)
class OpenedQueue:
    """A queue opened from its files."""

    process: QueueProcess
    stores: list[RemoteStore]
    recovered: Callable[[], None]
    """Called once all segments are scanned."""
    keys_path: str | None
    """Where the keys of its messages are on disk; ``None`` if nothing of the queue outlives the process."""
    has_keys: bool
    """Whether that file exists."""


class QueueActor(NodePart):
    """Owns one queue. Unless they say otherwise, its methods are called in its turns; :attr:`intake` is open to any
    thread."""

    __slots__ = (
        "_dispatch",
        "_is_opening",
        "_open_process",
        "_process",
        "_queue_turn",
        "_recovered",
        "_recovering_armed",
        "_stores",
        "_tails",
        "_to_be_counted",
        "arrivals",
        "consumers",
        "declaration",
        "intake",
        "output",
        "policies",
        "rest_number",
    )

    def __init__(
        self,
        context: NodeContext,
        declaration: QueueDeclaration,
        *,
        open_process: Callable[[QueueActor], OpenedQueue],
        dispatch: Dispatch,
        is_opening: Callable[[], bool] = lambda: False,
        policies: AppliedPolicies = NO_POLICIES,
    ) -> None:
        """``is_opening``: whether there may be queues that are not started yet."""
        super().__init__(context, declaration, ("queue", declaration.vhost, declaration.name))
        self.declaration = declaration
        self.intake = QueueIntake(self, context, declaration)
        self.arrivals = QueueArrivals(self, context, self.actor_inbox)
        self._process: QueueProcess | None = None
        self._queue_turn: QueueTurn | None = None
        self._stores: list[RemoteStore] = []
        self._open_process = open_process
        self._dispatch = dispatch
        self._is_opening = is_opening
        self.consumers: QueueConsumers = QueueConsumers(self)
        self.rest_number = 0
        """A new number for each rest, 0 at work: while it is unchanged, the queue's numbers are, too."""
        self.policies: AppliedPolicies = policies
        """The policies that it was last given; the node's actor changes them."""
        self._recovering_armed = False
        self._recovered: Callable[[], None] | None = None
        self._tails: Tails | None = None
        """Created on first use of :attr:`tails`."""
        self._to_be_counted: list[Future] = []
        """Answered with :meth:`length` once all messages that a crash has left are found."""

    def stopped_error(self) -> WarrenError:
        if isinstance(self.error, QueueGoneError | WrongProcessError | DirectoryLostError):
            return self.error.with_traceback(None)  # each raise would add to it
        if self.error is not None:
            return QueueDownError(f"{self.describe()} is down: {self.error}")
        return self._context.closing or ActorStoppedError(f"{self.describe()} is gone")

    @property
    def process(self) -> QueueProcess:
        if self._process is None:
            raise RuntimeError(f"{self.describe()} is not open")
        return self._process

    @property
    def queue_turn(self) -> QueueTurn:
        if self._queue_turn is None:
            raise RuntimeError(f"{self.describe()} is not open")
        return self._queue_turn

    @property
    def turn_count(self) -> int:
        """The number of turns that had something to do."""
        return 0 if self._queue_turn is None else self._queue_turn.turns

    @property
    def arguments(self) -> QueueArguments:
        """The declaration's arguments merged with the policies that it was last given."""
        limit = self._context.settings.quorum_delivery_limit
        return effective(self.declaration, self.policies.definition, limit)

    # ── beginning and end ───────────────────────────────────────────────────────────────────────────────────────

    def on_start(self) -> None:
        opened, context = self._open_process(self), self._context
        self._process, self._stores, self._recovered = opened.process, opened.stores, opened.recovered
        self.output = QueueOutput(
            context,
            self.actor_ref,
            opened.process,
            dispatch=self._dispatch,
            is_opening=self._is_opening,
            call_later=self.call_later,
            msg_ids=self.arrivals.msg_ids,
        )
        turn_context = TurnContext(
            host=self,
            output=self.output,
            process=opened.process,
            stores=opened.stores,
            clock=context.clock,
            settings=context.settings,
        )
        self._queue_turn = QueueTurn(turn_context, self.intake.deliveries)
        self.turns.shortcuts = QueueShortcuts(self.turns, self._queue_turn, self.intake, self.arrivals, context)
        self.intake.open(opened.process, self._queue_turn, opened.stores)
        self.arrivals.keys_path = opened.keys_path
        if opened.has_keys:  # before a message with a key can be taken
            self.arrivals.open_unique()
        self._recover_on()
        self.output.account_memory()  # thousands of queues found on opening take memory too
        if not self.process.backing.recovering:  # a queue that is never used expires, too
            self._queue_turn.deadline.arm()
        if self.process.backing.asleep:  # it rests until its first work
            self.rest_number = next(_rest_numbers)

    def _recover_on(self) -> None:
        """Schedule the next step of recovery after waiting messages; report when it is complete."""
        if self._recovered is None:
            return
        if not self.process.backing.recovering:
            self._recovered()
            self._recovered = None
            for future in self._to_be_counted:
                future.offer(self.length())
            self._to_be_counted.clear()
        elif not self._recovering_armed:
            self._recovering_armed = True
            self.call_soon(self._recover_step)

    def _recover_step(self) -> None:
        self._recovering_armed = False
        self.queue_turn.context.worked = True
        self.process.backing.recover_step()
        self._recover_on()

    def close(self) -> tuple[dict[bytes, RecoveryTerms], list[Future]]:
        """Handle earlier messages, then stop the actor.

        Returns recovery terms by stored name, and the confirms to answer once the stores are closed.
        """
        self.turns.handle_last()
        self._tell_now()
        self._say_last_word()
        try:
            if self.arrivals.unique is not None:
                self.arrivals.unique.close()
            terms = self.process.close(self._context.random)
        except NoRoomError as error:  # half-closed, so this is no refusal any more
            raise DiskFullError(f"{self.describe()} could not write down all acks: {error}") from error
        self._recover_on()
        confirms = list(self.queue_turn.syncs.waiting)  # safe once the stores are closed, too
        self.queue_turn.syncs.waiting.clear()
        self._end(None)
        return terms, confirms

    def catch_up(self) -> Future:
        """Handle earlier messages now; return a future that is answered once they are safe."""
        self.turns.handle_waiting()
        return self.sync()

    def delete(self, *, if_empty: bool = False, if_unused: bool = False) -> int:
        """Delete the queue and stop the actor; return how many messages were ready."""
        self.queue_turn.hand_out()
        deleted = self.process.delete(if_empty=if_empty, if_unused=if_unused)
        if self.arrivals.unique is not None:
            self.arrivals.unique.delete()
        self._say_last_word()
        self._recover_on()
        self._tell_now()
        for store in self._stores:
            store.leave()
        self.error = QueueGoneError(f"{self.describe()} was deleted")
        self._end(self.error)
        return deleted

    def give_up(self, error: BaseException) -> None:
        """Leave everything as a crash would, because its store has failed."""
        self.error = error
        self.process.abandon()
        self._end(self.stopped_error())

    def forget(self, error: WarrenError) -> None:
        """Stop in a forked child: the queue is the parent's, and calls raise ``error``."""
        self.error = error
        self.actor_stopped.set()
        self.intake.close()
        for deliveries in list(self.intake.deliveries.values()):
            deliveries.forget_all(error)

    def _end(self, error: BaseException | None) -> None:
        """End consumers, confirms and timers, and stop; ``None`` as the error for a clean end."""
        for deliveries in self.intake.deliveries.values():
            deliveries.end(error)
        if self._queue_turn is not None:
            for confirm in self._queue_turn.syncs.waiting:
                confirm.fail(error if error is not None else self.stopped_error())
            self._queue_turn.syncs.waiting.clear()
        for future in self._to_be_counted:
            future.fail(error if error is not None else self.stopped_error())
        self._to_be_counted.clear()
        if self._tails is not None:
            self._tails.fail(error if error is not None else self.stopped_error())
        if self.arrivals.unique is not None:
            self.arrivals.unique.end(error)
        for store in self._stores:
            store.give_up()
        self._context.allocated.account(self.actor_urn, 0)
        self.cancel_timers()
        tell(self._context.monitor, m.LeaveMonitor(self.actor_ref))
        tell(self._context.monitor, m.DiskRoom(self.actor_ref, has_room=True))
        self.intake.close()
        self._stop()
        self.intake.let_publishers_in()

    def on_error(self, error: BaseException) -> None:
        if self._process is not None:
            with contextlib.suppress(Exception):
                self._process.abandon()
        for store in self._stores:
            store.leave()
        self._end(self.stopped_error())
        tell(self._context.node, m.QueueFailed(self.actor_ref, error))

    def on_undelivered(self, message: Any, error: WarrenError) -> None:
        if isinstance(message, (PublishBatch, m.Publish)):
            self._context.gate.leave(message.reserved_bytes)
            message.confirm.fail(error)
        elif isinstance(message, m.Subscribe):
            message.deliveries.end(error)

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────

    def on_receive(self, message: object) -> object:
        if isinstance(message, m.Publish):
            self.arrivals.publish(message)
            return None
        handler = _HANDLERS.get(type(message))
        if handler is None:
            raise RuntimeError(f"a queue cannot handle {message!r}")
        return handler(self, message)

    def on_batch(self, entry: PendingBatch) -> None:
        if isinstance(entry, EarlyBatch):
            self.arrivals.take_in(entry)
        else:
            settle: SettleKey = entry.key
            self.queue_turn.settle(settle.channel, settle.outcome, tag_ranges(entry.items))

    # ── the whole queue ──────────────────────────────────────────────────────────────────────────

    def _on_store(self, message: m.StoreProgress | m.StoreFull) -> None:
        """Note what a store reports."""
        for store in self._stores:
            if store.client == message.client:
                if isinstance(message, m.StoreFull):
                    self.queue_turn.syncs.store_full(message.error)
                else:
                    self.queue_turn.syncs.store_progress(store, message.taken_ticket, message.safe_ticket)

    def sync(self) -> Future:
        """Make earlier acks safe; return a future that is answered once earlier publishes are safe, too."""
        self.queue_turn.syncs.sync_index()
        self._context.check_directory()
        self._tell_now()  # a refused publish fails its own confirm, not this call
        unique = self.arrivals.unique
        return CountDown([*self.queue_turn.syncs.waiting, *(() if unique is None else unique.waiting)])

    def has_dead_letters_under_way(self) -> bool:
        """Whether dead letters are not yet known to be safe elsewhere."""
        return not self.process.expiry.idle

    def purge(self) -> int:
        """Delete all ready messages; return their number."""
        return self.queue_turn.purge()

    @property
    def tails(self) -> Tails:
        """The tails that read along at the queue's end."""
        self.queue_turn.context.worked = True  # browsing wakes the queue
        if self._tails is None:
            from warren.actors.queue.tails import Tails

            self._tails = Tails(self.process)
        return self._tails

    def wants_turn(self) -> bool:
        turn, intake = self._queue_turn, self.intake
        if not intake.alive:
            return False
        return bool(intake.abandoned) or (
            turn is not None and (turn.syncs.wants_turn or (intake.hurry and bool(turn.syncs.waiting)))
        )

    def has_work(self) -> bool:
        return self.turns.has_work()

    def has_more(self) -> bool:
        return not self.actor_inbox.empty()

    def rested(self) -> None:
        self.actor_inbox.rest()
        self.rest_number = next(_rest_numbers)
        if self._tails is not None:
            self._tails.rested()
        if self.arrivals.unique is not None:
            self.arrivals.unique.keys.close()  # it opens again with the next key

    def touch(self) -> None:
        """Restart the x-expires period, because the queue was used."""
        self.queue_turn.context.worked = True
        self.process.context.touch()

    def lengths(self) -> tuple[int | Future, int]:
        """Return :meth:`length` and the number of consumers. Counts as use."""
        self.touch()
        self.queue_turn.hand_out()
        return self.length(), len(self.process.consumers)

    def set_policies(self, policies: AppliedPolicies) -> None:
        """Apply other policies from now on."""
        self.queue_turn.set_policies(policies)

    def count(self) -> None:
        """Count events from now on."""
        if self.process.context.counts is None:
            self.process.context.counts = Counts()

    def length(self) -> int | Future:
        """Return how many messages are ready; a future while messages that a crash has left are still being counted."""
        if not self.process.backing.recovering:
            return len(self.process.backing)
        self._to_be_counted.append(future := Future())
        return future

    def stats(self) -> dict[str, Any]:
        stats = self.process.stats()
        return stats | {"state": "hibernated"} if self.rest_number else stats

    # ── being recorded ──────────────────────────────────────────────────────────────────────────────────────────

    def has_changed(self, turn_count: int) -> bool:
        """Whether it did anything since its ``turn_count``-th turn. Any thread may call it."""
        process = self._process
        bypassed = process is not None and process.context.has_counted  # messages may bypass the queue and its turns
        return self.turn_count != turn_count or bypassed

    def _sample(self, step: int | None) -> None:
        recorder = self._context.recorder
        if recorder is None:
            return
        unbounded = any(deliveries.more is not None for deliveries in list(self.intake.deliveries.values()))
        prefetch = 0 if unbounded else max((consumer.prefetch for consumer in self.process.consumers), default=0)
        ram_bytes = self._context.allocated.by_owner.get(self.actor_urn, 0)
        row = sample_queue(self.process, prefetch=prefetch)
        tell(
            recorder,
            m.QueueSampled(self.actor_urn, step, self._context.clock.now_ns(), self.turn_count, ram_bytes, row),
        )
        if self.rest_number:
            self.actor_inbox.rest()

    def _say_last_word(self) -> None:
        """Send a last row to the recorder, if there is one and it lacks something."""
        if self._context.recorder is not None and (not self.process.backing.asleep or self.process.context.has_counted):
            self._sample(None)

    # ── the end of a turn ───────────────────────────────────────────────────────────────────────────────────────

    def on_turn_end(self) -> None:
        turn = self._queue_turn
        if turn is None:
            return
        hurry, self.intake.hurry = self.intake.hurry, False
        effects = turn.make_safe(hurry=hurry, may_wait=not self.turns.is_quick)
        if effects.confirmed:
            self._context.check_directory()
        turn.tell(effects)
        if self.arrivals.unique is not None:
            self.arrivals.unique.flush()
        if self.intake.waiting_publishers:
            self.intake.let_publishers_in()
        if turn.context.worked:
            self.rest_number = 0
            if self._tails is not None:
                self._tails.look()
            turn.finish()
        self.intake.fast.ahead = turn.head.read()
        while self.intake.abandoned:
            self.call_soon(functools.partial(self.consumers.close_channel, self.intake.abandoned.pop(0), LOST))
        if self._context.check_invariants:
            turn.process.check_invariants()
            if self.arrivals.unique is not None:
                self.arrivals.unique.check_invariants()

    def _tell_now(self) -> None:
        """Publish the turn's effects so far."""
        effects = self.process.context.drain_effects()
        if effects.confirmed:
            self._context.check_directory()
        self.queue_turn.tell(effects)


_HANDLERS: Final[dict[type, Callable[[QueueActor, Any], object]]] = {
    m.Subscribe: lambda actor, message: actor.consumers.subscribe(message.consumer, message.deliveries),
    m.StoreProgress: QueueActor._on_store,
    m.StoreFull: QueueActor._on_store,
    m.DeadLettersSafe: lambda actor, message: actor.queue_turn.dead_letters_safe(message.number),
    m.SetDurationTarget: lambda actor, message: actor.queue_turn.memory.set_duration_target(message.duration_s),
    m.SampleQueue: lambda actor, message: actor._sample(message.step),
}
