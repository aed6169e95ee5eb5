"""A CommitLog and its queues as a list: what an engine hands out as a batch becomes records, byte by byte, and is read
back from its bytes."""

from __future__ import annotations

from msg_store.commit_log_format import (
    BORN_HOST_V6,
    PREPARED,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    Host,
    Record,
    decode,
    encode,
)
from msg_store.record_encoding import Batch

HERE = Host.parse("10.1.2.3:10911")
THERE = Host.parse("[2001:db8::1]:50555")


def batch(topic: str = "orders", *bodies: bytes, queue_id: int = 2, properties: bytes = b"", **more: int) -> Batch:
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
        self.records: list[Record] = []
        self.queues: dict[tuple[str, int], list[Record]] = {}
        self.end = 0

    def append(self, added: Batch, store_timestamp: int = 2_000) -> list[Record]:
        first = len(self.records)
        for number, body in enumerate(added.bodies):
            properties = added.properties if isinstance(added.properties, bytes) else added.properties[number]
            self._append_one(added, body, properties, store_timestamp)
        return self.records[first:]

    def _append_one(self, added: Batch, body: bytes, properties: bytes, store_timestamp: int) -> None:
        flags = added.sys_flag | added.born_host.is_v6 * BORN_HOST_V6 | added.store_host.is_v6 * STORE_HOST_V6
        dispatched = added.sys_flag & TRANSACTION_MASK not in (PREPARED, TRANSACTION_MASK)
        queue = self.queues.setdefault((added.topic, added.queue_id), [])
        sample = Record(
            topic=added.topic,
            queue_id=added.queue_id,
            queue_offset=len(queue) if dispatched else 0,
            physical_offset=self.end,
            size=0,
            store_timestamp=store_timestamp,
            born_timestamp=added.born_timestamp,
            born_host=added.born_host,
            store_host=added.store_host,
            sys_flag=flags,
            flag=added.flag,
            reconsume_times=added.reconsume_times,
            prepared_transaction_offset=added.prepared_transaction_offset,
            body_crc=0,
            body=body,
            properties=properties,
        )
        record = decode(encode(sample))
        self.records.append(record)
        self.end += record.size
        if dispatched:
            queue.append(record)
