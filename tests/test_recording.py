"""Recording a running node: what is written, what it costs whom, and what a kill leaves of it."""

from __future__ import annotations

import io
import itertools
import logging
import math
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import warren
from tests.support.effort import times
from tests.support.runtime_tools import BIG, HandNode, actor_behind, hand_node
from warren import Config
from warren.actors.queue.queue_actor import QueueActor
from warren.actors.queue.sampling import NODE_COLUMNS, QUEUE_COLUMNS
from warren.actors.runtime.inbox import Inbox
from warren.recording import RecordedNode, RecordFile, node_path, read_record, rescue
from warren.recording.parquet_log import JOURNAL, ParquetLog, read
from warren.storage.errors import DataError, SettingsError
from warren.storage.memory import MemoryFileSystem

RECORD = "/records/run.parquet"
KINDS = {"number": "i8", "share": "f8", "name": "str", "good": "bool"}


def disk() -> MemoryFileSystem:
    files = MemoryFileSystem(random.Random(0))
    files.make_directories("/records")
    return files


def recorded_node(files: MemoryFileSystem | None = None, **settings: Any) -> HandNode:
    return hand_node(disk() if files is None else files, record=RECORD, **settings)


def closed(hand: HandNode) -> RecordedNode:
    hand.node.close()
    return read_record(RECORD, files=hand.files)


def column(record: RecordedNode, name: str, queue: str = "orders") -> list[float]:
    return list(record.queues[record.queues["name"] == queue][name])


# ── what is recorded ────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_happened_in_an_interval_is_in_its_row() -> None:
    hand = recorded_node()
    queue = hand.node.queue("orders")
    hand.run()
    queue.publish_many([b"x" * 100] * 30)
    queue.publish_many([b"x" * 400] * 10, persistent=False)
    taken = queue.get_many(12)
    queue.ack(taken[:5])
    queue.nack(taken[5:8])
    queue.nack(taken[8:10], requeue=False)
    hand.advance(1)
    queue.get_many(4)
    hand.advance(1)
    record = closed(hand)
    assert column(record, "time_s")[:3] == [0, 1, 2]
    assert column(record, "step")[:3] == [0, 1, 2]
    assert column(record, "published")[:3] == [0, 40, 0]
    assert column(record, "mean_body_bytes")[1] == (30 * 100 + 10 * 400) / 40
    assert math.isnan(column(record, "mean_body_bytes")[2])
    assert column(record, "persistent_share")[1] == 30 / 40
    assert column(record, "delivered")[:3] == [0, 12, 4]
    assert column(record, "redelivered")[:3] == [0, 0, 3]
    assert column(record, "acked")[:3] == [0, 5, 0]
    assert column(record, "requeued")[:3] == [0, 3, 0]
    assert column(record, "rejected")[:3] == [0, 2, 0]
    assert column(record, "len")[:3] == [0, 31, 27]
    assert column(record, "unacked")[:3] == [0, 2, 6]


def test_every_column_is_there_and_of_its_kind() -> None:
    hand = recorded_node()
    hand.node.queue("orders").publish(b"x")
    hand.advance(2)
    hand.node.close()
    for path, kinds in ((RECORD, QUEUE_COLUMNS), (node_path(RECORD), NODE_COLUMNS)):
        table = pq.read_table(io.BytesIO(hand.files.read(path)))
        types = {"f8": pa.float64(), "i8": pa.int64(), "bool": pa.bool_(), "str": pa.string()}
        assert {name: types[kind] for name, kind in kinds.items()} == {field.name: field.type for field in table.schema}
        assert table.num_rows
        assert not any(table[name].null_count for name in kinds)


