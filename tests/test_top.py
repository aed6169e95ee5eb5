"""``warren top``: snapshots of a node, what is drawn of them, and a look at a node in another process."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType
from typer.testing import CliRunner, Result

import warren
from tests.support.runtime_tools import HandNode, hand_node
from warren import cli
from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.node.node_socket import SOCKET_NAME
from warren.salvage.archives.archive import unpack
from warren.storage.errors import WarrenError
from warren.top import command
from warren.top.attached import Attached, NotAttachedError, attached
from warren.top.command import Sort, _View
from warren.top.keys import PAGE_HELP, View, keys_of
from warren.top.numbers import duration, short, size
from warren.top.picture import picture, shares
from warren.top.queue_page import queue_page
from warren.top.snapshots import LISTS, SORTS, Row, Snapshot, Snapshots
from warren.verbs.steps import run

GOLDEN = Path(__file__).parent / "golden"
CRASHED = GOLDEN / "12-crash-torn-journal.tar.gz"


def top(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, ["top", *map(str, arguments)])


# ── the picture ─────────────────────────────────────────────────────────────────────────────────────────────────────


def row(name: str, *counts: int, **changes: Any) -> Row:
    """A queue with these numbers of messages in Q1, Q2, delta, Q3 and Q4."""
    lists = dict(zip(LISTS, counts or (0,) * 5, strict=True))
    ready = sum(lists.values())
    return {
        "vhost": "/", "name": name, "type": "classic", "state": "running", "reason": None, "mode": "default",
        "priorities": False, "consumers": 1, **lists, "ready": ready, "unacked": 0,
        "in_ram": lists["q1"] + lists["q4"], "target": None, "bytes": ready * 512, "bytes_in_ram": 0,
        "published": ready, "gone": 0, "in_rate": 0.0, "out_rate": 0.0,
    } | changes  # fmt: skip


def snapshot(rows: list[Row], left_out: int = 0, **memory: Any) -> Snapshot:
    usual = {
        "used_bytes": 412_000_000, "limit_bytes": 640_000_000, "paging_bytes": 320_000_000, "alarms": [],
        "disk_free_bytes": 84_000_000_000,
    }  # fmt: skip
    totals: dict[str, Any] = {state: sum(one["state"] == state for one in rows) for state in ("down", "hibernated")}
    totals |= {"queues": len(rows) + left_out, "busy": 0, "in_rate": 15359.7, "out_rate": 0.0}
    totals |= {name: sum(one[name] for one in rows) for name in ("ready", "unacked")}
    return {
        "path": "/srv/shop", "pid": 4711, "up_s": 11532.0, "memory": usual | memory, "down_vhosts": {},
        "totals": totals, "queues": rows, "left_out": left_out,
    }  # fmt: skip


def drawn(shot: Snapshot, width: int, *, coloured: bool = False) -> list[str]:
    """The lines; one that is too long for the width is wrapped."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=True)
    with console.capture() as captured:
        console.print(picture(shot, width, coloured=coloured))
    return [line.rstrip() for line in captured.get().splitlines()]


BUSY = [
    row("audit", state="down", reason="/srv/shop/msg_stores/vhosts/X/queues/Y/journal.jif, offset 3765: torn record"),
    row("orders", 12034, 4000, 1_203_444, 16384, 20111, unacked=512, target=40_000, in_rate=12034.2, out_rate=11220.7),
    row("thumbnails", 0, 0, 812_000, 2048, 100, unacked=64, target=0, in_rate=3100.0, out_rate=5.54),
    row("nightly-report", 0, 0, 48_000, 0, 0, state="hibernated"),
    row("slow", 0, 0, 0, 0, 7, state="busy", in_rate=None, out_rate=None),
    row("empty"),
]


def test_a_node_in_80_columns() -> None:
    assert drawn(snapshot(BUSY), 80) == [
        "warren /srv/shop                                    process 4711 · up 3 h 12 min",
        "memory ###################┃####────────────── 412 MB of 640 MB   disk free 84 GB",
        "6 queues · 2,118,128 ready · 576 unacked · in 15,360/s · out 0/s · 1 hibernated",
        "✖ 1 queue is down",
        "",
        "  queue          Q1 Q2 delta Q3 Q4     ready unacked   in/s  out/s    RAM/target",
        "✖ audit          …stores/vhosts/X/queues/Y/journal.jif, offset 3765: torn record",
        "● orders         12ddddddddddddd34──   1.26M     512 12,034 11,221 32,145/40,000",
        "● thumbnails     dddddddddddddd34───    814k      64  3,100    5.5         100/0",
        "○ nightly-report ddddddddddddd──────  48,000       0      ·      ·             0",
        "◐ slow           44─────────────────       7       0      –      –             7",
        "● empty          ───────────────────       0       0      ·      ·             0",
    ]


