"""Methods of our own, for what AMQP lacks: a client asks a node's host to call one of its verbs.

They are used between processes of one machine, over the socket in a shared directory, and nowhere else: a connection
that does not enable them treats them as unknown methods. Arguments and results are field tables, so that bytes
stay bytes. Answers come in the order of a channel's calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from pamqp.base import Frame as Method

_CLASS: Final = 0x7761


class Call(Method):
    """Client → server: call a verb."""

    __slots__: ClassVar[list[str]] = ["arguments", "verb"]
    frame_id: ClassVar[int] = 10
    index: ClassVar[int] = _CLASS << 16 | 10
    name: ClassVar[str] = "Warren.Call"
    _verb = "shortstr"
    _arguments = "table"

    def __init__(self, verb: str = "", arguments: Mapping[str, Any] | None = None) -> None:
        self.verb = verb
        self.arguments = arguments or {}


class CallOk(Method):
    """Server → client: what it returned, under ``result``."""

    __slots__: ClassVar[list[str]] = ["result"]
    frame_id: ClassVar[int] = 11
    index: ClassVar[int] = _CLASS << 16 | 11
    name: ClassVar[str] = "Warren.CallOk"
    _result = "table"

    def __init__(self, result: Mapping[str, Any] | None = None) -> None:
        self.result = result or {}


class CallError(Method):
    """Server → client: the call raised an error. ``details``: its arguments, if there are more than a text."""

    __slots__: ClassVar[list[str]] = ["details", "text", "type"]
    frame_id: ClassVar[int] = 12
    index: ClassVar[int] = _CLASS << 16 | 12
    name: ClassVar[str] = "Warren.CallError"
    _type = "shortstr"
    _text = "longstr"
    _details = "table"

    def __init__(self, type: str = "", text: str = "", details: Mapping[str, Any] | None = None) -> None:
        self.type = type
        self.text = text
        self.details = details or {}


class Refused(CallError):
    """Server → client: the error of the ``basic.nack`` or ``channel.close`` that follows on the channel.

    These have no field for its class.
    """

    frame_id: ClassVar[int] = 16
    index: ClassVar[int] = _CLASS << 16 | 16
    name: ClassVar[str] = "Warren.Refused"


class Arrived(Method):
    """Server → client: there may be messages now for a reader that got none the last time."""

    __slots__: ClassVar[list[str]] = []
    frame_id: ClassVar[int] = 13
    index: ClassVar[int] = _CLASS << 16 | 13
    name: ClassVar[str] = "Warren.Arrived"


class Credit(Method):
    """Client → server: a consumer may be sent ``size`` more bytes. A message takes its body and :data:`MESSAGE_BYTES`.

    The initial credit is the argument :data:`CREDIT` of its ``basic.consume``; without it there is no limit.
    """

    __slots__: ClassVar[list[str]] = ["consumer_tag", "size"]
    frame_id: ClassVar[int] = 14
    index: ClassVar[int] = _CLASS << 16 | 14
    name: ClassVar[str] = "Warren.Credit"
    _consumer_tag = "shortstr"
    _size = "longlong"

    def __init__(self, consumer_tag: str = "", size: int = 0) -> None:
        self.consumer_tag = consumer_tag
        self.size = size


class Settle(Method):
    """Client → server: settle the deliveries of a channel with the tags ``first … last``.

    ``outcome``: ``"ack"``, ``"requeue"``, ``"failed"``, ``"reject"`` or ``"retry"``.
    """

    __slots__: ClassVar[list[str]] = ["first", "last", "outcome"]
    frame_id: ClassVar[int] = 15
    index: ClassVar[int] = _CLASS << 16 | 15
    name: ClassVar[str] = "Warren.Settle"
    _outcome = "shortstr"
    _first = "longlong"
    _last = "longlong"

    def __init__(self, outcome: str = "ack", first: int = 0, last: int = 0) -> None:
        self.outcome = outcome
        self.first = first
        self.last = last


DUE: Final = "x-warren-due"
"""The header of a delayed message: its due time, in milliseconds since 1970. It is removed from the message."""
CREDIT: Final = "x-warren-credit"
MESSAGE_BYTES: Final = 128
"""The approximate size of a message without its body, in bytes."""

PROTOCOL: Final = 4
"""The protocol version of processes that share a directory: these methods, and the meaning of them and AMQP's. Raised
when a host or guest without the change would misbehave; then both must be of one version."""
PROTOCOL_PROPERTY: Final = "warren_protocol"
"""The host sends it in ``connection.start``, with the number; other servers do not."""
VERSION_PROPERTY: Final = "warren_version"
COMMANDS_PROPERTY: Final = "warren_commands"
"""True among the properties of a guest that only asks about the node: a command, whose connection is not listed."""

HANDING_OVER: Final = "the host of the node hands over"
"""As the reason of a ``connection.blocked``: send nothing more, end your half of the socket, and read its other half to
its end. Everything that was sent is done and answered."""

DISK_FULL: Final = "low on disk, which is full"
"""As the reason of a ``connection.blocked``: publishes that may fail for lack of space do not have to wait."""

MAX_BODY_BYTES: Final = 1 << 40
"""The limit for a message between processes of one directory, which only memory bounds."""

OWN_METHODS: Final[dict[int, type[Method]]] = {
    method.index: method for method in (Call, CallOk, CallError, Refused, Arrived, Credit, Settle)
}
"""By class id and method id, 16 bits each."""

# ── AMQP 0-9's class access ───────────────────────────────────────────────────────────────────────────────────────────

_ACCESS: Final = 30


class Request(Method):
    """Client → server: ask for a ticket. The arguments are ignored."""

    __slots__: ClassVar[list[str]] = ["realm", "rights"]
    frame_id: ClassVar[int] = 10
    index: ClassVar[int] = _ACCESS << 16 | 10
    name: ClassVar[str] = "Access.Request"
    _realm = "shortstr"
    _rights = "octet"

    def __init__(self, realm: str = "/data", rights: int = 0) -> None:
        self.realm = realm
        self.rights = rights


class RequestOk(Method):
    """Server → client: the ticket, which has no meaning."""

    __slots__: ClassVar[list[str]] = ["ticket"]
    frame_id: ClassVar[int] = 11
    index: ClassVar[int] = _ACCESS << 16 | 11
    name: ClassVar[str] = "Access.RequestOk"
    _ticket = "short"

    def __init__(self, ticket: int = 1) -> None:
        self.ticket = ticket


ACCESS_METHODS: Final[dict[int, type[Method]]] = {method.index: method for method in (Request, RequestOk)}
"""Dropped in 0-9-1, and missing in pamqp: old clients ask for a ticket, and every server gives them one."""
