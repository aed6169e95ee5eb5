"""Node: a running message store in a directory, and what can be done with it.

``Node`` speaks of the vhost ``/``; :meth:`Node.vhost` gives the same verbs for another one. Handles are safe to share
between threads, not between processes: after a fork the child gets :class:`WrongProcessError`.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import attrs

from actors import messages as m
from actors.clock import Clock, SystemClock
from actors.engines.arguments import QueueDeclaration
from actors.engines.definitions_json import Imported
from actors.engines.errors import NotFoundError
from actors.engines.exchanges import Binding, ExchangeDeclaration
from actors.engines.memory_readings import (
    MemoryReading,
    RssReading,
    free_disk_bytes,
    give_memory_back,
    keep_one_heap,
    physical_memory_bytes,
    process_rss_bytes,
    read_small_file,
    total_memory_bytes,
    used_disk_percent,
)
from actors.engines.topics.names import check_user_topic
from actors.future import Confirm, Future
from actors.gate import Gate
from actors.handing_over import PublishKey
from actors.node_actor import NodeActor, Probes, TopicsDownError
from actors.pool import Pool, ThreadPool, WrongProcessError
from actors.running_topics import RunningTopics
from actors.running_vhost import QueueCell, RunningVhost
from actors.status_server import StatusServer
from actors.surroundings import Surroundings, shared_files
from storage.errors import WarrenError
from storage.filesystem import FileSystem, make_data_directory
from warren import open_nodes
from warren.config import Config
from warren.data_directory import refuse_part
from warren.exchange import Exchange, hand_over
from warren.messages import PublishArguments, as_body, publish_key
from warren.process_bound import ProcessBound
from warren.queue import Queue
from warren.recording import RecordFile
from warren.running_broker import refuse_running_broker
from warren.setting_keywords import SettingKeywords
from warren.top.snapshots import Snapshots
from warren.topic import Topic, declare
from warren.topic_stats import topic_stats, topics_down
from warren.transaction import Transaction, pending_transactions

T = TypeVar("T")


class ClosedError(WarrenError):
    """The node was closed."""


class Vhost(ProcessBound):
    """What can be done in one vhost, and the owner of the exclusive queues that were declared through it.

    Made by :meth:`Node.vhost`; every call makes another owner. Nothing needs to be closed: :meth:`release` deletes the
    exclusive queues before the node is closed, and a ``with`` does that at its end.
    """

    def __init__(self, node: Node, name: str) -> None:
        self._of = node
        self._name = name

    @property
    def _node(self) -> Node:
        return self._of

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"<warren.Vhost {self._name!r}>"

    def release(self) -> None:
        """Delete the exclusive queues that were declared through this object."""
        self._node.change(lambda actor: actor.release(self))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    # ── queues ──────────────────────────────────────────────────────────────────────────────────────────────────

    def queue(
        self,
        name: str,
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        passive: bool = False,
    ) -> Queue:
        """Declare a queue, or get the one that is there; ``passive``: only get it. The node names one that is "".

        ``exclusive``: nobody else gets it, and it goes with its owner, which is this object (see :class:`Vhost`).
        Raises :class:`PreconditionFailedError` where it is there with other arguments, :class:`NotFoundError` where
        ``passive`` and it is not, :class:`ResourceLockedError` where it is exclusive to another owner.
        """
        node = self._node
        if passive:
            cell = node.change(lambda actor: actor.find_queue(self._name, name, self))
        else:
            declaration = QueueDeclaration(
                vhost=self._name,
                name=name or node.new_queue_name(),
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments=arguments or {},
            )
            cell = node.change(lambda actor: actor.declare_queue(declaration, self))
        return Queue(node, cell)

    def delete_queue(self, name: str, *, if_empty: bool = False, if_unused: bool = False, force: bool = False) -> int:
        """Delete a queue with its messages and bindings; returns how many messages were ready. None there is fine.

        ``force``: even one that is down, with whatever could still be read from its files.
        """
        return self._node.change(
            lambda actor: actor.delete_queue(
                self._name, name, owner=self, if_empty=if_empty, if_unused=if_unused, force=force
            )
        )

    def queues(self) -> list[Queue]:
        """A handle on every queue, those that are down too."""
        return [Queue(self._node, cell) for cell in list(self._running.cells.values())]

    @property
    def down(self) -> dict[str, str]:
        """The queues that cannot be used, and why."""
        return _down(self._running)

    @property
    def _running(self) -> RunningVhost:
        return self._node.actor.vhost(self._name)

    def cells(self, names: Iterable[str]) -> list[QueueCell]:
        """The queues of those names; raises :class:`NotFoundError`."""
        cells, found = self._running.cells, []
        for name in names:
            cell = cells.get(name)
            if cell is None:
                raise NotFoundError(f"no queue '{name}' in vhost '{self._name}'")
            found.append(cell)
        return found

    # ── exchanges and bindings ──────────────────────────────────────────────────────────────────────────────────

    def exchange(
        self,
        name: str,
        type: str | None = None,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> Exchange:
        """Declare an exchange ("direct", "fanout", "topic", "headers"); without a ``type``: get the one that is there.

        The default exchange is ``""``.
        """
        if type is None:
            declaration = self._running.definitions.exchange(name)
        else:
            declaration = ExchangeDeclaration(
                vhost=self._name,
                name=name,
                type=type,  # type: ignore[arg-type]
                durable=durable,
                auto_delete=auto_delete,
                internal=internal,
                arguments=arguments or {},
            )
            self._node.change(lambda actor: actor.declare_exchange(declaration))
        return Exchange(self._node, declaration)

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange with its bindings."""
        self._node.change(lambda actor: actor.delete_exchange(self._name, name, if_unused=if_unused))

    def bind(
        self,
        destination: Queue | Exchange | str,
        source: Exchange | str,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Let messages go from an exchange to a queue (a name is a queue's), or to another exchange."""
        binding = self.binding(destination, source, routing_key, arguments)
        self._node.change(lambda actor: actor.bind(binding, self))

    def unbind(
        self,
        destination: Queue | Exchange | str,
        source: Exchange | str,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Take a binding away."""
        binding = self.binding(destination, source, routing_key, arguments)
        self._node.change(lambda actor: actor.unbind(binding, self))

    def binding(
        self,
        destination: Queue | Exchange | str,
        source: Exchange | str,
        routing_key: str,
        arguments: Mapping[str, Any] | None,
    ) -> Binding:
        """A binding as it is declared."""
        return Binding(
            vhost=self._name,
            source=source.name if isinstance(source, Exchange) else source,
            destination=destination if isinstance(destination, str) else destination.name,
            destination_type="exchange" if isinstance(destination, Exchange) else "queue",
            routing_key=routing_key,
            arguments=arguments or {},
        )

    def publish_to(
        self,
        names: Iterable[str],
        body: bytes,
        *,
        block: bool = True,
        timeout: float | None = None,
        **properties: Unpack[PublishArguments],
    ) -> Confirm:
        """Publish one message to several queues: a position in each, and one body in the store where it is large."""
        found = list(names)
        key = self.key_to(found, properties)
        return hand_over(self._node, self.cells(found), key, [as_body(body)], block=block, timeout=timeout)

    def key_to(self, names: Iterable[str], properties: PublishArguments) -> PublishKey:
        """What goes around the bodies of messages to queues of those names."""
        return publish_key(_bytes(self._name), b"", tuple(map(_bytes, names)), properties)


def _down(running: RunningVhost) -> dict[str, str]:
    """The queues that cannot be used, and why."""
    return {
        name: str(cell.error if cell.error is not None else cell.down_error())
        for name, cell in list(running.cells.items())
        if cell.running is None
    }


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class Node(Vhost):
    """A running node. Made by :func:`warren.open`; close it, or use it in a ``with``."""

    def __init__(
        self,
        path: str,
        config: Config,
        *,
        files: FileSystem,
        pool: Pool,
        clock: Clock,
        random: Callable[[int], bytes],
        probes: Probes | None = None,
        adopt: bool = False,
        attach: bool = False,
        check_invariants: bool = False,
    ) -> None:
        """For tests and simulations: everything from outside handed in. :func:`warren.open` is the usual way."""
        super().__init__(self, "/")
        self.path = path
        self.config = config
        self._pool = pool
        self._clock = clock
        self._forked: WrongProcessError | None = None
        self._closed = False
        self._ended = Future()
        self._around = Surroundings(
            files=files,
            pool=pool,
            clock=clock,
            random=random,
            settings=config.node,
            engine=config.engine,
            check_invariants=check_invariants,
        )
        owner = f"process {os.getpid()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}"
        ref = NodeActor.start(
            self._around,
            path,
            probes=probes or _probes(config, path),
            owner=owner,
            adopt=adopt,
            topic_settings=config.topics,
            record=None if config.record is None else RecordFile(files, os.path.abspath(config.record), clock.wall_us),
        )
        actor = ref.actor_inbox.owner  # type: ignore[attr-defined]
        self.actor: NodeActor = actor
        """The node's actor; its vhosts may be looked at from any thread."""
        try:
            self.change(lambda _: None)
        except BaseException:
            with contextlib.suppress(Exception):  # it may be open: an interrupt strikes behind the turn that opens it
                ref.ask(m.CloseNode())
            pool.stop()
            clock.close()
            raise
        self.opened_s = time.monotonic()
        """When it was opened, in seconds of the monotonic clock."""
        self._status = StatusServer.start(path, lambda: Snapshots(self).answer) if attach else None
        open_nodes.opened(self)

    def __repr__(self) -> str:
        return f"<warren.Node {self.path!r}{' (closed)' if self._closed else ''}>"

    @property
    def gate(self) -> Gate:
        """Shut while an alarm is set."""
        return self._around.gate

    def new_msg_ids(self, count: int) -> bytes:
        """Ids for messages that go to several queues, 16 bytes each."""
        return self._around.new_msg_ids(count)

    def new_queue_name(self) -> str:
        """A name that no other queue has."""
        return "amq.gen-" + base64.urlsafe_b64encode(self._around.random(16)).decode("ascii").rstrip("=")

    def change(self, work: Callable[[NodeActor], T]) -> T:
        """Do something in the node's actor, with nobody else at it."""
        self.check_process()
        answer: T = self.actor.actor_ref.ask(m.Change(functools.partial(work, self.actor)))  # type: ignore[assignment]
        return answer

    def check_process(self) -> None:
        """Raise where the node cannot be used: closed, or opened by a process that this one was forked from."""
        if self._forked is not None:
            raise self._forked
        if self._closed:
            raise ClosedError(f"the node of {self.path} is closed")

    def forget(self) -> None:
        """In a forked child: the directory stays the parent's."""
        self._forked = WrongProcessError(
            f"{self.path} was opened by the process that this one was forked from; open it anew"
        )
        self._pool.forget(self._forked)
        if self._status is not None:
            self._status.forget()
        self.actor.forget(self._forked)

    # ── vhosts ──────────────────────────────────────────────────────────────────────────────────────────────────

    def vhost(self, name: str = "/") -> Vhost:
        """The verbs for a vhost, declared where it is missing; an owner of exclusive queues by itself."""
        self.change(lambda actor: actor.declare_vhost(name))
        return Vhost(self, name)

    def vhosts(self) -> list[str]:
        """The names of those that there are."""
        return self.change(lambda actor: actor.definitions.vhosts())

    def delete_vhost(self, name: str) -> None:
        """With everything in it."""
        self.change(lambda actor: actor.delete_vhost(name))

    def delete_queue(
        self,
        name: str,
        *,
        if_empty: bool = False,
        if_unused: bool = False,
        force: bool = False,
        vhost: str | None = None,
    ) -> int:
        """As in any vhost; ``vhost``: another one than ``/``."""
        where = self._name if vhost is None else vhost
        return self.change(
            lambda actor: actor.delete_queue(
                where, name, owner=self, if_empty=if_empty, if_unused=if_unused, force=force
            )
        )

    def definitions(self, vhost: str | None = None) -> dict[str, Any]:
        """What is declared, of the whole node or of one vhost, as RabbitMQ's definitions JSON."""
        return self.change(lambda actor: actor.export_definitions(vhost))

    def import_definitions(self, document: Mapping[str, Any], vhost: str | None = None) -> Imported:
        """Declare what RabbitMQ's definitions JSON has: all of it, or an error that lists what is in the way."""
        return self.change(lambda actor: actor.import_definitions(document, vhost))

    # ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────

    def topic(self, name: str, *, queues: int | None = None) -> Topic:
        """Declare a topic, or get the one that is there; it has at least so many queues (4 where it is new).

        Raises :class:`TopicNameError`, :class:`QueueRangeError`, and ``TopicsDownError`` where the topics' files cannot
        be opened.
        """
        check_user_topic(name)
        self.change(lambda actor: declare(actor, name, queues, self.config.topics.default_topic_queue_nums))
        return Topic(self, name)

    def running_topics(self) -> RunningTopics:
        """The topics' actors of the moment; raises why there are none."""
        self.check_process()
        try:
            running = self.actor.topics
        except TopicsDownError:
            running = self.change(lambda actor: actor.topics)  # they may just be opened anew
        if running is None:
            raise NotFoundError("no topic was ever declared")
        return running

    def now_ms(self) -> int:
        """Milliseconds since 1970, by the node's clock."""
        return self._clock.wall_us() // 1000

    @property
    def pool(self) -> Pool:
        """Who runs the actors' turns."""
        return self._pool

    def topics(self) -> dict[str, int]:
        """The topics that there are, those of retries and dead letters too, and how many queues each has."""
        running = self.change(lambda actor: actor.topics)
        return {} if running is None else running.table.topics

    def pending_transactions(self) -> list[Transaction]:
        """Messages that were prepared and neither committed nor rolled back, those of before a restart too."""
        return pending_transactions(self)

    # ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────

    def memory(self) -> dict[str, Any]:
        """Memory and disk as the monitor sees them, and the alarms that are set."""
        self.check_process()
        found: dict[str, Any] = self._around.monitor.ask(m.GetMemory())  # type: ignore[assignment]
        return found

    def stats(self) -> dict[str, Any]:
        """Of every vhost the queues' :meth:`Queue.stats`, those that are down, and the stores; :meth:`memory`; and the
        topics (:mod:`warren.topic_stats`), ``None`` where there never was one."""
        self.check_process()
        vhosts: dict[str, Any] = {}
        for name, running in list(self.actor.vhosts.items()):
            queues: dict[str, Any] = {}
            for queue, cell in list(running.cells.items()):
                with contextlib.suppress(WarrenError):
                    queues[queue] = cell.actor.actor_ref.ask(m.GetStats())
            try:
                stores = {
                    kind: attrs.asdict(store.ask(m.GetStoreStatus()))  # type: ignore[arg-type]
                    for kind, store in (("persistent", running.persistent), ("transient", running.transient))
                }
            except WarrenError:
                continue  # the vhost is just being deleted, or opened anew
            vhosts[name] = {"queues": queues, "down": _down(running), "stores": stores}
        return {"path": self.path, "memory": self.memory(), "vhosts": vhosts, "topics": self._topic_stats()}

    def _topic_stats(self) -> dict[str, Any] | None:
        try:
            running = self.actor.topics
            return None if running is None else topic_stats(running)
        except WarrenError as error:
            return topics_down(error)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Wait for what was published to be safe, write everything down, and give the directory free.

        Where another thread is at it, wait for that. A program that ends normally does it by itself.
        """
        if self._closed and self._forked is None:
            self._ended.settled()
            return
        self.check_process()
        self._closed = True
        try:
            if self._status is not None:
                self._status.stop()
            self.actor.actor_ref.ask(m.CloseNode())
        finally:
            self._around.gate.end()  # nobody is left who could open it
            self._pool.stop()
            self._clock.close()
            open_nodes.closed(self)
            self._ended.set()

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._forked is None:
            self.close()


def _probes(config: Config, path: str) -> Probes:
    """The machine's own numbers."""
    override = config.node.total_memory_available_override_value
    log_path = config.topics.store_path_commit_log or config.topics.store_path_root_dir or path

    def reading(around: Surroundings) -> MemoryReading:
        if config.node.vm_memory_calculation_strategy == "allocated":
            return around.allocated
        return RssReading(process_rss_bytes)

    return Probes(
        reading=reading,
        total_memory_bytes=override or total_memory_bytes(physical_memory_bytes(), read_small_file),
        free_disk_bytes=lambda: free_disk_bytes(path),
        give_back=give_memory_back,
        used_disk_percent=lambda: used_disk_percent(log_path),
    )


def open_node(
    path: str | os.PathLike[str],
    config: Config | str | os.PathLike[str] | None = None,
    *,
    adopt: bool = False,
    **settings: Unpack[SettingKeywords],
) -> Node:
    """Open a data directory and start a node in it; made where it is missing.

    ``config``: a :class:`Config`, or a TOML file; ``settings`` go before it, by keyword, under RabbitMQ's names.
    ``adopt``: take over the directory of a stopped RabbitMQ, which can have it back. Raises
    :class:`~storage.errors.DirectoryLockedError` where another process has it (:class:`BrokerRunningError`: a
    RabbitMQ), ``ForeignDirectoryError`` for a RabbitMQ's without ``adopt`` and for a part of one,
    :class:`~storage.errors.SettingsError`, :class:`~storage.errors.DataError`.
    """
    chosen = Config.of(config, **settings)
    refuse_part(os.fspath(path))
    refuse_running_broker(os.fspath(path))
    make_data_directory(os.path.abspath(path))
    keep_one_heap()  # before there are threads
    node = Node(
        os.path.abspath(path),
        chosen,
        files=shared_files(sync_evicted=chosen.node.sync != "os"),
        pool=ThreadPool(chosen.node.threads),
        clock=SystemClock(),
        random=os.urandom,
        adopt=adopt,
        attach=chosen.node.attach,
    )
    open_nodes.close_at_exit(node)
    return node
