"""A node in a test's hands: no threads, a clock that stands still, a disk in memory, a machine that is made up.

:func:`hand_node` opens one. Turns are run by :meth:`HandNode.run`, or by a call that waits for an answer; time passes
in :meth:`HandNode.advance`. :meth:`HandNode.kill` and :meth:`HandNode.lose_power` end it as a crash would and give the
disk as the next process finds it, to be opened by :func:`hand_node` again.

:class:`Scribe` is an actor that records its messages.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple, TypeVar

import attrs
from pykka import ActorRef, ActorRegistry

from warren import Config, Delivery, Node, Queue
from warren.actors.clock import HandClock
from warren.actors.node.node_context import NodeContext
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.runtime.inbox import PendingBatch
from warren.actors.runtime.pool import HandPool, Pool
from warren.actors.runtime.pooled_actor import PooledActor, Turns, actor_of_ref
from warren.hosting.open_nodes import Opening
from warren.hosting.running_node import RunningNode
from warren.queue_index.index import directory as names
from warren.storage.errors import WarrenError
from warren.storage.memory import MemoryFileSystem
from warren.testing import Machine

A = TypeVar("A", bound=PooledActor)
DATA = "/data"


class HandNode(NamedTuple):
    """A node and what it stands on."""

    node: Node
    pool: HandPool
    clock: HandClock
    files: MemoryFileSystem
    machine: Machine

    def run(self) -> None:
        """Run turns until no actor waits for one."""
        self.pool.run()

    def advance(self, seconds: float) -> None:
        """Let time pass; every timer on the way goes off at its moment, and what it gives to do is done."""
        self.clock.advance(seconds, self.pool.run)

    def kill(self) -> MemoryFileSystem:
        """End the process between two operations; the disk as the next one finds it: every issued write is there."""
        self.forget()
        return self.files.after_process_crash()

    def lose_power(self, rng: random.Random) -> MemoryFileSystem:
        """Pull the plug: what was synced is there, and of the rest what ``rng`` leaves."""
        self.forget()
        return self.files.after_power_loss(rng)

    def forget(self) -> None:
        """End the process, with its disk."""
        self.node._running.forget()
        self.pool.stop()
        forget_actors(self.pool)


def forget_actors(pool: object) -> None:
    """Take the actors of a dead pool out of Pykka's registry, which is the whole process's."""
    for ref in ActorRegistry.get_all():
        owner = getattr(ref.actor_inbox, "owner", None)
        if isinstance(owner, Turns) and owner.line is pool:
            ActorRegistry.unregister(ref)


def hand_node(
    files: MemoryFileSystem | None = None,
    *,
    path: str = DATA,
    config: Config | None = None,
    clock: HandClock | None = None,
    machine: Machine | None = None,
    seed: int = 0,
    adopt: bool = False,
    check_invariants: bool = True,
    **settings: Any,
) -> HandNode:
    """Open a node; what is not given is new. ``settings``: as for :func:`warren.open`; syncs come after 25 ms."""
    if config is None:
        settings.setdefault("sync_interval_ms", 25)
    disk = MemoryFileSystem(random.Random(seed)) if files is None else files
    pool = HandPool()
    time = HandClock() if clock is None else clock
    computer = Machine() if machine is None else machine
    opening, chosen = Opening(), Config.of(config, **settings)
    context = NodeContext(
        files=disk,
        pool=pool,
        clock=time,
        random=random.Random(seed).randbytes,
        settings=chosen.node,
        engine=chosen.engine,
        check_invariants=check_invariants,
    )
    try:
        running = opening.start(lambda: RunningNode(context, path, chosen, probes=computer.probes(), adopt=adopt))
        node = Node(running)
    except BaseException:
        opening.undo()
        forget_actors(pool)
        raise
    return HandNode(node, pool, time, disk, computer)


BIG = b"B" * 5000
"""A body that goes to the shared store."""

SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 14,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
"""Settings with which topics have many files, and small ones."""


def put(files: MemoryFileSystem, path: str, data: bytes) -> None:
    """Let a file hold these bytes."""
    handle = files.open_append(path)
    handle.truncate(0)
    handle.append(data)
    handle.close()


def queue_path(queue: str, vhost: str = "/") -> str:
    directory = names.vhost_directory_name(vhost.encode())
    entry = names.queue_directory_name(vhost.encode(), queue.encode())
    return f"{DATA}/msg_stores/vhosts/{directory}/queues/{entry}"


def store_path(vhost: str = "/") -> str:
    return f"{DATA}/msg_stores/vhosts/{names.vhost_directory_name(vhost.encode())}/msg_store_persistent"


def bodies(queue: Queue) -> list[bytes]:
    return [message.body for message in queue.browse()]


def next_of(queue: Queue, **arguments: Any) -> Delivery:
    """Get the next message of a queue that has one."""
    delivery = queue.get(**arguments)
    assert delivery is not None
    return delivery


def actor_behind(ref: ActorRef[A]) -> A:
    """The actor of a reference, in this process."""
    return actor_of_ref(ref, ref.actor_class)


def actor_of(queue: Queue) -> QueueActor:
    """The actor of a queue in this process."""
    return queue._verbs.entry.actor


def ran_quickly(actor: QueueActor) -> bool:
    """Let a queue have a quick turn; whether it had one."""
    shortcuts = actor.turns.shortcuts
    return shortcuts is not None and shortcuts.quick_turn()


@attrs.frozen
class Say:
    word: object


@attrs.frozen
class Do:
    work: Any


class Scribe(PooledActor):
    """Records every message that it gets."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self.heard: list[object] = []
        self.turn_ends = 0
        self.failed_with: BaseException | None = None
        self.undelivered: list[object] = []
        self.refused: list[Exception] = []

    def on_receive(self, message: Any) -> object:
        if isinstance(message, Do):
            return message.work()
        self.heard.append(message.word)
        return message.word

    def on_batch(self, entry: PendingBatch) -> None:
        self.heard.append(list(entry.items))

    def on_turn_end(self) -> None:
        self.turn_ends += 1

    def on_refused(self, error: Exception) -> None:
        self.refused.append(error)

    def on_undelivered(self, message: Any, error: WarrenError) -> None:
        self.undelivered.append(message.items if isinstance(message, PendingBatch) else message.word)

    def on_error(self, error: BaseException) -> None:
        self.failed_with = error
