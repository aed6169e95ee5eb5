"""What fuzzing found, each with the smallest input that shows it (tests/fuzz)."""

from __future__ import annotations

import json
import logging
import random
import shutil
import tarfile
import tracemalloc
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fuzz.own_files import DIRECTORY
from tests.fuzz.parsers import PATH, in_memory
from tests.fuzz.target import ends_within
from tests.support.cli_tools import warren
from tests.support.rabbitmq_golden import GOLDEN
from warren.actors.engines.declared.definitions_file import DefinitionsFile
from warren.actors.engines.delays import delay_format as f
from warren.actors.engines.delays.delay_log import DelayLog
from warren.actors.engines.topics.topic_table import TopicTable
from warren.commands.output import print_text
from warren.logs import TextFormatter
from warren.msg_store.rdq import clean_stop
from warren.queue_index.index.directory import parse_vhost_config
from warren.queue_index.topics.consumer_offsets_format import OffsetTextError, decode_local_offsets
from warren.salvage.archives.archive import unpack
from warren.salvage.quorum.ra.log import QuorumLog
from warren.salvage.quorum.ra.segment_format import encode_segment
from warren.salvage.quorum.ra.segment_table import DAMAGED_TABLE
from warren.salvage.quorum.ra.wal_columns import WalEntries
from warren.shovel.errors import ShovelError
from warren.shovel.exported_rows import check_types, row_of_line
from warren.shovel.progress import Progress
from warren.storage.erlang_terms import MAX_INFLATED_BYTES, decode
from warren.storage.errors import DataError, MessageError, SettingsError, TermError
from warren.storage.memory import MemoryFileSystem
from warren.storage.own_files import DEFINITIONS_FILE, DEFINITIONS_LOG
from warren.storage.record_log import RecordLog, encode_record
from warren.storage.topic_settings import TopicSettings
from warren.traces.answers import load, tables
from warren.traces.replay import TraceError, replay

DIGITS = b"1" * 5000
"""More than Python makes a number of."""
DEEP = b"[" * 100_000
ESCAPE = "\x1b[31mred"


@pytest.mark.parametrize("data", [DIGITS, DEEP, b"\xff"], ids=["digits", "deep", "no text"])
def test_a_definitions_file_that_is_no_json_is_an_error_with_a_name(data: bytes) -> None:
    with pytest.raises(DataError, match="not JSON"):
        DefinitionsFile(in_memory(data, f"{DIRECTORY}/{DEFINITIONS_FILE}"), DIRECTORY).load()


def definitions_with_log(*records: bytes) -> DefinitionsFile:
    """Definitions without any, and a log of records whose checksums are right."""
    snapshot = json.dumps(
        [1, {part: [] for part in ("bindings", "exchanges", "queues", "vhosts")}], separators=(",", ":")
    )
    document = {"format": "warren definitions", "version": 1, "generation": 1, "definitions": json.loads(snapshot)[1]}
    document["checksum"] = f"{zlib.crc32(snapshot.encode()):08x}"
    files = in_memory(json.dumps(document).encode(), f"{DIRECTORY}/{DEFINITIONS_FILE}")
    log = b"".join(b"%08x %s\n" % (zlib.crc32(record), record) for record in records)
    files.open_append(f"{DIRECTORY}/{DEFINITIONS_LOG}").append(log)
    return DefinitionsFile(files, DIRECTORY)


@pytest.mark.parametrize("data", [b"", b'"', b"\x80", DIGITS, DEEP], ids=["empty", "torn", "no text", "digits", "deep"])
def test_a_record_of_the_definitions_log_whose_checksum_is_right_and_that_is_no_json(data: bytes) -> None:
    with pytest.raises(DataError, match="offset 0: a record that is not JSON"):
        definitions_with_log(data).load()


def test_a_change_of_the_definitions_log_of_a_kind_that_nobody_knows() -> None:
    with pytest.raises(DataError, match="an invalid change, or one of something missing: KeyError"):
        definitions_with_log(b'{"generation":1}', b'[["put","q!eue",{}]]').load()


