"""``--out`` of the simulation's commands: a folder that gets an answer, all of it or nothing.

The folder is a new one, an empty one, or one that has an earlier answer of the same kind, recognised by one file: the
*mark*. An answer is written beside the folder and moved into it when it is complete. Only the earlier answer's own
files are replaced, or deleted if the new answer has no file of that name; others stay.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

import attrs

from warren.commands.output import naming_errors
from warren.storage.errors import StorageError


@attrs.frozen
class Kind:
    """How to recognise an answer of one kind."""

    mark: str
    """A file of JSON that every answer has."""
    keys: frozenset[str]
    """Keys that the object in that file has, besides others."""
    others: Collection[str] = ()
    """Names of further files."""

    def is_in(self, folder: str) -> bool:
        """Whether a folder has an answer of this kind."""
        try:
            with open(os.path.join(folder, self.mark), encoding="utf-8") as file:
                document = json.load(file)
        except (OSError, ValueError):
            return False
        return isinstance(document, dict) and self.keys <= document.keys()


@contextmanager
def answer_folder(out: str, kind: Kind) -> Iterator[str]:
    """A folder to write to, whose files become those of ``out`` when this ends well.

    Raises :class:`StorageError`, before anything is computed, if ``out`` cannot be such a folder.
    """
    _check(out, kind)
    target = os.path.abspath(out)
    partial = f"{target}.partial-{uuid.uuid4().hex[:8]}"
    new_directories = _missing_above(target)
    try:
        with naming_errors(out):
            os.makedirs(partial)
        yield partial
        with naming_errors(out):
            _move(partial, target, kind)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        for directory in new_directories:
            with suppress(OSError):  # there is something in it
                os.rmdir(directory)


def _missing_above(target: str) -> list[str]:
    """The directories above that are not there, the innermost first."""
    missing = []
    while not os.path.lexists(target := os.path.dirname(target)):
        missing.append(target)
    return missing


def _check(out: str, kind: Kind) -> None:
    if "\0" in out or not out:
        raise StorageError("--out: wants the name of a directory")
    if "://" in out:
        raise StorageError(f"{out}: is no directory of a file system that this machine has")
    if not os.path.lexists(out):
        return
    if not os.path.isdir(out):
        raise StorageError(f"{out}: is there, and is no directory")
    with naming_errors(out):
        is_empty = not os.listdir(out)
    if not is_empty and not kind.is_in(out):
        raise StorageError(
            f"{out}: there is something in it, and no {kind.mark} of an earlier answer; --out wants a new directory, "
            "an empty one, or one with an earlier answer"
        )


def _move(partial: str, target: str, kind: Kind) -> None:
    """The mark comes last: a folder without it has no whole answer."""
    os.makedirs(target, exist_ok=True)
    written = sorted(os.listdir(partial), key=lambda name: (name == kind.mark, name))
    for name in written:
        if os.path.isdir(os.path.join(target, name)):
            raise StorageError(f"{os.path.join(target, name)}: is a directory, and an answer has a file of that name")
    for name in written:
        os.replace(os.path.join(partial, name), os.path.join(target, name))
    for name in kind.others:
        stale = os.path.join(target, name)
        if name not in written and os.path.isfile(stale):
            os.unlink(stale)
