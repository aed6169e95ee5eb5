"""``warren inspect`` and ``warren topic``, beside what the real RocketMQ answered of the same stores."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import random
import shutil
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import typer.main

import warren as package
from tests.support import rocketmq_golden as golden
from warren import cli
from warren.actors.engines.topics.store_opening import load_store
from warren.msg_store.commit_log.commit_log import Batch
from warren.msg_store.commit_log.commit_log_format import Host, Record
from warren.salvage.queue_directory import Finding
from warren.salvage.rocketmq.record_lines import carries
from warren.salvage.rocketmq.rocketmq_store import index_names, open_rocketmq
from warren.storage.filesystem import RealFileSystem
from warren.storage.java_hash import index_hash
from warren.storage.topic_settings import ROCKETMQ_4_9

COMMAND = typer.main.get_command(cli.app)
STORES = [(scenario, part) for scenario in golden.SCENARIOS for part in ("store", "after")]
STORES = [(scenario, part) for scenario, part in STORES if part == "store" or "after" in golden.manifest(scenario)]
CLEAN = [scenario for scenario in golden.SCENARIOS if "store" in golden.manifest(scenario)]
STATES = [(scenario, state) for scenario in golden.SCENARIOS for state in golden.answers(scenario)]

Json = dict[str, Any]


@attrs.frozen
class Said:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


def warren(*arguments: object) -> Said:
    """As the command line would run it, in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, err
    try:
        code = COMMAND.main([str(argument) for argument in arguments], standalone_mode=False) or 0
    finally:
        sys.stdout, sys.stderr = before
    return Said(code, *(stream.buffer.getvalue().decode("utf-8") for stream in (out, err)))


def refused(*arguments: object) -> str:
    said = warren(*arguments)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("warren: ")
    assert said.err.count("\n") == 1
    return said.err


def tree(directory: Path) -> dict[str, tuple[str, int, int]]:
    """Every file's bytes, mode and time of change."""
    return {
        str(path.relative_to(directory)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mode,
            path.stat().st_mtime_ns,
        )
        for path in sorted(directory.rglob("*"))
    }