def test_a_node_in_120_columns_says_more() -> None:
    lines = drawn(snapshot(BUSY[1:3], left_out=3, alarms=["disk", "memory"]), 120)
    assert lines == [
        "warren /srv/shop" + " " * 76 + "process 4711 · up 3 h 12 min",
        "memory " + "#" * 30 + "┃" + "#" * 8 + "─" * 21 + " 412 MB of 640 MB" + " " * 21 + "disk free 84 GB",
        "5 queues · 2,070,121 ready · 576 unacked · in 15,360/s · out 0/s",
        " DISK AND MEMORY ALARM: publishers wait, consumers go on",
        "",
        "  queue      Q1 Q2 delta Q3 Q4" + " " * 21
        + "   ready unacked   in/s  out/s    RAM/target   bytes cons  state",
        "● orders     12" + "d" * 29 + "34─────   1.26M     512 12,034 11,221 32,145/40,000  643 MB    1  running",
        "● thumbnails " + "d" * 30 + "34──────    814k      64  3,100    5.5         100/0  417 MB    1  running",
        "  … and 3 more",
    ]  # fmt: skip


def test_a_node_in_200_columns_says_each_list() -> None:
    heading, line = drawn(snapshot(BUSY[1:2]), 200)[5:7]
    assert heading.split()[6:11] == ["Q1", "Q2", "delta", "Q3", "Q4"]
    assert line.split()[3:8] == ["12,034", "4,000", "1.20M", "16,384", "20,111"]


def test_colours_say_where_messages_are() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    with console.capture() as captured:
        console.print(picture(snapshot(BUSY[1:2]), 80))
    orders = captured.get().splitlines()[6]
    green, yellow, blue = "\x1b[32m", "\x1b[33m", "\x1b[34m"
    bar = f"{green}▆\x1b[0m{yellow}▆\x1b[0m{blue}{'▆' * 20}\x1b[0m{yellow}▆\x1b[0m{green}▆\x1b[0m"
    assert bar in orders


def test_no_queues_and_a_vhost_that_is_down() -> None:
    shot = snapshot([]) | {"down_vhosts": {"shop": "0.rdq: torn\n\x1b[2J"}}
    lines = drawn(shot, 80)
    assert lines[3] == "✖ vhost shop is down: 0.rdq: torn \\x1b[2J"
    assert lines[-1] == "  No queues."


def test_topics_have_lines_of_their_own() -> None:
    orders = {"name": "orders", "queues": 4, "messages": 1234, "appended": 2000, "in_rate": 12.0, "groups": {"b": 7}}
    shot = snapshot([]) | {"topics": {"down": None, "rows": [orders, orders | {"name": "a\x1b[2J", "groups": {}}]}}
    lines = drawn(shot, 80)
    assert not any("No queues" in line for line in lines)
    assert [line.split() for line in lines[-2:]] == [
        ["orders", "4", "1,234", "12", "b", "7"],
        ["a\\x1b[2J", "4", "1,234", "12"],
    ]
    assert drawn(shot | {"queues": BUSY[:1]}, 80)[-4] == ""
    assert drawn(snapshot([]) | {"topics": {"down": "torn\n", "rows": []}}, 80)[-1] == "✖ the topics are down: torn"
    full = {"down": None, "no_room": "0001: no space\n", "rows": [orders]}
    assert "▲ the topics find no room: 0001: no space" in drawn(snapshot([]) | {"topics": full}, 80)


def test_a_name_with_a_line_separator_stays_on_its_line() -> None:
    """U+2028 is no control character, and ends a line all the same."""
    assert drawn(snapshot([row("a\u2028b\u2029")]), 80)[-1].startswith("● a\\u2028b\\u2029 ")


