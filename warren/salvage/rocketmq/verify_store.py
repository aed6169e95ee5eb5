"""``warren verify`` of a topic store: what in RocketMQ's files, or warren's own, is damaged, and what only left over.

The files are read as they are, before any recovery. Everything else is compared with the CommitLog, which is
read once (:mod:`~warren.salvage.rocketmq.verify_commit_log`); ConsumeQueues
(:mod:`~warren.salvage.rocketmq.verify_consume_queue`) and the key index
(:mod:`~warren.salvage.rocketmq.verify_index_keys`) are read beside it. Memory: a window of each.

*Damage* is what no sound store has, after a crash either. *Leftovers* are what a crash, a recovery or the deletion of
old files leaves: the ``abort`` file and what it makes of the last write, index files that recovery deletes, keys that
it loses, entries of expired messages, a CommitLog file made ahead of need, positions of groups beyond the messages.
An empty index file at the end is what a sound store has, and so is filler ahead of a queue's first message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

from warren.actors.engines.topics.checkpoint_format import FILE_BYTES
from warren.actors.engines.topics.store_files import ABORT, CHECKPOINT, CONFIG
from warren.msg_store.commit_log.commit_log_format import SCHEDULE_TOPIC
from warren.msg_store.commit_log.record_columns import RecordColumns
from warren.queue_index.topics.consumer_offsets import FILE_NAME
from warren.queue_index.topics.consumer_offsets_format import decode_consumer_offsets, decode_delay_offsets
from warren.salvage.queue_directory import Finding, Severity, unreadable_file
from warren.salvage.rocketmq.config_files import DECODERS, DELAY_OFFSETS, GROUPS, TOPICS
from warren.salvage.rocketmq.verify_commit_log import VerifiedCommitLog
from warren.salvage.rocketmq.verify_files import StoreFiles, finding
from warren.salvage.rocketmq.verify_index_file import VerifiedIndexFile, index_files
from warren.salvage.rocketmq.verify_index_keys import IndexKeys
from warren.salvage.rocketmq.verify_queues import ConsumeQueues
from warren.storage.errors import StorageError, WarrenError
from warren.storage.filesystem import FileSystem
from warren.storage.topic_settings import TopicSettings

_BACKUP: Final = ".bak"
_STAMPS: Final = ("physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp")
_STAMP_BYTES: Final = 8

_Position = tuple[str, str, int, int]
"""Topic, owner of the position, queue, offset."""


def verify_store(files: FileSystem, place: str, settings: TopicSettings) -> Iterator[Finding]:
    """Every finding in the store in the directory ``place``, as it is found; nothing is written."""
    try:
        with closing(StoreFiles.of(files, place, settings)) as store_files:
            yield from _verify(store_files)
    except StorageError as error:
        yield unreadable_file(place or ".", error)


def _verify(store_files: StoreFiles) -> Iterator[Finding]:
    log = VerifiedCommitLog.of(store_files)
    queues = ConsumeQueues.of(store_files, log)
    index, strange = index_files(store_files)
    log.known_until = max((file.header.end_physical_offset for file in index), default=-1)
    yield from queues.name_findings
    yield from strange
    for file in index:
        yield from file.findings()
    keys = IndexKeys.of(store_files, log, index)
    for item in log.walk():
        if isinstance(item, RecordColumns):
            yield from queues.take(item)
            if store_files.settings.message_index_enable:
                yield from keys.take(item)
        else:
            yield item
    end = log.end.physical_offset
    yield from _end_of_log(log, queues)
    yield from log.files_after_end()
    yield from queues.finish(end)
    yield from keys.finish(end)
    yield from _checkpoint_findings(store_files, log)
    yield from _offset_findings(store_files, queues)
    yield from _crash(store_files, log, index)


def _end_of_log(log: VerifiedCommitLog, queues: ConsumeQueues) -> Iterator[Finding]:
    """What is at the end of the CommitLog, if it is not only zeros."""
    end = log.end
    if not log.files:
        if queues.has_entries or log.known_until > 0:
            detail = "no file, but entries or keys of messages; RocketMQ deletes the entries when it starts"
            yield Finding("missing CommitLog", "damage", log.store_files.commit_log, None, detail)
        return
    if end.what == "zeros":
        return
    if end.what == "record" or queues.points_at(end.physical_offset) or log.known_until >= end.physical_offset:
        severity: Severity = "leftover" if log.is_end_forgivable else "damage"
        detail = f"the last record is incomplete: {end.reason}. No record follows it"
        yield log.finding("torn record", end.physical_offset, detail, severity)
    else:
        detail = "not zeros, after the last record: left by a recovery, or never complete"
        yield log.finding("leftover bytes", end.physical_offset, detail, "leftover")


def _crash(store_files: StoreFiles, log: VerifiedCommitLog, index: list[VerifiedIndexFile]) -> Iterator[Finding]:
    """What recovery will do, and what it costs."""
    if not store_files.is_crashed:
        return
    detail = f"the store was not closed; RocketMQ's recovery reads the CommitLog from {log.recovery_start} on"
    if log.cut is not None:
        detail += f", and ends it at {log.cut}"
    yield Finding("leftover abort file", "leftover", store_files.path(ABORT), None, detail)
    if log.cut is not None:
        detail = f"{log.good_end - log.cut} bytes from here on, with readable messages, are ignored after a recovery"
        yield log.finding("leftover messages behind the end", log.cut, detail, "leftover")
    for file in index:
        header = file.header
        if file.is_doomed:
            reason = f"newer than the checkpoint's indexMsgTimestamp {store_files.checkpoint.index_msg_timestamp}"
            detail = f"{header.index_count - 1} items, {reason}: RocketMQ's recovery deletes the file"
            if header.begin_physical_offset < log.recovery_start and header.index_count > 1:
                stop = min(header.end_physical_offset, log.recovery_start)
                detail += f"; the keys of the messages from {header.begin_physical_offset} to {stop} are lost by it"
            yield file.finding("leftover index file", None, detail)


# ── checkpoint ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _checkpoint_findings(store_files: StoreFiles, log: VerifiedCommitLog) -> Iterator[Finding]:
    """Compare the checkpoint with the CommitLog, after the walk."""
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


def _offset_findings(store_files: StoreFiles, queues: ConsumeQueues) -> Iterator[Finding]:
    """The positions of groups, and of the delay levels, against the queues that they are in."""
    yield from _positions(store_files, queues, FILE_NAME, _consumer_positions)
    yield from _positions(store_files, queues, DELAY_OFFSETS, _delay_positions)
    for name in (TOPICS, GROUPS):
        yield from _positions(store_files, queues, name, _no_positions_in(name), "unreadable table")


def _no_positions_in(name: str) -> Callable[[str], list[_Position]]:
    def check(text: str) -> list[_Position]:
        DECODERS[name](text)
        return []

    return check


def _consumer_positions(text: str) -> list[_Position]:
    table = decode_consumer_offsets(text)
    names = {name: name.partition("@") for name in table}
    return [
        (names[name][0], names[name][2], queue_id, offset)
        for name, offsets in table.items()
        for queue_id, offset in offsets.items()
    ]


def _delay_positions(text: str) -> list[_Position]:
    levels = decode_delay_offsets(text)
    return [(SCHEDULE_TOPIC, f"delay level {level}", level - 1, offset) for level, offset in levels.items()]


def _positions(
    store_files: StoreFiles,
    queues: ConsumeQueues,
    name: str,
    parse: Callable[[str], list[_Position]],
    kind: str = "unreadable positions",
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
            yield Finding(kind, "damage", candidate, None, str(error)[:200])
            continue
        if candidate == path:
            yield from _beyond(queues, path, positions)
            if not data:
                yield Finding("leftover empty file", "leftover", path, None, "its backup is read instead")


def _beyond(queues: ConsumeQueues, path: str, positions: list[_Position]) -> Iterator[Finding]:
    for topic, owner, queue_id, offset in positions:
        queue = queues.queues.get((topic, queue_id))
        end = 0 if queue is None else queue.max_offset
        if offset < 0:
            detail = f"{owner} in {topic}/{queue_id}: {offset}"
            yield Finding("negative position", "damage", path, None, detail)
        elif offset > end:
            detail = f"{owner} in {topic}/{queue_id}: {offset}, and the queue ends at {end}"
            yield Finding("leftover position", "leftover", path, None, detail)
