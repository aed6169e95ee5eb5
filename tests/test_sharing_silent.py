"""A host that has its directory and does not answer: calls keep their timeouts, and end with an error that names it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import kombu
import kombu.simple
import pytest
from typer.testing import CliRunner

import warren
import warren.aio
import warren.kombu
from tests.support.runtime_tools import next_of
from tests.support.sharing_tools import Member, link_of
from tests.support.waiting import wait_until
from warren import cli
from warren.client import link
from warren.client.link import Link
from warren.ctl.verbs import EX_UNAVAILABLE
from warren.durable_queue import DurableQueue
from warren.errors import DirectoryLockedError, HostUnresponsiveError
from warren.top import attached

HOST_TIMEOUT_MS = 2500
LONG_S = 60.0
"""Longer than any call may take, however busy the machine is."""
LONG_MS = 120_000
"""A ``host_timeout_ms`` that no call with a timeout of its own may wait for."""


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Member]:
    """The host of a directory with a message in the queue ``work``; stopped by :func:`stop`."""
    with Member(tmp_path / "data", "hold") as member:
        member.hear("ready")
        yield member
        member.process.send_signal(signal.SIGCONT)


@pytest.fixture
def guest(stopped: Member, tmp_path: Path) -> Iterator[warren.Node]:
    node = opened(tmp_path)
    node.queue("work").publish_many([b"1", b"2"]).wait()
    yield node
    stopped.process.send_signal(signal.SIGCONT)
    node.close()


def opened(tmp_path: Path) -> warren.Node:
    return warren.open(tmp_path / "data", share=True, host_timeout_ms=HOST_TIMEOUT_MS)


def stop(member: Member) -> None:
    member.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: state_of(member.process.pid) == "T", "it is not stopped")


def state_of(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def seconds(call: Callable[[], object]) -> float:
    begin = time.monotonic()
    with pytest.raises(HostUnresponsiveError):
        call()
    return time.monotonic() - begin


@pytest.mark.slow
def test_a_call_with_a_timeout_keeps_it(stopped: Member, guest: warren.Node) -> None:
    queue = guest.queue("work")
    stop(stopped)
    with pytest.raises(HostUnresponsiveError, match=rf"has not answered .* \(process {stopped.process.pid}, "):
        queue.get(timeout=2)
    assert seconds(lambda: list(queue.consume(timeout=1))) < LONG_S
    with pytest.raises((HostUnresponsiveError, TimeoutError)):
        queue.publish(b"3", timeout=1).wait(1)


def _kombu(node: warren.Node) -> kombu.simple.SimpleQueue:
    connection = kombu.Connection("warren://", transport_options={"node": node})
    return connection.SimpleQueue("kombu")


PREPARED: dict[str, Callable[[warren.Node], Callable[[], object]]] = {
    "get": lambda node: partial(node.queue("work").get, timeout=1),
    "consume": lambda node: partial(list, node.queue("empty").consume(timeout=1)),
    "tail": lambda node: partial(list, node.queue("work").tail(timeout=1)),
    "publish_to": lambda node: partial(node.publish_to, ["work"], b"3", timeout=1),
    "prepare": lambda node: partial(node.topic("events").prepare, b"1", timeout=1),
    "a reader's read": lambda node: partial(node.topic("events").reader("a").read, timeout=1),
    "a reader's records": lambda node: partial(list, node.topic("events").reader("b").records(timeout=1)),
    "a topic's read": lambda node: partial(list, node.topic("events").read("c", timeout=1)),
    "a topic's tail": lambda node: partial(list, node.topic("events").tail(timeout=1)),
    "a durable queue's get": lambda node: partial(DurableQueue(node, "d").get, timeout=1),
    "a durable queue's get_nowait": lambda node: DurableQueue(node, "d").get_nowait,
    "a durable queue's put": lambda node: partial(DurableQueue(node, "d").put, b"1", timeout=1),
    "a durable queue's put, with a limit": lambda node: partial(DurableQueue(node, "e", 9).put, b"1", timeout=1),
    "kombu's get": lambda node: partial(_kombu(node).get, timeout=1),
}


@pytest.mark.slow
def test_every_call_with_a_timeout_keeps_it(stopped: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = warren.open(tmp_path / "data", share=True, host_timeout_ms=LONG_MS)
    calls = {what: prepare(node) for what, prepare in PREPARED.items()}
    monkeypatch.setattr(link, "SILENT_S", 1.0)
    stop(stopped)
    with ThreadPoolExecutor(len(calls)) as threads:
        for what, done in {what: threads.submit(call) for what, call in calls.items()}.items():
            assert isinstance(done.exception(LONG_S), HostUnresponsiveError), what
    stopped.process.send_signal(signal.SIGCONT)
    node.close()


@pytest.mark.slow
def test_every_call_of_a_coroutine_with_a_timeout_keeps_it(
    stopped: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def all_of(messages: AsyncIterator[object]) -> list[object]:
        return [message async for message in messages]

    async def ask() -> None:
        node = await warren.aio.open(tmp_path / "data", share=True, host_timeout_ms=LONG_MS)
        queue, topic, exchange = await node.queue("work"), await node.topic("events"), await node.exchange("")
        consumer, reader = (await node.queue("empty")).consume(timeout=1), topic.reader("a")
        await consumer.begin()
        await reader.begin()
        monkeypatch.setattr(link, "SILENT_S", 1.0)
        stop(stopped)
        calls = {
            "publish": queue.publish(b"3", timeout=1),
            "publish to an exchange": exchange.publish(b"3", "work", timeout=1),
            "publish_to": node.publish_to(["work"], b"3", timeout=1),
            "append": topic.append(b"1", timeout=1),
            "append_many": topic.append_many([b"1"], timeout=1),
            "prepare": topic.prepare(b"1", timeout=1),
            "get": queue.get(timeout=1),
            "consume": all_of(consumer),
            "queue's tail": all_of(queue.tail(timeout=1)),
            "a reader's read": reader.read(timeout=1),
            "a topic's read": all_of(topic.read("c", timeout=1)),
            "a topic's tail": all_of(topic.tail(timeout=1)),
        }
        outcomes = await asyncio.gather(*calls.values(), return_exceptions=True)
        assert {what: type(outcome) for what, outcome in zip(calls, outcomes, strict=True)} == dict.fromkeys(
            calls, HostUnresponsiveError
        )
        stopped.process.send_signal(signal.SIGCONT)
        await node.close()

    asyncio.run(asyncio.wait_for(ask(), LONG_S))


@pytest.mark.slow
def test_a_consumer_and_a_reader_whose_host_is_stopped_are_closed_soon(
    stopped: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = warren.open(tmp_path / "data", share=True, host_timeout_ms=LONG_MS)
    node.queue("work").publish(b"1").wait()
    consumer, reader = node.queue("work").consume(), node.topic("events").reader("a")
    monkeypatch.setattr(link, "SILENT_S", 1.0)
    stop(stopped)
    assert seconds(consumer.close) < LONG_S
    assert seconds(reader.close) < LONG_S
    stopped.process.send_signal(signal.SIGCONT)
    assert node.queue("work").get(timeout=LONG_S, auto_ack=True) is not None
    node.close()


CALLS: dict[str, Callable[[warren.Node], object]] = {
    "len": lambda node: len(node.queue("work", passive=True)),
    "get": lambda node: node.queue("work").get(),
    "get without end": lambda node: node.queue("work").get(timeout=None),
    "consume": lambda node: next(iter(node.queue("work").consume())),
    "a confirm": lambda node: node.queue("work").publish(b"3").wait(),
    "a declaration": lambda node: node.queue("another"),
    "a topic": lambda node: node.topic("events").append(b"1").wait(),
    "stats": lambda node: node.stats(),
}


@pytest.mark.slow
def test_calls_without_a_timeout_end(stopped: Member, guest: warren.Node) -> None:
    stop(stopped)
    with ThreadPoolExecutor(len(CALLS)) as threads:
        for what, done in {what: threads.submit(call, guest) for what, call in CALLS.items()}.items():
            assert isinstance(done.exception(LONG_S), HostUnresponsiveError), what


@pytest.mark.slow
def test_a_call_that_waited_for_the_host_is_not_made_again(
    stopped: Member, guest: warren.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took twice the time: the call connected again, and waited for that."""
    queue, connects, join = guest.queue("work"), list[Link](), Link.join

    def counted(link: Link) -> None:
        connects.append(link)
        join(link)

    monkeypatch.setattr(Link, "join", counted)
    stop(stopped)
    assert seconds(lambda: len(queue)) < LONG_S
    assert connects == []


