"""Channel: AMQP's methods, as Kombu calls them, on warren's verbs.

Delivery tags are the channel's own, as it has messages of several queues. Unsettled deliveries are in two tables:
those of consumers, which the channel's prefetch count limits, and those of gets. Any thread may settle, with one
operation on a table; everything else belongs to the thread that drains the connection.

Prefetch count: the most unsettled messages of all consumers together, whatever ``apply_global`` says. It can be changed
at any time; that is what Kombu's users know from its other transports, and what Celery needs.

Closing a channel gives back its unsettled messages, each to its old place in its queue.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partialmethod
from typing import Any

from amqp import exceptions as amqp
from amqp.protocol import queue_declare_ok_t
from kombu.transport import base

from warren.actors.engines.errors import NotFoundError
from warren.actors.log_events import log_event, logger
from warren.actors.queue.intake import PublishRefusedError
from warren.actors.runtime.future import Confirm
from warren.actors.runtime.pooled_actor import ActorStoppedError
from warren.handles.channel import settle
from warren.handles.consumer import Delivery
from warren.handles.queue import Queue
from warren.kombu.connection import Connection, as_amqp
from warren.kombu.message import Message, Outgoing, eta_of, outgoing
from warren.kombu.subscription import AHEAD, Subscription
from warren.storage.errors import MessageError, WarrenError
from warren.verbs.exchange_verbs import UnroutableError
from warren.verbs.instrumentation import processed

_LOG = logger("kombu")

_numbers = itertools.count(1)

NO_ROUTE = 312
"""AMQP's reply code of a returned message."""


