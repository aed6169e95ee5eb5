"""What an export writes of what there is: conditions, limits, text, CSV, bodies; of queues and of topics."""

from __future__ import annotations

import base64
import csv
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support import rocketmq_golden as golden
from tests.support.classic_tools import VhostOnDisk
from tests.support.cli_tools import warren
from tests.support.rabbitmq_golden import GOLDEN
from warren import engine
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.properties import Properties, encode_properties
from warren.salvage.export import Selection, count_chosen
from warren.salvage.source import open_source

DEAD_LETTERS = GOLDEN / "13-clean-dead-letter-cc.tar.gz"
QUORUM = GOLDEN / "rabbitmq-3.10.8-quorum" / "02-crash-small-mixed.tar.gz"
SEGMENTS = GOLDEN / "05-clean-segments-2048.tar.gz"


def lines(*arguments: str | Path, exit_code: int = 0, command: tuple[str, ...] = ("export",)) -> list[dict[str, Any]]:
    result = warren(*command, *arguments)
    assert result.exit_code == exit_code, result.stderr
    return [json.loads(line) for line in result.stdout_bytes.decode().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("source", [DEAD_LETTERS, QUORUM, SEGMENTS], ids=lambda path: path.name)
@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("size > 1000", lambda line: line["size"] > 1000),
        ("seq_id BETWEEN 3 AND 9", lambda line: 3 <= line["seq_id"] <= 9),
        ("NOT redelivered", lambda line: line["redelivered"] is False),
        ("queue LIKE '%d%' AND size < 5000", lambda line: "d" in line["queue"] and line["size"] < 5000),
        ("priority IS NOT NULL", lambda line: "priority" in line["properties"]),
        ("msg_id LIKE '%0'", lambda line: (line["msg_id"] or "").endswith("0")),
        ("expiry IS NULL AND NOT orphan AND NOT acked", lambda line: line["expiry_us"] is None),
        ("exchange = ''", lambda line: line["exchange"] == ""),
        ("vhost = 'nowhere'", lambda line: False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_condition_chooses_lines_and_changes_none(source: Path, condition: str, holds: Any) -> None:
    everything = lines(source)
    assert lines(source, "--where", condition) == [line for line in everything if holds(line)]


@pytest.mark.slow
@pytest.mark.parametrize("source", [DEAD_LETTERS, SEGMENTS], ids=lambda path: path.name)
def test_a_limit_is_the_first_of_them(source: Path, tmp_path: Path) -> None:
    everything = lines(source)
    for limit in (0, 1, 33, len(everything) - 1, len(everything), len(everything) + 1):
        assert lines(source, "--limit", str(limit)) == everything[:limit]
    chosen = [line for line in everything if line["size"] > 100]
    assert lines(source, "--where", "size > 100", "--limit", "7") == chosen[:7]
    result = warren(
        "export", source, "--where", "size > 100", "--limit", "7", "--out", tmp_path / "f.parquet", "--json"
    )
    assert json.loads(result.stdout)["messages"] == len(chosen[:7])
    assert pq.read_table(tmp_path / "f.parquet")["seq_id"].to_pylist() == [line["seq_id"] for line in chosen[:7]]


@pytest.mark.slow
def test_runs_of_like_messages_are_asked_as_single_ones_are(tmp_path: Path) -> None:
    """One header says the same of a whole run, a body of each message."""
    with engine.open_vhost(tmp_path, sync=False) as vhost:
        for low in range(0, 3000, 1000):
            envelope = Envelope(b"/", b"", (b"q",), encode_properties(Properties(headers={"low": low})), True)
            bodies = [b"%04d" % number for number in range(low, low + 1000)]
            vhost.queue(b"q").publish_many(envelope, vhost.msg_ids.many(1000), bodies)
    everything = lines(tmp_path)
    assert len(everything) == 3000
    chance = random.Random(1)
    for condition, wanted in (
        ("headers['low'] = 1000", lambda number: 1000 <= number < 2000),
        ("body LIKE '%7'", lambda number: number % 10 == 7),
        ("headers['low'] > 0 AND body < '1500'", lambda number: 1000 <= number < 1500),
        ("size = 4", lambda number: True),
        ("size = 5", lambda number: False),
    ):
        expected = [line for number, line in enumerate(everything) if wanted(number)]
        assert lines(tmp_path, "--where", condition) == expected
        limit = chance.randint(1, 1500)
        assert lines(tmp_path, "--where", condition, "--limit", str(limit)) == expected[:limit]


def test_orphans_are_asked_too(tmp_path: Path) -> None:
    vhost = VhostOnDisk(tmp_path)
    vhost.queue(b"q").journal(0, b"in a queue")
    queue = vhost.queue(b"other")
    for number in range(5):
        vhost.store(0, bytes([number]) * 16, queue.message(number, b"%d" % number))
    assert len(lines(tmp_path, "--orphans")) == 6
    assert len(lines(tmp_path, "--orphans", "--where", "orphan")) == 5
    assert len(lines(tmp_path, "--orphans", "--where", "orphan AND body >= '3'")) == 2
    assert len(lines(tmp_path, "--orphans", "--limit", "3")) == 3


@pytest.mark.slow
def test_what_the_bar_counts_is_what_is_looked_at() -> None:
    for path in (DEAD_LETTERS, QUORUM, SEGMENTS):
        with open_source(str(path)) as source:
            assert count_chosen(source, Selection()) == len(lines(path))
            assert count_chosen(source, Selection(limit=3)) == 3
            assert count_chosen(source, Selection(limit=3, where="size > 1")) == len(lines(path))


# ── text and CSV ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_text_is_the_body_where_that_is_utf_8(tmp_path: Path) -> None:
    bodies = [b"", b"plain", "snow ☃".encode(), b"\xff", b'\x00"\\\n', b"{}", b"x" * 1_000_000]
    with engine.open_vhost(tmp_path, sync=False) as vhost:
        vhost.queue(b"q").publish_many(vhost.envelope(b"q"), vhost.msg_ids.many(len(bodies)), bodies)
    plain, text = lines(tmp_path), lines(tmp_path, "--text")
    for body, before, line in zip(bodies, plain, text, strict=True):
        said, encoding = line.pop("body"), line.pop("body_encoding")
        assert base64.b64decode(before.pop("body")) == body
        assert (said.encode() if encoding == "string" else base64.b64decode(said)) == body
        assert encoding == ("base64" if body == b"\xff" else "string")
        assert line == before


def test_csv_has_the_fields_of_the_lines() -> None:
    for options in ((), ("--text",)):
        result = warren("export", DEAD_LETTERS, "--format", "csv", *options, "--include-acked")
        rows = list(csv.DictReader(io.StringIO(result.stdout_bytes.decode(), newline="")))
        for row, line in zip(rows, lines(DEAD_LETTERS, *options, "--include-acked"), strict=True):
            for name, value in row.items():
                expected = line.get(name)
                if name in ("routing_keys", "properties", "headers") and value:
                    assert json.loads(value) == expected
                elif name == "body_encoding" and not options:
                    assert value == "base64"
                else:
                    said = "" if expected is None else str(expected)
                    assert value == ({"True": "true", "False": "false"}.get(said, said))


@pytest.mark.parametrize("output_format", ["parquet", "bodies"])
def test_text_is_not_for_what_has_bytes(output_format: str) -> None:
    result = warren("export", DEAD_LETTERS, "--text", "--format", output_format)
    assert (result.exit_code, "--text: is for jsonl and csv" in result.stderr) == (2, True)


def test_bodies_of_damaged_queues_are_written_and_the_rest_said(tmp_path: Path) -> None:
    queue = VhostOnDisk(tmp_path).queue(b"q")
    queue.journal(0, b"one")
    queue.bodyless(1, b"m" * 16, 3)
    queue.journal(2, b"three")
    result = warren("export", tmp_path, "--format", "bodies", "--out", f"{tmp_path}-bodies/")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert [path.read_bytes() for path in sorted(Path(f"{tmp_path}-bodies").iterdir())] == [b"one", b"three"]


# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────

STORE = "basic-clean"


def scanned(*options: str) -> list[dict[str, Any]]:
    return lines(golden.directory(STORE), *options, command=("topic", "scan"))


@pytest.mark.slow
def test_records_are_chosen_by_conditions_and_limits() -> None:
    records = [line for line in scanned() if "blank" not in line]
    middle = sorted(line["store_timestamp"] for line in records)[len(records) // 2]
    conditions: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
        ("size > 3", lambda line: len(base64.b64decode(line["body"])) > 3),
        ("topic LIKE 'T%' AND queue_id = 1", lambda line: line["topic"].startswith("T") and line["queue_id"] == 1),
        ("tag IS NOT NULL", lambda line: line["tags"] is not None),
        ("keys IS NOT NULL AND key = keys", lambda line: line["keys"] and " " not in line["keys"].strip()),
        (f"stored_at >= {middle / 1000}", lambda line: line["store_timestamp"] >= middle),
        ("properties['UNIQ_KEY'] IS NULL", lambda line: "UNIQ_KEY" not in line["properties"]),
    ]
    for condition, holds in conditions:
        expected = [line for line in records if holds(line)]
        assert scanned("--where", condition) == expected
        assert scanned("--where", condition, "--limit", "2") == expected[:2]
        assert scanned("--salvage", "--where", condition) == expected
    assert [line for line in scanned("--limit", "5") if "blank" not in line] == records[:5]


def test_one_queue_in_every_form(tmp_path: Path) -> None:
    where = ("--topic", "TopicTest", "--queue-id", "1")
    read = lines(golden.directory(STORE), *where, command=("topic", "read"))
    bodies = [base64.b64decode(line["body"]) for line in read]
    assert bodies
    for name, options in (
        ("f.csv", ()),
        ("f.parquet", ()),
        ("f", ("--format", "bodies")),
        ("files/", ("--format", "bodies")),
    ):
        result = warren("topic", "read", golden.directory(STORE), *where, "--out", f"{tmp_path}/{name}", *options)
        assert result.stdout.startswith(f"{len(read)} messages, {sum(map(len, bodies)):,} bytes of payload, in ")
    with (tmp_path / "f.csv").open(newline="", encoding="utf-8") as file:
        assert [base64.b64decode(row["body"]) for row in csv.DictReader(file)] == bodies
    table = pq.read_table(tmp_path / "f.parquet").to_pylist()
    assert [(row["body"], row["queue_offset"]) for row in table] == [
        (body, line["queue_offset"]) for body, line in zip(bodies, read, strict=True)
    ]
    assert (tmp_path / "f").read_bytes() == b"".join(body + b"\n" for body in bodies)
    assert [path.read_bytes() for path in sorted((tmp_path / "files").iterdir())] == bodies
    text = lines(golden.directory(STORE), *where, "--text", "--max", "2", command=("topic", "read"))
    assert [line["body"].encode() for line in text] == bodies[:2]
