"""A live broker that is filled: publisher confirms, and messages that look as they did in their old queue.

*Into the queue* (the default): every message goes into the queue of its own name and into no other, whatever bindings
the broker has. Routing key, properties, headers and order stay. The exchange stays if possible:

=========================================  =================================================================
it was published to                        it goes through, and so arrives with the exchange
=========================================  =================================================================
the default exchange, for this very queue  the default exchange (a renamed queue's new name is the key)
an exchange that the broker does not have  a *stand-in*: a temporary exchange of that name, bound to this
                                           queue alone and deleted when the queue is done
one that it has; or with a header CC       the shovel's own temporary exchange, ``warren.shovel.<queue>``;
                                           a header says what the exchange was (``x-original-exchange``)
=========================================  =================================================================

Both temporary ones are fanout exchanges, which ignore key and CC: published to the exchange it first went to, a message
would come to every queue that is bound there, and each of them already has a copy. A stand-in differs from a foreign
exchange by its argument ``alternate-exchange``, the one argument that the broker compares: declaring it succeeds if it
is missing or ours (left by a kill; then it is made again), and fails if it is another's.

*As published*: to its first exchange with its first key; the broker's bindings, CC included, decide. What reaches no
queue comes back and counts as refused.

A message is safe when the broker confirms it; a nack (a queue with ``reject-publish`` that is full, say) or a return is
a refusal. A return says which message it is of by its content only; the confirm of a returned message follows it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from itertools import takewhile
from typing import Any, Final, cast

import attrs
from pamqp import commands as c
from pamqp.base import Frame as Method

from warren.amqp.framing import ACK, MethodRun
from warren.amqp.received import Event, Messages
from warren.salvage.names import from_text, printable, to_text
from warren.shovel.connection import WAIT_S, Channel, Connection, text
from warren.shovel.errors import ChannelRefusedError, ShovelError
from warren.shovel.letter import Letter, carbon_copies, with_original_exchange
from warren.shovel.places import Intake, Outcome

STAND_IN_MARK: Final = "warren.shovel"
"""The name of a stand-in's alternate exchange, which need not exist."""

_NOT_FOUND = 404
_TAKEN = frozenset({403, 406})
"""The broker's codes for an exchange that exists with other properties, and for a name that may not be used."""

_MAX_NAME_BYTES = 255
_MULTIPLE: Final = 1
"""The flag of a confirm that covers all messages up to its own."""


@attrs.define
class BrokerDestination:
    """A vhost of a broker."""

    _connection: Connection
    as_published: bool = False
    stand_ins: bool = True

    def intake(self, vhost: bytes, source_name: bytes, name: bytes) -> Intake:
        exchanges = _Exchanges(self._connection, name, stand_ins=self.stand_ins)
        if not self.as_published:
            exchanges.declare_queue()
        return _Intake(self._connection, exchanges, source_name, as_published=self.as_published)


@attrs.define
class _Exchanges:
    """The temporary exchanges that lead to one queue."""

    _connection: Connection
    queue: bytes
    stand_ins: bool
    _targets: dict[bytes, str] = attrs.field(factory=dict)
    """Original exchange → what to publish to."""
    _made: list[str] = attrs.field(factory=list)
    _channel: Channel | None = None

    def declare_queue(self) -> None:
        """Declare the queue, durable, if it is missing; use an existing one as it is."""
        name = text(self.queue)
        try:
            self._call(c.Queue.Declare, queue=name, passive=True)
        except ChannelRefusedError as error:
            if error.code != _NOT_FOUND:
                raise
            self._call(c.Queue.Declare, queue=name, durable=True)

    def through(self, exchange: bytes) -> str:
        """What to publish to so that it comes to the queue alone, at best an exchange of that name."""
        if exchange not in self._targets:
            self._targets[exchange] = self._stand_in(exchange) or self._own()
        return self._targets[exchange]

    def _stand_in(self, exchange: bytes) -> str | None:
        if not exchange or not self.stand_ins:
            return None
        try:
            return self._make(text(exchange), {"alternate-exchange": STAND_IN_MARK})
        except ChannelRefusedError as error:
            if error.code not in _TAKEN:
                raise
            return None

    def _own(self) -> str:
        name = b"warren.shovel." + self.queue
        if len(name) > _MAX_NAME_BYTES:
            name = b"warren.shovel." + hashlib.sha256(self.queue).hexdigest().encode()
        return text(name) if text(name) in self._made else self._make(text(name), {})

    def _make(self, name: str, arguments: dict[str, str]) -> str:
        """Declare it; one that a kill left may still lead elsewhere, so it is made twice."""
        declaration = {"exchange": name, "exchange_type": "fanout", "auto_delete": True, "arguments": arguments}
        self._call(c.Exchange.Declare, **declaration)
        self._call(c.Exchange.Delete, exchange=name)
        self._call(c.Exchange.Declare, **declaration)
        self._made.append(name)
        self._call(c.Queue.Bind, queue=text(self.queue), exchange=name)
        return name

    def _call(self, kind: type[Method], **arguments: Any) -> None:
        """On a channel of its own: the broker closes it for every no."""
        if self._channel is None:
            self._channel = self._connection.channel()
        try:
            self._channel.call(kind, **arguments)
        except ShovelError:
            self._channel = None
            raise

    def close(self) -> None:
        """Delete the temporary exchanges."""
        for name in self._made:
            with suppress(ChannelRefusedError):
                self._call(c.Exchange.Delete, exchange=name)
        self._made, self._targets = [], {}
        if self._channel is not None:
            self._channel.close()


