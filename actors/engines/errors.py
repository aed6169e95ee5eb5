"""What a node refuses, by the names that AMQP 0-9-1 has for it.

All are :class:`WarrenError`. None of them changes anything: whoever gets one finds every queue, exchange and binding as
it was. The number that AMQP gives a refusal stands at its class, for whoever speaks to a broker's clients.
"""

from __future__ import annotations

from typing import ClassVar

from warren.storage.errors import InvalidValueError, WarrenError


class RefusedError(WarrenError):
    """What was asked for cannot be had; the node goes on, and so may the caller. One of those below."""

    reply_code: ClassVar[int]
    """AMQP's number of it."""


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
