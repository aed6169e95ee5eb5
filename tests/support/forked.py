"""What a forked process finds, as itself or as another user, which only the superuser can make."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

NOBODY = 65534
PATIENCE_S = 30.0


def in_child(work: Callable[[], object]) -> str:
    """What ``work`` comes to in a forked child: the error that it raises, or what it returns."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            said = repr(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writes, said.encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as file:
        said = file.read()
    assert os.waitpid(child, 0)[1] == 0
    return said


def is_dropped(socket_file: Path, said: bytes) -> bool:
    """Whether a process of another user, which may open the socket, is let go without a word when it says that."""
    for place in socket_file.parents:
        if place.stat().st_uid == os.geteuid() and "pytest" in str(place):
            place.chmod(0o755)
    socket_file.chmod(0o666)

    def ask() -> bool:
        os.setuid(NOBODY)
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(PATIENCE_S)
            stranger.connect(str(socket_file))
            try:
                stranger.send(said)
                return stranger.recv(100) == b""
            except ConnectionError:
                return True

    return in_child(ask) == "True"
