"""Parsers of what brokers wrote, given the bytes of one file or one term."""

from __future__ import annotations

import contextlib
import json
import random
import struct
import zlib
from collections.abc import Sequence
from typing import Final

import attrs
import pyarrow as pa

from tests.fuzz import seeds
from tests.fuzz.target import Target
from tests.support.sqs_writer import hole, sqs, stored
from tests.support.topic_tools import RECORD
from warren.actors.engines.topics.checkpoint_format import read_checkpoint
from warren.actors.engines.topics.topic_table import TopicTable
from warren.msg_store.commit_log.commit_log_format import decode as decode_commit_log
from warren.msg_store.commit_log.record_bodies import sent_records
from warren.msg_store.commit_log.record_scan import read_columns
from warren.msg_store.rdq.rdq_columns import ColumnScan
from warren.msg_store.rdq.rdq_format import scan
from warren.msg_store.rdq.sqs_format import decode_stored
from warren.queue_index.index import directory
from warren.queue_index.index import index_v2_format as v2
from warren.queue_index.index.dets_format import read_table, surviving_terms
from warren.queue_index.index.record_format import JOURNAL, SEGMENT, parse
from warren.queue_index.index.recovery_terms import read_recovery_terms, v2_index_state
from warren.queue_index.index.segment_file import read_segment, scan_segment
from warren.queue_index.message import amqp10, amqp10_messages, amqp_tables
from warren.queue_index.message.message_format import (
    Envelope,
    decode_message,
    encode_message,
    given_in,
    locate_addresses,
    locate_body,
    locate_parts,
    message_facts,
)
from warren.queue_index.properties import Properties, decode_properties, encode_properties, from_json, names_in, to_json
from warren.queue_index.topics import consumer_offsets_format
from warren.queue_index.topics.local_offsets import LocalOffsets
from warren.salvage.metadata.broker_definitions import read_definitions
from warren.salvage.quorum.fifo.decoding import EntryDecoder, decode_entry
from warren.salvage.quorum.fifo.machine_state import parts_of
from warren.salvage.quorum.quorum_node import read_applied, read_uids
from warren.salvage.quorum.ra.config import parse_config
from warren.salvage.quorum.ra.log import QuorumLog
from warren.salvage.quorum.ra.snapshot_format import SNAPSHOT_HEADER, parse_indexes
from warren.salvage.quorum.ra.snapshots import find_snapshot
from warren.salvage.quorum.ra.wal_columns import WalEntries
from warren.salvage.quorum.ra.wal_index import WalIndex
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.storage import erlang_terms, erlang_text, term_walk
from warren.storage.erlang_terms import Atom, Term
from warren.storage.errors import DataError, MessageError, TermError, WarrenError
from warren.storage.filesystem import write_file
from warren.storage.memory import MemoryFileSystem

PATH: Final = "/data/file"
_SEGMENT_ENTRIES: Final = 2048
_WHOLE: Final = 256 << 10
"""A quorum queue's segment begins with 115 KB of places."""


def in_memory(data: bytes, path: str = PATH) -> MemoryFileSystem:
    """A disk with one file on it."""
    files = MemoryFileSystem(random.Random(0))
    files.make_directories(path.rpartition("/")[0])
    write_file(files, path, data, sync=False)
    return files


# ── terms and messages ───────────────────────────────────────────────────────────────────────────────────────────────


def _term(data: bytes) -> None:
    term = erlang_terms.decode(data)
    repr(term)


def _walked(data: bytes) -> None:
    """A walk and a decoder agree where both go through."""
    end = term_walk.term_end(data, 1)
    if data[:1] == b"\x83":
        erlang_terms.decode(data[:end])
    term_walk.parts(data, 1)


def _message(data: bytes) -> None:
    """What looks at a term only sees the same as what decodes it."""
    locate_parts(data), locate_addresses(data), locate_body(data)
    message = decode_message(data)
    to_json(message.properties)
    message_facts(data)
    with contextlib.suppress(MessageError):
        given_in(data)


def _messages() -> Sequence[bytes]:
    """The message terms of store files."""
    found: list[bytes] = []
    for archive in (seeds.V1, "13-clean-dead-letter-cc"):
        for data in seeds.files(archive, "*.rdq", most=1)():
            records = list(scan(in_memory(data).open_read(PATH), PATH))
            found += [data[one.offset + 24 : one.offset + one.size - 1] for one in records if one.size < 2000][:4]
    envelope = Envelope(b"/", b"amq.topic", (b"a.b", b"c"), encode_properties(_PROPERTIES), persistent=True)
    return [*found, encode_message(envelope, bytes(range(16)), b"body")]


