"""Dead letters: the headers of a message that leaves a queue because it expired, was rejected, exceeded a limit, or
came back too often.

Its header ``x-death`` is an array of tables, one for each queue and reason for which it died, the newest event first.
Another death in the same queue for the same reason increments the count in the existing table, which moves to the
front. (Only the front is certain: two or more tables change their order whenever another one is added.) The first event
is repeated in ``x-first-death-reason``, ``-queue`` and ``-exchange``. Headers are sorted by name.

The expiration moves from the properties into ``x-death`` (``original-expiration``). A lazy queue, whose messages come
from the disk, omits it, because RabbitMQ looks for it in decoded messages, and these are not. If the queue has a
dead-letter routing key, the message loses its other keys, and its header CC.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeVar

import attrs

from warren.actors.engines.queue.effects import DeadLetter, DeadLetterBatch
from warren.queue_index.message.amqp_tables import LongInteger, LongString, Timestamp
from warren.queue_index.message.message_format import Envelope, Message
from warren.queue_index.message.msg_ids import MsgIds
from warren.queue_index.properties import Properties, encode_properties, headers_as_written

Reason = Literal["expired", "rejected", "maxlen", "delivery_limit"]
T = TypeVar("T")

DEATHS: Final = "x-death"
FIRST_DEATH: Final = {
    "x-first-death-reason": "reason",
    "x-first-death-queue": "queue",
    "x-first-death-exchange": "exchange",
}
"""The headers that repeat the first event, and the fields of ``x-death`` that they repeat."""

Table = Mapping[str, Any]


@attrs.frozen(eq=False, repr=False)
class DeadLetterBuilder:
    """Builds the dead letters of one batch: the common part of messages that leave a queue at the same time."""

    queue: str
    exchange: str
    """The queue's dead-letter exchange."""
    routing_key: str | None
    """The queue's dead-letter routing key; ``None``: the messages' own."""
    reason: Reason
    time_s: int
    """Since the epoch."""
    tells_expiration: bool = True
    """Whether ``x-death`` has the ``original-expiration``."""
    _letters: dict[Any, DeadLetter] = attrs.field(factory=dict, init=False, eq=False)

    def build(self, messages: Iterable[Message]) -> list[DeadLetter]:
        """Return the messages to publish. Messages that differ only in their bodies share an envelope."""
        return [self._letter(message) for message in messages]

    def _letter(self, message: Message) -> DeadLetter:
        properties = message.properties
        if properties.headers is not None:
            return self._new_letter(message)
        kind = (message.exchange, message.routing_keys, properties, message.persistent)
        like = self._letters.get(kind)
        if like is None:
            like = self._letters[kind] = self._new_letter(message)
        return DeadLetter(like.envelope, like.routing_keys, like.headers, message.body, like.priority)

    def _new_letter(self, message: Message) -> DeadLetter:
        properties = message.properties
        headers = death_headers(
            properties,
            queue=self.queue,
            reason=self.reason,
            time_s=self.time_s,
            exchange=message.exchange,
            routing_key=message.routing_keys[0],
            tells_expiration=self.tells_expiration,
        )
        keys = message.routing_keys
        if self.routing_key is not None:
            keys = (_bytes(self.routing_key),)
            headers.pop("CC", None)
        written = headers | _unchanged(message, headers)
        changed = attrs.evolve(properties, headers=written, expiration=None)
        envelope = Envelope(message.vhost, _bytes(self.exchange), keys, encode_properties(changed), message.persistent)
        return DeadLetter(envelope, tuple(map(_text, keys)), headers, message.body, properties.priority or 0)


def _unchanged(message: Message, headers: Table) -> dict[str, Any]:
    """The headers that a letter has from its message, as encoded there: decoding loses the width of numbers."""
    before, encoded = message.properties.headers, message.encoded_properties
    if not before or encoded is None or all(isinstance(value, str) for value in before.values()):
        return {}
    written = headers_as_written(encoded)
    return {name: written[name] for name in written if name in headers and headers[name] is before[name]}


