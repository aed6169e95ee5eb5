"""The examples of the simulation run, and show what their pages say.

A number on a page is looked for there by the words around it and compared with what the run gives, so that neither can
change alone. Each example is run by one test.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import attrs
import pytest

from warren.simulation import QueueSpec, Result, Scenario, simulate
from warren.simulation.toml_file import SCENARIOS, load_scenario, names_of_scenarios

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parent.parent
DOCS = PROJECT / "docs"
EXAMPLES = PROJECT / "examples" / "simulation"
LARGEST_PICTURE_BYTES = 150_000
PAGES = {
    "slow-consumer": ("slow-consumer",),
    "consumer-outage": ("consumer-outage",),
    "burst": ("burst",),
    "idle-queues": ("wake-idle-queues", "idle-queues"),
    "lazy": ("lazy", "not-lazy"),
    "embedded": ("embedded", "not-embedded"),
    "unlimited-prefetch": ("unlimited-prefetch",),
    "two-queues": ("two-queues",),
}
"""By section of the page, which has the picture of that name: the scenarios that it explains."""


def scenario(name: str) -> Scenario:
    return load_scenario(name)


def section(name: str) -> str:
    """The section with the picture of this name."""
    sections = (DOCS / "simulation-examples.md").read_text(encoding="utf-8").split("\n## ")
    [text] = [text for text in sections if f"](simulation-{name}.png)" in text]
    return text


class Page:
    """One section's text, in one line without emphasis."""

    def __init__(self, name: str) -> None:
        self._text = re.sub(r"\s+", " ", section(name).replace("**", ""))

    def says(self, words: str, value: float, within: float = 0.03) -> None:
        """Words with an ``N`` in them are there, and the number in its place is ``value``, nearly."""
        pattern = re.escape(words).replace("N", r"([0-9][0-9,.]*[0-9]|[0-9])", 1)
        found = re.search(pattern, self._text)
        assert found, f"the page does not say {words!r}"
        assert float(found[1].replace(",", "")) == pytest.approx(value, rel=within), words


def node(result: Result) -> Any:
    return result.summary["node"]


def of(result: Result, queue: str = "orders") -> Any:
    return result.summary["queues"][queue]


def at(result: Result, time_s: float, queue: str = "orders") -> Any:
    """A queue's row of a moment."""
    rows = result.queue(queue)
    return rows[rows["time_s"] >= time_s].iloc[0]


def moments(result: Result, kind: str) -> list[float]:
    return [mark.at_s for mark in result.marks if mark.kind == kind]


def test_each_section_has_its_picture_and_names_its_scenarios_and_they_name_the_page() -> None:
    every = set(names_of_scenarios())
    assert every == {name for names in PAGES.values() for name in names}
    for page, names in PAGES.items():
        text = section(page)
        picture = DOCS / f"simulation-{page}.png"
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size < LARGEST_PICTURE_BYTES
        for name in names:
            assert re.search(rf"warren\s+simulate\s+{name}\b|`{name}`", text), name
            assert "docs/simulation-examples.md" in (SCENARIOS / f"{name}.toml").read_text(encoding="utf-8")


def test_a_slow_consumers_backlog_grows_and_memory_does_not() -> None:
    page, result = Page("slow-consumer"), simulate(scenario("slow-consumer"))
    orders, used = of(result), node(result)
    page.says("At the end N messages are ready", orders["ready"])
    page.says("never uses more than N MB", used["max_used_bytes"] / 1e6)
    page.says("Paging begins after N seconds", used["first_paging_s"])
    page.says("(N MB, the paging ratio)", used["paging_from_bytes"] / 1e6)
    page.says("Latency grows with the backlog, to N seconds", orders["latency_max_s"])
    page.says("it works N % of the time", used["disk_busy"] * 100, within=0.3)
    assert used["alarms"] == 0
    assert orders["publishers_held_s"] == 0
    timeline = result.queue("orders").set_index("time_s")
    page.says("After N seconds Q4 is empty", timeline.index[(timeline["q4"] == 0) & (timeline.index > 20)].min(), 0.05)
    first_delta = timeline[timeline["delta"] > 0].iloc[0]
    page.says("from a backlog of about N on", first_delta["len"], 0.05)
    later = timeline.loc[120:]
    page.says("some N messages are in RAM", later["ram_msg_count"].mean(), 0.05)
    ratio = result.node.set_index("time_s").loc[120:, "ratio"].mean()
    page.says("are in RAM: N of the watermark", ratio, 0.05)
    assert ratio == pytest.approx(0.5 + 1100 / later["ram_msg_count"].mean(), rel=0.05)
    assert result.node.set_index("time_s").loc[120:, "disk_read_bytes"].mean() == pytest.approx(2e6, rel=0.1)
    assert (
        timeline.loc[164, "q3"] - timeline.loc[163, "q3"] > 16_000 or timeline["q3"].diff().loc[160:170].max() > 16_000
    )