_PROPERTIES: Final = Properties(
    content_type="text/plain",
    headers={"a": 1, "b": {"c": [True, None, "x", 1.5, b"\xff"]}, "x-death": [{"queue": "q", "count": 3}]},
    delivery_mode=2,
    priority=7,
    correlation_id="c",
    expiration="60000",
    timestamp=1_600_000_000,
    user_id="guest",
)


def _properties(data: bytes) -> None:
    names_in(data)
    properties = decode_properties(data)
    plain, headers = to_json(properties)
    from_json(plain, headers)
    encode_properties(properties)


def _table(data: bytes) -> None:
    table, _ = amqp_tables.read_table(data, 0, len(data))
    amqp_tables.table_to_json(table)
    amqp_tables.write_table(table)


def _tables() -> Sequence[bytes]:
    return [amqp_tables.write_table(_PROPERTIES.headers or {}), amqp_tables.write_table({})]


def _sections(data: bytes) -> None:
    sections = amqp10.read_sections(data)
    message = amqp10_messages.of_sections(sections)
    amqp10_messages.converted(message)


def _section_seeds() -> Sequence[bytes]:
    symbol, text = Atom("symbol"), Atom("utf8")
    pairs: list[tuple[Term, Term]] = [((text, b"k"), (text, b"v")), ((text, b"n"), (Atom("int"), 7))]
    sections: tuple[tuple[int, Term], ...] = (
        (amqp10.HEADER, (Atom("list"), [True, (Atom("ubyte"), 4), (Atom("uint"), 60000)])),
        (amqp10.MESSAGE_ANNOTATIONS, (Atom("map"), [((symbol, b"x-routing-key"), (text, b"q"))])),
        (amqp10.PROPERTIES, (Atom("list"), [(text, b"id"), (Atom("binary"), b"guest"), (text, b"/queues/q")])),
        (amqp10.APPLICATION_PROPERTIES, (Atom("map"), pairs)),
    )
    head = b"".join(amqp10.encode_section(code, content) for code, content in sections)
    array: Term = (Atom("array"), Atom("int"), [(Atom("int"), 1), (Atom("int"), 2)])
    bodies: tuple[tuple[int, Term], ...] = (
        (amqp10.DATA, (Atom("binary"), b"body")),
        (amqp10.VALUE, (Atom("map"), [((text, b"a"), array)])),
    )
    return [head + amqp10.encode_section(code, content) for code, content in bodies]


# ── files of queues ──────────────────────────────────────────────────────────────────────────────────────────────────


def _journal(data: bytes) -> None:
    parse(JOURNAL, data)


def _segment(data: bytes) -> None:
    parse(SEGMENT, data)
    files = in_memory(data)
    for read in (read_segment, scan_segment):
        with contextlib.suppress(DataError):
            read(files, PATH, _SEGMENT_ENTRIES)


def _segment_v2(data: bytes) -> None:
    for magic in (v2.INDEX_MAGIC, v2.STORE_MAGIC):
        with contextlib.suppress(DataError):
            v2.decode_header(data, magic, PATH).entry_count(0)
    v2.decode_entries(data)
    v2.strange_head(data[:8].ljust(8, b"\0"))
    v2.message_of(data, max(len(data) - 9, 0))


def _rdq(data: bytes) -> None:
    handle = in_memory(data).open_read(PATH)
    found = scan(handle, PATH)
    spans = [(one.offset, one.size) for one in found]
    by_columns = ColumnScan(handle, PATH)
    columns = [span for part in by_columns for span in zip(part.offsets.tolist(), part.sizes.tolist(), strict=True)]
    assert (spans, found.end) == (columns, by_columns.end)


def _sqs(data: bytes) -> None:
    """A scan in small windows, without the messages, finds what one of the whole file finds."""
    handle, found = in_memory(data).open_read(PATH), []
    for window_bytes, with_messages in ((1, False), (len(data), True)):
        scan = ColumnScan(handle, "0.sqs", window_bytes=window_bytes, with_messages=with_messages)
        found.append(([record for columns in scan for record in columns.records()], scan.end))
    assert found[0] == found[1]
    for record in found[0][0]:
        data = handle.pread(record.size, record.offset)
        assert decode_stored(data, record.msg_id, "0.sqs", record.offset, record.size) == data[21:]


