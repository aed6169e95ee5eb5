"""The RocketMQ store that ships with the project, and what RocketMQ itself read in copies of it and answered.

It was written by RocketMQ 4.9.3's own store code and never closed: the file ``abort`` is there, and the CommitLog is
whole. One thing was set: its checkpoint says what a broker's usually does, that messages and queues are safe and that
no index file has been full yet (that comes after 20 million keys; here, after 119). So RocketMQ's recovery deletes the
index, and rebuilds as much of it as it reads of the CommitLog, which is the last file.

Beside it stands, of each topic, how many messages RocketMQ read and a digest of their bodies; and for some keys which
messages its index names, while it is whole and after that recovery.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import attrs

from examples.demo.shipped import DATA, digest_of, sound
from warren.actors.engines.topics.names import KEYS, UNIQ_KEY
from warren.msg_store.commit_log.commit_log_format import Blank, Record, decode_properties
from warren.salvage.rocketmq.rocketmq_store import RocketmqStore, open_rocketmq
from warren.salvage.rocketmq.store_reading import queue_messages, scan_records

ARCHIVE: Final = DATA / "rocketmq-4.9.3.tar.gz"
ORACLE: Final = DATA / "rocketmq-4.9.3.json"


@attrs.frozen
class TopicRead:
    """What was read of a topic."""

    queues: int
    messages: int
    sha256: str
    """As :func:`~examples.demo.shipped.digest_of`, in the order of queues and of the messages in them."""


@attrs.frozen
class Query:
    """A key that RocketMQ was asked for: physical offsets, in the order of its answer."""

    topic: str
    key: str
    whole: Sequence[int]
    """From an index of all messages."""
    recovered: Sequence[int]
    """From what its recovery leaves of the index."""


@attrs.frozen
class KeyCount:
    """Keys in RocketMQ's index."""

    whole: int
    recovered: int


@attrs.frozen
class Oracle:
    """What RocketMQ read and answered."""

    broker: str
    topics: Mapping[str, TopicRead]
    keys: KeyCount
    queries: Sequence[Query]


@attrs.frozen
class Key:
    """A key of a message, as the index has it. Equal ones stand once for each time that the message names them."""

    topic: str
    name: str
    physical_offset: int


@contextmanager
def open_store() -> Iterator[RocketmqStore]:
    """The shipped store, unpacked to a temporary directory; as it is after the recovery that RocketMQ would do."""
    with open_rocketmq(str(ARCHIVE), {}) as store:
        yield store


def load_oracle() -> Oracle:
    said = json.loads(ORACLE.read_text(encoding="utf-8"))
    return Oracle(
        broker=said["broker"],
        topics={name: TopicRead(**read) for name, read in said["topics"].items()},
        keys=KeyCount(**said["keys"]),
        queries=[Query(**query) for query in said["queries"]],
    )


def read_topics(opened: RocketmqStore) -> dict[str, list[list[Record]]]:
    """By topic the messages of its queues; raises :class:`DataError` for the first that cannot be had."""
    topics: dict[str, list[list[Record]]] = {}
    for (topic, _), queue in sorted(opened.store.queues.items()):
        messages = [sound(found) for found in queue_messages(opened, queue, None, None)]
        topics.setdefault(topic, []).append(messages)
    return topics


def summed_up(queues: Sequence[Sequence[Record]]) -> TopicRead:
    """A topic's messages, as the oracle has them."""
    bodies = [record.body for queue in queues for record in queue]
    return TopicRead(len(queues), len(bodies), digest_of(bodies))


def read_keys(opened: RocketmqStore) -> list[Key]:
    """Every key of every message, in the order of the CommitLog."""
    found = []
    for item in scan_records(opened):
        if not isinstance(item, Blank):
            record = sound(item)
            found += [Key(record.topic, name, record.physical_offset) for name in keys_of(record)]
    return found


def keys_of(record: Record) -> list[str]:
    """Under what a message is to be found: its unique key, and those that its producer gave it."""
    properties = decode_properties(record.properties)
    unique = properties.get(UNIQ_KEY)
    return [*([unique] if unique is not None else []), *filter(None, properties.get(KEYS, "").split(" "))]
