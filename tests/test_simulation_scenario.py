"""Scenario files: what they may say, and that whatever else they say is one clear error."""

from __future__ import annotations

import copy
import fnmatch
import pickle
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import times
from warren.actors.engines.node_settings import NodeSettings
from warren.simulation import (
    Bursts,
    Constant,
    ConstantSize,
    ConsumerSpec,
    Daily,
    Disk,
    EmpiricalSize,
    Event,
    LognormalSize,
    MessageMemory,
    NodeSpec,
    Outage,
    PublisherSpec,
    QueueSpec,
    Scenario,
    ScenarioError,
    Simulation,
    Trace,
)
from warren.simulation.toml_file import (
    EXAMPLE,
    load_scenario,
    load_table,
    names_of_scenarios,
    scenario_from_table,
    scenario_from_toml,
    table_of,
    vary,
)
from warren.storage.settings import Settings

SMALL: dict[str, Any] = {
    "length": 60,
    "queues": [{"name": "orders"}, {"name": "audit", "count": 3}],
    "publishers": [{"queue": "orders", "rate": 10}, {"queue": "audit-*", "rate": 1}],
    "consumers": [{"queue": "orders", "outages": [{"at": 10, "lasting": 5}]}],
    "events": [{"what": "consumers-down", "at": 1, "until": 2}],
}


def refused(table: Any) -> str:
    with pytest.raises(ScenarioError) as caught:
        scenario_from_table(table, "x.toml")
    said = str(caught.value)
    assert said.startswith("x.toml: ")
    assert "\n" not in said
    return said.removeprefix("x.toml: ")


def small(key: str, value: Any) -> dict[str, Any]:
    return vary(SMALL, {key: value})


# ── what a file says ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_example_is_a_scenario_and_comes_back_from_its_own_table() -> None:
    scenario = scenario_from_toml(EXAMPLE)
    assert scenario.start == (9 * 60 + 50) * 60
    assert scenario.publishers[0].rate == Bursts(5, 120, every_s=300, lasting_s=30, first_s=60)
    assert scenario.publishers[0].body == LognormalSize(2000, 1.0)
    assert scenario_from_table(table_of(scenario)) == scenario


def test_the_example_says_every_key_of_every_part() -> None:
    """As a key, or in a comment: a key that is added is added to the example, too."""
    for kind in (Scenario, NodeSpec, MessageMemory, Disk, QueueSpec, PublisherSpec, ConsumerSpec, Outage, Event):
        for field in attrs.fields(kind):
            name = field.name
            assert re.search(rf"(^|[\s{{#\[.]){name}( =|\]|\])", EXAMPLE, re.MULTILINE), f"{kind.__name__}.{name}"


def test_the_examples_comments_say_the_forms_of_rates_and_bodies() -> None:
    said = [line.removeprefix("#").strip() for line in EXAMPLE.splitlines() if line.startswith("#   ")]
    for each in (one for one in said if one.startswith(("rate", "body")) and not re.search("trace|record", one)):
        scenario_from_table(small("publishers[0]", {"queue": "orders"} | tomllib.loads(re.split("   ", each)[0])))


@pytest.mark.parametrize(
    ("rate", "value"),
    [
        (250, Constant(250.0)),
        (0, Constant(0.0)),
        ({"bursts": {"base": 1, "peak": 9, "every": "1min", "lasting": "5s"}}, Bursts(1, 9, 60, 5)),
        ({"daily": [["00:00", 1], ["12:30", 5]]}, Daily(((0.0, 1.0), (45_000.0, 5.0)))),
    ],
)
def test_rates_are_numbers_or_tables(rate: Any, value: Any) -> None:
    assert scenario_from_table(small("publishers[0].rate", rate)).publishers[0].rate == value


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (1024, ConstantSize(1024)),
        ("2kB", ConstantSize(2000)),
        ({"lognormal": {"median": "2kB", "sigma": 0.5}}, LognormalSize(2000, 0.5)),
        ({"empirical": [[100, 3], ["1kB", 1]]}, EmpiricalSize((100, 1000), (3.0, 1.0))),
    ],
)
def test_bodies_are_sizes_or_tables(body: Any, value: Any) -> None:
    assert scenario_from_table(small("publishers[0].body", body)).publishers[0].body == value