def _dets(data: bytes) -> None:
    read_table(data, PATH)
    for terms in read_recovery_terms(data, PATH).values():
        v2_index_state(terms, PATH)


def _dets_of_quorum(data: bytes) -> None:
    sum(len(term) for term in surviving_terms(data, PATH))
    read_uids(data, PATH)
    read_applied(data, PATH)


def _mnesia(data: bytes) -> None:
    files = MemoryFileSystem()
    files.make_directories("node")
    for name in ("LATEST.LOG", "rabbit_user.DCD", "rabbit_durable_queue.DCL"):
        file = files.open_append(f"node/{name}")
        file.append(data)
        file.close()
    json.dumps(read_definitions(ReadOnlyFileSystem(files), "node", str))


def _names(data: bytes) -> None:
    directory.parse_deliver_with_publish(data)
    for read in (directory.parse_queue_name_file, directory.parse_queue_name, directory.parse_vhost_config):
        with contextlib.suppress(DataError):
            read(data, PATH)


# ── quorum queues ────────────────────────────────────────────────────────────────────────────────────────────────────


def _quorum_wal(data: bytes) -> None:
    path = "/data/00000001.wal"
    files = in_memory(data, path)
    index = WalIndex.scan(files, [path])
    for uid in index.uids:
        log = QuorumLog(files, "/data/none", index.of(uid))
        list(log.entries())
        list(log.problems())


def _quorum_segment(data: bytes) -> None:
    log = QuorumLog(in_memory(data, "/data/q/00000001.segment"), "/data/q", WalEntries(b"q"))
    list(log.entries())
    list(log.problems())


def _quorum_entry(data: bytes) -> None:
    """The decoder that learns shapes says what the one says that does not."""
    decoder = EntryDecoder()
    for seed in _entries():
        decoder.decode(seed)
    try:
        said: object = decode_entry(data)
    except TermError:
        said = None
    try:
        learned: object = decoder.decode(data)
    except TermError:
        learned = None
    assert said == learned


_ENTRIES: list[bytes] = []


def _entries() -> Sequence[bytes]:
    if not _ENTRIES:
        data = seeds.files(seeds.QUORUM, "*.segment", most=1, size=_WHOLE)()[0]
        log = QuorumLog(in_memory(data, "/data/q/00000001.segment"), "/data/q", WalEntries(b"q"))
        kinds: dict[int, bytes] = {}
        for entry in log.entries():
            if content := getattr(entry, "data", None):
                kinds.setdefault(len(content) // 64, bytes(content))
        _ENTRIES.extend(list(kinds.values())[:12])
    return _ENTRIES


def _quorum_config(data: bytes) -> None:
    parse_config(data, PATH)


def _snapshot_place(term: int, index: int) -> str:
    return f"/data/q/snapshots/{term:016X}_{index:016X}/snapshot.dat"


def _quorum_snapshot(data: bytes) -> None:
    """A snapshot, its checksum put right."""
    whole = SNAPSHOT_HEADER.pack(b"RASN", 1, zlib.crc32(data[SNAPSHOT_HEADER.size :])) + data[SNAPSHOT_HEADER.size :]
    found = find_snapshot(in_memory(whole, _snapshot_place(1, 4099)), "/data/q", [])
    if found is not None:
        with contextlib.suppress(ValueError):  # of an unknown version
            parts_of(found.state(), found.machine_version)


def _quorum_indexes(data: bytes) -> None:
    parse_indexes(data, PATH)


# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _record_body(data: bytes) -> None:
    """Two bytes of flags, and the body as it is stored."""
    record = attrs.evolve(RECORD, sys_flag=int.from_bytes(data[:2], "big"), body=data[2:])
    for message in sent_records(record):
        assert message.sys_flag == record.sys_flag


def _record_bodies() -> Sequence[bytes]:
    batch = b"".join(struct.pack(">iiiii", 24, 0, 0, 7, 1) + b"x" + struct.pack(">h", 1) + b"y" for _ in range(3))
    packed = {0x001: zlib.compress(b"hello " * 50), 0x0C0: batch, 0x0C1: zlib.compress(batch)}
    packed |= {
        flags: pa.compress(b"hello " * 50, codec, asbytes=True) for flags, codec in ((0x101, "lz4"), (0x201, "zstd"))
    }
    return [flags.to_bytes(2, "big") + body for flags, body in packed.items()]


def _commit_log(data: bytes) -> None:
    def read(at: int, size: int) -> bytes:
        return data[at : at + size]

    for check_crc in (False, True):
        at = 0
        while at < len(data):
            following = None
            for item in read_columns(read, at, len(data), check_crc=check_crc):
                following = getattr(item, "resume_at", None)
            if following is None or following <= at:
                break
            at = following
    decode_commit_log(data, 0)


def _offsets(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for read in (
        consumer_offsets_format.decode_consumer_offsets,
        consumer_offsets_format.decode_delay_offsets,
        consumer_offsets_format.decode_local_offsets,
    ):
        with contextlib.suppress(WarrenError):
            read(text)


def _local_offsets(data: bytes) -> None:
    found = LocalOffsets.load(in_memory(data, "/data/instance/group/offsets.json"), "/data")
    found.offset("topic", "group@instance", 0)


def _topics_json(data: bytes) -> None:
    TopicTable.load(in_memory(data, "/data/topics.json"), "/data")


def _checkpoint(data: bytes) -> None:
    _ = read_checkpoint(in_memory(data), PATH).min_timestamp


_LOCAL = (
    b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:5,{"brokerName":"b","queueId":1,"topic":"t"}:0}}',
)
_TOPICS = (
    b'{"dataVersion":{"counter":3},"topicConfigTable":{"t":{"topicName":"t","writeQueueNums":4,"readQueueNums":4}}}',
)

