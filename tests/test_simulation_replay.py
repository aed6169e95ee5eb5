"""Replaying a record: the simulated node goes the way that the recorded one went."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.effort import times
from tests.support.runtime_tools import BIG, HandNode, hand_node
from warren import Delivery
from warren.actors.node.node_actor import Probes
from warren.handles.queue import Queue
from warren.recording import RecordedNode, node_path, read_record
from warren.simulation import ConsumerSpec, Disk, Result, Scenario, ScenarioError, simulate
from warren.simulation.recorded_answer import recorded_result
from warren.simulation.replay import record_scenario, recorded_node
from warren.simulation.scenarios.recorded import Consumption, RecordedQueue
from warren.simulation.scenarios.sizes import ConstantSize, EmpiricalSize
from warren.simulation.toml_file import load_scenario, scenario_from_toml
from warren.storage.memory import MemoryFileSystem
from warren.storage.settings import RABBITMQ_3_10
from warren.testing import Machine

RECORD = "/records/run.parquet"


@attrs.define
class CountedMachine(Machine):
    """One whose memory is what the queues account for."""

    def probes(self) -> Probes:
        return attrs.evolve(super().probes(), reading=lambda context: context.allocated)


def recorded(
    work: Callable[[HandNode], None], *, memory: int = 10_000_000, files: MemoryFileSystem | None = None, **said: Any
) -> RecordedNode:
    """What is recorded of a node while ``work`` is done with it."""
    disk = MemoryFileSystem(random.Random(0)) if files is None else files
    disk.make_directories("/records")
    hand = hand_node(
        disk,
        record=RECORD,
        machine=CountedMachine(total_memory_bytes=memory),
        vm_memory_calculation_strategy="allocated",
        check_invariants=False,
        **said,
    )
    work(hand)
    hand.node.close()
    return read_record(RECORD, files=disk)


def written(_: RecordedNode, files: MemoryFileSystem, folder: Path) -> Path:
    """The record's files on the real disk."""
    for path in (RECORD, node_path(RECORD)):
        (folder / Path(path).name).write_bytes(files.read(path))
    return folder / "run.parquet"


def opened(hand: HandNode, name: str = "orders", **said: Any) -> Queue:
    queue = hand.node.queue(name, **said)
    hand.run()
    return queue


def backlog(hand: HandNode) -> None:
    """40 large messages a second; taken are 20, and from the 25th second on 90; 40 of them are unacked."""
    queue = opened(hand)
    held: list[Delivery] = []
    for tenth in range(400):
        queue.publish_many([BIG] * 4)
        held += queue.get_many(2 if tenth < 250 else 9)
        queue.ack(held[: max(len(held) - 40, 0)])
        held = held[-40:]
        if tenth % 50 == 49:
            queue.nack(held[-10:])
            held = held[:-10]
        hand.advance(0.1)


@functools.cache
def recorded_backlog() -> tuple[RecordedNode, MemoryFileSystem]:
    """The record of that, and where it lies."""
    files = MemoryFileSystem(random.Random(0))
    return recorded(backlog, files=files), files


@functools.cache
def replayed_backlog() -> Result:
    """The same backlog in the simulation."""
    return simulate(record_scenario(recorded_backlog()[0]))


def columns(record: RecordedNode, result: Result, name: str, queue: str = "orders") -> tuple[np.ndarray, np.ndarray]:
    """One column as it was recorded and as it was simulated, at the same moments."""
    then, now = recorded_result(record).queue(queue), result.queue(queue)
    then = then[then["time_s"] > 0.5]
    moments = np.intersect1d(then["time_s"].round(6), now["time_s"].round(6))
    assert len(moments) > 1
    return tuple(
        frame[frame["time_s"].round(6).isin(moments)].drop_duplicates("time_s")[name].to_numpy(float)
        for frame in (then, now)
    )


