"""``warren topic delayed``: what waits in a stopped store, of delay levels and of RocketMQ 5's timers."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import warren
from tests.support.cli_tools import warren as command
from warren.actors.engines.topics.store_opening import load_store
from warren.msg_store.commit_log.commit_log import Batch
from warren.msg_store.commit_log.commit_log_format import Host, encode_properties
from warren.salvage.rocketmq.delayed_messages import TIMER_TOPIC, UNIT
from warren.salvage.rocketmq.rocketmq_store import index_names
from warren.storage.filesystem import RealFileSystem
from warren.storage.topic_settings import ROCKETMQ_4_9

SMALL = attrs.evolve(ROCKETMQ_4_9, mapped_file_size_commit_log=1 << 16, max_hash_slot_num=10, max_index_num=1000)
HERE = Host.parse("10.0.0.1:1")
NOW_MS = 1_700_000_000_000


def listed(*arguments: str | Path) -> list[dict[str, Any]]:
    result = command("topic", "delayed", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def brief(lines: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """The bodies, and the seconds after now when they are due."""
    return [(base64.b64decode(line["body"]).decode(), (line["due_timestamp"] - NOW_MS) // 1000) for line in lines]


# ── delay levels ─────────────────────────────────────────────────────────────────────────────────────────────────────


def delayed_store(tmp_path: Path) -> Path:
    with warren.open(tmp_path / "node") as node:
        topic = node.topic("orders", queues=2)
        topic.append(b"later", delay=7200.0, queue=1).wait()
        topic.append(b"soon", delay=600.0, queue=0, key="k").wait()
    return tmp_path / "node" / "topics"


def test_what_waits_for_its_level_is_listed_the_earliest_first(tmp_path: Path) -> None:
    store = delayed_store(tmp_path)
    soon, later = lines = listed(store)
    assert [base64.b64decode(line["body"]) for line in lines] == [b"soon", b"later"]
    assert (soon["real_topic"], soon["real_queue_id"], soon["keys"]) == ("orders", 0, "k")
    assert (later["real_topic"], later["real_queue_id"]) == ("orders", 1)
    assert [line["due_timestamp"] - line["store_timestamp"] for line in lines] == [600_000, 7_200_000]
    assert listed(store, "--limit", "1") == [soon]


@pytest.mark.parametrize("damage", ["", "{"])
def test_damaged_offsets_of_levels_fall_back_to_their_backup(tmp_path: Path, damage: str) -> None:
    store = delayed_store(tmp_path)
    offsets = store / "config" / "delayOffset.json"
    offsets.with_name("delayOffset.json.bak").write_text('{"offsetTable":{14:1}}')  # the level of ten minutes
    offsets.write_text(damage)
    result = command("topic", "delayed", store)
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1)
    assert "delayOffset.json.bak is read instead" in result.stderr


def test_offsets_of_levels_that_no_file_has_are_an_error(tmp_path: Path) -> None:
    store = delayed_store(tmp_path)
    (store / "config" / "delayOffset.json").write_text("{")
    (store / "config" / "delayOffset.json.bak").unlink(missing_ok=True)
    result = command("topic", "delayed", store)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "delayOffset.json" in result.stderr


# ── timers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Timer:
    """A message in the timers' topic, due ``due_s`` seconds after now; ``wheel_s``: its time on the wheel, if any."""

    name: str
    due_s: int
    wheel_s: int | None
    deletes: str | None = None
    queue_id: str = "1"

    @property
    def properties(self) -> bytes:
        fields = {"REAL_TOPIC": "orders", "REAL_QID": self.queue_id, "UNIQ_KEY": self.name}
        fields["TIMER_OUT_MS"] = str(NOW_MS + 1000 * self.due_s)
        if self.deletes is not None:
            fields["TIMER_DEL_UNIQKEY"] = f"orders+{self.deletes}"
        return encode_properties(fields)