class Channel(base.StdChannel):
    """A channel of a connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection: Connection | None = connection
        self.channel_id = connection.add_channel(self)
        self.events: defaultdict[str, set[Callable[..., Any]]] = defaultdict(set)
        """"basic_return": the callbacks for returned messages."""
        self.no_ack_consumers: set[str] = set()  # type: ignore[assignment]
        self.prefetch_count = 0
        self.confirms = connection.address.confirm_publish
        self._number = next(_numbers)
        self._subscriptions: dict[str, Subscription] = {}
        self._ended: list[Subscription] = []
        """Cancelled consumers with unsettled messages."""
        self._handles: dict[str, tuple[object, Queue]] = {}
        self._tags = itertools.count(1)
        self._consumed: dict[int, tuple[Delivery, dict[int, None]]] = {}
        self._gotten: dict[int, Delivery] = {}

    def __repr__(self) -> str:
        return f"<warren.kombu.Channel {self.channel_id}>"

    @property
    def is_open(self) -> bool:
        return self.connection is not None

    @property
    def _open_connection(self) -> Connection:
        connection = self.connection
        if connection is None:
            raise amqp.RecoverableConnectionError(f"channel {self.channel_id} is closed")
        connection.check()
        return connection

    # ── exchanges ───────────────────────────────────────────────────────────────────────────────────────────────

    def exchange_declare(
        self,
        exchange: str,
        type: str = "direct",
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Declare an exchange; ``passive``: only check that it exists."""
        vhost = self._open_connection.vhost
        with as_amqp("Exchange.declare"):
            if passive:
                vhost.exchange(exchange)
            else:
                vhost.exchange(exchange, type, durable=durable, auto_delete=auto_delete, arguments=arguments)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False, **_: Any) -> None:
        """Delete an exchange with its bindings."""
        with as_amqp("Exchange.delete"):
            self._open_connection.vhost.delete_exchange(exchange, if_unused=if_unused)

    def _exchange_binding(
        self,
        change: str,
        destination: str,
        source: str = "",
        routing_key: str = "",
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        vhost = self._open_connection.vhost
        with as_amqp(f"Exchange.{change}"):
            try:
                getattr(vhost, change)(vhost.exchange(destination), source, routing_key, arguments)
            except NotFoundError:
                if change == "bind":  # an exchange that does not exist has no bindings to delete
                    raise

    exchange_bind = partialmethod(_exchange_binding, "bind")
    """Bind the exchange ``destination`` to the exchange ``source``."""
    exchange_unbind = partialmethod(_exchange_binding, "unbind")
    """Undo :meth:`exchange_bind`."""

    # ── queues ──────────────────────────────────────────────────────────────────────────────────────────────────

    def prepare_queue_arguments(self, arguments: Mapping[str, Any] | None, **kwargs: Any) -> Mapping[str, Any]:
        """Return Kombu's ``expires``, ``message_ttl``, ``max_length``, … as ``x-`` arguments."""
        prepared: Mapping[str, Any] = base.to_rabbitmq_queue_arguments(arguments or {}, **kwargs)
        return prepared

    def queue_declare(
        self,
        queue: str = "",
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> Any:
        """Declare a queue; return its name, ready messages and consumers. Without a name it gets one."""
        vhost = self._open_connection.vhost
        with as_amqp("Queue.declare"):
            handle = vhost.queue(
                queue,
                passive=passive,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments=arguments or {},
            )
        return queue_declare_ok_t(handle.name, len(handle), handle.stats()["consumers"])

    def _queue_binding(
        self,
        change: str,
        queue: str,
        exchange: str = "",
        routing_key: str = "",
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        with as_amqp(f"Queue.{change}"):
            getattr(self._open_connection.vhost, change)(queue, exchange, routing_key, arguments)

    queue_bind = partialmethod(_queue_binding, "bind")
    """Bind a queue to an exchange."""
    queue_unbind = partialmethod(_queue_binding, "unbind")
    """Undo :meth:`queue_bind`."""

    def queue_purge(self, queue: str, nowait: bool = False, **_: Any) -> int:
        """Delete ready messages; return how many."""
        with as_amqp("Queue.purge"):
            return self._queue(queue).purge()

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, nowait: bool = False, **_: Any
    ) -> int:
        """Delete a queue; return how many messages were ready. A missing queue is no error."""
        with as_amqp("Queue.delete"):
            return self._open_connection.vhost.delete_queue(queue, if_unused=if_unused, if_empty=if_empty)

    def get_bindings(self) -> Iterable[dict[str, Any]]:
        """Return every binding of the vhost, in the form of Kombu's managers."""
        connection = self._open_connection
        return [
            {key: binding[key] for key in ("source", "destination", "routing_key", "arguments")}
            for binding in connection.node.definitions(connection.vhost.name)["bindings"]
        ]

    def _queue(self, name: str) -> Queue:
        """Return a cached handle, which has its unsettled messages; a new one if the queue was deleted since."""
        vhost = self._open_connection.vhost
        identity = vhost._verbs.host.identity_of(name)
        cached = self._handles.get(name)
        if cached is None or cached[0] is not identity:
            cached = self._handles[name] = identity, vhost.queue(name, passive=True)
        return cached[1]

    # ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────

    def prepare_message(
        self,
        body: Any,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Outgoing:
        """Return a message for :meth:`basic_publish`."""
        return outgoing(body, priority, content_type, content_encoding, headers, properties)

    def basic_publish(
        self,
        message: Outgoing,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        immediate: bool = False,
        timeout: float | None = None,
        confirm_timeout: float | None = None,
        **_: Any,
    ) -> Confirm:
        """Publish; return at once, or with ``confirm_publish`` when the message is safe.

        ``timeout``: the most seconds to wait while publishers are blocked, and for the confirm if there is no
        ``confirm_timeout``. ``.wait()`` on the result waits until the message is safe in any case.
        """
        connection, arguments = self._open_connection, message.arguments
        if connection.address.delay_eta and (eta := eta_of(arguments)) is not None:
            arguments = {**arguments, "at": eta}
        with as_amqp("Basic.publish"):
            confirm = connection.exchange(exchange, timeout).publish(
                message.body, routing_key, mandatory=bool(mandatory), timeout=timeout, **arguments
            )
        if mandatory and confirm.done and isinstance(confirm.error, UnroutableError):
            self._return(message, exchange, routing_key)
        elif self.confirms:
            try:
                confirm.wait(confirm_timeout or timeout)
            except PublishRefusedError as error:
                raise amqp.MessageNacked(str(error)) from error
        return confirm

    def basic_publish_confirm(self, *args: Any, **kwargs: Any) -> Confirm:
        """Publish, and return when the message is safe."""
        self.confirms = True
        return self.basic_publish(*args, **kwargs)

    def confirm_select(self, nowait: bool = False) -> None:
        """Let publishes return only when their messages are safe."""
        self.confirms = True

    def _return(self, message: Outgoing, exchange: str, routing_key: str) -> None:
        error = amqp.ChannelError("NO_ROUTE", None, "Basic.return", NO_ROUTE)
        callbacks = self.events.get("basic_return")
        if not callbacks:
            raise error
        for callback in list(callbacks):
            callback(error, exchange, routing_key, message)

    # ── consuming ───────────────────────────────────────────────────────────────────────────────────────────────

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False, **_: Any) -> None:
        """Set how many messages of the channel's consumers may be unacked; 0: any number."""
        connection = self._open_connection
        self.prefetch_count = prefetch_count or 0
        for subscription in self._subscriptions.values():
            subscription.set_prefetch(self.prefetch_count)
        connection.wake.set()

    def basic_consume(
        self,
        queue: str = "",
        consumer_tag: str = "",
        no_local: bool = False,
        no_ack: bool = False,
        exclusive: bool = False,
        nowait: bool = False,
        callback: Callable[[Message], Any] | None = None,
        arguments: Mapping[str, Any] | None = None,
        on_cancel: Callable[[str], Any] | None = None,
        **_: Any,
    ) -> str:
        """Begin a consumer, whose messages come when the connection is drained; return its tag."""
        connection = self._open_connection
        tag = consumer_tag or f"ctag{self.channel_id}.{next(self._tags)}"
        if tag in self._subscriptions:
            raise amqp.NotAllowed(f"there is a consumer '{tag}' already", None, "Basic.consume", 530)
        with as_amqp("Basic.consume"):
            source = Queue(connection.run(connection.vhost._verbs.queue(queue, passive=True), 0.0))
            prefetch = 0 if no_ack else self.prefetch_count
            ack_timeout = _ack_timeout(arguments or {}, connection.address.visibility_timeout)
            consumer = source.consume(
                prefetch or AHEAD,
                timeout=0.0,  # a get with a timeout begins it: it ends as soon as another process that hosts is silent
                tag=f"kombu-{self._number}-{tag}",
                exclusive=exclusive,
                priority=(arguments or {}).get("x-priority", 0),
                ack_timeout=None if no_ack else ack_timeout,
            )
            subscription = Subscription(
                self,
                source,
                consumer,
                tag,
                callback or _ignore,
                no_ack=no_ack,
                prefetch=prefetch,
                on_cancel=on_cancel,
                wake=connection.wake,
            )
        self._subscriptions[tag] = subscription
        if no_ack:
            self.no_ack_consumers.add(tag)
        connection.add(subscription)
        return tag

    def basic_cancel(self, consumer_tag: str, nowait: bool = False, **_: Any) -> None:
        """End a consumer. What it has delivered can still be settled.

        As on a connection with a server, messages that were on their way to it go to its callback first, as far as the
        channel has room. Those of a consumer without acks go back: unread messages would be lost.
        """
        subscription = self._subscriptions.pop(consumer_tag, None)
        if subscription is None:
            return
        self.no_ack_consumers.discard(consumer_tag)
        self._open_connection.remove(subscription)
        self._ended.append(subscription)
        try:
            subscription.stop()
            while not subscription.no_ack and self.is_open and self.has_room and (last := subscription.take_last()):
                self.deliver(subscription, last)
        finally:
            subscription.give_back()
            self._close_ended()

    def _close_ended(self) -> None:
        settled = [consumer for consumer in self._ended if not consumer.unacked]
        self._ended = [consumer for consumer in self._ended if consumer.unacked]
        for subscription in settled:
            with contextlib.suppress(WarrenError):
                subscription.close()

    @property
    def has_room(self) -> bool:
        """Whether its prefetch count allows another message."""
        return not self.prefetch_count or len(self._consumed) < self.prefetch_count

    def deliver(self, subscription: Subscription, delivery: Delivery) -> None:
        """Hand a message to a consumer's callback."""
        tag = next(self._tags)
        message = self._readable(delivery, tag, subscription.tag)
        if message is None:
            return
        if subscription.no_ack:
            delivery.ack()
        else:
            subscription.unacked[tag] = None
            self._consumed[tag] = delivery, subscription.unacked
        with processed(delivery):
            subscription.callback(message)

    def _readable(self, delivery: Delivery, tag: int, consumer_tag: str | None = None) -> Message | None:
        """Return the message as Kombu's. Reject one whose bytes are invalid, as the program could not settle it."""
        try:
            return Message(delivery, channel=self, tag=tag, consumer_tag=consumer_tag)
        except MessageError as error:
            _LOG.warning(
                "a message that cannot be read is rejected: %s", error, extra=log_event("message_unreadable", error)
            )
            if delivery.delivery_tag:  # else it needs no settling
                delivery.nack(requeue=False)
            return None

    def cancelled(self, subscription: Subscription, error: Exception | None) -> None:
        """Handle a consumer that the node has ended, for instance because its queue was deleted."""
        self._subscriptions.pop(subscription.tag, None)
        if subscription.on_cancel is None:
            raise amqp.ConsumerCancelled(subscription.tag, (60, 30)) from error
        subscription.on_cancel(subscription.tag)

    def basic_get(self, queue: str = "", no_ack: bool = False, **_: Any) -> Message | None:
        """Return the message at the head of a queue, or ``None``."""
        tag = next(self._tags)
        while True:
            with as_amqp("Basic.get"):
                delivery = self._queue(queue).get(auto_ack=no_ack)
            if delivery is None:
                return None
            message = self._readable(delivery, tag)
            if message is not None:
                if not no_ack:
                    self._gotten[tag] = delivery
                return message

    def message_to_python(self, raw_message: Message) -> Message:
        """Return the message, which is Kombu's already."""
        return raw_message

    # ── settling ────────────────────────────────────────────────────────────────────────────────────────────────

    def basic_ack(self, delivery_tag: int, multiple: bool = False, **_: Any) -> None:
        """Ack a message, or (``multiple``) all up to it."""
        self._settle("ack", delivery_tag, multiple, "Basic.ack")

    def basic_reject(self, delivery_tag: int, requeue: bool = False, **_: Any) -> None:
        """Return a message to its place in the queue, or (without ``requeue``) to the dead letters."""
        self._settle("failed" if requeue else "reject", delivery_tag, False, "Basic.reject")

    def basic_nack(self, delivery_tag: int, multiple: bool = False, requeue: bool = True, **_: Any) -> None:
        """As :meth:`basic_reject`, for many."""
        self._settle("requeue" if requeue else "reject", delivery_tag, multiple, "Basic.nack")

    def basic_recover(self, requeue: bool = True, **_: Any) -> None:
        """Give back all unsettled messages."""
        if not requeue:
            raise amqp.AMQPNotImplementedError("requeue=False", None, "Basic.recover", 540)
        self._settle("requeue", 0, True, "Basic.recover")

    def _settle(self, outcome: str, delivery_tag: int, multiple: bool, method: str) -> None:
        connection = self._open_connection
        if multiple:
            tags = sorted(tag for tag in (*self._consumed, *self._gotten) if not delivery_tag or tag <= delivery_tag)
        else:
            tags = [delivery_tag]
        deliveries = [delivery for tag in tags if (delivery := self._take(tag)) is not None]
        if delivery_tag and not deliveries:
            raise amqp.PreconditionFailed(f"unknown delivery tag {delivery_tag}", None, method, 406)
        with contextlib.suppress(ActorStoppedError):  # the queue is gone or restarts: it has all of them already
            settle(deliveries, outcome)
        connection.wake.set()

    def _take(self, tag: int) -> Delivery | None:
        if (consumed := self._consumed.pop(tag, None)) is not None:
            delivery, unacked = consumed
            unacked.pop(tag, None)
            return delivery
        return self._gotten.pop(tag, None)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def flow(self, active: bool = True) -> bool:
        """Do nothing: AMQP does not require this, and there is nothing to stop here."""
        return active

    def close(self) -> None:
        """End the channel's consumers, and give back its unsettled messages."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        connection.forget_channel(self)
        subscriptions, self._subscriptions = list(self._subscriptions.values()), {}
        for subscription in subscriptions:
            connection.remove(subscription)
        self._consumed.clear()
        self._gotten.clear()
        if connection.is_foreign:
            return
        subscriptions += self._ended
        handles = [handle for _, handle in self._handles.values()]
        for end in (*(consumer.close for consumer in subscriptions), *(handle.release for handle in handles)):
            with contextlib.suppress(WarrenError):  # a queue that is gone or down has its messages back
                end()
        self._handles.clear()


def _ignore(_: Message) -> None:
    """The callback of a consumer without one."""


def _ack_timeout(arguments: Mapping[str, Any], otherwise: float | None) -> float | None:
    """Return a consumer's ack timeout in seconds, from its argument ``x-consumer-timeout`` (ms) or the connection."""
    timeout_ms = arguments.get("x-consumer-timeout")
    return otherwise if timeout_ms is None else timeout_ms / 1000