NAMES = st.text(st.characters(codec="utf-8") | st.sampled_from("漢é\u0301\x1b\n\udcff"), max_size=60)
COUNTS = st.integers(0, 20) | st.integers(0, 10**13)
ROWS = st.builds(
    lambda name, counts, state, rate, target: row(
        name, *counts, state=state, in_rate=rate, out_rate=rate, target=target, reason="why " * 40, unacked=counts[0]
    ),
    NAMES,
    st.tuples(*[COUNTS] * 5),
    st.sampled_from(["running", "hibernated", "busy", "down"]),
    st.none() | st.floats(0, 1e9),
    st.none() | COUNTS,
)


@given(st.lists(ROWS, max_size=6), st.sampled_from([80, 100, 120, 200]), st.integers(0, 10**12), st.booleans())
def test_no_line_is_wider_than_the_terminal_and_none_wraps(
    rows: list[Row], width: int, used_bytes: int, coloured: bool
) -> None:
    lines = drawn(snapshot(rows, left_out=1, used_bytes=used_bytes), width, coloured=coloured)
    assert len(lines) == 5 + (1 + len(rows) if rows else 0) + 1
    assert all(cell_len(line) <= width for line in lines)


@given(st.lists(st.integers(0, 10**12), min_size=5, max_size=5), st.integers(5, 200))
def test_shares_fill_the_width_and_whatever_is_there_shows(counts: list[int], width: int) -> None:
    cells = shares(counts, width)
    assert sum(cells) == (width if any(counts) else 0)
    assert all((cell >= 1) == (count > 0) for cell, count in zip(cells, counts, strict=True))
    assert all(
        cell >= other for cell, count in zip(cells, counts, strict=True)
        for other, less in zip(cells, counts, strict=True) if count > 2 * less
    )  # fmt: skip


@given(st.floats(0, 9e14))
def test_a_count_has_at_most_six_characters(number: float) -> None:
    assert len(short(number)) <= 6


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (short(99_999), "99,999"),
        (short(100_000), "100k"),
        (short(999_499), "999k"),
        (short(999_600), "1.00M"),
        (short(9_994_999), "9.99M"),
        (short(9_996_000), "10.0M"),
        (short(123_456_789), "123M"),
        (size(0), "0 B"),
        (size(999), "999 B"),
        (size(1_500), "1.5 kB"),
        (size(999_600), "1.0 MB"),
        (size(34_000_000), "34 MB"),
        (duration(59.9), "59 s"),
        (duration(61), "1 min 1 s"),
        (duration(11532), "3 h 12 min"),
        (duration(200_000), "2 d 7 h"),
    ],
)
def test_numbers_for_people(said: str, expected: str) -> None:
    assert said == expected


# ── snapshots ───────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def held_node(**settings: Any) -> Iterator[HandNode]:
    hand = hand_node(**settings)
    with hand.node:
        yield hand


def test_rates_are_what_came_and_went_since_the_same_lookers_last_look() -> None:
    with held_node() as hand:
        orders = hand.node.queue("orders")
        orders.publish_many([b"x"] * 100).wait()
        looker = Snapshots(hand.node._running, lambda: hand.clock.now_ns() / 1e9)
        first = looker.take()["queues"][0]
        assert (first["ready"], first["published"], first["in_rate"], first["out_rate"]) == (100, 100, None, None)
        orders.publish_many([b"x"] * 30).wait()
        taken = orders.get_many(20)
        hand.advance(2)
        second = looker.take()
        assert second["queues"][0]["in_rate"] == 15.0
        assert (second["queues"][0]["out_rate"], second["queues"][0]["unacked"]) == (0.0, 20)  # they are not gone yet
        orders.ack(taken)
        hand.advance(2)
        third = looker.take()
        assert (third["queues"][0]["in_rate"], third["queues"][0]["out_rate"]) == (0.0, 10.0)
        assert third["totals"]["out_rate"] == 10.0
        assert Snapshots(hand.node._running).take()["queues"][0]["out_rate"] is None


