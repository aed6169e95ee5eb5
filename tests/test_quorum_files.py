"""A quorum queue's log as its files have it: what a real broker left, what damage and crashes leave, and a model.

The rules that count: a wrong entry is never given; what is missing or damaged is reported; sound files give no report.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.disk_fault_tools import RefusingFileSystem
from tests.support.effort import times
from tests.support.quorum_tools import OPENING, QuorumNode, Record, config_text, wal_bytes
from tests.support.rabbitmq_golden import QUORUM, archives, name_of
from warren.salvage.quorum.quorum_node import read_uids
from warren.salvage.quorum.ra.config import parse_config, read_config
from warren.salvage.quorum.ra.entry_runs import BadEntry, Hole, LogEntry
from warren.salvage.quorum.ra.file_names import NAMES_FILE
from warren.salvage.quorum.ra.log import QuorumLog
from warren.salvage.quorum.ra.segment_format import SEGMENT_HEADER
from warren.salvage.quorum.ra.snapshot_format import encode_indexes, parse_indexes
from warren.salvage.quorum.ra.wal_columns import WalEntries
from warren.salvage.quorum.ra.wal_format import WAL_HEADER, encode_record
from warren.salvage.quorum.ra.wal_index import WalIndex
from warren.storage.erlang_terms import Atom, encode
from warren.storage.errors import DataError, StorageError
from warren.storage.filesystem import File
from warren.storage.memory import MemoryFileSystem

Json = dict[str, Any]

A, B, C = b"AAAA", b"BBBB", b"CCCC"


@cache
def unpacked(archive: Path) -> MemoryFileSystem:
    """The ``quorum`` folder of an archive, below ``/``."""
    files = MemoryFileSystem()
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and "/quorum/" in member.name:
                content = tar.extractfile(member)
                assert content is not None
                path = "/" + member.name.partition("/quorum/")[2]
                files.make_directories(path.rpartition("/")[0])
                files.open_append(path).append(content.read())
    return files


@pytest.fixture(params=archives(QUORUM), ids=name_of)
def archive(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


def test_a_nodes_names_are_its_queues_directories(archive: Path) -> None:
    """Also for a killed node whose queues were declared a while before."""
    files = unpacked(archive)
    for node in files.list("/"):
        path = f"/{node}/{NAMES_FILE}"
        directories = {name.encode() for name in files.list(f"/{node}") if files.is_directory(f"/{node}/{name}")}
        assert read_uids(files.read(path), path) == directories


def nodes_of(archive: Path) -> list[tuple[QuorumNode, Json]]:
    """Each node, and what the broker's own modules read of it."""
    manifest = json.loads(archive.with_name(archive.name.replace(".tar.gz", ".json")).read_text())
    view = manifest["broker_view"]["quorum"]
    assert view
    return [(QuorumNode(unpacked(archive), f"/{node['node']}"), node) for node in view]


def test_write_ahead_logs_hold_what_the_broker_reads(archive: Path) -> None:
    for node, view in nodes_of(archive):
        index = node.scan()
        assert index.problems == []
        assert {path.rpartition("/")[2]: count for path, count in index.counts.items()} == {
            wal["file"]: wal["records"] for wal in view["wal"]
        }
        for wal in view["wal"]:
            places: list[tuple[int, int, int]] = []
            for run in (run for uid in index.uids for run in index.of(uid).runs if run.path.endswith(wal["file"])):
                places += [(offset, number, run.term) for number, offset in enumerate(run.offsets.tolist(), run.first)]
            text = "".join(f"{number},{term};" for _, number, term in sorted(places))
            assert hashlib.sha256(text.encode()).hexdigest() == wal["digest"]


def test_segments_hold_what_the_broker_reads(archive: Path) -> None:
    for node, view in nodes_of(archive):
        for queue in view["queues"]:
            log = node.log(queue["uid"].encode())
            assert [
                (info.path.rpartition("/")[2], info.entries, info.first_index, info.last_index) for info in log.segments
            ] == [
                (segment["file"], segment["entries"], segment["first"], segment["last"])
                for segment in queue["segments"]
            ]
            assert list(log.problems()) == []


def test_snapshots_hold_what_the_broker_reads(archive: Path) -> None:
    for node, view in nodes_of(archive):
        for queue in view["queues"]:
            snapshot = node.log(queue["uid"].encode()).snapshot
            newest = max(queue["snapshots"], key=lambda snapshot: snapshot["index"], default=None)
            if newest is None:
                assert snapshot is None
                continue
            assert snapshot is not None
            assert (snapshot.index, snapshot.term) == (newest["index"], newest["term"])
            assert snapshot.machine_version == newest["machine_version"]
            state = snapshot.state()
            assert isinstance(state, tuple)
            assert (state[0], state[3]) == ("rabbit_fifo", newest["messages_total"])


