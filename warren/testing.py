"""What tests of programs use: a node whose clock they control and whose messages they see.

:class:`TestNode` is a :class:`warren.Node` and can replace one in a program. It is stored in memory or in a directory;
time stands still until :meth:`TestNode.advance`; it can be restarted, killed, and lose power. pytest's fixtures use it
(:mod:`warren.pytest_plugin`).
"""

from __future__ import annotations

import os
import random
from typing import Final, Unpack

import attrs

from warren.actors.clock import HandClock
from warren.actors.engines.queue.queue_log import EVENTS, Event, SeenMessage
from warren.actors.node.node_actor import Probes
from warren.actors.node.node_context import NodeContext, memory_files, shared_files
from warren.actors.queue.message_log import MessageLog
from warren.actors.runtime.pool import SettlingPool
from warren.config import Config, SettingKeywords
from warren.handles.node import Node
from warren.hosting.memory_node import config_in_memory
from warren.hosting.running_node import RunningNode, memory_reading
from warren.storage.call_arguments import checked
from warren.storage.filesystem import FileSystem, make_data_directory
from warren.storage.memory import MemoryFileSystem
from warren.values.seen_messages import QueueMessages

__all__ = ["EVENTS", "Event", "HandClock", "Machine", "QueueMessages", "SeenMessage", "TestNode"]

GIB: Final = 1 << 30
_IN_MEMORY: Final = "/node"


@attrs.define
class Machine:
    """What a node reads of its machine; to be set by the test. The default memory limit is 40 % of the total."""

    used_bytes: int = 0
    total_memory_bytes: int = 10 * GIB
    free_disk_bytes: int = 100 * GIB
    memory_reads: int = 0
    disk_reads: int = 0
    broken: Exception | None = None
    """The error that reading the memory raises."""
    given_back: int = 0
    """How often the node asked to return memory to the system."""

    def read(self) -> int:
        """Bytes used: the machine is its own memory reading."""
        self.memory_reads += 1
        if self.broken is not None:
            raise self.broken
        return self.used_bytes

    def read_disk(self) -> int:
        """Bytes free."""
        self.disk_reads += 1
        return self.free_disk_bytes

    def give_back(self) -> None:
        """Return memory to the system: counted only."""
        self.given_back += 1

    def probes(self) -> Probes:
        """For the node that reads it."""
        return Probes(
            reading=lambda _: self,
            total_memory_bytes=self.total_memory_bytes,
            free_disk_bytes=self.read_disk,
            give_back=self.give_back,
        )


class TestNode(Node):
    """A :class:`warren.Node` for tests: in memory or in a directory, with a clock turned by hand."""

    __test__ = False  # pytest would take it for a class of tests

    @checked
    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        config: Config | str | os.PathLike[str] | None = None,
        *,
        clock: HandClock | None = None,
        **settings: Unpack[SettingKeywords],
    ) -> None:
        """``path``: a directory; ``None``: a disk in memory. Config and settings are those of :func:`warren.open`."""
        self.clock: HandClock = HandClock() if clock is None else clock
        """What the node takes for the time. It stands still until :meth:`advance`."""
        self.machine = Machine()
        """What the node takes for its machine: memory and disk, to be made scarce by the test."""
        self._log = MessageLog()
        self._where = _IN_MEMORY if path is None else os.path.abspath(path)
        self._memory: MemoryFileSystem | None = memory_files(self.clock) if path is None else None
        self._chosen = config_in_memory(config, settings) if path is None else Config.of(config, **settings)
        if path is not None:
            make_data_directory(self._where)
        super().__init__(self._start())

    def _start(self) -> RunningNode:
        self._pool = SettlingPool(self._chosen.node.threads)
        files: FileSystem | None = self._memory
        context = NodeContext(
            files=shared_files(sync_evicted=self._chosen.node.sync != "os") if files is None else files,
            pool=self._pool,
            clock=self.clock,
            random=os.urandom,
            settings=self._chosen.node,
            engine=self._chosen.engine,
            queue_log_of=self._log.of,
        )
        return RunningNode(
            context,
            self._where,
            self._chosen,
            probes=attrs.evolve(
                self.machine.probes(), polled=False, reading=memory_reading(self._chosen, self.machine)
            ),
        )

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────

    @checked
    def advance(self, seconds: float) -> None:
        """Let time pass. Whatever is due on the way happens at its moment, and has happened when this comes back:
        expiries, timeouts, syncs, a queue's own end. Memory and disk are looked at before and after."""
        self._running.look_at_machine()
        self.clock.advance(seconds, self.settle)
        self._running.look_at_machine()
        self.settle()

    def settle(self) -> None:
        """Come back when the node has done what it was given to do, as far as no time has to pass for it."""
        self._pool.settle()

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────

    @checked
    def messages(self, queue: str, vhost: str = "/") -> QueueMessages:
        """What became of a queue's messages, since the first start of this node."""
        return QueueMessages(self._log, self._log.of(vhost, queue), self.settle, vhost, queue)

    def story(self) -> str:
        """What became of every queue's messages, for people."""
        return "\n".join(f"{self.messages(queue, vhost)}" for vhost, queue in self._log.queues())

    # ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def disk(self) -> MemoryFileSystem:
        """The disk in memory: operations can be made to fail, it can be filled. Not of a node in a directory."""
        if self._memory is None:
            raise RuntimeError(f"{self._where} is on the machine's own disk")
        return self._memory

    def opened(
        self,
        path: object = None,
        config: object = None,
        *,
        adopt: bool = False,
        share: bool = False,
        **settings: Unpack[SettingKeywords],
    ) -> TestNode:
        """Replace :func:`warren.open` for a program that opens its node itself: return this node for any arguments.

        Reopens the node if the program has closed it.
        """
        if self._opened.closed:
            self._reopen()
        return self

    def restart(self) -> None:
        """Close and reopen the node. Handles from before are closed: a program has to be restarted, too."""
        self.close()
        self._reopen()

    def crash(self) -> None:
        """Kill the node, as by ``kill -9``, and reopen it: what it had written is there, nothing else."""
        self.settle()
        self._running.crash()
        if self._memory is not None:
            self._memory = self._memory.after_process_crash()
        self._reopen()

    @checked
    def lose_power(self, seed: int | None = None) -> None:
        """Simulate a power loss and reopen the node: what it had synced is there, and nothing else.

        ``seed``: also keeps a random part, drawn with this seed, of what was written and not synced: single writes,
        torn ones. Only for a node in memory.
        """
        disk = self.disk
        self.settle()
        self._running.crash()
        self._memory = disk.after_power_loss(None if seed is None else random.Random(seed))  # nosec B311 # faults
        self._reopen()

    def _reopen(self) -> None:
        super().__init__(self._start())
