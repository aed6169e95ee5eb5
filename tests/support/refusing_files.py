"""A file system that refuses to show one directory."""

from __future__ import annotations

import errno
from typing import Any

from warren.storage.errors import StorageError
from warren.storage.filesystem import RealFileSystem


class RefusingFileSystem(RealFileSystem):
    """Of one directory the system gives nothing away, as it does to a user who may not look into it."""

    refused = ""

    def _is_inside(self, path: str) -> bool:
        return bool(self.refused) and path.startswith(self.refused + "/")

    def exists(self, path: str) -> bool:
        return not self._is_inside(path) and super().exists(path)

    def is_directory(self, path: str) -> bool:
        return not self._is_inside(path) and super().is_directory(path)

    def list(self, path: str) -> list[str]:
        if self.refused and (path == self.refused or self._is_inside(path)):
            raise StorageError(f"{path}: {PermissionError(errno.EACCES, 'Permission denied').strerror}")
        return super().list(path)

    def open_read(self, path: str) -> Any:
        if self._is_inside(path):
            raise StorageError(f"{path}: {PermissionError(errno.EACCES, 'Permission denied').strerror}")
        return super().open_read(path)
