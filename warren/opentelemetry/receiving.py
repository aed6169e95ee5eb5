"""Receiving and settling: spans around the verbs that hand messages to a program, and around those that settle them.

A receiving span is made when a message is handed to the program, not when it reaches the process, which prefetches. A
request that returns no message makes no span.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Span, Tracer

from warren.aio import consumer as aio_consumer
from warren.aio import queue as aio_queue
from warren.aio import topic_reader as aio_topic_reader
from warren.handles import consumer, queue, topic_reader
from warren.handles.channel import DeliveredMessage
from warren.handles.delivery_batch import DeliveryBatch
from warren.opentelemetry.patches import Patches
from warren.opentelemetry.processing import group_of, start_processing
from warren.opentelemetry.spans import (
    RABBITMQ,
    ROCKETMQ,
    Operation,
    ended,
    fail,
    headers_of,
    is_suppressed,
    links_of,
    of_message,
    of_record,
    vhost_attribute,
)
from warren.values.read_message import Iteration, ReadMessage

OUTCOMES = {"ack": "ack", "requeue": "nack", "reject": "reject"}


def patch(patches: Patches, tracer: Tracer) -> None:
    """Put the spans around all that receives and settles."""
    receiving = _Receiving(tracer)
    patches.replace(queue.Queue, "get", receiving.single)
    patches.replace(queue.Queue, "get_many", receiving.many)
    patches.replace(queue.Queue, "take", receiving.single)
    patches.replace(aio_queue.Queue, "get", receiving.awaited_single)
    patches.replace(aio_queue.Queue, "take", receiving.awaited_single)
    patches.replace(aio_queue.Queue, "get_many", receiving.awaited_many)
    patches.replace(consumer.Consumer, "_begin", receiving.begun)
    patches.replace(consumer.Consumer, "close", receiving.closed)
    patches.replace(aio_consumer.Consumer, "receive", receiving.awaited_single)
    patches.replace(Iteration, "take_now", receiving.record)
    patches.replace(topic_reader.Reader, "read", receiving.read)
    patches.replace(aio_topic_reader.Reader, "read", receiving.awaited_read)
    settling = _Settling(tracer)
    kind: type
    for name in ("ack", "nack", "reject", "retry"):
        patches.replace(consumer.Delivery, name, settling.single(name))
        patches.replace(aio_consumer.Delivery, name, settling.awaited_single(name))
    for module in (queue, aio_queue):
        patches.replace(module, "settle_many", settling.many)
    for kind in (topic_reader.TopicRecord, topic_reader.Reader):
        patches.replace(kind, "commit", settling.commit)
    for kind in (aio_topic_reader.TopicRecord, aio_topic_reader.Reader):
        patches.replace(kind, "commit", settling.awaited_commit)
    handling = _Handling(tracer)
    patches.replace(consumer.Delivery, "__enter__", handling.enter)
    patches.replace(consumer.Delivery, "__exit__", handling.exit)
    patches.replace(aio_consumer.Delivery, "__aenter__", handling.awaited_enter)
    patches.replace(aio_consumer.Delivery, "__aexit__", handling.awaited_exit)


def settling(tracer: Tracer) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes the wrapper around a function that settles deliveries together."""
    return _Settling(tracer).many


