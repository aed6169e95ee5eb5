"""What can go wrong between two ends of a connection. Reply codes and texts are RabbitMQ's."""

from __future__ import annotations

from typing import Final

from warren.storage.erlang_text import binary_text
from warren.storage.errors import WarrenError

FRAME_ERROR: Final = 501
COMMAND_INVALID: Final = 503
CHANNEL_ERROR: Final = 504
UNEXPECTED_FRAME: Final = 505
NOT_ALLOWED: Final = 530
INTERNAL_ERROR: Final = 541

NAMES: Final = {
    311: "CONTENT_TOO_LARGE",
    312: "NO_ROUTE",
    313: "NO_CONSUMERS",
    320: "CONNECTION_FORCED",
    402: "INVALID_PATH",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}
"""Reply texts begin with these."""

_MAX_TEXT_BYTES: Final = 255
_SNIPPET_BYTES: Final = 16


class ProtocolError(WarrenError):
    """The peer sent what AMQP 0-9-1 does not allow. The connection is closed with this."""

    def __init__(self, reply_code: int, text: str, method_index: int = 0) -> None:
        super().__init__(reply_code, text, method_index)
        self.reply_code = reply_code
        self.text = text
        self.method_index = method_index
        """Class id and method id of what failed, 16 bits each; 0 where no method did."""

    @property
    def reply_text(self) -> str:
        """As it stands in ``connection.close``: at most 255 bytes."""
        return cut_text(f"{NAMES[self.reply_code]} - {self.text}" if self.text else NAMES[self.reply_code])

    def __str__(self) -> str:
        return f"{self.reply_code} {self.reply_text}"


class LostFramingError(ProtocolError):
    """The frame boundaries are lost: no later bytes of the peer can be parsed."""

    def __init__(self, kind: int, payload: bytes, why: str) -> None:
        super().__init__(FRAME_ERROR, f"{describe_frame(kind, payload)}: {why}")


class UntoldError(ProtocolError):
    """What RabbitMQ closes the socket for without a word, and so do we."""


class UnknownMethodError(UntoldError):
    """A method that AMQP 0-9-1 does not have."""

    def __init__(self, index: int) -> None:
        super().__init__(COMMAND_INVALID, f"no method {index & 0xFFFF} in class {index >> 16}")


class OutOfOrderError(WarrenError):
    """Our own side was to send what AMQP 0-9-1 does not allow at this moment: a mistake in the calling program."""


def cut_text(text: str) -> str:
    """Return a reply text of at most 255 bytes; as in RabbitMQ, a longer one is cut and ends with ``...``."""
    data = text.encode(errors="surrogateescape")
    return text if len(data) <= _MAX_TEXT_BYTES else data[: _MAX_TEXT_BYTES - 3].decode(errors="ignore") + "..."


def describe_frame(kind: int, payload: bytes) -> str:
    """A frame as RabbitMQ names it in a reply text: its first 16 bytes at most."""
    shown = binary_text(payload[:_SNIPPET_BYTES])
    return f"type {kind}, {'all' if len(payload) <= _SNIPPET_BYTES else 'first 16'} octets = {shown}"