def settings_of(config: Json) -> list[str]:
    """``--set`` for all of them."""
    said = ((name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in config.items())
    return [word for name, value in said for word in ("--set", f"{name}={value}")]


def patched(scenario: str, part: str, patch: list[Json], room: Path) -> Path:
    """A store of its own, with a variant's damage."""
    if not patch:
        return golden.unpacked(scenario) / part
    target = room / part
    shutil.copytree(golden.unpacked(scenario) / part, target)
    for step in patch:
        golden.apply_step(RealFileSystem(), str(target), step)
    return target


def line_of(record: Json) -> Json:
    """A record of the manifest as a line of ours, but for body and CRC."""
    if record.get("blank"):
        return {"blank": True, "physical_offset": record["physicalOffset"], "size": record["totalSize"]}
    return {
        "topic": record["topic"],
        "queue_id": record["queueId"],
        "queue_offset": record["queueOffset"],
        "physical_offset": record["physicalOffset"],
        "size": record["totalSize"],
        "store_timestamp": record["storeTimestamp"],
        "born_timestamp": record["bornTimestamp"],
        "born_host": record["bornHost"],
        "store_host": record["storeHost"],
        "sys_flag": record["sysFlag"],
        "flag": record["flag"],
        "reconsume_times": record["reconsumeTimes"],
        "tags": record["tags"],
        "keys": record["keys"] or None,
        "properties": record["properties"] or {},
        "body_sha256": record["bodySha256"],
        "crc_ok": True,
        "message_id": record["msgId"],
    }


def as_sent(line: Json) -> Json:
    """The line without ``--raw-bodies``."""
    if not line["sys_flag"] & 1:
        return line
    return {**line, "body": base64.b64encode(zlib.decompress(base64.b64decode(line["body"]))).decode()}


def without_body(line: Json) -> Json:
    """A line of ours, once its body is known to be what the sum says."""
    if "body" in line:
        body = base64.b64decode(line["body"], validate=True)
        assert hashlib.sha256(body).hexdigest() == line["body_sha256"]
    return {name: value for name, value in line.items() if name != "body"}


# ── inspect, in every state ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "state"), STATES, ids=[f"{scenario}:{state[0]}" for scenario, state in STATES])
def test_every_state_is_inspected_as_the_original_recovers_it(
    scenario: str, state: tuple[str, str, list[Json], Json, str, Json], tmp_path: Path
) -> None:
    _, part, patch, override, mode, answers = state
    store = patched(scenario, part, patch, tmp_path)
    config = golden.manifest(scenario)["config"] | override
    start = ["--start"] if "start" in mode else []
    said = warren("inspect", store, "--json", *start, *settings_of(config))
    if not answers["loadOk"] and "loadThrew" not in answers:
        assert (said.code, said.out) == (2, "")
        assert "wrong file length" in said.err
        return
    report = said.json
    if "loadThrew" in answers:  # the original ran out of memory; a record that claims 2 GiB is a failure to us
        assert report["commit_log"]["max_offset"] == 152551
        return
    assert report["kind"] == "rocketmq-store"
    assert report["clean"] is not answers["abortFilePresentAtLoad"]
    summary, log = answers["summary"], report["commit_log"]
    assert (log["min_offset"], log["max_offset"]) == (summary["minPhyOffset"], summary["maxPhyOffset"])
    assert [file["name"] for file in log["files"]] == [file["file"] for file in summary["commitLogFiles"]]
    assert {file["size"] for file in log["files"]} <= {config["mappedFileSizeCommitLog"]}
    assert [file["records"] for file in log["files"]] == counts(scenario, log)
    assert [(one["topic"], one["queue_id"], one["min_offset"], one["max_offset"]) for one in report["queues"]] == [
        (one["topic"], one["queueId"], one["minOffset"], one["maxOffset"]) for one in answers["consumeQueues"]
    ]
    check_index_files(report["index_files"], answers["indexFiles"], store)
    check_checkpoint(report["checkpoint"], answers["checkpointAtLoad"])


def counts(scenario: str, log: Json) -> list[int]:
    """Messages in each CommitLog file."""
    offsets = [one["physicalOffset"] for one in golden.records(scenario) if not one.get("blank")]
    held = [offset for offset in offsets if log["min_offset"] <= offset < log["max_offset"]]
    bases = [(int(file["name"]), int(file["name"]) + file["size"]) for file in log["files"]]
    return [sum(base <= offset < end for offset in held) for base, end in bases]


def check_index_files(ours: list[Json], theirs: list[Json], store: Path) -> None:
    there = os.listdir(store / "index") if (store / "index").exists() else []
    assert len(ours) == len(theirs)
    for file, expected in zip(ours, theirs, strict=True):
        assert [file[name] for name in file if name != "name"] == [
            expected["beginTimestamp"],
            expected["endTimestamp"],
            expected["beginPhyOffset"],
            expected["endPhyOffset"],
            expected["hashSlotCount"],
            expected["indexCount"],
        ]
        assert len(file["name"]) == 17
        if expected["file"] in there:  # else it was made by the recovery, at another time than ours
            assert file["name"] == expected["file"]


def check_checkpoint(ours: Json | None, theirs: Json) -> None:
    if not theirs["exists"]:
        assert ours is None
        return
    assert ours == {
        "physic_msg_timestamp": theirs["physicMsgTimestamp"],
        "logics_msg_timestamp": theirs["logicsMsgTimestamp"],
        "index_msg_timestamp": theirs["indexMsgTimestamp"],
    }


def test_groups_with_their_lag() -> None:
    said = golden.manifest("basic-clean")["consumerOffsets"]["table"]
    report = warren("inspect", golden.directory("basic-clean"), "--json").json
    ends = {(queue["topic"], queue["queue_id"]): queue["max_offset"] for queue in report["queues"]}
    table: dict[str, dict[str, int]] = {}
    for one in report["groups"]:
        table.setdefault(f"{one['topic']}@{one['group']}", {})[str(one["queue_id"])] = one["offset"]
        assert one["lag"] == ends.get((one["topic"], one["queue_id"]), 0) - one["offset"]
    assert table == {name: offsets for name, offsets in said.items() if offsets}


def test_damaged_consumer_offsets_are_said_and_the_rest_is_there(tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden.directory("basic-clean"), store)
    for file in (store / "config").iterdir():
        file.write_text('{"offsetTable":')
    said = warren("inspect", store, "--json")
    assert said.json["groups"] == []
    assert "consumerOffset.json" in said.err


def test_tables_for_people() -> None:
    said = warren("inspect", golden.directory("basic-clean"))
    assert said.code == 0
    for word in ("210 records in 9 files", "%RETRY%groupA", "20261120210431719", "order-events", "消费组"):
        assert word in said.out


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "part"), STORES)
def test_a_scan_gives_every_record_and_blank(scenario: str, part: str) -> None:
    said = warren("topic", "scan", golden.unpacked(scenario) / part, "--blanks", "--raw-bodies")
    assert said.code == 0
    messages = warren("topic", "scan", golden.unpacked(scenario) / part, "--raw-bodies")
    assert messages.lines == [line for line in said.lines if "blank" not in line]
    manifest = golden.manifest(scenario)
    expected = golden.records(scenario) if part == "store" else manifest["after"]["result"]["records"]
    assert [without_body(line) for line in said.lines] == [line_of(record) for record in expected]
    for line, record in zip(said.lines, expected, strict=True):
        assert line.get("body") == record.get("bodyBase64", line.get("body"))
    sent = warren("topic", "scan", golden.unpacked(scenario) / part)
    assert sent.lines == [as_sent(line) for line in messages.lines]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", CLEAN)