def test_the_row_says_how_the_queue_stands() -> None:
    hand = recorded_node()
    queue = hand.node.queue("orders", durable=False)
    queue.publish_many([BIG] * 5)
    queue.get_many(2)
    hand.advance(1)
    hand.machine.used_bytes = hand.machine.total_memory_bytes * 39 // 100  # it pages; publishers may go on
    for _ in range(40):
        queue.publish_many([BIG] * 20)
        queue.get_many(20, auto_ack=True)
        hand.advance(0.5)
    record = closed(hand)
    assert column(record, "q4")[1] == 3
    assert column(record, "ram_msg_count")[1] == 3
    assert column(record, "ram_ack_count")[1] == 2
    assert column(record, "message_bytes")[1] == column(record, "message_bytes_ram")[1] == 5 * len(BIG)
    assert column(record, "ram_bytes")[1] > 5 * len(BIG)
    assert column(record, "target_ram_count")[1] == math.inf
    assert column(record, "ingress_rate")[-1] == pytest.approx(40, rel=0.2)
    assert column(record, "duration_s")[-1] < 1
    assert column(record, "target_ram_count")[-1] < math.inf
    assert sum(column(record, "messages_written")) > 100
    assert sum(column(record, "messages_read")) > 100
    assert not any(record.queues["durable"])


def test_consumers_their_prefetch_and_messages_that_nobody_acks_are_recorded() -> None:
    hand = recorded_node()
    queue, free = hand.node.queue("orders"), hand.node.queue("free")
    hand.run()
    queue.publish_many([b"x"] * 100)  # so that it does not sleep
    consumers = [queue.consume(prefetch=10), queue.consume(prefetch=30), free.consume(prefetch=0)]
    free.publish_many([b"x"] * 3)
    hand.advance(2)
    consumers[1].close()
    hand.advance(1)
    record = closed(hand)
    assert column(record, "consumers")[1:4] == [2, 2, 1]
    assert column(record, "prefetch")[1:4] == [30, 30, 10]
    assert column(record, "delivered")[1:4] == [40, 0, 0]
    assert column(record, "requeued")[1:4] == [0, 0, 30]
    assert column(record, "prefetch", "free")[1] == 0
    assert column(record, "delivered", "free")[1] == 3


def test_a_get_with_auto_ack_counts_as_delivered_and_acked() -> None:
    hand = recorded_node()
    queue = hand.node.queue("orders")
    queue.publish_many([b"x"] * 3)
    queue.get_many(2, auto_ack=True)
    hand.advance(1)
    record = closed(hand)
    assert (sum(column(record, "delivered")), sum(column(record, "acked"))) == (2, 2)


def test_refused_dead_lettered_and_purged_messages_are_recorded() -> None:
    hand = recorded_node()
    arguments = {"x-max-length": 4, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": "",
                 "x-dead-letter-routing-key": "dead"}  # fmt: skip
    queue, dead = hand.node.queue("orders", arguments=arguments), hand.node.queue("dead")
    with pytest.raises(warren.errors.PublishRefusedError):
        queue.publish_many([b"x"] * 6).wait()
    hand.run()
    hand.advance(1)
    assert dead.purge() == 2
    record = closed(hand)
    assert sum(column(record, "published")) == 6
    assert sum(column(record, "refused")) == 2
    assert sum(column(record, "dead_lettered")) == 2
    assert sum(column(record, "published", "dead")) == 2
    assert sum(column(record, "purged", "dead")) == 2


def test_a_message_that_goes_past_an_empty_queue_is_recorded() -> None:
    hand = recorded_node()
    queue = hand.node.queue("orders")
    consumer = queue.consume(auto_ack=True)
    hand.run()
    arrival = (deliveries := queue._verbs.local.intake.deliveries)[next(iter(deliveries))].arrival()  # it waits
    queue.publish(b"x" * 50)
    assert arrival.done
    hand.advance(1)
    record = closed(hand)
    assert (sum(column(record, "published")), sum(column(record, "delivered"))) == (1, 1)
    assert column(record, "mean_body_bytes")[1] == 50
    del consumer


