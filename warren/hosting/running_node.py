"""RunningNode: a running node, shared by the handles of threads and of coroutines.

It starts and stops the node's actor. Requests of handles go through it: it knows whether the node may be used (it
is not closed, and this is the process that opened it), and which actors currently run.
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from warren.actors import messages as m
from warren.actors.engines.errors import NotFoundError
from warren.actors.engines.memory_readings import (
    MemoryReading,
    RssReading,
    free_disk_bytes,
    give_memory_back,
    physical_memory_bytes,
    process_rss_bytes,
    read_small_file,
    total_memory_bytes,
    used_disk_percent,
)
from warren.actors.node.gate import Gate
from warren.actors.node.guest_listener import GuestListener
from warren.actors.node.node_actor import NodeActor, Probes
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_errors import ClosedError, ClosedMeanwhileError, TopicsDownError
from warren.actors.node.node_registry import NodeRegistry
from warren.actors.node.running_vhost import RunningVhost
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.runtime.future import Future
from warren.actors.runtime.interrupts import Closing, uninterrupted
from warren.actors.runtime.pooled_actor import WrongProcessError, actor_of_ref
from warren.config import Config
from warren.hosting import open_nodes
from warren.storage.errors import WarrenError
from warren.storage.lock_file import SHARED
from warren.verbs.steps import Reading, Steps, call

if TYPE_CHECKING:
    from warren.actors.node.recorder_actor import Record
    from warren.actors.topics.running_topics import RunningTopics
    from warren.actors.topics.streams import Stream

T = TypeVar("T")


class Hosted(Protocol):
    """A server of a node, which ends before it."""

    protocol: str
    purpose: str
    """What it serves, as RabbitMQ names it."""

    @property
    def settings(self) -> Any: ...

    @property
    def addresses(self) -> Sequence[tuple[str, int]]:
        """Where it listens: hosts and ports."""

    @property
    def connections(self) -> Mapping[str, Any]:
        """The connections of its AMQP clients by name."""

    def stop(self) -> None: ...

    def forget(self) -> None:
        """Drop it in a forked child: it is the parent's."""


