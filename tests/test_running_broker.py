"""Whether a broker runs on a directory; if so, nothing is done to it, through whatever interface."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import warren
from warren import durable_queue
from warren.cli import app
from warren.hosting import data_directory
from warren.hosting.data_directory import refuse_running_broker
from warren.salvage.archives.archive import unpack

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a broker that ran."""
    place = tmp_path / "rabbit@host"
    place.mkdir()
    (place / "LATEST.LOG").write_bytes(b"cXM")
    return place


@contextmanager
def erlang(tmp_path: Path, *open_files: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is named like Erlang's virtual machine, and has files open."""
    program = tmp_path / "beam.smp"
    program.symlink_to("/bin/cat")
    descriptors = [os.open(path, os.O_RDONLY) for path in open_files]
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=descriptors) as process:
        for descriptor in descriptors:
            os.close(descriptor)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"up\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"up\n"  # it has its name by now
        yield process
        process.stdin.close()


def test_a_broker_is_seen_by_its_pid_file(tmp_path: Path) -> None:
    pid_file, place = tmp_path / "node.pid", str(tmp_path / "node")
    refuse_running_broker(place)
    for left_over in ("", "no number", str(2**40), str(os.getpid())):  # of a process that is no Erlang
        pid_file.write_text(left_over)
        refuse_running_broker(place)
    with erlang(tmp_path) as process:
        pid_file.write_text(f"{process.pid}\n")
        for name in (place, place + "/", str(tmp_path / "link")):
            (tmp_path / "link").is_symlink() or (tmp_path / "link").symlink_to(place)
            with pytest.raises(
                warren.errors.BrokerRunningError, match=f"a broker runs on it .process {process.pid}, says"
            ):
                refuse_running_broker(name)


def test_a_broker_without_a_pid_file_is_seen_by_what_it_has_open(tmp_path: Path, directory: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "LATEST.LOG").write_bytes(b"cXM")
    with erlang(tmp_path, directory / "LATEST.LOG") as process:
        with pytest.raises(
            warren.errors.BrokerRunningError, match=f"process {process.pid}, which has .*LATEST.LOG open"
        ):
            refuse_running_broker(str(directory))
        refuse_running_broker(str(copy))
        other_name = tmp_path / "as another container sees it"
        other_name.mkdir()
        os.link(directory / "LATEST.LOG", other_name / "LATEST.LOG")
        with pytest.raises(warren.errors.BrokerRunningError):
            refuse_running_broker(str(other_name))
    refuse_running_broker(str(directory))


def test_another_users_broker_that_cannot_be_looked_into_counts_where_the_directory_is_its_users(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = tmp_path / "proc"
    (processes / "77" / "fd").mkdir(parents=True)
    (processes / "77" / "comm").write_text("beam.smp\n")
    (processes / "self").mkdir()

    def closed(path: Path) -> Iterator[Path]:
        if path.name == "fd":
            raise PermissionError
        return iter([path / name for name in os.listdir(path)])

    monkeypatch.setattr(data_directory, "_PROCESSES", processes)
    monkeypatch.setattr(Path, "iterdir", closed)
    with pytest.raises(warren.errors.BrokerRunningError, match=f"process 77, perhaps: it is of user {os.getuid()}"):
        refuse_running_broker(str(directory))
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda path: stat("/") if str(path) == str(processes / "77") else stat(path))
    if os.getuid():
        refuse_running_broker(str(directory))


def test_where_no_broker_ever_ran_no_process_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_directory, "_virtual_machines", lambda: pytest.fail("looked"))
    with warren.open(tmp_path / "node") as node:
        node.queue("q")
    warren.open(tmp_path / "node").close()


# ── every way in ────────────────────────────────────────────────────────────────────────────────────────────────────

COMMANDS: list[list[str]] = [
    ["publish", "DIR", "q", "body", "--adopt"],
    ["consume", "DIR", "q", "--adopt"],
    ["purge", "DIR", "q", "--yes", "--adopt"],
    ["definitions", "DIR", "--adopt"],
    ["definitions", "DIR", "--adopt", "--import", "-"],
    ["queues", "DIR", "--adopt"],
    ["top", "DIR", "--json", "--adopt"],
]
CALLS: dict[str, Callable[[Path], Any]] = {
    "open": lambda path: warren.open(path, adopt=True),
    "open_vhost": warren.engine.open_vhost,
    "durable queue": lambda path: durable_queue.DurableQueue(path, "q"),
}


def everything(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in directory.rglob("*")}


def invoke(command: list[str], directory: Path) -> Result:
    arguments = [str(directory) if word == "DIR" else word for word in command]
    return CliRunner().invoke(app, arguments, input=b"{}")


@pytest.fixture(params=["12-crash-torn-journal", "01-clean-small-mixed"])
def stopped(directory: Path, request: pytest.FixtureRequest) -> Path:
    """A broker's directory, with what it had in it."""
    (directory / "msg_stores").mkdir()
    unpack(str(GOLDEN / f"{request.param}.tar.gz"), str(directory / "msg_stores"))
    return directory


def test_no_command_and_no_call_touches_the_directory_of_a_running_broker(tmp_path: Path, stopped: Path) -> None:
    before = everything(stopped)
    with erlang(tmp_path, stopped / "LATEST.LOG"):
        for command in COMMANDS:
            result = invoke(command, stopped)
            assert (result.exit_code, result.stdout) == (2, ""), command
            assert "a broker runs on it" in result.stderr
        for call in CALLS.values():
            with pytest.raises(warren.errors.BrokerRunningError):
                call(stopped)
    assert everything(stopped) == before


def test_commands_that_only_look_convert_nothing(stopped: Path) -> None:
    before = everything(stopped)
    said = {command[0]: invoke(command, stopped) for command in COMMANDS if command[0] in ("queues", "top")}
    said["definitions"] = invoke(["definitions", "DIR", "--adopt"], stopped)
    assert [result.exit_code for result in said.values()] == [0, 0, 0], said
    assert everything(stopped) == before
    rows = {row["name"]: row["ready"] for row in json.loads(said["top"].stdout)["queues"]}
    assert rows
    declared = {queue["name"] for queue in json.loads(said["definitions"].stdout)["queues"]}
    assert declared == set(rows)
    with warren.open(stopped, adopt=True) as node:  # what it really comes to
        assert rows == {queue.name: len(queue) for queue in node.queues()}


def test_a_directory_that_was_adopted_and_given_back_is_refused_while_its_broker_runs(
    tmp_path: Path, stopped: Path
) -> None:
    warren.open(stopped, adopt=True).close()
    with erlang(tmp_path, stopped / "LATEST.LOG"), pytest.raises(warren.errors.BrokerRunningError):
        warren.open(stopped)