# ── the states follow ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_the_simulated_states_follow_the_recorded_ones_through_paging_and_back() -> None:
    """Within an interval the record does not say when: so to a tenth of a second's messages, or 3 %."""
    record, _ = recorded_backlog()
    result = replayed_backlog()
    for name in ("published", "acked", "requeued"):
        then, now = columns(record, result, name)
        assert np.array_equal(then, now), name
    a_tenth_s = 9
    for name in ("len", "unacked", "delivered"):
        then, now = columns(record, result, name)
        assert np.abs(then - now).max() <= a_tenth_s, name
    then, now = columns(record, result, "target_ram_count")
    assert np.array_equal(np.isinf(then), np.isinf(now))  # the queue gets a target at the same steps
    assert np.isfinite(then).sum() >= 5
    assert np.isfinite(then[-1]) == np.False_
    for at in np.flatnonzero(np.isfinite(then)):  # a report that came with a step may be before it or after it
        around = then[max(at - 1, 0) : at + 2]
        assert np.abs(around[np.isfinite(around)] / now[at] - 1).min() <= 0.03
    for name in ("q1", "q2", "delta", "q3", "q4", "ram_msg_count"):
        then, now = columns(record, result, name)
        assert np.abs(then - now).max() <= 0.03 * 600 + a_tenth_s, name
    then, now = columns(record, result, "ram_bytes")
    assert now == pytest.approx(then, rel=0.03, abs=a_tenth_s * (len(BIG) + 200))
    assert max(columns(record, result, "q3")[1]) > 50


@pytest.mark.slow
def test_a_smaller_watermark_would_have_paged_more() -> None:
    """What a replay is for: the same workload on another node."""
    record, _ = recorded_backlog()
    scenario = record_scenario(record)
    small = attrs.evolve(scenario, node=attrs.evolve(scenario.node, watermark=2_000_000))
    would, did = simulate(small), replayed_backlog()
    assert would.summary["node"]["first_paging_s"] < did.summary["node"]["first_paging_s"] - 5
    assert max(would.queue("orders")["ram_msg_count"]) < max(did.queue("orders")["ram_msg_count"])


def test_messages_that_were_there_when_the_record_began_are_there() -> None:
    files = MemoryFileSystem(random.Random(0))
    files.make_directories("/records")
    before = hand_node(files)
    before.node.queue("orders").publish_many([b"x" * 300] * 500).wait()
    before.node.close()

    def work(hand: HandNode) -> None:
        queue = opened(hand)
        for _ in range(10):
            queue.get_many(20, auto_ack=True)
            hand.advance(1)

    record = recorded(work, files=files)
    scenario = record_scenario(record)
    assert scenario.queues[0].messages == 500
    assert scenario.queues[0].body == ConstantSize(300)
    then, now = columns(record, simulate(scenario), "len")
    assert np.abs(then - now).max() <= 1


def test_a_queue_that_slept_wakes_when_it_woke() -> None:
    def work(hand: HandNode) -> None:
        queue = opened(hand)
        for _ in range(2):
            queue.publish_many([b"x"] * 50)
            hand.advance(20)

    record = recorded(work)
    rate = RecordedQueue.of(record, "orders").rate()
    busy = [at for at, rate in zip(rate.at_s, rate.rates, strict=False) if rate]
    assert busy == [0, 20]
    result = simulate(record_scenario(record))
    then, now = columns(record, result, "len")
    assert np.array_equal(then, now)
    then, now = columns(record, result, "asleep")
    assert (then != now).sum() <= 2  # a step more or less awake


def test_what_expired_by_itself_leaves_the_replay_too() -> None:
    def work(hand: HandNode) -> None:
        queue = opened(hand)
        queue.publish_many([b"x"] * 30, expiration=3.0)
        queue.publish_many([b"x"] * 10)
        hand.advance(10)

    record = recorded(work)
    result = simulate(record_scenario(record))
    assert columns(record, result, "len")[0][-1] == 10
    assert columns(record, result, "len")[1][-1] == 10


