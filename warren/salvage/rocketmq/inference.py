"""Infers settings of a store from its files: how long each kind of file is, and how an index file is divided.

A mapped file's size is the step from one name to the next and the length of the files; the majority decides, because
files may be cut short or missing. An index file of ``slots`` and ``items`` is ``40 + 4 * slots + 20 * items`` bytes
long, which leaves many divisions open. Three things close them:

* the usual size is that of the usual numbers;
* a file that is not the newest is full: its header says how many items it has;
* the last byte that is not zero lies in the last item, whose number the header says; so the items begin within five
  slots of where that says, and of five neighbours only one adds up to the file's size.

The result is checked: each slot must lead to an item whose hash belongs to that slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import pairwise
from typing import Final, Literal

import attrs
import numpy as np
import numpy.typing as npt

from warren.actors.engines.topics.store_files import CONSUME_QUEUES, INDEX
from warren.actors.engines.topics.topic_store import commit_log_directory, queue_directories
from warren.queue_index.topics.index_file_format import (
    HEADER_BYTES,
    ITEM_BYTES,
    SLOT_BYTES,
    Header,
    Layout,
    is_file_name,
)
from warren.salvage.read_only import below
from warren.storage.filesystem import File, FileSystem
from warren.storage.mapped_files import parse_file_name
from warren.storage.topic_settings import ROCKETMQ_4_9, TopicSettings

Origin = Literal["set", "files", "default", "guess"]
"""Where a setting comes from: the user, the store's files, RocketMQ (nothing contradicts it), or a guess."""

COMMIT_LOG_SIZE: Final = "mappedFileSizeCommitLog"
CONSUME_QUEUE_SIZE: Final = "mappedFileSizeConsumeQueue"
SLOTS: Final = "maxHashSlotNum"
ITEMS: Final = "maxIndexNum"

_USUAL: Final = Layout(ROCKETMQ_4_9.max_hash_slot_num, ROCKETMQ_4_9.max_index_num)
_SLOTS_A_STEP = ITEM_BYTES // SLOT_BYTES
"""This many slots take as much room as one item: a file's size gives their number only modulo this."""

_WINDOW_BYTES = 64 << 10
_ZEROS = bytes(_WINDOW_BYTES)
_MAX_FILE_BYTES = 1 << 31
"""RocketMQ maps its files into memory; this is Java's limit for that."""
_TRIED_SLOTS = 1000
_UNCOUNTED_ITEMS = 100
_GOOD_FOR_ONE_BAD = 10
"""Damage makes some slots lead to wrong places; a wrong division makes nearly all."""


@attrs.frozen
class Inferred:
    """A setting under RocketMQ's name, and where its value comes from."""

    name: str
    value: int
    origin: Origin


def infer(files: FileSystem, store: str, changes: Mapping[str, str]) -> tuple[TopicSettings, list[Inferred], list[str]]:
    """The settings for the store in the directory ``store``; the user's ``changes`` win over what its files tell.

    Also what was inferred, and sentences for people about what was only guessed.
    """
    settings = ROCKETMQ_4_9.with_changes(changes)
    given = {name for name in _INFERABLE if _is_given(name, changes)}
    inferred: dict[str, tuple[int | None, Origin]] = {
        COMMIT_LOG_SIZE: (mapped_file_size(_mapped(files, [commit_log_directory(store, settings)])), "files"),
        CONSUME_QUEUE_SIZE: (queue_file_size(files, below(store, CONSUME_QUEUES)), "files"),
    }
    notes = []
    if not {SLOTS, ITEMS} <= given:
        numbers = {SLOTS: settings.max_hash_slot_num, ITEMS: settings.max_index_num}
        division, origin = index_division(
            files, below(store, INDEX), {name: numbers[name] for name in given & {*numbers}}
        )
        if division is not None:
            inferred |= {SLOTS: (division.slot_count, origin), ITEMS: (division.item_count, origin)}
            if origin == "guess":
                notes.append(
                    f"{below(store, INDEX)}: its files do not tell how they are divided; taken for "
                    f"--set {SLOTS}={division.slot_count} --set {ITEMS}={division.item_count}"
                )
    values = {name: str(value) for name, (value, _) in inferred.items() if value is not None and name not in given}
    settings = settings.with_changes(values)
    return settings, [_inferred(name, settings, inferred.get(name), given) for name in _INFERABLE], notes


