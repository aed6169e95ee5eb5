"""The offsets of broadcast readers: the text of offsets.json, and the files."""

from __future__ import annotations

import random
from typing import Any

import pytest

from warren.queue_index.topics.consumer_offsets_format import (
    LocalOffsetTable,
    OffsetTextError,
    decode_local_offsets,
    encode_local_offsets,
)
from warren.queue_index.topics.local_offsets import LocalOffsets
from warren.storage.faults import SimulatedCrash
from warren.storage.memory import MemoryFileSystem

TEXT = """{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":3,
\t\t\t"topic":"TopicTest"
\t\t}:14,{
\t\t\t"brokerName":"broker-b",
\t\t\t"queueId":0,
\t\t\t"topic":"%RETRY%g"
\t\t}:9223372036854775807
\t}
}"""
TABLE: LocalOffsetTable = {("broker-a", "TopicTest", 3): 14, ("broker-b", "%RETRY%g", 0): (1 << 63) - 1}


def test_the_text_both_ways() -> None:
    assert encode_local_offsets(TABLE) == TEXT
    assert decode_local_offsets(TEXT) == decode_local_offsets("".join(TEXT.split())) == TABLE
    assert decode_local_offsets(encode_local_offsets({})) == decode_local_offsets("{}") == {}


@pytest.mark.parametrize(
    "text",
    [
        TEXT[:-1],
        TEXT[1:],
        TEXT[:70],
        "[]",
        TEXT.replace("14", "x"),
        TEXT.replace("14", str(1 << 63)),
        TEXT.replace("queueId", "id"),
        TEXT.replace(":3,", ':"a",'),
        TEXT.replace('"broker-a"', "1"),
        TEXT + "x",
    ],
)
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(OffsetTextError):
        decode_local_offsets(text)


def test_queues_of_other_brokers_in_a_file_are_kept() -> None:
    files = MemoryFileSystem()
    files.make_directories("/offsets/DEFAULT/g")
    handle = files.open_append("/offsets/DEFAULT/g/offsets.json")
    handle.append(TEXT.encode())
    handle.close()
    offsets = LocalOffsets.load(files, "/offsets")
    assert offsets.offset("TopicTest", "g@DEFAULT", 3) is None
    assert list(offsets.positions()) == []
    offsets.commit("TopicTest", "g@DEFAULT", 3, 7)
    assert offsets.is_dirty
    assert offsets.persist()
    assert not offsets.persist()
    assert decode_local_offsets(files.read("/offsets/DEFAULT/g/offsets.json").decode()) == {
        **TABLE,
        ("warren", "TopicTest", 3): 7,
    }


@pytest.mark.parametrize(("queue_id", "offset"), [(0.0, 1), (0, 1.0), (2**31, 1), (0, 2**63)])
def test_an_offset_that_could_not_be_read_again_is_not_written(queue_id: Any, offset: Any) -> None:
    files = MemoryFileSystem()
    offsets = LocalOffsets.load(files, "/store/offsets")
    offsets.commit("t", "others@one", 0, 7)
    with pytest.raises(RuntimeError, match="no offset"):
        offsets.commit("t", "g@one", queue_id, offset)
    offsets.persist()
    assert LocalOffsets.load(files, "/store/offsets").offset("t", "others@one", 0) == 7


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_crash_at_every_operation_leaves_offsets_that_were_written_or_later_ones(power_loss: bool) -> None:
    for at in range(1, 60):
        files = MemoryFileSystem(random.Random(at))
        files.make_directories("/store")
        files.sync_directory("/")
        files.crash_at(at, torn=True)
        written = reached = 0
        try:
            offsets = LocalOffsets.load(files, "/store/offsets")
            for reached in range(1, 6):
                offsets.commit("t", "g@one", 0, reached)
                offsets.persist()
                written = reached
        except SimulatedCrash:
            pass
        else:
            return
        after = files.after_power_loss(random.Random(at)) if power_loss else files.after_process_crash()
        found = LocalOffsets.load(after, "/store/offsets").offset("t", "g@one", 0) or 0
        assert written <= found <= reached
    pytest.fail("never ran to its end")
