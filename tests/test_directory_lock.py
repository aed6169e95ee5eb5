"""One process has a directory: locks between processes, and what a forked child may do with its parent's node."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

import warren
from tests.support.forked import in_child
from warren.engine import open_vhost
from warren.storage import filesystem, lock_file
from warren.storage.errors import DirectoryLockedError
from warren.storage.filesystem import RealFileSystem

FILES = RealFileSystem()


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "warren.lock")


def test_a_lock_on_a_file_that_its_holder_removes_meanwhile_is_taken_anew(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder closes between opening the file and locking it: the file locked then is no longer the lock."""
    holder = FILES.lock(place, "first")
    rivals: list[Any] = []
    flock = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        if not rivals and operation != fcntl.LOCK_UN:
            holder.remove()
            rivals.append(None)
            rivals[0] = FILES.lock(place, "a third, faster one")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(DirectoryLockedError, match="a third, faster one"):
        FILES.lock(place, "second")
    rivals[0].remove()
    assert FILES.lock(place, "fourth").in_place


def test_who_lost_its_directory_removes_nobodys_lock(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    place = str(tmp_path / "d" / "warren.lock")
    old = FILES.lock(place, "old")
    assert old.in_place
    (tmp_path / "d").rename(tmp_path / "e")
    (tmp_path / "d").mkdir()
    new = FILES.lock(place, "new")
    assert (old.in_place, new.in_place) == (False, True)
    old.remove()
    assert new.in_place
    with pytest.raises(DirectoryLockedError, match="new"):
        FILES.lock(place, "third")


def test_a_lock_file_that_cannot_be_removed_keeps_nobody_out(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that has become read-only a node could not be closed."""
    holder = FILES.lock(place, "first")

    def refuse(path: str) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        holder.remove()
    assert FILES.lock(place, "second").in_place


def test_a_process_that_dies_may_let_go_of_the_node_before_it_lets_go_of_a_vhost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next host met the vhost's lock, and was no host."""
    with warren.open(tmp_path) as node:
        node.queue("q").publish(b"1").wait()
    [vhost] = (tmp_path / "msg_stores" / "vhosts").glob("*")
    dying = FILES.lock(str(vhost / lock_file.LOCK_FILE), "who dies")
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            dying.release()

    monkeypatch.setattr(filesystem, "time", SimpleNamespace(sleep=sleep))
    with warren.open(tmp_path) as node:
        assert [one.body for one in node.queue("q").browse()] == [b"1"]
    assert len(waits) == 3


def test_who_has_a_vhost_by_itself_is_waited_for_a_second_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(filesystem, "time", SimpleNamespace(sleep=waits.append))
    with warren.open(tmp_path):
        pass
    [vhost] = (tmp_path / "msg_stores" / "vhosts").glob("*")
    lock = FILES.lock(str(vhost / lock_file.LOCK_FILE), "somebody else")
    with pytest.raises(warren.WarrenError, match="somebody else"):
        warren.open(tmp_path)
    lock.release()
    assert 0.9 < sum(waits) < 1.1


_RIVAL = """
import os, sys
from warren.storage.errors import DirectoryLockedError
from warren.storage.filesystem import RealFileSystem
place, rounds = sys.argv[1], int(sys.argv[2])
files, taken = RealFileSystem(), 0
while taken < rounds:
    try:
        lock = files.lock(place, str(os.getpid()))
    except DirectoryLockedError:
        continue
    taken += 1
    os.mkdir(place + ".held")  # fails if another process holds it, too
    os.rmdir(place + ".held")
    lock.remove()
"""


@pytest.mark.slow
def test_processes_that_take_and_remove_a_lock_in_turn_never_hold_it_together(place: str) -> None:
    order = [sys.executable, "-c", _RIVAL, place, "100"]
    rivals = [subprocess.Popen(order, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    said = [rival.communicate()[1] for rival in rivals]
    assert [rival.returncode for rival in rivals] == [0] * 4, said
    assert not os.path.exists(place)


# ── forked children ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_forked_child_does_not_keep_its_parents_lock(place: str) -> None:
    held = FILES.lock(place, "the parent")
    reads, writes = os.pipe()
    go_on, told = os.pipe()
    child = os.fork()
    if not child:
        os.write(writes, b"x")
        os.read(go_on, 1)  # lives on, whatever the parent does with its lock
        os._exit(0)
    os.read(reads, 1)
    with pytest.raises(DirectoryLockedError, match="the parent"):  # what the child closed was a copy
        FILES.lock(place, "me")
    held.release()
    FILES.lock(place, "the next").release()
    os.write(told, b"x")
    assert os.waitpid(child, 0)[1] == 0


def test_a_lock_that_was_being_taken_while_another_thread_forked_is_not_the_childs_either(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, told = os.pipe()
    children: list[int] = []
    flock = fcntl.flock

    def during_fork(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        if not children:
            children.append(os.fork())
            if not children[0]:  # its copy of the descriptor is in no list
                os.read(go_on, 1)
                os._exit(0)

    monkeypatch.setattr(fcntl, "flock", during_fork)
    held = FILES.lock(place, "the parent")
    assert held.in_place
    held.forget()  # the parent dies
    FILES.lock(place, "the next").release()
    os.write(told, b"x")
    assert os.waitpid(children[0], 0)[1] == 0


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A node that is in the middle of everything."""
    path = tmp_path_factory.mktemp("forked")
    with warren.open(path / "node") as node, open_vhost(path / "plain") as vhost:
        queue = node.queue("q")
        queue.publish_many([b"%d" % number for number in range(10)]).wait()
        topic = node.topic("t")
        topic.append(b"1").wait()
        consumer = queue.consume(prefetch=4)
        plain = vhost.queue(b"p")
        yield {
            "node": node,
            "queue": queue,
            "got": queue.get(),
            "consumer": consumer,
            "taken": next(consumer),  # of a batch, whose rest is there already
            "topic": topic,
            "reader": (reader := topic.reader("g")),
            "record": next(iter(reader)),
            "prepared": topic.prepare(b"2"),
            "vhost": vhost,
            "plain": plain,
            "envelope": vhost.envelope(b"p"),
            "path": path,
        }


USES: dict[str, Callable[[dict[str, Any]], object]] = {
    "declare": lambda s: s["node"].queue("new"),
    "publish": lambda s: s["queue"].publish(b"c"),
    "publish many": lambda s: s["queue"].publish_many([b"c"]),
    "publish to": lambda s: s["node"].publish_to(["q"], b"c"),
    "exchange": lambda s: s["node"].exchange("").publish(b"c", "q"),
    "get": lambda s: s["queue"].get(),
    "ack": lambda s: s["got"].ack(),
    "ack of a consumer's": lambda s: s["taken"].ack(),
    "next": lambda s: next(s["consumer"]),
    "consume": lambda s: s["queue"].consume(),
    "purge": lambda s: s["queue"].purge(),
    "stats": lambda s: s["node"].stats(),
    "append": lambda s: s["topic"].append(b"c"),
    "take": lambda s: next(iter(s["reader"])),
    "commit": lambda s: s["record"].commit(),
    "transaction": lambda s: s["prepared"].commit(),
    "close": lambda s: s["node"].close(),
    "plain queue": lambda s: s["vhost"].queue(b"x"),
    "plain publish": lambda s: (
        s["plain"].publish_many(s["envelope"], s["vhost"].msg_ids.many(1), [b"c"], expiries_us=[0]),
        s["plain"].sync_index(),
    ),
    "plain close": lambda s: s["vhost"].close(),
}


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
def test_a_forked_child_that_uses_its_parents_node_gets_an_error(scene: dict[str, Any], use: str) -> None:
    said = in_child(lambda: USES[use](scene))
    wanted = "DirectoryLostError|StorageError" if use.startswith("plain") else "WrongProcessError|ActorStoppedError"
    assert said.split(":")[0] in wanted.split("|"), said
    if not use.startswith("plain"):
        assert "forked" in said


def test_a_confirm_of_before_the_fork_is_an_error_in_the_child(scene: dict[str, Any]) -> None:
    queue = scene["node"].queue("waiting")
    held = queue._verbs.actor.turns.lock
    with held:  # as if another thread were just at it
        confirm = queue.publish(b"1")
        assert "forked" in in_child(lambda: confirm.wait(30))
    confirm.wait()


def test_a_with_block_ends_in_the_child_without_closing_anything(tmp_path: Path) -> None:
    with warren.open(tmp_path / "n") as node, open_vhost(tmp_path / "v") as vhost:
        queue = node.queue("q")
        reads, writes = os.pipe()
        child = os.fork()
        if not child:
            os.close(reads)
        else:
            os.close(writes)
            os.read(reads, 1)  # the child has left both blocks
            assert os.waitpid(child, 0)[1] == 0
            queue.publish(b"1").wait()
            vhost.queue(b"q")
            vhost.sync()
    if not child:
        os._exit(0)
    with warren.open(tmp_path / "n") as node:
        assert len(node.queue("q", passive=True)) == 1


def test_a_forked_child_opens_what_its_parent_gave_up(tmp_path: Path) -> None:
    def parent() -> object:
        node = warren.open(tmp_path / "n")
        node.queue("q").publish(b"1").wait()
        if os.fork():
            os._exit(0)  # as by a kill: nothing is closed
        while True:
            try:
                with warren.open(tmp_path / "n") as mine:
                    return len(mine.queue("q", passive=True))
            except DirectoryLockedError:  # the parent is not quite gone
                continue

    assert in_child(parent) == "1"
