"""The act with a dead RocketMQ's store: what its own recovery would leave of it, and what can be saved all the same.

The store is opened as RocketMQ would find it after its recovery, which is done in memory. Then ConsumeQueues and index
are rebuilt from the CommitLog alone, and compared with three things: the dead broker's own files, byte by byte; what
RocketMQ answers; and every key of every message.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
from rich.filesize import decimal
from rich.table import Table

from examples.demo.acts import Stage
from examples.demo.checking import Check, Faults
from examples.demo.shipped_store import (
    Key,
    Oracle,
    TopicRead,
    load_oracle,
    open_store,
    read_keys,
    read_topics,
    summed_up,
)
from warren.actors.engines.topics.store_files import INDEX
from warren.actors.engines.topics.topic_store import FOR_EVER_MS
from warren.msg_store.commit_log.commit_log_format import Record
from warren.queue_index.topics.key_index import KeyIndex
from warren.salvage.names import printable
from warren.salvage.rocketmq.comparing import compare
from warren.salvage.rocketmq.rebuilding import rebuild
from warren.salvage.rocketmq.rocketmq_store import RocketmqStore
from warren.storage.java_hash import index_hash

REBUILT: Final = "rebuilt"
"""Where the new files go, below the demo's directory."""

_AT_MOST: Final = 64
"""Messages in an answer of RocketMQ's."""
_ALL: Final = 1 << 20


@attrs.define
class Salvaged:
    """What came of it."""

    oracle: Oracle
    messages: int = 0
    keys: int = 0
    keys_lost: int = 0
    """Not found any more after RocketMQ's recovery."""
    rebuilt_files: int = 0
    rebuild_s: float = 0.0
    read: Faults = attrs.field(factory=Faults)
    """Where a topic is not what RocketMQ read."""
    recovered: Faults = attrs.field(factory=Faults)
    """Where the index after its recovery is not what RocketMQ's is."""
    differing: Faults = attrs.field(factory=Faults)
    """Files that are not, to the last byte, the dead broker's."""
    whole: Faults = attrs.field(factory=Faults)
    """Where the rebuilt index does not answer as RocketMQ's did while it was whole."""
    missing: Faults = attrs.field(factory=Faults)
    """Keys that the rebuilt index does not find."""

    def checks(self) -> list[Check]:
        """Everything that had to hold."""
        broker, keys = self.oracle.broker, self.oracle.keys
        messages = sum(topic.messages for topic in self.oracle.topics.values())
        return [
            Check.of(f"{broker}'s {messages:,} messages are those that it read itself", self.read),
            Check.of(
                f"after its recovery keys are found as {broker} found them: {keys.recovered:,} of {keys.whole:,}",
                self.recovered,
            ),
            Check.of(f"what is built anew is, to the last byte, what {broker} had written", self.differing),
            Check.of(f"it answers as {broker} did before", self.whole),
            Check.of(f"and finds the messages of all {self.keys:,} keys", self.missing),
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "messages": self.messages,
            "keys": self.keys,
            "keys_lost_by_its_recovery": self.keys_lost,
            "keys_lost_by_rebuild": self.missing.count,
            "rebuilt_files": self.rebuilt_files,
            "rebuild_s": self.rebuild_s,
        }

    def rows(self) -> list[tuple[str, str]]:
        """As the summary shows it."""
        return [
            (
                "RocketMQ's",
                f"{self.messages:,} messages; its recovery loses {self.keys_lost:,} of {self.keys:,} keys, rebuilding "
                f"{self.missing.count or 'none'}",
            )
        ]


def salvage(stage: Stage) -> Salvaged:
    """Play the act."""
    salvaged = Salvaged(load_oracle())
    stage.screen.heading(8, f"The store of a dead {salvaged.oracle.broker} broker, opened read-only")
    with open_store() as opened:
        topics, keys = read_topics(opened), read_keys(opened)
        found = {name: summed_up(queues) for name, queues in topics.items()}
        salvaged.messages, salvaged.keys = sum(topic.messages for topic in found.values()), len(keys)
        compare_topics(found, salvaged)
        stage.screen.put(_table(topics, keys))
        _recover(stage, opened, keys, salvaged)
        _rebuild(stage, opened, keys, salvaged)
    return salvaged


def _table(topics: Mapping[str, Sequence[Sequence[Record]]], keys: Sequence[Key]) -> Table:
    table = Stage.table("topic", "queues", "messages", "payload", "keys")
    for name, queues in topics.items():
        table.add_row(
            printable(name),
            f"{len(queues):,}",
            f"{sum(map(len, queues)):,}",
            decimal(sum(len(record.body) for queue in queues for record in queue)),
            f"{sum(key.topic == name for key in keys):,}",
        )
    return table


