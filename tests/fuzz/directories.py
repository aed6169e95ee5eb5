"""One file of a broker's directory is the input; the directory is exported, inspected and verified."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from tests.fuzz import seeds
from tests.fuzz.target import Target
from tests.support.hostile import read_all

_FILES: Final = {
    "v1": (seeds.V1, "vhosts", (".queue_name", ".config", "0.idx", "journal.jif", "0.rdq", "recovery.dets")),
    "v2": (seeds.V2, "vhosts", (".queue_name", "1.qi", "1.qs", "0.rdq", "recovery.dets")),
    "quorum": (seeds.QUORUM, "node", ("config", "00000001.segment", "00000002.wal", "meta.dets", "names.dets")),
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