class RunningNode:
    """A node's actor, and the interface of handles to it."""

    def __init__(
        self,
        context: NodeContext,
        path: str,
        config: Config,
        *,
        probes: Probes | None = None,
        adopt: bool = False,
        start_listener: Callable[[RunningNode], GuestListener | None] | None = None,
        shared: bool = False,
    ) -> None:
        """``probes``: what measures the machine; ``None``: the default. ``start_listener``: listens at the
        node's socket. ``shared``: the lock file says that others are let in; the caller then serves them."""
        self.path = path
        self.config = config
        self.pool = context.pool
        """The pool that runs the actors' turns."""
        self._context = context
        self._forked: WrongProcessError | None = None
        self.closed = self._failed = False
        self.on_deleted: list[Callable[[Literal["vhost", "user"], str], None]] = []
        """Called, in the node's actor, with a vhost or a user that was deleted."""
        self.on_failed: list[Callable[[], None]] = []
        """Called, in the node's actor, when the node has failed."""
        self.moves: MutableMapping[Any, Callable[[], Any]] | None = None
        """In a shared directory: verbs of handles, and what makes the hosts that they have in a forked child."""
        self.hosted: list[Hosted] = []
        """The servers that use it."""
        self._closing = Closing()
        self._ending: Future | None = None
        """The end of the node's actor, once requested."""
        context.on_deleted, context.on_failed = self._tell_deleted, self._tell_failed
        ref = NodeActor.start(
            context,
            path,
            probes=machine_probes(config, path) if probes is None else probes,
            owner=f"process {os.getpid()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}{SHARED if shared else ''}",
            adopt=adopt,
            topic_settings=config.topics,
            record=_record_file(config, context),
        )
        self.actor = actor_of_ref(ref, NodeActor)
        self.registry = self.actor.registry
        """What is declared. Any thread may read it."""
        self._wait_until_open()
        self.opened_s = time.monotonic()
        """When it was opened, in seconds of the monotonic clock."""
        self._listener = None if start_listener is None else start_listener(self)
        open_nodes.opened(self)

    def _wait_until_open(self) -> None:
        try:
            self._asked(lambda _: None).get()
        except BaseException:
            with contextlib.suppress(Exception):  # it may be open: an interrupt may come after the turn that opens it
                call(self.actor, self.actor.close).get()
            self.pool.stop()
            self._context.clock.close()
            raise

    def _tell_deleted(self, kind: Literal["vhost", "user"], name: str) -> None:
        for tell in list(self.on_deleted):
            tell(kind, name)

    def _tell_failed(self) -> None:
        self._failed = True
        if not self.closed:
            for tell in list(self.on_failed):
                tell()

    @property
    def identity(self) -> object:
        """An object that is equal for all handles on this node."""
        return self

    @property
    def ended(self) -> bool:
        """Whether the node has been closed completely."""
        return self._closing.is_over

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that opened it."""
        return self._forked is not None

    @property
    def hosts(self) -> bool:
        """Whether this process has the directory's lock."""
        return self._forked is None

    @property
    def gate(self) -> Gate:
        """The gate, which is shut while an alarm is set."""
        return self._context.gate

    def new_msg_ids(self, count: int) -> bytes:
        """Return ids for messages that go to several queues, 16 bytes each."""
        return self._context.new_msg_ids(count)

    def new_message_id(self) -> str:
        """Return a unique message id."""
        return self.new_msg_ids(1).hex()

    def new_queue_name(self) -> str:
        """Return a unique queue name."""
        return "amq.gen-" + base64.urlsafe_b64encode(self._context.random(16)).decode("ascii").rstrip("=")

    def within(self, timeout: float | None, steps: Steps[T]) -> Steps[T]:
        """Return ``steps``. In a guest they end after ``timeout`` seconds if the host is silent."""
        return steps

    def move_at_fork(self, verbs: Any, new_host: Callable[[], Any]) -> None:
        """Let ``new_host`` make the host of ``verbs`` in a forked child, if the directory is shared."""
        if self.moves is not None:
            self.moves[verbs] = new_host

    def now_ms(self) -> int:
        """Milliseconds since 1970, by the node's clock."""
        return self._context.clock.wall_us() // 1000

    def check_process(self) -> None:
        """Raise if the node cannot be used: it is closed, has failed, or was opened by a process that this one was
        forked from."""
        if self._forked is not None:
            raise self._forked
        if self.closed:
            raise ClosedError(f"the node of {self.path} is closed")
        if self._failed:
            raise self.actor.stopped_error()

    def change(self, work: Callable[[NodeRegistry], T]) -> Steps[T]:
        """Run ``work`` in the node's actor, exclusively, and return its result."""
        self.check_process()
        answer: T = yield self._asked(work)
        return answer

    def _asked(self, work: Callable[[NodeRegistry], T]) -> Future:
        return call(self.actor, lambda: self.registry.change(work))

    # ── what runs in it ─────────────────────────────────────────────────────────────────────────────────────────

    def vhost(self, name: str) -> RunningVhost:
        """Return a vhost; raises :class:`NotFoundError`, or why it cannot be used."""
        self.check_process()
        return self.registry.vhost(name)

    def queues(self, vhost: str, names: Iterable[str]) -> list[QueueEntry]:
        """Return the queues with these names; raises :class:`NotFoundError`."""
        entries, requested = self.vhost(vhost).queues, []
        for name in names:
            entry = entries.get(name)
            if entry is None:
                raise NotFoundError(f"no queue '{name}' in vhost '{vhost}'")
            requested.append(entry)
        return requested

    def streams(self, vhost: str, names: Iterable[str]) -> list[Stream]:
        """Return the streams among these names."""
        streams = self.registry.streams
        return [stream for name in names if (stream := streams.find(vhost, name)) is not None] if streams else []

    def topics_now(self) -> RunningTopics:
        """Return the topics' current actors, without waiting for topics that are being reopened."""
        self.check_process()
        running = self.registry.topics
        if running is None:
            raise NotFoundError("no topic was ever declared")
        return running

    def topics(self) -> Steps[RunningTopics]:
        """Return the topics' actors; raises why they are not running."""
        try:
            return self.topics_now()
        except TopicsDownError:
            yield from self.change(lambda _: None)  # they may be about to be reopened
            return self.topics_now()

    def caught_up(self, *, with_index: bool = False) -> Steps[RunningTopics]:
        """Return the topics, once everything appended so far has its entries (``with_index``: its keys)."""
        running = yield from self.topics()
        store, end = running.store, running.store.commit_log.end
        if store.dispatched < end or (with_index and store.indexed < end):
            yield call(running.dispatcher, lambda: running.dispatcher.catch_up(end, with_index=with_index))
        return running

    def caught_up_now(self, *, with_index: bool = False) -> RunningTopics | None:
        """Return the topics if :meth:`caught_up` would not wait; else ``None``."""
        try:
            running = self.topics_now()
        except TopicsDownError:
            return None
        store = running.store
        reached = store.dispatched if not with_index else min(store.dispatched, store.indexed)
        return running if reached >= store.commit_log.end else None

    @property
    def name(self) -> str:
        """The node's name: ``warren@host``."""
        return f"warren@{socket.gethostname()}"

    @property
    def cluster_name(self) -> str:
        """The name from the global parameter ``cluster_name``, or the node's name."""
        value = self.registry.parameters.global_value("cluster_name")
        return value if isinstance(value, str) else self.name

    # ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────

    def definitions(self, vhost: str | None = None) -> Steps[dict[str, Any]]:
        """Return what is declared, in the whole node or in one vhost, as RabbitMQ's definitions JSON."""
        return (yield from self.change(lambda registry: registry.definitions.export_definitions(vhost)))

    def memory(self, *, high_watermark: float | None = None) -> Steps[dict[str, Any]]:
        """Return memory and disk as measured by the monitor, and the alarms that are set.

        ``high_watermark``: first set the limit, a share (a float) or an amount (an int), until the node is closed.
        """
        self.check_process()
        memory: dict[str, Any] = yield Reading(lambda: self._context.monitor.ask(m.GetMemory(high_watermark)))
        return memory

    def look_at_machine(self) -> None:
        """Measure the machine now, or soon if another thread is doing it."""
        if (watcher := self._context.gate.watcher) is not None:
            watcher.look(here=True)

    def count(self) -> None:
        """Let all queues, even future ones, count their events from now on."""
        self._context.counting = True
        for actor in self.registry.queue_actors():
            actor.call_soon(actor.count)

    @property
    def held_publishers(self) -> int:
        """The number of publishers that wait for an alarm to be cleared, for bytes, or for a queue that lags."""
        actors = self.registry.queue_actors()
        return self._context.gate.held + sum(len(actor.intake.waiting_publishers) for actor in actors)

    def allocated_bytes(self, actor: QueueActor) -> int:
        """Return the memory that a queue accounts for."""
        return self._context.allocated.by_owner.get(actor.actor_urn, 0)

    def stats(self, asked: Mapping[tuple[str, str], Mapping[str, Any]] | None = None) -> Steps[dict[str, Any]]:
        """Return every vhost's queues' :meth:`Queue.stats`, its streams, the queues that failed, and the stores;
        :meth:`memory`; and the topics (:mod:`warren.hosting.node_stats`), ``None`` if there never was one.

        ``asked``: stats of queues, by vhost and name, that were fetched just now.
        """
        memory = yield from self.memory()
        streams: dict[str, dict[str, Any]] = {}
        for stream in self.registry.streams:
            with contextlib.suppress(WarrenError):
                yield from self.caught_up()
                of_vhost = streams.setdefault(stream.declaration.vhost, {})
                of_vhost[stream.declaration.name] = yield Reading(stream.stats)
        from warren.hosting.node_stats import node_stats

        stats: dict[str, Any] = yield Reading(lambda: node_stats(self.registry, streams, asked or {}))
        return {"path": self.path, "memory": memory, **stats}

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Wait until what was published is safe, write everything to disk, and release the directory.

        If another thread is closing it, wait for that. An interrupt is raised when it is closed; a second one stops the
        closing, and the next call continues it.
        """
        if self._forked is not None:
            raise self._forked
        self._closing.run(self._close)

    def _close(self) -> None:
        uninterrupted(self._begin_to_end)
        ending = self._ending
        if ending is None:
            raise RuntimeError("the node's actor was not asked to end")
        try:
            ending.get()
        finally:
            if ending.done:
                uninterrupted(self._let_go)

    def _begin_to_end(self) -> None:
        if self._ending is None:
            if self._listener is not None:
                self._listener.stop()  # first: accept no more connections
            for hosted in list(self.hosted):
                hosted.stop()
            self._context.closing = ClosedMeanwhileError(f"the node of {self.path} is closed")
            self.closed = True
            self._ending = call(self.actor, self.actor.close)

    def _let_go(self) -> None:
        self._context.gate.end()  # nothing could open it any more
        self.pool.stop()
        self._context.clock.close()
        open_nodes.closed(self)
        self._closing.is_over = True

    def crash(self) -> None:
        """End as a killed process does, between two turns: nothing more is written."""
        self.check_process()
        self.closed = True
        if self._listener is not None:
            self._listener.stop()
        with contextlib.suppress(WarrenError):
            call(self.actor, self.actor.crash).get()
        for hosted in list(self.hosted):
            hosted.stop()
        self._let_go()

    def forget(self) -> None:
        """Forget the node in a forked child: the directory stays the parent's."""
        self._forked = WrongProcessError(f"{self.path} was opened by the parent process, before a fork; open it again")
        self.pool.forget(self._forked)
        for hosted in self.hosted:
            hosted.forget()
        if self._listener is not None:
            self._listener.forget()
        self.actor.forget(self._forked)


def _record_file(config: Config, context: NodeContext) -> Record | None:
    if config.record is None:
        return None
    from warren.recording import RecordFile

    return RecordFile(context.files, os.path.abspath(config.record), context.clock.wall_us)


def memory_reading(config: Config, rss: MemoryReading) -> Callable[[NodeContext], MemoryReading]:
    """Return the function that measures a node's memory, by its strategy; ``rss``: measures that of the process."""
    is_allocated = config.node.vm_memory_calculation_strategy == "allocated"
    return lambda context: context.allocated if is_allocated else rss


def machine_probes(config: Config, path: str) -> Probes:
    """Return the probes of the machine."""
    override = config.node.total_memory_available_override_value
    log_path = config.topics.store_path_commit_log or config.topics.store_path_root_dir or path

    return Probes(
        reading=memory_reading(config, RssReading(process_rss_bytes)),
        total_memory_bytes=override or total_memory_bytes(physical_memory_bytes(), read_small_file),
        free_disk_bytes=lambda: free_disk_bytes(path),
        give_back=give_memory_back,
        used_disk_percent=lambda: used_disk_percent(log_path),
    )
