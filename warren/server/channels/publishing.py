"""ChannelPublisher: the publishing half of a client's channel.

Messages that came together and differ in nothing but their bodies are one batch on their way to the queues. Routes are
looked up once per batch. A client in confirm mode gets confirms in few frames
(:mod:`warren.server.channels.confirms`); when it waits for them, the queue syncs at once.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any, Final, cast

import attrs
from pamqp import commands as c

from warren.actors.engines.byte_budget import MESSAGE_BYTES
from warren.actors.engines.declared.exchanges import ExchangeDeclaration
from warren.actors.engines.errors import NotFoundError
from warren.actors.node.admission import BackpressureWait
from warren.actors.node.node_errors import DelaysDownError
from warren.actors.queue.intake import PublishKey
from warren.actors.runtime.future import Confirm, Future
from warren.aio import bridge
from warren.amqp.errors import INTERNAL_ERROR, ProtocolError
from warren.amqp.methods import method_of
from warren.amqp.received import Messages
from warren.client.calls import refused
from warren.queue_index.properties import decode_properties, encode_properties
from warren.server.channels.channel_link import ChannelLink, Work
from warren.server.channels.confirms import Confirms
from warren.server.channels.direct_reply import ReplyConsumer
from warren.server.replies import ACCESS_REFUSED, NOT_IMPLEMENTED, PRECONDITION_FAILED, Refusal
from warren.server.reply_addresses import REPLY_TO, is_address
from warren.server.share import EVENTS_AT_A_TIME
from warren.storage.errors import MessageError, WarrenError
from warren.verbs.addressing import Delay, address, delay_in, text_of
from warren.verbs.publishing import Receiver, publishing

NO_ROUTE: Final = 312
_CONFIRMS: Final[dict[tuple[bool, bool], c.Basic.Ack | c.Basic.Nack]] = {
    (True, False): c.Basic.Ack(),
    (True, True): c.Basic.Ack(multiple=True),
    (False, False): c.Basic.Nack(requeue=True),
}
"""Acks and nacks, of one message or of all up to it."""
_CACHED_ENVELOPES: Final = 256
_CACHED_PROPERTIES_BYTES: Final = 512


@attrs.frozen(eq=False)
class _Addressed:
    """The envelope of messages to one exchange and key, and the keys that they are routed by."""

    key: PublishKey
    routing_keys: tuple[str, ...]
    headers: dict[str, Any] | None
    checked: ExchangeDeclaration
    """The exchange as it was when the user's right was checked."""
    asks: bool = False
    """Whether the message asks for a direct reply."""
    delay: Delay | None = None
    """When it is due; ``None``: now."""


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
        self._addressed: dict[tuple[str, str, bytes], _Addressed] = {}
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
        method = cast(c.Basic.Publish, event.method)
        if method.immediate:
            raise ProtocolError(NOT_IMPLEMENTED, "immediate=true", method.index)
        addressed = self._address(method.exchange, method.routing_key, event.properties)
        if self._channel.transactional:
            self._hold_back(event)
            return None
        numbered = None if self.confirms is None else self.confirms.publish(len(event.bodies))
        return self._hand_over(addressed, event, numbered)

    def _hand_over(self, addressed: _Addressed, event: Messages, numbered: int | None) -> Work:
        try:
            receivers, down = self._route(addressed)
        except DelaysDownError as error:
            self._settle(numbered, error)
            return None
        if (traffic := self._channel.traffic) is not None:
            traffic.publish(addressed.checked.name, len(event.bodies), len(receivers))
        if down is not None:  # the other queues get the messages, as in RabbitMQ
            self._settle(numbered, down)
            numbered = None
        elif not receivers:
            if not self._reply(addressed, event):
                self._unroutable(addressed, event)
            self._settle(numbered, None)
        if not receivers:
            return None
        if len(event.bodies) > 1 and not all(receiver.coalesces for receiver in receivers):
            return self._one_by_one(addressed, event, numbered)
        return self._admit(addressed, event.bodies, numbered, receivers)

    def _admit(
        self,
        addressed: _Addressed,
        bodies: list[bytes],
        numbered: int | None,
        receivers: Sequence[Receiver],
    ) -> Work:
        passes = self._channel.connection.is_owner
        if passes:
            self._channel.connection.tell_blocked()
        admission = publishing(self._channel.node, lambda: receivers, addressed.key, bodies, passes_alarms=passes)
        try:
            outcome = admission.attempt(receivers, False)
        except WarrenError as error:  # a queue that is down, or ending
            self._settle(numbered, error)
            return None
        if isinstance(outcome, BackpressureWait):
            receivers[0].gate.withdraw(outcome.future)
            return self._wait(addressed, bodies, numbered, receivers)
        self._when_safe(outcome, numbered)
        return None

    async def _wait(
        self, addressed: _Addressed, bodies: list[bytes], numbered: int | None, receivers: Sequence[Receiver]
    ) -> None:
        """Wait until messages are admitted; meanwhile the socket is not read."""
        connection = self._channel.connection
        connection.hold(self)
        connection.tell_blocked()
        try:
            admission = publishing(
                self._channel.node,
                lambda: receivers,
                addressed.key,
                bodies,
                passes_alarms=None if connection.is_owner else False,
            )
            confirm = await bridge.admitted(admission)
        except WarrenError as error:
            self._settle(numbered, error)
        else:
            self._when_safe(confirm, numbered)
        finally:
            connection.release(self)
            connection.tell_unblocked()

    async def _one_by_one(self, addressed: _Addressed, event: Messages, numbered: int | None) -> None:
        """Publish messages one by one, as one may be refused and the next not."""
        if numbered is not None and self.confirms is not None:
            self.confirms.split(numbered)
        for index, body in enumerate(event.bodies):
            receivers, down = self._route(addressed)
            number = None if numbered is None else numbered + index
            if down is not None:
                self._settle(number, down)
                number = None
            work = self._admit(addressed, [body], number, receivers)
            if work is not None:
                await work

    def _when_safe(self, confirm: Confirm | None, numbered: int | None) -> None:
        if self._committing is not None and confirm is not None:
            self._committing.append(confirm)
        if numbered is None:
            return
        if confirm is None or confirm.done:
            self._settle(numbered, None if confirm is None else confirm.error)
            return
        confirm.on_done(functools.partial(self._safe, numbered))
        if not confirm.done:
            confirm.hurry()

    def _safe(self, numbered: int, confirm: Future) -> None:
        """In any thread."""
        self._channel.server.rounds.post(functools.partial(self._settle, numbered, confirm.error))

    def _settle(self, numbered: int | None, error: BaseException | None) -> None:
        if error is not None:
            self._refused = True
        if numbered is None or self.confirms is None:
            return
        if error is not None and self._channel.connection.is_owner:
            self._errors[numbered] = error
        self.confirms.settle(numbered, ack=error is None)
        if not self._telling:
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

    def _address(self, exchange: str, routing_key: str, properties: bytes) -> _Addressed:
        """Return the address. Raises if the user may not publish this way."""
        if self._rights != self._users.version:
            self._rights = self._users.version
            self._addressed.clear()
        addressed = self._addressed.get((exchange, routing_key, properties))
        try:
            declaration = self._channel.node.vhost(self._channel.vhost).definitions.exchange(exchange)
        except NotFoundError:
            self._channel.check("exchange", exchange, "write")
            raise
        if addressed is None or addressed.checked is not declaration:
            addressed = self._new_address(exchange, routing_key, properties, declaration)
            comes_once = addressed.asks or (addressed.delay is not None and addressed.delay.due_ms is not None)
            if len(properties) <= _CACHED_PROPERTIES_BYTES and not comes_once:
                if len(self._addressed) >= _CACHED_ENVELOPES:
                    self._addressed.clear()
                self._addressed[exchange, routing_key, properties] = addressed
        return addressed

    def _new_address(
        self, exchange: str, routing_key: str, encoded: bytes, declaration: ExchangeDeclaration
    ) -> _Addressed:
        channel = self._channel
        channel.check("exchange", exchange, "write")
        if declaration.internal:
            raise Refusal(
                ACCESS_REFUSED, f"cannot publish to internal exchange '{exchange}' in vhost '{channel.vhost}'"
            )
        channel.check_topic(exchange, routing_key, "write")
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
        key, keys, headers = address(channel.vhost, exchange, routing_key, properties, encoded)
        if properties.delivery_mode not in (None, 1, 2):
            raise Refusal(PRECONDITION_FAILED, f"invalid message: {{delivery_mode_unknown,{properties.delivery_mode}}}")
        return _Addressed(key, keys, headers, declaration, asks, delay)

    def _route(self, addressed: _Addressed) -> tuple[list[Receiver], WarrenError | None]:
        """Return what gets the messages, and why a queue that should get them cannot, if one is down."""
        vhost = self._channel.node.vhost(self._channel.vhost)
        exchange = addressed.checked.name
        if (delay := addressed.delay) is not None and exchange:
            return [delay.receiver(self._channel.node, vhost.name, None, exchange)], None
        names = vhost.definitions.routing.route_all(exchange, addressed.routing_keys, addressed.headers)
        if delay is not None and names:
            return [delay.receiver(self._channel.node, vhost.name, names[0] if len(names) == 1 else None, "")], None
        receivers: list[Receiver] = [
            actor.intake for name in names if (entry := vhost.queues.get(name)) is not None
            and (actor := entry.running) is not None
        ]  # fmt: skip
        if len(receivers) == len(names):
            return receivers, None
        entries = [entry for name in names if (entry := vhost.queues.get(name)) is not None]
        down = next((entry.down_error() for entry in entries if entry.running is None), None)
        return [*receivers, *self._channel.node.streams(vhost.name, names)], down

    def _reply(self, addressed: _Addressed, event: Messages) -> bool:
        """Give messages to a channel that waits for replies; return whether there is one."""
        routing_key = addressed.routing_keys[0]
        if addressed.checked.name or not is_address(routing_key):
            return False
        deliver = self._channel.server.replies.find(routing_key)
        if deliver is None:
            return False
        deliver(routing_key, event.properties, event.bodies)
        return True

    def _unroutable(self, addressed: _Addressed, event: Messages) -> None:
        """Return unroutable messages to the client, if they are mandatory."""
        method = cast(c.Basic.Publish, event.method)
        if self._channel.traffic is not None:
            self._channel.traffic.unrouted[method.mandatory] += len(event.bodies)
        if not method.mandatory or not self._channel.may_send:
            return
        returned = method_of(
            c.Basic.Return,
            reply_code=NO_ROUTE,
            reply_text="NO_ROUTE",
            exchange=method.exchange,
            routing_key=method.routing_key,
        )
        for body in event.bodies:
            self._channel.send_message(returned, addressed.key.envelope.properties, body)

    # ── transactions ────────────────────────────────────────────────────────────────────────────────────────────

    def _hold_back(self, event: Messages) -> None:
        size_bytes = sum(map(len, event.bodies)) + (len(event.properties) + MESSAGE_BYTES) * len(event.bodies)
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
            for index, event in enumerate(events, 1):
                method = cast(c.Basic.Publish, event.method)
                addressed = self._address(method.exchange, method.routing_key, event.properties)
                if index % EVENTS_AT_A_TIME == 0:
                    await asyncio.sleep(0)
                if (work := self._hand_over(addressed, event, None)) is not None:
                    await work
        finally:
            self._committing = None
        for confirm in confirms:
            try:
                await bridge.safe(confirm)
            except WarrenError:
                self._refused = True
        return not self._refused
