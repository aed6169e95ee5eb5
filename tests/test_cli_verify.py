"""``warren verify``: it tells damage from leftovers, and no content of a file causes a traceback."""

from __future__ import annotations

import json
import os
import random
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import warren as embedded
from tests.support.classic_tools import QueueOnDisk, VhostOnDisk, encoded_message
from tests.support.cli_tools import warren
from tests.support.effort import times
from warren.msg_store.rdq.rdq_format import encode_record
from warren.queue_index.index import directory as disk
from warren.queue_index.index.record_format import ACK, BODY, DELIVER, journal_publish_head, segment_publish_head
from warren.queue_index.index.recovery_terms import RecoveryTerms, encode_recovery_terms
from warren.salvage import queue_reader
from warren.salvage.archives.archive import unpack
from warren.salvage.classic import message_runs
from warren.salvage.classic.classic_directory import UNCOUNTED
from warren.salvage.classic.needed_body import Reference
from warren.salvage.export import Selection, export_source
from warren.salvage.inspect import inspect_source
from warren.salvage.inspect_tables import tables
from warren.salvage.queue_directory import Finding, SegmentColumns
from warren.salvage.source import open_source
from warren.salvage.verify import Account, verify_source
from warren.salvage.vhost import Vhost

GOLDEN = Path(__file__).parent / "golden"

Json = dict[str, Any]
N = b"n" * 16
RDQ = "msg_store_persistent/0.rdq"
IN_JOURNAL = 8 + BODY.size + len(encoded_message(N, b"body")) + 8
"""Bytes of a publish and its deliver, as QueueOnDisk writes them; in a segment the heads are shorter."""
IN_SEGMENT = IN_JOURNAL - 2 * (8 - 2)


@pytest.fixture
def queue(tmp_path: Path) -> QueueOnDisk:
    return VhostOnDisk(tmp_path).queue(b"q")


def found(queue: QueueOnDisk) -> set[tuple[str, str, str, int | None]]:
    """Kind, severity, path below the vhost (the queue's directory is Q) and offset of every finding, except that an
    empty journal and missing segments may have had messages."""
    result = warren("verify", queue.vhost.path, "--json")
    report = json.loads(result.stdout)
    damaged = sum(finding["severity"] == "damage" for finding in report["findings"])
    assert (report["damage"], report["leftover"]) == (damaged, len(report["findings"]) - damaged)
    assert result.exit_code == bool(damaged)
    for finding in report["findings"]:
        assert list(finding) == ["kind", "severity", "path", "offset", "detail"]
        named = "leftover" in finding["kind"] or "orphan" in finding["kind"]
        assert named == (finding["severity"] == "leftover")
    return {
        (
            finding["kind"],
            finding["severity"],
            finding["path"].removeprefix(f"{queue.vhost.path}/").replace(queue.path.name, "Q"),
            finding["offset"],
        )
        for finding in report["findings"]
        if finding["kind"] != UNCOUNTED
    }


def shorts(kind: int, *seq_ids: int) -> bytes:
    return b"".join(struct.pack(">Q", kind << 62 | seq_id) for seq_id in seq_ids)


def publish(seq_id: int, encoded: bytes, *, msg_id: bytes = N, size: int = 4, persistent: bool = True) -> bytes:
    return journal_publish_head(seq_id, persistent=persistent) + BODY.pack(msg_id, 0, size, len(encoded)) + encoded


def test_a_sound_directory_has_neither(queue: QueueOnDisk) -> None:
    queue.segment(0)
    queue.segment(1, shorts=2)
    queue.journal(2)
    queue.journal(3, persistent=False)
    queue.vhost.store(0, N, encoded_message(N, b"body"))
    queue.bodyless(4, N, 4)
    assert found(queue) == set()
    assert warren("verify", queue.vhost.path).stdout == "No damage.\n"


Spoil = Callable[[QueueOnDisk], object]