def test_the_node_s_rows_have_memory_and_alarms() -> None:
    hand = recorded_node()
    hand.node.queue("orders").publish(b"x")
    hand.machine.used_bytes = 123
    hand.advance(2)
    hand.machine.used_bytes = hand.machine.total_memory_bytes
    hand.advance(2)
    record = closed(hand)
    node = record.node.set_index("step")
    assert list(node.loc[[2, 4], "used_bytes"]) == [123, hand.machine.total_memory_bytes]
    assert list(node.loc[[2, 4], "memory_alarm"]) == [False, True]
    assert set(node["limit_bytes"]) == {hand.machine.total_memory_bytes * 4 // 10}
    assert set(node["queues"].loc[1:]) == {1}
    assert record.about["total_memory_bytes"] == hand.machine.total_memory_bytes
    assert record.about["node"]["record_interval_ms"] == 1000


def test_the_interval_is_the_setting_s() -> None:
    hand = recorded_node(record_interval_ms=250)
    hand.node.queue("orders").publish(b"x")
    hand.advance(1)
    record = closed(hand)
    assert column(record, "time_s")[:5] == [0, 0.25, 0.5, 0.75, 1.0]
    assert record.interval_s == 0.25


def test_queues_of_other_vhosts_are_named_with_them() -> None:
    hand = recorded_node()
    hand.node.queue("orders")
    hand.node.vhost("shop").queue("orders").publish(b"x")
    hand.advance(1)
    record = closed(hand)
    assert set(record.names) == {"orders", "shop/orders"}
    assert sum(column(record, "published", "shop/orders")) == 1


def test_what_happened_after_the_last_step_is_in_a_last_row() -> None:
    hand = recorded_node()
    queue = hand.node.queue("orders")
    queue.publish_many([b"x"] * 3)
    hand.advance(1.5)
    queue.publish_many([b"x"] * 2)
    record = closed(hand)
    assert column(record, "time_s")[-1] == 1.5
    assert column(record, "published")[-1] == 2
    assert column(record, "len")[-1] == 5
    assert sum(column(record, "published")) == 5


def test_a_deleted_queue_says_a_last_word() -> None:
    hand = recorded_node()
    queue = hand.node.queue("orders")
    queue.publish_many([b"x"] * 3)
    hand.advance(1)
    queue.publish_many([b"x"] * 2)
    hand.node.delete_queue("orders")
    hand.advance(3)
    record = closed(hand)
    assert sum(column(record, "published")) == 5
    assert (column(record, "step")[-1], column(record, "len")[-1]) == (2, 0)


# ── no queue is woken ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_queue_that_sleeps_is_not_woken_and_has_no_rows() -> None:
    hand = recorded_node()
    queue, busy = hand.node.queue("orders"), hand.node.queue("busy")
    queue.publish_many([b"x" * 100] * 10)
    busy.publish_many([b"x"] * 10)
    busy.get_many(5)  # never acked: it does not sleep
    hand.machine.used_bytes = hand.machine.total_memory_bytes * 3 // 10
    hand.advance(5)
    actor = queue._verbs.actor
    assert actor.process.backing.asleep
    rest_number, turns = actor.rest_number, actor.turn_count
    hand.advance(60)
    assert actor.process.backing.asleep
    assert (actor.rest_number, actor.turn_count) == (rest_number, turns)
    queue.publish(b"x")
    hand.advance(2)
    record = closed(hand)
    steps = [int(step) for step in column(record, "step")]
    gaps = [(before, after) for before, after in itertools.pairwise(steps) if after > before + 1]
    assert [after - before > 55 for before, after in gaps] == [True], gaps
    at = steps.index(gaps[0][0])
    assert (column(record, "asleep")[at], column(record, "len")[at]) == (1, 10)
    assert column(record, "published")[at + 1] == 1
    assert [int(step) for step in column(record, "step", "busy")][:67] == list(range(67))


@pytest.mark.slow
def test_a_thousand_sleeping_queues_are_not_even_told(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = recorded_node(check_invariants=False)
    queues = [hand.node.queue(f"queue-{number}") for number in range(1000)]
    hand.advance(3)
    told: list[object] = []
    monkeypatch.setattr(Inbox, "put", lambda inbox, *_: told.append(inbox.owner.actor))
    recorder = hand.node._running.actor._context.recorder
    assert recorder is not None
    actor_behind(recorder)._look()
    monkeypatch.undo()
    assert not any(isinstance(owner, QueueActor) for owner in told)
    assert told  # but the memory monitor and the timer were
    assert all(queue._verbs.actor.process.backing.asleep for queue in queues)
    assert len(closed(hand).queues) == 1000


def test_a_recorded_queue_falls_asleep_as_soon_as_one_that_is_not() -> None:
    def rests(hand: HandNode) -> tuple[int, bool]:
        queue = hand.node.queue("orders")
        queue.publish(b"x")
        queue.get_many(1, auto_ack=True)
        for tenths in range(100):
            hand.advance(0.1)
            if queue._verbs.actor.rest_number:
                return tenths, queue._verbs.actor.process.backing.asleep
        raise AssertionError("it never rests")

    assert rests(hand_node()) == rests(recorded_node(record_interval_ms=100))


def test_a_node_that_is_not_recorded_counts_nothing() -> None:
    hand = hand_node()
    queue = hand.node.queue("orders")
    hand.run()
    assert queue._verbs.actor.process.context.counts is None
    assert hand.node._running.actor._context.recorder is None


# ── no harm is done ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_record_that_cannot_be_written_ends_and_the_node_serves(caplog: pytest.LogCaptureFixture) -> None:
    hand = recorded_node()
    queue = hand.node.queue("orders")
    queue.publish_many([b"x"] * 5)
    hand.advance(11)  # one row group is written
    hand.files.fail("append", "/records/*", times=1000)
    with caplog.at_level(logging.ERROR, "warren.record"):
        hand.advance(20)
    queue.publish_many([b"x"] * 5)
    assert len(queue.get_many(10)) == 10
    hand.advance(20)
    hand.node.close()
    assert [message.partition(":")[0] for message in caplog.messages] == ["the recording ends here"]
    record = read_record(RECORD, files=hand.files)  # what was written before can be read
    assert 9 <= record.node["time_s"].max() <= 11
    assert sum(column(record, "published")) == 5


@pytest.mark.parametrize("name", ["run.parquet", "run.node.parquet", "run.parquet.journal"])
def test_a_record_that_is_there_is_not_overwritten(name: str) -> None:
    files = disk()
    files.open_append(f"/records/{name}").append(b"something")
    with pytest.raises(SettingsError, match=r"^record: /records/run(\.node)?\.parquet is there already"):
        recorded_node(files)
    assert files.read(f"/records/{name}") == b"something"
    assert not files.exists("/data/warren.lock")
    hand_node(files).node.close()


def test_a_record_in_a_directory_that_is_not_there_is_refused() -> None:
    files = MemoryFileSystem(random.Random(0))
    with pytest.raises(SettingsError, match=r"record: /records/run\.parquet: there is no directory /records"):
        recorded_node(files)


@pytest.mark.parametrize("path", ["", "run.csv", 7, "run.par\0quet", b"run.parquet", "run.parquet\0"])
def test_a_path_that_cannot_be_one_is_refused(path: object) -> None:
    with pytest.raises(SettingsError, match=r"^record must be the path of a"):
        Config.of(record=path)  # type: ignore[arg-type]


def test_the_record_is_a_setting_of_the_file_too(tmp_path: Path) -> None:
    (tmp_path / "warren.toml").write_text('[node]\nrecord = "a.parquet"\nrecord_interval_ms = 100\n', encoding="utf-8")
    config = Config.from_toml(tmp_path / "warren.toml")
    assert (config.record, config.node.record_interval_ms) == ("a.parquet", 100)
    assert Config.of(record=tmp_path / "b.parquet").record == str(tmp_path / "b.parquet")
    assert Config().record is None


def test_a_node_that_cannot_be_opened_leaves_no_record() -> None:
    files = disk()
    first = hand_node(files)
    with pytest.raises(warren.errors.DirectoryLockedError):
        recorded_node(files)
    assert files.list("/records") == []
    first.node.close()


def test_the_time_in_a_name_is_that_of_the_opening() -> None:
    record = RecordFile(disk(), "/records/{time}.parquet", lambda: 1_600_000_000_000_000)
    assert record.path == "/records/20200913T122640Z.parquet"


def test_a_node_without_a_queue_has_a_record_of_itself() -> None:
    hand = recorded_node()
    hand.advance(2)
    hand.node.close()
    assert pq.read_table(io.BytesIO(hand.files.read(node_path(RECORD)))).num_rows == 3


# ── a real node, and a kill ─────────────────────────────────────────────────────────────────────────────────────────

CHILD = """
import sys, time, warren
import warren.recording
warren.recording.SHORTEST_GROUP_S = 0.2
node = warren.open(sys.argv[1], record=sys.argv[2], record_interval_ms=10)
queue = node.queue("orders")
while True:
    queue.publish_many([b"x" * 100] * 10)
    time.sleep(0.005)
    print("published", flush=True)
"""


@pytest.mark.slow
def test_a_killed_node_s_record_can_be_read_up_to_its_last_row_group(tmp_path: Path) -> None:
    path, data = tmp_path / "run.parquet", tmp_path / "data"
    child = subprocess.Popen([sys.executable, "-c", CHILD, data, path], stdout=subprocess.PIPE, cwd=tmp_path)
    assert child.stdout is not None
    for _ in range(4000):
        child.stdout.readline()
        if os.path.exists(f"{path}{JOURNAL}") and os.path.getsize(f"{path}{JOURNAL}") > 30_000:
            break
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with pytest.raises(pa.ArrowInvalid):
        pq.read_table(path)
    record = read_record(path)
    assert len(record.queues) >= 2
    assert sum(column(record, "published")) >= 10
    rescue(path, tmp_path / "rescued.parquet")
    assert pq.read_table(tmp_path / "rescued.parquet").num_rows == len(record.queues)
    assert read_record(tmp_path / "rescued.parquet").names == ["orders"]
    with pytest.raises(SettingsError, match="was never ended"):
        warren.open(data, record=str(path))


def test_a_real_node_is_recorded_with_a_path_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    with warren.open(tmp_path / "data", record=path, record_interval_ms=10) as node:
        node.queue("orders").publish_many([b"x"] * 10).wait()
    assert sum(column(read_record(path), "published")) == 10
    assert sorted(os.listdir(tmp_path)) == ["data", "run.node.parquet", "run.parquet"]


def test_nothing_is_missing_from_the_record_of_many_threads(tmp_path: Path) -> None:
    path, each, threads = tmp_path / "run.parquet", 500, 4
    with warren.open(tmp_path / "data", record=path, record_interval_ms=5, sync="os") as node:
        queue = node.queue("orders")
        consumer = queue.consume(auto_ack=True, timeout=20)

        def publish() -> None:
            for number in range(each):
                (queue.publish if number % 3 else lambda body: queue.publish_many([body]))(b"x" * 10)

        workers = [threading.Thread(target=publish) for _ in range(threads)]
        for worker in workers:
            worker.start()
        taken = sum(1 for _ in itertools.islice(consumer, each * threads))
        for worker in workers:
            worker.join()
    record = read_record(path)
    assert taken == each * threads
    assert sum(column(record, "published")) == each * threads
    assert sum(column(record, "delivered")) - sum(column(record, "requeued")) == each * threads
    assert (column(record, "len")[-1], column(record, "unacked")[-1]) == (0, 0)


KINDS_OF_DEED = ("publish", "get", "take", "ack", "nack", "reject", "purge", "release", "step")
DEEDS = st.lists(st.tuples(st.sampled_from(KINDS_OF_DEED), st.integers(1, 9)), max_size=40)


@settings(max_examples=times(25))
@given(deeds=DEEDS)
def test_every_row_follows_from_the_one_before(deeds: list[tuple[str, int]]) -> None:
    """What came, less what left for good, is what there is more."""
    hand = recorded_node()
    queue = hand.node.queue("orders", arguments={"x-max-length": 12, "x-overflow": "reject-publish"})
    held: list[warren.Delivery] = []
    hand.run()
    for deed, count in [*deeds, ("step", 1)]:
        match deed:
            case "publish":
                queue.publish_many([b"x"] * count)
            case "get":
                held += queue.get_many(count)
            case "take":
                queue.get_many(count, auto_ack=True)
            case "purge":
                queue.purge()
            case "release":
                queue.release()
                held = []
            case "step":
                hand.advance(1)
            case _:
                part, held = held[:count], held[count:]
                queue.ack(part) if deed == "ack" else queue.nack(part, requeue=deed == "nack")
    record = closed(hand)
    depth = 0
    for row in record.queues.itertuples():
        depth += row.published - row.refused - row.acked - row.rejected - row.purged
        assert depth == row.len + row.unacked
        assert row.delivered >= row.redelivered


# ── files that grow ─────────────────────────────────────────────────────────────────────────────────────────────────

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "number": st.integers(-(1 << 63), (1 << 63) - 1),
            "share": st.floats(allow_nan=False),
            "name": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
            "good": st.booleans(),
        }
    ),
    max_size=30,
)