def test_python_mappings_are_taken_wherever_a_table_is() -> None:
    scenario = Scenario(
        node={"memory": "1GB", "disk": {"fsync": 0}},
        queues=[{"name": "q"}],
        publishers=[{"queue": "q", "rate": {"bursts": {"base": 1, "peak": 2, "every": 2, "lasting": 1}}}],
        events=[{"what": "watermark", "at": 1, "value": "200MB"}],
    )
    assert scenario.node.disk.fsync == 0
    assert scenario.events[0].value == 200_000_000


def test_numbers_of_numpy_are_numbers() -> None:
    spec = PublisherSpec(queue="q", rate=np.float64(3), body=np.int64(10), count=np.int32(2))
    assert (spec.rate, spec.body, spec.count) == (Constant(3.0), ConstantSize(10), 2)


def test_a_watermark_of_an_event_is_a_share_or_an_amount() -> None:
    node = Simulation(scenario_from_table(small("events[0]", {"what": "watermark", "at": 1, "value": 0.5}))).node
    assert node.monitor.limit_bytes == NodeSpec().limit_bytes


# ── what it may not say ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        # unknown keys
        ("publishers[0].rte", 5, "publishers[0].rte: there is no such key; the nearest is rate"),
        ("publisher", [{"queue": "orders"}], "publisher: there is no such table; the nearest is [[publishers]]"),
        ("lenght", 5, "lenght: there is no such key; the nearest is length"),
        ("memory", "1GB", "memory: stands in the table [node]"),
        ("node.pagingratio", 0.3, "node.pagingratio: there is no such key; the nearest is paging_ratio"),
        ("node.disk.bandwith", 1, "node.disk.bandwith: there is no such key; the nearest is bandwidth"),
        (
            "consumers[0].outages[0].laststing",
            1,
            "consumers[0].outages[0].laststing: there is no such key; the nearest ",
        ),
        ("node.settings.embed_below", 1, "node.settings.embed_below: there is no such setting; the nearest is "),
        ("publishers[0].rate", {"burst": {}}, "publishers[0].rate.burst: there is no such key; the nearest is bursts"),
        (
            "publishers[0].rate",
            {"bursts": {"bas": 1}},
            "publishers[0].rate.bursts.bas: there is no such key; the nearest",
        ),
        (
            "publishers[0].body",
            {"lognorm": {}},
            "publishers[0].body.lognorm: there is no such key; the nearest is logn",
        ),
        # keys that are missing, tables that are lists
        ("publishers[0]", {"rate": 5}, "publishers[0].queue is missing"),
        ("events[0]", {"what": "purge"}, "events[0].at is missing"),
        ("publishers[0].rate", {"bursts": {"base": 1}}, "publishers[0].rate.bursts.peak is missing"),
        ("queues", {"name": "orders"}, "queues must be a list of tables, each [[queues]], not one [queues]"),
        ("publishers", 5, "publishers must be a list of tables, not 5"),
        ("publishers", ["orders"], "publishers[0] must be a PublisherSpec, or a table, not 'orders'"),
        # rates
        ("publishers[0].rate", -5, "publishers[0].rate must be 0 … 1e9 messages a second, not -5"),
        ("publishers[0].rate", float("nan"), "publishers[0].rate must be 0 … 1e9 messages a second, not nan"),
        ("publishers[0].rate", float("inf"), "publishers[0].rate must be 0 … 1e9 messages a second, not inf"),
        ("publishers[0].rate", True, "publishers[0].rate must be 0 … 1e9 messages a second, not True"),
        ("publishers[0].rate", "fast", "publishers[0].rate must be 0 … 1e9 messages a second, not 'fast'"),
        (
            "publishers[0].rate",
            {},
            "publishers[0].rate must hold one of bursts, daily, trace, record, not none of them",
        ),
        ("publishers[0].rate", {"daily": []}, "publishers[0].rate.daily must be a list of [time of day, rate], not []"),
        (
            "publishers[0].rate",
            {"daily": [["08:00", -1]]},
            "publishers[0].rate.daily[0] must be 0 … 1e9 messages a sec",
        ),
        ("publishers[0].rate", {"daily": [["25:00", 1]]}, "publishers[0].rate.daily[0] must be a time of day such as"),
        (
            "publishers[0].rate",
            {"daily": [["24:00", 1]]},
            "publishers[0].rate.daily[0] must be a time of day from 00:00",
        ),
        (
            "publishers[0].rate",
            {"daily": [["09:00", 1], ["08:00", 2]]},
            "publishers[0].rate.daily[1] must be at a later time of day than the one before, not at '08:00'",
        ),
        (
            "publishers[0].rate",
            {"bursts": {"base": -1, "peak": 2, "every": 9, "lasting": 1}},
            "publishers[0].rate.bursts.base must be 0 … 1e9 messages a second, not -1",
        ),
        (
            "publishers[0].rate",
            {"bursts": {"base": 1, "peak": 2, "every": "5s", "lasting": "6s"}},
            "publishers[0].rate.bursts.lasting must be more than 0 s and less than the time from one burst to the next",
        ),
        (
            "publishers[0].rate",
            {"bursts": {"base": 1, "peak": 2, "every": 0, "lasting": 0}},
            "publishers[0].rate.bursts.every must be at least 0.001 s, not 0.0",
        ),
        (
            "consumers[0].rate",
            0,
            "consumers[0].rate must be at least 1e-05 messages a second, not 0: leave out a consumer that",
        ),
        ("consumers[0].rate", -1, "consumers[0].rate must be 0 … 1e9 messages a second, not -1"),
        # bodies
        ("publishers[0].body", -1, "publishers[0].body must be 0 … "),
        ("publishers[0].body", "1TB", "publishers[0].body must be a number of bytes, or one with a unit such as"),
        ("publishers[0].body", "1GB", "publishers[0].body must be 0 … 134217728 bytes, not '1GB'"),
        (
            "publishers[0].body",
            {"lognormal": {"median": 0, "sigma": 1}},
            "publishers[0].body.lognormal.median must be ",
        ),
        ("publishers[0].body", {"lognormal": 5}, "publishers[0].body.lognormal must be a table with median and sigma"),
        ("publishers[0].body", {"empirical": [[1, -1]]}, "publishers[0].body.empirical.weights[0] must be a number, 0"),
        (
            "publishers[0].body",
            {"empirical": [[1, 0]]},
            "publishers[0].body.empirical.weights: not all of them can be 0",
        ),
        ("publishers[0].body", {"empirical": [[1]]}, "publishers[0].body.empirical[0] must be [size, weight], not [1]"),
        # memory, disk, settings
        ("node.memory", 0, "node.memory must be at least 1 byte and at most a pebibyte, not 0"),
        ("node.memory", -1, "node.memory must be 0 … "),
        ("node.memory", float("nan"), "node.memory must be 0 … "),
        (
            "node.memory",
            "9999999GB",
            "node.memory must be at least 1 byte and at most a pebibyte, not 9999999000000000",
        ),
        ("node.memory", "99999999999GB", "node.memory must be 0 … "),
        (
            "node.memory",
            "30kB",
            "node.memory: queues that are asleep and empty take 16384 bytes, and with the node itself ",
        ),
        ("node.memory", "1 GB", "node.memory must be a number of bytes, or one with a unit such as '2GB'"),
        (
            "node.message_memory",
            {"node": "2GB"},
            "node.watermark: 858993459 bytes may be used, but the node itself takes",
        ),
        ("node.watermark", 1.5, "node.watermark must be 0.0 … 1.0 of the total memory, or a whole number of bytes"),
        ("node.watermark", [], "node.watermark must be a number of bytes"),
        ("node.paging_ratio", 1, "node.paging_ratio must be at least 0.0 and below 1.0, not 1"),
        ("node.paging_ratio", "half", "node.paging_ratio must be a number, not 'half'"),
        ("node.profile", "rabbitmq-4", "node.profile must be one of 'default', 'rabbitmq-3.10', not 'rabbitmq-4'"),
        ("node.monitor_interval", -1, "node.monitor_interval must be 0 s … 366 days, not -1"),
        ("node.disk", {"bandwidth": 0}, "node.disk.bandwidth must be more than 0 bytes a second"),
        ("node.disk", {"size": 5, "used": 5}, "node.disk.used: others use 5 of the disk's 5 bytes: no space is left"),
        ("node.settings", 5, "node.settings must be a table, not 5"),
        (
            "node.settings",
            {"vm_memory_high_watermark": 0.3},
            "node.settings.vm_memory_high_watermark: set node.",
        ),
        ("node.settings", {"sync": "never"}, "node.settings.sync must be one of 'os', 'group', 'always', not 'never'"),
        (
            "node.settings",
            {"segment_entry_count": "x"},
            "node.settings.segment_entry_count must be a whole number, not",
        ),
        (
            "node.settings",
            {"msg_store_io_batch_size": -1},
            "node.settings.msg_store_io_batch_size must not be negative",
        ),
        # queues
        ("queues", [], "queues: at least one is needed"),
        ("queues[0].name", "", "queues[0].name must be a text of characters that can be printed, not ''"),
        ("queues[0].name", "a\nb", "queues[0].name must be a text of characters that can be printed, not 'a\\nb'"),
        ("queues[0].name", "x" * 256, "queues[0].arguments: a queue's name cannot be "),
        ("queues[0].name", "audit-2", "queues: 'audit-2' occurs twice"),
        ("queues[0].name", "audit", "queues: 'audit' occurs twice"),
        ("queues[0].count", 0, "queues[0].count must be a whole number, 1 … 1000000, not 0"),
        ("queues[0].count", 1.5, "queues[0].count must be a whole number, 1 … 1000000, not 1.5"),
        ("queues[0].timeline", "none", "queues[0].timeline must be one of 'each', 'sum', not 'none'"),
        (
            "queues[0].arguments",
            {"x-max-length": -1},
            "queues[0].arguments: invalid arg 'x-max-length' for queue 'orders'",
        ),
        ("queues[0].arguments", [1], "queues[0].arguments must be a table, not [1]"),
        (
            "queues[0].arguments",
            {"x-dead-letter-exchange": "dlx"},
            "queues[0].arguments.x-dead-letter-exchange: a scen",
        ),
        (
            "queues[0]",
            {"name": "orders", "durable": False, "messages": 1},
            "queues[0].messages: those at the st",
        ),
        (
            "queues[0]",
            {"name": "orders", "lazy": True, "arguments": {"x-queue-mode": "default"}},
            "queues[0].lazy: is true, and x-queue-mode among the arguments is 'default'",
        ),
        # who works with them
        ("publishers[0].queue", "ordrs", "publishers[0].queue: there is no queue 'ordrs'"),
        ("consumers[0].queue", "audit-4", "consumers[0].queue: there is no queue 'audit-4'"),
        ("publishers[0].persistent", 1.5, "publishers[0].persistent must be 0.0 … 1.0, not 1.5"),
        (
            "publishers[0].arrivals",
            "normal",
            "publishers[0].arrivals must be one of 'constant', 'poisson', not 'normal'",
        ),
        ("publishers[0].end", 0, "publishers[0].end: 0 s is not after start, 0 s"),
        ("publishers[0].start", "2min", "publishers[0].start: 120 s is not before the end of the scenario"),
        ("publishers[0].count", 1_000_000, "publishers: 1000004 publishers and consumers are more than 1000000"),
        ("publishers[0].rate", 1e9, "publishers: 6e+10 messages are more than 1e+10"),
        ("consumers[0].requeue", 1, "consumers[0].requeue: a consumer that requeues everything never ends"),
        (
            "consumers[0].outages",
            [{"at": "noon", "lasting": 1}],
            "consumers[0].outages[0].at must be a time such as 2.5",
        ),
        ("consumers[0].record", {"record": ""}, "consumers[0].record.record must be a text of characters that can be"),
        ("consumers[0].record", {"record": "/dev/zero"}, "consumers[0].record.record: /dev/zero: is not a file"),
        ("publishers[0].rate", {"record": "/dev/zero"}, "publishers[0].rate.record: /dev/zero: is not a file"),
        ("publishers[0].rate", {"trace": "/dev/zero"}, "publishers[0].rate.trace: /dev/zero: is not a file"),
        ("consumers[0].prefetch", -1, "consumers[0].prefetch must be a whole number, 0 … 65535, not -1"),
        # events
        ("events[0].what", "fire", "events[0].what must be one of 'consumers-down'"),
        ("events[0].until", 1, "events[0].until: 1 s is not after at, 1 s"),
        ("events[0].until", -2, "events[0].until must be 0 s … 366 days, not -2"),
        ("events[0]", {"what": "purge", "at": 60}, "events[0].at: 60 s is not before the end of the scenario"),
        ("events[0].value", 2, "events[0].value: consumers-down takes no value"),
        ("events[0]", {"what": "publishers-factor", "at": 1}, "events[0].value: publishers-factor needs a value"),
        (
            "events[0]",
            {"what": "publishers-factor", "at": 1, "value": -1},
            "events[0].value must be a number, 0 … 1000",
        ),
        ("events[0]", {"what": "consumers-factor", "at": 1, "value": 0}, "events[0].value must be a number, 0.001 … 1"),
        ("events[0]", {"what": "watermark", "at": 1, "value": 2.0}, "events[0].value must be 0.0 … 1.0 of the total"),
        ("events[0]", {"what": "purge", "at": 1, "until": 2}, "events[0].until: a purge has no duration"),
        # the whole
        ("length", 0, "step must be more than 0 s and at most the length (0.0 s), not 1.0"),
        ("length", "400d", "length must be 0 s … 366 days, not '400d'"),
        ("length", [], "length must be a time such as 2.5, '250ms' or '10min', not []"),
        ("step", 1e-9, "step: a timeline of 240000000000 rows (each queue's, every 1e-09 s) is too long"),
        ("start", "7pm", "start must be a time of day such as '09:30', not '7pm'"),
        ("start", True, "start must be a time of day such as '09:30', not True"),
        ("seed", -1, "seed must be a whole number, 0 … "),
        ("name", "a\tb", "name must be a text of characters that can be printed, not 'a\\tb'"),
    ],
)
def test_what_cannot_be_is_said_with_its_key(key: str, value: Any, said: str) -> None:
    assert refused(small(key, value)).startswith(said)


