"""The demo: that what it claims was really checked, that each kind of failure is noticed, and how it ends."""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from examples.demo import __main__ as command
from examples.demo import acts, fleet, run
from examples.demo.__main__ import FEWEST_MESSAGES
from examples.demo.acts import Stage
from examples.demo.checking import Check, Faults, NumberedCheck, compare_taken_over
from examples.demo.killing import Killed, PublisherError, publish_until_killed
from examples.demo.measuring import Frame, Peaks, disk_usage, peak_memory_bytes
from examples.demo.numbered import LARGE_BYTES, SMALL_BYTES, body_of, envelope_of, number_of, payload_bytes
from examples.demo.publisher import Plan, open_directory
from examples.demo.screen import Act, Screen
from examples.demo.shipped import BUSY_QUEUE, Shipped, digest_of, open_shipped, read_shipped, take_over
from examples.demo.shipped_store import load_oracle
from examples.demo.summary import Summary
from tests.support.effort import times
from warren.cli import app
from warren.engine import vhost_path
from warren.queue_index.index.directory import queue_directory_name
from warren.queue_index.message.message_format import encode_many
from warren.storage.errors import DirectoryLockedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
VHOST = b"/"
ENVELOPES = [envelope_of(VHOST, BUSY_QUEUE, publisher) for publisher in (1, 2)]
Message = tuple[int, int]
"""Publisher (0 or 1) and number."""


