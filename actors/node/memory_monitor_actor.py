"""The actor that watches memory and disk: the rules are :mod:`warren.actors.engines.memory_monitor` and ``alarms``.

Queues report how long their messages in RAM will last and are told how long they may. A queue that has left, because it
hibernates, is neither counted nor woken. While an alarm is set the node's gate is shut for publishers.

The memory is read every second, in every round, and whenever the gate finds the last reading too old
(:meth:`MemoryMonitorActor.look`): in a publisher's own thread, so that threads that are busy cannot put it off. For the
same reason the monitor goes before others where it stands in line for a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

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
"""Between two looks at the memory alone: publishers are stopped sooner than queues are told to page."""


FULL_DISK_BYTES: Final = 1 << 20
"""With less free than this a disk counts as full, whatever ``disk_free_limit`` says."""


class MemoryMonitorActor(NodePart):
    """Owner of one node's memory monitor, disk monitor and alarms."""

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
        """``polls``: what is handed in is read again and again, else when it is said to (:meth:`look`)."""
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
        """Who could not write for want of room."""
        self._total_memory_bytes = total_memory_bytes
        self._used_bytes = 0
        self._look_wanted = False
        self._polls = polls

    def look(self, *, here: bool) -> None:
        """Somebody finds the last reading too old. Any thread may call; ``here``: and may do this actor's work.

        Where another thread is at it, that one looks before it leaves, or lets the pool.
        """
        self._look_wanted = True
        if not here or not self.turn():
            self.get_in_line()

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
        """Do it again and again, from one interval on."""

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
                return self._numbers()
            case SampleMemory():
                if (recorder := self._context.recorder) is not None:
                    tell(recorder, MemorySampled(message.step, self._context.clock.now_ns(), self._numbers()))
            case _:
                return super().on_receive(message)
        return None

    def on_error(self, error: BaseException) -> None:
        """Nobody watches: publishers go on until the next one looks."""
        self._context.gate.watcher = None
        self._context.gate.set(frozenset())
        self.cancel_timers()
        tell(self._context.node, MonitorFailed(error))

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
            self._give_back()  # what was paged may still count as ours
            self._used_bytes = self._reading.read()
        self._note(self._alarms.update("memory", alarmed=self._used_bytes > self._monitor.limit_bytes))
        self._context.gate.note_reading(self._used_bytes, self._monitor.limit_bytes)

    def _disk_round(self) -> None:
        try:
            free_bytes = self._free_disk_bytes()
        except OSError as error:  # what was known last holds; nobody would look at the memory if this were the end
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
        """However much is said to be free: it may be another's, or beyond a quota."""
        if message.found:
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
        raise RuntimeError(f"{queue!r} is no address")  # noqa: TRY004
    return queue
