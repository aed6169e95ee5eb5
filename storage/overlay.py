"""A file system over another one that is never changed: writes are kept in memory, page by page.

So an engine can recover a foreign directory, which means cutting, deleting and writing, while the directory remains
unchanged. Only written pages take memory; a page is :data:`PAGE_BYTES`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Final

import attrs

from warren.storage.errors import StorageError
from warren.storage.filesystem import File, FileSystem, Lock

PAGE_BYTES: Final = 4096


@attrs.define(eq=False, repr=False)
class _OverlayFile:
    """One file, and every handle on it: the written pages, over the file below.

    Only the first ``below_size`` bytes of that count; truncation lowers it.
    """

    below: File | None
    below_size: int
    end: int
    """Its size."""
    pages: dict[int, bytearray] = attrs.Factory(dict)
    is_changed: bool = False

    def page(self, number: int) -> bytearray:
        page = self.pages.get(number)
        if page is None:
            page = self.pages[number] = bytearray(self.below_bytes(PAGE_BYTES, number * PAGE_BYTES))
        return page

    def below_bytes(self, size: int, offset: int) -> bytes:
        """Return ``size`` bytes of the file below, with zeros after its end."""
        size_below = max(0, min(size, self.below_size - offset))
        data = self.below.pread(size_below, offset) if size_below and self.below is not None else b""
        return data + bytes(size - len(data))

    def pread(self, size: int, offset: int) -> bytes:
        size = max(0, min(size, self.end - offset))
        if not self.pages:
            return self.below_bytes(size, offset)
        result = bytearray(self.below_bytes(size, offset))
        first, last = offset // PAGE_BYTES, (offset + size - 1) // PAGE_BYTES
        span = range(first, last + 1)
        for number in self.pages if len(self.pages) < len(span) else span:
            page = self.pages.get(number) if number in span else None
            if page is not None:
                start, end = max(number * PAGE_BYTES, offset), min((number + 1) * PAGE_BYTES, offset + size)
                result[start - offset : end - offset] = page[start - number * PAGE_BYTES : end - number * PAGE_BYTES]
        return bytes(result)

    def next_data(self, offset: int) -> int:
        below = self.end if self.below is None or offset >= self.below_size else self.below.next_data(offset)
        page_ends = ((number + 1) * PAGE_BYTES for number in self.pages)
        pages = min((max(end - PAGE_BYTES, offset) for end in page_ends if end > offset), default=self.end)
        return min(below, pages, self.end)

    def append(self, data: bytes | bytearray | memoryview) -> int:
        start = self.end
        self.pwrite(data, start)
        return start

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        remaining = memoryview(data).cast("B")
        if not remaining:
            return
        self.is_changed = True
        while remaining:
            number, inside = divmod(offset, PAGE_BYTES)
            part = remaining[: PAGE_BYTES - inside]
            self.page(number)[inside : inside + len(part)] = part
            offset, remaining = offset + len(part), remaining[len(part) :]
        self.end = max(self.end, offset)

    def appendv(self, pieces: Sequence[bytes | bytearray | memoryview]) -> int:
        return self.append(b"".join(pieces))

    def truncate(self, size: int) -> None:
        self.is_changed = True
        if size < self.end:
            number, inside = divmod(size, PAGE_BYTES)
            if inside:
                self.page(number)[inside:] = bytes(PAGE_BYTES - inside)
                number += 1
            self.pages = {page_number: page for page_number, page in self.pages.items() if page_number < number}
            self.below_size = min(self.below_size, size)
        self.end = size

    def size(self) -> int:
        return self.end

    def sync(self) -> None:
        """Nothing: there is no disk."""

    def close(self) -> None:
        """Nothing: the content stays."""


class _NoLock:
    in_place = True

    def release(self) -> None:
        """Nothing was locked."""

    def remove(self) -> None:
        """Nothing was made."""


@attrs.define(eq=False, repr=False)
class OverlayFileSystem(FileSystem):
    """``below``, as it would be after writes that are kept in memory. ``now_ms``: the time of written files.

    Paths are compared as texts; directories that were only made, and never written into, are there too.
    """

    below: FileSystem
    now_ms: int = 0
    _contents: dict[str, _OverlayFile] = attrs.Factory(dict)
    _deleted: set[str] = attrs.Factory(set)
    _directories: set[str] = attrs.Factory(set)
    _deleted_contents: list[_OverlayFile] = attrs.Factory(list)
    """Contents of files that were deleted; open ones may still be read."""

    @property
    def deleted(self) -> list[str]:
        """Paths of the files that were deleted, sorted."""
        return sorted(path for path in self._deleted if path not in self._contents)

    @property
    def changed(self) -> list[str]:
        """Paths of the files that were written, cut or made, sorted."""
        return sorted(path for path, content in self._contents.items() if content.is_changed)

    def open_append(self, path: str) -> File:
        if not self.exists(path):
            self._contents[path] = _OverlayFile(None, 0, 0, is_changed=True)
        return self._open(path)

    def open_read(self, path: str) -> File:
        return self._open(path)

    def _open(self, path: str) -> File:
        content = self._contents.get(path)
        if content is None:
            self._check(path)
            below = self.below.open_read(path)
            size = below.size()
            content = self._contents.setdefault(path, _OverlayFile(below, size, size))
        return content

    def _check(self, path: str) -> None:
        if path in self._deleted:
            raise StorageError(f"{path}: No such file or directory")

    def read(self, path: str) -> bytes:
        content = self._contents.get(path)
        if content is not None:
            return content.pread(content.end, 0)
        self._check(path)
        return self.below.read(path)

    def rename(self, source: str, target: str) -> None:
        self._open(source)
        if target in self._contents:
            self._deleted_contents.append(self._contents[target])
        self._contents[target] = self._contents.pop(source)
        self._contents[target].is_changed = True
        self._deleted.add(source)

    def delete(self, path: str) -> None:
        if not self.exists(path):
            raise StorageError(f"{path}: No such file or directory")
        content = self._contents.pop(path, None)
        if content is not None:
            self._deleted_contents.append(content)
        self._deleted.add(path)

    def delete_tree(self, path: str) -> None:
        for name in self.list(path):
            inner = posixpath.join(path, name)
            if self.is_directory(inner):
                self.delete_tree(inner)
            else:
                self.delete(inner)
        self._directories = {
            directory for directory in self._directories if not (directory + "/").startswith(path + "/")
        }
        self._deleted.add(path)

    def list(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/" if path else ""
        names = {name for name in self.below.list(path) if prefix + name not in self._deleted}
        for own_path in (*self._contents, *self._directories):
            if own_path.startswith(prefix) and len(own_path) > len(prefix):
                names.add(own_path[len(prefix) :].partition("/")[0])
        return sorted(names)

    def exists(self, path: str) -> bool:
        if path in self._contents or path in self._directories:
            return True
        return path not in self._deleted and self.below.exists(path)

    def is_directory(self, path: str) -> bool:
        if path in self._directories:
            return True
        return path not in self._deleted and path not in self._contents and self.below.is_directory(path)

    def size(self, path: str) -> int:
        content = self._contents.get(path)
        if content is not None:
            return content.end
        self._check(path)
        return self.below.size(path)

    def modified_ms(self, path: str) -> int:
        content = self._contents.get(path)
        if content is not None and content.is_changed:
            return self.now_ms
        self._check(path)
        return self.below.modified_ms(path)

    def make_directories(self, path: str) -> None:
        while path and path != "/" and not self.is_directory(path):
            self._directories.add(path)
            self._deleted.discard(path)
            path = posixpath.dirname(path)

    def sync_directory(self, path: str) -> None:
        """Nothing: there is no disk."""

    def lock(self, path: str, owner: str) -> Lock:
        return _NoLock()

    def close(self) -> None:
        """Close the files below that were opened."""
        for content in (*self._contents.values(), *self._deleted_contents):
            if content.below is not None:
                content.below.close()
                content.below = None