def test_looking_keeps_no_queue_awake_and_one_that_rests_is_not_asked() -> None:
    with held_node(hibernate_after_ms=1000) as hand:
        hand.node.queue("orders").publish(b"x").wait()
        looker = Snapshots(hand.node._running, lambda: hand.clock.now_ns() / 1e9)
        for _ in range(20):
            looker.take()
            hand.advance(0.1)
        shot = looker.take()
        assert shot["queues"][0] == shot["queues"][0] | {"state": "hibernated", "ready": 1, "in_rate": 0.0}
        assert shot["totals"]["hibernated"] == 1
        actor = next(iter(hand.node._running.registry.vhost("/").queues.values())).actor
        actor.turns.lock.acquire()  # a question to the actor would not be answered now
        assert looker.take()["queues"][0]["state"] == "hibernated"
        actor.turns.lock.release()
        hand.node.queue("orders").publish(b"x").wait()
        awake = looker.take()["queues"][0]
        assert (awake["state"], awake["ready"], awake["published"]) == ("running", 2, 2)


def test_a_queue_that_does_not_answer_is_busy_with_the_numbers_it_had() -> None:
    with held_node() as hand:
        hand.node.queue("orders").publish(b"x").wait()
        looker = Snapshots(hand.node._running)
        looker.take()
        actor = next(iter(hand.node._running.registry.vhost("/").queues.values())).actor
        actor.turns.lock.acquire()
        hand.node.vhost("/").queue("orders")  # what other threads do does not wait for it
        shown = looker.take()["queues"][0]
        unseen = Snapshots(hand.node._running).take()["queues"][0]
        actor.turns.lock.release()
        assert (shown["state"], shown["ready"]) == ("busy", 1)
        assert (unseen["state"], unseen["ready"]) == ("busy", 0)


def test_a_queue_that_is_down_says_why_and_comes_first() -> None:
    with held_node() as hand:
        for name in ("a", "b", "c"):
            hand.node.queue(name).publish_many([b"x"] * (3 if name == "a" else 1)).wait()
        hand.node._running.registry.vhost("/").queues["c"].go_down(WarrenError("its journal is torn"))
        shot = Snapshots(hand.node._running).take()
        assert [one["name"] for one in shot["queues"]] == ["c", "a", "b"]
        assert "its journal is torn" in shot["queues"][0]["reason"]
        assert (shot["totals"]["down"], shot["totals"]["queues"], shot["totals"]["ready"]) == (1, 3, 4)
        assert [one["name"] for one in Snapshots(hand.node._running).take("name")["queues"]] == ["a", "b", "c"]


def test_many_queues_are_summed_and_only_as_many_shown_as_were_asked_for() -> None:
    with held_node(check_invariants=False) as hand:
        for number in range(300):
            hand.node.queue(f"q{number:03}").publish_many([b"x"] * (number % 7 + 1)).wait()
        shot = Snapshots(hand.node._running).take(limit=5)
        assert (shot["totals"]["queues"], shot["left_out"], len(shot["queues"])) == (300, 295, 5)
        assert shot["totals"]["ready"] == sum(number % 7 + 1 for number in range(300))
        assert [one["name"] for one in shot["queues"]] == ["q006", "q013", "q020", "q027", "q034"]


def test_a_stream_is_a_queue_with_all_its_messages_on_the_disk(tmp_path: Path) -> None:
    with warren.open(tmp_path / "data") as node:
        events = node.exchange("events", "fanout")
        declaration = QueueDeclaration(vhost="/", name="log", durable=True, arguments={"x-queue-type": "stream"})
        run(node._running.change(lambda registry: registry.declare_stream(declaration)))
        node.bind("log", "events")
        for _ in range(7):
            events.publish(b"x").wait()
        run(node._running.caught_up())
        snapshots = Snapshots(node._running)
        [found] = snapshots.take()["queues"]
        assert (found["type"], found["delta"], found["published"], found["bytes"]) == ("stream", 7, 7, None)
        taken = snapshots.take()
        assert taken["topics"]["rows"] == []  # it is not said twice
        assert any("log" in line and "stream" in line for line in drawn(taken | {"path": "/srv"}, 160))
        page = [line.plain for line in queue_page(snapshots.queue("/", "log"), 100)]
        assert any("7 on disk · offset 0 to 6" in line for line in page)
    listed = CliRunner().invoke(cli.app, ["queues", str(tmp_path / "data")])
    assert listed.stdout.splitlines()[-1].split() == ["log", "7", "0", "0", "·", "running"]