@pytest.mark.parametrize("queues", [b"1e999", DIGITS, DEEP], ids=["infinity", "digits", "deep"])
def test_a_table_of_topics_with_a_number_that_is_none(queues: bytes) -> None:
    data = b'{"topicConfigTable":{"t":{"writeQueueNums":%b}}}' % queues
    with pytest.raises(DataError, match="is no table of topics"):
        TopicTable.load(in_memory(data, f"{DIRECTORY}/topics.json"), DIRECTORY)


def test_an_error_does_not_tell_all_that_stands_in_a_file() -> None:
    data = b'{"topicConfigTable":{"t":{"writeQueueNums":"%b"}}}' % (b"x" * 100_000)
    with pytest.raises(DataError, match="is no table of topics: ValueError") as caught:
        TopicTable.load(in_memory(data, f"{DIRECTORY}/topics.json"), DIRECTORY)
    assert len(str(caught.value)) < 400


def test_an_error_about_another_copys_progress_does_not_tell_all_of_its_name() -> None:
    data = b'{"warren": "shovel progress 1", "source": "%b", "destination": "d", "queues": []}' % (b"x" * 5000)
    with pytest.raises(ShovelError, match="another copy") as caught:
        Progress.open(in_memory(data), PATH, source="a", destination="b")
    assert len(str(caught.value)) < 500


def test_a_shovels_progress_that_is_nested_too_deep() -> None:
    with pytest.raises(DataError, match="is no progress of a shovel"):
        Progress.open(in_memory(DEEP), PATH, source="a", destination="b")


