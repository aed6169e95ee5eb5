"""The demo's acts with topics: what ships is what RocketMQ left and said, and each kind of failure is noticed."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from rich.console import Console

import warren
from examples.demo import dead_rocketmq
from examples.demo.acts import Stage
from examples.demo.bars import Chart, Progress
from examples.demo.checking import Check, Faults, together
from examples.demo.dead_rocketmq import Salvaged, compare_answers, compare_topics, not_found, salvage
from examples.demo.numbered import body_of
from examples.demo.publisher import Plan
from examples.demo.screen import Screen
from examples.demo.shipped import digest_of
from examples.demo.shipped_store import (
    ARCHIVE,
    TopicRead,
    keys_of,
    load_oracle,
    open_store,
    read_keys,
    read_topics,
    summed_up,
)
from examples.demo.topic_checking import GroupCheck, Orders, QueuePosition, compare_found, compare_lags
from examples.demo.topics import TopicPlayed, play
from tests.support import rocketmq_golden as golden
from tests.support.topic_tools import RECORD
from warren.msg_store.commit_log.packed_records import packed_again
from warren.salvage.rocketmq.rocketmq_store import RocketmqStore, open_rocketmq
from warren.values.topic_record import StoredMessage

SCENARIO = "crash-recovery"
ORDERS = Orders(20)
PLACES: list[QueuePosition] = [(number % 2, number // 2) for number in range(20)]


def new_stage(directory: Path, *, terminal: bool = False) -> tuple[Stage, io.StringIO]:
    text = io.StringIO()
    console = Console(file=text, width=100, force_terminal=terminal, highlight=False)
    return Stage(str(directory), Plan(20_000), Screen(console, lambda: 0.0)), text


def failed(checks: list[Check]) -> list[str]:
    return [check.name for check in checks if not check.held]


def variant(name: str) -> dict[str, Any]:
    (found,) = [one for one in golden.manifest(SCENARIO)["variants"] if one["name"] == name]
    return found


# ── what ships ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_shipped_store_is_the_one_that_rocketmq_left_but_for_its_checkpoint() -> None:
    [step] = variant("checkpoint-index-zero")["patch"]
    assert step["path"] == "checkpoint"
    said = {
        one["path"]: (one["size"], one["mtimeMs"], one["sha256"]) for one in golden.manifest(SCENARIO)["storeFiles"]
    }
    left = (Path(golden.directory(SCENARIO)) / "checkpoint").read_bytes()
    there = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            if member.isfile():
                content = archive.extractfile(member)
                assert content is not None
                name, data = member.name.removeprefix("store/"), content.read()
                if name == "checkpoint":
                    written = bytes.fromhex(step["hex"])
                    assert data == written + left[len(written) :]
                    data = left
                there[name] = (len(data), int(member.mtime * 1000), hashlib.sha256(data).hexdigest())
    assert there == said


def test_what_rocketmq_said_is_what_the_manifest_says() -> None:
    oracle = load_oracle()
    whole, recovered = (variant(name)["result"] for name in ("checkpoint-missing", "checkpoint-index-zero"))
    records = [record for record in golden.records(SCENARIO) if not record.get("blank")]
    for name, read in oracle.topics.items():
        own = sorted(
            (record for record in records if record["topic"] == name),
            key=lambda one: (one["queueId"], one["queueOffset"]),
        )
        digests = b"".join(bytes.fromhex(record["bodySha256"]) for record in own)
        queues = {record["queueId"] for record in own}
        assert read == TopicRead(len(queues), len(own), hashlib.sha256(digests).hexdigest())
    assert sum(read.messages for read in oracle.topics.values()) == len(records) == recovered["messagesReadable"]
    for result, keys in ((whole, oracle.keys.whole), (recovered, oracle.keys.recovered)):
        assert keys == sum(file["indexCount"] - 1 for file in result["indexFiles"])
    asked = [
        (one["topic"], one["key"], one["phyOffsets"], other["phyOffsets"])
        for one, other in zip(whole["indexQueries"], recovered["indexQueries"], strict=True)
    ]
    assert [attrs.astuple(query) for query in oracle.queries] == asked


def test_keys_are_those_of_the_manifest() -> None:
    with open_store() as opened:
        found = {
            (record.topic, record.queue_id, record.queue_offset): keys_of(record)
            for queues in read_topics(opened).values()
            for queue in queues
            for record in queue
        }
    for record in golden.records(SCENARIO):
        if not record.get("blank"):
            unique = [record["uniqKey"]] if record["uniqKey"] else []
            own = found.pop((record["topic"], record["queueId"], record["queueOffset"]))
            assert own == unique + [key for key in (record["keys"] or "").split(" ") if key]
    assert found == {}


# ── the act with the dead broker's store ─────────────────────────────────────────────────────────────────────────────


@contextmanager
def damaged_store(tmp_path: Path, name: str, offset: int, bit: int) -> Iterator[RocketmqStore]:
    """The shipped store with one bit of one file flipped."""
    shutil.unpack_archive(ARCHIVE, tmp_path / "damaged", filter="data")
    path = tmp_path / "damaged" / "store" / name
    data = bytearray(path.read_bytes())
    data[offset] ^= bit
    path.write_bytes(data)
    with open_rocketmq(str(tmp_path / "damaged"), {}) as opened:
        yield opened


def salvaged_of_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, offset: int, bit: int = 1
) -> Salvaged:
    monkeypatch.setattr(dead_rocketmq, "open_store", lambda: damaged_store(tmp_path, name, offset, bit))
    stage, _ = new_stage(tmp_path / "work")
    return salvage(stage)


def test_the_dead_brokers_keys_are_lost_by_its_recovery_and_found_by_rebuilding(tmp_path: Path) -> None:
    stage, text = new_stage(tmp_path / "work")
    salvaged = salvage(stage)
    assert failed(salvaged.checks()) == []
    assert (salvaged.messages, salvaged.keys, salvaged.keys_lost, salvaged.rebuilt_files) == (320, 763, 647, 33)
    printed = " ".join(text.getvalue().split())
    assert "deletes 7 index files" in printed
    assert "the last 22,455 of 153,527 bytes" in printed
    assert "Of 763 keys it has then lost 647." in printed
    assert "763 of 763 keys find their message" in printed
    assert len(list((tmp_path / "work" / "rebuilt" / "index").iterdir())) == 7


def test_a_damaged_message_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = variant("crc-mid-last-file")
    [step] = real["patch"]
    salvaged = salvaged_of_damaged(tmp_path, monkeypatch, step["path"], step["offset"])
    assert salvaged.messages == real["result"]["messagesReadable"] < 320
    assert "RocketMQ 4.9.3's 320 messages are those that it read itself" in failed(salvaged.checks())
    assert "TopicTest differs in messages, sha256" in str(salvaged.read)


def test_a_damaged_entry_of_the_dead_brokers_is_told_from_the_rebuilt_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, in_the_tags_code = "consumequeue/TopicTest/0/00000000000000000000", 19
    salvaged = salvaged_of_damaged(tmp_path, monkeypatch, name, in_the_tags_code)
    assert failed(salvaged.checks()) == ["what is built anew is, to the last byte, what RocketMQ 4.9.3 had written"]
    assert str(salvaged.differing) == f"{name}: different"


def test_a_topic_that_is_not_what_rocketmq_read_is_named() -> None:
    with open_store() as opened:
        read = read_topics(opened)
    found = {name: summed_up(queues) for name, queues in read.items()}
    changed = [*read["TopicTest"][0]]
    changed[3] = attrs.evolve(changed[3], body=b"other")
    for damage, fault in (
        ({"TopicTest": summed_up([changed, *read["TopicTest"][1:]])}, "TopicTest differs in sha256"),
        ({"TopicTest": summed_up(read["TopicTest"][1:])}, "TopicTest differs in queues, messages, sha256"),
        ({"other": TopicRead(1, 0, digest_of([]))}, "other: RocketMQ had none"),
    ):
        salvaged = Salvaged(load_oracle())
        compare_topics({**found, **damage}, salvaged)
        assert str(salvaged.read) == fault
    salvaged = Salvaged(load_oracle())
    compare_topics({name: one for name, one in found.items() if name != "order-events"}, salvaged)
    assert str(salvaged.read) == "order-events: missing"


def test_an_index_that_has_lost_keys_is_not_taken_for_a_whole_one() -> None:
    oracle, recovered, whole = load_oracle(), Faults(), Faults()
    with open_store() as opened:
        compare_answers(opened.store.index, oracle, recovered, is_whole=False)
        compare_answers(opened.store.index, oracle, whole, is_whole=True)
        lost = not_found(opened.store.index, read_keys(opened))
    assert recovered.count == 0
    assert whole.count == 1 + sum(query.whole != query.recovered for query in oracle.queries)
    assert whole.named[0] == "116 keys in place of 763"
    assert {key.physical_offset for key in lost} <= set(range(131_072))


# ── what the check of a group notices ────────────────────────────────────────────────────────────────────────────────


def message(number: int, **changes: Any) -> StoredMessage:
    """Message ``number`` as it was appended."""
    queue_id, queue_offset = PLACES[number]
    record = attrs.evolve(
        RECORD,
        queue_id=queue_id,
        queue_offset=queue_offset,
        body=body_of(number),
        properties=b"KEYS\x01" + ORDERS.key(number).encode(),
    )
    return StoredMessage(packed_again(attrs.evolve(record, **changes)))


def checked(read: Sequence[tuple[str, StoredMessage]]) -> tuple[int, int, int]:
    """Lost, misplaced, damaged of what was read, by whom."""
    check = GroupCheck("billing", ORDERS, PLACES)
    for reader, one in read:
        check.take(reader, [one])
    check.finish()
    assert check.read == len(read)
    return check.lost.count, check.misplaced.count, check.damaged.count


def by_queue(numbers: Sequence[int]) -> list[tuple[str, StoredMessage]]:
    """Each queue read by a reader of its own."""
    return [(f"billing {PLACES[number][0]}", message(number)) for number in numbers]


@pytest.mark.parametrize("numbers", [range(20), [*range(0, 20, 2), *range(1, 20, 2)]])
def test_queues_may_be_read_in_any_turn(numbers: Sequence[int]) -> None:
    assert checked(by_queue(numbers)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ([*range(7), *range(8, 20)], (1, 0, 0)),
        (range(18), (2, 0, 0)),
        ([], (20, 0, 0)),
        ([*range(6), 8, 7, 6, *range(9, 20)], (0, 1, 0)),
        ([*range(10), 9, *range(10, 20)], (0, 1, 0)),
    ],
    ids=["one missing", "the end missing", "everything missing", "two exchanged in a queue", "one twice"],
)
def test_a_group_that_read_wrongly_is_noticed(numbers: Sequence[int], found: tuple[int, int, int]) -> None:
    assert checked(by_queue(numbers)) == found


def test_two_readers_in_one_queue_are_noticed() -> None:
    read = by_queue(range(20))
    read[4] = ("billing 1", read[4][1])
    assert checked(read) == (0, 1, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"body": b"other"},
        {"body": body_of(4)[:-1] + b"?"},
        {"body": body_of(1_000)},
        {"body": body_of(5)},
        {"properties": b"KEYS\x01order-0000000"},
        {"properties": b""},
        {"queue_id": 1},
        {"queue_offset": 3},
    ],
)
def test_a_message_that_is_another_one_is_noticed(changes: dict[str, Any]) -> None:
    read = by_queue(range(20))
    read[4] = (read[4][0], message(4, **changes))
    assert checked(read) == (1, 0, 1)


def test_what_is_found_by_key_must_be_all_of_it_the_newest_first() -> None:
    right = [message(number) for number in (14, 8, 2)]
    assert list(ORDERS.numbers(2)) == [14, 8, 2]
    for found in (right[1:], right[::-1], [*right, right[0]], [], [right[0], message(3), right[2]]):
        faults = Faults()
        compare_found(2, found, ORDERS, PLACES, faults)
        assert faults.count == 1
        assert "order-0000002" in str(faults)
    faults = Faults()
    compare_found(2, right, ORDERS, PLACES, faults)
    assert faults.count == 0


def test_every_message_is_of_one_order() -> None:
    for total in (1, 2, 3, 20, 31):
        orders = Orders(total)
        assert sorted(number for order in range(orders.count) for number in orders.numbers(order)) == [*range(total)]


def test_a_group_that_is_behind_is_noticed() -> None:
    faults = Faults()
    compare_lags("billing", {0: 0, 1: 7}, faults)
    assert str(faults) == "billing is 7 messages behind in queue 1 (7 in all)"


def test_faults_of_both_groups_are_told_together() -> None:
    one, other = Faults(), Faults()
    for number in range(4):
        one.add(f"one {number}")
        other.add(f"other {number}", 2)
    assert str(together([one, other])) == "one 0; one 1; one 2; one 3; other 0 (12 in all)"


# ── the act with the topic ───────────────────────────────────────────────────────────────────────────────────────────


def between_the_nodes(monkeypatch: pytest.MonkeyPatch, do: Callable[[Path], object]) -> None:
    """Do something to the node's directory while it is stopped."""
    open_node, opened = warren.open, list[str]()

    def open_again(directory: str) -> warren.Node:
        opened.append(directory)
        if len(opened) == 2:
            do(Path(directory))
        return open_node(directory)

    monkeypatch.setattr(warren, "open", open_again)