_INFERABLE: Final = {
    COMMIT_LOG_SIZE: "mapped_file_size_commit_log",
    CONSUME_QUEUE_SIZE: "mapped_file_size_consume_queue",
    SLOTS: "max_hash_slot_num",
    ITEMS: "max_index_num",
}
"""The settings that files may tell, and their names in :class:`TopicSettings`."""


def _is_given(name: str, changes: Mapping[str, str]) -> bool:
    return name in changes or _INFERABLE[name] in changes


def _inferred(
    name: str, settings: TopicSettings, inferred: tuple[int | None, Origin] | None, given: set[str]
) -> Inferred:
    origin: Origin = "default"
    if name in given:
        origin = "set"
    elif inferred is not None and inferred[0] is not None:
        origin = inferred[1]
    return Inferred(name, getattr(settings, _INFERABLE[name]), origin)


# ── mapped files ─────────────────────────────────────────────────────────────────────────────────────────────────────


def mapped_file_size(directories: Iterable[Mapping[int, int]]) -> int | None:
    """The size that most files, and most steps from one to the next, have; for each directory: base → bytes."""
    votes: Counter[int] = Counter()
    bases: set[int] = set()
    for sizes in directories:
        ordered = sorted(sizes)
        bases.update(ordered)
        votes.update(size for size in sizes.values() if size)
        votes.update(after - before for before, after in pairwise(ordered))

    def weight(size: int) -> tuple[bool, int, int]:
        return all(base % size == 0 for base in bases), votes[size], -size

    return max(votes, key=weight, default=None)


def queue_file_size(files: FileSystem, place: str) -> int | None:
    """The size of the files of the queues below ``place``."""
    queues = (f"{place}/{topic}/{queue_id}" for topic, queue_id in queue_directories(files, place))
    return mapped_file_size(_mapped(files, queues))


def _mapped(files: FileSystem, directories: Iterable[str]) -> Iterator[dict[int, int]]:
    for directory in directories:
        names = {base: name for name in files.list(directory) if (base := parse_file_name(name)) is not None}
        yield {base: files.size(below(directory, name)) for base, name in names.items()}


# ── index files ──────────────────────────────────────────────────────────────────────────────────────────────────────


def index_division(files: FileSystem, directory: str, known_fields: Mapping[str, int]) -> tuple[Layout | None, Origin]:
    """How the index files in ``directory`` are divided; ``known_fields``: one of the two numbers, if any.

    A file that is shorter than the others is one that lost its end; most decide.
    """
    names = list(filter(is_file_name, files.list(directory)))
    sizes = {name: files.size(below(directory, name)) for name in names}
    size = max(Counter(sizes.values()).items(), key=lambda entry: (entry[1], entry[0]), default=(0, 0))[0]
    if size <= HEADER_BYTES:
        return None, "default"
    if known_fields:
        return _rest(size, known_fields), "files"
    if size == _USUAL.file_size:
        return _USUAL, "files"
    whole = [below(directory, name) for name in sorted(names) if sizes[name] == size]
    for path in whole[:-1]:
        if (division := _of_file(files, path, size, is_full=True)) is not None:
            return division, "files"
    for path in reversed(whole):
        if (division := _of_file(files, path, size, is_full=False)) is not None:
            return division, "files"
    return _usual_ratio(size), "guess"


def _is_possible(division: Layout) -> bool:
    return division.slot_count >= 1 and division.item_count >= 2


