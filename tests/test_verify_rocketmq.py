"""``warren verify`` of topic stores: the golden ones, with and without what was done to them, and warren's own."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import struct
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from tests.support import rocketmq_golden as golden
from tests.support.cli_tools import warren
from tests.support.topic_tools import HERE, batch
from warren.actors.engines.topics.store_opening import load_store
from warren.actors.engines.topics.topic_store import TopicStore
from warren.msg_store.commit_log.commit_log_format import PREPARED, Record, header_bytes
from warren.salvage.queue_directory import Finding
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.salvage.rocketmq.store_reading import salvaged_records
from warren.salvage.rocketmq.verify_store import verify_store
from warren.storage.faults import SimulatedCrash
from warren.storage.java_hash import java_hash
from warren.storage.memory import MemoryFileSystem
from warren.storage.overlay import OverlayFileSystem
from warren.storage.topic_settings import TopicSettings

Found = set[tuple[str, str, int | None]]
"""Kind, path below the store, offset."""


def findings(scenario: str, files: OverlayFileSystem, override: golden.Json | None = None) -> list[Finding]:
    try:
        found = list(verify_store(files, golden.directory(scenario), golden.settings(scenario, override)))
    finally:
        files.close()
    for finding in found:
        assert ("leftover" in finding.kind) == (finding.severity == "leftover"), finding
        assert finding.path.startswith(golden.directory(scenario)), finding
        assert finding.detail, finding
    return found


def told(scenario: str, found: list[Finding], severity: str | None = None) -> Found:
    start = len(golden.directory(scenario)) + 1
    return {(one.kind, one.path[start:], one.offset) for one in found if severity in (None, one.severity)}


# ── the golden stores ────────────────────────────────────────────────────────────────────────────────────────────────

AFTER_TORN: Found = {
    ("leftover torn record", "commitlog/00000000000000131072", 21479),
    ("leftover entry that points nowhere", "consumequeue/order-events/1/00000000000000000600", 140),
    ("leftover repeated item", "index/20261120210610508", 260),
}
"""What a torn record leaves when RocketMQ has recovered the store and closed it; it is never zeroed."""


@pytest.mark.parametrize("scenario", golden.SCENARIOS)
def test_a_sound_store_is_not_damaged(scenario: str) -> None:
    found = findings(scenario, golden.overlay(scenario))
    assert told(scenario, found, "damage") == set()
    if scenario == "crash-recovery":
        assert told(scenario, found) == AS_LEFT
    else:
        assert {one.kind for one in found} <= {"leftover position"}


@pytest.mark.parametrize(("scenario", "expected"), [("crash-recovery", AFTER_TORN), ("rebuild-minoffset", set())])
def test_a_store_that_rocketmq_recovered_is_not_damaged(scenario: str, expected: Found) -> None:
    place = golden.directory(scenario, "after")
    found = list(verify_store(golden.overlay(scenario, [], "after"), place, golden.settings(scenario)))
    assert {(one.kind, one.path[len(place) + 1 :], one.offset) for one in found} == expected


AS_LEFT: Found = {
    ("leftover abort file", "abort", None),
    ("leftover empty file", "commitlog/00000000000000163840", None),
    ("leftover index file", "index/20261120210543730", None),
}
LOG = "commitlog/00000000000000131072"
TORN: Found = {
    ("leftover torn record", LOG, 21479),
    ("leftover entry that points nowhere", "consumequeue/order-events/1/00000000000000000600", 140),
    ("leftover item that points nowhere", "index/20261120210543730", 1200),
}
CUT: Found = {("leftover messages behind the end", LOG, 10264)}
INDEX_FILES = [
    "20261120210541982",
    "20261120210542300",
    "20261120210542689",
    "20261120210542955",
    "20261120210543220",
    "20261120210543421",
    "20261120210543730",
]
ALL_INDEX: Found = {("leftover index file", f"index/{name}", None) for name in INDEX_FILES}
NO_ABORT: Found = {("leftover empty file", "commitlog/00000000000000163840", None)}

VARIANTS: dict[str, Found] = {
    "as-left": AS_LEFT,
    "torn-zero-tail": AS_LEFT | TORN,
    "torn-zero-tail-clean-exit": NO_ABORT
    | {
        ("torn record", LOG, 21479),
        ("entry that points nowhere", "consumequeue/order-events/1/00000000000000000600", 140),
        ("item that points nowhere", "index/20261120210543730", 1200),
    },
    "torn-garbage": AS_LEFT | TORN,
    "crc-mid-last-file": AS_LEFT | CUT | {("wrong checksum", LOG, 10264)},
    "crc-mid-last-file-clean-exit": NO_ABORT | {("wrong checksum", LOG, 10264)},
    "crc-mid-last-file-nocheck": AS_LEFT | {("wrong checksum", LOG, 10264)},
    "magic-first-of-last-file": AS_LEFT
    | {
        ("damaged record", LOG, 0),
        ("leftover messages behind the end", LOG, 0),
        ("leftover entry that points nowhere", "consumequeue/%RETRY%groupA/1/00000000000000000300", 220),
        ("leftover item that points nowhere", "index/20261120210543421", 1300),
    },
    "magic-last-record": AS_LEFT | TORN,
    "totalsize-plus-one": AS_LEFT | TORN,
    "totalsize-plus-one-mid": AS_LEFT
    | CUT
    | {
        ("damaged record", LOG, 10264),
        ("leftover entry that points nowhere", "consumequeue/order-events/0/00000000000000000300", 200),
        ("leftover item that points nowhere", "index/20261120210543421", 2360),
    },
    "totalsize-negative": AS_LEFT | TORN,
    "totalsize-intmax": AS_LEFT | TORN,
    "physical-offset-wrong": AS_LEFT | {("wrong physical offset", LOG, 21479)},
    "crc-second-file-clean-exit": NO_ABORT | {("wrong checksum", "commitlog/00000000000000032768", 1746)},
    "crc-second-file-abort": AS_LEFT
    | {
        ("wrong checksum", "commitlog/00000000000000032768", 1746),
        ("leftover messages behind the end", "commitlog/00000000000000032768", 1746),
    },
    "checkpoint-missing": AS_LEFT | ALL_INDEX | {("missing checkpoint", "checkpoint", None)},
    "checkpoint-future": {
        *AS_LEFT - ALL_INDEX,
        *{("checkpoint beyond the last message", "checkpoint", offset) for offset in (0, 8, 16)},
    },
    "index-safe": AS_LEFT,
    "checkpoint-index-zero": AS_LEFT | ALL_INDEX,
    "checkpoint-index-zero-safe": AS_LEFT | ALL_INDEX,
    "checkpoint-3s-rule": AS_LEFT | ALL_INDEX,
    "checkpoint-3s-rule-minus-one": AS_LEFT | ALL_INDEX,
    "commitlog-short-file": AS_LEFT | {("wrong file length", "commitlog/00000000000000163840", None)},
    "preallocated-next-file": AS_LEFT,
    "empty-checkpointed-torn-second-last": AS_LEFT
    | {
        ("damaged record", "commitlog/00000000000000098304", 30784),
        ("leftover messages behind the end", "commitlog/00000000000000098304", 30784),
        ("leftover entry that points nowhere", "consumequeue/TopicTest/1/00000000000000000300", 220),
        ("leftover item that points nowhere", "index/20261120210543421", 1200),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_what_was_done_to_a_crashed_store_is_found(name: str) -> None:
    scenario = "crash-recovery"
    (variant,) = [variant for variant in golden.manifest(scenario)["variants"] if variant["name"] == name]
    found = findings(scenario, golden.overlay(scenario, variant["patch"]), variant["configOverride"])
    assert told(scenario, found) == VARIANTS[name]


def variant_findings(scenario: str, name: str) -> list[Finding]:
    (variant,) = [variant for variant in golden.manifest(scenario)["variants"] if variant["name"] == name]
    return findings(scenario, golden.overlay(scenario, variant["patch"]), variant["configOverride"])


def test_where_recovery_will_begin_and_which_keys_it_loses_is_said() -> None:
    for name, start, lost in (("checkpoint-3s-rule", 131072, 6), ("checkpoint-3s-rule-minus-one", 98304, 4)):
        found = variant_findings("crash-recovery", name)
        (abort,) = [one for one in found if one.kind == "leftover abort file"]
        assert abort.detail.endswith(f"reads the CommitLog from {start} on")
        assert sum("are lost" in one.detail for one in found if one.kind == "leftover index file") == lost


@pytest.mark.slow
def test_every_variant_gives_a_finding() -> None:
    for scenario in golden.SCENARIOS:
        for name, part, patch, override, mode, _ in golden.answers(scenario):
            if part == "store" and mode == "load" and name != "store":
                assert findings(scenario, golden.overlay(scenario, patch), override), name


def test_lost_queues_are_told_by_what_becomes_of_them() -> None:
    fates = {one.detail.partition(": ")[2] for one in variant_findings("crash-recovery", "consumequeue-missing")}
    assert any(fate.startswith("RocketMQ's recovery rebuilds it") for fate in fates)
    assert any(fate.startswith("RocketMQ does not rebuild it") for fate in fates)
    rebuilt = [
        one
        for one in variant_findings("rebuild-minoffset", "rebuild-all-load-only")
        if one.kind == "message without entry"
    ]
    assert len(rebuilt) == 9  # queues
    assert all("RocketMQ builds it when it starts" in one.detail for one in rebuilt)


def test_a_commit_log_that_is_gone_is_damage() -> None:
    found = variant_findings("crash-recovery", "commitlog-gone")
    assert told("crash-recovery", found, "damage") == {("missing CommitLog", "commitlog", None)}


def test_what_expired_is_left_over() -> None:
    found = variant_findings("rebuild-minoffset", "expired-only")
    assert {(one.kind, one.severity) for one in found} == {
        ("leftover expired entry", "leftover"),
        ("leftover expired item", "leftover"),
    }


# ── things done to sound stores ──────────────────────────────────────────────────────────────────────────────────────

Spoil = Callable[[OverlayFileSystem, str], object]

QUEUE = "consumequeue/TopicTest/0/00000000000000000000"
"""Twenty entries, of 46; the first is at 0, 127 bytes."""
ITEMS = "index/20261121050457601"
"""Seven slots and 39 items, the chains of the first: 2 → 1, 4 → 3, 6 → 5, 7 → 4, 8 → 2."""
LAST_ITEMS = "index/20261121050458839"


def write(path: str, offset: int, data: bytes) -> Spoil:
    return lambda files, place: files.open_append(f"{place}/{path}").pwrite(data, offset)


def long(path: str, offset: int, number: int) -> Spoil:
    return write(path, offset, struct.pack(">q", number))


def integer(path: str, offset: int, number: int) -> Spoil:
    return write(path, offset, struct.pack(">i", number))


def truncate(path: str, size: int) -> Spoil:
    return lambda files, place: files.open_append(f"{place}/{path}").truncate(size)


def delete(path: str) -> Spoil:
    return lambda files, place: files.delete(f"{place}/{path}")


def rename(path: str, other: str) -> Spoil:
    return lambda files, place: files.rename(f"{place}/{path}", f"{place}/{other}")


def item(number: int) -> int:
    return 40 + 7 * 4 + 20 * number


UNDER_ANOTHER_NAME: Found = {
    ("wrong entry", "consumequeue/order-events/1/00000000000000000600", 140),
    ("leftover message without entry", LOG, 21479),
    ("leftover gap in the index", LOG, 21479),
    ("leftover wrong key hash", "index/20261120210543730", 1200),
}
"""The last message of a store that crashed: its entry was written for it."""
SPOILT: dict[str, tuple[str, list[Spoil], Found]] = {
    "an entry that points between messages": (
        "index-rollover-collide",
        [long(QUEUE, 20, 100)],
        {("entry that points nowhere", QUEUE, 20), ("message without entry", "commitlog/00000000000000000000", 127)},
    ),
    "an entry that points behind the end": (
        "index-rollover-collide",
        [long(QUEUE, 20, 1 << 40)],
        {("entry that points nowhere", QUEUE, 20), ("message without entry", "commitlog/00000000000000000000", 127)},
    ),
    "an entry that points at another queue's message": (
        "index-rollover-collide",
        [long(QUEUE, 20, 5770)],
        {("wrong entry", QUEUE, 20), ("message without entry", "commitlog/00000000000000000000", 127)},
    ),
    "a message under another topic's name": (
        "crash-recovery",
        [write(LOG, 22324, b"other")],
        UNDER_ANOTHER_NAME,
    ),
    "a message under a name that no topic has": (
        "crash-recovery",
        [write(LOG, 22324, b"ord\xf3\0")],
        UNDER_ANOTHER_NAME | {("impossible topic", LOG, 21479)},
    ),
    "an entry with another size": ("index-rollover-collide", [integer(QUEUE, 28, 131)], {("wrong size", QUEUE, 20)}),
    "an entry with another tags code": (
        "index-rollover-collide",
        [long(QUEUE, 32, 5)],
        {("wrong tags code", QUEUE, 20)},
    ),
    "an entry of zeros": (
        "index-rollover-collide",
        [write(QUEUE, 40, bytes(20))],
        {("invalid entry", QUEUE, 40), ("message without entry", "commitlog/00000000000000000000", 257)},
    ),
    "filler between entries": (
        "index-rollover-collide",
        [write(QUEUE, 40, struct.pack(">qiq", 0, 0x7FFFFFFF, 0))],
        {("misplaced filler", QUEUE, 40), ("message without entry", "commitlog/00000000000000000000", 257)},
    ),
    "rubbish behind a queue's end": (
        "index-rollover-collide",
        [write("consumequeue/TopicTest/1/00000000000000000000", 301, b"\1")],
        {("leftover bytes", "consumequeue/TopicTest/1/00000000000000000000", 300)},
    ),
    "a queue's file too short": (
        "index-rollover-collide",
        [truncate(QUEUE, 385)],
        {("wrong file length", QUEUE, None), ("message without entry", "commitlog/00000000000000000000", 33889)},
    ),
    "a queue's file gone from the middle": (
        "index-rollover-collide",
        [delete("consumequeue/TopicTest/0/00000000000000000400")],
        {
            ("missing file", "consumequeue/TopicTest/0/00000000000000000800", None),
            ("message without entry", "commitlog/00000000000000000000", 45120),
        },
    ),
    "a queue's file under a wrong name": (
        "index-rollover-collide",
        [rename("consumequeue/TopicTest/1/00000000000000000000", "consumequeue/TopicTest/1/00000000000000000400")],
        {
            ("message without entry", "commitlog/00000000000000000000", 4242),
            ("wrong entry", "consumequeue/TopicTest/1/00000000000000000400", 0),
        },
    ),
    "files that overlap": (
        "index-rollover-collide",
        [write("consumequeue/TopicTest/1/00000000000000000390", 0, bytes(400))],
        {
            ("overlapping files", "consumequeue/TopicTest/1/00000000000000000390", None),
            ("wrong file name", "consumequeue/TopicTest/1/00000000000000000390", None),
        },
    ),
    "names that are none": (
        "index-rollover-collide",
        [
            write("commitlog/notes.txt", 0, b"x"),
            write("consumequeue/TopicTest/x/00000000000000000000", 0, b"x"),
            write("consumequeue/notes.txt", 0, b"x"),
            write("index/notes.txt", 0, b"x"),
        ],
        {
            ("misplaced file", "commitlog/notes.txt", None),
            ("misplaced file", "consumequeue/TopicTest/x", None),
            ("misplaced file", "consumequeue/notes.txt", None),
            ("leftover file", "index/notes.txt", None),
        },
    ),
    "an item that names itself": (
        "index-rollover-collide",
        [integer(ITEMS, item(4) + 16, 4)],
        {("loop in a chain", ITEMS, item(4))},
    ),
    "an item that names a later one": (
        "index-rollover-collide",
        [integer(ITEMS, item(3) + 16, 7)],
        {("loop in a chain", ITEMS, item(3))},
    ),
    "an item that names one of another slot": (
        "index-rollover-collide",
        [integer(ITEMS, item(4) + 16, 2)],
        {("wrong chain", ITEMS, item(4))},
    ),
    "an item that leaves one out": (
        "index-rollover-collide",
        [integer(ITEMS, item(7) + 16, 3)],
        {("broken chain", ITEMS, item(7))},
    ),
    "an item with another key's hash": (
        "index-rollover-collide",
        [integer(ITEMS, item(5), 2147483647 - 7)],
        {("wrong key hash", ITEMS, item(5)), ("keys without item", "commitlog/00000000000000000000", 513)},
    ),
    "an item that points nowhere": (
        "index-rollover-collide",
        [long(ITEMS, item(5) + 4, 514)],
        {("item that points nowhere", ITEMS, item(5)), ("keys without item", "commitlog/00000000000000000000", 513)},
    ),
    "an item with another time": (
        "index-rollover-collide",
        [integer(ITEMS, item(5) + 12, 9)],
        {("wrong time", ITEMS, item(5))},
    ),
    "a slot that names another item": (
        "index-rollover-collide",
        [integer(ITEMS, 40 + 4 * 3, 7)],
        {("wrong slot", ITEMS, 52)},
    ),
    "a header that counts another number of slots": (
        "index-rollover-collide",
        [integer(ITEMS, 32, 6)],
        {("wrong index header", ITEMS, 32)},
    ),
    "a header that counts too many items": (
        "index-rollover-collide",
        [integer(ITEMS, 36, 41)],
        {("wrong index header", ITEMS, 36)},
    ),
    "a header that ends elsewhere": (
        "index-rollover-collide",
        [long(LAST_ITEMS, 24, 80474), delete("index/20261121050458935")],
        {("wrong index header", LAST_ITEMS, 0)},
    ),
    "an index file that lost its end": (
        "index-rollover-collide",
        [truncate(ITEMS, item(38))],
        {
            ("wrong file length", ITEMS, None),
            ("wrong slot", ITEMS, 40),
            ("leftover gap in the index", "commitlog/00000000000000000000", 5557),
        },
    ),
    "an index file that is gone": (
        "index-rollover-collide",
        [delete("index/20261121050457885")],
        {("leftover gap in the index", "commitlog/00000000000000000000", 5557)},
    ),
    "a CommitLog file without its blank record": (
        "basic-clean",
        [write("commitlog/00000000000000000000", 65528, bytes(8))],
        {("missing blank record", "commitlog/00000000000000000000", 65528)},
    ),
    "a blank record of another size": (
        "basic-clean",
        [integer("commitlog/00000000000000131072", 65399, 136)],
        {("wrong blank record", "commitlog/00000000000000131072", 65399)},
    ),
    "rubbish behind the last message": (
        "index-rollover-collide",
        [write("commitlog/00000000000000000000", 200_000, b"rubbish")],
        {("leftover bytes", "commitlog/00000000000000000000", 80706)},
    ),
    "a checkpoint cut off": (
        "index-rollover-collide",
        [truncate("checkpoint", 20)],
        {("wrong file length", "checkpoint", None)},
    ),
    "a checkpoint before all time": (
        "index-rollover-collide",
        [long("checkpoint", 16, -1)],
        {("wrong checkpoint", "checkpoint", 16)},
    ),
    "positions that cannot be read": (
        "index-rollover-collide",
        [write("config/consumerOffset.json", 0, b'{"offsetTable":{"T@g":{0:'), truncate("config/delayOffset.json", 9)],
        {
            ("unreadable positions", "config/consumerOffset.json", None),
            ("unreadable positions", "config/delayOffset.json", None),
        },
    ),
    "positions beyond the queue": (
        "index-rollover-collide",
        [
            write("config/consumerOffset.json", 0, b'{"offsetTable":{"TopicTest@g":{0:46,1:13,2:-1}}}'),
            write("config/delayOffset.json", 0, b'{"offsetTable":{3:0,4:2}}'),
        ],
        {
            ("negative position", "config/consumerOffset.json", None),
            ("leftover position", "config/consumerOffset.json", None),
            ("leftover position", "config/delayOffset.json", None),
        },
    ),
}
"""Situation → scenario, what is done to its store, what is found."""


@pytest.mark.slow
@pytest.mark.parametrize("situation", SPOILT)
def test_what_is_done_to_a_sound_store_is_found(situation: str) -> None:
    scenario, spoils, expected = SPOILT[situation]
    files = golden.overlay(scenario)
    for spoil in spoils:
        spoil(files, golden.directory(scenario))
    there = told(scenario, findings(scenario, golden.overlay(scenario)))
    assert told(scenario, findings(scenario, files)) == expected | there


def test_messages_of_a_missing_commit_log_file_are_damage_wherever_they_are_known() -> None:
    scenario = "rebuild-minoffset"
    files = golden.overlay(scenario)
    delete("commitlog/00000000000000065536")(files, golden.directory(scenario))
    found = findings(scenario, files)
    kinds = {(one.kind, one.path.rpartition("store/")[2].partition("/")[0]) for one in found}
    assert kinds == {
        ("missing file", "commitlog"),
        ("entry that points nowhere", "consumequeue"),
        ("item that points nowhere", "index"),
    }
    assert len([one for one in found if one.path.rpartition("store/")[2].startswith("consumequeue")]) == 9


def test_messages_of_a_file_that_stands_behind_the_logs_end_are_found() -> None:
    scenario, last = "crash-recovery", "commitlog/00000000000000131072"
    files = golden.overlay(scenario)
    behind, other = "commitlog/00000000000000163840", "commitlog/other"
    for old, new in ((last, other), (behind, last), (other, behind)):  # the one that was made ahead of need
        rename(old, new)(files, golden.directory(scenario))
    found = findings(scenario, files)
    assert ("missing blank record", last, 0) in told(scenario, found, "damage")
    (misplaced,) = (one for one in found if one.kind == "leftover wrong physical offset" and one.path.endswith(behind))
    count = sum(1 for one in golden.records(scenario) if one["physicalOffset"] >= 131072)
    assert misplaced.detail == f"the record lies at 163840, and says 131072; {count} in a row, this is the first"


def test_messages_behind_a_wrong_blank_record_are_found() -> None:
    scenario, path = "rebuild-minoffset", "commitlog/00000000000000131072"
    record = next(one for one in golden.records(scenario) if 140_000 < one["physicalOffset"] < 150_000)
    at = record["physicalOffset"] - 131072
    files = golden.overlay(scenario)
    write(path, at, struct.pack(">II", 100, 0xCBD43194))(files, golden.directory(scenario))
    found = told(scenario, findings(scenario, files))
    assert {kind for kind, _, _ in found} == {
        "wrong blank record",
        "entry that points nowhere",
        "item that points nowhere",
    }
    assert ("wrong blank record", path, at) in found


def test_a_scheduled_message_that_recovery_gave_the_code_of_its_tags_is_sound() -> None:
    scenario, queue = "ipv6-txn-batch-edge", "consumequeue/SCHEDULE_TOPIC_XXXX/17/00000000000000000000"
    (due,) = [one for one in golden.manifest(scenario)["store"]["consumeQueues"] if one["queueId"] == 17]
    (record,) = [one for one in golden.records(scenario) if one.get("physicalOffset") == due["entries"][0][0]]
    code = java_hash(record["tags"] or "")
    for number, expected in ((code, set()), (code + 1, {("wrong tags code", queue, 0)})):
        files = golden.overlay(scenario)
        long(queue, 12, number)(files, golden.directory(scenario))
        assert told(scenario, findings(scenario, files)) == expected


def test_an_extension_address_in_place_of_a_tags_code_is_no_damage() -> None:
    scenario = "basic-clean"
    (queue, *_) = [one for one in golden.manifest(scenario)["store"]["consumeQueues"] if len(one["entries"]) > 1]
    path = f"consumequeue/{queue['topic']}/{queue['queueId']}/00000000000000000000"
    sound = told(scenario, findings(scenario, golden.overlay(scenario)))
    for code, expected in ((32 - (1 << 63), set()), (-(1 << 31), {("wrong tags code", path, 20)})):
        files = golden.overlay(scenario)
        long(path, 32, code)(files, golden.directory(scenario))
        assert told(scenario, findings(scenario, files)) - sound == expected


def test_far_away_names_cost_no_time() -> None:
    scenario = "index-rollover-collide"
    files = golden.overlay(scenario)
    place = golden.directory(scenario)
    truncate("consumequeue/TopicTest/1/09223372036854000000", 400)(files, place)
    write("consumequeue/TopicTest/1/09223372036854000000", 20, struct.pack(">qiq", 5, 5, 5))(files, place)
    truncate("commitlog/09223372036854251520", 262144)(files, place)
    started = time.process_time()
    kinds = {one.kind for one in findings(scenario, files)}
    assert kinds == {"missing file", "leftover empty file", "invalid entry", "entry that points nowhere"}
    assert time.process_time() - started < 5


# ── any damage ───────────────────────────────────────────────────────────────────────────────────────────────────────


def spoil_anything(files: OverlayFileSystem, place: str, rng: random.Random) -> str:
    """Damage at random places; says what was done."""
    done = []
    paths = sorted(path for path in listed(files, place) if files.size(path))
    for _ in range(rng.choice([1, 1, 2, 5])):
        path = rng.choice(paths)
        size, length = files.size(path), rng.choice([1, 2, 4, 8, 20, 600])
        at = rng.randrange(min(size, 100_000))
        handle = files.open_append(path)
        if rng.random() < 0.1:
            handle.truncate(at)
        elif rng.random() < 0.3:
            handle.pwrite(bytes([handle.pread(1, at)[0] ^ 1 << rng.randrange(8)]), at)
        else:
            data = rng.choice([rng.randbytes(length), bytes(length), b"\xff" * length, b"\x7f" + b"\xff" * length])
            handle.pwrite(data[: size - at], at)
        done.append(f"{path} at {at}")
    return ", ".join(done)


def listed(files: OverlayFileSystem, place: str) -> list[str]:
    found = []
    for name in files.list(place):
        path = f"{place}/{name}"
        found += listed(files, path) if files.is_directory(path) else [path]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [name for name in golden.SCENARIOS if name != "default-index"])
def test_any_damage_ends_in_findings(scenario: str) -> None:
    for seed in range(25):
        rng = random.Random(f"{scenario} {seed}")
        files = golden.overlay(scenario)
        done = spoil_anything(files, golden.directory(scenario), rng)
        started = time.process_time()
        try:
            assert len(findings(scenario, files)) < 1000
        except Exception as error:
            error.add_note(f"{scenario}, seed {seed}: {done}")
            raise
        assert time.process_time() - started < 5, f"seed {seed}: {done}"


# ── warren's own stores ──────────────────────────────────────────────────────────────────────────────────────────────

OWN = TopicSettings(
    mapped_file_size_commit_log=1 << 14, mapped_file_size_consume_queue=400, max_hash_slot_num=7, max_index_num=40
)


def used_store(files: MemoryFileSystem, rng: random.Random, rounds: int) -> TopicStore:
    """A store that is opened, written to and flushed now and then; a crash that was planned comes out."""
    names = (f"2099{number:013d}" for number in itertools.count())
    store = load_store(files, "/store", OWN, new_index_name=lambda: next(names))
    store.start()
    for number in range(rounds):
        bodies = [rng.randbytes(rng.choice([0, 10, 300])) for _ in range(rng.choice([1, 1, 7]))]
        keys = f"KEYS\x01k{number} k{number % 3}\x02TAGS\x01t".encode()
        prepared = PREPARED if rng.random() < 0.1 else 0
        added = batch("orders", *bodies, queue_id=rng.randrange(3), properties=keys, sys_flag=prepared)
        store.append(added, 1_700_000_000_000 + 700 * number)
        if rng.random() < 0.7:
            store.dispatch()
        if rng.random() < 0.3:
            store.flush_commit_log()
            store.flush_queues()
    return store


def own_damage(files: MemoryFileSystem) -> list[Finding]:
    return [one for one in verify_store(files, "/store", OWN) if one.severity == "damage"]


def test_a_store_that_was_closed_has_no_findings() -> None:
    files = MemoryFileSystem()
    used_store(files, random.Random(1), 60).close()
    assert list(verify_store(files, "/store", OWN)) == []


def crashed(files: MemoryFileSystem, rng: random.Random, rounds: int) -> None:
    """Use a store until the process dies, at a moment and in a write of the generator's choice."""
    files.crash_at(rng.randrange(1, 20 + 8 * rounds), torn=rng.random() < 0.5)
    with contextlib.suppress(SimulatedCrash):
        used_store(files, rng, rounds)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_no_crash_of_the_process_is_damage(seed: int) -> None:
    rng = random.Random(seed)
    files = MemoryFileSystem()
    for _ in range(3):
        crashed(files, rng, rng.randrange(60))
        files = files.after_process_crash()
        assert own_damage(files) == [], f"seed {seed}"


