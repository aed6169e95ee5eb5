"""What a command asks a node in another process: it disturbs nothing, and the node's end or silence is reported."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import warren
from tests.support.sharing_tools import Member
from tests.support.waiting import wait_until
from warren.actors.node.node_socket import SOCKET_NAME
from warren.errors import HostUnresponsiveError, NotFoundError, WarrenError
from warren.server import server as server_module
from warren.server.server import Server
from warren.top import attached as attached_module
from warren.top.attached import NotAttachedError, attached
from warren.top.snapshots import Snapshots

LONG_S = 60.0


@pytest.fixture(params=[False, True], ids=["alone", "shared"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[warren.Node]:
    with warren.open(tmp_path / "data", share=request.param) as opened:
        opened.queue("orders").publish_many([b"x"] * 3).wait()
        yield opened


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_connection_has_rates_of_its_own(node: warren.Node) -> None:
    with attached(node.path) as first, attached(node.path) as second:
        assert first.snapshot()["queues"][0]["in_rate"] is None
        assert first.snapshot()["queues"][0]["in_rate"] == 0.0
        assert second.snapshot()["queues"][0]["in_rate"] is None


def test_an_error_of_the_node_is_raised_and_the_next_request_is_answered(node: warren.Node) -> None:
    with attached(node.path) as there:
        with pytest.raises(NotFoundError, match="no queue 'x'"):
            there.queue("/", "x")
        with pytest.raises(WarrenError, match="not for 'nonsense'"):
            there.ask(want="nonsense")
        with pytest.raises(WarrenError, match="does not fit"):
            there.ask(want="ctl", verb="list_queues", arguments={"vhost": 1 << 70})
        assert there.queue("/", "orders")["queue"]["ready"] == 3


def test_a_bug_is_an_error_that_is_logged_and_the_next_request_is_answered(
    node: warren.Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("oops")

    with attached(node.path) as there:
        with monkeypatch.context() as patched:
            patched.setattr(Snapshots, "take", broken)
            with pytest.raises(WarrenError, match=r"the request could not be answered: KeyError\('oops'\)"):
                there.snapshot()
        assert there.snapshot()["totals"]["ready"] == 3
    assert [getattr(record, "event", "") for record in caplog.records] == ["status_failed"]


def test_names_that_are_no_utf_8_are_answered(node: warren.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    name = b"\xff".decode(errors="surrogateescape")
    monkeypatch.setattr(Snapshots, "answer", lambda *_: {"down_vhosts": {name: name}})
    with attached(node.path) as there:
        assert there.snapshot() == {"down_vhosts": {name: name}}


def test_a_node_without_the_vhost_that_connections_open_is_answered_for(node: warren.Node) -> None:
    node.delete_vhost("/")
    with attached(node.path) as there:
        assert there.snapshot()["queues"] == []


# ── it disturbs nothing ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_connection_is_not_listed(node: warren.Node) -> None:
    with attached(node.path) as there:
        for verb, arguments in (("list_connections", {"columns": ["name"]}), ("list_channels", {"columns": ["name"]})):
            assert there.ask(want="ctl", verb=verb, arguments=arguments) == {"answer": []}
        status = there.ask(want="ctl", verb="status", arguments={})["answer"]
        assert status["totals"]["connection_count"] == 0
        everybody = {"reason": "why", "vhost": None, "limit": 0}
        assert there.ask(want="ctl", verb="close_all_connections", arguments=everybody)["answer"] == {"closed": 0}
        [server] = node._running.hosted
        assert isinstance(server, Server)
        assert server.connections == {}


def test_a_node_that_is_closed_waits_for_no_command_that_is_attached(
    node: warren.Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "HAND_OVER_S", 10 * LONG_S)
    monkeypatch.setattr(server_module, "STOP_TIMEOUT_S", 10 * LONG_S)
    with attached(node.path) as there, attached(node.path):
        there.snapshot()
        closing = threading.Thread(target=node.close)
        closing.start()
        closing.join(LONG_S)
        assert not closing.is_alive()
        with pytest.raises(NotAttachedError, match="its node was closed"):
            there.snapshot()
    assert caplog.records == []


def test_a_request_that_is_being_answered_while_the_node_is_closed_gets_its_answer(
    node: warren.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def answer(_: Snapshots, request: Mapping[str, Any]) -> Mapping[str, Any]:
        begun.set()
        assert go_on.wait(LONG_S)
        return {"answered": True}

    monkeypatch.setattr(server_module, "HAND_OVER_S", LONG_S)
    monkeypatch.setattr(Snapshots, "answer", answer)
    answers: list[Any] = []
    with attached(node.path) as there:
        asking = threading.Thread(target=lambda: answers.append(there.snapshot()))
        asking.start()
        assert begun.wait(LONG_S)
        closing = threading.Thread(target=node.close)
        closing.start()
        go_on.set()
        closing.join(LONG_S)
        asking.join(LONG_S)
    assert answers == [{"answered": True}]


# ── the host's end, and silence ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_after_a_takeover_the_next_command_asks_the_next_host(tmp_path: Path) -> None:
    place = tmp_path / "data"
    with Member(place, "hold") as member:
        member.hear("ready")
        with warren.open(place, share=True) as guest, attached(str(place)) as there:
            guest.queue("work").publish(b"1").wait()
            assert there.snapshot()["pid"] == member.process.pid
            member.kill()
            assert len(guest.queue("work")) == 1
            with pytest.raises(NotAttachedError, match="its node was closed"):
                there.snapshot()
            with attached(str(place)) as again:
                assert again.snapshot()["pid"] == os.getpid()


@pytest.mark.slow
def test_a_host_that_is_stopped_between_two_requests_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Member(tmp_path / "data", "hold") as member:
        member.hear("ready")
        with attached(str(tmp_path / "data")) as there:
            there.snapshot()
            monkeypatch.setattr(attached_module, "PATIENCE_S", 0.3)
            member.process.send_signal(signal.SIGSTOP)
            stat = Path(f"/proc/{member.process.pid}/stat")
            wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "it is not stopped")
            with pytest.raises(HostUnresponsiveError, match=rf"has not answered .* \(process {member.process.pid}, "):
                there.ask(want="snapshot", patience_s=10 * LONG_S)


@pytest.mark.slow
def test_a_host_that_is_slow_is_given_the_time_that_the_caller_says(
    node: warren.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(Snapshots, "answer", lambda *_: {"answered": go_on.wait(LONG_S)})
    with attached(node.path) as there:
        monkeypatch.setattr(attached_module, "PATIENCE_S", 0.1)
        with pytest.raises(HostUnresponsiveError, match=r"has not answered for 1\.\d s"):
            there.ask(want="snapshot", patience_s=1.0)
        go_on.set()


def test_a_process_that_listens_and_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached_module, "PATIENCE_S", 0.1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / SOCKET_NAME))
        listener.listen()
        with pytest.raises(HostUnresponsiveError, match=r"has not answered for 0\.1 s"), attached(str(tmp_path)):
            pass