def test_each_queue_is_read_in_order(scenario: str) -> None:
    store = golden.directory(scenario)
    records = {record["physicalOffset"]: record for record in golden.records(scenario)}
    queues = golden.manifest(scenario)["store"]["consumeQueues"]
    for queue in queues[:: max(len(queues) // 5, 1)]:
        where = ("--topic", queue["topic"], "--queue-id", queue["queueId"])
        said = warren("topic", "read", store, *where, "--json", "--raw-bodies")
        expected = [line_of(records[physical_offset]) for physical_offset, _, _ in queue["entries"]]
        assert (said.code, [without_body(line) for line in said.lines]) == (0, expected)
        entries = warren("topic", "entries", store, *where).lines
        assert entries == queue["entries"]


def test_a_part_of_a_queue() -> None:
    where = (golden.directory("basic-clean"), "--topic", "TopicTest", "--queue-id", 1)
    whole = warren("topic", "read", *where).lines
    assert len(whole) == 20
    assert warren("topic", "read", *where, "--offset", 3, "--max", 4).lines == whole[3:7]
    assert warren("topic", "read", *where, "--offset", 18, "--max", 4).lines == whole[18:]
    assert warren("topic", "read", *where, "--offset", 20).lines == []
    assert "ends at 20, before 21" in refused("topic", "read", *where, "--offset", 21)
    assert "ends at 20, before 21" in refused("topic", "entries", *where, "--offset", 21)
    assert warren("topic", "read", *where, "--max", 0).lines == []
    entries = warren("topic", "entries", *where).lines
    assert warren("topic", "entries", *where, "--offset", 3, "--max", 4).lines == entries[3:7]


def test_entries_of_every_recovered_state(tmp_path: Path) -> None:
    """One queue of each state, another one each time."""
    tried = 0
    for number, (scenario, (name, part, patch, override, mode, answers)) in enumerate(STATES):
        queues = [queue for queue in answers.get("consumeQueues", []) if "entries" in queue]
        if not queues:
            continue
        store = patched(scenario, part, patch, tmp_path / f"{number}")
        queue = queues[number % len(queues)]
        where = ("--topic", queue["topic"], "--queue-id", queue["queueId"], *(["--start"] if "start" in mode else []))
        said = warren("topic", "entries", store, *where, *settings_of(override))
        assert said.lines == queue["entries"], (scenario, name)
        tried += 1
    assert tried >= len(CLEAN)


def test_expired_messages_are_said_and_are_no_damage(tmp_path: Path) -> None:
    variant = next(one for one in golden.manifest("rebuild-minoffset")["variants"] if one["name"] == "expired-only")
    store = patched("rebuild-minoffset", "store", variant["patch"], tmp_path)
    said = warren("topic", "read", store, "--topic", "%RETRY%groupA", "--queue-id", 0)
    assert (said.code, [line["queue_offset"] for line in said.lines]) == (0, list(range(22, 48)))
    assert "queue offset 0 to 21: expired: the CommitLog begins at 98304" in said.err
    assert said.err.count("\n") == 1


def cleared_magic(content: bytes) -> bytes:
    return content[:4] + bytes(4) + content[8:]


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("commitlog/00000000000000196608", None, "missing file: no file for the 65536 bytes from 196608 to 262144"),
        ("commitlog/00000000000000196608", lambda content: content[:9], "wrong file length: 9 bytes, and not 65536"),
        ("commitlog/00000000000000196608", cleared_magic, "damaged record: its magic is 0x00000000"),
        ("consumequeue/TopicTest/0/00000000000000000000", lambda _: b"", "wrong file length: 0 bytes, and not 400"),
    ],
)
def test_inspect_and_verify_have_the_same_words_for_what_is_wrong(
    name: str, change: Callable[[bytes], bytes] | None, words: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden.directory("basic-clean"), store)
    if change is None:
        (store / name).unlink()
    else:
        (store / name).write_bytes(change((store / name).read_bytes()))
    (line,) = warren("inspect", store).err.splitlines()
    assert words in line
    findings = [Finding(**one) for one in json.loads(warren("verify", store, "--json").out)["findings"]]
    assert any(str(finding).startswith(line.removeprefix("warren: ")) for finding in findings)