class Clock:
    """Seconds that pass only as the test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def new_screen(clock: Callable[[], float], *, terminal: bool = False) -> tuple[Screen, io.StringIO]:
    text = io.StringIO()
    return Screen(Console(file=text, width=100, force_terminal=terminal, highlight=False), clock), text


def frame(**changes: int | float | None) -> Frame:
    return attrs.evolve(
        Frame(
            q1=1,
            q2=2,
            delta=3,
            q3=4,
            q4=5,
            in_memory=6,
            target=None,
            done=7,
            elapsed_s=1.0,
            peak_memory_bytes=1_000_000,
        ),
        **changes,  # type: ignore[arg-type]
    )


def terms_of(messages: list[Message]) -> tuple[list[bytes], list[bytes]]:
    """The encoded messages, and their ids."""
    ids = [random.Random(place).randbytes(16) for place in range(len(messages))]
    terms = [
        encode_many(ENVELOPES[publisher], msg_id, [body_of(number)])[0]
        for (publisher, number), msg_id in zip(messages, ids, strict=True)
    ]
    return terms, ids


def checked(messages: list[Message], *, confirmed: int, total: int, batch: int = 7) -> NumberedCheck:
    """What the check says of messages that are fetched in batches."""
    check = NumberedCheck(ENVELOPES, confirmed, total)
    terms, ids = terms_of(messages)
    for start in range(0, len(terms), batch):
        check.take(terms[start : start + batch], ids[start : start + batch])
    check.finish()
    return check


def faults(check: NumberedCheck) -> tuple[int, int, int]:
    return check.lost.count, check.misplaced.count, check.damaged.count


def first(*numbers: int) -> list[Message]:
    return [(0, number) for number in numbers]


def second(*numbers: int) -> list[Message]:
    return [(1, number) for number in numbers]


# ── one whole run ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Summary, str, Path]:
    """A run without a terminal: its summary, what it printed, and its directory."""
    clock = Clock()
    screen, text = new_screen(clock)
    directory = tmp_path_factory.mktemp("demo")
    return run.run(str(directory), FEWEST_MESSAGES, screen, with_spark=False), text.getvalue(), directory


def test_every_check_holds(played: tuple[Summary, str, Path]) -> None:
    summary, _, _ = played
    assert [check for check in summary.checks if not check.held] == []
    assert summary.taken_over == 69
    assert summary.published == FEWEST_MESSAGES
    assert summary.fetched == summary.taken_over + summary.published + summary.survivors


def test_the_kill_comes_in_the_middle_and_its_survivors_are_recovered(played: tuple[Summary, str, Path]) -> None:
    summary, _, _ = played
    assert 0.7 * FEWEST_MESSAGES <= summary.confirmed_before_kill < FEWEST_MESSAGES
    in_front = 18  # what RabbitMQ had left in the same queue
    assert summary.recovered == in_front + summary.confirmed_before_kill + summary.survivors


def test_all_types_of_queues_the_dead_brokers_store_and_the_topic_are_in_the_sum(
    played: tuple[Summary, str, Path],
) -> None:
    summary, text, _ = played
    rocketmq, topic = summary.rocketmq, summary.topic
    assert (summary.types.queues, summary.types.messages) == (8, 135)
    assert (rocketmq.messages, rocketmq.keys) == (320, 763)
    assert (rocketmq.keys_lost, rocketmq.missing.count) == (647, 0)
    assert (topic.orders.total, topic.read) == (FEWEST_MESSAGES // 4, FEWEST_MESSAGES // 2)
    assert topic.messages_found >= 3 * topic.keys_found > 1_000
    assert "135 messages of 8 queues, classic v1, classic v2 and quorum" in text
    assert "its recovery loses 647 of 763 keys, rebuilding none" in text


@pytest.mark.slow
@pytest.mark.spark
def test_spark_reads_both_dead_brokers_as_they_read_themselves(spark: SparkSession, tmp_path: Path) -> None:
    screen, text = new_screen(Clock())
    with open_shipped() as source:
        shipped = read_shipped(source)
    stage = Stage(str(tmp_path), Plan(FEWEST_MESSAGES), screen)
    played = fleet.play(stage, shipped, load_oracle())
    assert played is not None
    assert all(check.held for check in played.checks())
    assert played.messages == shipped.count + sum(topic.messages for topic in load_oracle().topics.values())
    assert spark.range(3).count() == 3  # the session that was there still is
    played = fleet.compared(played, {"nonsense": [b"body"]})
    assert [check.held for check in played.checks()] == [False, True]
    assert "Both dead brokers in one load" in text.getvalue()


def test_memory_is_limited_and_the_rest_is_on_disk(played: tuple[Summary, str, Path]) -> None:
    summary, _, _ = played
    assert summary.most_on_disk_only > FEWEST_MESSAGES // 2
    assert 0 < summary.most_in_memory < 2 * summary.memory_target


def test_without_a_terminal_there_are_plain_lines_only(played: tuple[Summary, str, Path]) -> None:
    _, text, _ = played
    assert "\x1b" not in text
    assert "Killed (SIGKILL) while it published" in text
    assert "FAILED" not in text
    assert all(text_line == text_line.rstrip() for text_line in text.splitlines())


def test_the_directory_that_is_left_is_a_sound_and_empty_one(played: tuple[Summary, str, Path]) -> None:
    _, _, directory = played
    result = CliRunner().invoke(app, ["inspect", "--json", str(directory)])
    queues = json.loads(result.stdout)["vhosts"][0]["queues"]
    assert result.exit_code == 0
    assert sum(queue["ready"] for queue in queues) == 0


def test_a_loss_on_disk_is_found_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_and_kill = acts.publish_and_kill

    def then_lose_a_segment(stage: acts.Stage, shipped: Shipped) -> Killed:
        killed = publish_and_kill(stage, shipped)
        queue = vhost_path(tmp_path, "/") / "queues" / queue_directory_name(VHOST, BUSY_QUEUE)
        (queue / "2.idx").unlink()
        return killed

    monkeypatch.setattr(acts, "publish_and_kill", then_lose_a_segment)
    screen, text = new_screen(Clock())
    summary = run.run(str(tmp_path), FEWEST_MESSAGES, screen, with_spark=False)
    (lost,) = [check for check in summary.checks if "lost" in check.name]
    assert not summary.held
    in_front = 18
    first_lost, last_lost = 2 * 2048 - in_front, 3 * 2048 - in_front - 1
    assert lost.detail == f"messages {first_lost:,} to {last_lost:,} of publisher 1 (2,048 in all)"
    assert "FAILED" in text.getvalue()


# ── what the check of the numbered messages notices ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("messages", "lost"),
    [
        (first(*range(30), *range(31, 60)) + second(*range(60, 100)), 1),
        (first(*range(55)) + second(*range(60, 100)), 5),
        (first(*range(55), 61) + second(*range(60, 100)), 5),
        (first(*range(60)) + second(*range(60, 80), *range(90, 100)), 10),
        (first(*range(60)) + second(*range(60, 99)), 1),
        (first(*range(60)), 40),
        (first(*range(50)), 50),
        ([], 100),
    ],
    ids=[
        "one in the middle",
        "the last confirmed ones",
        "the last confirmed ones before a survivor",
        "some of the second publisher",
        "the very last one",
        "all of the second publisher",
        "the end of the first and all of the second publisher",
        "everything",
    ],
)
def test_lost_messages_are_counted(messages: list[Message], lost: int) -> None:
    assert faults(checked(messages, confirmed=60, total=100)) == (lost, 0, 0)


def test_two_exchanged_messages_are_noticed() -> None:
    assert faults(checked(first(0, 1, 3, 2, 4) + second(5, 6), confirmed=5, total=7)) == (1, 1, 0)


def test_a_message_that_comes_twice_is_noticed() -> None:
    assert faults(checked(first(0, 1, 1, 2) + second(3), confirmed=3, total=4)) == (0, 1, 0)


def test_a_message_of_the_first_publisher_behind_the_second_is_noticed() -> None:
    assert faults(checked(first(0, 1) + second(2) + first(2) + second(3), confirmed=2, total=4)) == (0, 1, 0)


@given(st.data())
@settings(max_examples=times(60))
def test_a_flipped_bit_anywhere_is_noticed(data: st.DataObject) -> None:
    messages = first(*range(6)) + second(6, 7, 8)
    terms, ids = terms_of(messages)
    place = data.draw(st.integers(0, len(terms) - 1))
    bit = data.draw(st.integers(0, 8 * len(terms[place]) - 1))
    damaged = bytearray(terms[place])
    damaged[bit // 8] ^= 1 << bit % 8
    terms[place] = bytes(damaged)
    check = NumberedCheck(ENVELOPES, 6, 9)
    check.take(terms, ids)
    check.finish()
    assert check.damaged.count + check.misplaced.count + check.lost.count > 0


@given(st.integers(0, 40), st.integers(1, 9), st.sets(st.integers(40, 59)))
@settings(max_examples=times(60))
def test_however_it_is_cut_into_batches(confirmed: int, batch: int, survivors: set[int]) -> None:
    messages = first(*range(confirmed), *sorted(survivors)) + second(*range(confirmed, 60))
    check = checked(messages, confirmed=confirmed, total=60, batch=batch)
    assert faults(check) == (0, 0, 0)
    assert check.survivors == len(survivors)


def test_faults_name_the_first_few_and_count_all() -> None:
    many = Faults()
    for number in range(8):
        many.add(f"fault {number}")
    assert str(many) == "fault 0; fault 1; fault 2; fault 3; fault 4 (8 in all)"
    assert not Check.of("", many).held


# ── what was taken over ──────────────────────────────────────────────────────────────────────────────────────────────


def test_every_part_of_a_message_taken_over_is_compared() -> None:
    with open_shipped() as source:
        shipped = read_shipped(source)
    before = shipped.messages(b"dead")
    for change in (
        {"exchange": b"other"},
        {"routing_keys": (b"other",)},
        {"body": b"other"},
        {"msg_id": bytes(16)},
        {"properties": attrs.evolve(before[2].properties, headers={"x": 1})},
    ):
        after = [*before]
        after[2] = attrs.evolve(before[2], **change)
        found = Faults()
        compare_taken_over("dead", before, after, found)
        assert str(found) == f"dead: message 2 differs in {next(iter(change))}"


def test_a_message_too_few_is_noticed() -> None:
    with open_shipped() as source:
        before = read_shipped(source).messages(b"work")
    found = Faults()
    compare_taken_over("work", before, before[:-1], found)
    assert str(found) == "work: 17 messages in place of 18"


def test_the_shipped_messages_are_those_that_rabbitmq_delivered() -> None:
    with open_shipped() as source:
        shipped = read_shipped(source)
    assert shipped.queues.keys() == shipped.delivered.keys()
    for name, said in shipped.delivered.items():
        bodies = [message.body for message in shipped.messages(name)]
        assert (len(bodies), digest_of(bodies)) == (said.messages, said.sha256)


def test_taking_over_keeps_times_to_live(tmp_path: Path) -> None:
    with open_shipped() as source:
        shipped = read_shipped(source)
    vhost = open_directory(str(tmp_path), shipped.vhost)
    take_over(shipped, vhost)
    queue = vhost.queue(b"long-ttl")
    expiries = []
    while (properties := queue.drop_while(lambda _: False)) is not None:
        expiries.append(properties.expiry_us)
        queue.drop()
    vhost.close()
    assert expiries == [stored.expiry_us for stored in shipped.queues[b"long-ttl"]]
    assert all(expiries)


# ── the numbered messages ────────────────────────────────────────────────────────────────────────────────────────────


def test_bodies_say_their_number_and_differ_in_size() -> None:
    bodies = [body_of(number) for number in range(150)]
    assert [number_of(body) for body in bodies] == list(range(150))
    assert {len(body) for body in bodies} == {SMALL_BYTES, LARGE_BYTES}
    assert sum(map(len, bodies)) == payload_bytes(150)
    assert number_of(b"no number at all") is None


# ── the publisher's process ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_publisher_that_cannot_work_says_why(tmp_path: Path) -> None:
    vhost = open_directory(str(tmp_path), VHOST)
    try:
        with pytest.raises(PublisherError, match=DirectoryLockedError.__name__):
            publish_until_killed(str(tmp_path), VHOST, BUSY_QUEUE, count=1_000, kill_at=700, show=lambda _: None)
    finally:
        vhost.abandon()


def test_ctrl_c_takes_the_publisher_along(tmp_path: Path) -> None:
    def interrupt(_: Frame) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish_until_killed(str(tmp_path), VHOST, BUSY_QUEUE, count=20_000, kill_at=14_000, show=interrupt)
    vhost = open_directory(str(tmp_path), VHOST)  # its lock is free
    vhost.close()


def test_plans_leave_room_for_the_kill() -> None:
    for total in (FEWEST_MESSAGES, 200_000, 10_000_000):
        plan = Plan(total)
        reports_after_kill = 0.3 * total / plan.commit
        assert reports_after_kill > 8
        assert plan.batch <= plan.commit


# ── drawing ──────────────────────────────────────────────────────────────────────────────────────────────────────────

ACT = Act("confirmed", 100, 100, lambda: (3, 4_000))


def test_a_line_says_all_five_lists() -> None:
    text = ACT.line(frame(target=10)).plain
    assert "7 confirmed" in text
    assert "Q1      1  Q2      2  delta       3  Q3      4  Q4      5" in text
    assert "6 messages in memory (limit 10)" in text


def test_lines_come_at_intervals_and_the_last_one_always() -> None:
    clock = Clock()
    screen, text = new_screen(clock)
    with screen.watch(ACT) as show:
        for done in range(100):
            clock.now = done / 50
            show(frame(done=done))
    drawn = [int(text_line.split()[0]) for text_line in text.getvalue().splitlines()]
    assert drawn == [0, 25, 50, 75, 99]


@pytest.mark.parametrize("width", [80, 100])
def test_on_a_terminal_the_lists_are_bars(width: int) -> None:
    screen, text = new_screen(Clock(), terminal=True)
    screen.console.width = width
    with screen.watch(ACT) as show:
        show(frame(delta=90))
    lines = text.getvalue().splitlines()
    delta = next(text_line for text_line in lines if "delta" in text_line)
    assert delta.count("█") > 0.8 * (width - 50)
    assert any("3 files, 4.0 kB" in text_line for text_line in lines)


def test_peaks_begin_with_the_first_frame_within_the_limit() -> None:
    peaks = Peaks()
    for in_memory, target in ((90, None), (80, 10), (9, 10), (12, 10), (50, None)):
        peaks.see(frame(in_memory=in_memory, target=target, delta=in_memory))
    assert (peaks.in_memory, peaks.on_disk_only) == (12, 90)


def test_frames_survive_their_line() -> None:
    assert Frame.from_line(frame(target=5).to_line()) == frame(target=5)


def test_disk_usage_counts_files_at_every_depth(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "one").write_bytes(b"1")
    (tmp_path / "a" / "b" / "four").write_bytes(b"4444")
    assert disk_usage(str(tmp_path)) == (2, 5)
    assert disk_usage(str(tmp_path / "missing")) == (0, 0)


def test_peak_memory_is_of_a_plausible_size() -> None:
    assert 1 << 20 < peak_memory_bytes() < 1 << 40


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Performed:
    """Stands in for the run: gives a summary, and remembers the directories it was called with."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary
        self.directories: list[str] = []

    def __call__(self, directory: str, total: int, screen: Screen) -> Summary:
        self.directories.append(directory)
        screen.say(f"{total} messages")
        return self.summary


