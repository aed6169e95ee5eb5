"""Opening a data directory with the real files, clock and randomness."""

from __future__ import annotations

import os
import time
import weakref
from pathlib import Path

from warren.actors.vhost import Vhost
from warren.hosting.data_directory import refuse_part, refuse_running_broker
from warren.queue_index.index.directory import vhost_directory_name
from warren.storage.call_arguments import checked
from warren.storage.filesystem import RealFileSystem, make_data_directory
from warren.storage.settings import Settings


def vhost_path(directory: str | os.PathLike[str], vhost: str) -> Path:
    """Where a vhost lies in a node's data directory."""
    return Path(directory) / "msg_stores" / "vhosts" / vhost_directory_name(vhost.encode())


@checked
def open_vhost(
    directory: str | os.PathLike[str],
    vhost: str = "/",
    *,
    settings: Settings | None = None,
    sync: bool = True,
) -> Vhost:
    """Open a vhost of the data directory ``directory``, created if missing; a context manager that closes it.

    ``sync``: what is called safe survives a power loss; without it, the end of the process. The directory may be that
    of a stopped RabbitMQ node. Raises :class:`~warren.storage.errors.DirectoryLockedError` if another process has it,
    :class:`~warren.hosting.data_directory.BrokerRunningError` if that is a RabbitMQ, and
    :class:`~warren.storage.errors.DataError` if files are damaged in a way that no crash explains.
    """
    refuse_part(os.fspath(directory))
    refuse_running_broker(os.fspath(directory))
    make_data_directory(os.path.abspath(directory))
    opened = Vhost.open(
        RealFileSystem(),
        str(vhost_path(directory, vhost)),
        vhost.encode(),
        settings=Settings() if settings is None else settings,
        clock=time.monotonic_ns,
        random=os.urandom,
        sync=sync,
        owner=f"process {os.getpid()}",
    )
    _OPEN[id(opened)] = opened
    return opened


_OPEN: weakref.WeakValueDictionary[int, Vhost] = weakref.WeakValueDictionary()


def _forget_all() -> None:
    for vhost in list(_OPEN.values()):
        vhost.forget()


os.register_at_fork(after_in_child=_forget_all)