DAMAGE: dict[str, tuple[Spoil, set[tuple[str, str, int | None]]]] = {
    "journal cut in a record": (
        lambda queue: queue.append("journal.jif", publish(0, b"", size=0)[:-1]),
        {("torn record", "Q/journal.jif", 0)},
    ),
    "fewer zeros than a record": (
        lambda queue: queue.append("journal.jif", bytes(39)),
        {("torn record", "Q/journal.jif", 0)},
    ),
    "records behind a journal's zeros": (
        lambda queue: queue.append("journal.jif", bytes(40) + shorts(ACK, 0)),
        {("bytes behind zeros", "Q/journal.jif", 0)},
    ),
    "segment cut in a record": (
        lambda queue: (queue.segment(0), queue.append("0.idx", b"\xc0\x01" + bytes(20))),
        {("torn record", "Q/0.idx", IN_SEGMENT)},
    ),
    "deliver without publish": (
        lambda queue: queue.append("journal.jif", shorts(DELIVER, 9)),
        {("entry without publish", "Q/journal.jif", None)},
    ),
    "ack without publish where the segment is there": (
        lambda queue: (queue.segment(0), queue.append("journal.jif", shorts(DELIVER, 1) + shorts(ACK, 1))),
        {("entry without publish", "Q/journal.jif", None)},
    ),
    "short record without publish": (
        lambda queue: (queue.segment(0), queue.append("0.idx", b"\x40\x03")),
        {("entry without publish", "Q/0.idx", None)},
    ),
    "three short records": (
        lambda queue: queue.segment(0, shorts=3),
        {("too many records", "Q/0.idx", None)},
    ),
    "two acks": (
        lambda queue: (queue.journal(0), queue.append("journal.jif", shorts(ACK, 0, 0))),
        {("too many records", "Q/journal.jif", None)},
    ),
    "ack before deliver": (
        lambda queue: (queue.append("0.idx", segment_record(0)), queue.append("journal.jif", shorts(ACK, 0))),
        {("contradicting records", "Q/journal.jif", None)},
    ),
    "two publishes in the journal": (
        lambda queue: (queue.journal(0), queue.journal(0)),
        {("double publish", "Q/journal.jif", IN_JOURNAL), ("too many records", "Q/journal.jif", None)},
    ),
    "two publishes in the segment": (
        lambda queue: (queue.segment(0), queue.segment(0, shorts=0)),
        {("double publish", "Q/0.idx", IN_SEGMENT)},
    ),
    "another message in the journal than in its segment": (
        lambda queue: (queue.segment(0), queue.append("journal.jif", publish(0, encoded_message(N, b"body")))),
        {("double publish", "Q/journal.jif", 0)},
    ),
    "rel_seq out of range": (
        lambda queue: queue.append("0.idx", segment_record(5)),
        {("position out of range", "Q/0.idx", 0)},
    ),
    "missing body": (
        lambda queue: queue.bodyless(0, N, 4),
        {("missing body", "Q/journal.jif", 0)},
    ),
    "unreadable message in the index": (
        lambda queue: queue.append("journal.jif", publish(0, b"\x83no term")),
        {("unreadable message", "Q/journal.jif", 0)},
    ),
    "unreadable message in the store": (
        lambda queue: (queue.bodyless(0, N, 4), queue.vhost.store(0, N, b"\x83no term")),
        {("unreadable message", "Q/journal.jif", 0)},
    ),
    "another message's id": (
        lambda queue: queue.append("journal.jif", publish(0, encoded_message(b"m" * 16, b"body"))),
        {("wrong message", "Q/journal.jif", 0)},
    ),
    "another size": (
        lambda queue: queue.append("journal.jif", publish(0, encoded_message(N, b"body"), size=5)),
        {("wrong size", "Q/journal.jif", 0)},
    ),
    "a record that calls a persistent message transient": (
        lambda queue: (
            queue.append("journal.jif", publish(0, encoded_message(N, b"body"), persistent=False)),
            queue.journal(1),
        ),
        {("wrong persistence", "Q/journal.jif", 0)},
    ),
    "a record that calls a transient message persistent": (
        lambda queue: queue.append("journal.jif", publish(0, encoded_message(N, b"body", persistent=False))),
        {("wrong persistence", "Q/journal.jif", 0)},
    ),
    "a store's record past its end": (
        lambda queue: queue.vhost.append(RDQ, encode_record(N, b"x" * 100)[:-1]),
        {("record out of bounds", "msg_store_persistent/0.rdq", 0)},
    ),
    "a store's record of no size": (
        lambda queue: queue.vhost.append(RDQ, struct.pack(">Q", 15) + bytes(40)),
        {("record out of bounds", "msg_store_persistent/0.rdq", 0)},
    ),
    "a store's record without its end": (
        lambda queue: queue.vhost.append(RDQ, encode_record(N, b"x")[:-1] + b"\0"),
        {("torn record", "msg_store_persistent/0.rdq", 0)},
    ),
    "a segment that is a directory": (
        lambda queue: (queue.append("journal.jif", b""), (queue.path / "0.idx").mkdir()),
        {("unreadable file", "Q/0.idx", None)},
    ),
    "no name": (
        lambda queue: (queue.journal(0), (queue.path / ".queue_name").unlink()),
        {("missing name", "Q/.queue_name", None)},
    ),
    "no form of a name": (
        lambda queue: (queue.path / ".queue_name").write_bytes(b"queue"),
        {("damaged name", "Q/.queue_name", 0)},
    ),
    "another queue's name": (
        lambda queue: (queue.path / ".queue_name").write_bytes(disk.queue_name_file(b"/", b"r")),
        {("wrong directory", "Q/.queue_name", None)},
    ),
    "another vhost's name": (
        lambda queue: (queue.vhost.path / ".vhost").write_bytes(b"v"),
        {("wrong directory", ".vhost", None), ("wrong vhost", "Q/.queue_name", None)},
    ),
    "no vhost's name": (
        lambda queue: (queue.vhost.path / ".vhost").unlink(),
        {("missing name", ".vhost", None)},
    ),
    "no settings in .config": (
        lambda queue: (queue.vhost.path / ".config").write_bytes(b"{segment_entry_count, 0}."),
        {("damaged settings", ".config", 0)},
    ),
    "recovery.dets of zeros": (
        lambda queue: (queue.vhost.path / "recovery.dets").write_bytes(bytes(5464)),
        {("damaged recovery terms", "recovery.dets", 4)},
    ),
    "messages behind next_seq_id": (
        lambda queue: (queue.journal(0), queue.journal(1), queue.stop_cleanly(1, 0)),
        {
            ("messages that no start sees", "Q/journal.jif", IN_JOURNAL),
            ("changed since the clean stop", "Q/0.idx", None),
        },
    ),
}
"""Situation → how it comes about, and what is found."""


