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
    """Names and things that belong to the node itself, and a consumer beside one that wants to be the only one."""

    reply_code = 403


class ResourceLockedError(RefusedError):
    """An exclusive queue that is another owner's."""

    reply_code = 405


class PreconditionFailedError(RefusedError):
    """What is there is not as the caller takes it to be: other properties, messages or users where none should be."""

    reply_code = 406


class ArgumentsError(PreconditionFailedError, InvalidValueError):
    """An argument of a queue, an exchange or a binding that has the wrong type or range, or an unknown meaning."""


class UnknownTagError(PreconditionFailedError):
    """A delivery tag that its channel was not given, or that is settled already."""
