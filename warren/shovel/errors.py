"""The errors of a shovel, besides those of files."""

from __future__ import annotations

from warren.storage.errors import WarrenError


class ShovelError(WarrenError):
    """An order cannot be carried out, or a place was lost. Messages that were safe remain safe."""


class RefusedError(ShovelError):
    """The destination did not take a message: it is still at the source."""


class ChannelRefusedError(ShovelError):
    """The broker closed a channel because of a method. Arguments: the sentence, and AMQP's reply code."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])
