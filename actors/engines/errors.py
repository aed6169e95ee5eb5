"""The errors with which a node refuses a request, named as in AMQP 0-9-1.

All are :class:`WarrenError`. A refused request changes no queue, exchange or binding. Each class has its AMQP number,
for code that talks to a broker's clients.
"""

from __future__ import annotations

from typing import ClassVar

from warren.storage.errors import InvalidValueError, WarrenError


class RefusedError(WarrenError):
    """Base class: the request was refused; both the node and the caller can continue."""

    reply_code: ClassVar[int]
    """The AMQP reply code."""


class NotFoundError(RefusedError):
    """No vhost, queue or exchange of that name."""

    reply_code = 404


class AccessRefusedError(RefusedError):
    """A reserved name, an object of the node itself, or a second consumer beside an exclusive one."""

    reply_code = 403


class ResourceLockedError(RefusedError):
    """An exclusive queue that is another owner's."""

    reply_code = 405


class PreconditionFailedError(RefusedError):
    """The existing object is not as the caller expects: other properties, or it is not empty or not unused."""

    reply_code = 406


class ArgumentsError(PreconditionFailedError, InvalidValueError):
    """An argument of a queue, an exchange or a binding with a wrong type or range, or an unsupported meaning."""


class UnknownTagError(PreconditionFailedError):
    """A delivery tag that the channel never got, or that is settled already."""