def test_damage_in_the_middle_is_said_and_the_scan_goes_on_at_the_next_file(tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden.directory("basic-clean"), store)
    damaged = store / "commitlog" / "00000000000000196608"  # not among the last three, at which recovery looks
    content = bytearray(damaged.read_bytes())
    content[4:8] = b"\0\0\0\0"
    damaged.write_bytes(content)
    said = warren("topic", "scan", store, "--blanks")
    assert said.code == 1
    assert f"{damaged}, offset 0: damaged record: its magic is 0x00000000" in said.err
    expected = [one for one in golden.records("basic-clean") if one["physicalOffset"] // 65536 != 3]
    assert [without_body(line) for line in said.lines] == [line_of(record) for record in expected]
    lost = next(one for one in golden.records("basic-clean") if one["physicalOffset"] == 196608)
    said = warren("topic", "read", store, "--topic", lost["topic"], "--queue-id", lost["queueId"])
    assert said.code == 1
    assert lost["queueOffset"] not in [line["queue_offset"] for line in said.lines]
    assert f"queue offset {lost['queueOffset']}: " in said.err


def test_a_scan_that_ends_early_in_a_batch_is_damage(tmp_path: Path) -> None:
    """All records of a batch have one time, so the checkpoint does not tell the last good one from the last one."""
    with package.open(tmp_path / "node") as node:
        place = node.topic("events", queues=1).append_many([b"m%d" % number for number in range(40)]).wait()[5]
    store = tmp_path / "node" / "topics"
    with open(store / "commitlog" / f"{0:020d}", "r+b") as log:
        log.seek(place.physical_offset)
        log.write(bytes(60))
    said = warren("topic", "scan", store)
    assert (said.code, len(said.lines)) == (1, 5)
    assert "the messages after that are left out" in said.err
    said = warren("topic", "scan", "--salvage", store)
    assert (said.code, len(said.lines)) == (1, 39)
    assert f"offset {place.physical_offset}: damaged record" in said.err


def test_a_changed_body_is_read_and_marked(tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden.directory("basic-clean"), store)
    damaged = store / "commitlog" / "00000000000000000000"
    content = bytearray(damaged.read_bytes())
    content[100] ^= 1
    damaged.write_bytes(content)
    assert [line["crc_ok"] for line in warren("topic", "scan", store).lines if "crc_ok" in line].count(False) == 1


def test_a_missing_commit_log_file_is_said(tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden.directory("basic-clean"), store)
    (store / "commitlog" / "00000000000000131072").unlink()
    said = warren("topic", "scan", store, "--blanks")
    assert said.code == 1
    assert "missing file: no file for the 65536 bytes from 131072 to 196608" in said.err
    assert len(said.lines) == len([one for one in golden.records("basic-clean") if one["physicalOffset"] // 65536 != 2])


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["basic-clean", "crash-recovery"])
def test_each_file_with_entries_that_is_missing_is_reported(scenario: str, tmp_path: Path) -> None:
    """But for a queue's last file after a crash: recovery makes it again from the CommitLog."""
    store = tmp_path / "store"
    shutil.copytree(golden.directory(scenario), store)
    sizes = settings_of(golden.manifest(scenario)["config"])
    for queue in sorted((store / "consumequeue").glob("*/*")):
        where = ("--topic", queue.parent.name, "--queue-id", queue.name, *sizes)
        whole = warren("topic", "read", store, *where).lines
        files = sorted(queue.iterdir())
        for file in files if scenario in CLEAN else files[:-1]:
            file.rename(tmp_path / "away")
            said = warren("topic", "read", store, *where)
            (tmp_path / "away").rename(file)
            assert len(said.lines) < len(whole), file
            assert said.code == 1, file
            assert f"{queue}: " in said.err


def test_the_last_file_of_the_commit_log_that_is_missing_after_a_clean_stop_is_reported(tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden.directory("basic-clean"), store)
    max((store / "commitlog").iterdir()).unlink()
    said = warren("topic", "scan", store, *settings_of(golden.manifest("basic-clean")["config"]))
    assert said.code == 1
    assert "missing messages: 8 entries of messages after the end of the CommitLog are ignored" in said.err


def test_a_commit_log_that_lies_elsewhere_is_read_there(tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden.directory("basic-clean"), store)
    expected = warren("topic", "scan", store).lines
    (store / "commitlog").rename(tmp_path / "log")
    elsewhere = ("--set", f"storePathCommitLog={tmp_path / 'log'}")
    assert warren("topic", "scan", store, *elsewhere).lines == expected
    assert warren("verify", store, *elsewhere).code == 0


def test_that_a_body_does_not_match_its_crc_is_said(tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden.directory("basic-clean"), store)
    (*_, log) = sorted((store / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    data[100] ^= 0xFF  # in the body of its first message
    log.write_bytes(data)
    said = warren("inspect", store, "--json")
    assert "bytes after the last good record are ignored: a record's body does not match its CRC" in said.err


def test_what_recovery_cut_off_is_said(tmp_path: Path) -> None:
    variant = next(one for one in golden.manifest("crash-recovery")["variants"] if one["name"] == "torn-zero-tail")
    store = patched("crash-recovery", "store", variant["patch"], tmp_path)
    for command in (["inspect", store, "--json"], ["topic", "scan", store]):
        said = warren(*command)
        assert said.code == 0
        assert "00000000000000131072, offset 21479: 488 bytes after the last good record are ignored" in said.err
        assert "index file unused" in said.err


# ── the index, and time ──────────────────────────────────────────────────────────────────────────────────────────────


def queries_of(answers: Json) -> Iterator[tuple[Json, list[str]]]:
    for query in answers["indexQueries"]:
        yield query, [
            "--topic", query["topic"], "--key", query["key"], "--max", str(query["maxNum"]),
            "--begin", str(query["begin"]), "--end", str(query["end"]),
        ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "state"), STATES, ids=[f"{scenario}:{state[0]}" for scenario, state in STATES])
def test_queries_and_times_are_answered_as_the_original_does(
    scenario: str, state: tuple[str, str, list[Json], Json, str, Json], tmp_path: Path
) -> None:
    _, part, patch, override, mode, answers = state
    if "indexQueries" not in answers:
        assert not answers["loadOk"]
        return
    store = patched(scenario, part, patch, tmp_path)
    config = {name: str(value).lower() for name, value in (golden.manifest(scenario)["config"] | override).items()}
    config["flushDiskType"] = "ASYNC_FLUSH"
    with open_rocketmq(str(store), config, start="start" in mode) as opened:
        for query in answers["indexQueries"]:
            found = opened.store.query(query["topic"], query["key"], query["maxNum"], query["begin"], query["end"])
            assert found == query["phyOffsets"], query
        for one in answers.get("offsetByTime", []):
            found_offset = opened.store.offset_by_time(one["topic"], one["queueId"], one["timestamp"])
            assert found_offset == one["offset"], one
    query, arguments = max(queries_of(answers), key=lambda one: len(one[0]["phyOffsets"]))
    start = ["--start"] if "start" in mode else []
    said = warren("topic", "query", store, *arguments, "--json", *start, *settings_of(override))
    assert said.json == {"physical_offsets": query["phyOffsets"]}


@pytest.mark.slow
@pytest.mark.parametrize("scenario", CLEAN)
def test_some_queries_and_times_by_command_line(scenario: str) -> None:
    store, answers = golden.directory(scenario), golden.manifest(scenario)["store"]
    for query, arguments in list(queries_of(answers))[::60]:
        assert warren("topic", "query", store, *arguments, "--json").json == {"physical_offsets": query["phyOffsets"]}
        said = warren("topic", "query", store, *arguments, "--offsets")
        assert said.out == "".join(f"{physical_offset}\n" for physical_offset in query["phyOffsets"])
    for one in answers["offsetByTime"][::60]:
        where = ("--topic", one["topic"], "--queue-id", one["queueId"], "--timestamp", one["timestamp"])
        assert warren("topic", "offset-at", store, *where, "--json").json == {"offset": one["offset"]}
        assert warren("topic", "offset-at", store, *where).out == f"{one['offset']}\n"


def test_a_query_answers_32_unless_told_and_never_more_than_a_batch(tmp_path: Path) -> None:
    files, host = RealFileSystem(), Host.parse("10.0.0.1:1")
    small = attrs.evolve(ROCKETMQ_4_9, mapped_file_size_commit_log=1 << 16, max_hash_slot_num=10, max_index_num=1000)
    store = load_store(files, str(tmp_path), small, new_index_name=index_names())
    store.start()
    bodies = [b"%d" % number for number in range(100)]
    store.append(
        Batch(
            topic="T", queue_id=0, bodies=bodies, properties=b"KEYS\x01k", born_timestamp=1, born_host=host,
            store_host=host,
        ),
        1_700_000_000_000,
    )  # fmt: skip
    store.close()
    newest_first = [line["physical_offset"] for line in warren("topic", "scan", tmp_path).lines][::-1]
    assert len(newest_first) == 100
    asked = ("topic", "query", tmp_path, "--topic", "T", "--key", "k", "--json")
    assert warren(*asked).json["physical_offsets"] == newest_first[:32]
    assert warren(*asked, "--max", 10_000).json["physical_offsets"] == newest_first[:64]
    assert warren(*asked, "--set", "maxMsgsNumBatch=5").json["physical_offsets"] == newest_first[:5]
    assert warren(*asked, "--max", 0).json["physical_offsets"] == []


def test_exact_leaves_out_other_keys_and_names_a_message_once() -> None:
    scenario = "index-rollover-collide"
    records = {one["physicalOffset"]: one for one in golden.records(scenario)}
    reduced = 0
    seen: set[tuple[str, str]] = set()
    for query, arguments in queries_of(golden.manifest(scenario)["store"]):
        if query["begin"] or query["maxNum"] != 64 or (query["topic"], query["key"]) in seen or len(seen) == 25:
            continue
        seen.add((query["topic"], query["key"]))
        expected = [
            offset
            for offset in dict.fromkeys(query["phyOffsets"])
            if records[offset]["topic"] == query["topic"]
            and query["key"] in [records[offset]["uniqKey"], *(records[offset]["keys"] or "").split(" ")]
        ]
        said = warren("topic", "query", golden.directory(scenario), *arguments, "--exact", "--json")
        assert said.json == {"physical_offsets": expected}
        reduced += len(expected) < len(query["phyOffsets"])
    assert reduced > 1


def test_a_query_writes_the_messages_with_the_key() -> None:
    store = golden.directory("index-rollover-collide")
    asked = ("topic", "query", store, "--topic", "TopicTest", "--key", "BB")
    said = warren(*asked)
    assert said.code == 0
    assert [line["physical_offset"] for line in said.lines] == warren(*asked, "--exact", "--json").json[
        "physical_offsets"
    ]
    assert all("BB" in line["keys"].split() for line in said.lines)
    assert said.lines
    assert warren("topic", "query", store, "--topic", "TopicTest", "--key", "nobodys").code == 0


def test_a_query_of_an_unknown_topic_is_an_error_that_suggests_one() -> None:
    said = warren("topic", "query", golden.directory("basic-clean"), "--topic", "TopicTst", "--key", "id29")
    assert (said.code, said.out) == (2, "")
    assert "no topic 'TopicTst'" in said.err
    assert "did you mean 'TopicTest'?" in said.err


def test_no_message_is_found_by_an_empty_key() -> None:
    with open_rocketmq(golden.directory("index-rollover-collide"), {}) as opened:
        log = opened.store.commit_log
        records = [item for item in log.items(log.min_offset) if isinstance(item, Record)]
    assert records
    assert not any(carries(record, record.topic, "") for record in records)


def test_exact_says_which_messages_have_expired(tmp_path: Path) -> None:
    variant = next(one for one in golden.manifest("rebuild-minoffset")["variants"] if one["name"] == "expired-only")
    store = patched("rebuild-minoffset", "store", variant["patch"], tmp_path)
    asked = ("topic", "query", store, "--topic", "TopicTest", "--key", "BB", "--max", 64, "--json")
    found = warren(*asked).json["physical_offsets"]
    said = warren(*asked, "--exact")
    assert min(found) == 0
    assert said.code == 1
    assert set(json.loads(said.out)["physical_offsets"]) <= {offset for offset in found if offset >= 98304}
    assert "at 0: the log, from 98304 to 217753, has no record there" in said.err


@pytest.mark.parametrize(
    "entry", golden.manifest("index-rollover-collide")["hashes"], ids=lambda entry: entry["string"]
)
def test_hashes(entry: Json) -> None:
    assert warren("topic", "hash", "--", entry["string"]).json == {
        "java_hash": entry["javaHashCode"],
        "index_hash": entry["indexKeyHashMethod"],
        "tags_code": entry["tagsCode"],
    }


# ── rebuild ──────────────────────────────────────────────────────────────────────────────────────────────────────────

IDENTICAL = [(scenario, part) for scenario, part in STORES if (scenario, part) != ("crash-recovery", "after")]
"""Where the writer had lost nothing and put nothing twice."""


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "part"), IDENTICAL)
def test_a_rebuild_gives_the_same_bytes(scenario: str, part: str, tmp_path: Path) -> None:
    store, out = golden.unpacked(scenario) / part, tmp_path / "out"
    before = tree(store) if scenario != "default-index" else {}
    said = warren("topic", "rebuild", store, "--out", out, "--check", "--json")
    report = said.json
    assert report["check"]["equal"] is True
    assert {one["result"] for one in report["check"]["files"]} == {"equal"}
    assert report["records"] == sum(not one.get("blank") for one in records_of(scenario, part))
    for kind in ("consumequeue", "index"):
        theirs = sorted(path for path in (store / kind).rglob("*") if path.is_file())
        ours = sorted(path for path in (out / kind).rglob("*") if path.is_file())
        assert len(ours) == len(theirs)
        assert sorted(report["files"]) == sorted(
            str(path.relative_to(out)) for name in ("consumequeue", "index") for path in (out / name).rglob("*")
            if path.is_file()
        )  # fmt: skip
        for one, other in zip(ours, theirs, strict=True):
            assert kind == "index" or one.relative_to(out) == other.relative_to(store)
            assert one.stat().st_size == other.stat().st_size
            assert one.stat().st_blocks <= other.stat().st_blocks + 64  # as sparse as it was
            if one.stat().st_size < 10_000_000:
                assert one.read_bytes() == other.read_bytes()
    assert sorted(os.listdir(out)) == ["consumequeue", "index"]
    if before:
        assert tree(store) == before


def records_of(scenario: str, part: str) -> list[Json]:
    found: list[Json] = golden.manifest(scenario)["after"]["result"]["records"] if part == "after" else []
    return found or golden.records(scenario)


def checked(store: Path, out: Path) -> dict[str, tuple[str, int | None]]:
    said = warren("topic", "rebuild", store, "--out", out, "--check", "--json")
    report = json.loads(said.out)
    assert said.code == (0 if report["check"]["equal"] else 1)
    return {one["file"]: (one["result"], one["offset"]) for one in report["check"]["files"] if one["result"] != "equal"}


def test_after_a_crash_keys_that_were_put_twice_are_a_difference(tmp_path: Path) -> None:
    differing = checked(golden.unpacked("crash-recovery") / "after", tmp_path / "out")
    (name,) = differing
    assert name == "index/20261120210610508"  # the last one; queues differ only after their ends
    assert differing[name][0] == "different"


def test_what_does_not_belong_to_the_commit_log_is_found(tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden.directory("basic-clean"), store)
    changed = store / "consumequeue" / "TopicTest" / "0" / "00000000000000000000"
    content = bytearray(changed.read_bytes())
    content[47] ^= 1
    changed.write_bytes(content)
    index = store / "index" / "20261120210431719"
    content = bytearray(index.read_bytes())
    content[2040 + 20 * 7 + 3] ^= 1
    index.write_bytes(content)
    (store / "consumequeue" / "TopicTest" / "1" / "00000000000000000000").unlink()
    shutil.copytree(store / "consumequeue" / "order-events" / "0", store / "consumequeue" / "order-events" / "7")
    assert checked(store, tmp_path / "out") == {
        "consumequeue/TopicTest/0/00000000000000000000": ("different", 47),
        "consumequeue/TopicTest/1/00000000000000000000": ("missing", None),
        "consumequeue/order-events/7/00000000000000000000": ("superfluous", None),
        "index/20261120210431719": ("different", 2040 + 20 * 7 + 3),
    }
    said = warren("topic", "rebuild", store, "--out", tmp_path / "again", "--check")
    assert said.code == 1
    assert "consumequeue/TopicTest/0/00000000000000000000: different from offset 47 on" in said.out


def test_an_index_that_began_before_the_commit_log_is_compared_item_by_item(tmp_path: Path) -> None:
    variant = next(one for one in golden.manifest("rebuild-minoffset")["variants"] if one["name"] == "expired-only")
    store = patched("rebuild-minoffset", "store", variant["patch"], tmp_path)
    differing = checked(store, tmp_path / "out")
    assert {outcome for outcome, _ in differing.values()} == {"expired"}
    last = sorted(os.listdir(store / "index"))[-1]
    content = bytearray((store / "index" / last).read_bytes())
    content[240 + 20 * 5 + 3] ^= 1
    (store / "index" / last).write_bytes(content)
    differing = checked(store, tmp_path / "again")
    assert differing[f"index/{last}"] == ("different", 240 + 20 * 5)


def test_a_rebuild_goes_into_an_empty_directory_outside_of_the_store(tmp_path: Path) -> None:
    store = golden.directory("basic-clean")
    (tmp_path / "file").touch()
    assert "not to be changed" in refused("topic", "rebuild", store, "--out", f"{store}/new")
    assert "not an empty directory" in refused("topic", "rebuild", store, "--out", tmp_path)
    assert "not an empty directory" in refused("topic", "rebuild", store, "--out", tmp_path / "file")


# ── what it is opened from, and what stays as it is ──────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["basic-clean", "default-index", "crash-recovery"])
def test_an_archive_answers_as_the_directory_does(scenario: str) -> None:
    archive, store = golden.GOLDEN / f"{scenario}.tar.gz", golden.directory(scenario)
    report, other = (warren("inspect", path, "--json").json for path in (archive, store))
    if scenario == "crash-recovery":  # recovery makes an index file, and names it by the time
        del report["index_files"][-1]["name"], other["index_files"][-1]["name"]
    assert report == other
    where = ("--topic", "TopicTest", "--queue-id", 0)
    assert warren("topic", "read", archive, *where).out == warren("topic", "read", store, *where).out


def test_offset_at_of_an_archive_knows_the_files_times() -> None:
    scenario = "rebuild-minoffset"
    for one in golden.manifest(scenario)["store"]["offsetByTime"][::80]:
        where = ("--topic", one["topic"], "--queue-id", one["queueId"], "--timestamp", one["timestamp"])
        archive = golden.GOLDEN / f"{scenario}.tar.gz"
        assert warren("topic", "offset-at", archive, *where, "--json").json == {"offset": one["offset"]}


def test_one_of_several_stores_in_an_archive_can_be_named() -> None:
    archive = golden.GOLDEN / "rebuild-minoffset.tar.gz"
    assert warren("inspect", archive, "--json").json["commit_log"]["min_offset"] == 0
    assert warren("inspect", archive / "after", "--json").json["commit_log"]["min_offset"] == 98304
    assert "there is no before in" in refused("inspect", archive / "before")


def test_nothing_is_written(tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden.directory("crash-recovery"), store)
    paths = [store, *store.rglob("*")]
    for path in paths:
        path.chmod(stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))
    before = tree(store)
    where = ("--topic", "TopicTest", "--queue-id", "0")
    for arguments in (
        ["inspect", store],
        ["topic", "read", store, *where],
        ["topic", "scan", store],
        ["topic", "entries", store, *where],
        ["topic", "query", store, *where[:2], "--key", "BB", "--exact"],
        ["topic", "offset-at", store, *where, "--timestamp", "1700000100000"],
        ["topic", "rebuild", store, "--out", tmp_path / f"out-{len(before)}", "--check"],
    ):
        assert warren(*arguments).code == 0
        if arguments[1] in ("read", "scan", "entries"):
            assert warren(*arguments, "--start").code == 0
    assert tree(store) == before
    for path in paths:
        path.chmod(stat.S_IRWXU)