def segment_record(rel_seq: int) -> bytes:
    encoded = encoded_message(N, b"body")
    return segment_publish_head(rel_seq, persistent=True) + BODY.pack(N, 0, 4, len(encoded)) + encoded


@pytest.mark.slow
@pytest.mark.parametrize("situation", DAMAGE)
def test_damage(situation: str, queue: QueueOnDisk) -> None:
    spoil, expected = DAMAGE[situation]
    spoil(queue)
    below_queues = {(kind, f"queues/{path}" if path[:1] == "Q" else path, offset) for kind, path, offset in expected}
    damage = {(kind, path, offset) for kind, severity, path, offset in found(queue) if severity == "damage"}
    assert damage == below_queues


# ── messages that are looked at together ─────────────────────────────────────────────────────────────────────────────

MANY = 80
TOGETHER: dict[str, Callable[[QueueOnDisk, int], bytes]] = {
    "sound": lambda queue, n: queue.message(n, b"body"),
    "another body": lambda queue, n: queue.message(n, b"BODY"),
    "another id": lambda queue, n: encoded_message(N, b"body"),
    "another persistence": lambda queue, n: queue.message(n, b"body", persistent=False)[:-4] + b"true",
    "other properties": lambda queue, n: queue.message(n, b"body").replace(b"amq.direct", b"amq.topics"),
    "no message": lambda queue, n: queue.message(n, b"body").replace(b"amq.direct", b"amq.direcT")[:-1] + b"\0",
}
"""What replaces one of many messages, with the same length if possible."""


@pytest.mark.slow
@pytest.mark.parametrize("in_journal", [False, True])
@pytest.mark.parametrize("what", TOGETHER)
@pytest.mark.parametrize("told", ["as it is", "of another size", "transient"])
def test_one_of_many_that_are_looked_at_together_is_found_as_it_is_alone(
    what: str, told: str, in_journal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = VhostOnDisk(tmp_path, entries=100).queue(b"q")
    for number in range(MANY):
        is_it = number == 50
        queue.publish(
            number,
            b"longer" if is_it and told == "of another size" else b"body",
            embedded=TOGETHER[what if is_it else "sound"](queue, number),
            persistent=not (is_it and told == "transient"),
            in_journal=in_journal,
        )
    together = found(queue)
    monkeypatch.setattr(message_runs, "RUN_MESSAGES", MANY + 1)
    assert together == found(queue)
    is_sound = told == "as it is" and what in {"sound", "another body", "other properties"}
    assert bool(together) != is_sound


def test_many_messages_whose_segment_was_written_in_two_goes_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_runs, "RUN_BYTES", 1 << 14)
    queue = VhostOnDisk(tmp_path, entries=2000).queue(b"q")
    for number in [*range(900, 1000), *range(300), *range(300, 900)]:
        queue.segment(number, shorts=0)
    alone, one_by_one = list[int](), queue_reader._compared_one_by_one

    def counted(columns: SegmentColumns, *, is_durable: bool) -> Iterator[Finding | Reference]:
        alone.append(len(columns))
        return one_by_one(columns, is_durable=is_durable)

    monkeypatch.setattr(queue_reader, "_compared_one_by_one", counted)
    assert found(queue) == set()
    assert sum(alone) < 100