class _Intake:
    """Publishes to one queue, on a channel of its own."""

    def __init__(
        self, connection: Connection, exchanges: _Exchanges, source_name: bytes, *, as_published: bool
    ) -> None:
        self.renamed_exchanges = 0
        self._connection = connection
        self._exchanges = exchanges
        self._source_name = source_name
        self._address: Callable[[Letter], tuple[str, bytes, bytes]] = (
            _as_published if as_published else self._into_queue
        )
        self._numbered = 0
        self._unconfirmed: dict[int, tuple[str, bytes, bytes, bytes]] = {}
        """Exchange, routing key, properties and body by number, in order."""
        self._returned: dict[int, str] = {}
        self._unknown_return = False
        self._outcomes: list[Outcome] = []
        self._channel = connection.channel(self._on_event)
        self._channel.call(c.Confirm.Select)

    def put(self, letter: Letter) -> int:
        exchange, key, properties = self._address(letter)
        self._numbered += 1
        self._unconfirmed[self._numbered] = exchange, key, properties, letter.body
        self._channel.publish(exchange, key, properties, letter.body)
        return self._numbered

    def work(self, *, wait: bool) -> list[Outcome]:
        self._channel.turn(0.0)
        if wait and not self._outcomes and self._unconfirmed:
            self._channel.turn(WAIT_S)
        if self._unknown_return:  # then it is unknown which confirm belongs to the returned message
            raise ShovelError(f"{self._connection.address}: returned a message that it was not sent")
        outcomes, self._outcomes = self._outcomes, []
        if not outcomes:
            self._channel.check()
        return outcomes

    def close(self) -> None:
        self._channel.close()
        self._exchanges.close()

    def _into_queue(self, letter: Letter) -> tuple[str, bytes, bytes]:
        exchange, key = letter.exchange, letter.routing_keys[0]
        if not exchange and key == self._source_name and not carbon_copies(letter.properties):
            return "", self._exchanges.queue, letter.properties
        through = self._exchanges.through(exchange)
        if through.encode() == exchange:
            return through, key, letter.properties
        self.renamed_exchanges += 1
        return through, key, with_original_exchange(letter.properties, exchange)

    def _on_event(self, event: Event) -> None:
        match event:
            case MethodRun(tags=tags):
                refusal = None if event.index == ACK else "the broker refused it (nack)"
                for tag in tags:
                    self._on_confirm(tag, refusal, multiple=bool(event.flags & _MULTIPLE))
            case Messages(methods=methods, properties=properties, bodies=bodies):
                for method, encoded, body in zip(methods, properties, bodies, strict=True):
                    self._on_return(cast(c.Basic.Return, method), encoded, body)

    def _on_confirm(self, tag: int, refusal: str | None, *, multiple: bool) -> None:
        numbers = list(takewhile(lambda number: number <= tag, self._unconfirmed)) if multiple else [tag]
        for number in numbers:
            del self._unconfirmed[number]
            self._outcomes.append(Outcome(number, self._returned.pop(number, refusal)))

    def _on_return(self, method: c.Basic.Return, properties: bytes, body: bytes) -> None:
        key = from_text(method.routing_key or "")
        content = method.exchange, key, properties, body
        for number, published in self._unconfirmed.items():
            if number not in self._returned and published == content:
                shown = printable(f"{method.exchange!r} with key {to_text(key)!r}")
                self._returned[number] = f"{shown} leads to no queue ({method.reply_text})"
                return
        self._unknown_return = True


def _as_published(letter: Letter) -> tuple[str, bytes, bytes]:
    return text(letter.exchange), letter.routing_keys[0], letter.properties