@pytest.fixture(scope="module")
def topic_played(tmp_path_factory: pytest.TempPathFactory) -> tuple[TopicPlayed, str]:
    stage, text = new_stage(tmp_path_factory.mktemp("topic"))
    return play(stage), text.getvalue()


def test_the_topic_is_read_by_both_groups_and_found_by_key(topic_played: tuple[TopicPlayed, str]) -> None:
    played, text = topic_played
    assert failed(played.checks()) == []
    figures = played.to_json()
    assert [figures[name] for name in ("messages", "read", "groups", "readers")] == [5_000, 10_000, 2, 3]
    assert played.messages_found == sum(len(played.orders.numbers(order)) for order in range(0, 1_666, 3))
    assert "\x1b" not in text


@pytest.mark.slow
def test_groups_that_forget_where_they_were_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(node: Path) -> None:
        for path in node.rglob("consumerOffset.json*"):
            path.unlink()

    between_the_nodes(monkeypatch, forget)
    played = play(new_stage(tmp_path)[0])
    assert failed(played.checks()) == ["after a clean stop and a start both groups are where they were, at the end"]
    assert played.behind.count >= 10_000


def test_an_index_that_is_lost_while_the_node_is_stopped_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(node: Path) -> None:
        for path in node.glob("topics/index/*"):
            path.unlink()

    between_the_nodes(monkeypatch, forget)
    played = play(new_stage(tmp_path)[0])
    assert failed(played.checks()) == []


