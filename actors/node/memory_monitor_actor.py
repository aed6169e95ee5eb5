"""The actor that watches memory and disk by the rules in :mod:`warren.actors.engines.memory_monitor` and ``alarms``.

Queues report how long their messages in RAM will last, and receive a target duration. A queue that has left, because it
hibernates, is neither counted nor woken. While an alarm is set, the node's gate is shut for publishers.

The memory is read every second, in every round, and whenever the gate finds the last reading too old
(:meth:`MemoryMonitorActor.look`): then in a publisher's own thread, so that busy threads cannot delay it. For the same
reason the monitor's turns come before those of other actors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
from pykka import ActorRef

from warren.actors.engines.alarms import MAX_CHECK_INTERVAL_MS, AlarmEvent, Alarms, DiskMonitor, disk_limit_bytes
from warren.actors.engines.memory_monitor import MemoryMonitor
from warren.actors.engines.memory_readings import MemoryReading, memory_limit_bytes
from warren.actors.log_events import log_event, logger
from warren.actors.messages import (
    DiskRoom,
    GetMemory,
    LeaveMonitor,
    MemorySampled,
    MonitorFailed,
    ReportDuration,
    SampleMemory,
    SetDurationTarget,
)
from warren.actors.node.node_context import NodeContext
from warren.actors.node.node_part import NodePart
from warren.actors.runtime.timer import tell

_LOG = logger("memory")

ALARM_INTERVAL_MS: Final = 1000
"""Between two readings of the memory alone: publishers are stopped sooner than queues are asked to page."""


FULL_DISK_BYTES: Final = 1 << 20
"""A disk with less free space than this counts as full, whatever ``disk_free_limit`` is."""


class MemoryMonitorActor(NodePart):
    """Owns the memory monitor, the disk monitor and the alarms of one node."""

    goes_first = True

    def __init__(
        self,
        context: NodeContext,
        *,
        reading: MemoryReading,
        total_memory_bytes: int,
        free_disk_bytes: Callable[[], int],
        give_back: Callable[[], None],
        polls: bool = True,
    ) -> None:
        """``polls``: whether to read the probes periodically, or only on :meth:`look`."""
        super().__init__(context)
        settings = context.settings
        self._reading = reading
        self._free_disk_bytes = free_disk_bytes
        self._give_back = give_back
        self._monitor = MemoryMonitor(
            memory_limit_bytes(settings.vm_memory_high_watermark, total_memory_bytes),
            settings.vm_memory_high_watermark_paging_ratio,
        )
        self._disk = DiskMonitor(disk_limit_bytes(settings.disk_free_limit, total_memory_bytes))
        self._alarms = Alarms()
        self._without_room: set[ActorRef[Any]] = set()
        """The actors that found no room to write."""
        self._total_memory_bytes = total_memory_bytes
        self._used_bytes = 0
        self._look_wanted = False
        self._polls = polls

    def look(self, *, here: bool) -> None:
        """Request a reading. Any thread may call it; ``here``: whether it may do this actor's work.

        If another thread runs a turn, the reading is made at the end of that turn, or by the pool.
        """
        self._look_wanted = True
        if not here or not self.turns.run():
            self.turns.submit()

    def wants_turn(self) -> bool:
        return self._look_wanted and not self.actor_stopped.is_set()

    def on_turn_end(self) -> None:
        if self._look_wanted:
            self._look_wanted = False
            if self._polls:
                self._check_memory()
            else:
                self._disk_round()
                self._round()

    def on_start(self) -> None:
        self._context.gate.watcher = self
        self._disk_round()
        self._round()
        if self._polls:
            self._every("memory", self._context.settings.memory_monitor_interval, self._round)
            self._every("alarm", ALARM_INTERVAL_MS, self._check_memory)

    def _every(self, key: str, interval_ms: int, work: Callable[[], None]) -> None:
        """Call ``work`` after each interval, the first time after one interval."""

        def again() -> None:
            work()
            self._in_ms(key, interval_ms, again)

        self._in_ms(key, interval_ms, again)

    def on_receive(self, message: object) -> object:
        match message:
            case ReportDuration():
                if message.queue not in self._monitor:
                    self._monitor.register(message.queue)
                duration = self._monitor.report(
                    message.queue, message.duration_s, pageable=message.pageable, resting=message.resting
                )
                tell(message.queue, SetDurationTarget(duration))
            case LeaveMonitor():
                self._monitor.deregister(message.queue)
            case DiskRoom():
                self._note_room(message)
            case GetMemory():
                if message.high_watermark is not None:
                    self._set_high_watermark(message.high_watermark)
                return self._numbers()
            case SampleMemory():
                if (recorder := self._context.recorder) is not None:
                    tell(recorder, MemorySampled(message.step, self._context.clock.now_ns(), self._numbers()))
            case _:
                return super().on_receive(message)
        return None

    def on_error(self, error: BaseException) -> None:
        """Open the gate: publishers go on until the next monitor looks."""
        self._context.gate.watcher = None
        self._context.gate.set(frozenset())
        self.cancel_timers()
        tell(self._context.node, MonitorFailed(error))

    def _set_high_watermark(self, high_watermark: float) -> None:
        """Set the limit of memory until the node is closed, and look at once who has to page, and whether to block."""
        context = self._context
        context.settings = attrs.evolve(context.settings, vm_memory_high_watermark=high_watermark)
        self._monitor.limit_bytes = memory_limit_bytes(high_watermark, self._total_memory_bytes)
        self._round()

    def _round(self) -> None:
        self._check_memory()
        disk_alarm = "disk" in self._alarms.active
        for queue, duration_s in self._monitor.round(self._used_bytes, disk_alarm=disk_alarm):
            tell(_address(queue), SetDurationTarget(duration_s))
        if self._context.check_invariants:
            self._monitor.check_invariants()

    def _check_memory(self) -> None:
        self._used_bytes = self._reading.read()
        if self._used_bytes > self._monitor.limit_bytes * self._monitor.paging_ratio:
            self._give_back()  # paged memory may still count as used
            self._used_bytes = self._reading.read()
        self._note(self._alarms.update("memory", alarmed=self._used_bytes > self._monitor.limit_bytes))
        self._context.gate.note_reading(self._used_bytes, self._monitor.limit_bytes)

    def _disk_round(self) -> None:
        try:
            free_bytes = self._free_disk_bytes()
        except OSError as error:  # keep the last known value; stopping here would also stop the watch on memory
            _LOG.warning("the free disk space cannot be read: %s", error, extra=log_event("disk_unreadable", error))
            self._in_ms("disk", MAX_CHECK_INTERVAL_MS, self._disk_round)
            return
        event = self._alarms.update("disk", alarmed=self._disk.check(free_bytes) or bool(self._without_room))
        self._note(event)
        self._note_full_disk()
        if self._polls:
            self._in_ms("disk", self._disk.next_check_ms, self._disk_round)
        if event is not None:
            self._round()

    def _note_room(self, message: DiskRoom) -> None:
        """Trust the actor, whatever space is reported free: that may be beyond a quota, for instance."""
        if message.has_room:
            self._without_room.discard(message.actor)
        else:
            self._without_room.add(message.actor)
        self._note(self._alarms.update("disk", alarmed=self._disk.alarmed or bool(self._without_room)))
        self._note_full_disk()

    def _note_full_disk(self) -> None:
        free_bytes = self._disk.free_bytes
        is_full = bool(self._without_room) or (free_bytes is not None and free_bytes < FULL_DISK_BYTES)
        self._context.gate.note_full_disk(is_full=is_full)

    def _note(self, event: AlarmEvent | None) -> None:
        if event is not None:
            _LOG.warning(
                "%s alarm %s",
                event.resource,
                "set: publishers are blocked" if event.change == "set" else "cleared",
                extra=log_event("alarm_set" if event.change == "set" else "alarm_cleared", resource=event.resource),
            )
            self._context.gate.set(frozenset(self._alarms.active))

    def _in_ms(self, key: str, wait_ms: int, work: Callable[[], None]) -> None:
        self.call_later(key, wait_ms * 1_000_000, work, first=True)

    def _numbers(self) -> dict[str, Any]:
        return {
            "used_bytes": self._used_bytes,
            "limit_bytes": self._monitor.limit_bytes,
            "high_watermark": self._context.settings.vm_memory_high_watermark,
            "total_bytes": self._total_memory_bytes,
            "ratio": self._monitor.ratio,
            "desired_duration_s": self._monitor.desired_duration,
            "queues": len(self._monitor),
            "disk_free_bytes": self._disk.free_bytes,
            "disk_limit_bytes": self._disk.limit_bytes,
            "alarms": sorted(self._alarms.active),
        }


def _address(queue: object) -> ActorRef[Any]:
    if not isinstance(queue, ActorRef):
        raise TypeError(f"{queue!r} is no address")
    return queue