@pytest.fixture
def performed(played: tuple[Summary, str, Path], monkeypatch: pytest.MonkeyPatch) -> Performed:
    performed = Performed(played[0])
    monkeypatch.setattr(command, "run", performed)
    return performed


def test_what_held_ends_with_0_and_leaves_no_directory(performed: Performed) -> None:
    result = CliRunner().invoke(command.app, [])
    assert (result.exit_code, result.stdout.strip()) == (0, "200000 messages")
    assert not os.path.exists(performed.directories[0])


def test_what_did_not_hold_ends_with_1_and_is_named(performed: Performed) -> None:
    failed = Check.that("none is lost", False, "one is")
    performed.summary = attrs.evolve(performed.summary, checks=[*performed.summary.checks, failed])
    result = CliRunner().invoke(command.app, ["--json"])
    assert result.exit_code == 1
    summary = json.loads(result.stdout)
    assert summary["held"] is False
    assert summary["checks"][-1] == {"name": "none is lost", "held": False, "detail": "one is"}
    screen, text = new_screen(Clock())
    screen.put(performed.summary.tables())
    assert "FAILED  none is lost\n           one is" in text.getvalue()


def test_json_is_all_that_stdout_gets(performed: Performed) -> None:
    result = CliRunner().invoke(command.app, ["--json", "--messages", "30000"])
    assert json.loads(result.stdout)["held"] is True
    assert "30000 messages" in result.stderr


def test_a_directory_of_the_users_is_kept(performed: Performed, tmp_path: Path) -> None:
    result = CliRunner().invoke(command.app, ["--directory", str(tmp_path)])
    assert (result.exit_code, performed.directories) == (0, [str(tmp_path)])
    assert "kept" in result.stdout


def test_a_directory_with_something_in_it_is_refused(performed: Performed, tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    for place in (tmp_path, tmp_path / "precious"):
        result = CliRunner().invoke(command.app, ["--directory", str(place)])
        assert (result.exit_code, performed.directories) == (2, [])
        assert "there is something in it" in result.stderr


def test_too_few_messages_are_refused(performed: Performed) -> None:
    assert CliRunner().invoke(command.app, ["--messages", str(FEWEST_MESSAGES - 1)]).exit_code == 2
    assert performed.directories == []
