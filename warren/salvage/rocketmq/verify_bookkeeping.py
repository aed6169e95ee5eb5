"""The small files of a topic store beside its messages: ``checkpoint``, and the positions of groups in ``config/``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from warren.actors.engines.topics.checkpoint_format import FILE_BYTES
from warren.actors.engines.topics.store_files import CHECKPOINT, CONFIG
from warren.msg_store.commit_log.commit_log_format import SCHEDULE_TOPIC
from warren.queue_index.topics.consumer_offsets import FILE_NAME
from warren.queue_index.topics.consumer_offsets_format import decode_consumer_offsets, decode_delay_offsets
from warren.salvage.queue_directory import Finding, Severity, unreadable_file
from warren.salvage.rocketmq.store_files import StoreFiles, finding
from warren.salvage.rocketmq.verify_commit_log import VerifiedCommitLog
from warren.salvage.rocketmq.verify_consume_queue import ConsumeQueues
from warren.storage.errors import StorageError, WarrenError

_DELAY_OFFSETS: Final = "delayOffset.json"
_BACKUP: Final = ".bak"
_STAMPS: Final = ("physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp")
_STAMP_BYTES: Final = 8

Position = tuple[str, str, int, int]
"""Topic, owner of the position, queue, offset."""


# ── checkpoint ───────────────────────────────────────────────────────────────────────────────────────────────────────


def checkpoint_findings(store_files: StoreFiles, log: VerifiedCommitLog) -> Iterator[Finding]:
    """The checkpoint against the CommitLog, whose walk is over."""
    path = store_files.path(CHECKPOINT)
    if not store_files.files.exists(path) or store_files.files.is_directory(path):
        if log.newest_ms:
            detail = "after a crash RocketMQ reads the whole log then, and deletes the index"
            is_young = store_files.is_crashed and len(log.files) <= 2
            yield finding("missing checkpoint", "leftover" if is_young else "damage", path, None, detail)
        return
    size = store_files.files.size(path)
    if size < len(_STAMPS) * _STAMP_BYTES:
        yield Finding("wrong file length", "damage", path, None, f"{size} bytes, and not {FILE_BYTES}")
    elif size != FILE_BYTES:
        yield Finding("leftover file length", "leftover", path, None, f"{size} bytes, and not {FILE_BYTES}")
    checkpoint = store_files.checkpoint
    stamps = (checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp, checkpoint.index_msg_timestamp)
    for number, (name, stamp) in enumerate(zip(_STAMPS, stamps, strict=True)):
        offset = number * _STAMP_BYTES
        if stamp < 0:
            yield Finding("wrong checkpoint", "damage", path, offset, f"{name} is {stamp}")
        elif stamp > log.newest_ms > 0:
            severity: Severity = "leftover" if log.end.what == "record" and log.is_end_forgivable else "damage"
            detail = f"{name} is {stamp}, the newest message was stored at {log.newest_ms}"
            yield finding("checkpoint beyond the last message", severity, path, offset, detail)


# ── positions ────────────────────────────────────────────────────────────────────────────────────────────────────────


def offset_findings(store_files: StoreFiles, queues: ConsumeQueues) -> Iterator[Finding]:
    """The positions of groups, and of the delay levels, against the queues that they are in."""
    yield from _positions(store_files, queues, FILE_NAME, _consumer_positions)
    yield from _positions(store_files, queues, _DELAY_OFFSETS, _delay_positions)


def _consumer_positions(text: str) -> list[Position]:
    table = decode_consumer_offsets(text)
    names = {name: name.partition("@") for name in table}
    return [
        (names[name][0], names[name][2], queue_id, offset)
        for name, offsets in table.items()
        for queue_id, offset in offsets.items()
    ]


def _delay_positions(text: str) -> list[Position]:
    levels = decode_delay_offsets(text)
    return [(SCHEDULE_TOPIC, f"delay level {level}", level - 1, offset) for level, offset in levels.items()]


def _positions(
    store_files: StoreFiles, queues: ConsumeQueues, name: str, parse: Callable[[str], list[Position]]
) -> Iterator[Finding]:
    path = store_files.path(CONFIG, name)
    for candidate in (path + _BACKUP, path):
        if not store_files.files.exists(candidate):
            continue
        try:
            data = store_files.files.read(candidate)
            positions = parse(data.decode("utf-8")) if data else []
        except StorageError as error:
            yield unreadable_file(candidate, error)
            continue
        except (UnicodeDecodeError, WarrenError) as error:
            yield Finding("unreadable positions", "damage", candidate, None, str(error)[:200])
            continue
        if candidate == path:
            yield from _beyond(queues, path, positions)
            if not data:
                yield Finding("leftover empty file", "leftover", path, None, "its backup is read instead")


def _beyond(queues: ConsumeQueues, path: str, positions: list[Position]) -> Iterator[Finding]:
    for topic, owner, queue_id, offset in positions:
        queue = queues.queues.get((topic, queue_id))
        end = 0 if queue is None else queue.end
        if offset < 0:
            detail = f"{owner} in {topic}/{queue_id}: {offset}"
            yield Finding("negative position", "damage", path, None, detail)
        elif offset > end:
            detail = f"{owner} in {topic}/{queue_id}: {offset}, and the queue ends at {end}"
            yield Finding("leftover position", "leftover", path, None, detail)
