"""Replies: the code and text of a refusal, and whether it closes the channel or the connection."""

from __future__ import annotations

from typing import Final

from warren.actors.engines.errors import RefusedError
from warren.actors.node.node_errors import TopicsDownError, VhostDownError
from warren.actors.queue.intake import QueueGoneError
from warren.actors.runtime.pooled_actor import ActorStoppedError
from warren.amqp.errors import INTERNAL_ERROR, NAMES, ProtocolError, cut_text
from warren.storage.errors import MessageError, WarrenError

CONNECTION_FORCED: Final = 320
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
COMMAND_INVALID: Final = 503
NOT_ALLOWED: Final = 530
NOT_IMPLEMENTED: Final = 540

_SOFT: Final = frozenset((311, 312, 313, 403, 404, 405, 406))
"""These close the channel; the others close the connection."""


class Refusal(WarrenError):
    """A client's request is refused; its channel, or its connection, is closed with this error."""

    def __init__(self, reply_code: int, text: str) -> None:
        super().__init__(text)
        self.reply_code = reply_code


def reply_of(error: Exception) -> tuple[int, str]:
    """Return reply code and text: AMQP's if the node refuses a request, ``INTERNAL_ERROR`` for internal failures."""
    match error:
        case ProtocolError():
            return error.reply_code, error.reply_text
        case RefusedError() | Refusal():
            return error.reply_code, _text(error.reply_code, str(error))
        case MessageError():
            return PRECONDITION_FAILED, _text(PRECONDITION_FAILED, str(error))
        case QueueGoneError():  # between a request's look for the queue and its turn
            return NOT_FOUND, _text(NOT_FOUND, f"no {str(error).removesuffix(' was deleted')}")
        case ActorStoppedError() | VhostDownError() | TopicsDownError():
            return NOT_FOUND, _text(NOT_FOUND, str(error))
        case WarrenError():
            return INTERNAL_ERROR, _text(INTERNAL_ERROR, str(error))
        case _:
            return INTERNAL_ERROR, NAMES[INTERNAL_ERROR]


def closes_channel(reply_code: int) -> bool:
    """Whether a refusal closes the channel only."""
    return reply_code in _SOFT


def _text(reply_code: int, text: str) -> str:
    return cut_text(f"{NAMES[reply_code]} - {text}" if text else NAMES[reply_code])
