"""Structured log records: every log call of ours says which event it is, and JSON has it."""

from __future__ import annotations

import ast
import json
import logging
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from warren.actors.log_events import EVENTS, log_event, logger
from warren.errors import DataError, QueueDownError
from warren.logs import JsonFormatter
from warren.testing import TestNode

PROJECT = Path(__file__).parent.parent
FIELDS = {
    "vhost", "queue", "part", "path", "offset", "reason", "error", "resource", "topic", "group", "member", "count",
    "connection", "channel", "code", "consumer", "mechanism", "address", "method", "url", "what",
    "table", "tasks", "files", "all_files", "bytes", "all_bytes",
}  # fmt: skip
"""What a record may have beside its event; documented in docs/monitoring.md."""


def modules() -> Iterator[Path]:
    for room in ("actors", "warren", "storage", "queue_index", "msg_store"):
        for path in sorted((PROJECT / room).rglob("*.py")):
            if not (path.is_symlink() or any(parent.is_symlink() for parent in path.parents if parent != PROJECT)):
                yield path


def log_calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call of a module's logger, and its place."""
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="_LOG"), attr=name)) if name != "isEnabledFor":
                    yield f"{path.relative_to(PROJECT)}:{node.lineno}", node


def names_in(node: ast.expr) -> list[str]:
    """The event of a call, or those of both ways of an expression."""
    match node:
        case ast.Constant(value=str(name)):
            return [name]
        case ast.IfExp(body=body, orelse=orelse):
            return [*names_in(body), *names_in(orelse)]
    return []


@pytest.mark.slow
def test_every_log_call_says_which_event_it_is() -> None:
    used: set[str] = set()
    for where, call in log_calls():
        extra = next((keyword.value for keyword in call.keywords if keyword.arg == "extra"), None)
        match extra:
            case ast.Call(func=ast.Name(id="log_event"), args=[name, *_], keywords=keywords):
                found = names_in(name)
                assert found, f"{where}: an event is named by a constant"
                assert set(found) <= EVENTS.keys(), f"{where}: {found}"
                used.update(found)
                given = {keyword.arg for keyword in keywords if keyword.arg is not None} - {"of"}
                assert given <= FIELDS, f"{where}: {given - FIELDS}"
            case _:
                pytest.fail(f"{where}: no extra=log_event(…)")
    assert used == EVENTS.keys()


def test_no_interrupt_strikes_while_a_module_gets_its_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    """It struck in a verb's first use of a module, and left the lock of `logging` held: every log call then hung."""
    known, found = logging.getLogger, list[logging.Logger]()

    def struck(name: str) -> logging.Logger:
        signal.raise_signal(signal.SIGINT)
        found.append(known(name))
        return found[0]

    with monkeypatch.context() as patched:
        patched.setattr(logging, "getLogger", struck)
        with pytest.raises(KeyboardInterrupt):
            logger("queue")
    assert [one.name for one in found] == ["warren.queue"]


def test_every_module_gets_its_logger_so() -> None:
    asking = {str(path.relative_to(PROJECT)) for path in modules() if "logging.getLogger" in path.read_text("utf-8")}
    assert asking == {"actors/log_events.py", "warren/__init__.py"}  # the latter before anything else is imported


def test_no_field_is_an_attribute_that_records_have_anyway() -> None:
    assert FIELDS.isdisjoint(vars(logging.makeLogRecord({})))
    assert "event" not in vars(logging.makeLogRecord({}))


def test_every_event_and_field_is_documented() -> None:
    page = (PROJECT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    events, _, fields = page.partition("### Records for programs")[2].partition("\n## ")[0].partition("### Fields")
    assert dict(re.findall(r"^- `([a-z_]+)`: (.*)$", events, re.MULTILINE)) == dict(EVENTS)
    first_cells = re.findall(r"^\| (`.*?`) \|", fields, re.MULTILINE)
    assert {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)} == FIELDS | {"event"}


def test_an_error_gives_its_reason_and_where_it_is() -> None:
    assert log_event("queue_down", DataError("/q/journal.jif", 12, "torn"), vhost="/") == {
        "event": "queue_down",
        "path": "/q/journal.jif",
        "offset": 12,
        "reason": "/q/journal.jif, offset 12: torn",
        "error": "DataError",
        "vhost": "/",
    }


def test_a_queue_that_fails_is_told_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    with TestNode() as node:
        queue = node.queue("jobs")
        queue.publish(b"safe").wait()
        node.disk.fail("sync", "*.jif")
        with pytest.raises(QueueDownError):
            queue.publish(b"x").wait()
        node.settle()
    records = [record for record in caplog.records if hasattr(record, "event")]
    assert [(record.event, record.vhost, record.queue, record.error) for record in records] == [  # type: ignore[attr-defined]
        ("actor_stopped", "/", "jobs", "StorageError"),
        ("queue_restarted", "/", "jobs", "StorageError"),
    ]
    assert records[0].getMessage() == f"queue 'jobs' in vhost '/' stops: {records[0].reason}"  # type: ignore[attr-defined]


def test_a_memory_alarm_is_told_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    of_memory = logger("memory")
    of_memory.addHandler(handler)
    try:
        with TestNode() as node:
            node.machine.used_bytes = node.machine.total_memory_bytes
            node.advance(60)
    finally:
        of_memory.removeHandler(handler)
    [line] = capsys.readouterr().err.splitlines()
    said = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", said.pop("time"))
    assert said == {
        "level": "WARNING",
        "logger": "warren.memory",
        "message": "memory alarm set: publishers are blocked",
        "event": "alarm_set",
        "resource": "memory",
    }


def test_what_json_does_not_know_is_text_and_tracebacks_are_in_one_line() -> None:
    record = logging.makeLogRecord({"msg": "of %s", "args": ("bytes",), "name": "other", "own": b"x", "none": None})
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        record.exc_info = sys.exc_info()
    line = JsonFormatter().format(record)
    assert "\n" not in line
    said = json.loads(line)
    assert (said["message"], said["own"], "none" in said) == ("of bytes", "b'x'", False)
    assert said["exception"].splitlines()[-1] == "ZeroDivisionError: division by zero"


@pytest.mark.slow
@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_server_logs_to_stderr_in_the_form_that_was_asked_for(tmp_path: Path, log_format: str) -> None:
    command = [sys.executable, "-m", "warren", "serve", str(tmp_path / "data"), "--host", "0.0.0.0", "--port", "0"]
    with subprocess.Popen(
        [*command, "--log-format", log_format], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        wait_until(lambda: "listens on" in server.stdout.readline(), "the server", process=server)  # type: ignore[union-attr]
        server.send_signal(signal.SIGTERM)
        lines = server.stderr.read().splitlines()
    if log_format == "json":
        [said] = map(json.loads, lines)
        assert (said["event"], said["level"], said["logger"]) == ("listening_open", "WARNING", "warren.server")
        assert said["address"].startswith("0.0.0.0:")
    else:
        [line] = lines
        assert re.fullmatch(r"[-\d]+ [:,\d]+ \[WARNING\] listening on 0\.0\.0\.0:\d+, which other machines reach", line)