BROKERS: tuple[Target, ...] = (
    Target("erlang-term", _term, lambda: [*_messages(), b"\x83" + b"\x6c\0\0\0\2jjj"]),
    Target("term-walk", _walked, _messages),
    Target("erlang-text", erlang_text.parse, seeds.files(seeds.QUORUM, "config")),
    Target("message", _message, _messages),
    Target("properties", _properties, lambda: [encode_properties(_PROPERTIES), encode_properties(Properties())]),
    Target("amqp-table", _table, _tables),
    Target("amqp10", _sections, _section_seeds),
    Target("journal", _journal, seeds.files(seeds.V1, "*.jif")),
    Target("segment", _segment, seeds.files(seeds.V1, "*.idx")),
    Target("segment-v2", _segment_v2, seeds.files(seeds.V2, "*.q[is]")),
    Target("rdq", _rdq, seeds.files(seeds.V1, "*.rdq")),
    Target(
        "sqs", _sqs, lambda: [sqs(*(stored(bytes(16), data) + hole(size) for data in _messages() for size in (3, 9)))]
    ),
    Target("dets", _dets, seeds.files(seeds.V1, "*.dets")),
    Target("dets-quorum", _dets_of_quorum, seeds.files(seeds.QUORUM, "*.dets")),
    Target("mnesia", _mnesia, seeds.files(seeds.QUORUM, "*.LOG", size=1 << 20)),
    Target(
        "queue-names", _names, lambda: [*seeds.files(seeds.V1, ".queue_name")(), *seeds.files(seeds.V1, ".config")()]
    ),
    Target("quorum-wal", _quorum_wal, seeds.files(seeds.QUORUM, "*.wal")),
    Target("quorum-segment", _quorum_segment, seeds.files(seeds.QUORUM_SNAPSHOT, "*.segment", most=2, size=_WHOLE)),
    Target("quorum-entry", _quorum_entry, _entries),
    Target("quorum-config", _quorum_config, seeds.files(seeds.QUORUM, "config")),
    Target("quorum-snapshot", _quorum_snapshot, seeds.files(seeds.QUORUM_SNAPSHOT, "snapshot.dat")),
    Target("quorum-indexes", _quorum_indexes, seeds.of(b"\x83\x6c\0\0\0\2\x61\5\x68\2\x61\1\x61\3\x6a")),
    Target("record-body", _record_body, _record_bodies),
    Target("commit-log", _commit_log, seeds.files(seeds.TOPICS, "commitlog/*")),
    Target("consumer-offsets", _offsets, lambda: [*seeds.files(seeds.TOPICS, "*.json")(), *_LOCAL]),
    Target("local-offsets", _local_offsets, seeds.of(*_LOCAL)),
    Target("topics-json", _topics_json, seeds.of(*_TOPICS)),
    Target("checkpoint", _checkpoint, seeds.files(seeds.TOPICS, "checkpoint")),
)
