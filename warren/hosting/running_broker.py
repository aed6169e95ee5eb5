"""Detects a RabbitMQ that runs on a directory to be opened for writing: it does not use warren's lock.

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

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from warren.storage.errors import DirectoryLockedError

FILES_OF_A_BROKER: Final = ("schema.DAT", "LATEST.LOG", "rabbit_serial", "cluster_nodes.config")
"""Each shows that a broker has run on the directory."""
_OPEN_FILES: Final = ("LATEST.LOG", "DECISION_TAB.LOG")
_PROCESSES: Final = Path("/proc")


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
    identities = {identity for name in _OPEN_FILES if (identity := _identity(f"{place}/{name}")) is not None}
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
        if path.startswith(place + "/") or (path.startswith("/") and _identity(str(descriptor)) in identities):
            return f", which has {path} open"
    return None


def _may_be_its_users(machine: Path, place: str) -> str | None:
    try:
        user = os.stat(machine).st_uid
        return f", perhaps: it is of user {user}, as the directory is" if user == os.stat(place).st_uid else None
    except OSError:
        return None


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
