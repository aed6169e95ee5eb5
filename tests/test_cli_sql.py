"""``warren sql``: what is asked, and how it is answered."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

import warren as package
from tests.support.classic_tools import VhostOnDisk
from tests.support.cli_tools import warren
from tests.support.pipeline_tools import GOLDEN, RABBITMQ, ROCKETMQ, rabbitmq_node, read_rows, rocketmq_node
from warren import cli
from warren.commands import sql as command
from warren.sql.answers import as_json, as_text
from warren.sql.directories import Directories
from warren.sql.statements import Statements
from warren.tables.table import SCHEMAS

PROJECT = Path(__file__).parent.parent
NODE = rabbitmq_node(RABBITMQ[0])
COUNTS = "select queue, count(*) n, sum(size) bytes from messages group by queue order by queue"


def said(*arguments: str | Path, exit_code: int = 0) -> str:
    result = warren("sql", *arguments)
    assert result.exit_code == exit_code, result.stderr
    return result.stdout


def refused(*arguments: str | Path) -> str:
    result = warren("sql", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("warren: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("warren: ").rstrip("\n")


def from_stdin(text: str, *arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.app, ["sql", *map(str, arguments)], input=text)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A node with a queue of six messages."""
    place = tmp_path / "node"
    queue = VhostOnDisk(place).queue(b"q")
    for seq_id, body in enumerate(
        [b"plain", "Käse".encode(), b"\xff\x00", b"two\nlines | and a bar", b"", b"back\\slash"]
    ):
        queue.publish(seq_id, body, embedded=queue.message(seq_id, body))
    return place


# ── what is asked ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_sql_stands_behind_the_directories() -> None:
    assert said(NODE, COUNTS) == "queue,n,bytes\naudit,15,46575\norders,31,111332\n"
    other = rabbitmq_node(RABBITMQ[1])
    assert said(NODE, other, "select count(distinct node) from messages").split() == ["count(DISTINCT", "node)", "2"]


@pytest.mark.slow
def test_a_file_or_stdin_says_the_sql(tmp_path: Path) -> None:
    (tmp_path / "query.sql").write_text(COUNTS)
    assert said(NODE, "-f", tmp_path / "query.sql") == said(NODE, COUNTS)
    assert from_stdin(COUNTS, NODE).stdout == said(NODE, COUNTS)
    assert from_stdin(COUNTS, NODE, "--file", "-").stdout == said(NODE, COUNTS)
    both = from_stdin("select count(distinct node) n from messages", NODE, rabbitmq_node(RABBITMQ[1]))
    assert both.stdout == "n\n2\n"
    (tmp_path / "link").symlink_to(NODE)
    glob = from_stdin("select count(distinct node) n from messages", rabbitmq_node(RABBITMQ[1]), tmp_path / "l*")
    assert glob.stdout == "n\n2\n"
    assert from_stdin("", NODE, "s3n:///nothing").stderr.startswith("warren: s3n:///nothing: ")


def test_of_several_statements_the_last_one_is_answered(tmp_path: Path) -> None:
    text = (
        "create view large as select * from messages where size > 10000;\n-- how many?\nselect count(*) n from large;"
    )
    (tmp_path / "query.sql").write_text(text)
    count = len([row for row in read_rows("messages", NODE) if row["size"] > 10000])
    assert said(NODE, "-f", tmp_path / "query.sql") == f"n\n{count}\n"
    assert said(NODE, "create view large as select 1") == ""
    assert said(NODE, "set threads = 1") == ""


def test_the_query_of_an_archive() -> None:
    assert said(GOLDEN / f"{RABBITMQ[0]}.tar.gz", COUNTS) == said(NODE, COUNTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("selec 1", 'Parser Error: syntax error at or near "selec" (line 1, column 1)'),
        ("select 1 +\n  from messages where", 'Parser Error: syntax error at or near "from" (line 2, column 3)'),
        ("select nope from queues", "Binder Error: Referenced column"),
        ("select * from mesages", "Catalog Error: Table with name mesages does not exist!"),
        ("select 'x'::int from queues", "Conversion Error: Could not convert string 'x'"),
        ("", "no statement"),
        ("-- nothing", "no statement"),
        ("select * from records", f"{NODE}: is a directory of queues, which has no table records"),
    ],
)
def test_what_duckdb_refuses_is_said_in_one_line(query: str, reason: str) -> None:
    found = from_stdin(query, NODE)
    assert found.exit_code == 2
    assert found.stdout == ""
    assert found.stderr.startswith(f"warren: {reason}")
    assert found.stderr.count("\n") == 1


