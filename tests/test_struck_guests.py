"""Interrupts that strike a guest of a shared directory as it begins and as it ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import warren
from tests.support.sharing_tools import Member, link_of
from tests.support.striking import raised_after
from tests.support.waiting import wait_until
from warren.errors import ClosedError


class TimeLimitError(Exception):
    """As a task queue's soft time limit: a plain ``Exception``."""


def stop(host: Member) -> None:
    """Stop a process, and come back when all of its threads have."""
    host.process.send_signal(signal.SIGSTOP)
    states = [path / "stat" for path in Path(f"/proc/{host.process.pid}/task").iterdir()]
    wait_until(lambda: all(state.read_text().rpartition(")")[2].split()[0] == "T" for state in states), "it stops")


@contextmanager
def guest_of_a_stopped_host(directory: Path) -> Iterator[tuple[Member, warren.Node, warren.Queue]]:
    """The host, a guest's node, and its handle of the queue ``q``, with one message."""
    with Member(directory, "hold", forked=True) as host:
        host.hear("ready")
        node = warren.open(directory, share=True)
        queue = node.queue("q")
        queue.publish(b"1").wait()
        stop(host)
        yield host, node, queue


@pytest.mark.slow
def test_a_time_limit_in_a_guests_close_is_raised_and_nothing_stays_open(tmp_path: Path) -> None:
    """It struck while the guest waited for its host's good-bye, and was lost."""
    with guest_of_a_stopped_host(tmp_path) as (host, node, _):
        link = link_of(node)
        with pytest.raises(TimeLimitError), raised_after(0.1, TimeLimitError()):
            node.close()  # the host says no good-bye
        host.process.send_signal(signal.SIGCONT)
        assert link.connection is None
        assert link._thread is not None
        assert not link._thread.is_alive()
        with pytest.raises(ClosedError):
            node.queue("q")
        with warren.open(tmp_path, share=True) as again:
            assert len(again.queue("q")) == 1


@pytest.mark.slow
def test_a_time_limit_in_a_guests_last_confirms_is_raised_once_they_are_there(tmp_path: Path) -> None:
    with guest_of_a_stopped_host(tmp_path) as (host, node, queue):
        link = link_of(node)
        confirm = queue.publish(b"2")
        go_on = threading.Timer(0.3, host.process.send_signal, (signal.SIGCONT,))
        go_on.start()
        with pytest.raises(TimeLimitError), raised_after(0.1, TimeLimitError()):
            node.close()
        go_on.join()
        confirm.wait(0)
        assert link._thread is not None
        assert not link._thread.is_alive()


def test_a_second_time_limit_breaks_off_a_guests_close_and_the_next_call_goes_on_with_it(tmp_path: Path) -> None:
    with guest_of_a_stopped_host(tmp_path) as (host, node, queue):
        confirm = queue.publish(b"2")
        with pytest.raises(TimeLimitError), raised_after(0.1, TimeLimitError(), again_after=0.1):
            node.close()
        host.process.send_signal(signal.SIGCONT)
        node.close()
        confirm.wait(0)


def test_an_interrupt_as_a_guests_reader_begins_waits_until_it_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread was half begun, and could not be joined: ``close`` raised ``RuntimeError``."""
    start = threading.Thread.start

    def struck(thread: threading.Thread) -> None:
        if thread.name == "warren-client":
            signal.raise_signal(signal.SIGINT)
        start(thread)

    with Member(tmp_path, "hold", forked=True) as host:
        host.hear("ready")
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", struck)
            with pytest.raises(KeyboardInterrupt):
                warren.open(tmp_path, share=True)
        assert not [one for one in threading.enumerate() if one.name == "warren-client"]
        with warren.open(tmp_path, share=True) as again:
            again.queue("q").publish(b"1").wait()
