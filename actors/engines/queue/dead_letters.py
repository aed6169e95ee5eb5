"""Dead letters: what a message says when it leaves a queue because it expired, was rejected, was one too many, or came
back once too often.

Its header ``x-death`` is an array of tables, one for each queue and reason for which it died, the newest event first;
a second death in the same queue for the same reason counts on in the table that is there, which goes to the front.
(Only the front is sure: two tables or more change their order whenever another one joins them.) The first event of all
is repeated in ``x-first-death-reason``, ``-queue`` and ``-exchange``. Headers are sorted by name.

The expiration goes into ``x-death`` (``original-expiration``) and out of the properties. A lazy queue, whose messages
come from the disk, does not tell it: RabbitMQ looks for it in what it has decoded, and these it has not. With a routing
key of the queue's own the message forgets its others; its header CC goes too.

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
"""What repeats the first event of all: headers, and fields of ``x-death``."""

Table = Mapping[str, Any]


@attrs.frozen(eq=False, repr=False)
class DeadLetterBuilder:
    """How messages leave one queue at one moment: what a batch of dead letters has in common."""

    queue: str
    exchange: str
    """Where they go: the queue's dead-letter exchange."""
    routing_key: str | None
    """With this key; ``None``: with their own."""
    reason: Reason
    time_s: int
    """Since the epoch."""
    tells_expiration: bool = True
    """Whether ``x-death`` has the ``original-expiration``."""
    _known: dict[Any, DeadLetter] = attrs.field(factory=dict, init=False, eq=False)

    def build(self, messages: Iterable[Message]) -> list[DeadLetter]:
        """The messages as they are to be published. Those alike but for their bodies share an envelope."""
        return [self._letter(message) for message in messages]

    def _letter(self, message: Message) -> DeadLetter:
        properties = message.properties
        if properties.headers is not None:
            return self._new_letter(message)
        kind = (message.exchange, message.routing_keys, properties, message.persistent)
        like = self._known.get(kind)
        if like is None:
            like = self._known[kind] = self._new_letter(message)
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
    """Those of a letter's headers that are the message's, as they stand in it: reading forgets how wide a number is."""
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
    """The headers of a message after it died there; ``exchange`` and ``routing_key`` are what it was published with."""
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
    else:  # somebody published it again and made text of it
        headers[DEATHS] = [{"count": LongInteger(1), **event}]
    return _sorted(headers)


def _with_event(deaths: list[Any], event: Table) -> list[Any]:
    known = [_wide(death) for death in _grouped(deaths)]
    same = [death for death in known if _cause(death) == _cause(event)]
    others = [death for death in known if _cause(death) != _cause(event)]
    if same:
        count = same[0].get("count")
        newest = {**same[0], "count": LongInteger(count + 1 if isinstance(count, int) else 1)}
    else:
        newest = {"count": LongInteger(1), **event}
    return [_sorted(newest), *others]


def _wide(death: Any) -> Any:
    """The count as it was written: reading forgets how wide a number was."""
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
    """For what, and where; ``None`` for what is no table: a client put it there."""
    return (repr(death.get("queue")), repr(death.get("reason"))) if isinstance(death, Mapping) else None


def is_cycle(headers: Table | None, queue: str) -> bool:
    """Whether a dead letter with these headers must not go (again) into ``queue``.

    It was there before and has not been rejected since, so it would go round for ever. A letter that has just been
    rejected goes anywhere.
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
    """Who gets which dead letter of a batch: the queue's name and what ``targets`` says of it, the letter, its new id.

    ``targets``: the queues that a letter is routed to. Those in which it would go round for ever are left out.
    """
    for letter in batch.publications:
        msg_id = msg_ids.one()
        for name, target in targets(letter):
            if not is_cycle(letter.headers, name):
                yield name, target, letter, msg_id


def _copied_to(headers: Table) -> list[str | LongString]:
    """The keys that the headers CC and BCC say."""
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
