"""A directory on another machine, as a tar through a pipe: ``ssh://user@host:port/path`` runs

    ssh -p port -- user@host tar -C /path -cf - .

and nothing else. There is no local shell; the path is quoted for the remote one. ssh asks on the terminal for passwords
and whether a host is known.
"""

from __future__ import annotations

import re
import shlex
import subprocess  # nosec B404 # lists of arguments, no shell
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final
from urllib.parse import unquote, urlsplit

import attrs

from warren.storage.errors import StorageError

SCHEME: Final = "ssh://"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*|[0-9A-Fa-f:]+(?:%[A-Za-z0-9_.-]+)?")
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*")
_KILLED_AFTER_S: Final = 10.0


@attrs.frozen
class RemoteDirectory:
    """A directory on another machine."""

    host: str
    path: str
    user: str | None = None
    port: int | None = None

    @classmethod
    def of(cls, url: str) -> RemoteDirectory:
        """Raises :class:`StorageError` for any other URL."""
        usage = "wants ssh://user@host:port/absolute/path"
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            raise StorageError(f"{url}: {usage}") from None
        if parts.password is not None:
            raise StorageError(f"{SCHEME}…: a password has no place in a URL; ssh asks for it")
        user, path = None if parts.username is None else unquote(parts.username), unquote(parts.path)
        good = _NAME.fullmatch(host) and (user is None or _USER.fullmatch(user)) and not parts.query + parts.fragment
        if not good or path in ("", "/") or "\0" in path:
            raise StorageError(f"{url}: {usage}")
        return cls(host, path, user, port)

    def command(self) -> list[str]:
        """The command that writes it to stdout."""
        port = [] if self.port is None else ["-p", str(self.port)]
        destination = self.host if self.user is None else f"{self.user}@{self.host}"
        return ["ssh", *port, "--", destination, f"tar -C {shlex.quote(self.path)} -cf - ."]


@contextmanager
def streamed(url: str) -> Iterator[IO[bytes]]:
    """The tar of a directory, for as long as it is read. Raises :class:`StorageError` if ssh or tar fails."""
    command = RemoteDirectory.of(url).command()
    with tempfile.TemporaryFile() as stderr:
        try:
            process = subprocess.Popen(  # nosec B603 # names are checked, and no option: see command()
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
            )
        except OSError as error:
            raise StorageError(f"{url}: ssh cannot be run: {error.strerror or error}") from error
        stream = process.stdout
        if stream is None:
            raise RuntimeError("a process without the pipe that it was given")
        try:
            yield stream
            code = process.wait()
        except BaseException as error:
            code = _ended(process)
            if isinstance(error, Exception) and code:  # then that is the cause
                raise _failed(url, code, stderr) from error
            raise
        finally:
            _ended(process)
        if code:
            raise _failed(url, code, stderr)


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Close the pipe and return the exit status; kill a process that does not end."""
    if process.stdout is not None:
        process.stdout.close()
    try:
        return process.wait(_KILLED_AFTER_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _failed(url: str, code: int, stderr: IO[bytes]) -> StorageError:
    stderr.seek(0)
    lines = stderr.read(1 << 16).decode("utf-8", "replace").split("\n")
    reason = next((line.strip() for line in lines if line.strip()), f"ssh ended with {code}")
    return StorageError(f"{url}: {reason}")