@pytest.mark.parametrize("seed", range(25))
def test_no_power_loss_is_damage_but_of_what_it_tore_out_of_the_middle(seed: int) -> None:
    rng = random.Random(seed)
    files = MemoryFileSystem()
    crashed(files, rng, rng.randrange(60))
    lost = {"damaged record", "wrong checksum", "missing blank record", "invalid entry"}
    assert {one.kind for one in own_damage(files.after_power_loss(rng))} <= lost, f"seed {seed}"


BATCH_DAMAGE = {
    "magic": (4, b"\xda\xa3\x20\xac"),
    "size": (0, b"\0\0\0\7"),
    "body": (header_bytes(0), b"??"),
    "zeros": (0, bytes(60)),
}
"""Where in a record, and what is there then."""


def closed_batch(damage: str, row: int) -> MemoryFileSystem:
    """A store that was closed after one batch of 40, in which one record was damaged then."""
    files = MemoryFileSystem()
    store = load_store(files, "/store", OWN, new_index_name=lambda: "2" * 17)
    store.start()
    bodies = [b"m%03d" % number for number in range(40)]
    appended = store.append(attrs.evolve(batch("orders", *bodies), born_host=HERE), 1_700_000_000_000)
    store.close()
    inside, data = BATCH_DAMAGE[damage]
    files.open_append(f"/store/commitlog/{0:020d}").pwrite(data, int(appended.physical_offsets[row]) + inside)
    return files


