"""A simulated node as a whole: who is blocked and goes on, what events do, and that no message is ever lost count of.

Every run here checks every engine's invariants after every turn, and its books at its end (:func:`run`): what was
published, or was there, is ready, unacked, acked, refused or dropped.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from warren.simulation import ConsumerSpec, NodeSpec, PublisherSpec, QueueSpec, Result, Scenario, Simulation
from warren.simulation.node.workload import SimulatedConsumer
from warren.simulation.scenarios.node_spec import INSTANT_DISK, Disk
from warren.simulation.scenarios.scenario import Event, Outage

STORED = 5000
QUICK = NodeSpec(memory="50MB", monitor_interval=0.5, report_interval=1.0, disk=INSTANT_DISK)


def run(scenario: Scenario) -> tuple[Simulation, Result]:
    """Run with all invariants checked; the books have to be right."""
    # Where each message is an event, checks of everything after each would take most of the time.
    simulation = Simulation(scenario, check_invariants=scenario.granularity > 0)
    result = simulation.run()
    for queue in simulation.node.queues.values():
        counters, process = queue.counters, queue.process
        assert queue.dropped >= 0
        declaration = queue.declaration
        lossless = declaration.message_ttl_ms is None and declaration.max_length is None
        if lossless and not any(event.what == "purge" for event in scenario.events):
            spec = next(spec for spec in scenario.queues if queue.name in spec.names)
            there = spec.messages + counters.published
            gone = counters.acked + counters.refused
            expiring = any(publisher.expiration is not None for publisher in scenario.publishers)
            assert expiring or there == len(process.backing) + process.consumers.unacked + gone
    return simulation, result


def scenario(*publishers: PublisherSpec, **values: Any) -> Scenario:
    """One queue on a small node, unless ``values`` say otherwise."""
    given: dict[str, Any] = {"length": 30, "node": QUICK, "queues": [QueueSpec(name="q")], "publishers": publishers}
    return Scenario(**(given | values))


def of(result: Result, queue: str = "q") -> dict[str, Any]:
    found: dict[str, Any] = result.summary["queues"][queue]
    return found


# ── alarms ──────────────────────────────────────────────────────────────────────────────────────────────────────────

TIGHT = attrs.evolve(QUICK, memory="20MB", settings={"page_inside_segments": False})
FLOOD = PublisherSpec(queue="q", rate=1500, body=3000, end=5.0)
"""Bodies that stay with their positions in RAM: paging cannot help at once."""


def spans(result: Result, begins: str) -> list[tuple[float, float]]:
    """From each mark of a kind to the one that ends it."""
    starts = [mark.at_s for mark in result.marks if mark.kind == begins]
    return list(zip(starts, [mark.at_s for mark in result.marks if mark.kind == begins + "-ends"], strict=False))


@pytest.mark.slow
@pytest.mark.parametrize("when_blocked", ["wait", "skip"])
def test_the_memory_alarm_blocks_publishers_until_consumers_have_made_room(when_blocked: str) -> None:
    flood = attrs.evolve(FLOOD, when_blocked=when_blocked)
    simulation, result = run(
        scenario(flood, node=TIGHT, consumers=[ConsumerSpec(queue="q", rate=500)], length=20, step=0.5)
    )
    alarms = spans(result, "memory-alarm")
    assert max(end - begin for begin, end in alarms) >= 0.5
    assert result.summary["node"]["alarm_s"] == pytest.approx(sum(end - begin for begin, end in alarms))
    assert not simulation.node.gate.is_closed
    rows = result.queue("q")
    for begin, end in alarms:
        inside = (rows["time_s"] - 0.5 >= begin) & (rows["time_s"] <= end)
        assert not rows["published"][inside].any(), "nobody publishes through an alarm"
    published = of(result)["published"]
    if when_blocked == "wait":
        assert published == pytest.approx(7500, rel=0.05), "late, and all of them"
        assert of(result)["max_waiting_messages"] > 0
    else:
        assert published < 6500, "what could not be published then never was"


@pytest.mark.slow
def test_a_full_disk_blocks_publishers_and_stops_paging() -> None:
    node = attrs.evolve(QUICK, disk=Disk(size="80MB", fsync=0.0), settings={"disk_free_limit": 50_000_000})
    stored = PublisherSpec(queue="q", rate=1000, body=STORED)
    simulation, result = run(scenario(stored, node=node, length=20))
    assert "disk-alarm" in [mark.kind for mark in result.marks]
    assert simulation.node.monitor.desired_duration is None
    assert result.queue("q")["published"].to_numpy()[-3:].sum() == 0
    assert result.summary["node"]["max_disk_bytes"] < 60_000_000


@pytest.mark.slow
def test_a_disk_that_had_room_made_lets_them_go_on() -> None:
    node = attrs.evolve(QUICK, disk=Disk(size="80MB", fsync=0.0), settings={"disk_free_limit": 50_000_000})
    stored = PublisherSpec(queue="q", rate=1000, body=STORED)
    _, result = run(scenario(stored, node=node, length=40, events=[Event(what="purge", at=15)]))
    kinds = [mark.kind for mark in result.marks]
    assert kinds.index("disk-alarm") < kinds.index("disk-alarm-ends")
    assert result.queue("q")["published"].to_numpy()[15:].sum() > 1000


def test_a_watermark_that_falls_sets_the_alarm_and_one_that_rises_again_ends_it() -> None:
    low = Event(what="watermark", at=10, until=20, value=0.00005)  # less than an idle queue takes
    quiet = PublisherSpec(queue="q", rate=30, body=3000)
    _, result = run(scenario(quiet, events=[low]))
    (alarm,) = spans(result, "memory-alarm")
    assert 10 <= alarm[0] <= 11.1
    assert 20 <= alarm[1] <= 21.1
    limits = result.node["limit_bytes"].to_numpy()
    assert limits[5] == limits[25] == 20_000_000
    assert limits[15] == 2500
    assert of(result)["publishers_held_s"] == pytest.approx(10, abs=1.2)


def test_who_was_held_catches_up_fast_and_not_at_once() -> None:
    closed = Event(what="watermark", at=2, until=10, value=0.00005)
    publisher = PublisherSpec(queue="q", rate=5000, body=10, persistent=0.0)
    result = Simulation(scenario(publisher, events=[closed], length=14, step=0.25)).run()
    published = result.queue("q")["published"].to_numpy()
    assert published.max() == pytest.approx(50_000 / 4, rel=0.02)
    assert published.sum() == pytest.approx(14 * 5000, rel=0.02)


# ── the disk ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_slow_disk_holds_publishers_back_by_credit() -> None:
    slow = attrs.evolve(QUICK, memory="500MB", disk=Disk(bandwidth="2MB", fsync=0.0))
    fast = PublisherSpec(queue="q", rate=2000, body=STORED, end=5.0)
    simulation, result = run(scenario(fast, node=slow, length=40))
    assert of(result)["publishers_held_s"] > 5
    written = result.node["disk_write_bytes"].to_numpy().cumsum()
    credit = 4000 * STORED
    at_most = 2_000_000 * result.node["time_s"].to_numpy() + 1.2 * credit
    assert (written < at_most).all(), "no faster than the disk, but for what credit allows"
    assert result.node["disk_busy"].to_numpy()[2:15].mean() > 0.9
    assert abs(of(result)["published"] - 10_000) < 500
    assert simulation.node.alarms.active == frozenset()


@pytest.mark.slow
def test_a_window_of_confirms_allows_as_many_messages_a_sync() -> None:
    fsync_s, window = 0.05, 20
    node = attrs.evolve(QUICK, disk=Disk(fsync=fsync_s))
    confirmed = PublisherSpec(queue="q", rate=1000, body=100, confirms=window, arrivals="constant")
    _, result = run(scenario(confirmed, node=node, length=6, granularity=0))
    each_s = result.queue("q")["published"].to_numpy()[2:].mean()
    assert each_s == pytest.approx(window / fsync_s, rel=0.1)
    _, free = run(scenario(confirmed, length=3, granularity=0))
    assert free.queue("q")["published"].to_numpy()[1:].mean() == pytest.approx(1000, rel=0.01)


def test_rabbitmq_makes_safe_only_what_somebody_waits_for_and_the_runtime_everything() -> None:
    some = PublisherSpec(queue="q", rate=50, body=100)
    syncs = {}
    for profile in ("default", "rabbitmq-3.10"):
        node = NodeSpec(profile=profile, memory="2GB")
        _, result = run(scenario(some, node=node, length=5))
        syncs[profile] = result.summary["node"]["disk_syncs"]
    assert syncs["default"] > 20 > 2 * syncs["rabbitmq-3.10"]


# ── consumers ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_what_a_consumer_had_comes_back_when_it_goes_down() -> None:
    consumer = ConsumerSpec(queue="q", rate=20, prefetch=100, outages=[Outage(at=5.25, lasting=10)])
    _, result = run(scenario(PublisherSpec(queue="q", rate=60, body=100), consumers=[consumer], length=20))
    timeline = result.queue("q")
    unacked = timeline["unacked"].to_numpy()
    assert unacked[4] == 100
    assert (unacked[6:15] == 0).all()
    assert unacked[16] == 100
    assert timeline["requeued"].to_numpy()[5] == 100
    assert timeline["acked"].to_numpy()[6:15].sum() == 0
    assert of(result)["delivered"] >= of(result)["acked"] + 100


def test_consumers_down_by_an_event_and_slower_by_another() -> None:
    events = [
        Event(what="consumers-down", at=5, until=8),
        Event(what="consumers-factor", at=12, until=16, value=0.5),
    ]
    publisher = PublisherSpec(queue="q", rate=60, body=100)
    _, result = run(
        scenario(publisher, consumers=[ConsumerSpec(queue="q", rate=40, prefetch=10)], events=events, length=20)
    )
    acked = result.queue("q")["acked"].to_numpy()
    assert acked[5:8].sum() <= 10
    assert acked[12:16].sum() == pytest.approx(80, abs=8)
    assert acked[16:20].sum() == pytest.approx(160, abs=8)


@pytest.mark.slow
def test_a_consumer_that_gives_back_a_share_handles_those_again() -> None:
    consumer = ConsumerSpec(queue="q", rate=1000, requeue=0.5)
    publisher = PublisherSpec(queue="q", rate=100, body=100, end=10)
    _, result = run(scenario(publisher, consumers=[consumer]))
    q = of(result)
    assert q["acked"] == q["published"]
    assert q["requeued"] == pytest.approx(q["published"], rel=0.15)


@pytest.mark.slow
def test_a_consumer_that_acks_nothing_takes_no_more_than_its_buffer_ahead() -> None:
    consumer = ConsumerSpec(queue="q", rate=100, no_ack=True)
    publisher = PublisherSpec(queue="q", rate=1000, body=100, end=5)
    simulation, result = run(scenario(publisher, consumers=[consumer], length=10))
    assert of(result)["acked"] == pytest.approx(1000, abs=10), "what it has taken up, handled or not"
    [taker] = simulation.consumers["q"]
    assert isinstance(taker, SimulatedConsumer)
    assert 500 <= taker.buffered == of(result)["unacked"] <= 1000
    assert of(result)["ready"] > 2500


@pytest.mark.slow
def test_a_purge_leaves_what_is_unacked() -> None:
    consumer = ConsumerSpec(queue="q", rate=0.05, prefetch=7)
    simulation, result = run(
        scenario(
            PublisherSpec(queue="q", rate=300, body=STORED, end=8),
            consumers=[consumer],
            events=[Event(what="purge", at=10)],
            length=12,
        )
    )
    assert of(result)["ready"] == 0
    assert of(result)["unacked"] == 7
    q = simulation.node.queues["q"]
    assert q.dropped == of(result)["published"] - of(result)["acked"] - 7
    assert simulation.node.persistent.store.status().messages == 7


# ── what becomes of messages ────────────────────────────────────────────────────────────────────────────────────────


def dead(target: str, **arguments: Any) -> dict[str, Any]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target} | arguments


@pytest.mark.slow
def test_what_expires_arrives_at_the_dead_letter_queue() -> None:
    queues = [QueueSpec(name="q", arguments=dead("late", **{"x-message-ttl": 2000})), QueueSpec(name="late")]
    publisher = PublisherSpec(queue="q", rate=100, body=500, end=20)
    simulation, result = run(scenario(publisher, queues=queues))
    q, late = of(result), of(result, "late")
    assert q["ready"] == 0
    assert q["dead_lettered"] == late["published"] == late["ready"] == q["published"]
    assert simulation.node.queues["q"].dropped == q["published"]
    assert result.queue("q")["len"].to_numpy()[5:18] == pytest.approx(200, abs=60)


def test_a_full_queue_drops_its_head_or_refuses_each_message_that_is_too_many() -> None:
    queues = [
        QueueSpec(name="drops", arguments={"x-max-length": 50}),
        QueueSpec(name="refuses", arguments={"x-max-length": 50, "x-overflow": "reject-publish"}),
        QueueSpec(name="buries", arguments=dead("grave", **{"x-max-length": 50, "x-overflow": "reject-publish-dlx"})),
        QueueSpec(name="grave"),
    ]
    publishers = [PublisherSpec(queue=name, rate=1000, body=100, end=2) for name in ("drops", "refuses", "buries")]
    simulation, result = run(scenario(*publishers, queues=queues, length=5))
    for name in ("drops", "refuses", "buries"):
        assert of(result, name)["ready"] == 50
    assert simulation.node.queues["drops"].dropped == of(result, "drops")["published"] - 50
    for name in ("refuses", "buries"):
        assert of(result, name)["refused"] == of(result, name)["published"] - 50
        assert simulation.node.queues[name].dropped == 0
    assert of(result, "grave")["ready"] == of(result, "buries")["refused"]


def test_messages_that_expire_by_their_publishers_word() -> None:
    publisher = PublisherSpec(queue="q", rate=100, body=500, expiration=1.5, end=10)
    simulation, result = run(scenario(publisher, length=15))
    assert of(result)["ready"] == 0
    assert simulation.node.queues["q"].dropped == of(result)["published"]


@pytest.mark.slow
def test_a_higher_priority_waits_less() -> None:
    waits = {}
    for high in (0, 5):
        queues = [QueueSpec(name="q", arguments={"x-max-priority": 5})]
        publishers = [
            PublisherSpec(queue="q", rate=90, body=100, priority=0),
            PublisherSpec(queue="q", rate=30, body=100, priority=high),
        ]
        consumers = [ConsumerSpec(queue="q", rate=80, prefetch=1)]
        simulation, _ = run(scenario(*publishers, queues=queues, consumers=consumers, length=10))
        latencies = simulation.timeline.lines[0].latencies
        waits[high] = latencies.quantile(0.15), latencies.quantile(0.95)
    assert waits[5][0] < 0.05 < waits[0][0], "a quarter of the messages goes before the others"
    assert waits[5][1] > waits[0][1], "which wait the longer"


@pytest.mark.slow
def test_messages_at_the_start_are_on_disk_and_cost_nothing() -> None:
    queues = [QueueSpec(name="q", messages=20_000, body=STORED), QueueSpec(name="p", messages=100, body=10)]
    idle, result = run(scenario(queues=queues, length=3))
    assert of(result)["ready"] == 20_000
    assert result.summary["node"]["disk_write_bytes"] == result.summary["node"]["disk_syncs"] == 0
    assert result.summary["node"]["max_used_bytes"] == 2 * 4096
    assert idle.node.disk.busy_ns == 0
    consumers = [ConsumerSpec(queue="q", rate=5000), ConsumerSpec(queue="p", rate=1000)]
    _, result = run(scenario(queues=queues, consumers=consumers, length=8))
    assert of(result)["acked"] == 20_000
    assert result.summary["node"]["disk_read_bytes"] > 20_000 * STORED
    assert of(result)["latency_mean_s"] is None, "nobody knows how long they have waited"
    assert not [mark for mark in result.marks if mark.kind == "paging-starts"], "nobody told the queue to page"


def test_messages_at_the_start_of_a_priority_queue_and_of_one_with_a_ttl() -> None:
    queues = [
        QueueSpec(name="p", messages=500, arguments={"x-max-priority": 3}),
        QueueSpec(name="t", messages=500, arguments={"x-message-ttl": 4000}),
    ]
    simulation, result = run(scenario(queues=queues, length=10, consumers=[ConsumerSpec(queue="p", rate=100)]))
    assert of(result, "p")["acked"] == 500
    lengths = result.queue("t")["len"].to_numpy()
    assert lengths[2] == 500
    assert lengths[5] == 0
    assert simulation.node.queues["t"].dropped == 500


# ── groups, and how finely time is cut ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_group_that_is_summed_is_the_sum_of_its_queues() -> None:
    publisher, consumer = PublisherSpec(queue="g", rate=20, body=STORED), ConsumerSpec(queue="g", rate=10)
    frames = []
    for timeline in ("sum", "each"):
        group = QueueSpec(name="g", count=5, timeline=timeline)
        _, result = run(scenario(publisher, queues=[group], consumers=[consumer], length=6))
        frames.append(result.timeline)
    summed, each = frames
    columns = ["len", "unacked", "published", "acked", "q4", "ram_bytes", "message_bytes", "disk_writes"]
    assert (each.groupby("time_s")[columns].sum() == summed.set_index("time_s")[columns]).all().all()
    assert (summed["queues"] == 5).all()


@pytest.mark.slow
@pytest.mark.parametrize("body", [500, STORED])
def test_ten_milliseconds_of_granularity_show_nearly_what_single_messages_show(body: int) -> None:
    pictures = []
    for granularity in (0.0, 0.01):
        one = scenario(
            PublisherSpec(queue="q", rate=200, body=body),
            consumers=[ConsumerSpec(queue="q", rate=120, prefetch=50, outages=[Outage(at=2, lasting=3)])],
            node=attrs.evolve(QUICK, memory="5MB"),
            length=9,
            granularity=granularity,
        )
        pictures.append(run(one)[1])
    single, grouped = (one.queue("q") for one in pictures)
    assert np.abs(single["len"] - grouped["len"]).max() < 30
    assert np.abs(single["message_bytes_ram"] - grouped["message_bytes_ram"]).mean() < 0.1 * 2_000_000
    assert of(pictures[0])["published"] == pytest.approx(of(pictures[1])["published"], abs=5)
    assert of(pictures[0])["latency_p50_s"] == pytest.approx(of(pictures[1])["latency_p50_s"], rel=0.03)


@pytest.mark.slow
def test_a_quiet_queue_sleeps_and_one_that_is_told_in_a_round_wakes_only_where_it_is_woken() -> None:
    awake = {}
    for wakes in (False, True):
        node = attrs.evolve(QUICK, memory="5MB", wake_idle_queues=wakes)
        queues = [QueueSpec(name="hot"), QueueSpec(name="idle", count=20)]
        publishers = [
            PublisherSpec(queue="hot", rate=100, body=STORED, start=6),
            PublisherSpec(queue="idle", rate=5, body=100, end=1),
        ]
        _, result = run(scenario(*publishers, queues=queues, node=node, length=13))
        idle = result.timeline[result.timeline["queue"].str.startswith("idle") & (result.timeline["time_s"] > 8)]
        awake[wakes] = int(idle["turns"].sum())
    assert awake[False] == 0
    assert awake[True] >= 20


def test_what_waits_grows_while_publishers_are_blocked() -> None:
    """Not only what a publisher has in its hands: all that should have been published by now."""
    down = Event(what="watermark", at=5, until=15, value=1000)
    scenario = Scenario(
        length=20,
        node=NodeSpec(memory="1GB"),
        queues=[QueueSpec(name="q")],
        publishers=[PublisherSpec(queue="q", rate=200, arrivals="constant")],
        events=[down],
    )
    rows = Simulation(scenario).run().queue("q").set_index("time_s")
    alarmed = rows.index[rows["blocked_publishers"] == 1]
    assert len(alarmed) >= 8
    waiting = rows.loc[alarmed, "waiting_messages"]
    assert waiting.diff().iloc[1:].between(199, 201).all()
    assert waiting.iloc[-1] > 1500
    assert rows["waiting_messages"].iloc[-1] == 0, "they have caught up"
