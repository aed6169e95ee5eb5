"""Nodes to measure Spark on: queues with messages in the index, queues with bodies in the store, CommitLogs.

All are written by the engines. A fleet of topics is one store whose CommitLog the others share by hard links: for a
reader it is as many nodes; for the disk, one.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import warren
from benchmarks.scenarios import BATCH, PERSISTENT, open_vhost
from warren.storage.filesystem import RealFileSystem


def queue_nodes(directory: str, *, nodes: int, queues: int, bytes_each: int, size: int) -> list[str]:
    """``nodes`` directories of ``queues`` queues, each node with ``bytes_each`` of bodies of ``size`` bytes."""
    fresh = random.Random(1)
    batches = max(1, bytes_each // (queues * size * BATCH))
    paths = []
    for number in range(nodes):
        path = os.path.join(directory, f"broker-{number:02d}")
        vhost = open_vhost(RealFileSystem(), path)
        for name in range(queues):
            queue = vhost.queue(b"queue-%03d" % name)
            queue.state.target_ram_count = 0
            for _ in range(batches):
                queue.publish_many(PERSISTENT, vhost.msg_ids.many(BATCH), _bodies(fresh, size))
                vhost.sync()
        vhost.close()
        paths.append(path)
    return paths


def skewed_node(directory: str, *, queues: int, bytes_each: int, size: int) -> str:
    """One node whose queues take turns in its store; the first of them has two thirds of all messages."""
    fresh, path = random.Random(1), os.path.join(directory, "broker")
    vhost = open_vhost(RealFileSystem(), path)
    opened = [vhost.queue(b"queue-%03d" % number) for number in range(queues)]
    turns = max(1, bytes_each // (3 * (queues - 1) * size))
    for queue in opened:
        queue.state.target_ram_count = 0
    for _ in range(turns):
        for number, queue in enumerate(opened):
            count = 1 if number else 2 * (queues - 1)
            octets = fresh.randbytes(size * count)
            bodies = [octets[at : at + size] for at in range(0, len(octets), size)]
            queue.publish_many(PERSISTENT, vhost.msg_ids.many(count), bodies)
        vhost.sync()
    vhost.close()
    return path


def topic_store(directory: str, *, log_bytes: int, file_bytes: int, size: int, keyed: bool) -> str:
    """A topic store with ``log_bytes`` of CommitLog in files of ``file_bytes``; returns its folder."""
    path = os.path.join(directory, "topic-node")
    fresh = random.Random(1)
    with warren.open(path, sync="os", attach=False, mapped_file_size_commit_log=file_bytes) as node:
        topic, written, number = node.topic("bench", queues=4), 0, 0
        while written + 2 * BATCH * (size + 200) < log_bytes:
            keys = [f"order-{number + one:09d}" for one in range(BATCH)] if keyed else None
            last = topic.append_many(_bodies(fresh, size), keys=keys).wait()[-1]
            written, number = last.physical_offset + last.size, number + BATCH
        topic.sync()
    return os.path.join(path, "topics")


def _bodies(fresh: random.Random, size: int) -> list[bytes]:
    """A batch of bodies that come nowhere else: where some come again, Parquet keeps them once."""
    octets = fresh.randbytes(size * BATCH)
    return [octets[at : at + size] for at in range(0, len(octets), size)]


def fleet_of(store: str, directory: str, nodes: int) -> list[str]:
    """As many stores with the same CommitLog, by hard links."""
    paths = []
    for number in range(nodes):
        path = os.path.join(directory, f"store-{number:02d}")
        shutil.copytree(store, path, copy_function=os.link)
        paths.append(path)
    return paths


def size_of(paths: list[str]) -> int:
    """Bytes of all files below."""
    return sum(file.stat().st_size for path in paths for file in Path(path).rglob("*") if file.is_file())
