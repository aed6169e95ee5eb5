"""``warren inspect`` for people: one look at queues of every type, at widths that terminals have."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any

import pytest
from rich.console import Console

from warren.salvage.inspect_tables import tables

Report = dict[str, Any]

DIRECTORY = "F0LI8Q2L5NQQX8KRJAO1AHU7J"
JOURNAL = {"publish_persistent": 24, "publish_transient": 1, "deliver": 3, "ack": 2, "torn_bytes": 370, "zero_bytes": 0}


def v1(name: str = "old", **changes: object) -> Report:
    segments = [{"number": 0, "publish": 3, "deliver": 2, "ack": 1, "unacked": 24}]
    queue = {"name": name, "dir": DIRECTORY, "kind": "rabbitmq-classic-v1", "type": "classic", "version": 1}
    return queue | {"ready": 31, "bytes": 111_300, "journal": JOURNAL, "segments": segments} | changes


def v2(name: str = "orders", segments: int = 1, **changes: object) -> Report:
    of_one = {"entries": 4096, "live": 4000, "acked": 96, "qi_bytes": 131_136, "qs_bytes": 0}
    queue = {"name": name, "dir": DIRECTORY, "kind": "rabbitmq-classic-v2", "type": "classic", "version": 2}
    rows = [{"number": number, **of_one} for number in range(segments)]
    return queue | {"ready": 1_234_567, "bytes": 5_000_000, "segments": rows} | changes


def quorum(name: str = "jobs", **changes: object) -> Report:
    queue = {
        "name": name,
        "dir": "2F_JOBSOK1JY2BEE8F",
        "kind": "rabbitmq-quorum",
        "type": "quorum",
        "ready": 42,
        "bytes": 4_200,
        "outstanding": 4,
        "past_limit": 0,
        "past_length": 0,
        "dead_letters": 0,
        "machine_version": 2,
        "members": ["%2F_jobs@rabbit@node-1"],
        "directories": ["2F_JOBSOK1JY2BEE8F"],
        "log": {"first_index": 0, "last_index": 4310, "term": 3},
        "snapshot": None,
        "segments": [],
        "wal_records": 4311,
    }
    return queue | changes


def unreadable(name: str = "broken") -> Report:
    queue = {"name": name, "dir": "2F_BROKENXX", "kind": "rabbitmq-quorum", "type": "quorum", "ready": 0, "bytes": 0}
    return queue | {"unreadable": "a machine of version 99,\x1b[31m which is not known"}


def vhost(*queues: Report, **changes: object) -> Report:
    report: Report = {"name": "/", "dir": "628WB79CIFDYO9LJI6DKMI09L", "segment_entry_count": 2048}
    return report | {"queues": list(queues), "stores": {}} | changes


def printed(*vhosts: Report, width: int = 100) -> list[str]:
    """The lines, without blanks at their ends."""
    text = io.StringIO()
    console = Console(file=text, width=width, highlight=False)
    for part in tables({"kind": "rabbitmq", "vhosts": list(vhosts)}):
        console.print(part, soft_wrap=True)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def headers(lines: list[str]) -> list[list[str]]:
    """The columns of each table."""
    heads = [line for line, below in pairwise(lines) if below.startswith("──")]
    return [[column for column in head.split("  ") if column.strip()] for head in heads]


def words(lines: list[str], beginning: str) -> list[list[str]]:
    """The words of the lines that begin so."""
    return [line.split() for line in lines if line.startswith(beginning)]


def test_queues_of_all_types_stand_in_one_table_in_front() -> None:
    lines = printed(vhost(v1(), v2(), quorum(), unreadable()))
    front = lines[5:10]
    assert [line.split()[:5] for line in front[:3]] == [
        ["old", "classic", "v1", "31", "111.3"],
        ["orders", "classic", "v2", "1,234,567", "5.0"],
        ["jobs", "quorum", "42", "4.2", "kB"],
    ]
    assert front[3].split() == ["broken", "quorum", "–", "–", "2F_BROKENXX"]
    assert "a machine of version 99,\\x1b[31m" in front[4]


def test_each_type_has_a_table_with_columns_of_its_own() -> None:
    assert [head[0].strip() for head in headers(printed(vhost(v1(), v2(), quorum())))] == [
        "queue",
        "classic v1",
        "classic v2",
        "quorum",
    ]
    lines = printed(vhost(v2()))
    assert not any(word in line for line in lines for word in ("journal", "published", "quorum", "were out"))


def test_a_queue_between_two_versions_stands_in_the_tables_of_both() -> None:
    left = {"journal": JOURNAL, "segments": v1()["segments"]}
    lines = printed(vhost(v2("half-way", converting=left)))
    assert [head[0].strip() for head in headers(lines)] == ["queue", "classic v1", "classic v2"]
    assert [line[1:5] for line in words(lines, "half-way")] == [
        ["classic", "v2", "and", "v1"],
        ["25", "pub,", "3", "del,"],
        ["0", "4,096", "4,000", "96"],
    ]
    assert "1 queue, 2048 entries a segment" in lines


def test_entries_a_segment_are_those_of_version_1() -> None:
    assert "1 queue, 2048 entries a segment" in printed(vhost(v1()))
    assert "1 queue" in printed(vhost(v2()))
    assert "0 queues, 2048 entries a segment" in printed(vhost())


def test_a_vhost_with_quorum_queues_alone_has_no_directory() -> None:
    lines = printed(vhost(quorum(), name="shop", dir="", segment_entry_count=None))
    assert lines[:2] == ["vhost shop", "1 queue"]


def test_a_vhost_whose_name_nothing_tells() -> None:
    assert printed(vhost(quorum(), name="", dir=""))[0] == "vhost (no file says which)"


def test_a_log_is_shown_from_its_snapshot_to_the_write_ahead_log() -> None:
    segments = [
        {
            "name": f"0000000{number}.segment",
            "entries": 512,
            "first_index": 512 * number,
            "last_index": 512 * number + 9,
        }
        for number in (4, 5)
    ]
    snapshot = {"index": 2050, "term": 2, "machine_version": 2}
    lines = printed(vhost(quorum(snapshot=snapshot, segments=segments, wal_records=7)))
    start = next(place for place, line in enumerate(lines) if line.startswith("quorum")) + 2
    assert [line.split() for line in lines[start : start + 4]] == [
        ["jobs", "4", "0", "–", "4,310", "snapshot", "up", "to", "2,050"],
        ["00000004", "512", "2,048", "–", "2,057"],
        ["00000005", "512", "2,560", "–", "2,569"],
        [".wal", "7"],
    ]


def test_a_log_with_nothing_in_it() -> None:
    nothing = {"first_index": None, "last_index": None, "term": 0}
    assert words(printed(vhost(quorum(log=nothing, wal_records=0))), "jobs")[1] == ["jobs", "4", "none"]


def test_members_and_the_limit_have_room_only_where_there_are_any() -> None:
    assert not any(word in line for line in printed(vhost(quorum())) for word in ("past", "dead letters"))
    assert "dead letters" in "\n".join(printed(vhost(quorum(), quorum(dead_letters=1))))
    members = [f"sh@p_jobs@rabbit@node-{number}" for number in (1, 2, 3)]
    directories = ["2F_JOBSAAA", "2F_JOBSBBB"]
    lines = printed(vhost(quorum(past_limit=3, members=members, directories=directories)))
    assert "past limit" in "\n".join(lines)
    assert [line.strip() for line in lines if "rabbit@" in line] == ["rabbit@node-1", "rabbit@node-2", "rabbit@node-3"]
    assert [line.split()[-1] for line in lines if "2F_JOBS" in line] == directories


def test_many_segments_are_shortened() -> None:
    lines = printed(vhost(v2(segments=30)))
    assert "… 18 more" in "\n".join(lines)
    assert len([line for line in lines if "131.1 kB" in line]) == 12


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_line_is_wider_than_the_terminal_and_no_name_is_cut_off(width: int) -> None:
    segments = [
        {"name": "00000001.segment", "entries": 4096, "first_index": 1_000_000, "last_index": 1_004_095},
    ]
    name = "invoices of the shop in Freiburg"
    snapshot = {"index": 999_999, "term": 2, "machine_version": 2}
    lines = printed(
        vhost(v1(name), v2(name), quorum(name, segments=segments, snapshot=snapshot), unreadable()), width=width
    )
    assert max(map(len, lines)) <= width
    if width == 160:
        assert len([line for line in lines if line.startswith(name)]) == 6
    assert any("1,000,000 – 1,004,095" in line for line in lines)
