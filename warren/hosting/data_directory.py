"""Whether a path may be opened as a node's data directory: what kind of path it is, and whether a RabbitMQ, which does
not use warren's lock, runs on it. Nothing is changed.

Signs of a broker:

* The process id that it writes into a file beside its data directory, named like it with ``.pid`` appended. The file
  may outlive the broker, and the id be another process's by then; so the process must be a virtual machine of Erlang's
  too, if the system says what it is. The file may also lie elsewhere (``RABBITMQ_PID_FILE``), or name a process of
  another container.
* What an Erlang virtual machine of this system has open (``/proc/…/fd``): files below the directory, by whatever name
  and from whatever container; a broker always has ``LATEST.LOG`` open. The superuser sees this of every process,
  others of their own.
* The open files of another user's virtual machine cannot be seen. If the directory belongs to that user, the machine is
  taken for its broker.

Not detected: a broker of another machine, one in a container whose processes are invisible here, one that starts a
moment later; and, without ``/proc``, one without its pid file.
"""

from __future__ import annotations

import enum
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from warren.actors.node.node_errors import ForeignDirectoryError
from warren.actors.node.node_registry import VHOSTS_DIRECTORY
from warren.queue_index.index.directory import JOURNAL_NAME, QUEUE_NAME_FILE, VHOST_NAME_FILE
from warren.storage.data_version import refuse_newer
from warren.storage.errors import DirectoryLockedError, StorageError
from warren.storage.filesystem import RealFileSystem
from warren.storage.lock_file import identity_of
from warren.storage.own_files import DEFINITIONS_FILE

_PARTS: Final = ("vhosts", "queues", VHOST_NAME_FILE, QUEUE_NAME_FILE, JOURNAL_NAME)
"""Names that are found in a ``msg_stores`` folder, a vhost's folder, or a queue's."""
_PARTS_BELOW: Final = (VHOST_NAME_FILE, QUEUE_NAME_FILE, JOURNAL_NAME)
"""Names that are found one level below a folder of vhosts or of queues."""
_STORE: Final = ("commitlog", "consumequeue")
"""Both are found in the folder of a topic store."""
FILES_OF_A_BROKER: Final = ("schema.DAT", "LATEST.LOG", "rabbit_serial", "cluster_nodes.config")
"""Each shows that a broker has run on the directory."""
_OPEN_FILES: Final = ("LATEST.LOG", "DECISION_TAB.LOG")
_PROCESSES: Final = Path("/proc")


class Kind(enum.Enum):
    """Kinds of paths."""

    MISSING = enum.auto()
    FILE = enum.auto()
    EMPTY = enum.auto()
    NODES = enum.auto()
    """A node's data directory."""
    BROKERS = enum.auto()
    """The data directory of a RabbitMQ that no node has taken over."""
    PART = enum.auto()
    """A folder from such a directory, or a topic store's."""
    OTHER = enum.auto()


def kind_of(path: str) -> Kind:
    """Return the kind of a path. Raises :class:`StorageError` if the directory cannot be read."""
    try:
        mode = os.stat(path).st_mode  # one look: meanwhile another process may make the directory
    except OSError:
        return Kind.FILE if os.path.islink(path) else Kind.MISSING
    if not stat.S_ISDIR(mode):
        return Kind.FILE
    try:
        names = os.listdir(path)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error
    if DEFINITIONS_FILE in names:
        return Kind.NODES
    if os.path.isdir(os.path.join(path, VHOSTS_DIRECTORY)):
        return Kind.BROKERS
    if any(name in names for name in _PARTS) or all(name in names for name in _STORE):
        return Kind.PART
    if any(os.path.exists(os.path.join(path, name, part)) for name in names for part in _PARTS_BELOW):
        return Kind.PART
    return Kind.OTHER if names else Kind.EMPTY


def refuse_part(path: str) -> Kind:
    """Return the kind of ``path``, before something is written there.

    Raises :class:`ForeignDirectoryError` for a part, in which nothing may be created,
    :class:`~warren.storage.errors.StorageError` for a file, and
    :class:`~warren.storage.data_version.VersionError` for a directory that only a newer warren may write to.
    """
    refuse_newer(RealFileSystem(), path)
    kind = kind_of(path)
    if kind is Kind.FILE:
        raise StorageError(f"{path}: is a file, not a directory")
    if kind is Kind.PART:
        raise ForeignDirectoryError(
            f"{path}: a part of a node's data directory or of a broker's; a node wants the whole of it (the directory "
            f"that holds {VHOSTS_DIRECTORY}), and inspect and export read it as it is"
        )
    return kind


# ── a broker that runs ─────────────────────────────────────────────────────────────────────────────────────────────


class BrokerRunningError(DirectoryLockedError):
    """A RabbitMQ runs on the data directory: it would ignore, or destroy, anything written there."""


def is_a_brokers(directory: str) -> bool:
    """Whether a broker has ever run on the data directory."""
    return any(os.path.exists(os.path.join(directory, name)) for name in FILES_OF_A_BROKER)


def refuse_running_broker(directory: str) -> None:
    """Raise :class:`BrokerRunningError` if a broker is found running on the data directory."""
    place = os.path.realpath(directory)
    for beside in {directory.rstrip("/"), place}:
        if (process := _named_by(pid_file := Path(f"{beside}.pid"))) is not None:
            raise _error(directory, f"process {process}, says {pid_file}")
    if is_a_brokers(place):
        for machine in _virtual_machines():
            if (why := _has_open(machine, place)) is not None:
                raise _error(directory, f"process {machine.name}{why}")


def _error(directory: str, which: str) -> BrokerRunningError:
    return BrokerRunningError(f"{directory}: a broker runs on it ({which}); stop it first")


def _named_by(pid_file: Path) -> int | None:
    """Return the process that the file names, if it is alive and may be a broker."""
    try:
        process = int(pid_file.read_text())
    except (OSError, ValueError):
        return None
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass  # it is alive, and another user's
    return process if _is_erlangs(_PROCESSES / str(process), unknown=True) else None


def _is_erlangs(process: Path, *, unknown: bool) -> bool:
    try:
        return (process / "comm").read_text().startswith(("beam", "erl"))
    except OSError:
        return unknown  # nothing rules it out


def _virtual_machines() -> Iterator[Path]:
    try:
        processes = [entry for entry in _PROCESSES.iterdir() if entry.name.isdecimal()]
    except OSError:
        return
    yield from (entry for entry in processes if _is_erlangs(entry, unknown=False))


def _has_open(machine: Path, place: str) -> str | None:
    """Return the evidence that the virtual machine runs on ``place``; ``None``: none found."""
    identities = {identity for name in _OPEN_FILES if (identity := identity_of(f"{place}/{name}")) is not None}
    try:
        descriptors = list((machine / "fd").iterdir())
    except PermissionError:
        return _may_be_its_users(machine, place)
    except OSError:  # it is gone
        return None
    for descriptor in descriptors:
        try:
            path = os.readlink(descriptor)
        except OSError:
            continue
        if path.startswith(place + "/") or (path.startswith("/") and identity_of(str(descriptor)) in identities):
            return f", which has {path} open"
    return None


def _may_be_its_users(machine: Path, place: str) -> str | None:
    try:
        user = os.stat(machine).st_uid
        return f", perhaps: it is of user {user}, as the directory is" if user == os.stat(place).st_uid else None
    except OSError:
        return None