def _rest(size: int, numbers: Mapping[str, int]) -> Layout | None:
    """The division if one number is known."""
    room = size - HEADER_BYTES
    if SLOTS in numbers:
        division = Layout(numbers[SLOTS], (room - SLOT_BYTES * numbers[SLOTS]) // ITEM_BYTES)
    else:
        division = Layout((room - ITEM_BYTES * numbers[ITEMS]) // SLOT_BYTES, numbers[ITEMS])
    return division if _is_possible(division) else None


def _of_size(size: int, slots: int) -> Layout | None:
    """The division with ``slots`` slots, if it can make a file of ``size`` bytes."""
    items, rest = divmod(size - HEADER_BYTES - SLOT_BYTES * slots, ITEM_BYTES)
    division = Layout(slots, items)
    return division if not rest and _is_possible(division) else None


def _usual_ratio(size: int) -> Layout | None:
    """Four items a slot, as nearly as the size allows."""
    estimate = (size - HEADER_BYTES) // (SLOT_BYTES + 4 * ITEM_BYTES)
    candidates = (estimate + step for distance in range(_SLOTS_A_STEP) for step in (distance, -distance))
    return next((division for slots in candidates if (division := _of_size(size, slots)) is not None), None)


def _of_file(files: FileSystem, path: str, size: int, *, is_full: bool) -> Layout | None:
    """The division that one file implies and does not contradict."""
    with closing(files.open_read(path)) as handle:
        header = Header.decode(handle.pread(HEADER_BYTES, 0))
        count = header.index_count
        if count <= 1:
            return None
        if is_full:
            slots, rest = divmod(size - HEADER_BYTES - ITEM_BYTES * count, SLOT_BYTES)
            candidates = [] if rest else [slots]
        else:
            candidates = _from_last_byte(handle, size, count)
        for slots in candidates:
            division = _of_size(size, slots)
            if division is not None and slots >= header.hash_slot_count and _holds(handle, division, count):
                return division
    return None


def _from_last_byte(handle: File, size: int, count: int) -> list[int]:
    """Numbers of slots with which the last byte that is not zero lies in the last item, the best first.

    Items that a crash left after the last one that the header counts make the number too high; a last item of zeros
    makes it too low.
    """
    last = _last_byte(handle, size)
    if last is None:
        return []
    most = (last - HEADER_BYTES - ITEM_BYTES * (count - 1)) // SLOT_BYTES
    fitting = (size - HEADER_BYTES) // SLOT_BYTES % _SLOTS_A_STEP
    best = most - (most - fitting) % _SLOTS_A_STEP
    return [best, best + _SLOTS_A_STEP, *(best - _SLOTS_A_STEP * steps for steps in range(1, _UNCOUNTED_ITEMS))]


def _last_byte(handle: File, size: int) -> int | None:
    """Where the last byte that is not zero lies."""
    at = min(size, _MAX_FILE_BYTES)
    while at > 0:
        start = max(at - _WINDOW_BYTES, 0)
        window = handle.pread(at - start, start) if handle.next_data(start) < at else b""
        if window != _ZEROS[: len(window)]:  # nearly all of a file may be a hole, and rstrip is slow
            return start + len(window.rstrip(b"\0")) - 1
        at = start
    return None


def _holds(handle: File, division: Layout, count: int) -> bool:
    """Whether slots lead to items that belong there; the first thousand of them that lead anywhere are tried."""
    good = bad = 0
    for first, slots in _slot_windows(handle, division.slot_count):
        for index in np.flatnonzero(slots).tolist():
            number = int(slots[index])
            key_hash = (
                int.from_bytes(handle.pread(4, division.item_offset(number)), "big", signed=True)
                if 0 < number < count
                else -1
            )
            if key_hash >= 0 and key_hash % division.slot_count == first + index:
                good += 1
            else:
                bad += 1
            if good + bad == _TRIED_SLOTS:
                return good >= bad * _GOOD_FOR_ONE_BAD
    return good > 0 and good >= bad * _GOOD_FOR_ONE_BAD


def _slot_windows(handle: File, slots: int) -> Iterator[tuple[int, npt.NDArray[np.int32]]]:
    """The slots in order, many at a time, with the number of the first."""
    for first in range(0, slots, _WINDOW_BYTES // SLOT_BYTES):
        count = min(slots - first, _WINDOW_BYTES // SLOT_BYTES)
        data = handle.pread(SLOT_BYTES * count, HEADER_BYTES + SLOT_BYTES * first)
        yield first, np.frombuffer(data[: len(data) // SLOT_BYTES * SLOT_BYTES], ">i4").astype(np.int32)
