"""A workload that makes every kind of file that a node has."""

from __future__ import annotations

import re
from pathlib import Path

import warren

SMALL = {
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 20_000,
    "msg_store_file_size_limit": 1 << 16,
    "segment_entry_count": 64,
    "queue_index_max_journal_entries": 16,
}
"""Settings under which a little work fills files of each kind."""


def use_everything(node: warren.Node) -> None:
    """Use whatever a node keeps on disk: each of it twice, where the second time writes another file."""
    _use_queues(node)
    _use_vhost(node)
    _use_topics(node)


def _use_queues(node: warren.Node) -> None:
    queue = node.queue("q")
    queue.publish_many([b"small", b"L" * 10_000] * 40).wait()
    for message in queue.get_many(60):  # most of some files of the store are garbage then: it is compacted
        message.ack()
    queue.publish(b"transient", persistent=False).wait()
    queue.publish(b"later", delay=3600).wait()
    node.queue("p", arguments={"x-max-priority": 2}).publish(b"first", priority=1).wait()
    retried = node.queue("r", retry=warren.Retry(limit=3, delay=60))
    retried.publish(b"again").wait()
    if (message := retried.get()) is not None:
        message.retry()
    node.queue("u").publish(b"once", unique="key", unique_for=300).wait()


def _use_vhost(node: warren.Node) -> None:
    vhost = node.vhost("v")
    vhost.queue("w").publish(b"x", delay=3600).wait()
    vhost.exchange("e", "topic")
    vhost.bind("w", "e", "#")
    vhost.set_policy("p", "^w$", {"max-length": 10_000})
    if "u" not in {user["name"] for user in node.users()}:
        node.add_user("u", "secret")
    node.set_permissions("u", ".*", ".*", ".*")


def _use_topics(node: warren.Node) -> None:
    topic = node.topic("t")
    topic.append_many([b"T" * 5_000] * 30, keys=["k"] * 30).wait()
    for arguments in ({"group": "each"}, {"group": "all", "broadcast": True, "instance_name": "i"}):
        with topic.reader(**arguments) as reader:
            assert list(reader.records(10))
            reader.commit()
    topic.append(b"later", delay=60).wait()
    topic.prepare(b"half")


def kind_of(path: Path) -> str:
    """A file's kind: its path without what differs between files of one kind, numbers and hashes."""
    return re.sub(r"[0-9A-Z]{20,}|\d+", "#", str(path))
