"""Whether a broker runs on a directory that is about to be opened for writing: RabbitMQ does not know warren's lock.

A node writes its process id into a file beside its data directory, named like it with ``.pid`` behind. The file may
outlive the node, and the id be another process's by then; so the process must be a virtual machine of Erlang's too,
where the system says what it is.
"""

from __future__ import annotations

import os
from pathlib import Path

from warren.shovel.errors import ShovelError


def refuse_running_broker(directory: str) -> None:
    """Raise :class:`ShovelError` where a node runs on the data directory ``directory``."""
    pid_file = Path(f"{directory.rstrip('/')}.pid")
    try:
        pid = int(pid_file.read_text())
    except (OSError, ValueError):
        return
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return
    except PermissionError:
        pass  # it lives, and is another user's
    try:
        name = Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        name = "beam"  # nothing says that it is not
    if name.startswith(("beam", "erl")):
        raise ShovelError(f"{directory}: a broker runs on it (process {pid}, says {pid_file}); stop it first")
