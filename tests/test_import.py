"""Exported messages on their way back, through every format: byte for byte, resumed, refused, into nodes and files."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import warren as warren_package
from tests.support.cli_tools import warren
from tests.support.rabbitmq_golden import PROJECT
from tests.support.shovel_tools import (
    BODIES,
    NAMES,
    PROPERTIES,
    complaint,
    field,
    found_in,
    shovel,
    string,
    with_headers,
)
from tests.support.waiting import wait_until
from warren import engine
from warren.client import link_vhost
from warren.queue_index.message.message_format import Envelope, encode_message
from warren.queue_index.properties import decode_properties
from warren.salvage.csv_rows import MESSAGE_COLUMNS, CsvRows
from warren.salvage.envelopes import Envelopes
from warren.salvage.json_lines import JsonLines
from warren.salvage.message_batches import MessageRow, MixedBatch
from warren.shovel.exported_files import BodyFile, CsvFile, JsonFile
from warren.shovel.exported_rows import Mark, letter_of, row_of_line
from warren.shovel.letter import Letter
from warren.storage.errors import MessageError, SettingsError
from warren.verbs import exchange_verbs, queue_host

FORMATS = [("jsonl", ()), ("jsonl", ("--text",)), ("csv", ()), ("csv", ("--text",)), ("parquet", ())]


def fill(directory: Path) -> list[Letter]:
    """A directory with a message of each kind; what they are."""
    expected = []
    with engine.open_vhost(directory, sync=False) as vhost:
        queue = vhost.queue(b"q")
        for number, properties in enumerate(PROPERTIES):
            keys = (NAMES[number % len(NAMES)], *((b"copy",) if number % 3 == 0 else ()))
            exchange, body = NAMES[number % 4], BODIES[number % len(BODIES)]
            envelope = Envelope(b"/", exchange, keys, properties, True)
            queue.publish_many(envelope, vhost.msg_ids.many(1), [body])
            expected.append(Letter(exchange, keys, properties, body, 0, (0, 0)))
    return expected


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Letter]]:
    directory = tmp_path_factory.mktemp("source") / "node"
    return directory, fill(directory)


@pytest.fixture(params=FORMATS, ids=lambda found: "-".join((found[0], *found[1])))
def exported(request: pytest.FixtureRequest, source: tuple[Path, list[Letter]], tmp_path: Path) -> Path:
    suffix, options = request.param
    out = tmp_path / f"messages.{suffix}"
    assert warren("export", source[0], "--out", out, *options).exit_code == 0
    return out


def brought(*arguments: str | Path, exit_code: int = 0) -> dict[str, Any]:
    result = warren("import", *arguments, "--json")
    assert result.exit_code == exit_code, result.output
    said: dict[str, Any] = json.loads(result.stdout)
    return said


# ── byte for byte ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_an_import_is_what_was_exported_byte_for_byte(
    exported: Path, source: tuple[Path, list[Letter]], tmp_path: Path
) -> None:
    said = brought(exported, tmp_path / "node")
    assert (said["messages"], said["problems"]) == (len(PROPERTIES), 0)
    assert found_in(tmp_path / "node") == source[1]


@pytest.mark.slow
def test_so_is_what_a_shovel_takes_out_of_a_file(
    exported: Path, source: tuple[Path, list[Letter]], tmp_path: Path
) -> None:
    assert shovel(exported, tmp_path / "node")["messages"] == len(PROPERTIES)
    assert found_in(tmp_path / "node") == source[1]


@pytest.mark.slow
def test_into_a_directory_that_others_have_open(
    exported: Path, source: tuple[Path, list[Letter]], tmp_path: Path
) -> None:
    program = "import sys; from warren.cli import main; main()"
    with warren_package.open(tmp_path / "node", share=True) as node:
        ran = subprocess.run(
            [sys.executable, "-c", program, "import", exported, tmp_path / "node"],
            capture_output=True,
            text=True,
            check=False,
            cwd=PROJECT,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert len(node.queue("q")) == len(PROPERTIES)
    assert found_in(tmp_path / "node") == source[1]


@pytest.mark.slow
def test_into_a_node_of_this_program(exported: Path, source: tuple[Path, list[Letter]], tmp_path: Path) -> None:
    with warren_package.open(tmp_path / "node") as node:
        done = warren_package.import_messages(exported, node)
        assert (done.messages, done.already, done.problems) == (len(PROPERTIES), 0, ())
        assert warren_package.import_messages(exported, node).already == len(PROPERTIES)
    assert found_in(tmp_path / "node") == source[1]


@pytest.mark.parametrize("is_guest", [False, True])
def test_into_a_stream(source: tuple[Path, list[Letter]], tmp_path: Path, is_guest: bool) -> None:
    out = tmp_path / "messages.jsonl"
    assert warren("export", source[0], "--out", out).exit_code == 0
    stream = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": {"x-queue-type": "stream"}}
    with warren_package.open(tmp_path / "node", share=True) as node:
        node.import_definitions({"queues": [stream | {"name": "q"}]})
        if is_guest:
            command: list[str | Path] = [sys.executable, "-m", "warren", "import", out, tmp_path / "node"]
            ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PROJECT)
            assert (ran.returncode, ran.stderr) == (0, "")
        else:
            assert warren_package.import_messages(out, node).messages == len(PROPERTIES)
        entry = node._running.registry.streams.find("/", "q")
        assert entry is not None
        wait_until(lambda: len(entry.bounds()) == len(PROPERTIES), "all are in the stream")
        messages: list[Any] = []
        while part := entry.read(len(messages), 1000):
            messages += part
    assert [
        (
            message.exchange.encode(errors="surrogateescape"),
            message.routing_key.encode(errors="surrogateescape"),
            message.properties,
            message.body,
        )
        for message in messages
    ] == [(letter.exchange, letter.routing_keys[0], letter.properties, letter.body) for letter in source[1]]


SHORT = st.binary(max_size=6)
VALUES: st.SearchStrategy[bytes] = st.recursive(
    st.one_of(
        st.sampled_from([b"V", b"t\0", b"t\1"]),
        st.integers(0, 255).map(lambda n: b"b" + bytes([n])),
        st.binary(min_size=4, max_size=4).map(lambda data: b"I" + data),
        st.binary(min_size=8, max_size=8).map(lambda data: b"l" + data),
        st.binary(min_size=8, max_size=8).map(lambda data: b"d" + data),
        st.binary(min_size=8, max_size=8).map(lambda data: b"T" + data),
        SHORT.map(lambda data: b"S" + string(data)),
        st.text(max_size=4).map(lambda text: b"S" + string(text.encode())),
        SHORT.map(lambda data: b"x" + string(data)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda values: b"A" + string(b"".join(values))),
        st.lists(st.tuples(SHORT, inner), max_size=3).map(
            lambda entries: b"F" + string(b"".join(field(name, value) for name, value in entries))
        ),
    ),
    max_leaves=6,
)
HEADERS = st.lists(st.tuples(SHORT, VALUES), max_size=4).map(
    lambda entries: with_headers(*(field(name, value) for name, value in entries))
)
KEYS = st.binary(max_size=8).filter(lambda key: b"\\udc" not in key)


@given(HEADERS, st.binary(max_size=30) | st.text(max_size=20).map(str.encode), KEYS, KEYS, st.booleans())
def test_drawn_messages_come_back_through_a_line_and_a_row(
    properties: bytes, body: bytes, exchange: bytes, key: bytes, with_text: bool
) -> None:
    encoded = encode_message(Envelope(b"/", exchange, (key,), properties, True), bytes(16), body)
    envelope, said = Envelopes().split(encoded)
    batch = MixedBatch([MessageRow(0, 7, bytes(16), True, False, False, 5, None, None, "", 0, envelope, 1, said)])
    expected = Letter(exchange, (key,), properties, body, 5, (0, 0))
    line, rows = io.BytesIO(), io.BytesIO()
    JsonLines(line.write, with_text=with_text).messages(b"/", b"q", batch)
    assert letter_of(row_of_line(line.getvalue()), (0, 0)) == expected
    CsvRows(rows.write, MESSAGE_COLUMNS, with_text=with_text).messages(b"/", b"q", batch)
    found = [row for _, row in csv_rows(rows.getvalue())]
    assert [letter_of(row, (0, 0)) for row in found if not isinstance(row, MessageError)] == [expected]


def csv_rows(data: bytes) -> list[Any]:
    class InMemory(CsvFile):
        def _lines(self, start: Mark) -> Iterator[tuple[Mark, bytes]]:
            at = 0
            for number, line in enumerate(io.BytesIO(data)):
                if at >= start.at:
                    yield Mark(number, at), line
                at += len(line)

    return list(InMemory("memory").rows())


def test_only_what_json_cannot_say_is_said_twice(source: tuple[Path, list[Letter]]) -> None:
    result = warren("export", source[0])
    for line, properties in zip(map(json.loads, result.stdout.splitlines()), PROPERTIES, strict=True):
        if "encoded_properties" in line:
            assert base64.b64decode(line.pop("encoded_properties")) == properties
            try:
                again = letter_of(row_of_line(json.dumps(line)), (0, 0)).properties
            except MessageError:
                continue
            assert again != properties
    assert sum("encoded_properties" in line for line in result.stdout.splitlines()) == 18


# ── where to ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_lines(path: Path, *lines: dict[str, Any] | str) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def text(queue: str | None, body: str, **more: Any) -> dict[str, Any]:
    return {"queue": queue, "body": body, "body_encoding": "string", **more}


def bodies(directory: Path, queue: str) -> list[bytes]:
    with warren_package.open(directory) as node:
        return [one.body for one in node.queue(queue, passive=True).browse()]


def test_queues_that_lie_in_each_other(tmp_path: Path) -> None:
    lines = [text("ab"[n % 2], str(n), vhost=["/", "other"][n % 3 == 0]) for n in range(20)]
    said = brought(write_lines(tmp_path / "f.jsonl", *lines), tmp_path / "node")
    assert said["messages"] == 20
    with warren_package.open(tmp_path / "node") as node:
        for vhost in ("/", "other"):
            for queue in "ab":
                expected = [one["body"] for one in lines if (one["vhost"], one["queue"]) == (vhost, queue)]
                found = node.vhost(vhost).queue(queue, passive=True).browse()
                assert [one.body.decode() for one in found] == expected


def test_all_into_one_queue_in_the_order_of_the_file(tmp_path: Path) -> None:
    lines = [text(["a", "b", None][n % 3], str(n), exchange="") for n in range(10)]
    assert brought(write_lines(tmp_path / "f.jsonl", *lines), tmp_path / "node", "--queue", "all")["messages"] == 10
    assert bodies(tmp_path / "node", "all") == [b"%d" % n for n in range(10)]
    with warren_package.open(tmp_path / "node") as node:
        assert {one.routing_key for one in node.queue("all").browse()} == {"all"}  # it follows the queue


def test_names_are_changed(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "f.jsonl", text("old", "1"), text("other", "2"))
    brought(file, tmp_path / "node", "--rename", "old=new")
    assert bodies(tmp_path / "node", "new") == [b"1"]
    assert bodies(tmp_path / "node", "other") == [b"2"]


def test_a_condition_and_a_limit_choose(tmp_path: Path) -> None:
    lines = [text("q", str(n), headers={"n": n}, properties={"priority": n % 3}) for n in range(12)]
    file = write_lines(tmp_path / "f.jsonl", *lines)
    for _ in range(2):  # the second run goes on where the first one ended
        brought(file, tmp_path / "node", "--where", "headers['n'] >= 4 AND priority = 1", "--limit", "1")
    assert bodies(tmp_path / "node", "q") == [b"4", b"7"]
    brought(file, tmp_path / "node", "--where", "size = 2")
    assert bodies(tmp_path / "node", "q") == [b"4", b"7", b"10", b"11"]


def test_marks_of_an_export_can_be_asked_for(tmp_path: Path) -> None:
    lines = [text("q", "1", acked=True), text("q", "2"), text("q", "3", redelivered=True, persistent=True)]
    file = write_lines(tmp_path / "f.jsonl", *lines)
    brought(file, tmp_path / "node", "--where", "NOT acked AND NOT orphan AND seq_id IS NULL")
    assert bodies(tmp_path / "node", "q") == [b"2", b"3"]


def test_as_published_the_bindings_say_where_it_goes(tmp_path: Path) -> None:
    file = write_lines(
        tmp_path / "f.jsonl",
        text("gone", "1", exchange="shop", routing_keys=["order.eu"]),
        text("gone", "2", exchange="shop", routing_keys=["order.us"], headers={"x": 1}),
    )
    with warren_package.open(tmp_path / "node", share=True) as node:
        node.exchange("shop", "topic")
        node.bind(node.queue("all"), "shop", "order.#")
        node.bind(node.queue("eu"), "shop", "*.eu")
        for into in (node, tmp_path / "node"):
            done = warren_package.import_messages(file, into, as_published=True, state=tmp_path / str(id(into)))
            assert done.messages == 2
        assert [one.body for one in node.queue("all").browse()] == [b"1", b"2", b"1", b"2"]
        assert [one.body for one in node.queue("eu").browse()] == [b"1", b"1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exchange", "said"), [("missing", "no exchange 'missing'"), ("amq.direct", "no queue for routing key 'k'")]
)
def test_what_leads_nowhere_is_refused_and_stays(tmp_path: Path, exchange: str, said: str) -> None:
    file = write_lines(
        tmp_path / "f.jsonl", text("q", "1"), text("q", "2", exchange=exchange, routing_keys=["k"]), text("q", "3")
    )
    with warren_package.open(tmp_path / "node") as node:
        node.queue("q")
    result = warren("import", file, tmp_path / "node", "--as-published")
    assert result.exit_code == 2
    assert f"q: 1 not taken: {said}" in result.stderr
    assert bodies(tmp_path / "node", "q") == [b"1", b"3"]
    with warren_package.open(tmp_path / "node") as node:
        node.exchange(exchange, "direct")
        node.bind("q", exchange, "k")
    assert brought(file, tmp_path / "node", "--as-published")["messages"] == 1
    assert bodies(tmp_path / "node", "q") == [b"1", b"3", b"2"]


def test_limits_and_priorities_of_the_queue_hold(tmp_path: Path) -> None:
    lines = [text("q", str(n), properties={"priority": n % 3}) for n in range(6)]
    file = write_lines(tmp_path / "f.jsonl", *lines)
    with warren_package.open(tmp_path / "node") as node:
        node.queue("q", arguments={"x-max-priority": 5})
        node.queue("full", arguments={"x-max-length": 4, "x-overflow": "reject-publish"})
        warren_package.import_messages(file, node)
        assert [one.body for one in node.queue("q", passive=True).browse()] == [b"2", b"5", b"1", b"4", b"0", b"3"]
        with pytest.raises(warren_package.WarrenError, match="2 not taken: queue 'full' in vhost '/' is full"):
            warren_package.import_messages(file, node, queue="full")
        assert len(node.queue("full", passive=True)) == 4


@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize("is_guest", [False, True])
def test_under_an_alarm_it_ends_and_says_why(
    is_guest: bool, as_published: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (queue_host, exchange_verbs, link_vhost):
        monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    lines = [text("q", str(n), routing_keys=["q"], properties={"priority": n % 2}) for n in range(4)]
    file = write_lines(tmp_path / "f.jsonl", *lines)
    with warren_package.open(tmp_path / "node", share=True, disk_free_limit=1 << 60) as host:
        host.queue("q")
        wait_until(lambda: host.memory()["alarms"], "there is no alarm")
        with warren_package.open(tmp_path / "node", share=True) as guest:
            node = guest if is_guest else host
            with pytest.raises(warren_package.WarrenError, match=r"4 not taken: .*disk"):
                warren_package.import_messages(file, node, as_published=as_published)
            assert len(host.queue("q")) == 0


# ── resumed ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_an_import_goes_on_where_it_was_and_brings_nothing_twice(exported: Path, tmp_path: Path) -> None:
    for low in range(0, len(PROPERTIES), 10):
        said = brought(exported, tmp_path / "node", "--limit", "10")
        assert said["messages"] == min(10, len(PROPERTIES) - low)
        assert said["queues"][0]["already"] == low
    assert brought(exported, tmp_path / "node")["messages"] == 0
    assert len(found_in(tmp_path / "node")) == len(PROPERTIES)


KILLED = """
import os, signal
from warren.shovel import file_source
settle = file_source._FileQueue.settle
times = 0
def dying(*arguments):
    global times
    times += 1
    if times == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    settle(*arguments)
