"""ChannelPublisher: the publishing half of a client's channel.

Messages that came together go to their queues in batches: those with the same exchange, routing key and properties; or
those that differ in properties which no queue looks at, as *contents*
(:mod:`warren.queue_index.message.message_format`), so that their headers are not decoded.

A client in confirm mode gets confirms in few frames (:mod:`warren.server.channels.confirms`); when it waits for them,
the queue syncs at once.
"""

from __future__ import annotations

import asyncio
import functools
import operator
from collections.abc import Coroutine, Iterable, Sequence
from itertools import repeat
from typing import Any, Final, cast

import attrs
from pamqp import commands as c
from pamqp.base import Frame as Method

from warren.actors.engines.byte_budget import MESSAGE_BYTES
from warren.actors.engines.declared.exchanges import DELAYED, ExchangeDeclaration
from warren.actors.engines.errors import NotFoundError
from warren.actors.node.admission import BackpressureWait
from warren.actors.node.node_errors import DelaysDownError
from warren.actors.queue.queue_intake import QueueIntake
from warren.actors.runtime.future import Confirm, Future
from warren.aio import bridge
from warren.amqp.errors import INTERNAL_ERROR, ProtocolError
from warren.amqp.methods import method_of
from warren.amqp.own_methods import DUE
from warren.amqp.received import Messages
from warren.client.calls import refused
from warren.queue_index.message.message_format import MAX_FRAGMENT_BYTES, content_of
from warren.queue_index.properties import PERSISTENT, decode_properties, encode_properties, outline_of
from warren.server.channels.batches import Address, Batch, Batches, Route
from warren.server.channels.channel_link import ChannelLink, Work
from warren.server.channels.confirms import Confirms
from warren.server.channels.direct_reply import ReplyConsumer
from warren.server.replies import ACCESS_REFUSED, NOT_IMPLEMENTED, PRECONDITION_FAILED, Refusal
from warren.server.server_context import REPLY_TO, is_address
from warren.server.share import MESSAGES_AT_A_TIME
from warren.storage.errors import MessageError, WarrenError
from warren.values.messages import Shared, content_key
from warren.verbs.addressing import address, delay_in, milliseconds, text_of
from warren.verbs.publishing import Receiver, publishing, remember

NO_ROUTE: Final = 312
_CONFIRMS: Final[dict[tuple[bool, bool], c.Basic.Ack | c.Basic.Nack]] = {
    (True, False): c.Basic.Ack(),
    (True, True): c.Basic.Ack(multiple=True),
    (False, False): c.Basic.Nack(requeue=True),
}
"""Acks and nacks, of one message or of all up to it."""
_CACHED_ADDRESSES: Final = 256
_CACHED_PROPERTIES_BYTES: Final = 512
_OFTEN_ALIKE_BYTES: Final = 32
"""Single messages with properties up to this size are taken to have the same as others."""
_DELIVERY_MODES: Final = (None, 1, 2)
_REPLY_TO: Final = REPLY_TO.encode()
_DUE: Final = DUE.encode()