def test_an_index_whose_slots_are_lost_while_the_node_is_stopped_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(node: Path) -> None:
        for path in node.glob("topics/index/*"):
            size = path.stat().st_size
            os.truncate(path, 40)  # the header stays
            os.truncate(path, size)

    between_the_nodes(monkeypatch, forget)
    played = play(new_stage(tmp_path)[0])
    assert failed(played.checks()) == ["556 keys find their messages, the newest first, and no others"]
    assert (played.keys_found, played.messages_found) == (0, 0)
    assert played.unfound.named[0].startswith("order-0000000: [] in place of [4998, ")


def test_the_chart_has_a_bar_for_each(tmp_path: Path) -> None:
    chart = Chart("read", 200, 100, [("audit", "queues 0, 1", "yellow"), ("billing", "queues 0", "green")])
    assert chart.line(Progress((90, 5), 2.0)).plain.split() == ["95", "read", "48/s", "audit", "90", "billing", "5"]
    stage, text = new_stage(tmp_path, terminal=True)
    with stage.screen.watch(chart) as show:
        show(Progress((90, 5), 2.0))
    drawn = text.getvalue().splitlines()
    audit, billing = (next(line for line in drawn if name in line) for name in ("audit", "billing"))
    assert audit.count("█") > 15 * billing.count("█") > 0
    assert any("95 of 200 messages, 48 a second" in line for line in drawn)


def test_the_shipped_archive_is_no_larger_than_it_must_be() -> None:
    data = ARCHIVE.read_bytes()
    assert len(data) < 130_000
    assert len(gzip.decompress(data)) < 400_000