@pytest.mark.parametrize("row", [0, 5, 39])
@pytest.mark.parametrize("damage", BATCH_DAMAGE)
def test_one_damaged_record_of_a_batch_is_damage_and_the_others_are_found(damage: str, row: int) -> None:
    files = closed_batch(damage, row)
    assert own_damage(files) != []
    items = list(salvaged_records(ReadOnlyFileSystem(files), "/store", OWN))
    assert any(item.severity == "damage" for item in items if isinstance(item, Finding))
    bodies = {item.body for item in items if isinstance(item, Record)}
    assert {b"m%03d" % number for number in range(40) if number != row} <= bodies


def test_what_rocketmq_cut_off_before_a_clean_stop_is_left_over() -> None:
    files = MemoryFileSystem()
    store = load_store(files, "/store", OWN, new_index_name=lambda: "2" * 17)
    store.start()
    for number in range(20):
        store.append(batch("orders", b"m%d" % number), 1_700_000_000_000 + number)
    store.dispatch()
    first_bad = int(store.queues["orders", 2].entries(10, 1)["physical_offset"][0])
    store.abandon()
    files.open_append(f"/store/commitlog/{0:020d}").pwrite(b"?", first_bad + 4)
    settings = attrs.evolve(OWN, rebuild_after_crash=False)
    store = load_store(files, "/store", settings, new_index_name=lambda: "3" * 17)
    store.start()
    assert store.commit_log.end == first_bad
    store.close()
    assert own_damage(files) == []