def test_logs_are_whole(archive: Path) -> None:
    for node, view in nodes_of(archive):
        index = node.scan()
        for queue in view["queues"]:
            log = QuorumLog(node.files, f"{node.root}/{queue['uid']}", index.of(queue["uid"].encode()))
            found = list(log.entries())
            start = 0 if log.snapshot is None else log.snapshot.index + 1
            assert [entry.index for entry in found if isinstance(entry, LogEntry)] == list(
                range(start, (log.last_index or 0) + 1)
            )
            assert len(found) == (log.last_index or 0) + 1 - start
            assert [entry.term for entry in found] == sorted(entry.term for entry in found)  # type: ignore[union-attr]
            for entry in found[:: max(1, len(found) // 50)]:
                assert isinstance(entry, LogEntry)
                assert log.read(entry.index) == entry


def test_configs_say_whose_directory_it_is(archive: Path) -> None:
    for node, view in nodes_of(archive):
        for queue in view["queues"]:
            config = read_config(node.files, f"{node.root}/{queue['uid']}")
            assert config.uid == queue["uid"].encode()
            assert config.members == ((config.server_name, view["node"]),)
            assert config.settings["name"] == config.server_name
            vhost = "%2F" if config.vhost == b"/" else config.vhost.decode()
            assert config.server_name == f"{vhost}_{config.name.decode()}"


# Configs


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "the text ends"),
        (config_text(b"/", b"orders", A)[:-1], "full stop"),
        (b"[].", "a list in place of a map"),
        (b"#{}.", "no machine, but nothing"),
        (
            config_text(b"/", b"orders", A, machine="rabbit_stream_coordinator"),
            "the log of a rabbit_stream_coordinator",
        ),
        (config_text(b"/", b"orders", A, {"queue_resource": b"orders"}), "no queue's name, but b'orders'"),
        (config_text(b"/", b"orders", A).replace(b"id =>", b"is =>"), "no member's name"),
        (config_text(b"/", b"orders", A).replace(b"uid =>", b"uie =>"), "no uid"),
        (config_text(b"/", b"orders", A).replace(A, A[1:], 1), "two uids"),
        (config_text(b"/", b"orders", A).replace(b'"orders"', b'"ords"', 1), "two queues' names"),
    ],
    ids=range(10),
)
def test_no_config_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason) as caught:
        parse_config(text, "config")
    assert caught.value.path == "config"


def test_a_config_of_later_versions_is_read() -> None:
    text = config_text("żółw".encode(), b"a", A).replace(
        b"initial_members => [", b"initial_members => [#{id => {a,b}},"
    )
    config = parse_config(text, "config")
    assert (config.vhost, config.members[0]) == ("żółw".encode(), ("a", "b"))


# A log by hand


def entry_of(uid: bytes, index: int, term: int) -> bytes:
    return OPENING if not index else encode((Atom("$usr"), uid, index, term, b"x" * (index % 5 * 9)))


@attrs.define
class Log:
    """What a queue's log must be: a dict."""

    uid: bytes
    entries: dict[int, bytes] = attrs.field(factory=dict)

    def put(self, index: int, term: int, *, truncates: bool = False) -> Record:
        """Write an entry; what the log had from its index on is void."""
        for above in [above for above in self.entries if above >= index]:
            del self.entries[above]
        self.entries[index] = entry_of(self.uid, index, term)
        return Record(self.uid, index, term, self.entries[index], truncates)

    def put_all(self, first: int, last: int, term: int = 1) -> list[Record]:
        return [self.put(index, term) for index in range(first, last + 1)]


def written(records: list[Record]) -> list[tuple[int, int, bytes]]:
    return [(record.index, record.term, record.entry) for record in records]


def new_node() -> QuorumNode:
    return QuorumNode(MemoryFileSystem(), "/node")


def flip(node: QuorumNode, path: str, offset: int, bit: int = 0) -> None:
    data = bytearray(node.files.read(path))
    data[offset] ^= 1 << bit
    node.write(path.removeprefix(node.root + "/"), bytes(data))


def entries_in(log: QuorumLog) -> dict[int, bytes]:
    return {entry.index: entry.data for entry in log.entries() if isinstance(entry, LogEntry)}


def gaps_in(log: QuorumLog) -> list[Hole | BadEntry]:
    return [entry for entry in log.entries() if not isinstance(entry, LogEntry)]


def kinds_of(node: QuorumNode, uid: bytes) -> list[tuple[str, str]]:
    problems = [*node.scan().problems, *node.log(uid).problems()]
    return [(problem.kind, problem.severity) for problem in problems]


def test_ids_are_each_files_own() -> None:
    node, one, other = new_node(), Log(A), Log(B)
    node.wal(1, [*one.put_all(0, 3), *other.put_all(0, 3)])
    node.wal(2, [*other.put_all(4, 6), *one.put_all(4, 6)])
    assert entries_in(node.log(A)) == one.entries
    assert entries_in(node.log(B)) == other.entries
    assert node.scan().uids == (A, B)
    assert kinds_of(node, A) == []


def test_files_go_by_their_numbers() -> None:
    node, log = new_node(), Log(A)
    node.wal(9, log.put_all(0, 3))
    node.wal(10, log.put_all(4, 6))
    node.wal(11, log.put_all(7, 9), digits=16)
    assert list(entries_in(node.log(A))) == list(range(10))
    assert list(node.scan().counts.values()) == [4, 3, 3]


def test_an_unknown_queue_has_nothing() -> None:
    node = new_node()
    node.wal(1, Log(A).put_all(0, 3))
    node.queue(b"/", b"later", B)
    log = node.log(B)
    assert (list(log.entries()), log.first_index, log.last_index, log.last_term) == ([], None, None, None)
    assert kinds_of(node, B) == [("empty log", "leftover")]