def test_a_purge_is_replayed() -> None:
    def work(hand: HandNode) -> None:
        queue = opened(hand)
        queue.publish_many([b"x"] * 30)
        queue.get_many(5)
        hand.advance(3)
        queue.purge()
        hand.advance(3)

    record = recorded(work)
    then, now = columns(record, simulate(record_scenario(record)), "len")
    assert then.tolist() == now.tolist()


def test_dead_letters_arrive_once() -> None:
    def work(hand: HandNode) -> None:
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 2000}
        opened(hand, "dead")
        opened(hand, arguments=arguments).publish_many([b"x"] * 20)
        hand.advance(8)

    record = recorded(work)
    result = simulate(record_scenario(record))
    assert columns(record, result, "len", "dead")[1][-1] == 20
    assert columns(record, result, "len")[1][-1] == 0


def test_a_consumer_asks_for_nothing_twice_while_the_disk_is_busy() -> None:
    """A get was on its way, another one for the same messages followed, and more than all came."""

    def work(hand: HandNode) -> None:
        queue = opened(hand)
        queue.publish_many([b"x" * 1000] * 1000)
        queue.ack(queue.get_many(100))
        hand.advance(0.02)

    scenario = record_scenario(recorded(work))
    slow = attrs.evolve(scenario.node, disk=Disk(bandwidth=2_000_000))
    result = simulate(attrs.evolve(scenario, node=slow, length=4.0), check_invariants=True)
    summary = result.summary["queues"]["orders"]
    assert (summary["published"], summary["ready"], summary["unacked"]) == (1000, 900, 0)


@pytest.mark.slow
def test_consumers_of_one_s_own_take_the_place_of_those_recorded() -> None:
    record, _ = recorded_backlog()
    scenario = record_scenario(record, consumers=[ConsumerSpec(queue="orders", rate=400)])
    assert max(simulate(scenario).queue("orders")["len"]) < 50


WORK = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 60), st.integers(0, 60)), max_size=6)


