"""FullDisk: waiting for room on a full disk, from the first write that found none to one that found some."""

from __future__ import annotations

from typing import Final

from warren.actors.engines.back_off import BackOff

FIRST_WAIT_NS: Final = 1_000_000_000
MAX_WAIT_NS: Final = 16_000_000_000


class FullDisk(BackOff):
    """How long to wait between two tries."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(FIRST_WAIT_NS, MAX_WAIT_NS)