def test_a_higher_term_overwrites_and_voids_what_is_above() -> None:
    node, log = new_node(), Log(A)
    records = [*log.put_all(0, 9), *log.put_all(5, 6, term=2)]
    node.wal(1, records)
    assert entries_in(node.log(A)) == log.entries
    assert list(log.entries) == list(range(7))
    assert node.log(A).last_term == 2
    assert kinds_of(node, A) == []


def test_entries_written_again_are_the_same() -> None:
    node, log = new_node(), Log(A)
    records = log.put_all(0, 9)
    node.wal(1, [*records, *records[4:], *log.put_all(10, 12)])
    assert entries_in(node.log(A)) == log.entries
    assert kinds_of(node, A) == []


def test_a_damaged_record_is_replaced_by_the_segments() -> None:
    node, log = new_node(), Log(A)
    records = log.put_all(0, 9)
    node.segment(A, 1, written(records))
    path = node.wal(1, records)
    flip(node, path, node.files.read(path).index(records[4].entry) + 3)
    assert entries_in(node.log(A)) == log.entries
    assert [problem.kind for problem in node.scan().problems] == ["unreadable record"]


def test_a_log_that_begins_anew_behind_a_snapshot() -> None:
    node, log = new_node(), Log(A)
    node.wal(1, [*log.put_all(0, 9), log.put(51, 1, truncates=True), *log.put_all(52, 55)])
    node.snapshot(A, 50, 1)
    assert list(entries_in(node.log(A))) == [51, 52, 53, 54, 55]
    assert kinds_of(node, A) == []


def test_a_torn_record_at_the_end_is_dropped() -> None:
    log = Log(A)
    records = log.put_all(0, 9)
    whole = wal_bytes(records)
    for size in range(len(wal_bytes(records[:9])) + 1, len(whole)):
        node = new_node()
        node.write("00000001.wal", whole[:size])
        assert list(entries_in(node.log(A))) == list(range(9))
        assert kinds_of(node, A) == [("torn record", "leftover")]


@pytest.mark.parametrize("zeros", [0, 5, 13, 100, 10_000])
def test_a_last_record_with_a_wrong_checksum_is_dropped(zeros: int) -> None:
    node, log = new_node(), Log(A)
    path = node.wal(1, log.put_all(0, 9), zeros=zeros)
    flip(node, path, node.files.size(path) - zeros - 1)
    assert list(entries_in(node.log(A))) == list(range(9))
    assert kinds_of(node, A) == [("torn record", "damage")]


@pytest.mark.parametrize("zeros", [5, 12, 13, 100, 10_000])
def test_zeros_end_a_file_that_was_made_larger(zeros: int) -> None:
    node, log = new_node(), Log(A)
    node.wal(1, log.put_all(0, 9), zeros=zeros)
    assert entries_in(node.log(A)) == log.entries
    assert kinds_of(node, A) == []


def test_a_damaged_record_in_the_middle_is_told_and_passed_over() -> None:
    node, log = new_node(), Log(A)
    path = node.wal(1, [*log.put_all(0, 9), *Log(B).put_all(0, 3)])
    flip(node, path, node.files.read(path).index(log.entries[4]) + 3)
    found = node.log(A)
    assert list(entries_in(found)) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    (bad,) = gaps_in(found)
    assert isinstance(bad, BadEntry)
    assert (bad.index, bad.term, bad.path) == (4, 1, path)
    assert len(entries_in(node.log(B))) == 4
    assert kinds_of(node, A) == [("unreadable record", "damage")]
    assert [problem.kind for problem in node.scan().of(A).problems] == []
    with pytest.raises(DataError, match="entry 4: its checksum"):
        found.read(4)


def test_a_damaged_length_costs_nothing() -> None:
    """The next record says how long it is, and the checksum proves it."""
    node, log = new_node(), Log(A)
    path = node.wal(1, log.put_all(0, 9))
    record = node.files.read(path).index(log.entries[4]) - 27
    flip(node, path, record + 9, bit=1)
    assert entries_in(node.log(A)) == log.entries
    assert kinds_of(node, A) == [("unreadable record", "damage")]


def test_zeros_in_the_middle_cost_what_they_cover() -> None:
    node, log = new_node(), Log(A)
    path = node.wal(1, log.put_all(0, 40))
    data = bytearray(node.files.read(path))
    start, end = data.index(log.entries[10]), data.index(log.entries[20])
    data[start:end] = bytes(end - start)
    node.write("00000001.wal", bytes(data))
    assert sorted(set(log.entries) - set(entries_in(node.log(A)))) == list(range(10, 21))
    assert ("unreadable record", "damage") in kinds_of(node, A)


def test_a_message_that_holds_records_is_not_taken_for_them() -> None:
    node, log = new_node(), Log(A)
    before = log.put_all(0, 4)
    inside = wal_bytes([Record(A, index, 1, b"old") for index in range(5)])
    carrier = Record(A, 5, 1, inside)
    after = [Record(A, index, 1, entry_of(A, index, 1)) for index in range(6, 9)]
    path = node.wal(1, [*before, carrier, *after])
    flip(node, path, node.files.read(path).index(inside) - 27 + 8, bit=6)  # its length
    found = entries_in(node.log(A))
    assert b"old" not in found.values()
    assert list(found) == [*range(9)]
    assert found[5] == inside  # the next record says where it ends


