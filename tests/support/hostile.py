"""Reading whole directories that are hostile: by all that reads them, in bounded time and memory."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.rabbitmq_golden import GOLDEN
from warren.commands.inspect import inspect
from warren.commands.verify import verify
from warren.salvage.export import Selection, export_source
from warren.salvage.source import open_source
from warren.storage.errors import WarrenError

KINDS: Final = {
    "v1": GOLDEN / "10-crash-restart-clean.tar.gz",
    "v2": GOLDEN / "rabbitmq-3.10.8-cqv2" / "13-crash-restart-clean.tar.gz",
    "quorum": GOLDEN / "rabbitmq-3.10.8-quorum" / "09-crash-restart-clean.tar.gz",
    "rocketmq": GOLDEN / "rocketmq" / "basic-clean.tar.gz",
}
"""One directory of each kind, a small one."""

ROOTS = {"v1": "vhosts", "v2": "vhosts", "quorum": "node", "rocketmq": "store"}
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
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            name = path.name if path.suffix else path.parent.name + path.name
            found.setdefault("".join("0" if each.isdigit() else each for each in name), path)
    return list(found.values())
