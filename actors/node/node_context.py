"""NodeContext: what the actors of one node share: pool, clock, addresses, settings, and what everybody may look at."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import attrs
from pykka import ActorRef

from warren.actors.clock import Clock
from warren.actors.engines.memory_readings import AllocatedReading
from warren.actors.engines.node_settings import NodeSettings
from warren.actors.engines.queue.queue_turn import QueueTurn
from warren.actors.engines.queue.sync_group import SyncGroup
from warren.actors.engines.restarts import Troubles
from warren.actors.node.gate import Gate
from warren.actors.runtime.pool import ActorStoppedError, Pool
from warren.queue_index.message.msg_ids import numbered_id
from warren.storage.descriptors import descriptor_bound
from warren.storage.errors import WarrenError
from warren.storage.filesystem import FileSystem, RealFileSystem, remove_tree
from warren.storage.settings import Settings

if TYPE_CHECKING:
    from warren.storage.memory import MemoryFileSystem


class BlockedError(WarrenError):
    """A publisher may not go on now: the queue or the disk is behind, or an alarm is set."""


@attrs.define(eq=False, repr=False, kw_only=True)
class NodeContext:
    """One node's context. Set up by the node before any other actor starts."""

    files: FileSystem
    pool: Pool
    clock: Clock
    random: Callable[[int], bytes]
    settings: NodeSettings
    engine: Settings
    gate: Gate = attrs.Factory(
        lambda self: Gate(self.settings.credit_flow_default_credit[0], self.clock), takes_self=True
    )
    allocated: AllocatedReading = attrs.Factory(AllocatedReading)
    """What each queue accounts for, each written by its actor alone."""
    sync_group: SyncGroup = attrs.Factory(lambda self: SyncGroup(self.settings.sync_interval_ms), takes_self=True)
    """The queues with a sync on its way."""
    check_invariants: bool = False
    """Check every engine after every turn; for tests."""
    new_queue_turn: Callable[..., QueueTurn] = QueueTurn
    """Makes what hosts a queue's turns; others than the usual are for tests."""
    numbers: Iterator[int] = attrs.Factory(lambda: itertools.count(1))
    """Numbers of store clients."""
    _ids_drawn: bytes = attrs.field(init=False)
    _id_numbers: Iterator[int] = attrs.Factory(lambda: itertools.count(1))
    recorder: ActorRef[Any] | None = None
    """Who records the node; ``None``: nobody, or nobody any more."""
    check_directory: Callable[[], None] = lambda: None
    """Raises :class:`~warren.storage.errors.DirectoryLostError` where the data directory was removed or replaced:
    before anybody is told that something is safe there. From any thread."""
    on_deleted: Callable[[Literal["vhost", "user"], str], None] = lambda kind, name: None
    """Told, in the node's turn, of a vhost or a user that is no more: whoever serves clients lets those of it go."""
    counting: bool = False
    """Whether queues count what happens to them, for a recorder that is there or will be."""
    troubles: Troubles = attrs.Factory(Troubles)
    """What the disk keeps down; changed in the node's turns."""
    closing: ActorStoppedError | None = None
    """What those get who come too late, once the node is closed."""
    timer: ActorRef[Any] = attrs.field(init=False)
    monitor: ActorRef[Any] = attrs.field(init=False)
    node: ActorRef[Any] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._ids_drawn = self.random(8)

    def remove_tree(self, path: str) -> None:
        """Delete a directory with all that is in it, as surely as this node was told to."""
        remove_tree(self.files, path, sync=self.settings.sync != "os")

    def new_msg_ids(self, count: int) -> bytes:
        """Ids for messages that go to several queues; from any thread."""
        return b"".join([numbered_id(next(self._id_numbers), self._ids_drawn) for _ in range(count)])


def memory_files(clock: Clock, *, volatile: bool = False) -> MemoryFileSystem:
    """A disk in memory, for many threads."""
    from warren.storage.memory import MemoryFileSystem  # noqa: PLC0415 - few nodes are in memory

    return MemoryFileSystem(volatile=volatile, lock_of_names=threading.Lock(), now_ms=lambda: clock.wall_us() // 1000)


def shared_files(*, sync_evicted: bool) -> RealFileSystem:
    """The operating system's files, for many threads, with as many open at a time as this process may have."""
    return RealFileSystem(descriptor_bound(), threading.Lock(), sync_evicted=sync_evicted)
