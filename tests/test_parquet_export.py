"""``warren export`` to Parquet: the rows of the lines, the columns of Spark's, and a file is whole or not there."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.classic_tools import VhostOnDisk
from tests.support.cli_tools import warren
from tests.support.rabbitmq_golden import QUORUM, STREAMS, V1, V2, archives, name_of
from warren.arrow.parquet_export import MESSAGES, RECORDS, parquet_rows
from warren.pipeline.spark_schemas import exported_columns, exported_schema
from warren.salvage.export import Selection, export_source, export_to
from warren.salvage.names import to_json
from warren.salvage.source import open_source
from warren.tables.places import Kind

Json = dict[str, Any]

EVERYTHING = Selection(include_acked=True, orphans=True)
ARCHIVES = [path for name in (V1, V2, QUORUM, STREAMS) for path in archives(name)]
QUICK = ("01-", "11-", "07-")
"""Beginnings of the names that are always read: of each kind, with priorities, with names of all kinds."""


def as_row(line: Json) -> Json:
    """A line as a row of Parquet has it."""

    def text(value: Any) -> Any:
        if isinstance(value, list):
            return [text(one) for one in value]
        return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value

    row = {name: text(value) for name, value in line.items()}
    for name in ("properties", "headers"):
        row[name] = None if line[name] is None else to_json(line[name]).decode()
    for name in ("body", "encoded_properties"):
        row[name] = base64.b64decode(row[name]) if name in row else None
    return {"delivery_count": None, "stream_offset": None, "acked": None, "orphan": None} | row


@pytest.mark.parametrize(
    "archive",
    [
        pytest.param(path, id=name_of(path), marks=() if path.name.startswith(QUICK) else pytest.mark.slow)
        for path in ARCHIVES
    ],
)
def test_a_file_has_the_rows_of_the_lines(archive: Path) -> None:
    lines, file, problems = io.BytesIO(), io.BytesIO(), list[Any]()
    with open_source(str(archive)) as source:
        written = export_source(source, EVERYTHING, lines.write, problems.append)
    with (
        open_source(str(archive)) as source,
        parquet_rows(file.write, "some/node", include_acked=True, orphans=True) as rows,
    ):
        again = export_to(source, EVERYTHING, rows, problems.append)
    assert again == written
    assert problems[: len(problems) // 2] == problems[len(problems) // 2 :]
    found = pq.read_table(pa.BufferReader(file.getvalue())).to_pylist()
    positions: dict[tuple[str, str], int] = {}
    for row in found:
        assert row.pop("node") == "some/node"
        position, name = row.pop("position"), (row["vhost"], row["queue"])
        assert position is None if row["orphan"] else position == positions.get(name, 0)
        positions[name] = positions.get(name, 0) + 1
    assert found == [as_row(json.loads(line)) for line in lines.getvalue().splitlines()]


def test_the_columns_are_those_of_spark() -> None:
    for ours, kind in ((MESSAGES, Kind.QUEUES), (RECORDS, Kind.TOPICS)):
        assert ours.equals(exported_schema(exported_columns(kind)))


@pytest.fixture
def vhost(tmp_path: Path) -> VhostOnDisk:
    return VhostOnDisk(tmp_path / "node")


@pytest.fixture
def node(vhost: VhostOnDisk, tmp_path: Path) -> Path:
    queue = vhost.queue(b"q")
    for seq_id in range(3):
        queue.journal(seq_id, b"%d" % seq_id)
    return tmp_path / "node"


@pytest.mark.parametrize(
    ("name", "options", "begin"),
    [
        ("out.parquet", [], b"PAR1"),
        ("OUT.PARQUET", [], b"PAR1"),
        ("out.data", ["--format", "parquet"], b"PAR1"),
        ("out.parquet", ["--format", "jsonl"], b'{"vhost"'),
        ("out.jsonl", [], b'{"vhost"'),
        ("out", [], b'{"vhost"'),
    ],
)
def test_the_format_is_as_said_or_as_the_name_ends(
    node: Path, tmp_path: Path, name: str, options: list[str], begin: bytes
) -> None:
    out = tmp_path / name
    result = warren("export", node, "--out", out, "--json", *options)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["format"] == ("parquet" if begin == b"PAR1" else "jsonl")
    assert out.read_bytes().startswith(begin)


def test_no_messages_are_a_file_without_rows(tmp_path: Path) -> None:
    VhostOnDisk(tmp_path / "node").queue(b"empty").append("journal.jif", b"")
    assert warren("export", tmp_path / "node", "--queue", "empty", "--out", tmp_path / "none.parquet").exit_code == 0
    table = pq.read_table(tmp_path / "none.parquet")
    assert (table.num_rows, table.schema) == (0, MESSAGES)


def test_what_was_not_asked_for_has_no_column(node: Path, tmp_path: Path) -> None:
    for options, more in (([], []), (["--include-acked"], ["acked"]), (["--orphans"], ["orphan"])):
        warren("export", node, "--out", tmp_path / "out.parquet", *options)
        assert pq.read_schema(tmp_path / "out.parquet").names == [*MESSAGES.names, *more]


@pytest.mark.slow
def test_without_pyarrow_it_is_said_in_one_line(node: Path, tmp_path: Path) -> None:
    ran = run(f"import sys; sys.modules['pyarrow'] = None; {CALL}", "export", node, "--out", tmp_path / "out.parquet")
    assert (ran.returncode, list(tmp_path.glob("out*"))) == (2, [])
    assert ran.stderr == 'warren: --format parquet: needs pyarrow: pip install "warrenmq[parquet]"\n'


@pytest.mark.slow
@pytest.mark.parametrize("output_format", ["jsonl", "parquet"])
def test_a_full_disk_leaves_what_was_there(node: Path, vhost: VhostOnDisk, tmp_path: Path, output_format: str) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"earlier")
    vhost.queue(b"large").journal(0, os.urandom(1 << 17))
    limited = f"import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (65536, 65536)); {CALL}"
    ran = run(limited, "export", node, "--out", out, "--format", output_format)
    assert (ran.returncode, ran.stderr) == (2, f"warren: {out}: File too large\n")
    assert {path.name: path.read_bytes() for path in tmp_path.glob("out*")} == {"out": b"earlier"}


CALL = "from warren.cli import main; main()"


def run(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("output_format", ["jsonl", "parquet"])
def test_an_interrupt_leaves_what_was_there(node: Path, tmp_path: Path, output_format: str) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"earlier")
    ran = run(INTERRUPTED, "export", node, "--out", out, "--format", output_format)
    assert ran.returncode in {130, -signal.SIGINT}
    assert {path.name: path.read_bytes() for path in tmp_path.glob("out*")} == {"out": b"earlier"}


INTERRUPTED = f"""
import os, signal
from warren.salvage.export import Exporter
messages = Exporter.messages
def interrupted(*arguments):
    messages(*arguments)
    os.kill(os.getpid(), signal.SIGINT)
Exporter.messages = interrupted
{CALL}
"""


def test_an_interrupted_stream_has_no_end(node: Path) -> None:
    written: list[bytes] = []
    with (  # noqa: PT012
        pytest.raises(KeyboardInterrupt),
        open_source(str(node)) as source,
        parquet_rows(lambda data: written.append(bytes(data)), "node") as rows,
    ):
        export_to(source, Selection(), rows, lambda _: None)
        raise KeyboardInterrupt
    assert b"".join(written) == b"PAR1"


def test_a_new_file_has_the_rights_of_the_one_that_it_replaces(node: Path, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_bytes(b"")
    (tmp_path / "out.jsonl").chmod(0o640)
    (tmp_path / "link").symlink_to("out.jsonl")
    assert warren("export", node, "--out", tmp_path / "link").exit_code == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "out.jsonl").stat().st_mode & 0o777 == 0o640
    assert len((tmp_path / "out.jsonl").read_bytes().splitlines()) == 3


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
def test_a_device_is_written_to_itself(node: Path) -> None:
    result = warren("export", node, "--out", "/dev/full", "--format", "parquet")
    assert (result.exit_code, result.stderr) == (2, "warren: /dev/full: No space left on device\n")