@pytest.mark.slow
@settings(max_examples=times(8), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(work=WORK, auto_ack=st.booleans())
def test_what_was_counted_is_counted_again(work: list[tuple[int, int, int, int]], auto_ack: bool) -> None:
    """Published, taken, acked, given back: at the end as many as were recorded, and as many messages are left."""

    def do(hand: HandNode) -> None:
        queue = opened(hand)
        held: list[Delivery] = []
        for publish, take, ack, back in work:
            if publish:
                queue.publish_many([b"x" * 100] * publish)
            hand.advance(0.5)
            held += queue.get_many(take)
            if auto_ack:
                queue.get_many(take, auto_ack=True)
            queue.ack(held[:ack])
            held = held[ack:]
            queue.nack(held[len(held) - back :] if back < len(held) else held)
            held = held[: max(len(held) - back, 0)]
            hand.advance(0.5)
        hand.advance(2)

    record = recorded(do)
    result = simulate(record_scenario(record), check_invariants=True)
    rows, simulated = record.queues, result.summary["queues"]["orders"]
    assert simulated["published"] == rows["published"].sum()
    assert simulated["acked"] == rows["acked"].sum()
    assert simulated["ready"] == rows["len"].iloc[-1]
    assert simulated["unacked"] == rows["unacked"].iloc[-1]


# ── the scenario ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_sizes_persistence_and_arguments_are_those_recorded() -> None:
    def work(hand: HandNode) -> None:
        queue = opened(hand, arguments={"x-max-length": 1000, "x-expires": 100_000})
        queue.publish_many([b"x" * 100] * 30)
        hand.advance(1)
        queue.publish_many([b"x" * 500] * 10, persistent=False)
        hand.advance(1)
        opened(hand, "lazy", durable=False, arguments={"x-queue-mode": "lazy"})
        hand.advance(1)

    scenario = record_scenario(recorded(work))
    [orders, lazy] = scenario.queues
    assert (orders.arguments, orders.durable) == ({"x-max-length": 1000}, True)
    assert (lazy.arguments, lazy.durable) == ({"x-queue-mode": "lazy"}, False)
    [publisher] = scenario.publishers
    assert publisher.persistent == 0.75
    assert publisher.body == EmpiricalSize((100, 500), (30.0, 10.0))


def test_the_node_is_the_recorded_one() -> None:
    record = recorded(
        lambda hand: hand.advance(2), memory=50_000_000, vm_memory_high_watermark=0.6, hibernate_after_ms=3000,
        segment_entry_count=2048, sync="os",
    )  # fmt: skip
    node = recorded_node(record)
    assert (node.memory, node.limit_bytes, node.hibernate_after) == (50_000_000, 30_000_000, 3.0)
    assert (node.engine.segment_entry_count, node.node_settings.sync) == (2048, "os")
    assert node.memory_of_messages.node == 0


def test_a_node_of_the_profile_keeps_it() -> None:
    said = {name: value for name, value in attrs.asdict(RABBITMQ_3_10).items() if name != "segment_entry_count"}
    node = recorded_node(recorded(lambda hand: hand.advance(1), sync_interval_ms=200, **said))
    assert (node.profile, node.settings) == ("rabbitmq-3.10", {"segment_entry_count": 16384})


def test_what_the_process_takes_beside_its_queues_stays_taken() -> None:
    record = recorded(lambda hand: hand.advance(1))
    about = {**record.about, "node": {**record.about["node"], "vm_memory_calculation_strategy": "rss"}}
    node = record.node.assign(used_bytes=3_000_000, allocated_bytes=1_000_000)
    record = attrs.evolve(record, about=about, node=node)
    assert recorded_node(record).memory_of_messages.node == 2_000_000
    with pytest.raises(ScenarioError, match="took 9000000 bytes beside its queues, and 4000000 might be used"):
        recorded_node(attrs.evolve(record, node=node.assign(used_bytes=10_000_000)))


def test_a_part_of_the_queues_can_be_replayed() -> None:
    def work(hand: HandNode) -> None:
        for name in ("a", "b", "c"):
            opened(hand, name).publish_many([b"x"] * 10)
        hand.advance(3)

    record = recorded(work)
    scenario = record_scenario(record, queues=["b", "c"])
    assert [queue.name for queue in scenario.queues] == ["b", "c"]
    assert [publisher.queue for publisher in scenario.publishers] == ["b", "c"]
    with pytest.raises(ScenarioError, match="no queue 'd' was recorded; there are 'a', 'b', 'c'"):
        record_scenario(record, queues=["d"])


def test_a_record_of_nothing_is_refused() -> None:
    with pytest.raises(ScenarioError, match="nothing was recorded"):
        record_scenario(recorded(lambda hand: hand.advance(3)))
    with pytest.raises(ScenarioError, match=r"none\.parquet: cannot be read"):
        record_scenario("none.parquet")


# ── in scenario files ───────────────────────────────────────────────────────────────────────────────────────────────

FILE = """
length = 40
[[queues]]
name = "mine"
[[publishers]]
queue = "mine"
rate = {record = "run.parquet", queue = "orders"}
arrivals = "constant"
[[consumers]]
queue = "mine"
record = {record = "run.parquet", queue = "orders"}
"""


@pytest.mark.slow
def test_a_scenario_s_file_can_have_a_record_s_rate_and_consumers(tmp_path: Path) -> None:
    record, files = recorded_backlog()
    written(record, files, tmp_path)
    (tmp_path / "scenario.toml").write_text(FILE, encoding="utf-8")
    result = simulate(load_scenario(tmp_path / "scenario.toml"))
    assert result.queue("mine")["published"].sum() == record.queues["published"].sum()
    assert result.queue("mine")["acked"].sum() == record.queues["acked"].sum()


def test_a_consumer_s_record_is_of_its_queue_unless_it_says_another(tmp_path: Path) -> None:
    written(*recorded_backlog(), tmp_path)
    text = '[[queues]]\nname = "orders"\n[[consumers]]\nqueue = "orders"\nrecord = {record = "run.parquet"}\n'
    scenario = scenario_from_toml(text, tmp_path / "scenario.toml")
    assert isinstance(scenario.consumers[0].record, Consumption)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('record = {record = "none.parquet"}', "none.parquet: cannot be read"),
        ("record = 7", "consumers[0].record must be a table with record and queue, not 7"),
        ('record = {record = "run.parquet", queue = "other"}', "no queue 'other' was recorded; there are 'orders'"),
        ('record = {record = "run.parquet", Queue = "other"}', "the nearest is queue"),
        ('record = {record = "run.parquet"}\ncount = 2', "count: a record is of all consumers together"),
    ],
)
def test_a_record_that_cannot_be_had_is_a_clear_error(tmp_path: Path, line: str, said: str) -> None:
    written(*recorded_backlog(), tmp_path)
    with pytest.raises(ScenarioError) as caught:
        scenario_from_toml(
            f'[[queues]]\nname = "orders"\n[[consumers]]\nqueue = "orders"\n{line}\n', tmp_path / "a.toml"
        )
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "said",
    [
        {"at_s": (0.0,)},
        {"at_s": (0.0, 0.0)},
        {"at_s": (-1.0, 1.0)},
        {"at_s": (0.0, float("nan"))},
        {"taken": (-1,)},
        {"acked": (1, 2)},
    ],
)
def test_a_consumption_that_cannot_be_is_refused(said: dict[str, Any]) -> None:
    whole = {"at_s": (0.0, 1.0), **dict.fromkeys(("taken", "taken_no_ack", "acked", "requeued", "purged"), (0,))}
    with pytest.raises(ScenarioError, match=r"^by hand: "):
        Consumption("by hand", **(whole | said))


