"""The messages that wait for their time: of delay levels, and of RocketMQ 5's timers.

A message with a delay level is in queue level - 1 of ``SCHEDULE_TOPIC_XXXX``; ``delayOffset.json`` says up to which
one a level is delivered. A timer's message is in queue 0 of ``rmq_sys_wheel_timer``, and its property ``TIMER_OUT_MS``
says when it is due. For each one that is on the broker's wheel, the files in ``timerlog/`` have a unit, whose time is
earlier if that is further away than the wheel reaches; then the message is stored once more at that time::

    0  size 4: 52 | 4  previous unit 8 | 12 magic 4 | 16 time of writing 8 | 24 delay 4 | 28 physical offset 8
    36 size of the record 4 | 40 hash of the real topic 4 | 44 reserved 8

The magic is less than 16 (bit 2: the message deletes another one), or that of the end of a file. ``config/timercheck``
begins with the time up to which the wheel was read (8), a position in the timer log (8), and the queue offset of the
first message that is not on the wheel (8). All integers are big-endian.

So what waits is what a broker that starts would deliver: after a crash perhaps again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Final

import attrs
import numpy as np

from warren.actors.engines.topics.names import REAL_TOPIC, SCHEDULE_TOPIC, UNIQ_KEY
from warren.actors.engines.topics.store_files import CONFIG
from warren.msg_store.commit_log.commit_log_format import Record, decode_properties
from warren.salvage.queue_directory import Finding, damage_by
from warren.salvage.rocketmq.batch_queues import Units, good_units
from warren.salvage.rocketmq.config_files import DELAY_OFFSETS
from warren.salvage.rocketmq.record_lines import number_in
from warren.salvage.rocketmq.rocketmq_store import RocketmqStore
from warren.salvage.rocketmq.store_reading import queue_entries
from warren.storage.errors import DataError
from warren.storage.filesystem import FileSystem
from warren.storage.mapped_files import file_name, parse_file_name

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
_DUE_MS: Final = "TIMER_OUT_MS"
_DELETED_KEY: Final = "TIMER_DEL_UNIQKEY"
_CHECKPOINT: Final = "timercheck"
_LOG: Final = "timerlog"

UNIT: Final = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("magic", ">i4"),
        ("written_ms", ">i8"),
        ("delay_ms", ">i4"),
        ("physical_offset", ">i8"),
        ("record_size", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
_UNIT_BYTES: Final = 52
_MAGICS: Final = 16

if UNIT.itemsize != _UNIT_BYTES:
    raise RuntimeError("the unit's layout does not add up")


@attrs.frozen(order=True)
class Waiting:
    """A message that waits."""

    due_ms: int
    physical_offset: int
    size: int


def delayed_messages(opened: RocketmqStore) -> Iterator[tuple[int, Record] | Finding]:
    """When it is due, in milliseconds since 1970, and the record, for each message that waits: the earliest first.

    Raises :class:`DataError` if ``delayOffset.json`` and its backup are damaged.
    """
    waiting: list[Waiting] = []
    for item in (*_of_levels(opened), *_of_timers(opened)):
        if isinstance(item, Finding):
            yield item
        else:
            waiting.append(item)
    for message in sorted(waiting):
        record = _record(opened, message)
        yield record if isinstance(record, Finding) else (message.due_ms, record)


def _record(opened: RocketmqStore, message: Waiting) -> Record | Finding:
    try:
        return opened.store.commit_log.record(message.physical_offset, message.size)
    except DataError as error:
        return damage_by(error, "unreadable message")


def _of_levels(opened: RocketmqStore) -> Iterator[Waiting | Finding]:
    damage = next((error for error in opened.config.damage if error.path.endswith(DELAY_OFFSETS)), None)
    if damage is not None:
        raise damage
    delivered = opened.config.contents.get(DELAY_OFFSETS, {})
    for (topic, queue_id), queue in sorted(opened.store.queues.items()):
        if topic == SCHEDULE_TOPIC:
            first = min(max(delivered.get(queue_id + 1, 0), queue.min_offset), queue.max_offset)
            for entry in queue_entries(queue, first, None):
                yield entry if isinstance(entry, Finding) else Waiting(entry[3], entry[1], entry[2])


# ── timers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_timers(opened: RocketmqStore) -> Iterator[Waiting | Finding]:
    queue = opened.store.queues.get((TIMER_TOPIC, 0))
    if queue is None:
        return
    read_ms, first_off_wheel = 0, 0
    path = f"{opened.directory}/{CONFIG}/{_CHECKPOINT}"
    if opened.below.exists(path):
        with closing(opened.below.open_read(path)) as file:
            read_ms, _, first_off_wheel = np.frombuffer(file.pread(24, 0).ljust(24, b"\0"), ">i8").tolist()
    else:
        yield Finding("missing timer checkpoint", "leftover", path, None, "timers that were delivered are listed too")
    positions, wheel_ms = _wheel(opened.below, f"{opened.directory}/{_LOG}")
    timers: list[tuple[Waiting, str]] = []
    deleted: set[tuple[int, str]] = set()
    for entry in queue_entries(queue, None, None):
        if isinstance(entry, Finding):
            yield entry
            continue
        queue_offset, physical_offset, size, _ = entry
        row = int(np.searchsorted(positions, physical_offset, "right")) - 1
        is_on_wheel = row >= 0 and positions[row] == physical_offset
        if wheel_ms[row] < read_ms if is_on_wheel else queue_offset < first_off_wheel:
            continue
        record = _record(opened, Waiting(0, physical_offset, size))
        if isinstance(record, Finding):
            yield record
            continue
        properties = decode_properties(record.properties)
        due_ms = number_in(properties.get(_DUE_MS))
        if due_ms is None:
            detail = f"queue offset {queue_offset}: the property {_DUE_MS} is missing or no number"
            yield Finding("timer without time", "damage", queue.mapped.directory, None, detail)
        elif _DELETED_KEY in properties:
            deleted.add((due_ms, properties[_DELETED_KEY]))
        else:
            key = f"{properties.get(REAL_TOPIC)}+{properties.get(UNIQ_KEY)}"
            timers.append((Waiting(due_ms, physical_offset, size), key))
    yield from (timer for timer, key in timers if (timer.due_ms, key) not in deleted)


def _wheel(files: FileSystem, directory: str) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]:
    """The physical offsets of messages that are or were on the wheel, ascending, and their times there."""
    names = files.list(directory) if files.is_directory(directory) else []
    parts = [np.empty(0, UNIT)]
    for base in sorted(base for name in names if (base := parse_file_name(name)) is not None):
        parts += good_units(files, f"{directory}/{file_name(base)}", UNIT, _are_good)
    units = np.concatenate(parts)
    positions = units["physical_offset"].astype(np.int64)
    order = np.argsort(positions, kind="stable")
    return positions[order], (units["written_ms"].astype(np.int64) + units["delay_ms"])[order]


def _are_good(units: Units) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    good: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
        (units["size"] == _UNIT_BYTES) & (units["magic"] >= 0) & (units["magic"] < _MAGICS)
    )
    return good
