"""NodeContext: what the actors of one node share: pool, clock, addresses, settings, and common state."""

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
from warren.actors.engines.restarts import Troubles
from warren.actors.node.gate import Gate
from warren.actors.runtime.pool import Pool
from warren.actors.runtime.pooled_actor import ActorStoppedError
from warren.actors.runtime.timer import Timer
from warren.queue_index.message.msg_ids import numbered_id
from warren.storage.descriptors import descriptor_bound
from warren.storage.errors import WarrenError
from warren.storage.filesystem import FileSystem, RealFileSystem, remove_tree
from warren.storage.settings import Settings

if TYPE_CHECKING:
    from warren.actors.engines.queue.queue_log import QueueLog
    from warren.storage.memory import MemoryFileSystem


class BlockedError(WarrenError):
    """A publisher may not go on now: the queue or the disk lags, or an alarm is set."""


@attrs.define(eq=False, repr=False, kw_only=True)
class NodeContext:
    """The context of one node. Set up by the node before any other actor starts."""

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
    """The memory that each queue accounts for; each value is written by the queue's actor alone."""
    check_invariants: bool = False
    """Check every engine after every turn; for tests."""
    queue_log_of: Callable[[str, str], QueueLog | None] = lambda vhost, queue: None
    """Returns the log of what happens to a queue's messages; for tests."""
    numbers: Iterator[int] = attrs.Factory(lambda: itertools.count(1))
    """Numbers of store clients."""
    _ids_drawn: bytes = attrs.field(init=False)
    _id_numbers: Iterator[int] = attrs.Factory(lambda: itertools.count(1))
    recorder: ActorRef[Any] | None = None
    """The recorder of the node, if it is being recorded."""
    check_directory: Callable[[], None] = lambda: None
    """Raises :class:`~warren.storage.errors.DirectoryLostError` if the data directory was removed or replaced. Called
    from any thread, before anything is reported safe."""
    on_deleted: Callable[[Literal["vhost", "user"], str], None] = lambda kind, name: None
    """Called in the node's turn when a vhost or a user was deleted: a server then disconnects its clients."""
    on_failed: Callable[[], None] = lambda: None
    """Called in the node's turn when the node has failed: a server then disconnects its clients."""
    counting: bool = False
    """Whether queues count their events, for a recorder that exists or will."""
    troubles: Troubles = attrs.Factory(Troubles)
    """What is down because of the disk; changed in the node's turns."""
    closing: ActorStoppedError | None = None
    """The error for late callers, once the node is closed."""
    timer: Timer = attrs.Factory(lambda self: Timer(self.clock), takes_self=True)
    monitor: ActorRef[Any] = attrs.field(init=False)
    node: ActorRef[Any] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._ids_drawn = self.random(8)

    def remove_tree(self, path: str) -> None:
        """Delete a directory with its contents, as durably as the node's ``sync`` requires."""
        remove_tree(self.files, path, sync=self.settings.sync != "os")

    def new_msg_ids(self, count: int) -> bytes:
        """Return ids for messages that go to several queues; from any thread."""
        return b"".join([numbered_id(next(self._id_numbers), self._ids_drawn) for _ in range(count)])


def memory_files(clock: Clock, *, volatile: bool = False) -> MemoryFileSystem:
    """Return a disk in memory, for many threads."""
    from warren.storage.memory import MemoryFileSystem

    return MemoryFileSystem(volatile=volatile, lock_of_names=threading.Lock(), now_ms=lambda: clock.wall_us() // 1000)


def shared_files(*, sync_evicted: bool) -> RealFileSystem:
    """Return the operating system's files, for many threads, with as many open files as this process may have."""
    return RealFileSystem(descriptor_bound(), threading.Lock(), sync_evicted=sync_evicted)