def test_only_one_vhost() -> None:
    with held_node() as hand:
        hand.node.queue("here")
        hand.node.vhost("shop").queue("there")
        looker = Snapshots(hand.node._running)
        assert [(one["vhost"], one["name"]) for one in looker.take("name")["queues"]] == [
            ("/", "here"),
            ("shop", "there"),
        ]
        assert [one["name"] for one in looker.take(vhost="shop")["queues"]] == ["there"]
        with pytest.raises(warren.errors.NotFoundError, match="no vhost 'other'"):
            looker.take(vhost="other")


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"want": "purge"},
        {"want": "snapshot", "sort": "size"},
        {"want": "snapshot", "sort": ["x"]},
        {"want": "snapshot", "limit": -1},
        {"want": "snapshot", "limit": "all"},
        {"want": "snapshot", "vhost": 5},
        {"want": "definitions", "vhost": "nowhere"},
        {"want": "queue"},
        {"want": "queue", "name": "nobody"},
        {"want": "queue", "name": ["x"]},
        {"want": "queue", "name": "x", "vhost": "nowhere"},
    ],
)
def test_requests_that_mean_nothing_are_refused(request_: dict[str, Any]) -> None:
    with held_node() as hand, pytest.raises(WarrenError):
        Snapshots(hand.node._running).answer(request_)


def test_the_command_has_every_order() -> None:
    assert [str(sort) for sort in Sort] == list(SORTS)


def test_a_resting_queue_and_one_that_nobody_ever_used_expire_all_the_same() -> None:
    """Hibernation cancelled the timer, and a queue without a message never set one."""
    with held_node(hibernate_after_ms=1000) as hand:
        hand.node.queue("unused", arguments={"x-expires": 5000})
        hand.node.queue("used", arguments={"x-expires": 5000}).publish(b"x").wait()
        hand.node.queue("short", arguments={"x-message-ttl": 5000}).publish(b"x").wait()
        hand.run()
        hand.advance(4)
        assert {one.name: len(one) for one in hand.node.queues()} == {"unused": 0, "used": 1, "short": 1}
        hand.advance(2)
        assert {one.name: len(one) for one in hand.node.queues()} == {"short": 0}


# ── the live view ───────────────────────────────────────────────────────────────────────────────────────────────────


def shown(view: View, count: int, room: int) -> list[str]:
    """The names that a view leaves of q0, q1 …"""
    rows = [row(f"q{number}") for number in range(count)]
    most = view.rows_needed(room)
    shot = snapshot(rows[:most], left_out=count - len(rows[:most]))
    view.filtered(shot)
    view.cut(shot, room)
    return [one["name"] for one in shot["queues"]]


def test_keys_scroll_sort_filter_and_quit() -> None:
    view = View()
    assert shown(view, 50, 10) == [f"q{number}" for number in range(10)]
    for key in ("down", "page down"):
        assert view.press(key)
        names = shown(view, 50, 10)
    assert names == [f"q{number}" for number in range(10, 20)]
    assert names[view.selected] == "q11"
    for _ in range(9):
        view.press("down")
    names = shown(view, 50, 10)
    assert (names[0], names[view.selected]) == ("q11", "q20")  # the list follows the selected row
    view.press("home")
    assert (shown(view, 50, 10)[0], view.selected) == ("q0", 0)
    for _ in range(9):
        view.press("page down")
        names = shown(view, 50, 10)
    assert names == [f"q{number}" for number in range(40, 50)]  # no further than to the last
    assert names[view.selected] == "q49"
    view.press("s")
    assert (view.sort, shown(view, 50, 10)[0]) == ("unacked", "q0")
    for key in "/q4x\x7f7\r":
        view.press(key)
    assert (view.typing, shown(view, 50, 10)) == (None, ["q47"])
    assert "'q47'" in view.footer()
    view.press("escape")
    assert len(shown(view, 50, 10)) == 10
    view.press("/")
    assert view.press("q")  # typed, and no order
    assert view.footer() == "/q▏"
    view.press("escape")
    assert not view.press("q")


