"""One file of a warren node's own directory is damaged while no node runs: the node opens, or an error says why not.

Nothing hangs, every error is one of warren's, and no queue, topic or message is missing without a word: if less comes
out than was put in, an error was raised, or the log has a warning. What cannot be known is left out
(:func:`is_unknowable`): index and store files of version 1 have no checksums, after a kill no terms say how many
messages there were, and nothing says how far a log went.
"""

from __future__ import annotations

import functools
import logging
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.fuzz.target import ends_within
from tests.support.effort import EFFORT, new_seed, times
from tests.support.runtime_tools import BIG, SMALL, HandNode, hand_node, put
from tests.support.tried import Count, Tried
from warren.storage.errors import WarrenError
from warren.storage.memory import MemoryFileSystem

HANGS_AFTER_S = 60.0
UNCHECKED = (".idx", ".jif", ".rdq", ".queue_name", ".config", ".vhost")
"""Ends of names of files without checksums: a change of a few bytes of one may cost, or alter, :data:`FEW` unseen."""
FEW = 1
INDEXES = (".idx", ".jif")
LOGS = (".delayed", ".log", ".keys")
DAMAGES = ("flip", "overwrite", "truncate", "hole", "insert", "cut out", "nothing", "other", "huge", "delete")


QUEUES: dict[str, dict[str, object]] = {
    "orders": {"x-message-deduplication": True, "x-delivery-limit": 5},
    "plain": {"x-max-priority": 2},
}


def filled() -> HandNode:
    """A node with something in each kind of file that there is."""
    scene = hand_node(seed=1, **SMALL)
    node = scene.node
    orders, plain = (node.queue(name, arguments=arguments) for name, arguments in QUEUES.items())
    for number in range(40):
        orders.publish(b"order %d" % number, unique=f"key {number}").wait()
    for number in range(20):
        plain.publish(BIG + b"%d" % number, priority=number % 3).wait()
    orders.nack(orders.get_many(5))
    for number in range(5):
        plain.publish(b"late %d" % number, delay=3600.0).wait()
    events = node.topic("events", queues=2)
    for number in range(20):
        events.append(b"event %d" % number, key=f"k{number}", tag="t").wait()
    list(events.read("group", max_records=3))
    scene.advance(30.0)
    return scene


@functools.cache
def disks() -> tuple[MemoryFileSystem, MemoryFileSystem]:
    """As a clean stop, and as a kill leaves it."""
    stopped, killed = filled(), filled()
    stopped.node.close()
    return stopped.files.after_process_crash(), killed.kill()


def spoil(chance: random.Random, files: MemoryFileSystem, kind: str) -> str:
    """Damage one file, and say which."""
    paths = [path for path in sorted(files.contents()) if files.size(path) and not path.endswith(".lock")]
    path = chance.choice(paths)
    data = bytearray(files.read(path))
    at = chance.randrange(len(data))
    match kind:
        case "flip":
            data[at] ^= 1 << chance.randrange(8)
        case "overwrite":
            data[at : at + 3] = chance.randbytes(3)
        case "huge":
            data[at : at + 8] = b"\x7f" + b"\xff" * 7
        case "truncate":
            del data[at:]
        case "hole":
            data[at : at + 64] = bytes(len(data[at : at + 64]))
        case "insert":
            data[at:at] = chance.randbytes(chance.choice((1, 7, 300)))
        case "cut out":
            del data[at : at + chance.choice((1, 7, 300))]
        case "nothing":
            data.clear()
        case "other":
            data[:] = files.read(chance.choice(paths))
        case "delete":
            files.delete(path)
            return path
    put(files, path, bytes(data))
    return path


def emptied(scene: HandNode) -> Counter[bytes]:
    """All present bodies, an hour later; the log has our errors."""
    node, found = scene.node, Counter[bytes]()
    scene.advance(4000.0)
    for name, arguments in QUEUES.items():
        with told():
            found.update(message.body for message in node.queue(name, arguments=arguments).browse())
    with told():
        found.update(record.body for record in node.topic("events").read("other"))
    with told():
        node.queue("new").publish(b"goes on").wait()
    return found


@contextmanager
def told() -> Iterator[None]:
    try:
        yield
    except WarrenError as error:
        logging.getLogger("warren").warning("refused: %s", error)


def read(files: MemoryFileSystem) -> Counter[bytes]:
    """What a node has that opens there."""
    found = Counter[bytes]()
    with told():
        scene = hand_node(files, check_invariants=False, **SMALL)  # as in production: damage would break them
        try:
            found = emptied(scene)
        finally:
            with told():
                scene.node.close()
            scene.forget()
    return found


def is_unknowable(path: str, kind: str, *, is_cut_off: bool, was_clean: bool) -> bool:
    """Whether the files that are left may say, all of them, that there never was what is missing."""
    if path.endswith(INDEXES):
        return kind == "other" or (is_cut_off and not was_clean)
    return path.endswith(LOGS) and is_cut_off


def check(number: int, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(number)
    kind, was_clean = chance.choice(DAMAGES), chance.random() < 0.5
    whole, files = (disks()[0 if was_clean else 1].after_process_crash() for _ in range(2))
    path = spoil(chance, files, kind)
    is_cut_off = not files.exists(path) or whole.read(path).startswith(files.read(path))
    said = f"{number}: {kind} of {path}, {'clean' if was_clean else 'killed'}"
    caplog.clear()
    with ends_within(HANGS_AFTER_S):
        found = read(files)
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    raised = [record.exc_info[1] for record in caplog.records if record.exc_info]
    strange = [error for error in raised if not isinstance(error, WarrenError)]
    assert not strange, f"{said}: {strange[0]!r}"
    expected = bodies(was_clean)
    missing, added = (expected - found).total(), (found - expected).total()
    if is_unknowable(path, kind, is_cut_off=is_cut_off, was_clean=was_clean):
        return
    few = FEW if path.endswith(UNCHECKED) else 0
    assert warnings or (missing <= few and added <= few), f"{said}: {missing} missing, {added} added"


@functools.cache
def bodies(was_clean: bool) -> Counter[bytes]:
    return read(disks()[0 if was_clean else 1].after_process_crash())


@pytest.mark.slow
def test_nothing_is_missing_where_nothing_is_damaged(caplog: pytest.LogCaptureFixture) -> None:
    assert [bodies(was_clean).total() for was_clean in (True, False)] == [85, 85]
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.slow
def test_a_damaged_file_of_a_node_is_an_error_or_a_warning_or_costs_nothing(
    caplog: pytest.LogCaptureFixture, tried: Count
) -> None:
    first = new_seed() if EFFORT == "nightly" else 0
    count = times(30, nightly=600)
    for number in range(first, first + count):
        check(number, caplog)
    tried(Tried.DAMAGED_FILES, count)