class ChannelPublisher:
    """The publisher's half of a channel."""

    def __init__(self, channel: ChannelLink, replies: ReplyConsumer) -> None:
        self._channel = channel
        self._replies = replies
        self.confirms: Confirms | None = None
        self.uncommitted: list[Messages] = []
        """Messages that a transaction holds back."""
        self.uncommitted_bytes = 0
        self._users = channel.node.registry.users
        self._addresses: dict[tuple[object, ...], Address] = {}
        self._rights = self._users.version
        """The version of the rights that the cached addresses were checked against."""
        self._telling = False
        self._errors: dict[int, BaseException] = {}
        """Why messages were refused, by the first number of each batch; for guests only."""
        self._all_told: asyncio.Future[None] | None = None
        self._refused = False
        """Whether a message of the current commit was refused."""
        self._committing: list[Confirm] | None = None
        """The confirms that a commit waits for."""

    def select_confirms(self) -> None:
        """Turn on confirms."""
        if self.confirms is None:
            self.confirms = Confirms()

    def publish(self, event: Messages) -> Work:
        """Take messages; the returned work waits until they are admitted."""
        if self._channel.transactional:
            for alike in event.alike():
                self._address(_checked(alike.method), alike.properties[0])
            self._hold_back(event)
            return None
        return self._publish(event, self.confirms)

    def _publish(self, event: Messages, confirms: Confirms | None) -> Work:
        """Hand over messages up to the first one that is refused, then raise the reason."""
        batches, refusal = Batches(), None
        try:
            self._divide(event, batches, confirms)
        except Exception as error:
            refusal = error
        works = filter(None, map(self._hand_over, batches.in_order))
        if (work := next(works, None)) is not None:
            return _work_off(work, works, refusal)
        if refusal is not None:
            raise refusal
        return None

    def _divide(self, event: Messages, batches: Batches, confirms: Confirms | None) -> None:
        """Divide messages into batches. Raises the reason if one is refused; those before it are in their batches."""
        methods, properties, bodies = event.methods, event.properties, event.bodies
        is_random = self._channel.node.vhost(self._channel.vhost).definitions.routing.is_random
        if not is_random and self._are_worth_decoding(methods, properties):
            method = _checked(methods[0])
            address = self._address(method, properties[0])
            batch = batches.batch_for(method, address, self._route(address))
            batch.given.extend(bodies)
            if confirms is not None:
                runs = [len(bodies)] if batch.route.coalesces else [1] * len(bodies)
                batch.numbers.extend(map(confirms.publish, runs))
            return
        last: Batch | None = None
        for method, encoded, body in zip(map(_checked, methods), properties, bodies, strict=True):
            address, route = self._look_up(method, encoded, body, batches.routes)
            batch = batches.batch_for(method, address, route)
            batch.given.append(content_of(encoded, body) if address.key.envelope.of_contents else body)
            if confirms is not None:
                if batch is last and route.coalesces:
                    confirms.extend()
                else:
                    batch.numbers.append(confirms.publish(1))
            last = batch

    def _are_worth_decoding(self, methods: Sequence[Method], properties: Sequence[bytes]) -> bool:
        """Whether messages have the same method and properties, and these probably come again."""
        method, encoded, count = methods[0], properties[0], len(properties)
        if count > 1:
            return properties.count(encoded) == count and all(map(operator.is_, methods, repeat(method)))
        return len(encoded) <= _OFTEN_ALIKE_BYTES or _address_key(method, encoded) in self._addresses

    def _look_up(
        self, method: c.Basic.Publish, encoded: bytes, body: bytes, routes: dict[Address, Route]
    ) -> tuple[Address, Route]:
        """Return the address of a message that is like few others, and its route; one of contents if possible."""
        address = self._content_address(method, encoded) if len(body) <= MAX_FRAGMENT_BYTES else None
        if address is not None:
            route = routes.get(address)
            if route is None:
                route = routes[address] = self._route(address)
            if all(isinstance(receiver, QueueIntake) for receiver in route.receivers):
                return address, route
        address = self._address(method, encoded)
        return address, self._route(address)

    def _hand_over(self, batch: Batch) -> Work:
        receivers, address = batch.route.receivers, batch.address
        if (traffic := self._channel.traffic) is not None:
            traffic.publish(address.checked.name, len(batch.given), len(receivers))
        if (trace := self._channel.trace) is not None:
            trace.published(batch)
        if address.delay is None:
            remember(self._channel.node, address.key, batch.given)
        numbers = batch.numbers
        if batch.route.down is not None:  # the other queues get the messages, as in RabbitMQ
            self._settle(numbers, batch.route.down)
            numbers = []
        elif not receivers:
            if not self._reply(batch):
                self._unroutable(batch)
            self._settle(numbers, None)
        if not receivers:
            return self._wait_for_alarms() if self._channel.node.gate.reasons else None
        if len(batch.given) > 1 and not batch.route.coalesces:
            return self._one_by_one(batch, numbers)
        return self._admit(address, batch.given, numbers, receivers)

    def _admit(
        self,
        address: Address,
        given: list[bytes],
        numbers: Sequence[int],
        receivers: Sequence[Receiver],
    ) -> Work:
        passes = self._channel.connection.is_owner
        if passes:
            self._channel.connection.tell_blocked()
        admission = publishing(self._channel.node, lambda: receivers, address.key, given, passes_alarms=passes)
        try:
            outcome = admission.attempt(receivers, False)
        except WarrenError as error:  # a queue that is down, or ending
            self._settle(numbers, error)
            return None
        if isinstance(outcome, BackpressureWait):
            receivers[0].gate.withdraw(outcome.future)
            return self._wait(address, given, numbers, receivers)
        self._when_safe(outcome, numbers)
        return None

    async def _wait(
        self, address: Address, given: list[bytes], numbers: Sequence[int], receivers: Sequence[Receiver]
    ) -> None:
        """Wait until messages are admitted; meanwhile the socket is not read."""
        connection = self._channel.connection
        with connection.held(self):
            try:
                admission = publishing(
                    self._channel.node,
                    lambda: receivers,
                    address.key,
                    given,
                    passes_alarms=None if connection.is_owner else False,
                )
                confirm = await bridge.admitted(admission)
            except WarrenError as error:
                self._settle(numbers, error)
            else:
                self._when_safe(confirm, numbers)

    async def _wait_for_alarms(self) -> None:
        """Do not read the socket while an alarm is set; a guest of the directory is only told."""
        connection, node = self._channel.connection, self._channel.node
        if connection.is_owner:
            connection.tell_blocked()
            return
        with connection.held(self):
            await bridge.answer(node.gate.alarms_cleared(node.pool))

    async def _one_by_one(self, batch: Batch, numbers: Sequence[int]) -> None:
        """Publish messages one by one, as one may be refused and the next not."""
        for index, given in enumerate(batch.given):
            route = self._route(batch.address) if index else batch.route
            number = numbers[index : index + 1]
            if route.down is not None:
                self._settle(number, route.down)
                number = ()
            if route.receivers and (work := self._admit(batch.address, [given], number, route.receivers)) is not None:
                await work

    def _when_safe(self, confirm: Confirm | None, numbers: Sequence[int]) -> None:
        if self._committing is not None and confirm is not None:
            self._committing.append(confirm)
        if not numbers:
            return
        if confirm is None or confirm.done:
            self._settle(numbers, None if confirm is None else confirm.error)
            return
        confirm.on_done(functools.partial(self._safe, numbers))
        if not confirm.done:
            confirm.hurry()

    def _safe(self, numbers: Sequence[int], confirm: Future) -> None:
        """In any thread."""
        self._channel.server.rounds.post(functools.partial(self._settle, numbers, confirm.error))

    def _settle(self, numbers: Sequence[int], error: BaseException | None) -> None:
        if error is not None:
            self._refused = True
        if self.confirms is None:
            return
        for number in numbers:
            if error is not None and self._channel.connection.is_owner:
                self._errors[number] = error
            self.confirms.settle(number, ack=error is None)
        if numbers and not self._telling:
            self._telling = True
            self._channel.server.rounds.before_flush(self._tell)

    def _tell(self) -> None:
        """Send confirms for settled messages."""
        self._telling = False
        if self.confirms is None or not self._channel.may_send:
            return
        channel, engine = self._channel, self._channel.connection.engine
        error: BaseException | None = None
        for ack, tag, multiple in self.confirms.take():
            if not ack and channel.connection.is_owner:
                error = self._errors.pop(tag, error)
                if isinstance(error, Exception):
                    engine.send(channel.number, refused(error))
            engine.settle(channel.number, _CONFIRMS[ack, multiple], (tag,))
        channel.connection.flush_soon()
        if self._all_told is not None and not self.confirms.open and not self._all_told.done():
            self._all_told.set_result(None)

    async def all_told(self) -> None:
        """Wait until all messages are confirmed to the client."""
        if self.confirms is not None and self.confirms.open and not self._channel.closed:
            self._all_told = self._channel.server.loop.create_future()
            await self._all_told
        self._tell()

    # ── where to ────────────────────────────────────────────────────────────────────────────────────────────────

    def _address(self, method: c.Basic.Publish, properties: bytes) -> Address:
        """Return the address. Raises if the user may not publish this way."""
        declaration, key = self._exchange(method.exchange), _address_key(method, properties)
        address = self._addresses.get(key)
        if address is None or address.checked is not declaration:
            address = self._new_address(method, properties, declaration)
            comes_once = address.asks or (address.delay is not None and address.delay.due_ms is not None)
            if len(properties) <= _CACHED_PROPERTIES_BYTES and not comes_once:
                self._keep(key, address)
        return address

    def _content_address(self, method: c.Basic.Publish, properties: bytes) -> Address | None:
        """The same for a message whose properties need not be decoded; ``None`` if they must be. Raises likewise."""
        exchange, routing_key = method.exchange, method.routing_key
        routing = self._channel.node.vhost(self._channel.vhost).definitions.routing
        if not routing.needs_key_only(exchange, routing_key):
            return None
        try:
            outline = outline_of(properties)
        except MessageError:
            return None
        declaration, headers = self._exchange(exchange), outline.headers
        if (
            b"CC" in headers
            or outline.user_id is not None
            or outline.reply_to == _REPLY_TO
            or outline.delivery_mode not in _DELIVERY_MODES
            or declaration.type == DELAYED
            or (_DUE in headers and self._channel.connection.is_owner)
        ):
            return None
        is_persistent = outline.delivery_mode == PERSISTENT
        key = exchange, routing_key, is_persistent, outline.expiration, outline.priority
        address = self._addresses.get(key)
        if address is None or address.checked is not declaration:
            self._check_rights(method, declaration)
            expiration_ms = None if outline.expiration is None else milliseconds(outline.expiration)
            shared = Shared(is_persistent, expiration_ms, outline.priority or 0)
            publish_key = content_key(self._channel.vhost, exchange, routing_key, shared)
            address = Address(publish_key, (routing_key,), None, declaration)
            self._keep(key, address)
        return address

    def _keep(self, key: tuple[object, ...], address: Address) -> None:
        if len(self._addresses) >= _CACHED_ADDRESSES:
            self._addresses.clear()
        self._addresses[key] = address

    def _exchange(self, name: str) -> ExchangeDeclaration:
        """Return an exchange. Forget checked addresses if a user's rights have changed."""
        if self._rights != self._users.version:
            self._rights = self._users.version
            self._addresses.clear()
        try:
            return self._channel.node.vhost(self._channel.vhost).definitions.exchange(name)
        except NotFoundError:
            self._channel.check("exchange", name, "write")
            raise

    def _check_rights(self, method: c.Basic.Publish, declaration: ExchangeDeclaration) -> None:
        channel, exchange = self._channel, method.exchange
        channel.check("exchange", exchange, "write")
        if declaration.internal:
            raise Refusal(
                ACCESS_REFUSED, f"cannot publish to internal exchange '{exchange}' in vhost '{channel.vhost}'"
            )
        channel.check_topic(exchange, method.routing_key, "write")

    def _new_address(self, method: c.Basic.Publish, encoded: bytes, declaration: ExchangeDeclaration) -> Address:
        channel = self._channel
        self._check_rights(method, declaration)
        try:
            properties = decode_properties(encoded)
        except MessageError as error:
            raise ProtocolError(INTERNAL_ERROR, "") from error
        if asks := properties.reply_to == REPLY_TO:
            properties = attrs.evolve(properties, reply_to=self._replies.address_for_request())
            encoded = encode_properties(properties)
        if properties.user_id not in (None, channel.user) and not channel.may_impersonate:
            raise Refusal(
                PRECONDITION_FAILED,
                f"user_id property set to '{text_of(properties.user_id or '')}' "
                f"but authenticated user was '{channel.user}'",
            )
        undelayed, delay = delay_in(declaration, properties, from_owner=channel.connection.is_owner)
        if delay is not None:
            properties, encoded = undelayed, encode_properties(undelayed)
        key, keys, headers = address(channel.vhost, method.exchange, method.routing_key, properties, encoded)
        if properties.delivery_mode not in _DELIVERY_MODES:
            raise Refusal(PRECONDITION_FAILED, f"invalid message: {{delivery_mode_unknown,{properties.delivery_mode}}}")
        return Address(key, keys, headers, declaration, asks, delay)

    def _route(self, address: Address) -> Route:
        node = self._channel.node
        vhost = node.vhost(self._channel.vhost)
        exchange, delay = address.checked.name, address.delay
        try:
            if delay is not None and exchange:
                return Route([delay.receiver(node, vhost.name, None, exchange)])
            properties = address.key.envelope.properties
            names = vhost.definitions.routing.route_all(exchange, address.routing_keys, address.headers, properties)
            if delay is not None and names:
                return Route([delay.receiver(node, vhost.name, names[0] if len(names) == 1 else None, "")])
        except DelaysDownError as error:
            return Route([], error)
        receivers: list[Receiver] = [
            actor.intake for name in names if (entry := vhost.queues.get(name)) is not None
            and (actor := entry.running) is not None
        ]  # fmt: skip
        if len(receivers) == len(names):
            return Route(receivers, None, names)
        entries = [entry for name in names if (entry := vhost.queues.get(name)) is not None]
        down = next((entry.down_error() for entry in entries if entry.running is None), None)
        return Route([*receivers, *node.streams(vhost.name, names)], down, names)

    def _reply(self, batch: Batch) -> bool:
        """Give messages to a channel that waits for replies; return whether there is one."""
        routing_key = batch.address.routing_keys[0]
        if batch.address.checked.name or not is_address(routing_key):
            return False
        deliver = self._channel.server.replies.find(routing_key)
        if deliver is None:
            return False
        for properties, body in batch.messages():
            deliver(routing_key, properties, [body])
        return True

    def _unroutable(self, batch: Batch) -> None:
        """Return unroutable messages to the client, if they are mandatory."""
        method = batch.method
        if self._channel.traffic is not None:
            self._channel.traffic.unrouted[method.mandatory] += len(batch.given)
        if not method.mandatory or not self._channel.may_send:
            return
        returned = method_of(
            c.Basic.Return,
            reply_code=NO_ROUTE,
            reply_text="NO_ROUTE",
            exchange=method.exchange,
            routing_key=method.routing_key,
        )
        for properties, body in batch.messages():
            self._channel.send_message(returned, properties, body)

    # ── transactions ────────────────────────────────────────────────────────────────────────────────────────────

    def _hold_back(self, event: Messages) -> None:
        size_bytes = sum(map(len, event.bodies)) + sum(map(len, event.properties)) + MESSAGE_BYTES * len(event.bodies)
        self.uncommitted.append(event)
        self.uncommitted_bytes += size_bytes
        self._channel.connection.kept_bytes += size_bytes

    def roll_back(self) -> None:
        """Drop the messages that were held back."""
        self.uncommitted, self.uncommitted_bytes = [], 0

    async def commit(self) -> bool:
        """Publish the transaction's messages and wait until they are safe; return whether all of them are, and none was
        refused. Other connections are served in between."""
        events, self.uncommitted, self.uncommitted_bytes = self.uncommitted, [], 0
        confirms: list[Confirm] = []
        self._refused = False
        self._committing = confirms
        try:
            handed_over = 0
            for event in events:
                handed_over += len(event.bodies)
                if handed_over >= MESSAGES_AT_A_TIME:
                    handed_over = 0
                    await asyncio.sleep(0)
                if (work := self._publish(event, None)) is not None:
                    await work
        finally:
            self._committing = None
        for confirm in confirms:
            try:
                await bridge.safe(confirm)
            except WarrenError:
                self._refused = True
        return not self._refused


def _checked(method: Method) -> c.Basic.Publish:
    """Return the method of a publish. Raises :class:`ProtocolError` if it is immediate."""
    publish = cast(c.Basic.Publish, method)
    if publish.immediate:
        raise ProtocolError(NOT_IMPLEMENTED, "immediate=true", publish.index)
    return publish


def _address_key(method: Method, properties: bytes) -> tuple[object, ...]:
    publish = cast(c.Basic.Publish, method)
    return publish.exchange, publish.routing_key, properties


async def _work_off(
    first: Coroutine[Any, Any, None], others: Iterable[Coroutine[Any, Any, None]], refusal: Exception | None
) -> None:
    """Wait for works one after the other, then raise the refusal."""
    await first
    for work in others:
        await work
    if refusal is not None:
        raise refusal