@settings(max_examples=times(20))
@given(groups=st.lists(ROWS, max_size=5), ended=st.booleans())
def test_rows_come_back_as_they_were_whether_the_file_was_ended_or_not(groups: list[list], ended: bool) -> None:
    files = disk()
    log = ParquetLog(files, "/records/a.parquet", KINDS, {"about": "it"})
    rows = [row for group in groups for row in group]
    for group in groups:
        for row in group:
            log.add(row)
        log.flush()
    if ended:
        log.close()
        assert files.list("/records") == ["a.parquet"]
    elif not rows:
        with pytest.raises(DataError):
            read(files, "/records/a.parquet")
        return
    table = read(files, "/records/a.parquet")
    assert table.to_pylist() == rows
    assert table.schema.metadata[b"about"] == b"it"
    if ended:
        assert pq.read_table(io.BytesIO(files.read("/records/a.parquet"))).to_pylist() == rows


def grown(groups: int) -> tuple[bytes, bytes, list[int]]:
    """A file that was not ended: its bytes, its journal's, and where each entry of that ends."""
    files = disk()
    log = ParquetLog(files, "/records/a.parquet", KINDS, {})
    ends = []
    for group in range(groups):
        log.add({"number": group, "share": 0.5, "name": "a", "good": True})
        log.flush()
        ends.append(files.size("/records/a.parquet" + JOURNAL))
    return files.read("/records/a.parquet"), files.read("/records/a.parquet" + JOURNAL), ends