LEFTOVERS: dict[str, tuple[Spoil, set[tuple[str, str, int | None]]]] = {
    "zeros at a journal's end": (
        lambda queue: (queue.journal(0), queue.append("journal.jif", bytes(512))),
        {("leftover zeros", "Q/journal.jif", IN_JOURNAL)},
    ),
    "a segment of zeros alone": (
        lambda queue: queue.append("0.idx", bytes(100)),
        {("leftover zeros", "Q/0.idx", 0)},
    ),
    "acks of a segment that is gone": (
        lambda queue: queue.append("journal.jif", shorts(DELIVER, 9) + shorts(ACK, 9)),
        {("leftover acks", "Q/journal.jif", None)},
    ),
    "an ack of a segment that is gone": (
        lambda queue: queue.append("journal.jif", shorts(ACK, 9)),
        {("leftover acks", "Q/journal.jif", None)},
    ),
    "a journal that its segment repeats": (
        lambda queue: (queue.segment(0), queue.journal(0)),
        {("leftover publish", "Q/journal.jif", 0)},
    ),
    "acks that the segment has": (
        lambda queue: (queue.segment(0, shorts=2), queue.append("journal.jif", shorts(DELIVER, 0) + shorts(ACK, 0))),
        {("leftover acks", "Q/journal.jif", None)},
    ),
    "bodies that nobody needs": (
        lambda queue: queue.vhost.store(0, N, encoded_message(N, b"x")),
        {("orphan body", "msg_store_persistent/0.rdq", 0)},
    ),
    "a transient message's missing body": (
        lambda queue: queue.append("journal.jif", publish(0, b"", persistent=False)),
        set(),
    ),
    "an acked message's missing body": (
        lambda queue: (queue.bodyless(0, N, 4), queue.append("journal.jif", shorts(DELIVER, 0) + shorts(ACK, 0))),
        set(),
    ),
    "a queue that is not durable": (
        lambda queue: queue.append("journal.jif", publish(0, encoded_message(N, b"body"), persistent=False)),
        set(),
    ),
    "zeros at a store file's end": (
        lambda queue: queue.vhost.append(RDQ, bytes(100)),
        {("leftover zeros", "msg_store_persistent/0.rdq", 0)},
    ),
    "a transient store full of rubbish": (
        lambda queue: queue.vhost.append("msg_store_transient/0.rdq", b"rubbish" * 100),
        {("leftover record out of bounds", "msg_store_transient/0.rdq", 0)},
    ),
    "a queue's directory with nothing in it": (
        lambda queue: (queue.vhost.path / "queues" / "EMPTY").mkdir(),
        {("leftover directory", "queues/EMPTY", None)},
    ),
    "a file that is none of a queue's": (
        lambda queue: queue.append("007.idx", b"x"),
        {("leftover file", "Q/007.idx", None)},
    ),
    "terms of a queue without a directory": (
        lambda queue: (queue.vhost.path / "recovery.dets").write_bytes(
            encode_recovery_terms({"ELSEWHERE": RecoveryTerms((), 5, 5, None, 0, 0)})
        ),
        set(),
    ),
}


@pytest.mark.parametrize("situation", LEFTOVERS)
def test_leftovers_are_no_damage(situation: str, queue: QueueOnDisk) -> None:
    spoil, expected = LEFTOVERS[situation]
    spoil(queue)
    assert found(queue) == {
        (kind, "leftover", f"queues/{path}" if path[:1] == "Q" else path, offset) for kind, path, offset in expected
    }