def test_an_event_that_ends_on_the_next_day_may_not_begin_after_it() -> None:
    table = small("events[0]", {"what": "consumers-down", "at": "22:00", "until": "01:00"}) | {"length": "20h"}
    assert scenario_from_table(table | {"start": "09:00"}).events[0].until == "01:00"
    assert refused(table | {"start": "23:00"}) == "events[0].until: 01:00 is not after at, 22:00"


def test_a_number_of_very_many_digits_is_refused_without_writing_them() -> None:
    assert refused(tomllib.loads(f"seed = 0x{'f' * 5000}")) == "seed must be a number of 64 bits, not a very large int"


def test_what_is_nested_without_end_is_refused() -> None:
    table: dict[str, Any] = {"node": {}}
    table["node"]["settings"] = table["node"]
    assert refused(table).endswith("is nested too deep")


def test_a_group_name_that_is_there_twice_is_found_in_many() -> None:
    queues = [{"name": "q", "count": 20_000, "timeline": "sum"}, {"name": "q-20000"}]
    assert refused(SMALL | {"queues": queues}) == "queues: 'q-20000' occurs twice"


def test_a_name_a_group_and_a_pattern_mean_queues() -> None:
    scenario = scenario_from_table(SMALL)
    assert scenario.queues_of("orders") == ["orders"]
    assert scenario.queues_of("audit") == ["audit-1", "audit-2", "audit-3"]
    assert scenario.queues_of("audit-3") == ["audit-3"]
    assert scenario.queues_of("*-[12]") == ["audit-1", "audit-2"]
    assert scenario.queues_of("o*") == ["orders"]
    assert attrs.evolve(scenario, queues=[{"name": "audit-1"}, {"name": "orders"}]).queues_of("audit*") == ["audit-1"]


