"""A node's refusals as the errors that Kombu's users expect: py-amqp's, by AMQP's reply codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from amqp import exceptions as amqp

from warren.actors.engines.errors import RefusedError


@contextmanager
def as_amqp(method: str) -> Iterator[None]:
    """Raise the refusals of the block as channel errors of ``method``; everything else goes through."""
    try:
        yield
    except RefusedError as error:
        kind = amqp.ERROR_MAP.get(error.reply_code, amqp.ChannelError)
        raise kind(str(error), None, method, error.reply_code) from error