def test_a_write_that_was_torn_is_left_over() -> None:
    files = MemoryFileSystem()
    store = used_store(files, random.Random(2), 30)
    end = store.commit_log.end
    store.append(batch("orders", b"x" * 100), 1_800_000_000_000)
    path = store.commit_log.mapped.path(end - end % (1 << 14))
    files.open_append(path).pwrite(bytes(50), end % (1 << 14) + 120)
    found = [one for one in verify_store(files, "/store", OWN) if one.kind == "leftover torn record"]
    assert [one.offset for one in found] == [end % (1 << 14)]
    assert own_damage(files) == []


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_command_reads_archives_and_directories() -> None:
    report = json.loads(warren("verify", golden.directory("crash-recovery"), "--json").stdout)
    assert (report["kind"], report["damage"], report["leftover"]) == ("rocketmq-store", 0, len(AS_LEFT))
    assert {one["kind"] for one in report["findings"]} == {kind for kind, _, _ in AS_LEFT}
    result = warren("verify", golden.GOLDEN / "index-rollover-collide.tar.gz")
    assert (result.exit_code, result.stdout.splitlines()) == (0, ["No damage."])


def test_damage_is_the_exit_code(tmp_path: Path) -> None:
    with tarfile.open(golden.GOLDEN / "index-rollover-collide.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    path = tmp_path / "store" / "commitlog" / "00000000000000000000"
    path.write_bytes(path.read_bytes()[:100].ljust(262144, b"\0"))
    result = warren("verify", tmp_path, "--set", "maxIndexNum=40")
    assert result.exit_code == 1
    assert "torn record" in result.stdout
