"""What belongs to one process: handles on a node, and what they handed out."""

from __future__ import annotations

from typing import NoReturn

from warren.actors.runtime.pooled_actor import WrongProcessError


class ProcessBound:
    """Something that cannot be sent to another process: pickling it is an error."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise WrongProcessError(
            f"a {type(self).__name__} belongs to the process that opened its node: one process has a directory; send "
            "bodies, not handles"
        )