def test_a_catch_up_needs_more_memory_than_the_outage() -> None:
    page, result = Page("consumer-outage"), simulate(scenario("consumer-outage"))
    used = result.node.set_index("time_s")["used_bytes"] / 1e6
    paging = node(result)["first_paging_s"]
    page.says("Memory rises for N seconds", paging - 600, 0.06)
    page.says("At its end N messages are there", at(result, 1800)["len"])
    during, after = used.loc[800:1795], used.loc[1900:2300]
    assert during.max() < 1.1 * 50
    assert during.min() > 0.85 * 50
    page.says("more memory than the outage, N MB instead of 50", after.max(), 0.05)
    page.says("memory falls to N MB", used.loc[1800:1900].min(), 0.1)
    page.says("stays in Q4, N messages or so", at(result, 1700)["q4"], 0.05)
    page.says("Q3 keeps N positions", at(result, 1700)["q3"], 0.05)
    page.says("it held N GB", node(result)["max_disk_bytes"] / 1e9, 0.05)
    latency = result.queue("orders").set_index("time_s")["latency_p50_s"]
    assert latency.loc[1805] == pytest.approx(1200, rel=0.02)
    assert latency.loc[2420:].max() < 1
    assert latency.loc[2380] > 10
    assert latency.loc[:595].max() < 1
    assert node(result)["alarms"] == 0


def test_one_burst_fits_one_is_paged_when_it_is_over_and_one_sets_the_alarm() -> None:
    page, result = Page("burst"), simulate(scenario("burst"))
    used = result.node.set_index("time_s")["used_bytes"] / 1e6
    timeline = result.queue("orders").set_index("time_s")
    starts, alarms, ends = (moments(result, kind) for kind in ("paging-starts", "memory-alarm", "memory-alarm-ends"))
    page.says("The first is absorbed. N MB at most", used.loc[:39].max())
    assert timeline.loc[:39, "disk_read_bytes"].sum() == 0
    assert timeline.loc[29.5:39, "len"].max() < 100
    page.says("Memory rises to N MB, 92 %", used.loc[40:60].max())
    page.says("Paging begins after N seconds: the burst was over at 44", starts[0])
    assert 44 < starts[0] < 50
    page.says("The target of that moment is N messages", timeline.loc[45.5:46, "target_ram_count"].min(), 0.05)
    page.says("and N bodies are dropped", timeline.loc[45, "ram_msg_count"] - timeline.loc[45.5, "ram_msg_count"], 0.1)
    page.says("At N s the node uses 232 MB", alarms[0])
    page.says("the node uses N MB, more than it may", used.loc[70:80].max())
    assert ends[-1] - alarms[0] == pytest.approx(3, abs=0.6)
    assert len(alarms) == 1
    page.says("here for N seconds", of(result)["publishers_held_s"], 0.05)
    page.says("the disk has N MB/s to write", timeline.loc[76:77, "published"].max() * 2 * 10_000 / 1e6, 0.1)
    page.says("N seconds at most", of(result)["latency_max_s"], 0.05)