def test_a_damaged_record_that_names_its_queue_costs_no_other() -> None:
    node, log = new_node(), Log(A)
    path = node.wal(1, [*Log(B).put_all(0, 3), *log.put_all(10, 15)])
    flip(node, path, node.files.read(path).index(log.entries[10]) + 3)
    node.snapshot(A, 9, 1)
    assert list(entries_in(node.log(A))) == [11, 12, 13, 14, 15]


def test_a_record_of_another_queues_number_is_given_back() -> None:
    node, log, other = new_node(), Log(A), Log(B)
    other.put_all(0, 3)
    path = node.wal(1, [*log.put_all(0, 30), *other.put_all(0, 3), *log.put_all(31, 40), *other.put_all(4, 6)])
    flip(node, path, node.files.read(path).index(log.entries[35]) - 25)
    assert entries_in(node.log(B)) == other.entries
    assert entries_in(node.log(A)) == log.entries
    assert ("record out of order", "damage") in kinds_of(node, B)


def test_entries_that_lost_records_may_have_overwritten_are_not_given() -> None:
    node, log = new_node(), Log(A)
    path = node.wal(1, [*log.put_all(0, 9), *log.put_all(5, 8, term=2)])
    flip(node, path, node.files.read(path).index(entry_of(A, 5, 2)) + 3)
    assert list(entries_in(node.log(A))) == [0, 1, 2, 3, 4, 6, 7, 8]


@pytest.mark.parametrize("data", [b"", b"RA", b"\0\0\0\0\0"])
def test_a_write_ahead_log_without_a_header_is_damage(data: bytes) -> None:
    node = new_node()
    node.write("00000001.wal", data)
    index = node.scan()
    assert [(problem.kind, problem.severity) for problem in index.problems] == [("empty write-ahead log", "damage")]


def test_another_version_is_refused() -> None:
    node, log = new_node(), Log(A)
    path = node.wal(1, log.put_all(0, 9))
    flip(node, path, 4, bit=1)
    (problem,) = node.scan().problems
    assert (problem.kind, problem.offset, problem.detail) == ("unreadable file", 4, "version 3, not 1")


def test_a_damaged_magic_costs_nothing() -> None:
    node, log = new_node(), Log(A)
    path = node.wal(1, log.put_all(0, 9))
    node.segment(A, 1, written(log.put_all(10, 19)))
    flip(node, path, 1)
    flip(node, f"{node.root}/AAAA/00000001.segment", 1)
    assert entries_in(node.log(A)) == log.entries
    assert kinds_of(node, A) == [("unreadable file", "damage"), ("damaged table of records", "damage")]


def test_no_checksum_is_none_to_check() -> None:
    node, log = new_node(), Log(A)
    node.write("00000001.wal", wal_bytes(log.put_all(0, 9), checksums=False))
    assert entries_in(node.log(A)) == log.entries
    assert kinds_of(node, A) == []


def test_a_record_that_lost_its_checksum_is_not_believed() -> None:
    node, log = new_node(), Log(A)
    path = node.wal(1, log.put_all(0, 9))
    data = bytearray(node.files.read(path))
    at = data.index(log.entries[4])
    data[at - 24 : at - 20] = bytes(4)
    data[at + 3] ^= 1
    node.write("00000001.wal", bytes(data))
    assert list(entries_in(node.log(A))) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_entries_larger_than_a_window() -> None:
    node = new_node()
    large = bytes(range(256)) * (20 << 10)
    node.segment(A, 1, [(0, 0, OPENING), (1, 1, large), (2, 1, b"small")])
    path = node.wal(1, [Record(A, 3, 1, b"small"), Record(A, 4, 1, large), Record(A, 5, 1, b"small")])
    found = entries_in(node.log(A))
    assert [index for index, entry in found.items() if entry == large] == [1, 4]
    assert kinds_of(node, A) == []
    flip(node, path, 5_000_000)
    assert [gap.index for gap in gaps_in(node.log(A)) if isinstance(gap, BadEntry)] == [4]


# Segments


@pytest.mark.parametrize("version", [1, 2])
def test_both_versions_of_segments_are_read(version: int) -> None:
    node, log = new_node(), Log(A)
    node.segment(A, 1, written(log.put_all(0, 9)), version=version)
    assert entries_in(node.log(A)) == log.entries
    assert [log.entries[index] for index in (9, 0, 5)] == [node.log(A).read(index).data for index in (9, 0, 5)]
    assert kinds_of(node, A) == []


def test_a_segment_whose_index_goes_back_in_a_higher_term() -> None:
    node, log = new_node(), Log(A)
    node.segment(A, 1, written([*log.put_all(0, 9), *log.put_all(5, 6, term=2)]))
    node.segment(A, 2, written(log.put_all(4, 8, term=3)))
    assert entries_in(node.log(A)) == log.entries
    assert list(log.entries) == list(range(9))
    assert kinds_of(node, A) == []


