"""What goes wrong while shovelling, beyond what files do."""

from __future__ import annotations

from warren.storage.errors import WarrenError


class ShovelError(WarrenError):
    """Something that was asked for cannot be done, or a place that was there is gone. What was safe stays so."""


class RefusedError(ShovelError):
    """The destination did not take a message: it is still at the source."""


class ChannelRefusedError(ShovelError):
    """The broker closed a channel because of what was asked on it. Arguments: the sentence, and AMQP's reply code."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])
