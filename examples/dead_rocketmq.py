"""Bring the messages on a dead RocketMQ broker's disk into a warren node; the disk is only read.

    python examples/dead_rocketmq.py STORE DIRECTORY

STORE is the broker's store folder, or a .tar.gz of it; DIRECTORY a warren node's. Each message keeps its queue, its
keys, its tag and its own properties; the time at which it was stored becomes a property. What the groups' retries and
the store's own topics hold is not copied, but counted.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

import warren
from warren.actors.engines.topics.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from warren.msg_store.commit_log.commit_log_format import Record, decode_properties
from warren.salvage.queue_directory import Finding
from warren.salvage.rocketmq.rocketmq_store import RocketmqStore, open_rocketmq
from warren.salvage.rocketmq.store_reading import as_sent, queue_messages
from warren.storage.errors import WarrenError

OWN = {"KEYS", "TAGS", "UNIQ_KEY", "WAIT", "CLUSTER"}
"""Properties that are arguments here, or the broker's own."""


def messages(store: RocketmqStore, topic: str, queue_id: int) -> Iterator[Record]:
    """One queue's messages, in order; what cannot be read is named on stderr."""
    stored = queue_messages(store, store.queue(topic, queue_id), None, None)
    for found in as_sent(stored, store.path):  # bodies that producers compressed are decompressed
        if isinstance(found, Finding):
            print(found, file=sys.stderr)
        else:
            yield found


def append(topic: warren.Topic, record: Record) -> warren.AppendConfirm:
    """The message, as one of warren's."""
    said = decode_properties(record.properties)
    kept = {name: value for name, value in said.items() if name not in OWN}
    return topic.append(
        record.body,
        key=said.get("KEYS", "").split() or None,
        tag=said.get("TAGS"),
        properties=kept | {"STORED_AT_MS": str(record.store_timestamp)},
        queue=record.queue_id,
    )


def main(path: str, directory: str) -> None:
    brought: Counter[str] = Counter()
    left: Counter[str] = Counter()
    with open_rocketmq(path, {}) as store, warren.open(directory) as node:
        for note in store.notes:  # what recovery cut off, and what was guessed
            print(note, file=sys.stderr)
        for topic, queue_id in store.store.queues:
            if is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                left[topic] += sum(1 for _ in messages(store, topic, queue_id))
                continue
            target = node.topic(topic, queues=queue_id + 1)
            confirms = [append(target, record) for record in messages(store, topic, queue_id)]
            for confirm in confirms:
                confirm.wait()
            brought[topic] += len(confirms)
        for topic, count in sorted(brought.items()):
            print(f"{topic}: {count} messages in {node.topics()[topic]} queues")
        for topic, count in sorted(left.items()):
            print(f"{topic}: {count} left behind")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:3])
    except WarrenError as error:
        sys.exit(f"{error}")