def test_a_nodes_directory_with_queues_and_topics_is_reported_as_both(tmp_path: Path) -> None:
    from warren.salvage.archives.archive import unpack

    (tmp_path / "msg_stores").mkdir()
    unpack(str(golden.GOLDEN.parent / "12-crash-torn-journal.tar.gz"), str(tmp_path / "msg_stores"))
    alone = warren("inspect", tmp_path, "--json").json
    shutil.copytree(golden.directory("basic-clean"), tmp_path / "topics")
    both = warren("inspect", tmp_path, "--json").json
    assert both.pop("topics") == warren("inspect", tmp_path / "topics", "--json").json
    assert both == alone
    assert "210 records" in warren("inspect", tmp_path).out
    assert len(warren("topic", "scan", tmp_path, "--blanks").lines) == 218
    (tmp_path / "topics" / "commitlog" / "00000000000000524288").write_bytes(b"short")
    said = warren("inspect", tmp_path, "--json")
    assert (said.code, json.loads(said.out)) == (1, alone | {"topics": None})
    assert "wrong file length: 5 bytes, and not 65536 as the settings say" in said.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["topic", "read", "{store}", "--topic", "TopicTest", "--queue-id", "3"], "its queues are 0, 1, 2"),
        (["topic", "entries", "{store}", "--topic", "Nobody", "--queue-id", "0"], "no queue 0 of the topic 'Nobody'"),
        (["topic", "offset-at", "{store}", "--topic", "A", "--queue-id", "0", "--timestamp", "1"], "no queue"),
        (
            ["topic", "offset-at", "{store}", "--topic", "TopicTst", "--queue-id", "0", "--timestamp", "1"],
            "no queue 0 of the topic 'TopicTst'; did you mean 'TopicTest'?",
        ),
        (["topic", "read", "{store}", "--topic", "TopicTst", "--queue-id", "0"], "did you mean 'TopicTest'?"),
        (["topic", "entries", "{store}", "--topic", "TopicTst", "--queue-id", "0"], "did you mean 'TopicTest'?"),
        (["topic", "groups", "{store}", "--topic", "TopicTst"], "did you mean 'TopicTest'?"),
        (["topic", "scan", "{store}", "--set", "nonsense=1"], "there is no setting 'nonsense'"),
        (["topic", "scan", "{store}", "--set", "maxIndexNum"], "expected NAME=VALUE"),
        (["topic", "scan", "{store}", "--set", "maxIndexNum=many"], "must be a whole number"),
        (["topic", "scan", "{store}", "--set", "mappedFileSizeCommitLog=4096"], "bytes, and not 4096"),
        (["topic", "scan", "/no/such/place"], "no such file or directory"),
        (["topic", "scan", "{queues}"], "is no RocketMQ store folder"),
        (["topic", "scan", "{store}/commitlog/00000000000000000000"], "not a .tar.gz"),
        (["export", "{store}"], "is a RocketMQ store, which has no queues"),
        (["inspect", "{store}", "--set", "x"], "expected NAME=VALUE"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(arguments: list[str], reason: str) -> None:
    places = {"store": golden.directory("basic-clean"), "queues": golden.GOLDEN.parent / "12-crash-torn-journal.tar.gz"}
    assert reason in refused(*(argument.format(**places) for argument in arguments))


def test_settings_under_rocketmqs_names_and_ours() -> None:
    store = golden.directory("basic-clean")
    for name in ("mappedFileSizeCommitLog", "mapped_file_size_commit_log"):
        report = warren("inspect", store, "--json", "--set", f"{name}=65536").json
        assert report["settings"]["mappedFileSizeCommitLog"] == {"value": 65536, "from": "set"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_damage_anywhere_ends_in_an_answer_or_in_one_line(seed: int, tmp_path: Path) -> None:
    chance, store = random.Random(seed), tmp_path / "store"
    scenario = chance.choice([one for one in golden.SCENARIOS if one != "default-index"])
    shutil.copytree(golden.directory(scenario), store)
    for path in chance.sample(sorted(path for path in store.rglob("*") if path.stat().st_size and path.is_file()), 3):
        content = bytearray(path.read_bytes())
        for _ in range(4):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            content[chance.randrange(min(len(content), 100))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
    where = ("--topic", "TopicTest", "--queue-id", 0)
    for arguments in (
        ["inspect", store, "--start"],
        ["topic", "read", store, *where],
        ["topic", "query", store, *where[:2], "--key", "BB", "--exact"],
        ["topic", "offset-at", store, *where, "--timestamp", 1_700_000_100_000],
        ["topic", "rebuild", store, "--out", tmp_path / "out", "--check"],
    ):
        said = warren(*arguments)
        assert said.code in (0, 1, 2), (scenario, arguments)
        assert said.code != 2 or said.out == "", (scenario, arguments)


def test_a_damaged_index_answers_what_it_has_and_says_so(tmp_path: Path) -> None:
    place = tmp_path / "store"
    shutil.copytree(golden.directory("basic-clean"), place)
    queries = golden.manifest("basic-clean")["store"]["indexQueries"]
    question = next(query for query in queries if len(query["phyOffsets"]) > 2 and query["begin"] == 0)
    [index] = (place / "index").iterdir()
    layout = golden.settings("basic-clean").max_hash_slot_num
    data = bytearray(index.read_bytes())
    slot = 40 + 4 * (index_hash(f"{question['topic']}#{question['key']}") % layout)
    newest = int.from_bytes(data[slot : slot + 4], "big")
    item = 40 + 4 * layout + 20 * newest
    data[item + 16 : item + 20] = (newest + 1).to_bytes(4, "big")  # a newer item as the one before it
    index.write_bytes(data)
    named = ["--set", f"maxHashSlotNum={layout}", "--set", "maxIndexNum=2000"]
    said = warren("topic", "query", place, "--topic", question["topic"], "--key", question["key"], "--json", *named)
    found = json.loads(said.out)["physical_offsets"]
    assert found == question["phyOffsets"][: len(found)]
    assert len(found) < len(question["phyOffsets"])
    assert said.code == 1
    assert "damaged index" in said.err