def test_enter_opens_the_selected_queue_and_escape_goes_back() -> None:
    view = View()
    shown(view, 5, 10)
    for key in ("down", "down", "\r"):  # typed between two frames
        view.press(key)
    shown(view, 5, 10)
    assert view.opened == ("/", "q2")
    view.press("s")
    view.press("/")
    assert (view.sort, view.typing, view.footer()) == ("messages", None, PAGE_HELP)
    lines = list(range(30))
    assert view.cut_page(lines, 10) == list(range(10))
    view.press("page down")
    view.press("down")
    assert view.cut_page(lines, 10) == list(range(11, 21))
    for _ in range(5):
        view.press("page down")
    assert view.cut_page(lines, 10) == list(range(20, 30))
    assert view.press("escape")
    shown(view, 5, 10)
    assert (view.opened, view.selected) == (None, 2)
    view.press("\r")
    shown(view, 0, 10)
    assert view.opened is None  # no queue to open
    view.opened = ("/", "q1")
    assert not view.press("q")


def test_keys_are_cut_out_of_what_a_terminal_sends() -> None:
    assert keys_of("s\x1b[A\x1bOB\x1b[6~q") == ["s", "up", "down", "page down", "q"]
    assert keys_of("\x1b[15~q\x1b") == ["q", "escape"]


def no_page(vhost: str, name: str) -> Snapshot:
    raise AssertionError(f"nobody opened {name}")


def test_a_live_view_fits_the_height_and_says_how_many_queues_it_left_out() -> None:
    frames = iter([snapshot([row(f"q{number}") for number in range(50)])])
    asked: list[tuple[str, int | None]] = []

    def take(sort: str, most: int | None) -> Snapshot:
        asked.append((sort, most))
        if (frame := next(frames, None)) is None:
            raise KeyboardInterrupt
        return frame

    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=80, height=20, color_system=None, legacy_windows=False)
    with pytest.raises(KeyboardInterrupt):
        _View(console, take, no_page, "").watch(0)
    assert asked == [("messages", 20), ("messages", 20)]
    assert "q11" in text.getvalue()
    assert "q12" not in text.getvalue()
    assert "… and 38 more" in text.getvalue()
    assert "q quit · s sort" in text.getvalue()
    assert "\x1b[?1049h" in text.getvalue()  # a screen of its own
    assert text.getvalue().count("\x1b[?1049l") == 1


def screens(source: Snapshots | Attached, monkeypatch: pytest.MonkeyPatch, *keys: str, height: int = 40) -> list[str]:
    """What stands on the screen at the first frame, and after each of the keys."""
    take = source.take if isinstance(source, Snapshots) else source.snapshot
    console = Console(file=io.StringIO(), force_terminal=True, width=90, height=height, color_system=None)
    view = _View(console, take, source.queue, "")
    frames: list[str] = []
    draw = view._frame

    def drawn_frame(rows: int, *, coloured: bool) -> RenderableType:
        frame = draw(rows, coloured=coloured)
        paper = Console(file=io.StringIO(), width=console.width, color_system=None)
        with paper.capture() as captured:
            paper.print(frame)
        frames.append(captured.get())
        return frame

    typed = iter([*keys, "q"])

    class ScriptedKeyboard:
        def __enter__(self) -> ScriptedKeyboard:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def keys(self, timeout_s: float) -> list[str]:
            return [next(typed)]

    monkeypatch.setattr(view, "_frame", drawn_frame)
    monkeypatch.setattr(command, "Keyboard", ScriptedKeyboard)
    view.watch(0)
    return frames


def test_a_queues_page_on_a_node_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {"x-max-length": 5000, "x-overflow": "reject-publish", "x-max-priority": 2}
    with held_node() as hand:
        hand.node.queue("emails")
        orders = hand.node.queue("orders", arguments=arguments)
        orders.publish_many([b"x" * 500] * 1000).wait()
        held = orders.get_many(13)
        looker = Snapshots(hand.node._running, lambda: hand.clock.now_ns() / 1e9)
        listed, page, typed, back, emails = screens(looker, monkeypatch, "\r", "s", "escape", "down", "\r")[:5]
        assert "●▸orders" in listed
        assert "⏎ open" in listed
        for said in (
            "● orders  vhost / · running · mode default",
            "987 ready · 13 unacked · 1,000 in all",
            "Q4                987  in RAM",
            "priority 0: 987",
            "avg_ingress_rate",
            "1,000 messages in RAM · target_ram_count infinity",
            "500 kB of 500 kB of bodies in RAM",
            "1,000 persistent",
            " has 13 unacked",
            "durable · x-max-length 5000 · x-max-priority 2 · x-overflow reject-publish",
            "Esc back",
        ):
            assert said in page, said
        assert "by messages" not in typed  # s sorts the list, not a page
        assert "orders" in typed
        assert "●▸orders" in back
        assert "○▸emails" in emails
        orders.ack(held)