def test_waking_idle_queues_takes_the_memory_that_was_to_be_saved() -> None:
    """A copy with a tenth of the queues, each ten times as large: memory is the same, and turns are a tenth."""
    page, results = Page("idle-queues"), {}
    for name in PAGES["idle-queues"]:
        whole = scenario(name)
        assert whole.queues[1].count == 10_000
        memory = whole.node.memory_of_messages
        larger = attrs.evolve(memory, queue_awake=memory.queue_awake * 10, queue_asleep=memory.queue_asleep * 10)
        queues = (whole.queues[0], QueueSpec(name="idle", count=1000))
        results[name] = simulate(
            attrs.evolve(whole, queues=queues, node=attrs.evolve(whole.node, message_memory=larger))
        )
    woken, alone = results["wake-idle-queues"], results["idle-queues"]
    used = {name: result.node.set_index("time_s")["used_bytes"] / 1e6 for name, result in results.items()}
    for memory in used.values():
        page.says("9 kB each, N MB in all", memory.loc[5], 0.05)
        page.says("At 45 seconds memory is short, N MB", memory.loc[45], 0.05)
    page.says("The hot queue has N MB of that", at(alone, 45, "hot")["ram_bytes"] / 1e6, 0.05)
    page.says("process is awake: N MB", used["wake-idle-queues"].loc[1], 0.05)
    page.says("It uses N MB, the memory alarm is set", used["wake-idle-queues"].loc[40:].max(), 0.05)
    page.says("At the same moment the node uses N MB and goes on", used["idle-queues"].loc[46], 0.05)
    page.says("That is N MB more", (used["wake-idle-queues"] - used["idle-queues"]).loc[10:].max(), 0.05)
    page.says("they take N turns more", (of(woken, "idle")["turns"] - of(alone, "idle")["turns"]) * 10, 0.05)
    assert node(woken)["alarms"] >= 1
    assert of(woken, "hot")["publishers_held_s"] > 0.5
    assert node(alone)["alarms"] == 0
    assert of(alone, "hot")["publishers_held_s"] == 0


def test_a_lazy_queue_needs_no_memory_and_writes_everything() -> None:
    page, lazy, default = Page("lazy"), *(simulate(scenario(name)) for name in PAGES["lazy"])
    assert node(lazy)["max_used_bytes"] < 100_000
    for result in (lazy, default):
        page.says("N messages are there at most, in both", of(result)["max_ready"])
        page.says("it works N % of the time", node(lazy)["disk_busy"] * 100, 0.3)
    page.says("It writes N GB", node(lazy)["disk_write_bytes"] / 1e9, 0.05)
    page.says("the one in default mode N GB", node(default)["disk_write_bytes"] / 1e9, 0.05)
    page.says("uses N MB in the catch-up", node(default)["max_used_bytes"] / 1e6, 0.04)
    first = {
        result.summary["name"]: result.node.set_index("time_s").loc[:59, "disk_write_bytes"]
        for result in (lazy, default)
    }
    assert first["Default queue"].sum() == 0
    page.says("the lazy one writes N MB/s", first["Lazy queue"].mean() / 1e6, 0.1)
    assert of(lazy)["latency_p99_s"] == pytest.approx(of(default)["latency_p99_s"], rel=0.001)
    assert of(lazy)["acked"] == of(default)["acked"]


def test_a_hundred_bytes_less_and_publishers_are_blocked() -> None:
    page, small, large = Page("embedded"), *(simulate(scenario(name)) for name in PAGES["embedded"])
    page.says("It begins after N seconds", node(small)["first_paging_s"], 0.05)
    page.says("After N seconds the memory alarm is set", node(small)["first_alarm_s"], 0.05)
    page.says("the memory alarm is set, N times", node(small)["alarms"], 0.2)
    page.says("publishers are blocked for N of the 240 seconds", node(small)["alarm_s"], 0.05)
    page.says("Memory reaches N MB, 130 %", node(small)["max_used_bytes"] / 1e6, 0.05)
    page.says("130 % of the watermark".replace("130", "N"), node(small)["max_ratio"] * 100, 0.05)
    page.says("its target is N messages", result_target(small), 0.1)
    page.says("the queue has up to N", of(small)["max_ram_msg_count"], 0.05)
    page.says("N MB at most, 73 %, no alarm", node(large)["max_used_bytes"] / 1e6, 0.05)
    page.says("at most, N %, no alarm", node(large)["max_ratio"] * 100, 0.05)
    assert node(large)["alarms"] == 0
    assert of(large)["publishers_held_s"] == 0
    loads = small.queue("orders")["disk_read_bytes"]
    assert (loads > 50e6).sum() == 3
    whole = scenario("embedded")
    kept = {"page_inside_segments": False}
    for change in (
        {},
        kept | {"queue_index_embed_msgs_below": 1024},
        kept | {"segment_entry_count": 2048},
    ):  # its advice
        better = simulate(attrs.evolve(whole, length=120.0, node=attrs.evolve(whole.node, settings=change)))
        assert node(better)["alarms"] == 0, change


def result_target(result: Result) -> float:
    """The target, on average, of the second half."""
    targets = result.queue("orders").set_index("time_s")["target_ram_count"]
    return float(targets.loc[120:].mean())


