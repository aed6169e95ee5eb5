"""Copies of golden nodes with damage in them: what a dead disk, a crash or a careless hand leaves."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.support.pipeline_tools import rabbitmq_node
from warren.msg_store.rdq.rdq_format import HEADER, Record, scan
from warren.queue_index.index.directory import queue_name_file
from warren.storage.filesystem import RealFileSystem

Spoil = Callable[[Path], object]


def damaged(scenario: str, target: Path, spoil: Spoil) -> str:
    """A copy at ``target`` with that damage."""
    shutil.copytree(rabbitmq_node(scenario), target)
    spoil(target)
    return str(target)


def fuzzed(scenario: str, target: Path, seed: int) -> str:
    """A copy with some bytes changed anywhere, and perhaps a file cut or gone."""
    chance = random.Random(seed)

    def spoil(node: Path) -> None:
        files = sorted(path for path in node.rglob("*") if path.is_file() and path.stat().st_size)
        wanted = [path for path in files if path.suffix in (".rdq", ".idx", ".jif")] or files
        for path in chance.choices(wanted, k=3):
            data = bytearray(path.read_bytes())
            for _ in range(chance.randrange(1, 6)):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            path.write_bytes(data)
        path = chance.choice(wanted)
        if chance.random() < 0.5:
            path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])
        elif chance.random() < 0.5:
            path.unlink()

    return damaged(scenario, target, spoil)


def largest(node: Path, suffix: str) -> Path:
    """The longest file of a kind."""
    return max(node.rglob(f"*{suffix}"), key=lambda path: (path.stat().st_size, str(path)))


def records(path: Path) -> list[Record]:
    handle = RealFileSystem().open_read(str(path))
    try:
        return list(scan(handle, str(path)))
    finally:
        handle.close()


def change(path: Path, offset: int, data: bytes) -> None:
    before = path.read_bytes()
    path.write_bytes(before[:offset] + data + before[offset + len(data) :])


def _torn_store(node: Path) -> None:
    path = largest(node, ".rdq")
    path.write_bytes(path.read_bytes()[:-7])


def _flipped_index(node: Path) -> None:
    path = largest(node, ".idx")
    change(path, path.stat().st_size // 2, b"\x55\xaa\x55\xaa")


def _bad_markers(node: Path) -> None:
    path = largest(node, ".rdq")
    for record in records(path)[1:4]:
        change(path, record.offset + record.size - 1, b"\0")


def _copied_records(node: Path) -> None:
    """The same messages once more in a younger file, one of them not whole in the older."""
    path = largest(node, ".rdq")
    data, some = path.read_bytes(), records(path)[:5]
    copies = b"".join(data[record.offset : record.offset + record.size] for record in some)
    (path.parent / "900.rdq").write_bytes(copies)
    change(path, some[0].offset + some[0].size - 1, b"\0")


def _compaction_file(node: Path) -> None:
    path = largest(node, ".rdq")
    leftover = path.with_suffix(".rdt")
    shutil.copyfile(path, leftover)
    some = records(leftover)
    change(leftover, some[0].offset + some[0].size - 1, b"\0")
    leftover.write_bytes(leftover.read_bytes() + b"\0\0\0\0\0\0\1\0torn")


def _other_messages(node: Path) -> None:
    """Two messages change places; one becomes no message at all."""
    path = largest(node, ".rdq")
    data = path.read_bytes()
    first, second, third = records(path)[:3]
    ids = [data[record.offset + 8 : record.offset + 24] for record in (first, second)]
    change(path, first.offset + 8, ids[1])
    change(path, second.offset + 8, ids[0])
    change(path, third.offset + 24, b"\x84")


def _zeros_behind(node: Path) -> None:
    path = largest(node, ".rdq")
    path.write_bytes(path.read_bytes() + bytes(100))
    first = path.parent.parent / "msg_store_transient" / "0.rdq"
    first.parent.mkdir(exist_ok=True)
    stray = path.read_bytes()[: records(path)[0].size]
    first.write_bytes(stray + bytes(50) + b"more")


def _garbage_between(node: Path) -> None:
    """As a broker from 3.13 on leaves a file that it compacted: garbage in the chain, and a bad record that hides
    others."""
    path = largest(node, ".rdq")
    data, some = path.read_bytes(), records(path)
    first, second, third = (record.offset for record in some[:3])
    middle = some[len(some) // 2].offset
    hiding = HEADER.pack(16 + third - second, b"d" * 16) + data[second:third] + b"!"
    path.write_bytes(
        data[:second] + hiding + data[third:middle] + b"a dead body\xff" + data[middle:] + data[first:third]
    )


def _garbage_in_every_file(node: Path) -> None:
    for path in sorted(node.rglob("*.rdq")):
        if some := records(path):
            middle, data = some[len(some) // 2].offset, path.read_bytes()
            path.write_bytes(data[:middle] + bytes(77) + data[middle:])


def _garbage_and_a_loss(node: Path) -> None:
    _garbage_between(node)
    path = largest(node, ".rdq")
    data = path.read_bytes()
    end = data.index(b"a dead body\xff") + 12
    path.write_bytes(data[:end] + data[end + 30 :])


def _unreadable_queue(node: Path) -> None:
    queues = next(path for path in sorted(node.rglob("queues")) if path.is_dir())
    strange = queues / "5EHXJTBCQ8N1WRJ9XB37ZL0OT"
    strange.mkdir()
    (strange / ".queue_name").write_bytes(queue_name_file(b"/", b"new"))
    (strange / "0.qi").write_bytes(b"not read")


def _lost_terms(node: Path) -> None:
    for path in node.rglob("recovery.dets"):
        change(path, 0, b"nonsense" * 4)


DAMAGE: dict[str, tuple[str, Spoil]] = {
    "torn store file": ("03-clean-fanout-refcount", _torn_store),
    "missing store file": ("08-clean-rdq-rollover", lambda node: largest(node, ".rdq").unlink()),
    "only the newest store file": (
        "08-clean-rdq-rollover",
        lambda node: [path.unlink() for path in sorted(node.rglob("0.rdq"))],
    ),
    "flipped bytes in a segment": ("06-crash-segments-16384", _flipped_index),
    "missing segment": ("05-clean-segments-2048", lambda node: largest(node, ".idx").unlink()),
    "missing journal": ("02-crash-small-mixed", lambda node: largest(node, ".jif").unlink()),
    "records that were not written whole": ("04-crash-fanout-refcount", _bad_markers),
    "records twice": ("04-crash-fanout-refcount", _copied_records),
    "a compaction's file": ("08-clean-rdq-rollover", _compaction_file),
    "messages under other ids": ("04-crash-fanout-refcount", _other_messages),
    "zeros behind the records": ("03-clean-fanout-refcount", _zeros_behind),
    "garbage between records": ("03-clean-fanout-refcount", _garbage_between),
    "garbage in every file": ("08-clean-rdq-rollover", _garbage_in_every_file),
    "garbage between records, and one is lost": ("03-clean-fanout-refcount", _garbage_and_a_loss),
    "a queue that cannot be read": ("04-crash-fanout-refcount", _unreadable_queue),
    "damaged recovery terms": ("03-clean-fanout-refcount", _lost_terms),
    "nothing needs the store": (
        "04-crash-fanout-refcount",
        lambda node: [shutil.rmtree(path) for path in sorted(node.rglob("queues"))],
    ),
}
"""What was done to which golden node."""
