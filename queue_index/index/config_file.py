"""A small text file that is replaced as a whole and keeps its previous text beside it, as RocketMQ's config files do.

It owns ``<path>``, ``<path>.bak`` (the text before the last replacement) and, for a moment, ``<path>.tmp``.

What a crash leaves: the new text is written and synced under a name of its own, then the old file becomes the ``.bak``,
then the new one takes its place. So at every moment one of the two is there and whole; a file that could not be read is
never made the ``.bak``. Loading takes the first of them that can be read.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import TypeVar

import attrs

from warren.storage.errors import DataError, WarrenError
from warren.storage.filesystem import FileSystem, retryable, write_beside

T = TypeVar("T")


@attrs.define(eq=False, repr=False)
class ConfigFile:
    """The file at ``path``."""

    files: FileSystem
    path: str
    _is_good: bool = False
    """The file was read or written by us, and may become the ``.bak``."""
    fallback: str | None = None
    """Why the last :meth:`load` returned what the ``.bak`` has."""

    def load(self, decode: Callable[[str], T]) -> T | None:
        """Return ``decode``'s result for the file or, if that is missing, empty or unreadable, for its ``.bak``.

        ``None`` if neither exists. Raises :class:`DataError` if one is damaged and the other is of no help;
        ``decode`` says so by a :class:`WarrenError`.
        """
        damage: DataError | None = None
        for path in (self.path, self.path + ".bak"):
            data = self.files.read(path) if self.files.exists(path) else b""
            if not data:
                continue
            try:
                decoded = decode(data.decode("utf-8"))
            except (UnicodeDecodeError, WarrenError) as error:
                damage = damage or DataError(path, None, str(error))
                continue
            self._is_good = path == self.path
            if not self._is_good:
                reason = "missing or empty" if damage is None else damage.reason
                self.fallback = f"{reason}; {posixpath.basename(path)} is read instead"
            return decoded
        if damage is not None:
            raise damage
        return None

    def replace(self, text: str, *, sync: bool) -> None:
        """Replace the file's content by ``text``. ``sync``: it survives a power loss, too.

        Raises :class:`~warren.storage.errors.NoRoomError` if the disk is full; then the file holds the old text or the
        new one, and the call can be repeated.
        """
        with retryable():
            self._replace(text, sync=sync)

    def _replace(self, text: str, *, sync: bool) -> None:
        directory = posixpath.dirname(self.path)
        made_in: list[str] = []
        while not self.files.is_directory(missing := directory if not made_in else made_in[-1]):
            made_in.append(posixpath.dirname(missing))
        if made_in:
            self.files.make_directories(directory)
            for parent in made_in if sync else ():
                self.files.sync_directory(parent)
        scratch = write_beside(self.files, self.path, text.encode("utf-8", "replace"), sync=sync, suffix=".tmp")
        if self._is_good and self.files.exists(self.path):
            self.files.rename(self.path, self.path + ".bak")
        self.files.rename(scratch, self.path)
        if sync:
            self.files.sync_directory(directory)
        self._is_good = True
