"""What a command prints: bytes to a file or to stdout, text for people, and on stderr one line for what went wrong.

A damaged file may cost a million messages. So of the findings of one kind in one file, the first :data:`LINES` are
reported at once, and the number of the others at the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from warren.salvage.names import Json, printable, to_json
from warren.storage.errors import StorageError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from warren.salvage.queue_directory import Finding

LINES: Final = 20
_WIDTH_WITHOUT_TERMINAL = 160
_WRITE_BYTES = 1 << 20


def report_error(text: object) -> None:
    """Say on stderr, in one line, what is wrong."""
    print(f"warren: {printable(' '.join(str(text).split()))}", file=sys.stderr)


class FindingReporter:
    """Reports findings on stderr: called with each one; :meth:`rest` comes last."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        """By path and kind."""
        self.has_damage = False

    def __call__(self, finding: Finding) -> None:
        self.has_damage = self.has_damage or finding.severity == "damage"
        key = finding.path, finding.kind
        self._counts[key] += 1
        if self._counts[key] <= LINES:
            report_error(finding)

    def rest(self) -> None:
        """Report how many were not reported."""
        for (path, kind), count in self._counts.items():
            if count > LINES:
                report_error(f"{path}: {kind}: {count - LINES:,} more")


def print_json(report: Json) -> None:
    """One line of JSON on stdout."""
    with opened(None, "") as write:
        write(to_json(report) + b"\n")


def print_text(parts: Iterable[RenderableType]) -> None:
    """Text and tables on stdout; a pipe is wider than a terminal."""
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)
    for part in parts:
        console.print(part, soft_wrap=True)


def plain_table(*words: str, numbers: Iterable[str] = ()) -> Table:
    """A table for people: columns of words, and then columns of numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    for name in words:
        table.add_column(name, style="bold" if name == "node" else None, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", overflow="fold")
    return table


def table_of(rows: Iterable[Iterable[str]], *words: str, numbers: Iterable[str] = (), last: str | None = None) -> Table:
    """A plain table with rows of texts, which are made printable; ``last``: one more column of words."""
    from rich.text import Text

    table = plain_table(*words, numbers=numbers)
    if last is not None:
        table.add_column(last, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


@contextlib.contextmanager
def opened(out: str | None, source: str | None) -> Iterator[Callable[[bytes | bytearray], None]]:
    """Yield a function that writes bytes to the file ``out``, or to stdout (``None``). Raises :class:`StorageError`.

    The file may not lie in ``source`` (``None``: the caller has checked that), which is only read. It gets its name,
    and replaces a file of that name, when it is complete; after an exception nothing of it is left.
    """
    if out is None:
        with _buffered(sys.stdout.buffer.write) as write:
            yield write
        sys.stdout.buffer.flush()
        return
    if source is not None:
        check_outside(out, source)
    with naming_errors(out), _whole(out) as name, open(name, "wb") as file, _buffered(file.write) as write:
        yield write


@contextlib.contextmanager
def naming_errors(path: str) -> Iterator[None]:
    """Turn the system's errors in reading or writing a file into a :class:`StorageError` that names it."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error


def check_outside(out: str, source: str) -> None:
    """Raise :class:`StorageError` if the file ``out`` would lie in the directory ``source``."""
    if os.path.commonpath([os.path.realpath(out), os.path.realpath(source)]) == os.path.realpath(source):
        raise StorageError(f"{out}: lies in {source}, which is not to be changed")


@contextlib.contextmanager
def opened_folder(out: str, source: str) -> Iterator[str]:
    """A folder to write files to, which becomes ``out`` (a new one, or an empty one) when all is there.

    Raises :class:`StorageError`; after an exception nothing of it is left.
    """
    check_outside(out, source)
    target = os.path.realpath(out)
    partial = f"{target}.partial-{uuid.uuid4().hex[:8]}"
    try:
        with naming_errors(out):
            if os.path.lexists(target) and os.listdir(target):
                raise StorageError(f"{out}: there is something in it; bodies go into a new folder, or an empty one")
            os.makedirs(partial)
            yield partial
            os.replace(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _whole(out: str) -> Iterator[str]:
    """Yield the path of a file that becomes ``out`` in the end; a device or a pipe is written to directly."""
    target = os.path.realpath(out)
    if os.path.exists(target) and not os.path.isfile(target):
        yield out
        return
    partial = f"{target}.partial-{uuid.uuid4().hex[:8]}"
    try:
        yield partial
        with contextlib.suppress(FileNotFoundError):
            os.chmod(partial, stat.S_IMODE(os.stat(target).st_mode))
        os.replace(partial, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)


@contextlib.contextmanager
def _buffered(write: Callable[[bytes | bytearray], object]) -> Iterator[Callable[[bytes | bytearray], None]]:
    """Yield a function that collects small pieces before they are written."""
    pending = bytearray()

    def add(data: bytes | bytearray) -> None:
        nonlocal pending
        if len(data) >= _WRITE_BYTES and not pending:
            write(data)
            return
        pending += data
        if len(pending) >= _WRITE_BYTES:
            write(pending)
            pending = bytearray()

    yield add
    write(pending)


def parts_of_definitions(counts: Mapping[str, int]) -> str:
    """How many of each part of the definitions JSON there are, for people."""
    return ", ".join(f"{count:,} {printable(_noun(part, count))}" for part, count in counts.items())


def _noun(part: str, count: int) -> str:
    noun = part.replace("_", " ")
    if count != 1:
        return noun
    return noun.removesuffix("ies") + "y" if noun.endswith("ies") else noun.removesuffix("s")