@attrs.frozen(eq=False)
class _Receiving:
    """Wrappers around what hands out."""

    _tracer: Tracer

    def single(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a verb that returns one message of a queue, or none."""

        @functools.wraps(original)
        def get(handle: Any, *args: Any, **kwargs: Any) -> Any:
            began_ns = time.time_ns()
            delivery = original(handle, *args, **kwargs)
            self.note(delivery, began_ns)
            return delivery

        return get

    def awaited_single(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def get(handle: Any, *args: Any, **kwargs: Any) -> Any:
            delivery = await original(handle, *args, **kwargs)
            self.note(delivery)
            return delivery

        return get

    def many(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a verb that returns a batch of a queue's messages."""

        @functools.wraps(original)
        def get_many(handle: Any, *args: Any, **kwargs: Any) -> Any:
            began_ns = time.time_ns()
            batch = original(handle, *args, **kwargs)
            self.note_many(handle, batch, began_ns)
            return batch

        return get_many

    def awaited_many(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def get_many(handle: Any, *args: Any, **kwargs: Any) -> Any:
            began_ns = time.time_ns()
            batch = await original(handle, *args, **kwargs)
            self.note_many(handle, batch, began_ns)
            return batch

        return get_many

    def begun(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the batch of a consumer: each message has a span as it is handed out."""

        @functools.wraps(original)
        def begin(handle: Any, delivered: Any) -> Any:
            first = original(handle, delivered)
            handle._batch = _Batch(handle._batch, self)
            self.note(first)
            return first

        return begin

    def closed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a consumer's end, which looks at messages that the program has not seen: they are not handed out."""

        @functools.wraps(original)
        def close(handle: Any) -> None:
            if isinstance(handle._batch, _Batch):
                handle._batch = handle._batch.rest
            original(handle)

        return close

    def note(self, delivery: DeliveredMessage | None, began_ns: int | None = None) -> None:
        """A message of a queue is handed out."""
        if delivery is not None and not is_suppressed():
            destination, attributes = of_message(delivery, delivery.channel.queue, delivery.delivery_tag)
            links = links_of([headers_of(delivery)])
            self._span("receive", RABBITMQ, destination, links, attributes, began_ns)

    def note_many(self, handle: Any, deliveries: DeliveryBatch[Any], began_ns: int) -> None:
        """Messages of a queue are handed out together."""
        if deliveries and not is_suppressed():
            attributes = {**vhost_attribute(handle.vhost), "messaging.batch.message_count": len(deliveries)}
            links = links_of(map(headers_of, deliveries))
            self._span("receive", RABBITMQ, handle.name, links, attributes, began_ns)

    def record(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Around what hands out a topic's messages one by one."""

        @functools.wraps(original)
        def take_now(iteration: Any) -> Any:
            record: ReadMessage | None = original(iteration)
            if record is not None and not is_suppressed():
                links = links_of([record.properties])
                self._span("receive", ROCKETMQ, record.topic, links, of_record(record, group_of(record)))
            return record

        return take_now

    def read(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a verb that returns a batch of a topic's messages."""

        @functools.wraps(original)
        def read(handle: Any, *args: Any, **kwargs: Any) -> Any:
            began_ns = time.time_ns()
            records = original(handle, *args, **kwargs)
            self.note_records(handle, records, began_ns)
            return records

        return read

    def awaited_read(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def read(handle: Any, *args: Any, **kwargs: Any) -> Any:
            began_ns = time.time_ns()
            records = await original(handle, *args, **kwargs)
            self.note_records(handle, records, began_ns)
            return records

        return read

    def note_records(self, handle: Any, records: Sequence[ReadMessage], began_ns: int) -> None:
        """Messages of a topic are handed out together."""
        if records and not is_suppressed():
            attributes = {
                "messaging.consumer.group.name": handle.group,
                "messaging.batch.message_count": len(records),
            }
            links = links_of(record.properties for record in records)
            self._span("receive", ROCKETMQ, handle.topic, links, attributes, began_ns)

    def _span(  # noqa: PLR0917
        self, name: str, system: str, destination: str, links: Any, attributes: Any, began_ns: int | None = None
    ) -> None:
        operation = Operation(
            type="receive", name=name, system=system, destination=destination, links=links, attributes=attributes
        )
        operation.start(self._tracer, began_ns).end()


@attrs.frozen(eq=False)
class _Batch(Iterator[DeliveredMessage]):
    """The messages of a batch, each with its span as it is handed out."""

    rest: Iterator[DeliveredMessage]
    _receiving: _Receiving

    def __next__(self) -> DeliveredMessage:
        delivery = next(self.rest)
        self._receiving.note(delivery)
        return delivery


@attrs.frozen(eq=False)
class _Settling:
    """Wrappers around what settles."""

    _tracer: Tracer

    def single(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Around what settles one delivery."""

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def settle(delivery: DeliveredMessage, *args: Any, **kwargs: Any) -> None:
                if delivery.settled or is_suppressed():
                    original(delivery, *args, **kwargs)
                    return
                with ended(self.start(_named(name, kwargs), [delivery])):
                    original(delivery, *args, **kwargs)

            return settle

        return wrap

    def awaited_single(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            async def settle(delivery: DeliveredMessage, *args: Any, **kwargs: Any) -> None:
                if delivery.settled or is_suppressed():
                    await original(delivery, *args, **kwargs)
                    return
                with ended(self.start(_named(name, kwargs), [delivery])):
                    await original(delivery, *args, **kwargs)

            return settle

        return wrap

    def many(self, original: Callable[..., None]) -> Callable[..., None]:
        """Wrap a function that settles deliveries together."""

        @functools.wraps(original)
        def settle_many(deliveries: Iterable[DeliveredMessage], outcome: str) -> None:
            batch = deliveries if isinstance(deliveries, (DeliveryBatch, list)) else list(deliveries)
            unsettled = [delivery for delivery in batch if not delivery.settled]
            if not unsettled or is_suppressed():
                original(batch, outcome)
                return
            with ended(self.start(OUTCOMES[outcome], unsettled, together=True)):
                original(batch, outcome)

        return settle_many

    def start(self, name: str, deliveries: Sequence[DeliveredMessage], *, together: bool = False) -> Span:
        """Begin a span that settles messages of queues, most often of one."""
        vhost, queue_name = queue_of = deliveries[0].channel.queue
        if together:
            destination, attributes = queue_name, vhost_attribute(vhost)
            attributes = {**attributes, "messaging.batch.message_count": len(deliveries)}
        else:
            destination, attributes = of_message(deliveries[0], queue_of, deliveries[0].delivery_tag)
        links = links_of(map(headers_of, deliveries))
        return Operation(
            type="settle", name=name, system=RABBITMQ, destination=destination, links=links, attributes=attributes
        ).start(self._tracer)

    def commit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the verb that commits how far a group has read."""

        @functools.wraps(original)
        def commit(handle: Any, *args: Any, **kwargs: Any) -> Any:
            if is_suppressed():
                return original(handle, *args, **kwargs)
            with ended(self._start_commit(handle)):
                return original(handle, *args, **kwargs)

        return commit

    def awaited_commit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def commit(handle: Any, *args: Any, **kwargs: Any) -> Any:
            if is_suppressed():
                return await original(handle, *args, **kwargs)
            with ended(self._start_commit(handle)):
                return await original(handle, *args, **kwargs)

        return commit

    def _start_commit(self, handle: Any) -> Span:
        if isinstance(handle, ReadMessage):
            links, attributes = links_of([handle.properties]), of_record(handle, group_of(handle))
        else:
            links, attributes = [], {"messaging.consumer.group.name": handle.group}
        return Operation(
            type="settle", name="commit", system=ROCKETMQ, destination=handle.topic, links=links, attributes=attributes
        ).start(self._tracer)


def _named(name: str, arguments: dict[str, Any]) -> str:
    """Return AMQP's name of an operation: a nack that does not requeue is a reject."""
    return "reject" if name == "nack" and not arguments.get("requeue", True) else name


@attrs.frozen(eq=False)
class _Handling:
    """Wrappers around ``with delivery:``: the span of processing it, which is current in the block."""

    _tracer: Tracer
    _open: dict[int, tuple[Span, Any]] = attrs.Factory(dict)
    """The spans of deliveries that are in a block at the moment, by the identity of the delivery."""

    def enter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def enter(delivery: DeliveredMessage) -> Any:
            self._begin(delivery)
            return original(delivery)

        return enter

    def awaited_enter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def enter(delivery: DeliveredMessage) -> Any:
            self._begin(delivery)
            return await original(delivery)

        return enter

    def exit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def leave(delivery: DeliveredMessage, kind: Any, error: Any, traceback: Any) -> Any:
            try:
                return original(delivery, kind, error, traceback)
            finally:
                self._end(delivery, error)

        return leave

    def awaited_exit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def leave(delivery: DeliveredMessage, kind: Any, error: Any, traceback: Any) -> Any:
            try:
                return await original(delivery, kind, error, traceback)
            finally:
                self._end(delivery, error)

        return leave

    def _begin(self, delivery: DeliveredMessage) -> None:
        if not is_suppressed():
            span = start_processing(delivery, self._tracer)
            self._open[id(delivery)] = span, contexts.attach(trace.set_span_in_context(span))

    def _end(self, delivery: DeliveredMessage, error: BaseException | None) -> None:
        span, token = self._open.pop(id(delivery), (None, None))
        if span is not None and token is not None:
            contexts.detach(token)
            if error is not None:
                fail(span, error)
            span.end()
