"""DurableQueue: :class:`queue.Queue`, on disk.

It has the methods of the standard library's queue, which raise what those raise, so a program that uses one needs
another constructor and nothing else. Three things are different, because what is on disk outlives the program:

- an item that was put before the program ended is there when the queue is opened again;
- an item that was got stays on disk until :meth:`DurableQueue.task_done`; without that it comes back, at its old place,
  when the queue is closed or the program has crashed. So every ``get`` needs its ``task_done``, join or not;
- items are bytes, or whatever a serializer makes bytes of.

``task_done`` does not take an item: it completes the oldest unfinished item that the calling thread got or, if the
thread has no such item, the oldest of any thread. *Unfinished* items are those that are on disk.

The limit ``maxsize`` counts the items that no ``get`` has taken. It applies to puts through queues of this class in
this process; several processes that put at the same time may exceed it by an item each. A durable queue is a queue of
the node without bindings; everything that a node offers works on it too.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle  # nosec B403 # for who asks for it; the constructor says what that means
import queue
import time
import weakref
from collections.abc import Callable
from typing import Any, Literal, Self, TypeVar

from warren.actors.node.node_context import BlockedError
from warren.actors.queue.deliveries import Deliveries
from warren.actors.runtime.future import Confirm
from warren.actors.runtime.pooled_actor import ActorStoppedError, WrongProcessError
from warren.actors.runtime.waiting_room import WaitingRoom, this_thread
from warren.handles.consumer import Delivery
from warren.handles.node import Node
from warren.handles.queue import Queue, delivery_of
from warren.handles.shared_node import NodeLease, borrow_node, lease_node
from warren.storage.call_arguments import check_timeout, checked
from warren.storage.errors import SettingsError, WarrenError
from warren.values.messages import as_body
from warren.verbs.steps import Steps, answer_of, run

T = TypeVar("T")
Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]
Serializer = Literal["json", "pickle"] | tuple[Encode, Decode]

_ROOMS: weakref.WeakKeyDictionary[Node, dict[str, WaitingRoom]] = weakref.WeakKeyDictionary()
"""Queues of the same name in the same node share one: a ``get`` from one makes room in the other."""


_QUEUES: weakref.WeakSet[DurableQueue] = weakref.WeakSet()


def _room_of(node: Node, name: str) -> WaitingRoom:
    return _ROOMS.setdefault(node, {}).setdefault(name, WaitingRoom())


class _ShutDown(Exception):
    """The queue was shut down."""


ShutDown: type[Exception] = getattr(queue, "ShutDown", _ShutDown)
"""``queue.ShutDown`` if it exists (Python 3.13)."""


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
    """A FIFO queue between threads and processes, and between one run of a program and the next.

    One of a path can be used by forked children and sent to other processes (``multiprocessing``): see
    :func:`warren.open`'s ``share``. An item that was got when the process that hosts the directory died comes again.
    """

    @checked
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
        ``"json"``; a pair of functions, item to bytes and back; ``"pickle"`` runs whatever code the files contain when
        items are read, so use it only for directories that no other user can write. ``confirm``: a put returns when
        its item is safe (``False``: soon after).
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
        self._room = _room_of(self._node, name)
        self._arguments = path_or_node, name, maxsize, serializer, confirm
        self._gotten: dict[int, tuple[int, Delivery]] = {}
        """Thread and item, in the order in which they were got."""
        self._gets = itertools.count(1)
        self._getters: set[Deliveries] = set()
        self._shut: Literal["no", "draining", "at once"] = "no"
        self._closed = False
        _QUEUES.add(self)

    def __reduce__(self) -> tuple[Callable[..., DurableQueue], tuple[Any, ...]]:
        """For another process: it opens the directory for itself."""
        location, name, maxsize, serializer, confirm = self._arguments
        if isinstance(location, Node):
            raise WrongProcessError("a queue of a node is of its process; one of a path goes to others")
        return _reopened, (os.path.abspath(location), name, maxsize, serializer, confirm)

    def _forget(self) -> None:
        """In a forked child: what was got is the parent's, and so are the threads that wait."""
        self._gotten.clear()
        self._getters.clear()
        self._room = _room_of(self._node, self.name)

    def __repr__(self) -> str:
        return f"<warren.DurableQueue {self.name!r}>"

    # ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────

    def qsize(self) -> int:
        """How many items wait to be got."""
        return len(self._queue)

    def empty(self) -> bool:
        """Whether no item waits. The answer may be out of date when the caller uses it."""
        return not self.qsize()

    def full(self) -> bool:
        """Whether ``maxsize`` items wait."""
        return 0 < self.maxsize <= self.qsize()

    @property
    def unfinished_tasks(self) -> int:
        """How many items are on disk: not got, or got and not done."""
        if (stats := self._queue.stats())["recovering"]:
            len(self._queue)  # waits until all have been counted
            stats = self._queue.stats()
        return int(stats["messages"])

    # ── putting ─────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put an item in; comes back when it is safe.

        A full queue is waited for, ``timeout`` seconds at most, or without ``block`` not at all: then it raises
        ``queue.Full``. So does a node that takes nothing because it has no memory or disk left.
        """
        body = self._encode(item)
        if block:
            check_timeout(timeout)
        patience = timeout if block else 0.0
        if self.maxsize > 0 or self._shut != "no":
            confirm = self._room.wait_for(lambda: self._publish_if_room(body, patience), patience)
            if confirm is None:
                raise queue.Full
        else:
            try:
                confirm = self._queue.publish(body, block=block, timeout=timeout)
            except BlockedError as error:
                raise queue.Full from error
        if self._confirm:
            self._run(answer_of(confirm), patience)

    def _publish_if_room(self, body: bytes, patience: float | None) -> Confirm | None:
        if self._shut != "no":
            raise ShutDown
        if 0 < self.maxsize <= self._run(self._queue._verbs.length(), patience):
            return None
        with contextlib.suppress(BlockedError):
            return self._queue.publish(body, block=False)
        return None

    def put_nowait(self, item: Any) -> None:
        """:meth:`put` without waiting for room."""
        self.put(item, block=False)

    # ── getting ─────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the item that has waited longest; :meth:`task_done` then deletes it from disk.

        On an empty queue, wait at most ``timeout`` seconds, or not at all without ``block``, and then raise
        ``queue.Empty``.
        """
        if block:
            check_timeout(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._shut == "at once":
                raise ShutDown
            try:
                delivery = self._get_now(timeout if block else 0.0)
                if delivery is None and self._shut != "no":
                    raise ShutDown
                if delivery is None and block:
                    delivery = self._await(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except ActorStoppedError:  # the queue's actor restarts, and everything is ready again; or it failed:
                self._queue.stats()  # then this raises the reason
                continue
            if delivery is not None:
                return self._take(delivery)
            if self._shut == "no" and (not block or (deadline is not None and time.monotonic() >= deadline)):
                raise queue.Empty

    def get_nowait(self) -> Any:
        """:meth:`get` without waiting for an item."""
        return self.get(block=False)

    def _get_now(self, patience: float | None) -> Delivery | None:
        return delivery_of(self._run(self._queue._verbs.get(), patience))

    def _run(self, steps: Steps[T], patience: float | None) -> T:
        """Run a verb. Raises :class:`HostUnresponsiveError` after this time if another process hosts the node and is
        silent."""
        return run(self._queue._verbs.host.host.within(patience, steps))

    def _await(self, timeout: float | None) -> Delivery | None:
        """Wait in line with the other getters, as a consumer of one message: its channel keeps it when that goes."""
        consumer = self._queue._verbs.consumer(1, timeout=timeout)
        run(consumer.begin())
        deliveries = consumer.deliveries
        self._getters.add(deliveries)
        is_taken = False
        try:
            if self._shut == "no":
                deliveries.arrival().settled(timeout)
            self._getters.discard(deliveries)
            run(consumer.cancel())
            # Not earlier: what comes while the time runs out is this getter's all the same.
            delivered = deliveries.take_now()
            delivery = None if delivered is None else next(consumer.spread(Delivery, delivered), None)
            is_taken = delivery is not None
            return delivery
        finally:
            self._getters.discard(deliveries)
            if not is_taken:  # on KeyboardInterrupt, too: this getter does not take what arrives
                run(consumer.close())

    def _take(self, delivery: Delivery) -> Any:
        self._gotten[next(self._gets)] = this_thread(), delivery
        self._room.changed()
        return self._decode(delivery.body)

    # ── done ────────────────────────────────────────────────────────────────────────────────────────────────────

    def task_done(self) -> None:
        """Mark the oldest item that this thread got as done, and delete it from disk.

        Raises ``ValueError`` if every item that was got is already done.
        """
        delivery = self._room.wait_for(self._take_oldest, 0.0)
        if delivery is None:
            raise ValueError("task_done() called too many times")
        with contextlib.suppress(ActorStoppedError):  # the queue has restarted since, and the item comes again
            delivery.ack()
        self._room.changed()

    def _take_oldest(self) -> Delivery | None:
        deliveries = list(self._gotten.items())
        own_numbers = (number for number, (thread, _) in deliveries if thread == this_thread())
        number = next(own_numbers, deliveries[0][0] if deliveries else None)
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
        """Shut down at once, give back what was got and is not done, and release the directory."""
        if self._closed:
            return
        self._closed = True
        self.shutdown(immediate=True)
        deliveries = [delivery for _, delivery in self._gotten.values()]
        self._gotten.clear()
        with contextlib.suppress(WarrenError):
            self._queue.nack(deliveries)
            self._queue.release()
        if not self._node.is_foreign:
            self._lease.release()

    def join_thread(self) -> None:
        """Do nothing: items are safe when they are put. For programs written for ``multiprocessing``."""

    def cancel_join_thread(self) -> None:
        """Do nothing, like :meth:`join_thread`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _reopened(path: str, name: str, maxsize: int, serializer: Serializer | None, confirm: bool) -> DurableQueue:
    return DurableQueue(path, name, maxsize, serializer, confirm=confirm)


def _forget_all() -> None:
    _ROOMS.clear()
    for durable_queue in list(_QUEUES):
        durable_queue._forget()


os.register_at_fork(after_in_child=_forget_all)