file_source._FileQueue.settle = dying
from warren.cli import main
main()
"""


@pytest.mark.slow
def test_a_kill_loses_nothing(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "f.jsonl", *(text("q", str(n)) for n in range(3000)))
    ran = subprocess.run([sys.executable, "-c", KILLED, "import", file, tmp_path / "node"], check=False, cwd=PROJECT)
    assert ran.returncode < 0
    again = brought(file, tmp_path / "node")
    assert 0 < again["messages"] < 3000
    found = [int(body) for body in bodies(tmp_path / "node", "q")]
    assert sorted(set(found)) == list(range(3000))
    assert len(found) - 3000 <= 1000  # at most a window of them came twice


def test_a_file_that_has_changed_is_another_one(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "f.jsonl", text("q", "1"))
    brought(file, tmp_path / "node")
    write_lines(file, text("q", "2"))
    assert brought(file, tmp_path / "node")["messages"] == 1
    assert bodies(tmp_path / "node", "q") == [b"1", b"2"]


@pytest.mark.slow
def test_stdin_and_pipes(tmp_path: Path) -> None:
    program: list[str | Path] = [sys.executable, "-m", "warren.cli", "import", "-", tmp_path / "node"]
    for lines, more in ((b'{"queue": "q", "body": "MQ=="}\n', []), (b"2\n\n3", ["--format", "bodies", "--queue", "q"])):
        ran = subprocess.run([*program, *more], input=lines, cwd=PROJECT, check=False, capture_output=True)
        assert (ran.returncode, ran.stderr) == (0, b"")
    assert bodies(tmp_path / "node", "q") == [b"1", b"2", b"", b"3"]


# ── bodies ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_bodies_as_lines_and_as_files(tmp_path: Path) -> None:
    with warren_package.open(tmp_path / "node") as node:
        node.queue("q").publish_many([b"1", b"", b"two words"]).wait()
    assert warren("export", tmp_path / "node", "--format", "bodies").stdout_bytes == b"1\n\ntwo words\n"
    result = warren("export", tmp_path / "node", "--format", "bodies", "--out", f"{tmp_path}/files/")
    assert result.exit_code == 0
    files = {path.name: path.read_bytes() for path in (tmp_path / "files").iterdir()}
    assert files == {"00000001": b"1", "00000002": b"", "00000003": b"two words"}
    assert brought(tmp_path / "files", tmp_path / "b", "--format", "bodies", "--queue", "x")["messages"] == 3
    assert bodies(tmp_path / "b", "x") == [b"1", b"", b"two words"]
    result = warren("export", tmp_path / "node", "--format", "bodies", "--out", tmp_path / "files")
    assert (result.exit_code, "there is something in it" in result.stderr) == (2, True)


def test_a_body_without_a_line_end_is_one_too(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\r\nb")
    assert [row["body"] for _, row in BodyFile(str(tmp_path / "f")).rows() if not isinstance(row, MessageError)] == [
        b"\r",
        b"b",
    ]


# ── refused ──────────────────────────────────────────────────────────────────────────────────────────────────────────

BAD_LINES = [
    ("nonsense", "line 2: JSONDecodeError"),
    ("[]", "line 2: no object of JSON with a body"),
    ('{"queue": "q"}', "line 2: no object of JSON with a body"),
    ('{"queue": "q", "body": "text!"}', "line 2: its body is no base64"),
    ('{"queue": "q", "body": "a", "body_encoding": "latin-1"}', "line 2: body_encoding is 'string' or 'base64'"),
    ('{"queue": "q", "body": 7}', "line 2: TypeError"),
    ('{"queue": "q", "body": "", "properties": {"colour": 1}}', "row 2: no properties of a message"),
    ('{"queue": "q", "body": "", "properties": {"priority": 999}}', "row 2: no properties of a message"),
    ('{"queue": "q", "body": "", "headers": {"n": 99999999999999999999}}', "row 2: no properties of a message"),
    ('{"queue": "q", "body": "", "headers": ' + '{"a":' * 500 + "1" + "}" * 500 + "}", "row 2: "),
    ('{"queue": "q", "body": "", "headers": ' + "[" * 100_000, "line 2: RecursionError"),
    ('{"queue": "q", "body": "", "routing_keys": []}', "row 2: the row has no routing key"),
    ('{"queue": "q", "body": "", "encoded_properties": "IAA="}', "row 2: properties that are cut short"),
    ('{"queue": 7, "body": ""}', "line 2: AttributeError"),
    ('{"topic": "t", "body": ""}', "line 2: a message of a topic, which goes into no queue"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "said"), BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_line_that_is_no_message_is_said_and_the_others_are_brought(tmp_path: Path, line: str, said: str) -> None:
    file = write_lines(tmp_path / "f.jsonl", text("q", "1"), line, text("q", "3"))
    result = warren("import", file, tmp_path / "node")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"warren: {file}: unreadable row: {said}")
    assert result.stderr.count("\n") == 1
    assert bodies(tmp_path / "node", "q") == [b"1", b"3"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"a,b\r\n1,2\r\n", "its first line names no column body"),
        (b'body,queue\r\n"open,q\r\n', "unexpected end of data"),
        (b"body,queue\r\n\xff,q\r\n", "line 2: no UTF-8"),
        (b"PAR1", "its first line names no column body"),
    ],
)
def test_what_is_no_csv_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "f.csv").write_bytes(data)
    result = warren("import", tmp_path / "f.csv", tmp_path / "node")
    assert (result.exit_code, said in result.stderr, result.stderr.count("\n")) == (2, True, 1), result.stderr


def test_rows_of_csv_with_too_few_cells_are_said(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_bytes(b'body,queue,body_encoding\r\na,q,string\r\nb,q\r\n\r\n"c\nd",q,string\r\n')
    result = warren("import", tmp_path / "f.csv", tmp_path / "node")
    assert (result.exit_code, "line 3: 2 cells, and 3 columns" in result.stderr) == (1, True)
    assert bodies(tmp_path / "node", "q") == [b"a", b"c\nd"]


def test_what_is_no_parquet_is_refused(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "f.parquet"
    for table, said in (
        (None, "f.parquet: "),
        (pa.table({"a": [1]}), "it has no column vhost"),
        (pa.table({"topic": ["t"]}), "messages of topics"),
    ):
        file.write_bytes(b"PAR1") if table is None else pq.write_table(table, file)
        result = warren("import", file, tmp_path / "node")
        assert (result.exit_code, said in result.stderr, result.stderr.count("\n")) == (2, True, 1), result.stderr


def test_arguments_that_cannot_be(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "f.jsonl", text(None, "1"), text("q", "1"))
    (tmp_path / "what").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for arguments, said in (
        ((file, tmp_path / "node"), "1 messages say no queue"),
        ((tmp_path / "none.jsonl", tmp_path / "node"), "no such file"),
        ((tmp_path / "what", tmp_path / "node"), "say --format"),
        ((tmp_path / "folder", tmp_path / "node"), "is a directory"),
        ((tmp_path / "folder", file), "first the FILE"),
        ((file, tmp_path / "what"), "not a directory"),
        ((file, tmp_path / "node", "--where", "nope = 1"), "no field 'nope'"),
        ((file, tmp_path / "node", "--queue", "q", "--as-published"), "do not go with it"),
        ((file, tmp_path / "node", "--format", "bodies"), "2 messages say no queue"),
    ):
        result = warren("import", *arguments)
        assert (result.exit_code, said in result.stderr, result.stderr.count("\n")) == (2, True, 1), result.stderr
    with pytest.raises(SettingsError, match="a format is jsonl, csv, parquet, bodies, not 'xml'"):
        warren_package.import_messages(file, tmp_path / "node", format="xml")


def test_a_shovel_says_what_does_not_go_with_a_file(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "f.jsonl", text("q", "1"))
    assert "which can only be copied" in complaint(file, tmp_path / "node", "--move")
    assert "no message of a queue 'other'" in complaint(file, tmp_path / "node", "--queue", "other")
    fill(tmp_path / "source")
    assert "--where and --into are for files" in complaint(tmp_path / "source", tmp_path / "node", "--into", "q")


def test_export_messages_is_what_the_command_does(source: tuple[Path, list[Letter]], tmp_path: Path) -> None:
    done = warren_package.export_messages(source[0], tmp_path / "out.csv", where="size > 3", text=True, limit=4)
    assert (done.messages, done.problems) == (4, ())
    result = warren("export", source[0], "--where", "size > 3", "--text", "--limit", "4", "--format", "csv")
    assert (tmp_path / "out.csv").read_bytes() == result.stdout_bytes
    assert decode_properties(source[1][2].properties).delivery_mode == 2
    assert JsonFile(str(tmp_path / "out.csv")).digest() == CsvFile(str(tmp_path / "out.csv")).digest()
