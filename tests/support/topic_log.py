"""A CommitLog in memory and its queues as lists: what an engine hands out as a batch becomes records, and is read back
from its bytes."""

from __future__ import annotations

from typing import Any

from warren.msg_store.commit_log.commit_log import Batch, CommitLog
from warren.msg_store.commit_log.commit_log_format import PREPARED, TRANSACTION_MASK, Host, Record
from warren.storage.memory import MemoryFileSystem
from warren.storage.topic_settings import TopicSettings

HERE = Host.parse("10.1.2.3:10911")
THERE = Host.parse("[2001:db8::1]:50555")

RECORD = Record(
    topic="orders",
    queue_id=0,
    queue_offset=0,
    physical_offset=0,
    size=0,
    store_timestamp=1,
    born_timestamp=1,
    born_host=HERE,
    store_host=HERE,
    sys_flag=0,
    flag=0,
    reconsume_times=0,
    prepared_transaction_offset=0,
    body_crc=0,
    body=b"body",
    properties=b"",
)
"""One like any other, for ``attrs.evolve``."""


def batch(topic: str = "orders", *bodies: bytes, queue_id: int = 2, properties: bytes = b"", **more: Any) -> Batch:
    return Batch(
        topic=topic,
        queue_id=queue_id,
        bodies=bodies or (b"body",),
        properties=properties,
        born_timestamp=1_000,
        born_host=THERE,
        store_host=HERE,
        **more,
    )


class Log:
    """Records in physical order, and by topic and queue."""

    def __init__(self) -> None:
        settings = TopicSettings(mapped_file_size_commit_log=1 << 16)
        self.commit_log = CommitLog.load(MemoryFileSystem(), "/commitlog", settings)
        self.queues: dict[tuple[str, int], list[Record]] = {}

    def append(self, added: Batch, store_timestamp: int = 2_000) -> list[Record]:
        queue = self.queues.setdefault((added.topic, added.queue_id), [])
        appended = self.commit_log.append(added, len(queue), store_timestamp)
        places = zip(appended.physical_offsets.tolist(), appended.sizes.tolist(), strict=True)
        records = [self.commit_log.record(physical_offset, size) for physical_offset, size in places]
        if added.sys_flag & TRANSACTION_MASK not in (PREPARED, TRANSACTION_MASK):
            queue += records
        return records
