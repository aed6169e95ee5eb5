"""How due messages are published: in runs that go to one target together, in order of time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from warren.actors.engines.delays.delay_log import DueMessage
from warren.actors.log_events import log_event, logger
from warren.queue_index.message.message_format import Envelope, given_in, properties_in
from warren.queue_index.properties import decode_properties
from warren.storage.errors import MessageError

_LOG = logger("delays")


@attrs.define(eq=False, repr=False)
class Run:
    """Consecutive messages with the same exchange, routing keys, headers, priority and expiration."""

    envelope: Envelope
    expiration_ms: int | None
    priority: int
    headers: Mapping[str, Any] | None
    """The headers for routing; ``None`` for the default exchange, which needs none."""
    messages: list[DueMessage] = attrs.Factory(list)
    given: list[bytes] = attrs.Factory(list)
    """Their contents or bodies, depending on the envelope."""

    @property
    def size_bytes(self) -> int:
        """The size of the messages' records."""
        return sum(message.entry.size for message in self.messages)

    @property
    def exchange(self) -> str:
        return self.envelope.exchange.decode("utf-8", "surrogateescape")

    @property
    def routing_keys(self) -> tuple[str, ...]:
        return tuple(key.decode("utf-8", "surrogateescape") for key in self.envelope.routing_keys)

    def takes(self, other: Run) -> bool:
        """Whether the messages of another run can be published with these."""
        return (self.envelope, self.expiration_ms, self.priority, self.headers) == (
            other.envelope,
            other.expiration_ms,
            other.priority,
            other.headers,
        )


def runs_of(messages: Iterable[DueMessage], unreadable: list[DueMessage]) -> Iterator[Run]:
    """Yield the runs. ``unreadable`` collects messages that can never be published."""
    last: Run | None = None
    for message in messages:
        try:
            run = _run_of(message)
        except MessageError as error:
            _LOG.error(
                "a delayed message that cannot be read is dropped: %s",
                error,
                extra=log_event("message_unreadable", error),
            )
            unreadable.append(message)
            continue
        if last is not None and last.takes(run):
            last.messages += run.messages
            last.given += run.given
            continue
        if last is not None:
            yield last
        last = run
    if last is not None:
        yield last


def _run_of(message: DueMessage) -> Run:
    envelope, given = given_in(message.term)
    properties = decode_properties(properties_in(given) if envelope.of_contents else envelope.properties)
    expiration = properties.expiration
    is_time = isinstance(expiration, str) and expiration.isascii() and expiration.isdigit()
    expiration_ms = int(expiration) if expiration is not None and is_time else None
    headers = dict(properties.headers or {}) if envelope.exchange else None
    return Run(envelope, expiration_ms, properties.priority or 0, headers, [message], [given])