def test_an_empty_queue_fills_memory_with_what_is_unacked() -> None:
    page, result = Page("unlimited-prefetch"), simulate(scenario("unlimited-prefetch"))
    timeline = result.queue("orders").set_index("time_s")
    quiet = timeline.loc[:149]
    assert quiet["len"].max() == 0
    page.says("an idle node, N ms", of(result)["latency_p50_s"] * 1000, 0.1)
    page.says("N messages are unacked, 150 MB", quiet["unacked"].loc[100:].mean())
    page.says("some N of them stay in RAM", quiet["ram_ack_count"].loc[100:].mean(), 0.05)
    used = result.node.set_index("time_s")["used_bytes"] / 1e6
    page.says("stay in RAM and memory at N MB", used.loc[100:149].mean(), 0.05)
    page.says("and are ready: N messages", of(result)["requeued"])
    page.says("takes everything at once: N messages", of(result)["max_ready"])
    page.says("read from the disk at N MB/s", timeline["disk_read_bytes"].max() / 1e6, 0.1)
    assert timeline["unacked"].loc[200:218].max() > 1.8 * 15_000
    assert of(result)["acked"] < of(result)["delivered"]


def test_two_queues_get_one_duration_and_so_messages_by_their_rates() -> None:
    page, result = Page("two-queues"), simulate(scenario("two-queues"))
    fast, slow = (result.queue(name).set_index("time_s") for name in ("fast", "slow"))
    page.says("The fast one keeps N messages", fast["ram_msg_count"].loc[60:].mean(), 0.05)
    page.says("the slow one N", slow["ram_msg_count"].loc[60:].mean(), 0.05)
    ratio = fast["target_ram_count"].loc[60:] / slow["target_ram_count"].loc[60:]
    assert ratio.mean() == pytest.approx(10, rel=0.05)
    begins = {mark.queue: mark.at_s for mark in reversed(result.marks) if mark.kind == "paging-starts"}
    page.says("Both are paged from N seconds on", begins["fast"])
    assert abs(begins["fast"] - begins["slow"]) < 2.5
    for one in (fast, slow):
        assert one["latency_p50_s"].iloc[-1] == pytest.approx(120, rel=0.03)


# ── the scripts ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def run_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a script in a folder of its own; answers its names and the lines that it printed."""
    monkeypatch.chdir(tmp_path)

    def run(name: str) -> tuple[dict[str, Any], list[str]]:
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        assert len(re.findall(r"^# %%", text, re.MULTILINE)) >= 6
        names = runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return names, capsys.readouterr().out.splitlines()

    return run


def test_explore_shows_the_backlog_and_draws_it(run_script: Any, tmp_path: Path) -> None:
    names, lines = run_script("explore.py")
    fullest = names["fullest"]
    assert fullest[["q4", "q3", "delta", "q2", "q1"]].sum() == fullest["len"] > 10_000
    assert any("paging-starts" in line for line in lines)
    assert any("paging-ends" in line for line in lines)
    assert (tmp_path / "explore.png").read_bytes().startswith(b"\x89PNG")


def test_a_paging_ratio_below_one_half_changes_next_to_nothing(run_script: Any, tmp_path: Path) -> None:
    names, _ = run_script("paging_ratio.py")
    used = names["used"]
    assert not names["frame"]["error"].notna().any()
    assert used.loc[0.1].tolist() == pytest.approx(used.loc[0.3].tolist(), rel=0.04)
    assert used.loc[0.3].tolist() == pytest.approx(used.loc[0.5].tolist(), rel=0.04)
    assert (used.loc[0.9] > used.loc[0.5] - 0.01).all()
    assert used.loc[0.9].min() > used.loc[0.5].min() + 0.2
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_the_size_of_a_node_is_found_between_too_little_and_enough(run_script: Any) -> None:
    names, lines = run_script("size_a_node.py")
    assert 0 < names["too_little"] < names["enough"] < 400e6
    assert names["enough"] - names["too_little"] <= 0.15 * names["enough"]
    assert names["best"].summary["node"]["alarms"] == 0
    assert names["best"].summary["node"]["limit_bytes"] > 0.9 * 16_384 * 3_000
    assert re.match(r"[0-9]+ MB are enough, [0-9]+ MB are not$", next(line for line in lines if "enough" in line))