def test_a_page_of_a_queue_that_is_deleted_meanwhile_says_so_and_leads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_node() as hand:
        hand.node.queue("orders")
        looker = Snapshots(hand.node._running)
        ask = looker.queue

        def ask_and_delete(vhost: str, name: str) -> Snapshot:
            found = ask(vhost, name)
            hand.node.queue("orders").delete()
            return found

        monkeypatch.setattr(looker, "queue", ask_and_delete)
        page, gone, back = screens(looker, monkeypatch, "\r", "down", "escape")[1:4]
        assert "target_ram_count" in page
        assert "no queue 'orders' in vhost '/'" in gone
        assert "No queues." in back


def test_a_page_of_a_queue_that_is_down_or_busy_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_node() as hand:
        hand.node.queue("down", arguments={"x-expires": 60_000}).publish(b"x").wait()
        hand.node.queue("slow").publish(b"x").wait()
        entries = hand.node._running.registry.vhost("/").queues
        entries["down"].go_down(WarrenError("its journal is torn, " * 20))
        looker = Snapshots(hand.node._running)
        looker.take()
        actor = entries["slow"].actor
        actor.turns.lock.acquire()
        down, _, _, slow = screens(looker, monkeypatch, "\r", "escape", "down", "\r")[1:5]
        actor.turns.lock.release()
        assert down.count("its journal is torn") > 10
        assert "x-expires 60000" in down
        assert "did not answer in time" in slow
        assert "1 ready" in slow