def _recover(stage: Stage, opened: RocketmqStore, keys: Sequence[Key], salvaged: Salvaged) -> None:
    """What RocketMQ's recovery, which has been done in memory, leaves of the index."""
    store = opened.store
    salvaged.keys_lost = len(not_found(store.index, keys))
    left, expected = salvaged.keys - salvaged.keys_lost, salvaged.oracle.keys.recovered
    if left != expected:
        salvaged.recovered.add(f"{left:,} keys find their message, in place of {expected:,}")
    compare_answers(store.index, salvaged.oracle, salvaged.recovered, is_whole=False)
    deleted = sum(f"/{INDEX}/" in f"/{path}" for path in opened.files.deleted)
    first = min((file.header.begin_physical_offset for file in store.index.index_files), default=store.commit_log.end)
    stage.screen.say(
        f"It was not closed. RocketMQ's recovery deletes {deleted:,} index files, as its checkpoint does not say that "
        f"they are whole, and makes a new one of what it reads again: the last {store.commit_log.end - first:,} of "
        f"{store.commit_log.end - store.commit_log.min_offset:,} bytes."
    )
    stage.screen.say(f"Of {salvaged.keys:,} keys it has then lost {salvaged.keys_lost:,}.", "red")


def _rebuild(stage: Stage, opened: RocketmqStore, keys: Sequence[Key], salvaged: Salvaged) -> None:
    """Rebuild ConsumeQueues and index, and check them."""
    began_at = time.monotonic()
    rebuilt = rebuild(opened, os.path.join(stage.directory, REBUILT), lambda _: None)
    salvaged.rebuild_s = time.monotonic() - began_at
    try:
        for finding in rebuilt.damage:
            salvaged.differing.add(str(finding))
        for file in compare(opened, rebuilt):
            if file.outcome != "equal":
                salvaged.differing.add(f"{printable(file.name)}: {file.outcome}")
        compare_answers(rebuilt.store.index, salvaged.oracle, salvaged.whole, is_whole=True)
        for key in not_found(rebuilt.store.index, keys):
            salvaged.missing.add(f"{printable(key.topic)}: {printable(key.name)} at {key.physical_offset:,}")
        salvaged.rebuilt_files = len(rebuilt.files)
    finally:
        rebuilt.close()
    stage.screen.say(
        f"warren makes {salvaged.rebuilt_files:,} files anew from the CommitLog, in {salvaged.rebuild_s:.2f} s: "
        f"{salvaged.keys - salvaged.missing.count:,} of {salvaged.keys:,} keys find their message."
    )


# ── what must be so, and whether it is ───────────────────────────────────────────────────────────────────────────────


def compare_topics(found: Mapping[str, TopicRead], salvaged: Salvaged) -> None:
    """Note whatever of the topics is not what RocketMQ read."""
    said = salvaged.oracle.topics
    for name in sorted({*found, *said}):
        there, expected = found.get(name), said.get(name)
        if there is None or expected is None:
            salvaged.read.add(f"{printable(name)}: {'missing' if there is None else 'RocketMQ had none'}")
        elif there != expected:
            differing = [
                field.name
                for field in attrs.fields(TopicRead)
                if getattr(there, field.name) != getattr(expected, field.name)
            ]
            salvaged.read.add(f"{printable(name)} differs in {', '.join(differing)}")


def compare_answers(index: KeyIndex, oracle: Oracle, faults: Faults, *, is_whole: bool) -> None:
    """Note where an index has not as many keys as RocketMQ's had, or answers otherwise."""
    count = sum(max(file.header.index_count - 1, 0) for file in index.index_files)
    expected = oracle.keys.whole if is_whole else oracle.keys.recovered
    if count != expected:
        faults.add(f"{count:,} keys in place of {expected:,}")
    for query in oracle.queries:
        answer = index.query(index_hash(f"{query.topic}#{query.key}"), _AT_MOST, 0, FOR_EVER_MS)
        if answer != list(query.whole if is_whole else query.recovered):
            faults.add(f"{printable(query.topic)}: another answer for {printable(query.key)}")


def not_found(index: KeyIndex, keys: Sequence[Key]) -> list[Key]:
    """The keys under which an index does not name their message."""
    answers: dict[tuple[str, str], set[int]] = {}
    lost = []
    for key in keys:
        named = answers.get((key.topic, key.name))
        if named is None:
            found = index.query(index_hash(f"{key.topic}#{key.name}"), _ALL, 0, FOR_EVER_MS)
            named = answers[key.topic, key.name] = set(found)
        if key.physical_offset not in named:
            lost.append(key)
    return lost
