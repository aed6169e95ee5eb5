"""The key index as RocketMQ's rules say it, one key at a time, slowly: what the real one is compared with.

Also what every test of it needs: messages, the columns that a dispatch hands over, and names for files.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import attrs
import numpy as np

from warren.queue_index.topics.key_index import KeyIndex
from warren.storage.filesystem import FileSystem


@attrs.frozen
class Message:
    physical_offset: int
    store_timestamp: int
    key_hashes: tuple[int, ...]
    is_rollback: bool = False


class ModelFile:
    """A file's bytes, and its header as numbers (begin and end time, begin and end offset, slots, count)."""

    def __init__(self, slots: int, items: int, end_time: int = 0, end_offset: int = 0) -> None:
        self.slots, self.items = slots, items
        self.data = bytearray(40 + 4 * slots + 20 * items)
        self.begin_time = self.end_time = end_time
        self.begin_offset = self.end_offset = end_offset
        self.slot_count, self.count = 0, 1

    def slot(self, key_hash: int) -> int:
        return struct.unpack_from(">i", self.data, 40 + 4 * (key_hash % self.slots))[0]

    def put(self, key_hash: int, message: Message) -> None:
        value = self.slot(key_hash)
        if value <= 0 or value > self.count:
            value = 0
        seconds = 0
        if self.begin_time > 0 and message.store_timestamp > self.begin_time:
            seconds = min((message.store_timestamp - self.begin_time) // 1000, 0x7FFFFFFF)
        place = 40 + 4 * self.slots + 20 * self.count
        struct.pack_into(">iqii", self.data, place, key_hash, message.physical_offset, seconds, value)
        struct.pack_into(">i", self.data, 40 + 4 * (key_hash % self.slots), self.count)
        if self.count <= 1:
            self.begin_offset, self.begin_time = message.physical_offset, message.store_timestamp
        self.slot_count += value == 0
        self.count += 1
        self.end_offset, self.end_time = message.physical_offset, message.store_timestamp

    def bytes(self) -> bytes:
        header = (self.begin_time, self.end_time, self.begin_offset, self.end_offset, self.slot_count)
        struct.pack_into(">qqqqii", self.data, 0, *header, self.count if self.count > 1 else 0)
        return bytes(self.data)

    def find(self, key_hash: int, found: list[int], max_num: int, begin: int, end: int) -> None:
        number = self.slot(key_hash)
        if number <= 0 or number > self.count or self.count <= 1:
            return
        while len(found) < max_num:
            place = 40 + 4 * self.slots + 20 * number
            item_hash, offset, seconds, previous = struct.unpack_from(">iqii", self.data, place)
            if seconds < 0:
                return
            time = self.begin_time + seconds * 1000
            if item_hash == key_hash and begin <= time <= end:
                found.append(offset)
            if previous <= 0 or previous > self.count or previous == number or time < begin:
                return
            number = previous


class IndexModel:
    def __init__(self, slots: int, items: int) -> None:
        self.slots, self.items = slots, items
        self.files: list[ModelFile] = []

    def last(self) -> ModelFile:
        if not self.files:
            self.files.append(ModelFile(self.slots, self.items))
        elif self.files[-1].count >= self.items:
            full = self.files[-1]
            self.files.append(ModelFile(self.slots, self.items, full.end_time, full.end_offset))
        return self.files[-1]

    def put(self, message: Message) -> None:
        if message.physical_offset < self.last().end_offset or message.is_rollback:
            return
        for key_hash in message.key_hashes:
            self.last().put(key_hash, message)

    def query(self, key_hash: int, max_num: int, begin: int, end: int) -> list[int]:
        found: list[int] = []
        for file in reversed(self.files):
            low, high = file.begin_time, file.end_time
            if (begin < low and end > high) or low <= begin <= high or low <= end <= high:
                file.find(key_hash, found, max_num, begin, end)
            if low < begin or len(found) >= max_num:
                break
        return found


class Names:
    """What files are called: numbers, in the order in which they are asked for."""

    def __init__(self, start: int = 0) -> None:
        self.number = start

    def __call__(self) -> str:
        self.number += 1
        return f"{self.number:017d}"


def load(files: FileSystem, directory: str, slots: int, items: int, **options: object) -> KeyIndex:
    return KeyIndex.load(
        files,
        directory,
        **{"max_hash_slot_num": slots, "max_index_num": items, "new_name": Names(), **options},  # type: ignore[arg-type]
    )


def put(index: KeyIndex, messages: Sequence[Message], skip_first: int = 0) -> None:
    """Put messages as one batch of columns."""
    index.put_many(
        np.array([message.physical_offset for message in messages], np.int64),
        np.array([message.store_timestamp for message in messages], np.int64),
        np.array([message.is_rollback for message in messages], np.bool_),
        np.array([len(message.key_hashes) for message in messages], np.int64),
        np.array([key_hash for message in messages for key_hash in message.key_hashes], np.int32),
        skip_first=skip_first,
    )