def test_a_queue_that_is_named_is_not_looked_for_among_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 publishers that each name one of 10,000 queues took minutes to check."""
    monkeypatch.setattr(fnmatch, "fnmatchcase", lambda *_: pytest.fail("a pattern was looked for"))
    names = [f"q{number}" for number in range(100)]
    publishers = [{"queue": name, "rate": 1} for name in [*names, "group", "group-2"]]
    queues = [*({"name": name} for name in names), {"name": "group", "count": 3}]
    assert len(scenario_from_table({"queues": queues, "publishers": publishers}).publishers) == 102


def test_a_scenario_can_be_sent_to_another_process() -> None:
    scenario = scenario_from_toml(EXAMPLE)
    assert pickle.loads(pickle.dumps(scenario)) == scenario


def test_more_rows_than_memory_holds_are_refused() -> None:
    queues: list[dict[str, Any]] = [{"name": "orders"}, {"name": "audit", "count": 20_000, "timeline": "each"}]
    assert refused(SMALL | {"queues": queues, "length": "10min"}).startswith("step: a timeline of 12000600 rows")
    assert scenario_from_table(SMALL | {"queues": [queues[0], queues[1] | {"timeline": "sum"}]}).steps == 60


def test_a_trace_in_python_has_one_moment_more_than_rates_and_they_rise() -> None:
    for at_s, rates in (((0, 1), (1, 2)), ((0,), ()), ((0, 0), (1,)), ((0, 2, 1), (1, 1)), ((0, 1), (-1,))):
        with pytest.raises(ScenarioError):
            Trace("here", at_s, rates)


def test_a_part_that_is_made_in_python_is_checked_as_one_of_a_file() -> None:
    for make in (lambda: Constant(-1), lambda: Bursts(1, 2, 1, 2), lambda: Daily(()), lambda: LognormalSize(0, 1)):
        with pytest.raises(ScenarioError):
            make()


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"length = ", "no TOML: Invalid value"),
        (b"\xff\xfe", "no TOML: 'utf-8' codec can't decode"),
        (b"a = " + b"[" * 5000, "no TOML: "),
        (b"a = " + b"9" * 5000, "no TOML: "),
        (b"", "queues: at least one is needed"),
        (b"length = 2026-03-01", "length must be a time such as 2.5"),
    ],
)
def test_a_file_that_is_no_scenario_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "scenario.toml"
    path.write_bytes(content)
    with pytest.raises(ScenarioError, match=f"^{re.escape(f'{path}: {said}')}"):
        load_scenario(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "none.toml", "there is no such file"), (tmp_path, "no file")):
        with pytest.raises(ScenarioError, match=re.escape(f"{path}: {said}")):
            load_table(path)


def test_a_known_situation_has_a_name_and_a_file_of_that_name_goes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "consumer-outage" in names_of_scenarios()
    assert load_scenario("consumer-outage").name == "Consumer outage"
    (tmp_path / "consumer-outage").write_text('name = "mine"\n[[queues]]\nname = "q"\n', encoding="utf-8")
    assert load_scenario("consumer-outage").name == "mine"
    with pytest.raises(ScenarioError, match="there is no such file"):
        load_scenario("consumer-outages")


def test_a_trace_is_looked_for_beside_its_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "rates.csv").write_text("time,rate\n0,1\n1,2\n", encoding="utf-8")
    (tmp_path / "sub" / "s.toml").write_text(
        '[[queues]]\nname = "q"\n[[publishers]]\nqueue = "q"\nrate = {trace = "rates.csv"}\n', encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    [publisher] = load_scenario("sub/s.toml").publishers
    assert isinstance(publisher.rate, Trace)
    assert publisher.rate.rates == (1.0, 2.0)


# ── other values in a table ──────────────────────────────────────────────────────────────────────────────────────────


def test_varying_sets_a_key_in_one_place_or_in_all_of_a_list() -> None:
    before = copy.deepcopy(SMALL)
    changes = {"node.paging_ratio": 0.3, "publishers.rate": 7, "consumers[0].outages[0].lasting": 1, "length": 30}
    scenario = scenario_from_table(vary(SMALL, changes))
    assert scenario.node.paging_ratio == 0.3
    assert [spec.rate for spec in scenario.publishers] == [Constant(7.0)] * 2
    assert scenario.consumers[0].outages[0].lasting == 1
    assert scenario_from_table(vary(SMALL, {"publishers[1].rate": 9})).publishers[0].rate == Constant(10.0)
    assert before == SMALL


def test_varying_reaches_into_the_table_of_a_scenario_of_python() -> None:
    scenario = Scenario(queues=[QueueSpec(name="q")], publishers=[PublisherSpec(queue="q", rate=Bursts(1, 2, 9, 1))])
    changed = scenario_from_table(vary(table_of(scenario), {"publishers.rate.bursts.peak": 5}))
    assert changed.publishers[0].rate == Bursts(1, 5, 9, 1)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("publishers[2].rate", "publishers[2].rate: publishers has 2 items, numbered from 0"),
        ("publishers.rate.bursts.peak", "publishers.rate.bursts.peak: publishers[0].rate is no table, but 10"),
        ("length.x", "length.x: length is no table, but 60"),
        ("node[0].memory", "node[0].memory: the scenario has no node"),
        ("", "'' is no key such as"),
        ("publishers[-1].rate", "'publishers[-1].rate' is no key such as"),
        ("a..b", "'a..b' is no key such as"),
    ],
)
def test_a_key_that_leads_nowhere_is_refused(key: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=f"^{re.escape(said)}"):
        vary(SMALL, {key: 1})


def test_a_list_that_the_scenario_does_not_have_cannot_be_varied() -> None:
    with pytest.raises(ScenarioError, match=r"^events.value: the scenario has no events$"):
        vary({"queues": [{"name": "q"}]}, {"events.value": 1})


# ── whatever comes ───────────────────────────────────────────────────────────────────────────────────────────────────

_WORDS = st.sampled_from(
    sorted(
        {field.name for kind in (Scenario, NodeSpec, PublisherSpec, Event, Disk) for field in attrs.fields(kind)}
        | {field.name for kind in (NodeSettings, Settings) for field in attrs.fields(kind)}
        | {"bursts", "daily", "trace", "empirical", "lognormal", "x-max-length", "x-queue-mode"}
    )
)
_PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["10min", "2GB", "09:30", "orders", "audit-*", "constant", "purge", "lazy", "/dev/null", 10**400])
)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    _PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS | st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def scenario_or_error(make: Callable[[], Scenario]) -> Scenario | None:
    said = "x.toml: nothing"
    try:
        return make()
    except ScenarioError as error:
        said = str(error)
    assert said.startswith("x.toml: ")
    assert "\n" not in said
    return None


@settings(max_examples=times(80))
@given(st.dictionaries(_WORDS, _VALUES, max_size=5))
def test_any_table_is_a_scenario_or_one_clear_error(table: dict[str, Any]) -> None:
    scenario_or_error(lambda: scenario_from_table(table, "x.toml"))


_EXAMPLE_TABLE = tomllib.loads(EXAMPLE)


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(inner for key, each in items for inner in _places(each, (*place, key)))]


@settings(max_examples=times(120))
@given(st.lists(st.tuples(st.sampled_from(_places(_EXAMPLE_TABLE)[1:]), _VALUES), min_size=1, max_size=2))
def test_a_mutated_example_is_a_scenario_or_one_clear_error(mutations: list[tuple[tuple[Any, ...], Any]]) -> None:
    table = copy.deepcopy(_EXAMPLE_TABLE)
    for place, value in mutations:
        holder = table
        try:
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = value
        except (TypeError, KeyError, IndexError):
            continue  # an earlier mutation took it away
    scenario = scenario_or_error(lambda: scenario_from_table(table, "x.toml"))
    if scenario is not None:
        assert scenario_from_table(table_of(scenario)) == scenario


@settings(max_examples=times(150))
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="replace")))
def test_any_text_is_a_scenario_or_one_clear_error(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    scenario_or_error(lambda: scenario_from_toml(text, "x.toml"))


@settings(max_examples=times(60))
@given(st.text(max_size=12) | st.from_regex(r"[a-z]+(\[[0-9]\])?(\.[a-z]+)*", fullmatch=True), _VALUES)
def test_any_key_varies_the_example_or_is_refused(key: str, value: Any) -> None:
    try:
        table = vary(_EXAMPLE_TABLE, {key: value})
    except ScenarioError:
        return
    scenario_or_error(lambda: scenario_from_table(table, "x.toml"))
