"""The CommitLog: what it writes, byte for byte, what it reads, and where it lets go."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from rocketmq_golden import SCENARIOS, directory, manifest, records, settings, unpacked

from msg_store.commit_log import (
    Appended,
    Batch,
    Blank,
    CommitLog,
    Failure,
    MessageIllegalError,
    PropertiesSizeExceededError,
    Record,
)
from msg_store.commit_log_format import Host
from storage.errors import DataError, StorageError
from storage.filesystem import RealFileSystem
from storage.memory import MemoryFileSystem
from storage.overlay import OverlayFileSystem
from storage.topic_settings import TopicSettings

DIRECTORY = "/topics/commitlog"

# Replaying what the real one was told


def golden_files(scenario: str, part: str = "store") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((unpacked(scenario) / part / "commitlog").iterdir())}


def golden_bodies(scenario: str) -> dict[int, bytes]:
    """Bodies that the manifest leaves out, by the physical offset of their record."""
    log = CommitLog.load(RealFileSystem(), directory(scenario) + "/commitlog", settings(scenario), writable=False)
    offsets = [line["physicalOffset"] for line in records(scenario) if not line.get("blank")]
    return {offset: log.record(offset).body for offset in offsets}


def golden_batch(lines: list[dict[str, Any]], bodies: dict[int, bytes]) -> Batch:
    first = lines[0]
    return Batch(
        topic=first["topic"],
        queue_id=first["queueId"],
        bodies=[bodies[line["physicalOffset"]] for line in lines],
        properties=[line["propertiesString"].encode() for line in lines],
        born_timestamp=first["bornTimestamp"],
        born_host=Host.parse(first["bornHost"]),
        store_host=Host.parse(first["storeHost"]),
        sys_flag=first["sysFlag"],
        flag=[line["flag"] for line in lines],
        reconsume_times=first["reconsumeTimes"],
        prepared_transaction_offset=first["preparedTransactionOffset"],
    )


def rejected_batch(put: dict[str, Any]) -> Batch:
    """A put that left no record: of it only topic, queue and size are known."""
    host = Host.parse("10.0.0.1:1")
    return Batch(
        topic=put["topic"],
        queue_id=put["queueId"],
        bodies=[bytes(put["bodyLength"])],
        born_timestamp=0,
        born_host=host,
        store_host=host,
    )


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_replaying_the_golden_puts_writes_the_same_bytes(scenario: str) -> None:
    files = MemoryFileSystem()
    log = CommitLog.load(files, DIRECTORY, settings(scenario))
    bodies, lines = golden_bodies(scenario), [line for line in records(scenario) if not line.get("blank")]
    at = 0
    for put in manifest(scenario)["puts"]:
        if put.get("appendStatus") == "PUT_OK":
            some = lines[at : at + put["msgNum"]]
            at += len(some)
            done = log.append(golden_batch(some, bodies), some[0]["queueOffset"], put["storeTimestamp"])
            assert done.status == "PUT_OK"
            assert done.physical_offsets.tolist() == [line["physicalOffset"] for line in some]
            assert done.sizes.tolist() == [line["totalSize"] for line in some]
            assert (done.queue_offset, int(done.sizes.sum())) == (put["logicsOffset"], put["wroteBytes"])
        elif put.get("appendStatus") == "END_OF_FILE":
            done = log.append(rejected_batch(put), put["logicsOffset"], put["storeTimestamp"])
            assert (done.status, done.queue_offset, len(done.sizes)) == ("END_OF_FILE", put["logicsOffset"], 0)
        elif put["bodyLength"] > settings(scenario).max_message_size - 200 or len(put["topic"]) > 127:
            with pytest.raises(MessageIllegalError):
                log.append(rejected_batch(put), 0, 0)
        log.check_invariants()
    assert at == len(lines)
    expected = golden_files(scenario)
    written = {path.rpartition("/")[2]: data for path, data in files.contents().items()}
    assert {name: data for name, data in expected.items() if name not in written and any(data)} == {}
    assert written == {name: data for name, data in expected.items() if name in written}