def death_headers(
    properties: Properties,
    *,
    queue: str,
    reason: Reason,
    time_s: int,
    exchange: bytes,
    routing_key: bytes,
    tells_expiration: bool = True,
) -> dict[str, Any]:
    """The headers of a message after it died in ``queue``. It was published with ``exchange`` and ``routing_key``."""
    headers: dict[str, Any] = dict(properties.headers or {})
    event: dict[str, Any] = {
        "reason": reason,
        "queue": queue,
        "time": Timestamp(time_s),
        "exchange": _long_string(exchange),
        "routing-keys": [_long_string(routing_key), *_copied_to(headers)],
    }
    if properties.expiration is not None and tells_expiration:
        expiration = properties.expiration
        event["original-expiration"] = LongString(expiration) if isinstance(expiration, bytes) else expiration
    if DEATHS not in headers:
        headers |= {name: event[field] for name, field in FIRST_DEATH.items()}
        headers[DEATHS] = [{"count": LongInteger(1), **event}]
    elif isinstance(headers[DEATHS], list):
        headers[DEATHS] = _with_event(headers[DEATHS], event)
    else:  # a client published the message again, with the header as text
        headers[DEATHS] = [{"count": LongInteger(1), **event}]
    return _sorted(headers)


def _with_event(deaths: list[Any], event: Table) -> list[Any]:
    grouped = [_wide(death) for death in _grouped(deaths)]
    matching = [death for death in grouped if _cause(death) == _cause(event)]
    others = [death for death in grouped if _cause(death) != _cause(event)]
    if matching:
        count = matching[0].get("count")
        newest = {**matching[0], "count": LongInteger(count + 1 if isinstance(count, int) else 1)}
    else:
        newest = {"count": LongInteger(1), **event}
    return [_sorted(newest), *others]


def _wide(death: Any) -> Any:
    """Restore the width of the count, which decoding loses."""
    count = death.get("count") if isinstance(death, Mapping) else None
    return {**death, "count": LongInteger(count)} if isinstance(count, int) else death


def _grouped(deaths: list[Any]) -> list[Any]:
    """One table for each cause. Brokers before 3.6 wrote one for each event, without a count."""
    if len(deaths) < 2:
        return deaths
    grouped: list[Any] = []
    seen = set()
    for death in deaths:
        cause = _cause(death)
        if not isinstance(death, Mapping):
            grouped.insert(0, death)
        elif cause not in seen:
            first = next(other for other in deaths if _cause(other) == cause)
            times = sum(_cause(other) == cause for other in deaths)
            grouped.insert(0, first if "count" in first else {"count": LongInteger(times), **first})
            seen.add(cause)
    return grouped


def _cause(death: Any) -> tuple[Any, Any] | None:
    """The queue and the reason of a death; ``None`` if a client put something other than a table there."""
    return (repr(death.get("queue")), repr(death.get("reason"))) if isinstance(death, Mapping) else None


def is_cycle(headers: Table | None, queue: str) -> bool:
    """Whether a dead letter with these headers must not go (again) into ``queue``.

    It was there before and has not been rejected since, so it would circulate forever. A letter that was just rejected
    may go anywhere.
    """
    deaths = (headers or {}).get(DEATHS)
    if not isinstance(deaths, list):
        return False
    for at, death in enumerate(deaths):
        if isinstance(death, Mapping) and death.get("queue") == queue:
            return all(isinstance(other, Mapping) and other.get("reason") != "rejected" for other in deaths[: at + 1])
    return False


def copies(
    batch: DeadLetterBatch, msg_ids: MsgIds, targets: Callable[[DeadLetter], Iterable[tuple[str, T]]]
) -> Iterator[tuple[str, T, DeadLetter, bytes]]:
    """Yield a batch's copies for each queue: its name and value from ``targets``, the letter, and its new id.

    ``targets``: returns the queues to which a letter is routed. Queues that would make it circulate are left out.
    """
    for letter in batch.publications:
        msg_id = msg_ids.one()
        for name, target in targets(letter):
            if not is_cycle(letter.headers, name):
                yield name, target, letter, msg_id


def _copied_to(headers: Table) -> list[str | LongString]:
    """The routing keys in the headers CC and BCC."""
    copies: list[str | LongString] = []
    for name in ("CC", "BCC"):
        keys = headers.get(name)
        if isinstance(keys, list | tuple):
            copies += [key for key in keys if isinstance(key, str | LongString)]
    return copies


def _sorted(table: Table) -> dict[str, Any]:
    return dict(sorted(table.items(), key=lambda item: _bytes(item[0])))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _long_string(data: bytes) -> str | LongString:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return LongString(data)
