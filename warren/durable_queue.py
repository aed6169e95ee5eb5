"""DurableQueue: :class:`queue.Queue`, on disk.

It has the methods of the standard library's queue, which raise what those raise, so a program that uses one needs
another constructor and nothing else. Three things are different, because what is on disk outlives the program:

- an item that was put before the program ended is there when the queue is opened again;
- an item that was got stays on disk until :meth:`DurableQueue.task_done`; without that it comes back, at its old place,
  when the queue is closed or the program has crashed. So every ``get`` needs its ``task_done``, join or not;
- items are bytes, or whatever a serializer makes bytes of.

``task_done`` says not which item it is for: it is the oldest one that the calling thread got and has not done, or where
it has none, the oldest of any thread. *Unfinished* items are those that are on disk.

The limit ``maxsize`` counts items that nobody has got, and holds for what is put through queues of this class in this
process. A durable queue is a queue of the node, bound to nothing; everything that a node offers works on it too.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import queue
import time
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Literal, Self

from warren.actors import messages as m
from warren.actors.deliveries import Deliveries
from warren.actors.engines.consumers import Consumer as ConsumerDeclaration
from warren.actors.engines.effects import Delivered
from warren.actors.future import Confirm
from warren.actors.node_context import BlockedError
from warren.actors.pool import ActorStoppedError
from warren.actors.waiting_room import WaitingRoom, this_thread
from warren.channel import Channel
from warren.consumer import Delivery
from warren.consumer_verbs import spread
from warren.messages import as_body
from warren.node import Node
from warren.queue import Queue
from warren.shared_node import NodeLease, borrow_node, is_foreign, lease_node
from warren.steps import call, run
from warren.storage.errors import SettingsError, WarrenError

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]
Serializer = Literal["json", "pickle"] | tuple[Encode, Decode]

_numbers = itertools.count(1)

_ROOMS: weakref.WeakKeyDictionary[Node, dict[str, WaitingRoom]] = weakref.WeakKeyDictionary()
"""Queues of the same name in the same node share one: who gets from one makes room in the other."""


class _ShutDown(Exception):
    """The queue was shut down."""


ShutDown: type[Exception] = getattr(queue, "ShutDown", _ShutDown)
"""``queue.ShutDown`` where there is one (Python 3.13)."""


def _pair(serializer: Serializer | None) -> tuple[Encode, Decode]:
    if serializer is None:
        return as_body, bytes
    if serializer == "json":
        return lambda item: json.dumps(item, separators=(",", ":")).encode(), json.loads
    if serializer == "pickle":
        return pickle.dumps, pickle.loads
    if isinstance(serializer, tuple) and len(serializer) == 2 and all(map(callable, serializer)):
        return serializer
    raise SettingsError(f"a serializer is 'json', 'pickle' or a pair of functions, not {serializer!r}")


class DurableQueue:
    """A FIFO queue between the threads of a process, and between one run of a program and the next."""

    def __init__(
        self,
        path_or_node: str | os.PathLike[str] | Node,
        name: str,
        maxsize: int = 0,
        serializer: Serializer | None = None,
        *,
        confirm: bool = True,
    ) -> None:
        """``path_or_node``: a directory, which queues of one process share, or a node that the caller closes.

        ``maxsize``: how many items may wait; 0 or less: any number. ``serializer``: ``None`` for items that are bytes;
        ``"json"``; a pair of functions, item to bytes and back; ``"pickle"`` runs whatever code the files say when
        items are read, so it is for directories that nobody else can write. ``confirm``: a put comes back when its item
        is safe (``False``: soon after).
        """
        self.maxsize = maxsize
        self.name = name
        self._encode, self._decode = _pair(serializer)
        self._confirm = confirm
        self._lease: NodeLease = (
            borrow_node(path_or_node) if isinstance(path_or_node, Node) else lease_node(path_or_node)
        )
        self._node = self._lease.node
        try:
            self._queue: Queue = self._node.queue(name)
        except BaseException:
            self._lease.release()
            raise
        self._room = _ROOMS.setdefault(self._node, {}).setdefault(name, WaitingRoom())
        self._channel: Channel | None = None
        self._gotten: dict[int, tuple[int, Delivery]] = {}
        """Thread and item, in the order in which they were got."""
        self._gets = itertools.count(1)
        self._getters: set[Deliveries] = set()
        self._shut: Literal["no", "draining", "at once"] = "no"
        self._closed = False

    def __repr__(self) -> str:
        return f"<warren.DurableQueue {self.name!r}>"

    # ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────

    def qsize(self) -> int:
        """How many items wait to be got."""
        return len(self._queue)

    def empty(self) -> bool:
        """Whether none does. That may be otherwise when the caller has read it."""
        return not self.qsize()

    def full(self) -> bool:
        """Whether as many wait as may."""
        return 0 < self.maxsize <= self.qsize()

    @property
    def unfinished_tasks(self) -> int:
        """How many items are on disk: not got, or got and not done."""
        return int(self._queue.stats()["messages"])

    # ── putting ─────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put an item in; comes back when it is safe.

        A full queue is waited for, ``timeout`` seconds at most, or without ``block`` not at all: then it raises
        ``queue.Full``. So does a node that takes nothing, for it has no memory or disk left.
        """
        body = self._encode(item)
        if block and timeout is not None and timeout < 0:
            raise ValueError("a timeout is no negative number")
        patience = timeout if block else 0.0
        if self.maxsize > 0 or self._shut != "no":
            confirm = self._room.wait_for(lambda: self._publish_if_room(body), patience)
            if confirm is None:
                raise queue.Full
        else:
            try:
                confirm = self._queue.publish(body, block=block, timeout=timeout)
            except BlockedError as error:
                raise queue.Full from error
        if self._confirm:
            confirm.wait()

    def _publish_if_room(self, body: bytes) -> Confirm | None:
        if self._shut != "no":
            raise ShutDown
        if self.full():
            return None
        with contextlib.suppress(BlockedError):
            return self._queue.publish(body, block=False)
        return None

    def put_nowait(self, item: Any) -> None:
        """:meth:`put` without waiting for room."""
        self.put(item, block=False)

    # ── getting ─────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the item that waits longest; :meth:`task_done` says that it can go from disk.

        An empty queue is waited for, ``timeout`` seconds at most, or without ``block`` not at all: then it raises
        ``queue.Empty``.
        """
        if block and timeout is not None and timeout < 0:
            raise ValueError("a timeout is no negative number")
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._shut == "at once":
                raise ShutDown
            try:
                delivery = self._get_now()
                if delivery is None and self._shut != "no":
                    raise ShutDown
                if delivery is None and block:
                    delivery = self._await(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except ActorStoppedError:  # the queue's actor starts anew, and everything is ready again; or it does not:
                self._channel = None
                self._queue.stats()  # then this says why
                continue
            if delivery is not None:
                return self._take(delivery)
            if self._shut == "no" and (not block or (deadline is not None and time.monotonic() >= deadline)):
                raise queue.Empty

    def get_nowait(self) -> Any:
        """:meth:`get` without waiting for an item."""
        return self.get(block=False)

    def _own_channel(self) -> Channel:
        channel = self._channel
        if channel is None or not channel.alive:
            channel = self._channel = Channel(self._queue._verbs.actor, f"durable-{next(_numbers)}")
        return channel

    def _get_now(self) -> Delivery | None:
        channel = self._own_channel()
        actor = channel.actor
        batches: list[Delivered] = call(
            actor, lambda: actor.queue_turn.get_many(channel.name, 1, ack_required=True)
        ).get()
        return next((one for delivered in batches for one in spread(Delivery, channel, delivered)), None)

    def _await(self, timeout: float | None) -> Delivery | None:
        """Wait in line with the other getters, as a consumer of one message: the channel keeps it when that goes."""
        channel = self._own_channel()
        deliveries = Deliveries(channel.name, channel.actor)
        tag = f"{channel.name}-{next(self._gets)}"
        channel.actor.actor_ref.ask(
            m.Subscribe(ConsumerDeclaration(channel=channel.name, tag=tag, prefetch=1), deliveries)
        )
        self._getters.add(deliveries)
        try:
            if self._shut == "no":
                deliveries.arrival().settled(timeout)
        except BaseException:  # KeyboardInterrupt: nobody takes what comes
            self._stop_waiting(channel, deliveries, tag)
            self._queue.nack(self._spread(channel, deliveries))
            raise
        self._stop_waiting(channel, deliveries, tag)
        # Not earlier: what comes while the time runs out is this getter's all the same.
        return next(self._spread(channel, deliveries), None)

    def _stop_waiting(self, channel: Channel, deliveries: Deliveries, tag: str) -> None:
        self._getters.discard(deliveries)
        actor = channel.actor
        call(actor, lambda: actor.cancel_consumer(tag)).get()

    @staticmethod
    def _spread(channel: Channel, deliveries: Deliveries) -> Iterator[Delivery]:
        delivered = deliveries.take_now()
        return iter(()) if delivered is None else spread(Delivery, channel, delivered)

    def _take(self, delivery: Delivery) -> Any:
        self._gotten[next(self._gets)] = this_thread(), delivery
        self._room.changed()
        return self._decode(delivery.body)

    # ── done ────────────────────────────────────────────────────────────────────────────────────────────────────

    def task_done(self) -> None:
        """The oldest item that this thread got is done with: it goes from disk.

        Raises ``ValueError`` where nothing is got that is not done.
        """
        delivery = self._room.wait_for(self._take_oldest, 0.0)
        if delivery is None:
            raise ValueError("task_done() called too many times")
        with contextlib.suppress(ActorStoppedError):  # the queue has started anew since, and the item comes again
            delivery.ack()
        self._room.changed()

    def _take_oldest(self) -> Delivery | None:
        gotten = list(self._gotten.items())
        mine = (number for number, (thread, _) in gotten if thread == this_thread())
        number = next(mine, gotten[0][0] if gotten else None)
        return None if number is None else self._gotten.pop(number)[1]

    def join(self) -> None:
        """Wait until every item is done with: nothing is left on disk."""
        self._room.wait_for(lambda: True if self._shut == "at once" or not self.unfinished_tasks else None)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def shutdown(self, immediate: bool = False) -> None:
        """Take no more items: puts raise :data:`ShutDown`, and so do gets once the queue is empty.

        ``immediate``: gets raise it at once, and joins come back. The items that are left stay on disk.
        """
        self._shut = "at once" if immediate else "draining"
        self._room.changed()
        for deliveries in list(self._getters):
            deliveries.end()

    def close(self) -> None:
        """Shut down at once, give back what was got and is not done, and need the directory no more."""
        if self._closed:
            return
        self._closed = True
        self.shutdown(immediate=True)
        self._gotten.clear()
        if not is_foreign(self._node):
            with contextlib.suppress(WarrenError):
                if self._channel is not None:
                    run(self._channel.shut())
            self._lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
