"""What a client makes of a server's refusals."""

from __future__ import annotations

import os
from typing import Final

from warren.actors.engines.errors import (
    AccessRefusedError,
    NotFoundError,
    PreconditionFailedError,
    RefusedError,
    ResourceLockedError,
)
from warren.amqp.errors import NAMES
from warren.storage.errors import WarrenError
from warren.storage.lock_file import LOCK_FILE, SHARED, lock_holder

_BY_CODE: Final[dict[int, type[RefusedError]]] = {
    kind.reply_code: kind for kind in (NotFoundError, AccessRefusedError, ResourceLockedError, PreconditionFailedError)
}

CONNECTION_FORCED: Final = 320
"""The server ends, not for anything that its client did."""


class ServerError(WarrenError):
    """The server has closed a connection or a channel for a reason that has no class of its own."""


class HostUnresponsiveError(WarrenError):
    """The process that hosts a shared directory does not answer: it is stopped, or hangs."""


def unresponsive_host(path: str, silent_s: float) -> HostUnresponsiveError:
    """Return the error for a host of the directory ``path`` that has not answered for ``silent_s``."""
    holder = (lock_holder(os.path.join(path, LOCK_FILE)) or "").removesuffix(SHARED) or "an unknown process"
    return HostUnresponsiveError(
        f"{path}: the host of this directory has not answered for {silent_s:.1f} s ({holder}); resume it if it is "
        "stopped, or end it: then another process takes over"
    )


class LinkLostError(WarrenError):
    """The socket was lost before there was an answer. The same can be asked over the next one."""


def refusal(reply_code: int | None, reply_text: str | None) -> WarrenError:
    """What ``channel.close`` or ``connection.close`` says, as the node itself would have raised it."""
    code, full_text = reply_code or 0, reply_text or ""
    text = full_text.removeprefix(NAMES.get(code, "")).removeprefix(" - ")
    kind = _BY_CODE.get(code)
    return ServerError(f"{code} {full_text}") if kind is None else kind(text)