def test_a_page_that_is_higher_than_the_screen_scrolls(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_node() as hand:
        hand.node.queue("orders").publish(b"x").wait()
        top_part, lower = screens(Snapshots(hand.node._running), monkeypatch, "\r", "page down", height=15)[1:3]
        assert "declared" not in top_part
        assert "declared" in lower
        assert all(len(part.splitlines()) == 15 for part in (top_part, lower))


@given(ROWS, st.sampled_from([80, 120, 200]))
def test_no_line_of_a_page_is_wider_than_the_terminal(shown_row: Row, width: int) -> None:
    shot = snapshot([]) | {"queue": shown_row, "stats": None}
    shot["memory"] |= {"desired_duration_s": 1.5}
    shot["declared"] = {"durable": True, "exclusive": False, "auto_delete": False, "arguments": {"x" * 90: "y" * 90}}
    assert all(cell_len(line.plain) <= width for line in queue_page(shot, width))


# ── a node in another process ───────────────────────────────────────────────────────────────────────────────────────

CHILD = """
import sys, warren
with warren.open(sys.argv[1]) as node:
    node.queue("orders").publish_many([b"x"] * 1000).wait()
    for number in range(int(sys.argv[2])):
        node.queue(f"many-{number:03}")
    held = node.queue("orders").get_many(10)
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def running_node(path: Path, many: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a node until its stdin ends."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), str(many)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)},
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.kill()
        child.communicate()


@pytest.mark.slow
def test_attaching_to_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    with running_node(data, many=120) as child:
        shot = json.loads(top(data, "--attach", "--json").stdout)
        assert (shot["pid"], shot["path"], shot["totals"]["queues"]) == (child.pid, str(data), 121)
        orders = shot["queues"][0]
        assert (orders["name"], orders["ready"], orders["unacked"]) == ("orders", 990, 10)
        seen = top(data, "--once", "--interval", "0.1", "--limit", "3")  # attaches by itself where a node runs
        assert seen.exit_code == 0
        assert f"process {child.pid}" in seen.stdout
        assert "121 queues · 990 ready · 10 unacked · in 0/s · out 0/s" in seen.stdout
        assert "… and 118 more" in seen.stdout
        assert max(map(cell_len, seen.stdout.splitlines())) <= 120
        with attached(str(data)) as node:
            assert node.snapshot(limit=1)["left_out"] == 120
            assert [one["name"] for one in node.ask(want="definitions")["vhosts"]] == ["/"]
            with pytest.raises(WarrenError, match="no vhost 'x'"):
                node.snapshot(vhost="x")
            found = node.queue("/", "orders")
            assert (found["queue"]["ready"], found["stats"]["messages_persistent"]) == (990, 1000)
            with pytest.raises(WarrenError, match="no queue 'x'"):
                node.queue("/", "x")
            page = screens(node, monkeypatch, "\r")[1]
            assert "990 ready · 10 unacked · 1,000 in all" in page
            assert "target_ram_count infinity" in page
            child.communicate("")
            with pytest.raises(NotAttachedError, match="its node was closed"):
                node.snapshot()
    assert not (data / SOCKET_NAME).exists()


@pytest.mark.slow
def test_keys_typed_at_a_terminal_open_a_page_and_end_it(tmp_path: Path) -> None:
    """The whole command at a pseudoterminal: what is typed comes through, and the terminal is as it was afterwards."""
    with running_node(tmp_path / "data"):
        ours, theirs = pty.openpty()
        before = termios.tcgetattr(theirs)
        child = subprocess.Popen(
            [sys.executable, "-m", "warren.cli", "top", str(tmp_path / "data"), "--attach", "--interval", "0.1"],
            stdin=theirs, stdout=theirs, stderr=theirs,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
        )  # fmt: skip
        try:
            for key, expected in ((b"\r", b"open"), (b"\x1b", b"target_ram_count"), (b"q", b"by messages")):
                seen = b""
                while expected not in seen:
                    assert select.select([ours], [], [], 30)[0], seen
                    seen += os.read(ours, 65536)
                os.write(ours, key)
            assert child.wait(30) == 0
            assert termios.tcgetattr(theirs) == before
        finally:
            child.kill()
            child.wait()
            os.close(ours)
            os.close(theirs)


@pytest.mark.slow
def test_a_node_that_was_killed_has_left_its_socket_and_the_next_one_takes_its_place(tmp_path: Path) -> None:
    with running_node(tmp_path / "data") as child:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert (tmp_path / "data" / SOCKET_NAME).exists()
    result = top(tmp_path / "data", "--attach")
    assert result.exit_code == 2
    assert "no node runs there; one that was killed has left its socket" in result.stderr
    with warren.open(tmp_path / "data"), attached(str(tmp_path / "data")) as node:
        assert node.snapshot()["totals"]["ready"] == 1000
    assert not (tmp_path / "data" / SOCKET_NAME).exists()


def test_a_node_that_is_told_so_lets_nobody_attach(tmp_path: Path) -> None:
    with warren.open(tmp_path / "data", attach=False):
        assert not (tmp_path / "data" / SOCKET_NAME).exists()
        for arguments in (["--attach"], []):
            result = top(tmp_path / "data", *arguments)
            assert result.exit_code == 2
            assert "no node runs there that can be attached to" in result.stderr
        assert f"in use by process {os.getpid()}" in result.stderr


def test_where_no_node_runs_top_opens_one_and_says_so(tmp_path: Path) -> None:
    with warren.open(tmp_path / "data") as node:
        node.queue("orders").publish_many([b"x"] * 3).wait()
    result = top(tmp_path / "data", "--once", "--interval", "0.1")
    assert result.exit_code == 0
    assert "no node ran here: opened by this command" in result.stdout
    assert "1 queue · 3 ready" in result.stdout
    assert top(tmp_path / "data", "--attach").exit_code == 2


def test_a_rabbitmqs_directory_is_named_as_that_and_not_touched(tmp_path: Path) -> None:
    vhosts = tmp_path / "rabbit@host" / "msg_stores" / "vhosts"
    vhosts.mkdir(parents=True)
    unpack(str(CRASHED), str(vhosts.parent))
    before = sorted(str(path) for path in vhosts.parent.parent.rglob("*"))
    for arguments in (["--attach"], ["--once"], ["--json"]):
        result = top(vhosts.parent.parent, *arguments)
        assert result.exit_code == 2
        assert "a RabbitMQ's data directory; --adopt takes it over" in result.stderr
    assert sorted(str(path) for path in vhosts.parent.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "said"),
    [("missing", "no such directory"), ("file", "not a directory"), ("empty", "no node's data directory")],
)
def test_what_is_no_nodes_directory_is_said_to_be_none_and_not_touched(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    result = top(tmp_path / name)
    assert result.exit_code == 2
    assert said in result.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "file"]