# ── a record as an answer ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_record_can_be_saved_and_compared_as_an_answer_is(tmp_path: Path) -> None:
    record, _ = recorded_backlog()
    result = recorded_result(record)
    result.save(tmp_path / "then")
    again = Result.load(tmp_path / "then")
    assert again.names == ["orders"]
    assert again.queue("orders")["len"].tolist() == record.queues["len"].tolist()
    assert {"paging-starts", "paging-ends"} <= {mark.kind for mark in again.marks}
    assert again.node["used_bytes"].max() == record.node["used_bytes"].max()
    replayed = replayed_backlog().summary
    assert result.summary.keys() == replayed.keys()
    assert result.summary["node"].keys() == replayed["node"].keys()
    assert result.summary["queues"]["orders"].keys() == replayed["queues"]["orders"].keys()
    assert result.summary["queues"]["orders"]["max_ready"] == record.queues["len"].max()


def test_while_a_queue_sleeps_its_last_state_holds() -> None:
    def work(hand: HandNode) -> None:
        queue, busy = opened(hand), opened(hand, "busy")
        queue.set_mode("lazy")
        queue.publish_many([b"x"] * 50)
        busy.publish_many([b"x"] * 5)
        busy.get_many(5)
        hand.advance(30)

    frame = recorded_result(recorded(work)).queue("orders")
    assert frame["len"].tolist()[1:] == [50] * (len(frame) - 1)
    assert frame["time_s"].tolist()[:31] == list(range(31))
    assert frame["published"].sum() in (0, 50)
    assert frame["asleep"].iloc[-1] == 1


@pytest.mark.slow
def test_a_scenario_of_a_record_is_the_same_each_time() -> None:
    record, _ = recorded_backlog()
    assert simulate(record_scenario(record)).timeline.equals(replayed_backlog().timeline)


def test_the_parts_of_a_scenario_can_be_had_by_themselves() -> None:
    record, _ = recorded_backlog()
    queue = RecordedQueue.of(record, "orders")
    rate, work = queue.rate(), queue.consumption()
    assert sum(np.diff(rate.at_s) * rate.rates) == pytest.approx(record.queues["published"].sum(), abs=0.6)
    assert sum(work.acked) == record.queues["acked"].sum()
    assert isinstance(record_scenario(record), Scenario)
