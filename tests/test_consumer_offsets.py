"""consumerOffset.json and delayOffset.json: RocketMQ's texts both ways, and what a crash leaves of the files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rocketmq_golden import SCENARIOS, directory, manifest
from warren.queue_index.index.config_file import ConfigFile
from warren.queue_index.topics.consumer_offsets import ConsumerOffsets, Position
from warren.queue_index.topics.consumer_offsets_format import (
    OffsetTable,
    OffsetTextError,
    decode_consumer_offsets,
    decode_delay_offsets,
    decode_local_offsets,
    encode_consumer_offsets,
    encode_delay_offsets,
)
from warren.storage.errors import DataError, StorageError
from warren.storage.faults import SimulatedCrash
from warren.storage.filesystem import FileSystem, RealFileSystem
from warren.storage.memory import MemoryFileSystem
from warren.storage.overlay import OverlayFileSystem

CONFIG = "/node/topics/config"
FILE = f"{CONFIG}/consumerOffset.json"

SAMPLES = [scenario for scenario in SCENARIOS if "consumerOffsets" in manifest(scenario)]


def sample(scenario: str) -> dict[str, Any]:
    found: dict[str, Any] = manifest(scenario)["consumerOffsets"]
    return found


def as_table(listed: dict[str, dict[str, int]]) -> OffsetTable:
    return {name: {int(queue_id): offset for queue_id, offset in offsets.items()} for name, offsets in listed.items()}


def with_file(text: str | bytes, name: str = FILE) -> MemoryFileSystem:
    files = MemoryFileSystem()
    write(files, name, text)
    return files


def write(files: FileSystem, name: str, text: str | bytes) -> None:
    files.make_directories(CONFIG)
    handle = files.open_append(name)
    handle.truncate(0)
    handle.append(text.encode() if isinstance(text, str) else text)
    handle.close()


# The text


@pytest.mark.parametrize("scenario", SAMPLES)
def test_its_texts_are_read_and_written_byte_for_byte(scenario: str) -> None:
    given_ = sample(scenario)
    for form in ("compact", "pretty"):
        table = decode_consumer_offsets(given_[form])
        assert table == as_table(given_["table"])
        assert encode_consumer_offsets(table, pretty=form == "pretty") == given_[form]
    assert encode_consumer_offsets({}, pretty=False) == given_["emptyCompact"]
    assert encode_consumer_offsets({}, pretty=True) == given_["emptyPretty"]


@pytest.mark.parametrize("scenario", SAMPLES)
def test_what_it_accepts_is_accepted(scenario: str) -> None:
    assert sample(scenario)["decode"]
    for case in sample(scenario)["decode"]:
        assert decode_consumer_offsets(case["input"]) == as_table(case["table"])


@pytest.mark.parametrize("scenario", SAMPLES)
def test_its_files_are_loaded_and_written_as_they_are(scenario: str) -> None:
    config = directory(scenario) + "/config"
    files = OverlayFileSystem(RealFileSystem())
    before = files.read(f"{config}/consumerOffset.json")
    offsets = ConsumerOffsets.load(files, config)
    assert offsets.table == as_table(sample(scenario)["table"])
    offsets.commit("T", "g", 0, 5)
    assert offsets.persist()
    assert files.read(f"{config}/consumerOffset.json.bak") == before
    assert offsets.remove("T", "g")
    assert offsets.persist()
    assert files.read(f"{config}/consumerOffset.json") == before


@pytest.mark.parametrize("scenario", SAMPLES)
def test_its_backup_is_what_it_persisted_before(scenario: str) -> None:
    config = directory(scenario) + "/config"
    files = OverlayFileSystem(RealFileSystem())
    kept = files.read(f"{config}/consumerOffset.json.bak").decode()
    files.delete(f"{config}/consumerOffset.json")
    table = ConsumerOffsets.load(files, config).table
    assert encode_consumer_offsets(table, pretty=True) == kept
    assert table != as_table(sample(scenario)["table"])


def test_the_pretty_form_of_each_shape() -> None:
    table = {"T@g": {0: 123, 1: 4}, "T@h": {}, "é@\u2028\x7f\x01\b/": {3: -1}}
    expected = (
        '{\n\t"offsetTable":{\n\t\t"T@g":{0:123,1:4\n\t\t},\n\t\t"T@h":{},'
        '\n\t\t"é@\\u2028\\u007F\\u0001\\b/":{3:-1\n\t\t}\n\t}\n}'
    )
    assert encode_consumer_offsets(table, pretty=True) == expected
    assert decode_consumer_offsets(expected) == table


def test_delay_offsets_have_one_level() -> None:
    assert encode_delay_offsets({1: 5, 18: 2}, pretty=True) == '{\n\t"offsetTable":{1:5,18:2\n\t}\n}'
    assert encode_delay_offsets({1: 5}, pretty=False) == '{"offsetTable":{1:5}}'
    assert encode_delay_offsets({}, pretty=True) == '{\n\t"offsetTable":{}\n}'
    assert decode_delay_offsets('{\n\t"offsetTable":{1:5,"18":2\n\t}\n}') == {1: 5, 18: 2}


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[]",
        "null",
        '{"offsetTable":{"a@b":{0:1}}',
        '{"offsetTable":null}',
        '{"offsetTable":{"a@b":5}}',
        '{"offsetTable":{"a@b":{0:1.5}}}',
        '{"offsetTable":{"a@b":{0:true}}}',
        '{"offsetTable":{"a@b":{0:9223372036854775808}}}',
        '{"offsetTable":{"a@b":{2147483648:1}}}',
        '{"offsetTable":{"a@b":{q:1}}}',
        '{"offsetTable":{"a@b":{0:' + "9" * 10_000 + "}}}",
        '{"offsetTable":' + "[" * 100_000,
        '{"offsetTable' + '\\"' * 50_000,
        "\0" * 1000,
    ],
)
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(OffsetTextError):
        decode_consumer_offsets(text)


@pytest.mark.parametrize(
    ("decode", "text"),
    [
        (decode_consumer_offsets, '{"offsetTable":{"%s":{0:"x"}}}' % ("t" * 9999)),
        (decode_consumer_offsets, '{"offsetTable":{"%s":[]}}' % ("t" * 9999)),
        (decode_consumer_offsets, '{"offsetTable":{"t":{0:"%s"}}}' % ("1" * 9999)),
        (decode_delay_offsets, '{"offsetTable":{1:"%s"}}' % ("x" * 9999)),
        (decode_local_offsets, '{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:%s}}' % ("1" * 9999)),
        (decode_local_offsets, '{"offsetTable":{{"brokerName":"b","queueId":9,"topic":"%s"}:x}}' % ("t" * 9999)),
    ],
)
def test_an_error_is_a_line_and_not_the_file(decode: Callable[[str], object], text: str) -> None:
    with pytest.raises(OffsetTextError) as refusal:
        decode(text)
    assert len(str(refusal.value)) < 500


tables = st.dictionaries(
    st.text(max_size=12),
    st.dictionaries(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1), max_size=4),
    max_size=4,
)


@given(table=tables, pretty=st.booleans())
def test_every_table_comes_back_in_its_order(table: OffsetTable, pretty: bool) -> None:
    back = decode_consumer_offsets(encode_consumer_offsets(table, pretty=pretty))
    assert [(name, list(offsets.items())) for name, offsets in back.items()] == [
        (name, list(offsets.items())) for name, offsets in table.items()
    ]


@given(table=tables.filter(bool), data=st.data())
def test_a_torn_text_is_never_taken_for_a_whole_one(table: OffsetTable, data: st.DataObject) -> None:
    text = encode_consumer_offsets(table, pretty=True)
    with pytest.raises(OffsetTextError):
        decode_consumer_offsets(text[: data.draw(st.integers(0, len(text) - 1))])


# The file


def test_a_node_without_a_file_has_no_offsets() -> None:
    offsets = ConsumerOffsets.load(MemoryFileSystem(), CONFIG)
    assert (offsets.table, offsets.is_dirty, offsets.offset("T", "g", 0)) == ({}, False, None)
    assert not offsets.persist()
    assert not offsets.remove("T", "g")


def test_a_committed_offset_is_there_at_once_and_after_a_persist() -> None:
    files = MemoryFileSystem()
    offsets = ConsumerOffsets.load(files, CONFIG)
    offsets.commit("T", "g", 1, 10)
    offsets.commit("T", "g", 1, 7)
    offsets.commit("T", "h", 0, 0)
    assert (offsets.offset("T", "g", 1), offsets.offset("T", "g", 0), offsets.offset("T", "h", 0)) == (7, None, 0)
    assert offsets.persist()
    assert not offsets.persist()
    offsets.commit("T", "g", 1, 7)
    assert not offsets.is_dirty
    again = ConsumerOffsets.load(files, CONFIG)
    assert list(again.positions()) == [Position("T", "g", 1, 7), Position("T", "h", 0, 0)]
    again.check_invariants()


@pytest.mark.parametrize(
    ("topic", "group", "queue_id", "offset"),
    [
        *(("a@b", "g", 0, 0), ("", "g", 0, 0), ("T", "", 0, 0)),
        *(("T", "g", 2**31, 0), ("T", "g", 0, 2**63), ("T", "g", 0.0, 0), ("T", "g", 0, 0.0)),
    ],
)
def test_an_offset_that_the_file_cannot_hold_is_refused(topic: str, group: str, queue_id: int, offset: int) -> None:
    offsets = ConsumerOffsets.load(MemoryFileSystem(), CONFIG)
    with pytest.raises(RuntimeError, match="no offset"):
        offsets.commit(topic, group, queue_id, offset)
    assert (offsets.table, offsets.is_dirty) == ({}, False)


@pytest.mark.parametrize("damaged", ["", "{", "\0" * 50, b"\xff\xfe", '{"offsetTable":{"a@b":{0:x}}}'])
def test_the_backup_stands_in_for_a_damaged_file_and_is_not_replaced_by_it(damaged: str | bytes) -> None:
    files = with_file(damaged)
    write(files, FILE + ".bak", '{"offsetTable":{"T@g":{0:5}}}')
    offsets = ConsumerOffsets.load(files, CONFIG)
    assert offsets.offset("T", "g", 0) == 5
    offsets.commit("T", "g", 0, 6)
    offsets.persist()
    assert files.read(FILE + ".bak") == b'{"offsetTable":{"T@g":{0:5}}}'
    offsets.commit("T", "g", 0, 7)
    offsets.persist()
    assert decode_consumer_offsets(files.read(FILE + ".bak").decode()) == {"T@g": {0: 6}}


@pytest.mark.parametrize("backup", [None, "", "]"])
def test_damage_without_a_backup_is_no_new_beginning(backup: str | None) -> None:
    files = with_file("{")
    if backup is not None:
        write(files, FILE + ".bak", backup)
    with pytest.raises(DataError, match=r"consumerOffset\.json: cannot be parsed"):
        ConsumerOffsets.load(files, CONFIG)


def test_an_empty_file_without_a_backup_holds_no_offsets() -> None:
    assert ConsumerOffsets.load(with_file(""), CONFIG).table == {}


def test_a_damaged_backup_alone_is_told_of() -> None:
    with pytest.raises(DataError, match=r"consumerOffset\.json\.bak"):
        ConsumerOffsets.load(with_file("{", FILE + ".bak"), CONFIG)


def test_a_persist_that_fails_leaves_the_offsets_dirty_and_the_old_ones_readable() -> None:
    for kind in ("append", "sync", "rename", "sync_directory"):
        files = MemoryFileSystem()
        offsets = ConsumerOffsets.load(files, CONFIG)
        offsets.commit("T", "g", 0, 1)
        offsets.persist()
        offsets.commit("T", "g", 0, 2)
        files.fail(kind)
        with pytest.raises(StorageError):
            offsets.persist()
        assert ConsumerOffsets.load(files, CONFIG).offset("T", "g", 0) in (1, 2)
        assert offsets.persist()
        assert ConsumerOffsets.load(files, CONFIG).offset("T", "g", 0) == 2


def persisted_twice(files: MemoryFileSystem) -> ConsumerOffsets:
    offsets = ConsumerOffsets.load(files, CONFIG)
    for offset in (1, 2):
        offsets.commit("T", "g", 0, offset)
        offsets.persist()
    offsets.commit("T", "g", 0, 3)
    return offsets


@pytest.mark.parametrize("operation", range(1, 8))
@pytest.mark.parametrize("is_power_loss", [False, True])
def test_whenever_it_dies_the_old_offsets_or_the_new_ones_are_there(operation: int, is_power_loss: bool) -> None:
    for seed in range(20):
        files = MemoryFileSystem(seed)
        files.make_directories("/node/topics")
        files.sync_all()
        offsets = persisted_twice(files)
        files.crash_at(operation, torn=True)
        allowed = {2, 3}
        try:
            offsets.persist()
            allowed = {3}
        except SimulatedCrash:
            pass
        after = files.after_power_loss(files.rng) if is_power_loss else files.after_process_crash()
        again = ConsumerOffsets.load(after, CONFIG)
        assert again.offset("T", "g", 0) in allowed
        again.commit("T", "g", 0, 4)
        again.persist()
        assert ConsumerOffsets.load(after.after_power_loss(files.rng), CONFIG).offset("T", "g", 0) == 4


def test_without_sync_a_process_that_dies_still_leaves_the_new_offsets() -> None:
    files = MemoryFileSystem()
    offsets = persisted_twice(files)
    offsets.persist(sync=False)
    assert not any(kind.startswith("sync") for kind, _ in list(files.plan.log)[-3:])
    assert ConsumerOffsets.load(files.after_process_crash(), CONFIG).offset("T", "g", 0) == 3


def test_another_file_with_a_codec_of_its_own() -> None:
    files = MemoryFileSystem()
    file = ConfigFile(files, f"{CONFIG}/delayOffset.json")
    assert file.load(decode_delay_offsets) is None
    file.replace(encode_delay_offsets({1: 5}, pretty=True), sync=True)
    assert ConfigFile(files, file.path).load(decode_delay_offsets) == {1: 5}