@pytest.mark.slow
def test_calls_go_on_once_the_host_does(stopped: Member, guest: warren.Node) -> None:
    queue = guest.queue("work")
    stop(stopped)
    assert seconds(lambda: len(queue)) < LONG_S
    stopped.process.send_signal(signal.SIGCONT)
    assert next_of(queue, timeout=LONG_S, auto_ack=True).body == b"1"


@pytest.mark.slow
def test_a_host_that_ends_while_it_is_silent_is_taken_over(stopped: Member, guest: warren.Node) -> None:
    queue = guest.queue("work")
    stop(stopped)
    assert seconds(lambda: len(queue)) < LONG_S
    stopped.kill()
    assert len(queue) == 2
    assert next_of(guest.queue("work"), auto_ack=True).body == b"1"


@pytest.mark.slow
def test_a_host_that_was_just_lost_is_not_unresponsive(
    stopped: Member, guest: warren.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the call has waited by then, for a message for example."""
    link_, taking_over = link_of(guest), threading.Event()
    connect = link_._connect

    def connected(stopped: Callable[[], bool]) -> socket.socket:
        taking_over.wait(LONG_S)
        return connect(stopped)

    monkeypatch.setattr(link_, "_connect", connected)
    stopped.kill()
    wait_until(lambda: not link_.is_up, "the socket is not lost")
    monkeypatch.setattr(link, "SILENT_S", LONG_S)
    assert link_.silence(2 * LONG_S) is None
    monkeypatch.setattr(link, "SILENT_S", 0.0)
    assert isinstance(link_.silence(2 * LONG_S), HostUnresponsiveError)
    taking_over.set()


@pytest.mark.slow
def test_a_consumer_that_waits_is_told(stopped: Member, guest: warren.Node) -> None:
    consumer = guest.queue("empty").consume()
    assert consumer.receive(0.01) is None
    stop(stopped)
    with pytest.raises(HostUnresponsiveError):
        consumer.receive()


@pytest.mark.slow
def test_coroutines_are_told(stopped: Member, guest: warren.Node, tmp_path: Path) -> None:
    async def ask() -> None:
        node = await warren.aio.open(tmp_path / "data", share=True, host_timeout_ms=HOST_TIMEOUT_MS)
        queue = await node.queue("work")
        stop(stopped)
        with pytest.raises(HostUnresponsiveError):
            await queue.get(timeout=1)
        with pytest.raises(HostUnresponsiveError):
            await queue.purge()
        stopped.process.send_signal(signal.SIGCONT)
        await node.close()

    asyncio.run(asyncio.wait_for(ask(), LONG_S))


@pytest.mark.slow
def test_a_directory_whose_host_is_stopped_cannot_be_opened(stopped: Member, tmp_path: Path) -> None:
    stop(stopped)
    assert seconds(lambda: opened(tmp_path)) < LONG_S


@pytest.mark.slow
@pytest.mark.parametrize("command", [["queues"], ["ctl", "list_queues"], ["definitions"], ["top", "--once"]])
def test_a_command_that_asks_says_so_too(
    command: list[str], stopped: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached, "PATIENCE_S", 0.5)
    stop(stopped)
    name, *others = command
    result = CliRunner().invoke(cli.app, [name, str(tmp_path / "data"), *others])
    assert result.exit_code == (EX_UNAVAILABLE if name == "ctl" else 2)
    assert f"has not answered for 0.5 s (process {stopped.process.pid}, " in result.stderr


@pytest.mark.slow
def test_a_command_says_which_process_does_not_answer(stopped: Member, tmp_path: Path) -> None:
    stop(stopped)
    done = subprocess.run(
        [sys.executable, "-m", "warren", "publish", tmp_path / "data", "work", "body"],
        check=False,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 2
    assert "has not answered" in done.stderr
    assert f"(process {stopped.process.pid}, " in done.stderr


@pytest.mark.slow
def test_a_program_that_has_published_to_a_stopped_host_ends(stopped: Member, tmp_path: Path) -> None:
    program = (
        "import logging, warren\n"
        "logging.basicConfig()\n"
        f"node = warren.open({str(tmp_path / 'data')!r}, share=True, host_timeout_ms={HOST_TIMEOUT_MS})\n"
        "queue = node.queue('work')\n"
        "print('open', flush=True)\n"
        "input()\n"
        "queue.publish(b'x')\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        stop(stopped)
        _, errors = process.communicate("\n", LONG_S)
    assert "has not answered" in errors


@pytest.mark.parametrize("what", ["the directory", "the lock file"])
def test_a_lock_of_another_program_keeps_nobody_waiting_for_ever(what: str, tmp_path: Path) -> None:
    """``flock DIRECTORY backup.sh``, for one."""
    (tmp_path / "data").mkdir(mode=0o755)
    place = tmp_path / "data" if what == "the directory" else tmp_path / "data" / "warren.lock"
    if what != "the directory":
        place.touch()
    descriptor = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if what == "the directory":
            opened(tmp_path).close()
        else:
            with pytest.raises(DirectoryLockedError):
                opened(tmp_path)
    finally:
        os.close(descriptor)


@pytest.mark.slow
def test_a_host_that_never_listens_is_given_up(tmp_path: Path) -> None:
    """It has the lock, says that it shares, and was stopped before it had made its socket."""
    (tmp_path / "data").mkdir()
    program = (
        "import sys\n"
        "from warren.storage.filesystem import RealFileSystem\n"
        f"lock = RealFileSystem().lock({str(tmp_path / 'data' / 'warren.lock')!r}, 'process 1, shared')\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        assert seconds(lambda: opened(tmp_path)) < LONG_S
        holder.kill()


@pytest.mark.slow
def test_an_idle_host_sends_something(stopped: Member, guest: warren.Node) -> None:
    """The member is not stopped, and nothing else is to be sent."""
    link = link_of(guest)
    link.silence_limit_s, link.silent_s = LONG_S, 2.0
    wait_until(lambda: link.silent_s < 2.0, "the host is silent")
    assert stopped.process.pid
    assert next_of(guest.queue("work"), timeout=LONG_S, auto_ack=True).body == b"1"