@pytest.mark.parametrize("place", [0, 4, 9])
@pytest.mark.parametrize("bit", range(6))
def test_a_record_with_a_wrong_index_is_a_bad_entry(place: int, bit: int) -> None:
    node, log = new_node(), Log(A)
    path = node.segment(A, 2, written(log.put_all(20, 29)))
    node.segment(A, 1, written(Log(A).put_all(0, 19)), room=20)
    flip(node, path, SEGMENT_HEADER.size + place * 32 + 7, bit)
    found = node.log(A)
    assert {index: found.read(index).data for index in entries_in(found)}.items() <= (
        {index: entry_of(A, index, 1) for index in range(30)}.items()
    )
    assert [(gap.index, gap.reason) for gap in gaps_in(found) if isinstance(gap, BadEntry)] == [
        (20 + place, "its record is out of order")
    ]


def test_a_damaged_entry_of_a_segment() -> None:
    node, log = new_node(), Log(A)
    path = node.segment(A, 1, written(log.put_all(0, 9)))
    flip(node, path, node.files.read(path).index(log.entries[4]))
    (bad,) = gaps_in(node.log(A))
    assert isinstance(bad, BadEntry)
    assert (bad.index, bad.reason) == (4, "its checksum is wrong")
    assert kinds_of(node, A) == [("unreadable record", "damage")]
    with pytest.raises(DataError, match="entry 4: its checksum is wrong"):
        node.log(A).read(4)
    node.snapshot(A, 5, 1)
    assert kinds_of(node, A) == [("unreadable record", "leftover")]


def test_a_segment_that_is_cut_short() -> None:
    node, log = new_node(), Log(A)
    path = node.segment(A, 1, written(log.put_all(0, 9)))
    data = node.files.read(path)
    node.write("AAAA/00000001.segment", data[: data.index(log.entries[7]) + 2])
    assert [gap.reason for gap in gaps_in(node.log(A)) if isinstance(gap, BadEntry)] == [
        "the file ends before it does"
    ] * 3


def test_a_segment_that_begins_with_an_election() -> None:
    node, log = new_node(), Log(A)
    node.segment(A, 1, written(log.put_all(0, 15)))
    node.segment(A, 2, written([*log.put_all(16, 16), *log.put_all(16, 17, term=2), *log.put_all(12, 14, term=3)]))
    assert entries_in(node.log(A)) == log.entries
    assert kinds_of(node, A) == []


def test_bytes_behind_the_records_are_no_records() -> None:
    node, log = new_node(), Log(A)
    path = node.segment(A, 1, written(log.put_all(0, 9)))
    for place, field in ((10, 0), (10, 15), (14, 7), (15, 20)):
        flip(node, path, SEGMENT_HEADER.size + place * 32 + field)
        found = node.log(A)
        assert {index: found.read(index).data for index in log.entries} == log.entries
        assert ("damaged table of records", "damage") in kinds_of(node, A)
        flip(node, path, SEGMENT_HEADER.size + place * 32 + field)


def test_zeros_over_records_cost_these() -> None:
    node, log = new_node(), Log(A)
    path = node.segment(A, 1, written(log.put_all(0, 9)))
    data = bytearray(node.files.read(path))
    start = SEGMENT_HEADER.size + 3 * 32 + 24  # the length and the checksum of one, all of two, a part of one
    data[start : start + 2 * 32 + 24] = bytes(2 * 32 + 24)
    node.write("AAAA/00000001.segment", bytes(data))
    assert list(entries_in(node.log(A))) == [0, 1, 2, 7, 8, 9]
    assert sum(gap.last - gap.first + 1 if isinstance(gap, Hole) else 1 for gap in gaps_in(node.log(A))) == 4
    assert ("damaged table of records", "damage") in kinds_of(node, A)


@attrs.define
class FailingFile:
    """A file with an unreadable part, as on a failing disk."""

    inner: File
    first: int
    last: int

    def size(self) -> int:
        return self.inner.size()

    def pread(self, size: int, offset: int) -> bytes:
        if offset < self.last and offset + size > self.first:
            raise StorageError("Input/output error")
        return self.inner.pread(size, offset)

    def close(self) -> None:
        self.inner.close()


