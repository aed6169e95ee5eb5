"""The errors that warren raises, and what each of them promises.

Two families, never mixed: a *data error* says that bytes on disk (or a message, or a setting) are not what they must
be, and names the file, the offset and the reason; a *bug* in warren is a ``RuntimeError`` or an assertion and is
never caught on the way up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

SHOWN_CHARACTERS: Final = 200
"""The maximum number of characters of a file's contents in an error's text: its reader must not get the file."""


def shortly(value: object, most: int = SHOWN_CHARACTERS) -> str:
    """Format a value from a file for an error message: one line of at most ``most`` characters.

    Unprintable characters of a text are escaped; any other value, an exception too, is shown as by ``repr``. An
    ellipsis marks a cut.
    """
    text = value if isinstance(value, str) else _repr(value)
    line = text[: most + 1]
    if not line.isprintable():
        line = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in line)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return the end of an error message that suggests the candidate most similar to ``word``; empty without one."""
    import difflib

    by_lower = {candidate.lower(): candidate for candidate in candidates}
    near = difflib.get_close_matches(word.lower(), by_lower, 1)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""


def shown(value: object) -> str:
    """How a wrong value stands in an error's text: as ``repr`` has it, :func:`shortly`."""
    return shortly(_repr(value))


def _repr(value: object) -> str:
    try:
        return repr(value)
    except (ValueError, RecursionError):  # a number of more digits than Python writes; nested without end
        return f"a very large {type(value).__name__}"


class WarrenError(Exception):
    """Whatever warren raises on purpose; catch this to catch them all."""


class InvalidValueError(WarrenError, TypeError, ValueError):
    """A value that cannot be what it is given or read as: an argument of a wrong type, out of range or unknown.

    The call that raises it has done nothing.
    """


class DataError(WarrenError):
    """Bytes that cannot be read as what they should be.

    Arguments: the file's path, the offset of the record in it (bytes; ``None`` for the whole file) and the reason.
    """

    def __init__(self, path: str, offset: int | None, reason: str) -> None:
        super().__init__(path, offset, reason)
        self.path = path
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        place = self.path if self.offset is None else f"{self.path}, offset {self.offset}"
        return f"{place}: {self.reason}"


class TermError(WarrenError):
    """Bytes that are not an Erlang term, or one that warren refuses (too deep, too long, compressed too well)."""


class MessageError(InvalidValueError):
    """A term that is not a message of RabbitMQ's, or a message that cannot be written as one."""


class StorageError(WarrenError):
    """The file system refused an operation; ``__cause__`` holds what it said."""


class DiskFullError(StorageError):
    """No room left on the device; nothing was written of what was being written, or a torn record at the end."""


class NoRoomError(DiskFullError):
    """No room left on the device, and nothing of the write is on the disk: it can be retried."""


class DirectoryLockedError(WarrenError):
    """Another process owns the data directory."""


class DirectoryLostError(StorageError):
    """The data directory is not this process's any more: it was removed or replaced, and what was written with it."""


class SettingsError(InvalidValueError):
    """A setting with a value that cannot work, or settings that contradict each other."""


class UnknownMessageError(WarrenError):
    """A body that the store does not have."""