def timer_store(place: Path, *timers: Timer, read_s: int = 0, first_off_wheel: int = 0) -> Path:
    """A store whose wheel was read up to ``read_s`` seconds after now, and has the messages before a queue offset."""
    store = load_store(RealFileSystem(), str(place), SMALL, new_index_name=index_names())
    store.start()
    units = np.zeros(16, UNIT)
    for unit, timer in zip(units, timers, strict=False):
        batch = Batch(
            topic=TIMER_TOPIC,
            queue_id=0,
            bodies=[timer.name.encode()],
            properties=timer.properties,
            born_timestamp=1,
            born_host=HERE,
            store_host=HERE,
        )
        appended = store.append(batch, NOW_MS)
        if timer.wheel_s is not None:
            unit["size"], unit["magic"], unit["written_ms"], unit["previous"] = 52, 1, NOW_MS, -1
            unit["delay_ms"] = 1000 * timer.wheel_s
            unit["physical_offset"], unit["record_size"] = appended.physical_offsets[0], appended.sizes[0]
    store.close()
    (place / "timerlog").mkdir()
    on_wheel = units[units["size"] > 0].tobytes()
    (place / "timerlog" / f"{0:020d}").write_bytes(on_wheel.ljust(16 * UNIT.itemsize, b"\0"))
    checkpoint = np.array([NOW_MS + 1000 * read_s, len(on_wheel), first_off_wheel, 0], ">i8").tobytes()
    (place / "config").mkdir(exist_ok=True)
    (place / "config" / "timercheck").write_bytes(checkpoint.ljust(4096, b"\0"))
    return place


def test_timers_that_wait_are_listed_in_the_order_of_their_times(tmp_path: Path) -> None:
    timers = [
        Timer("delivered", 5, 5),
        Timer("b", 60, 60),
        Timer("a", 30, 30),
        Timer("rolled on", 400_000, 9),  # stored again when the wheel came there
        Timer("far", 400_000, 200_000),
        Timer("off the wheel", 45, None),
    ]
    store = timer_store(tmp_path, *timers, read_s=10, first_off_wheel=5)
    lines = listed(store)
    assert brief(lines) == [("a", 30), ("off the wheel", 45), ("b", 60), ("far", 400_000)]
    assert {(line["real_topic"], line["real_queue_id"], line["topic"]) for line in lines} == {
        ("orders", 1, TIMER_TOPIC)
    }


def test_a_message_that_was_delivered_at_once_was_never_on_the_wheel(tmp_path: Path) -> None:
    store = timer_store(tmp_path, Timer("at once", 1, None), Timer("a", 30, 30), read_s=10, first_off_wheel=2)
    assert brief(listed(store)) == [("a", 30)]


def test_a_timer_that_another_message_deletes_does_not_wait(tmp_path: Path) -> None:
    timers = [Timer("a", 30, 30), Timer("b", 30, 30), Timer("x", 30, 30, deletes="a"), Timer("y", 40, 40, deletes="b")]
    assert brief(listed(timer_store(tmp_path, *timers, first_off_wheel=4))) == [("b", 30)]


def test_without_a_checkpoint_all_timers_are_listed_and_stderr_says_so(tmp_path: Path) -> None:
    store = timer_store(tmp_path, Timer("old", 5, 5), Timer("a", 30, 30), read_s=10, first_off_wheel=2)
    (store / "config" / "timercheck").unlink()
    result = command("topic", "delayed", store)
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 2)
    assert "missing timer checkpoint" in result.stderr


def test_a_timer_without_its_time_is_damage(tmp_path: Path) -> None:
    store = timer_store(tmp_path, Timer("a", -2_000_000_000, 30))  # before 1970
    result = command("topic", "delayed", store)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "timer without time: queue offset 0" in result.stderr


def test_a_timers_queue_id_that_is_no_number_is_null(tmp_path: Path) -> None:
    store = timer_store(tmp_path, Timer("a", 30, 30, queue_id="x"), Timer("b", 40, 40, queue_id="9" * 5000))
    assert [line["real_queue_id"] for line in listed(store)] == [None, None]


def test_a_store_without_delays_has_an_empty_list(tmp_path: Path) -> None:
    with warren.open(tmp_path / "node") as node:
        node.topic("orders", queues=1).append(b"now").wait()
    assert listed(tmp_path / "node") == []