def failing(node: QuorumNode, path: str, first: int, last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reads of the bytes ``first`` … ``last - 1`` of a file fail."""
    whole = MemoryFileSystem.open_read

    def open_read(files: MemoryFileSystem, name: str) -> Any:
        return FailingFile(whole(files, name), first, last) if name == path else whole(files, name)

    monkeypatch.setattr(MemoryFileSystem, "open_read", open_read)


def test_what_the_disk_does_not_give_is_a_bad_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    node, log = new_node(), Log(A)
    path = node.segment(A, 1, written(log.put_all(0, 9)))
    at = node.files.read(path).index(log.entries[4])
    failing(node, path, at, at + 1, monkeypatch)
    assert list(entries_in(node.log(A))) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    (bad,) = gaps_in(node.log(A))
    assert isinstance(bad, BadEntry)
    assert (bad.index, bad.reason) == (4, "Input/output error")
    with pytest.raises(DataError, match="Input/output error"):
        node.log(A).read(4)


def test_files_that_the_disk_does_not_give_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    node, log = new_node(), Log(A)
    node.segment(A, 1, written(log.put_all(0, 9)))
    failing(node, node.wal(1, log.put_all(10, 19)), 0, 10_000, monkeypatch)
    assert list(entries_in(node.log(A))) == list(range(10))
    assert kinds_of(node, A) == [("unreadable file", "damage")]


def test_a_segment_that_contradicts_others_is_left_out() -> None:
    node, log = new_node(), Log(A)
    node.segment(A, 1, written(log.put_all(0, 9)))
    node.segment(A, 2, [(3, 1, b"another")])
    assert entries_in(node.log(A)) == log.entries
    assert kinds_of(node, A) == [("segment that does not fit the log", "damage")]


def test_a_hole_in_the_middle() -> None:
    node, log = new_node(), Log(A)
    node.segment(A, 1, written(log.put_all(0, 9)))
    node.segment(A, 3, written(log.put_all(20, 29)))
    assert gaps_in(node.log(A)) == [Hole(10, 19)]
    assert kinds_of(node, A) == [("hole in the log", "damage")]
    with pytest.raises(DataError, match="no file has entry 15"):
        node.log(A).read(15)


def test_a_term_that_goes_back_is_told() -> None:
    node = new_node()
    node.segment(A, 1, written([*Log(A).put_all(0, 4, term=2), *Log(A).put_all(5, 9, term=1)]))
    assert kinds_of(node, A) == [("term that goes back", "damage")]


def test_records_that_all_ask_for_the_whole_file_do_not_cost_it_each() -> None:
    node = new_node()
    path = node.segment(A, 1, [(index, 1, b"x" * 2000) for index in range(1, 2001)], room=2000)
    data = bytearray(node.files.read(path))
    start = SEGMENT_HEADER.size + 32 * 2000
    for place in range(2000):
        at = SEGMENT_HEADER.size + place * 32
        data[at + 16 : at + 28] = start.to_bytes(8, "big") + (len(data) - start).to_bytes(4, "big")
    node.write("AAAA/00000001.segment", bytes(data))
    reasons = {gap.reason for gap in gaps_in(node.log(A)) if isinstance(gap, BadEntry)}
    assert reasons == {"its checksum is wrong", "records that overlap"}


# Snapshots


def test_entries_up_to_the_snapshot_are_not_replayed() -> None:
    node, log = new_node(), Log(A)
    node.segment(A, 1, written(log.put_all(0, 9)))
    node.wal(1, log.put_all(10, 12))
    node.snapshot(A, 5, 1, (Atom("rabbit_fifo"), 1), members=[("a", "n")])
    found = node.log(A)
    assert list(entries_in(found)) == list(range(6, 13))
    assert [entry.index for entry in found.entries(10) if isinstance(entry, LogEntry)] == [11, 12]
    assert found.read(3).data == log.entries[3]
    assert (found.first_index, found.last_index) == (0, 12)
    assert found.snapshot is not None
    assert (found.snapshot.members, found.snapshot.state()) == ((("a", "n"),), (Atom("rabbit_fifo"), 1))
    assert kinds_of(node, A) == []


def test_a_snapshot_ahead_of_the_log() -> None:
    node = new_node()
    node.segment(A, 1, written(Log(A).put_all(0, 9)))
    node.snapshot(A, 20, 3)
    log = node.log(A)
    assert (list(log.entries()), log.last_index, log.last_term) == ([], 20, 3)
    assert kinds_of(node, A) == []


def test_the_newest_snapshot_counts() -> None:
    node = new_node()
    node.wal(1, Log(A).put_all(0, 20))
    node.snapshot(A, 5, 1)
    node.snapshot(A, 17, 1)
    log = node.log(A)
    assert log.snapshot is not None
    assert log.snapshot.index == 17
    assert list(entries_in(log)) == [18, 19, 20]


def test_an_older_snapshot_counts_where_the_newest_is_damaged() -> None:
    node = new_node()
    node.wal(1, Log(A).put_all(0, 20))
    node.snapshot(A, 5, 1)
    flip(node, node.snapshot(A, 17, 1), 30)
    assert list(entries_in(node.log(A))) == list(range(6, 21))
    assert kinds_of(node, A) == [("damaged snapshot", "damage"), ("older snapshot", "damage")]


def test_a_snapshot_that_may_not_be_looked_at_is_no_unfinished_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RefusingFileSystem()
    node = QuorumNode(files, str(tmp_path))
    node.segment(A, 1, written(Log(A).put_all(10, 19)))
    refused = node.snapshot(A, 9, 1).rpartition("/")[0]
    monkeypatch.setattr(RefusingFileSystem, "refused", refused)
    first = next(iter(node.log(A).problems()))
    assert (first.kind, first.severity, first.path) == ("damaged snapshot", "damage", refused)
    assert "Permission denied" in first.detail


def test_a_checkpoint_counts_only_where_the_snapshot_is_damaged() -> None:
    node = new_node()
    node.wal(1, Log(A).put_all(0, 20))
    path = node.snapshot(A, 5, 1)
    node.snapshot(A, 15, 1, place="checkpoints")
    assert list(entries_in(node.log(A))) == list(range(6, 21))
    assert kinds_of(node, A) == []
    flip(node, path, 30)
    assert list(entries_in(node.log(A))) == list(range(16, 21))


def test_a_log_that_begins_behind_its_snapshot() -> None:
    node = new_node()
    node.segment(A, 1, written(Log(A).put_all(10, 19)))
    node.snapshot(A, 5, 1)
    assert gaps_in(node.log(A)) == [Hole(6, 9)]
    assert kinds_of(node, A) == [("snapshot that does not fit the log", "damage")]


def test_a_log_without_its_begin() -> None:
    node = new_node()
    node.segment(A, 1, written(Log(A).put_all(10, 19)))
    assert gaps_in(node.log(A)) == [Hole(1, 9)]
    assert kinds_of(node, A) == [("hole in the log", "damage")]


def test_what_a_crash_leaves_beside_snapshots_is_passed_over() -> None:
    node = new_node()
    node.wal(1, Log(A).put_all(0, 20))
    node.snapshot(A, 5, 1)
    node.write("AAAA/snapshots/0000000000000001_0000000000000009.partial/snapshot.dat", b"RASN")
    node.write("AAAA/snapshots/0000000000000001_000000000000000A/snapshot.dat", b"")
    receiving = node.snapshot(A, 12, 1).rpartition("/")[0].removeprefix(node.root + "/")
    node.write(f"{receiving}/accepting", b"")
    node.write("AAAA/00000001.compacting", b"RASG")
    assert list(entries_in(node.log(A))) == list(range(6, 21))
    assert {severity for _, severity in kinds_of(node, A)} == {"leftover"}
    assert len(kinds_of(node, A)) == 4


def test_holes_below_a_snapshot_are_no_damage() -> None:
    node = new_node()
    kept = [3, 7, 8, 15]
    node.segment(A, 1, [(index, 1, entry_of(A, index, 1)) for index in kept])
    node.segment(A, 2, written(Log(A).put_all(21, 25)))
    node.snapshot(A, 20, 1, indexes=[(3, 3), (7, 8), (15, 15)], machine_version=8)
    log = node.log(A)
    assert list(entries_in(log)) == [21, 22, 23, 24, 25]
    assert gaps_in(log) == []
    assert log.snapshot is not None
    assert log.snapshot.indexes == ((3, 3), (7, 8), (15, 15))
    assert [log.read(index).data for index in kept] == [entry_of(A, index, 1) for index in kept]
    assert [entry.index for entry in log.entries(-1) if isinstance(entry, LogEntry)] == [*kept, 21, 22, 23, 24, 25]
    assert kinds_of(node, A) == []


def test_damaged_indexes_are_told() -> None:
    node = new_node()
    node.wal(1, Log(A).put_all(0, 20))
    path = node.snapshot(A, 5, 1, indexes=[(1, 300)]).replace("snapshot.dat", "indexes")
    flip(node, path, 12)
    assert kinds_of(node, A) == [("damaged snapshot", "damage")]


def test_indexes_in_both_forms() -> None:
    ranges = [(3, 3), (7, 9), (1000, 2000)]
    data = encode_indexes(ranges)
    assert parse_indexes(data, "indexes") == tuple(ranges)
    assert parse_indexes(data[9:], "indexes") == tuple(ranges)
    assert parse_indexes(encode_indexes([(1, 1), (2, 2)]), "indexes") == ((1, 1), (2, 2))


# Properties


def crowded() -> tuple[QuorumNode, dict[bytes, dict[int, bytes]]]:
    """A node with everything: three queues, two write-ahead logs, segments, a snapshot, an election."""
    node, one, two, three = new_node(), Log(A), Log(B), Log(C)
    node.segment(A, 1, written(one.put_all(8, 15)), room=8)
    node.segment(A, 2, written([*one.put_all(16, 19), *one.put_all(20, 23, term=2)]), room=8)
    node.segment(A, 3, written(one.put_all(24, 26, term=2)), room=8)
    node.snapshot(A, 10, 1, (Atom("state"),))
    records: list[Record] = []
    for index in range(12):
        records.append(two.put(index, 1))
        records += [one.put(24 + index, 2)] if index > 2 else []
    records += [*two.put_all(9, 10, term=2), *three.put_all(0, 2)]
    node.wal(1, records)
    records = [*two.put_all(11, 11, term=2), *three.put_all(3, 3), *one.put_all(36, 36, term=2)]
    records += [*one.put_all(37, 37, term=3), *two.put_all(12, 13, term=2), *three.put_all(4, 4)]
    node.wal(2, [*records, *one.put_all(38, 38, term=3), *three.put_all(5, 5)], zeros=40)
    return node, {log.uid: log.entries for log in (one, two, three)}


def files_below(node: QuorumNode, path: str) -> Iterator[str]:
    for name in node.files.list(path):
        if node.files.is_directory(f"{path}/{name}"):
            yield from files_below(node, f"{path}/{name}")
        else:
            yield f"{path}/{name}"


def look_at(node: QuorumNode, expected: dict[bytes, dict[int, bytes]]) -> tuple[bool, bool]:
    """Return whether all entries are there, and whether there are findings; a wrong entry fails."""
    index = node.scan()
    told, whole = bool(index.problems), True
    for uid, entries in expected.items():
        log = QuorumLog(node.files, f"{node.root}/{uid.decode()}", index.of(uid))
        start = 0 if log.snapshot is None else log.snapshot.index + 1
        for entry in log.entries():
            if isinstance(entry, LogEntry):
                assert entry.data == entries[entry.index], (uid, entry.index)
                assert log.read(entry.index) == entry
            else:
                told = True
        whole &= set(entries_in(log)) == {index for index in entries if index >= start}
        told |= any(True for _ in log.problems())
    return whole, told


def test_the_crowded_node_is_sound() -> None:
    node, expected = crowded()
    assert look_at(node, expected) == (True, False)


@settings(max_examples=times(150))
@given(st.data())
def test_a_flipped_bit_is_told_and_gives_no_wrong_entry(data: st.DataObject) -> None:
    node, expected = crowded()
    path = data.draw(st.sampled_from(sorted(files_below(node, node.root))))
    content = node.files.read(path)
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    flip(node, path, bit // 8, bit % 8)
    whole, told = look_at(node, expected)
    # No checksum covers a queue's id: with another id its records belong to an unknown queue.
    assert whole or told or node.scan().uids != (B, A, C)


@settings(max_examples=times(100))
@given(st.data())
def test_a_prefix_gives_no_wrong_entry(data: st.DataObject) -> None:
    node, expected = crowded()
    # Only the last write-ahead log is ever cut by a crash; an election in what another one lost shows nowhere.
    path = data.draw(st.sampled_from(sorted(set(files_below(node, node.root)) - {"/node/00000001.wal"})))
    content = node.files.read(path)
    node.write(path.removeprefix(node.root + "/"), content[: data.draw(st.integers(0, len(content) - 1))])
    whole, told = look_at(node, expected)
    assert whole or told or path.endswith(".wal")  # cut between two records, it is a shorter log


@settings(max_examples=times(60))
@given(st.binary(max_size=300), st.sampled_from([WAL_HEADER, b"RASG\0\2\0\3", b"RASN\1", b""]))
def test_any_bytes_are_read_or_told(data: bytes, header: bytes) -> None:
    node = new_node()
    node.wal(1, Log(A).put_all(0, 3))
    node.write("00000002.wal", header + data)
    node.write("AAAA/00000001.segment", header + data)
    node.write("AAAA/snapshots/0000000000000001_0000000000000001/snapshot.dat", header + data)
    log = node.log(A)
    list(log.entries())
    list(log.problems())


@settings(max_examples=times(60))
@given(st.lists(st.tuples(st.sampled_from([A, B, C]), st.integers(0, 12), st.integers(0, 9)), max_size=30), st.data())
def test_writes_truncations_and_rolls_give_the_log_of_a_model(
    steps: list[tuple[bytes, int, int]], data: st.DataObject
) -> None:
    """A step writes up to 12 entries, perhaps in a new term and up to 9 entries back; then perhaps the log rolls."""
    node = new_node()
    logs = {uid: Log(uid) for uid in (A, B, C)}
    terms = dict.fromkeys(logs, 1)
    segments = dict.fromkeys(logs, 0)
    rolled: list[tuple[str, list[Record]]] = []
    number, records = 1, list[Record]()
    for uid, count, back in steps:
        log = logs[uid]
        first = max(log.entries, default=-1) + 1
        if back and log.entries:
            terms[uid] += 1
            first = max(0, first - back + 1)
        records += [log.put(index, terms[uid]) for index in range(first, first + count)]
        if data.draw(st.sampled_from([False, False, True])):
            rolled.append((node.wal(number, records), records))
            number, records = number + 1, []
        if data.draw(st.sampled_from([False, False, True])):
            for _, closed in rolled:
                for queue in logs:
                    mine = [record for record in closed if record.uid == queue]
                    for start in range(0, len(mine), 16):
                        segments[queue] += 1
                        node.segment(queue, segments[queue], written(mine[start : start + 16]))
            # Killed before it deleted the last one, it writes that into segments once more.
            kept = 1 if data.draw(st.booleans()) else 0
            for path, _ in rolled[: len(rolled) - kept]:
                node.files.delete(path)
            rolled = rolled[len(rolled) - kept :] if kept else []
    node.wal(number, records)
    for uid, log in logs.items():
        assert entries_in(node.log(uid)) == log.entries
        assert gaps_in(node.log(uid)) == []
        assert kinds_of(node, uid) == ([] if log.entries else [("empty log", "leftover")])


def test_reading_one_by_one_gives_what_reading_all_gives() -> None:
    node, expected = crowded()
    for uid, entries in expected.items():
        log = node.log(uid)
        order = sorted(entries, key=lambda index: index * 7919 % 31)
        assert {index: log.read(index).data for index in (*order, *sorted(entries))} == entries


def test_a_record_is_encoded_as_the_format_says() -> None:
    assert encode_record(1, 2, 3, b"ab", uid=b"Q", checksum=False).hex() == (
        "0000010001510000000000000002000000000000000200000000000000036162"
    )
    assert encode_record(1, 2, 3, b"", truncates=True)[:3].hex() == "c00001"


def test_no_files_are_no_error() -> None:
    files = MemoryFileSystem()
    assert WalIndex.scan(files, []).uids == ()
    assert list(QuorumLog(files, "/nowhere", WalEntries(A)).entries()) == []
    (problem,) = WalIndex.scan(files, ["/nowhere/00000001.wal"]).problems
    assert problem.kind == "unreadable file"