def test_a_trace_that_is_nested_too_deep(tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(DEEP)
    with pytest.raises(TraceError, match="not JSON"):
        load(str(tmp_path / "trace"))


def test_a_local_offset_of_a_queue_that_is_no_object() -> None:
    with pytest.raises(OffsetTextError):
        decode_local_offsets('{"offsetTable":{{"brokerName":"b","queueId":[],"topic":"t"}:5}}')


def test_a_vhosts_config_with_a_number_of_5000_digits() -> None:
    with pytest.raises(DataError, match="segment_entry_count"):
        parse_vhost_config(b"{segment_entry_count, %b}." % DIGITS, PATH)
    assert parse_vhost_config(b"{segment_entry_count, 0002048}.", PATH) == 2048


@pytest.mark.parametrize("counts", [(0, 0, 1 << 40, 0), (5, 1 << 31, 0, 0), (5, 0, 0, 1 << 62)])
def test_a_clean_stops_lengths_are_not_believed(counts: tuple[int, int, int, int]) -> None:
    content = b"".join(count.to_bytes(size, "big") for count, size in zip(counts, (4, 4, 8, 8), strict=True)) + b"token"
    data = b"warren\0\2" + zlib.crc32(content).to_bytes(4, "big") + content
    assert clean_stop.load(in_memory(data, f"{DIRECTORY}/{clean_stop.NAME}"), DIRECTORY, b"token") is None


def test_an_index_of_delayed_messages_that_names_places_outside_its_log_is_made_anew() -> None:
    files = MemoryFileSystem(random.Random(0))
    log = DelayLog.open(files, DIRECTORY, file_size_limit_bytes=1 << 20)
    del log
    entries = f.entries_of([f.Entry(5, 7, 9, 17, 0), f.Entry(6, 7, 9, 1 << 31, 40)])
    for entry in (entries[:1], entries[1:]):
        with pytest.raises(DataError, match="entries outside of its log"):
            f.decode_index(f.encode_index(f.Index(entry, f.removed_of([]), False), 100), PATH, 100)


def test_files_of_delayed_messages_are_told_by_ascii_digits() -> None:
    files = in_memory(b"", f"{DIRECTORY}/²/x")
    files.open_append(f"{DIRECTORY}/²delayed.delayed")
    files.open_append(f"{DIRECTORY}/².delayed")
    assert len(DelayLog.open(files, DIRECTORY, file_size_limit_bytes=1 << 20)) == 0


@pytest.mark.parametrize("hour", ["²", "9" * 5000, "24", ""])
def test_an_hour_that_is_none_is_a_setting_that_cannot_work(hour: str) -> None:
    with pytest.raises(SettingsError, match="no hour"):
        TopicSettings(delete_when=hour)


def test_a_record_with_a_negative_queue_offset_in_a_queue_without_files_is_a_finding(tmp_path: Path) -> None:
    unpack(str(GOLDEN / "rocketmq" / "basic-clean.tar.gz"), str(tmp_path))
    shutil.rmtree(tmp_path / "store" / "consumequeue" / "TopicTest")
    log = tmp_path / "store" / "commitlog" / "00000000000000000000"
    data = log.read_bytes()
    log.write_bytes(data[:20] + (-5).to_bytes(8, "big", signed=True) + data[28:])
    result = warren("verify", tmp_path)
    assert result.exit_code == 1
    assert "message -5 of TopicTest/0" in result.stdout


@pytest.mark.parametrize("size", [1 << 14, MAX_INFLATED_BYTES + 1, 1 << 24])
def test_a_compressed_term_takes_memory_as_what_it_inflates_to_and_that_is_a_megabyte_at_most(size: int) -> None:
    count = size - 6
    inside = b"l" + count.to_bytes(4, "big") + b"j" * (count + 1)
    bomb = b"\x83P" + len(inside).to_bytes(4, "big") + zlib.compress(inside)
    assert len(bomb) < 20_000
    tracemalloc.start()
    with suppress(TermError):
        decode(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (1 << 20) + (100 * size if size <= MAX_INFLATED_BYTES == 1 << 20 else 0)


def replayed(content: bytes) -> tuple[list[bytes], DataError | None]:
    log = RecordLog(in_memory(b"warren things 1\n" + content), PATH, "things")
    with ends_within(20.0):
        return [payload for _, payload in log.replay()], log.damage


def test_behind_many_zeros_the_next_record_is_found_at_once() -> None:
    found, damage = replayed(bytes(8 << 20) + encode_record(b"whole"))
    assert (found, damage) == ([b"whole"], None)  # zeros are a write that a power loss took


def test_where_too_much_looks_like_records_that_is_said() -> None:
    found, damage = replayed(b"\0\0\1\0" * (1 << 18) + encode_record(b"whole"))
    assert found == []
    assert "looks like a record" in str(damage)


# ── names on a terminal ──────────────────────────────────────────────────────────────────────────────────────────────


def test_parts_of_definitions_that_nobody_knows_are_named_without_their_escapes(tmp_path: Path) -> None:
    (tmp_path / "definitions.json").write_text(json.dumps({ESCAPE: [1]}))
    result = warren("definitions", tmp_path / "node", "--import", tmp_path / "definitions.json")
    assert (result.exit_code, "\x1b" in result.output) == (0, False)
    assert "\\x1b[31mred" in result.stdout


def test_a_trace_shows_operations_without_their_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    golden = Path(__file__).parent / "golden" / "traces" / "10-purge.json"
    steps = list(replay(json.loads(golden.read_text(encoding="utf-8"))))[:2]
    print_text(tables([{**steps[0], "op": {"op": f"[bold]{ESCAPE}"}}, steps[1]]))
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "[bold]\\x1b[31mred" in shown


def test_a_line_of_serves_log_is_one_line_and_obeys_nobody() -> None:
    formatter = TextFormatter("[%(levelname)s] %(message)s")
    record = logging.LogRecord("warren", logging.ERROR, "", 0, "queue %s", (f"q\n{ESCAPE}",), None)
    assert formatter.format(record) == "[ERROR] queue q\\n\\x1b[31mred"
    with pytest.raises(TraceError) as raised:
        load(f"/nowhere/{ESCAPE}")
    found = (TraceError, raised.value, raised.value.__traceback__)
    told = formatter.format(logging.LogRecord("warren", logging.ERROR, "", 0, "x", (), found))
    assert "\x1b" not in told
    assert "/nowhere/\\x1b[31mred" in told


@pytest.mark.parametrize("column", ["routing_keys", "exchange"])
def test_an_exported_message_with_a_name_that_is_no_text(column: str) -> None:
    row = {"body": b"x", "routing_keys": ["q"], "exchange": "", "properties": "{}", "headers": None, "expiry_us": 0}
    wrong = {column: [None] if column == "routing_keys" else None}
    with pytest.raises(MessageError, match=r"a routing key is text, not \[None\]|no exchange"):
        check_types(row | wrong)


WRONG = {
    "vhost": 5,
    "queue": ["q"],
    "msg_id": 5,
    "exchange": 5,
    "properties": {},
    "headers": {},
    "seq_id": "3",
    "delivery_count": 1.5,
    "expiry_us": "5",
    "persistent": 1,
    "redelivered": "yes",
    "acked": [],
    "orphan": {},
    "body": "text",
    "encoded_properties": "AAA=",
    "routing_keys": "q",
}
"""For each column a value of a type that it does not have."""


@pytest.mark.parametrize("column", WRONG)
def test_a_row_whose_column_has_another_type_is_no_message(column: str) -> None:
    row = {**row_of_line(b'{"queue": "q", "body": ""}'), "msg_id": None, column: WRONG[column]}
    with pytest.raises(MessageError, match=f"^{column} is .*, not "):
        check_types(row)


@pytest.mark.parametrize("expiry", ['"5"', "true", "5.0", "18446744073709551616", "-9223372036854775809"])
def test_a_line_whose_expiry_is_no_number_of_64_bits_is_a_finding_and_the_others_come(
    expiry: str, tmp_path: Path
) -> None:
    path = tmp_path / "export.jsonl"
    path.write_text(f'{{"queue": "q", "body": "", "expiry_us": {expiry}}}\n{{"queue": "q", "body": ""}}\n')
    result = warren("import", path, tmp_path / "node", "--json")
    said = json.loads(result.stdout)
    assert (result.exit_code, said["messages"], said["problems"]) == (1, 1, 1), result.output
    assert "line 1: expiry_us is " in result.output


def test_a_line_with_routing_keys_in_one_text_is_not_one_of_single_letters() -> None:
    with pytest.raises(MessageError, match="routing_keys is a list, not 'abc'"):
        row_of_line(b'{"queue": "q", "body": "", "routing_keys": "abc"}')


def parquet_of(path: Path, columns: dict[str, pa.Array]) -> Path:
    row = {"vhost": "/", "queue": "q", "exchange": "", "routing_keys": ["q"], "properties": "{}"}
    table = pa.Table.from_pylist([{**row, "headers": None, "body": b"x"}])
    for name, values in columns.items():
        table = table.drop_columns(name) if name in table.column_names else table
        table = table.append_column(name, values)
    pq.write_table(table, path)
    return path


def test_a_row_of_parquet_whose_queue_is_a_number_is_a_finding(tmp_path: Path) -> None:
    path = parquet_of(tmp_path / "export.parquet", {"queue": pa.array([5])})
    result = warren("import", path, tmp_path / "node", "--json")
    assert (result.exit_code, json.loads(result.stdout)["problems"]) == (1, 1), result.output
    assert "row 1: queue is text, not 5" in result.output


def test_a_parquet_file_with_a_columns_name_that_is_no_utf_8_is_an_error_with_its_name(tmp_path: Path) -> None:
    path = parquet_of(tmp_path / "export.parquet", {"columnname": pa.array([5])})
    path.write_bytes(path.read_bytes().replace(b"columnname", b"columnn\x8dme"))
    result = warren("import", path, tmp_path / "node")
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1), result.output
    assert "export.parquet: no Parquet that can be read: UnicodeDecodeError" in result.stderr


@pytest.mark.parametrize("text", ["x", "1e-99999999999999999999", ""])
def test_a_member_of_a_tar_whose_time_is_no_number_is_unpacked(text: str, tmp_path: Path) -> None:
    path, room = tmp_path / "node.tar", tmp_path / "room"
    room.mkdir()
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("x")
        member.pax_headers = {"mtime": text}
        archive.addfile(member)
    unpack(str(path), str(room))
    assert (room / "x").stat().st_mtime_ns == 0


def test_a_member_of_a_zip_without_a_name_is_a_broken_archive(tmp_path: Path) -> None:
    path = tmp_path / "node.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", b"")
        archive.filelist[0].filename = ""
    with pytest.raises(DataError, match="a broken one: a member without a name"):
        unpack(str(path), str(tmp_path))


def test_a_record_of_a_segment_behind_the_highest_index_is_damage_and_no_entry() -> None:
    highest = (1 << 64) - 1
    segment = encode_segment([(index, 1, b"x") for index in (highest, highest, 5)])
    files = in_memory(segment, "/data/q/00000001.segment")
    log = QuorumLog(files, "/data/q", WalEntries(b"q"))
    assert log.last_index == highest
    assert [problem.kind for problem in log.opening_problems] == [DAMAGED_TABLE]