def reread(data: bytes, journal: bytes) -> list[int]:
    files = disk()
    files.open_append("/records/a.parquet").append(data)
    files.open_append("/records/a.parquet" + JOURNAL).append(journal)
    return [row["number"] for row in read(files, "/records/a.parquet").to_pylist()]


def test_a_kill_at_any_byte_leaves_the_row_groups_that_were_whole() -> None:
    data, journal, ends = grown(3)
    for cut in range(0, len(journal) + 1, 97):
        whole = sum(end <= cut for end in ends)
        if whole:
            assert reread(data, journal[:cut]) == list(range(whole))
        else:
            with pytest.raises(DataError, match="no row group of it was ever ended"):
                reread(data, journal[:cut])
    assert reread(data + b"a row group that was cut", journal) == [0, 1, 2]
    assert reread(data[:-1], journal) == [0, 1]


def test_damage_ends_in_an_error_that_names_the_file() -> None:
    data, journal, _ = grown(2)
    with pytest.raises(DataError, match=r"a\.parquet\.journal.*no journal"):
        reread(data, b"something else")
    with pytest.raises(DataError, match=r"a\.parquet"):
        reread(bytes(len(data)), journal)
    files = disk()
    files.open_append("/records/a.parquet").append(b"no Parquet at all")
    with pytest.raises(DataError, match=r"a\.parquet: no Parquet file"):
        read(files, "/records/a.parquet")
    with pytest.raises(DataError, match="cannot be read"):
        read(files, "/records/none.parquet")


def test_a_parquet_file_that_is_no_record_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.node.parquet")
    with pytest.raises(DataError, match="no record of a node: it has no column 'time_s'"):
        read_record(tmp_path / "a.parquet")


def test_the_positions_that_the_footer_says_are_those_of_the_file() -> None:
    """pyarrow counts what it writes by itself; a second row group has to be where it believes it to be."""
    files = disk()
    log = ParquetLog(files, "/records/a.parquet", {"number": "i8"}, {})
    for number in range(3):
        log.add({"number": number})
        log.flush()
    log.close()
    data = files.read("/records/a.parquet")
    metadata = pq.read_metadata(io.BytesIO(data))
    starts = [metadata.row_group(group).column(0).data_page_offset for group in range(3)]
    assert starts == sorted(set(starts))
    assert read(files, "/records/a.parquet")["number"].to_pylist() == [0, 1, 2]