def test_what_cannot_be_opened_is_said(tmp_path: Path, place: Path) -> None:
    assert refused("/nowhere", "select 1") == "/nowhere: no such file or directory"
    assert refused(NODE, "-f", "/nowhere.sql") == "/nowhere.sql: No such file or directory"
    assert refused("-f", "/nowhere.sql") == "/nowhere.sql: No such file or directory"
    assert refused("--json") == "give a broker's directory and SQL"
    assert refused(NODE, "select 1", "--set", "nonsense") == "--set nonsense: expected NAME=VALUE"
    with package.open(tmp_path / "data") as node:
        node.queue("q")
        assert "a node of warren runs here" in refused(tmp_path / "data", "select 1")


def test_damage_is_passed_over_or_ends_the_query(tmp_path: Path) -> None:
    VhostOnDisk(tmp_path / "node").queue(b"q").publish(0)
    assert said(tmp_path / "node", "select count(*) n from messages") == "n\n0\n"
    assert said(tmp_path / "node", "select kind from findings where severity = 'damage'") == "kind\nmissing body\n"
    found = refused(tmp_path / "node", "--failfast", "select count(*) n from messages")
    assert "/0.idx, offset 0: missing body: message 0" in found


def test_settings_of_a_topic_store() -> None:
    store = rocketmq_node(ROCKETMQ[0])
    count = len(read_rows("records", store))
    assert said(store, "select count(*) n from records", "--set", "maxMessageSize=2000") == f"n\n{count}\n"


# ── how it is answered ───────────────────────────────────────────────────────────────────────────────────────────────


def test_csv_has_names_and_a_line_for_each_row(place: Path) -> None:
    text = said(place, "select seq_id, body, headers, persistent, routing_keys from messages order by seq_id")
    rows = list(csv.reader(io.StringIO(text)))
    assert rows[0] == ["seq_id", "body", "headers", "persistent", "routing_keys"]
    assert [row[1] for row in rows[1:]] == [
        "plain",
        r"K\xC3\xA4se",
        r"\xFF\x00",
        r"two\x0Alines | and a bar",
        "",
        r"back\x5Cslash",
    ]
    assert rows[1][2:] == ["", "true", '["q"]']


