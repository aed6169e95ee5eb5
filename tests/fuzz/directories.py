"""Whole directories that are hostile, read by everything that reads them, in bounded time and memory.

As a target, one file of a broker's directory is the input; the directory is exported, inspected and verified.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.fuzz import seeds
from tests.fuzz.target import Target
from tests.support.rabbitmq_golden import GOLDEN, STREAMS
from warren.commands.inspect import inspect
from warren.commands.verify import verify
from warren.salvage.export import Selection, export_source
from warren.salvage.source import open_source
from warren.storage.errors import WarrenError

KINDS: Final = {
    "v1": GOLDEN / "10-crash-restart-clean.tar.gz",
    "v2": GOLDEN / "rabbitmq-3.10.8-cqv2" / "13-crash-restart-clean.tar.gz",
    "quorum": GOLDEN / "rabbitmq-3.10.8-quorum" / "09-crash-restart-clean.tar.gz",
    "streams": GOLDEN / STREAMS / "02-crash-small.tar.gz",
    "rocketmq": GOLDEN / "rocketmq" / "basic-clean.tar.gz",
}
"""One directory of each kind, a small one."""

ROOTS = {"v1": "vhosts", "v2": "vhosts", "quorum": "node", "streams": "node", "rocketmq": "store"}
MOST_MEMORY_BYTES: Final = 768 << 20
HANGS_AFTER_S: Final = 120
"""Holes take no time; reading 6 GB of zeros once takes a few seconds, and is no hang."""

EVERYTHING: Final = Selection(include_acked=True, orphans=True)


@contextmanager
def bounded() -> Iterator[None]:
    """Bound memory and time: asking for more memory raises ``MemoryError``; the alarm kills code that hangs."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now_bytes = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now_bytes + MOST_MEMORY_BYTES, hard))
    signal.alarm(HANGS_AFTER_S)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def export(path: str, selection: Selection = EVERYTHING) -> int:
    """How many messages there are."""
    with open_source(path) as source:
        return export_source(source, selection, lambda line: None, lambda finding: None).messages


def read_all(path: Path) -> None:
    """By everything that reads a whole directory; our own errors are an answer."""
    for read in (export, lambda place: inspect(place, start=True), verify):
        try:
            read(str(path))
        except WarrenError:
            pass
        except RuntimeError as error:  # exit codes, as the command line's library has them
            if type(error).__name__ != "Exit":
                raise


def one_of_each(root: Path) -> list[Path]:
    """The files below ``root``; only one of any that differ just in their numbers."""
    found: dict[str, Path] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            name = path.name if path.suffix else path.parent.name + path.name
            found.setdefault("".join("0" if each.isdigit() else each for each in name), path)
    return list(found.values())


_FILES: Final = {
    "v1": (seeds.V1, "vhosts", (".queue_name", ".config", "0.idx", "journal.jif", "0.rdq", "recovery.dets")),
    "v2": (seeds.V2, "vhosts", (".queue_name", "1.qi", "1.qs", "0.rdq", "recovery.dets")),
    "quorum": (seeds.QUORUM, "node", ("config", "00000001.segment", "00000002.wal", "meta.dets", "names.dets")),
    "streams": (seeds.STREAMS, "node", ("stream/*/*.segment", "stream/*/*.index", "LATEST.LOG")),
    "topics": (
        seeds.TOPICS,
        "store",
        ("commitlog/00000000000000131072", "TopicTest/0/00000000000000000000", "index/*", "checkpoint"),
    ),
    "topics-config": (seeds.TOPICS, "store", ("consumerOffset.json", "delayOffset.json")),
}
_MEMORY_BYTES: Final = 96 << 20
"""Of readers that have windows of megabytes for each file, and there are several."""


@functools.cache
def _copy(kind: str) -> Path:
    """A directory of that kind that this process may change: each target of a night runs in a fork of its own."""
    place = Path(_ROOM.name) / str(os.getpid()) / kind
    shutil.copytree(seeds.unpacked(_FILES[kind][0]), place)
    return place / _FILES[kind][1]


_ROOM = tempfile.TemporaryDirectory(prefix="warren-fuzz-", dir=seeds.MEMORY_DIRECTORY)


def _target(kind: str, pattern: str) -> Target:
    archive, root, _ = _FILES[kind]

    def sound() -> Path:
        """The largest such file."""
        found = [path for path in (seeds.unpacked(archive) / root).glob(f"**/{pattern}") if path.is_file()]
        return max(found, key=lambda path: (path.stat().st_size, str(path)))

    @functools.cache
    def place() -> Path:
        return _copy(kind) / sound().relative_to(seeds.unpacked(archive) / root)

    def read(data: bytes) -> None:
        path = place()
        path.write_bytes(data)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                read_all(_copy(kind))
        finally:
            shutil.copyfile(sound(), path)

    name = pattern.replace("/*", "").rpartition("/")[2].lstrip(".") if kind != "topics" else pattern.partition("/")[0]
    return Target(f"{kind}/{name}", read, lambda: [sound().read_bytes()], memory_bytes=_MEMORY_BYTES, is_slow=True)


DIRECTORIES: Final = tuple(_target(kind, pattern) for kind, (_, _, patterns) in _FILES.items() for pattern in patterns)