def test_a_compaction_that_crashed_is_no_damage(queue: QueueOnDisk) -> None:
    kept, moved, half = (bytes([number]) * 16 for number in (1, 2, 3))
    records = {msg_id: encode_record(msg_id, encoded_message(msg_id, b"body")) for msg_id in (kept, moved, half)}
    size = len(records[kept])
    torn = records[moved][: size // 2].ljust(size, b"\0")
    queue.vhost.append(RDQ, records[kept] + torn + bytes(500))
    (queue.vhost.path / "msg_store_persistent" / "0.rdt").write_bytes(records[moved] + records[half][:50])
    (queue.vhost.path / "msg_store_persistent" / "1.rdq").write_bytes(records[half])
    for seq_id, msg_id in enumerate((kept, moved, half)):
        queue.bodyless(seq_id, msg_id, 4)
    assert found(queue) == {
        ("leftover compaction file", "leftover", "msg_store_persistent/0.rdt", None),
        ("leftover of a copy", "leftover", "msg_store_persistent/0.rdq", size),
        ("leftover of a copy", "leftover", "msg_store_persistent/0.rdt", size),
        ("leftover zeros", "leftover", "msg_store_persistent/0.rdq", 2 * size),
    }
    assert len(warren("export", queue.vhost.path).stdout.splitlines()) == 3


def test_a_segment_that_went_missing_after_a_clean_stop_is_found(tmp_path: Path) -> None:
    unpack(str(GOLDEN / "05-clean-segments-2048.tar.gz"), str(tmp_path))
    (segment,) = tmp_path.glob("vhosts/*/queues/*/5.idx")
    segment.unlink()
    result = warren("verify", tmp_path)
    assert result.exit_code == 1
    assert "2048 unacked messages at the clean stop, 0 now" in result.stdout


def test_missing_terms_of_a_clean_stop_are_damage(tmp_path: Path) -> None:
    """They say which messages were delivered before."""
    unpack(str(GOLDEN / "01-clean-small-mixed.tar.gz"), str(tmp_path))
    (terms,) = tmp_path.glob("vhosts/*/recovery.dets")
    terms.unlink()
    for command in ("verify", "export"):
        result = warren(command, tmp_path)
        assert result.exit_code == 1
        assert "missing recovery terms" in result.output


def test_people_get_a_line_for_each_kind_in_each_file() -> None:
    result = warren("verify", GOLDEN / "12-crash-torn-journal.tar.gz")
    assert result.exit_code == 1
    assert "torn record at 3,765: 370 bytes that hold no whole record" in result.stdout
    assert "orphan body ×4, first at 0" in result.stdout
    assert result.stdout.splitlines()[-1] == "1 damaged."


@pytest.mark.parametrize("claimed", [0xFFFFFFFF, 2 << 30])
def test_a_record_that_claims_gigabytes_is_not_read(claimed: int, queue: QueueOnDisk) -> None:
    queue.append("0.idx", segment_publish_head(0, persistent=True) + BODY.pack(N, 0, 4, claimed))
    os.truncate(queue.path / "0.idx", 3 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert found(queue) == {("torn record", "damage", "queues/Q/0.idx", 0)}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


def test_numbers_beyond_all_measure_are_findings(queue: QueueOnDisk) -> None:
    queue.segment(0)
    for number in ("9223372036854775807", "9" * 30):
        (queue.path / f"{number}.idx").write_bytes((queue.path / "0.idx").read_bytes())
    queue.append("journal.jif", publish((1 << 62) - 1, encoded_message(N, b"body")) + shorts(DELIVER, (1 << 62) - 2))
    impossible = {
        ("impossible segment number", "damage", f"queues/Q/{n}.idx", None) for n in ((1 << 63) - 1, 10**30 - 1)
    }
    assert found(queue) == {("entry without publish", "damage", "queues/Q/journal.jif", None)} | impossible
    result = warren("export", queue.vhost.path)
    assert (result.exit_code, result.stderr.count("impossible segment number")) == (1, 2)
    assert [json.loads(line)["seq_id"] for line in result.stdout.splitlines()] == [0, (1 << 62) - 1]


def spoilt(data: bytes, rng: random.Random) -> bytes:
    """A file after one of the things that happen to files by accident or on purpose."""
    at, length = rng.randrange(len(data) + 1), rng.randrange(200)
    match rng.randrange(8):
        case 0 if data:
            return (
                data[: at - 1] + bytes([data[at - 1] ^ 1 << rng.randrange(8)]) + data[at:] if at else b"\xff" + data[1:]
            )
        case 1:
            return data[:at]
        case 2:
            return rng.randbytes(length * 10)
        case 3:
            return data[:at] + rng.choice([b"\xff" * 4, b"\x7f" + b"\xff" * 7, bytes(8)]) + data[at + 4 :]
        case 4:
            return data + rng.choice([rng.randbytes(length), bytes(length)])
        case 5:
            return data[:at] + data[at + length :]
        case 6:
            return data[:at] + data[at : at + length] + data[at:]
        case _:
            return data + data


@pytest.mark.slow
@pytest.mark.parametrize("name", ["02-crash-small-mixed", "11-clean-priority-queue", "13-clean-dead-letter-cc"])
def test_spoilt_directories_end_in_findings(name: str, tmp_path: Path) -> None:
    unpack(str(GOLDEN / f"{name}.tar.gz"), str(tmp_path))
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file() and path.suffix not in (".ets", ".dot"))
    for seed in range(times(30, quick=10)):
        rng = random.Random(f"{name} {seed}")
        before = {path: path.read_bytes() for path in rng.sample(files, rng.choice([1, 1, 2]))}
        for path, data in before.items():
            path.write_bytes(spoilt(data, rng))
        try:
            with open_source(str(tmp_path)) as source:
                list(tables(inspect_source(source)))
                lines: list[bytes | bytearray] = []
                export_source(source, Selection(include_acked=True, orphans=True), lines.append, lambda _: None)
                for line in b"".join(lines).splitlines():
                    json.loads(line)
                account = Account()
                for finding in verify_source(source):
                    account.add(finding)
                list(account.printable())
        except Exception as error:
            error.add_note(f"{name}, seed {seed}: {[str(path.relative_to(tmp_path)) for path in before]}")
            raise
        for path, data in before.items():
            path.write_bytes(data)


@pytest.mark.parametrize("is_stored", [False, True])
def test_the_queues_are_asked_what_they_need_only_where_a_store_holds_something(
    is_stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedded.open(tmp_path / "node", sync="os") as node:
        node.queue("q").publish(bytes(5000 if is_stored else 50)).wait()
    asked: list[str] = []
    needed = Vhost.needed

    def noted(vhost: Vhost, store: str, **options: Any) -> Any:
        asked.append(store)
        return needed(vhost, store, **options)

    monkeypatch.setattr(Vhost, "needed", noted)
    with open_source(str(tmp_path / "node")) as source:
        assert not [finding for finding in verify_source(source) if isinstance(finding, Finding)]
    assert asked == ["msg_store_persistent"] * is_stored


@pytest.fixture
def node_with_own_files(tmp_path: Path) -> Path:
    """A directory with a file of each kind that is warren's own."""
    path = tmp_path / "node"
    with embedded.open(path) as node:
        queue = node.queue("q", retry=embedded.Retry(limit=5, delay=1000))
        queue.publish_many([b"later"] * 50, delay=1000).wait()
        for key in ("a", "b", "c"):
            queue.publish(b"keyed", unique=key).wait()
        for delivery in [queue.get(), queue.get()]:
            assert delivery is not None
            delivery.nack()
    return path


OWN = ["warren.version", "warren.definitions.json", "warren.definitions.log", "*.delayed", "unique.log", "returned.log"]


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_files_of_warrens_own_are_looked_at_too(node_with_own_files: Path, name: str) -> None:
    assert warren("verify", node_with_own_files).exit_code == 0
    [path] = [one for one in node_with_own_files.rglob(name) if one.is_file()]
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 4
    path.write_bytes(data)
    report = json.loads(warren("verify", node_with_own_files, "--json").stdout)
    assert [one["path"] for one in report["findings"]] == [str(path)]
    torn = name == "warren.definitions.log"  # its last record: a crash may have left it so
    assert (report["damage"], report["leftover"]) == (not torn, torn)


def test_what_a_crash_leaves_behind_an_own_log_is_left_over(node_with_own_files: Path) -> None:
    [path] = node_with_own_files.rglob("*.delayed/*/*.delayed")
    with path.open("ab") as log:
        log.write(b"half a record")
    report = json.loads(warren("verify", node_with_own_files, "--json").stdout)
    assert [(one["kind"], one["severity"]) for one in report["findings"]] == [("leftover of a write", "leftover")]
