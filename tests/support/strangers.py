"""A process of another user, which only the superuser can make."""

from __future__ import annotations

import os
import socket
from pathlib import Path

NOBODY = 65534
PATIENCE_S = 30.0


def is_dropped(socket_file: Path, said: bytes) -> bool:
    """Whether a process of another user, which may open the socket, is let go without a word when it says that."""
    for place in socket_file.parents:
        if place.stat().st_uid == os.geteuid() and "pytest" in str(place):
            place.chmod(0o755)
    socket_file.chmod(0o666)
    child = os.fork()
    if not child:
        os.setuid(NOBODY)
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(PATIENCE_S)
            stranger.connect(str(socket_file))
            try:
                stranger.send(said)
                dropped = stranger.recv(100) == b""
            except ConnectionError:
                dropped = True
        os._exit(0 if dropped else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
