"""What the actors of one node share: pool, clock, addresses, settings, and what everybody may look at."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final

import attrs
from pykka import ActorRef

from actors.clock import Clock
from actors.engines.memory_readings import AllocatedReading
from actors.engines.node_settings import NodeSettings
from actors.gate import Gate
from actors.pool import Pool
from storage.descriptors import descriptor_bound
from storage.errors import WarrenError
from storage.filesystem import FileSystem, RealFileSystem
from storage.settings import Settings

MAX_SYNC_DELAY_MS: Final = 200


class BlockedError(WarrenError):
    """A publisher may not go on now: the queue or the disk is behind, or an alarm is set."""


@attrs.define(eq=False, kw_only=True)
class Surroundings:
    """One node's common ground. Set up by the node before any other actor starts."""

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
    syncing: set[str] = attrs.Factory(set)
    """The queues with a sync on its way, each written by its actor alone."""
    check_invariants: bool = False
    """Check every engine after every turn; for tests."""
    numbers: Iterator[int] = attrs.Factory(lambda: itertools.count(1))
    """Numbers of store clients."""
    _id_prefix: bytes = attrs.field(init=False)
    _id_numbers: Iterator[int] = attrs.Factory(lambda: itertools.count(1))
    recorder: ActorRef[Any] | None = None
    """Who records the node; ``None``: nobody, or nobody any more."""
    check_directory: Callable[[], None] = lambda: None
    """Raises :class:`~storage.errors.DirectoryLostError` where the data directory was removed or replaced: before
    anybody is told that something is safe there. From any thread."""
    counting: bool = False
    """Whether queues count what happens to them, for a recorder that is there or will be."""
    timer: ActorRef[Any] = attrs.field(init=False)
    monitor: ActorRef[Any] = attrs.field(init=False)
    node: ActorRef[Any] = attrs.field(init=False)

    @property
    def allocated_bytes(self) -> dict[Hashable, int]:
        """What each queue accounts for, by the address of its actor."""
        return self.allocated.by_owner

    def __attrs_post_init__(self) -> None:
        self._id_prefix = self.random(8)

    def sync_delay_ns(self) -> int:
        """How long a commit that nobody waits for may wait for others.

        ``sync_interval_ms``; with many queues at it more, for their syncs would follow one another without an end, up
        to the 200 ms that RabbitMQ's queue index takes at most.
        """
        interval_ms = self.settings.sync_interval_ms
        many_ms = min(len(self.syncing), MAX_SYNC_DELAY_MS)
        return max(interval_ms, many_ms) * 1_000_000

    def new_msg_ids(self, count: int) -> bytes:
        """Ids for messages that go to several queues; from any thread."""
        return b"".join([self._id_prefix + next(self._id_numbers).to_bytes(8, "big") for _ in range(count)])


def shared_files(*, sync_evicted: bool) -> RealFileSystem:
    """The operating system's files, for many threads, with as many open at a time as this process may have."""
    return RealFileSystem(descriptor_bound(), threading.Lock(), sync_evicted=sync_evicted)