def test_bodies_in_csv_are_what_duckdb_reads_again(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "bodies.csv"
    said(place, "select seq_id, body from messages", "--out", out)
    with package.sql.connect(place) as connection:
        again = connection.execute(
            f"select body::blob = (select body from messages m where m.seq_id = c.seq_id) "
            f"from read_csv('{out}', types = {{'body': 'VARCHAR'}}) c where body is not null"
        ).fetchall()
    assert again == [(True,)] * 5


def test_json_lines_have_bodies_as_an_export_has_them(place: Path) -> None:
    rows = [json.loads(line) for line in said(place, "select * from messages", "--json").splitlines()]
    assert [base64.b64decode(row["body"]) for row in rows] == [row["body"] for row in read_rows("messages", str(place))]
    assert rows[0]["routing_keys"] == ["q"]
    assert rows[0]["headers"] is None
    assert said(place, "select * from messages", "--format", "jsonl") == said(place, "select * from messages", "--json")


def test_json_lines_of_what_else_sql_has(place: Path) -> None:
    query = (
        "select 1 a, 2 a, sum(size) sum, 1.5::decimal(5, 2) half, timestamp '2026-01-02 03:04:05' t, "
        "date '2026-01-02' d, interval '1 day' i, 'nan'::double nan, {'x': [1, null]} s, map {'k': 1} m, "
        "'{\"deep\": true}'::json j, null nothing "
        "from messages"
    )
    assert json.loads(said(place, query, "--json")) == {
        "a": 1,
        "a_2": 2,
        "sum": 43,
        "half": 1.5,
        "t": "2026-01-02T03:04:05",
        "d": "2026-01-02",
        "i": "1 day, 0:00:00",
        "nan": "nan",
        "s": {"x": [1, None]},
        "m": {"k": 1},
        "j": {"deep": True},
        "nothing": None,
    }


def test_a_map_of_properties_is_an_object() -> None:
    store = rocketmq_node(ROCKETMQ[0])
    query = "select properties from records where cardinality(properties) > 1 limit 1"
    found = json.loads(said(store, query, "--json"))["properties"]
    assert found in [dict(row["properties"]) for row in read_rows("records", store)]


def test_markdown_is_for_people(place: Path) -> None:
    assert said(place, "select seq_id, body from messages", "--format", "markdown").splitlines() == [
        "| seq_id | body |",
        "| ---: | --- |",
        "| 0 | plain |",
        "| 1 | Käse |",
        "| 2 | \\\\xFF\\\\x00 |",
        "| 3 | two<br>lines \\| and a bar |",
        "| 4 |  |",
        "| 5 | back\\\\slash |",
    ]


def test_parquet_has_the_columns_and_their_types(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "all.parquet"
    said(place, "select * from messages", "--out", out)
    assert pq.read_table(out).to_pylist() == read_rows("messages", str(place))
    said(place, "select sum(size) s from messages", "-o", out)
    assert pq.read_table(out).to_pylist() == [{"s": 43}]
    assert refused(place, "select interval '1 day' i", "-o", out).startswith("not as Parquet: ")
    assert pq.read_table(out).to_pylist() == [{"s": 43}]


def test_parquet_without_rows_has_the_columns(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "none.parquet"
    said(place, "select queue, size from messages where size > 1000", "--out", out)
    assert pq.read_table(out).schema.names == ["queue", "size"]


@pytest.mark.parametrize(
    ("name", "first"),
    [("a.csv", "n"), ("a.jsonl", '{"n": 6}'), ("a.NDJSON", '{"n": 6}'), ("a.md", "| n |"), ("a.txt", "n")],
)
def test_a_files_name_says_its_format(place: Path, tmp_path: Path, name: str, first: str) -> None:
    said(place, "select count(*) n from messages", "--output", tmp_path / name)
    assert (tmp_path / name).read_text().splitlines()[0] == first


def test_an_answer_is_written_whole_or_not_at_all(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "answer.csv"
    out.write_text("before")
    refused(place, "select 'x'::int from messages", "--out", out)
    assert out.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answer.csv", "node"]


def test_an_answer_does_not_go_into_the_directory_that_is_read(place: Path) -> None:
    out = place / "answer.csv"
    assert refused(place, "select 1", "--out", out) == f"{out}: lies in {place}, which is not to be changed"


def test_a_table_is_for_people(place: Path) -> None:
    lines = said(place, "select seq_id, body, headers from messages", "--format", "table").splitlines()
    assert lines[0].split() == ["seq_id", "body", "headers"]
    assert [line.split()[:2] for line in lines[2:6]] == [
        ["0", "plain"],
        ["1", "Käse"],
        ["2", r"\xFF\x00"],
        ["3", r"two\nlines"],
    ]
    assert lines[2].split()[-1] == "NULL"
    assert lines[-1] == "6 rows"


def test_a_table_is_cut_and_says_so(place: Path) -> None:
    query = "select seq_id from messages"
    lines = said(place, query, "--format", "table", "--rows", "2").splitlines()
    assert len(lines) == 5
    assert lines[-1] == "The first 2 rows; there are more: --rows N shows N, --format csv writes all."
    assert said(place, query, "--format", "table", "--rows", "6").splitlines()[-1] == "6 rows"
    assert said(place, query, "--format", "table", "--rows", "0").splitlines()[-1] == "6 rows"
    assert said(place, f"{query} limit 1", "--format", "table").splitlines()[-1] == "1 row"


def test_a_long_value_is_cut_in_a_table(tmp_path: Path) -> None:
    queue = VhostOnDisk(tmp_path / "node").queue(b"q")
    queue.publish(0, b"x" * 5000, embedded=queue.message(0, b"x" * 5000))
    assert "x" * 79 + "…" in said(tmp_path / "node", "select body from messages", "--format", "table")
    assert "x" * 5000 in said(tmp_path / "node", "select body from messages")


def test_tables_are_described() -> None:
    text = said("--tables")
    described = json.loads(said("--tables", "--json"))
    assert list(described) == list(SCHEMAS)
    for name, table in described.items():
        assert f"{name}: a row for {table['row']}" in text
        assert [column["name"] for column in table["columns"]] == SCHEMAS[name].names
    assert {"name": "body", "type": "BLOB", "says": "the payload; null with bodies=false"} in described["messages"][
        "columns"
    ]


def test_values_as_text_and_as_json() -> None:
    assert [as_text(one) for one in (None, True, 5, 1.5, b"\x00a", [1, b"x"], {"a": None})] == [
        "",
        "true",
        "5",
        "1.5",
        "\\x00a",
        '[1, "eA=="]',
        '{"a": null}',
    ]
    assert as_json({b"\xff": 1}) == {"\\xFF": 1}


# ── on a terminal ────────────────────────────────────────────────────────────────────────────────────────────────────


def on_a_terminal(*arguments: str | Path, typed: Sequence[str] = (), columns: int = 100, exit_code: int = 0) -> str:
    """The screen after typing the command, and one of ``typed`` at each prompt."""
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
        program = [sys.executable, "-m", "warren", "sql", *map(str, arguments)]
        os.execve(sys.executable, program, environment)
    lines = iter(typed)
    seen = b""
    while True:
        try:
            some = os.read(terminal, 65536)
        except OSError:
            break
        if not some:
            break
        seen += some
        if seen.endswith((b"sql> ", b"  ... ")):
            os.write(terminal, next(lines).encode())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == exit_code
    return re.sub(r"\x1b\[\??[0-9;]*[hlmAK]", "", seen.decode()).replace("\r\n", "\n")


@pytest.mark.slow
def test_on_a_terminal_an_answer_is_a_table_and_a_narrow_one_has_its_rows_name_by_name(place: Path) -> None:
    query = "select * from messages limit 2"
    assert on_a_terminal(place, "select seq_id, body from messages limit 1").splitlines()[-1] == "1 row"
    lines = on_a_terminal(place, query).splitlines()
    assert lines[0].startswith("row 1 ─")
    assert ["queue", "q"] in [line.split() for line in lines]
    assert len([line for line in lines if line.startswith("row ")]) == 2
    assert on_a_terminal(place, query, columns=1000).splitlines()[0].split()[:2] == ["node", "vhost"]


@pytest.mark.slow
def test_a_terminal_gets_no_parquet_and_obeys_no_body(tmp_path: Path) -> None:
    queue = VhostOnDisk(tmp_path / "node").queue(b"q")
    queue.publish(0, b"\x1b[2Jgone", embedded=queue.message(0, b"\x1b[2Jgone"))
    seen = on_a_terminal(tmp_path / "node", "select body from messages")
    assert "\x1b[2J" not in seen
    assert "\\x1b[2Jgone" in seen
    seen = on_a_terminal(tmp_path / "node", "select body from messages", "--format", "parquet", exit_code=2)
    assert seen == "warren: --format parquet cannot be written to a terminal; give --out FILE\n"


@pytest.mark.slow
def test_there_is_a_prompt(place: Path) -> None:
    typed = ["select count(*) n\n", "from messages;\n", "selec;\n", ".tables\n", "select 'still here';\n", "\x04"]
    seen = on_a_terminal(place, typed=typed, columns=120)
    assert 'warren: Parser Error: syntax error at or near "selec" (line 1, column 1)' in seen
    assert "still here" in seen
    assert "queues: a row for each queue's directory" in seen


def test_a_query_that_takes_long_says_how_far_it_is(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from warren.sql import query_progress

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(query_progress, "_AFTER_S", -1.0)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    statements = Statements(Directories.at(place))
    with command._bar(statements.directories, shown=True):
        answer = statements.run("select count(*) from messages")
        assert answer is not None
        assert list(answer.rows()) == [(6,)]
    assert "Reading messages" in terminal.getvalue()
    statements.close()


# ── what it imports, and what happens to its reader ──────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_it_imports_no_spark_and_no_topics_for_queues(place: Path) -> None:
    program = (
        "import sys\nfrom warren.cli import app\n"
        f"app(['sql', {str(place)!r}, 'select queue from messages'], standalone_mode=False)\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    names = set(loaded.splitlines()[-1].split())
    assert "duckdb" in names
    assert not names & {
        "pyspark",
        "py4j",
        "rich.table",
        "warren.actors.topics.running_topics",
        "warren.tables.rocketmq.records",
    }
    assert not [name for name in names if name.startswith("warren.pipeline")]


@pytest.mark.slow
def test_a_reader_who_has_enough_ends_it(place: Path) -> None:
    shell = f"{sys.executable} -m warren sql {place} 'select * from range(10000000)' | head -2"
    found = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, cwd=PROJECT, check=True)
    assert found.stdout == "range\n0\n"
    assert found.stderr == ""


def test_without_duckdb_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find_spec: Any = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "duckdb" else find_spec(name, *rest)
    )
    assert refused(NODE, "select 1") == 'duckdb is not installed: pip install "warrenmq[sql]"'
