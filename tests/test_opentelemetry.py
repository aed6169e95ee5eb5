"""Spans: which there are, what they say, and how they hang together, by the SDK's own exporter."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import attrs
import kombu
import pytest
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import warren.kombu
from tests.support.waiting import wait_until
from warren import aio
from warren.errors import PublishRefusedError
from warren.opentelemetry import WarrenInstrumentor, context_of, processing
from warren.verbs.instrumentation import HOOK


class Sent(SpanProcessor):
    """Counts what has ended that sent."""

    count = 0

    def on_end(self, span: ReadableSpan) -> None:
        self.count += (span.attributes or {}).get("messaging.operation.type") == "send"


@attrs.define
class Spans:
    """What was exported."""

    exporter: InMemorySpanExporter
    provider: TracerProvider
    sent: Sent
    expected: int = 0

    def safe(self, confirm: Any) -> None:
        """Wait until a publish is safe, and its span has ended: another thread may do both."""
        confirm.wait()
        self.expected += 1
        wait_until(lambda: self.sent.count >= self.expected, "the span of a publish")

    def take(self) -> list[ReadableSpan]:
        """Those that have ended since the last time."""
        found = list(self.exporter.get_finished_spans())
        self.exporter.clear()
        return found

    def names(self) -> list[str]:
        return [span.name for span in self.take()]


@pytest.fixture
def spans() -> Iterator[Spans]:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    provider.add_span_processor(sent := Sent())
    WarrenInstrumentor().instrument(tracer_provider=provider)
    yield Spans(exporter, provider, sent)
    WarrenInstrumentor().uninstrument()


@pytest.fixture
def node() -> Iterator[warren.Node]:
    with warren.open(":memory:", sync="os") as opened:
        yield opened


@pytest.fixture(params=["memory", "host", "guest"])
def any_node(request: pytest.FixtureRequest) -> warren.Node:
    """A node in this process, the host of a shared directory, and one who reaches it by its socket."""
    found: warren.Node = request.getfixturevalue("node" if request.param == "memory" else request.param)
    return found


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


# ── one message ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_of_a_queue_has_four_spans(any_node: warren.Node, spans: Spans) -> None:
    queue = any_node.queue("jobs")
    spans.safe(queue.publish(b"hello", message_id="m1", correlation_id="c1", headers={"own": 1}))
    with queue.get() or pytest.fail("nothing") as delivery:
        assert (delivery.body, delivery.headers["own"]) == (b"hello", 1)
        assert delivery.headers["traceparent"].startswith("00-")
        tag = delivery.delivery_tag
    send, receive, settle, process = spans.take()
    said = {
        "messaging.system": "rabbitmq",
        "messaging.destination.name": "jobs",
        "messaging.rabbitmq.destination.routing_key": "jobs",
        "messaging.message.id": "m1",
        "messaging.message.conversation_id": "c1",
        "messaging.message.body.size": 5,
    }
    kinds = [
        (send, "publish jobs", SpanKind.PRODUCER, "send", "publish"),
        (receive, "receive jobs", SpanKind.CLIENT, "receive", "receive"),
        (process, "process jobs", SpanKind.CONSUMER, "process", "process"),
        (settle, "ack jobs", SpanKind.CLIENT, "settle", "ack"),
    ]
    for span, name, kind, operation, verb in kinds:
        tags = {} if span is send else {"messaging.rabbitmq.message.delivery_tag": tag}
        own = {"messaging.operation.type": operation, "messaging.operation.name": verb}
        assert (span.name, span.kind, dict(span.attributes or {})) == (name, kind, {**said, **tags, **own})
        assert span.status.status_code is StatusCode.UNSET
    assert [linked(span) for span in (send, receive, settle, process)] == [[], *[[id_of(send)]] * 3]
    assert process.parent is not None
    assert settle.parent is not None
    assert (process.parent.span_id, settle.parent.span_id) == (id_of(send), id_of(process))


def test_in_the_scope_of_another_span_processing_is_its_child_and_linked(node: warren.Node, spans: Spans) -> None:
    queue = node.queue("jobs")
    spans.safe(queue.publish(b"x"))
    tracer = trace.get_tracer("test", tracer_provider=spans.provider)
    with tracer.start_as_current_span("request") as request, queue.get() or pytest.fail("nothing"):
        spans.safe(queue.publish(b"more"))
    send, receive, inner, settle, process, _ = spans.take()
    assert process.parent is not None
    assert inner.parent is not None
    assert receive.parent is not None
    assert process.parent.span_id == receive.parent.span_id == request.get_span_context().span_id
    assert linked(process) == [id_of(send)]
    assert inner.parent.span_id == id_of(process)
    assert settle.name == "ack jobs"


def test_work_that_fails_is_an_error_of_its_span_and_the_message_is_given_back(node: warren.Node, spans: Spans) -> None:
    queue = node.queue("jobs")
    spans.safe(queue.publish(b"x"))
    spans.take()
    with pytest.raises(ZeroDivisionError), queue.get() or pytest.fail("nothing"):
        _ = 1 / 0
    receive, settle, process = spans.take()
    assert (settle.name, settle.status.status_code) == ("retry jobs", StatusCode.UNSET)
    assert process.status.status_code is StatusCode.ERROR
    assert (process.attributes or {})["error.type"] == "ZeroDivisionError"
    assert process.events[0].name == "exception"
    assert receive.name == "receive jobs"


def test_a_message_that_is_refused_is_an_error_of_the_span_that_sent_it(node: warren.Node, spans: Spans) -> None:
    queue = node.queue("jobs", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    with pytest.raises(PublishRefusedError):
        spans.safe(queue.publish(b"x"))
    [send] = spans.take()
    assert send.status.status_code is StatusCode.ERROR
    assert (send.attributes or {})["error.type"] == "PublishRefusedError"
    with pytest.raises(warren.WarrenError):
        queue.publish("no bytes")  # type: ignore[arg-type]
    [send] = spans.take()
    assert (send.attributes or {})["error.type"] == "MessageError"


def test_a_context_that_somebody_gave_a_message_stays(node: warren.Node, spans: Spans) -> None:
    queue = node.queue("jobs")
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    spans.safe(queue.publish(b"x", headers={"traceparent": given}))
    delivery = queue.get()
    assert delivery is not None
    assert delivery.headers["traceparent"] == given
    send, receive = spans.take()
    assert send.kind is SpanKind.CLIENT
    assert linked(send) == linked(receive) == [0xB7AD6B7169203331]
    found = trace.get_current_span(context_of(delivery)).get_span_context()
    assert (found.trace_id, found.span_id) == (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)


def test_a_dead_letter_is_linked_to_who_sent_it(node: warren.Node, spans: Spans) -> None:
    queue = node.queue("jobs", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    dead = node.queue("dead")
    spans.safe(queue.publish(b"x"))
    (queue.get() or pytest.fail("nothing")).reject()
    dead.get(timeout=10)
    send, _, reject, receive = spans.take()
    assert reject.name == "reject jobs"
    assert (receive.name, linked(receive)) == ("receive dead", [id_of(send)])


# ── many, and where to ──────────────────────────────────────────────────────────────────────────────────────────────


def test_messages_that_are_sent_got_and_settled_together_have_a_span_each_time(
    any_node: warren.Node, spans: Spans
) -> None:
    queue = any_node.queue("jobs")
    spans.safe(queue.publish_many(body for body in (b"1", b"2", b"3")))
    spans.safe(queue.publish_many([b"4", b"5"], headers=[{"n": 4}, None]))
    got = queue.get_many(10)
    assert [one.body for one in got] == [b"1", b"2", b"3", b"4", b"5"]
    queue.ack(got)
    first, second, receive, settle = spans.take()
    assert [(one.name, (one.attributes or {})["messaging.batch.message_count"]) for one in (first, second)] == [
        ("publish jobs", 3),
        ("publish jobs", 2),
    ]
    for span, name in ((receive, "receive jobs"), (settle, "ack jobs")):
        assert (span.name, (span.attributes or {})["messaging.batch.message_count"]) == (name, 5)
        assert linked(span) == [id_of(first), id_of(second)]


def test_exchanges_keys_and_queues_are_named_as_the_conventions_have_it(node: warren.Node, spans: Spans) -> None:
    events = node.exchange("events", "topic")
    node.queue("all")
    node.bind("all", "events", "#")
    spans.safe(events.publish(b"x", "user.new"))
    spans.safe(events.publish_many([b"y"], "user.new"))
    spans.safe(node.publish_to(["all"], b"z"))
    with node.queue("all").consume() as consumer:
        for delivery in islice(consumer, 3):
            delivery.ack()
    assert spans.names() == [
        *("publish events:user.new",) * 2,
        "publish all",
        *("receive events:user.new:all", "ack events:user.new:all") * 2,
        *("receive all", "ack all"),
    ]
    anonymous = node.queue("")
    spans.safe(anonymous.publish(b"x"))
    [send] = spans.take()
    assert send.name == "publish"
    assert (send.attributes or {})["messaging.destination.anonymous"] is True
    other = node.vhost("shop").queue("q")
    spans.safe(other.publish(b"x"))
    assert (spans.take()[0].attributes or {})["warren.vhost"] == "shop"


def test_what_is_not_there_and_what_is_kept_ahead_has_no_span(node: warren.Node, spans: Spans) -> None:
    queue = node.queue("jobs")
    assert queue.get() is None
    assert queue.get_many(10) == []
    assert spans.names() == []
    spans.safe(queue.publish_many([b"1", b"2", b"3"]))
    spans.take()
    with queue.consume(timeout=0) as consumer:
        assert [next(consumer).body, next(consumer).body] == [b"1", b"2"]
    assert spans.names() == ["receive jobs"] * 2  # the third was there too, and went back


def test_nothing_is_traced_where_tracing_is_suppressed(node: warren.Node, spans: Spans) -> None:
    queue = node.queue("jobs")
    token = contexts.attach(contexts.set_value("suppress_instrumentation", True))
    try:
        queue.publish(b"x").wait()
        with queue.get() or pytest.fail("nothing") as delivery:
            assert "traceparent" not in delivery.headers
    finally:
        contexts.detach(token)
    assert spans.names() == []


# ── coroutines ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_coroutines_have_the_same_spans(any_node: warren.Node, spans: Spans) -> None:
    async def program() -> None:
        node = aio.Node(any_node)
        queue = await node.queue("jobs")
        await queue.publish(b"1")
        await queue.publish_nowait(b"2")
        await queue.publish_many([b"3", b"4"])
        async with await queue.get() or pytest.fail("nothing"):
            assert trace.get_current_span().get_span_context().is_valid
        assert not trace.get_current_span().get_span_context().is_valid
        async with queue.consume() as consumer:
            async for delivery in consumer:
                await delivery.nack(requeue=False)
                break
        got = await queue.get_many(10)
        await queue.nack(got, requeue=False)
        events = await node.exchange("events", "fanout")
        await events.publish(b"nowhere")
        await node.publish_to(["jobs"], b"5")

    asyncio.run(program())
    assert spans.names() == [
        *("publish jobs",) * 3,
        *("receive jobs", "ack jobs", "process jobs"),
        *("receive jobs", "reject jobs"),
        *("receive jobs", "reject jobs"),
        *("publish events", "publish jobs"),
    ]


def test_tasks_side_by_side_have_their_own_current_spans(node: warren.Node, spans: Spans) -> None:
    async def work(queue: aio.Queue, number: int) -> None:
        async with await queue.get(timeout=None) or pytest.fail("nothing") as delivery:
            await asyncio.sleep(0)
            await queue.publish(b"child of " + delivery.body, headers={"n": number})

    async def program() -> None:
        queue = await aio.Node(node).queue("jobs")
        await queue.publish(b"a")
        await queue.publish(b"b")
        await asyncio.gather(work(queue, 1), work(queue, 2))

    asyncio.run(program())
    found = spans.take()
    processed = {id_of(span) for span in found if span.name == "process jobs"}
    children = {span.parent.span_id for span in found if span.name == "publish jobs" and span.parent is not None}
    assert children == processed
    assert len(processed) == 2


# ── Kombu ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_kombu_sends_and_hands_to_callbacks_has_spans(tmp_path: Path, spans: Spans) -> None:
    current: list[int] = []

    def callback(body: Any, message: Any) -> None:
        current.append(trace.get_current_span().get_span_context().span_id)
        message.ack()

    with kombu.Connection(f"warren://{tmp_path / 'data'}") as connection:
        queue = kombu.Queue("jobs", kombu.Exchange("events", "direct"), "key")
        with connection.Producer() as producer:
            confirm = producer.publish({"n": 1}, exchange=queue.exchange, routing_key="key", declare=[queue])
            spans.safe(confirm)
        with connection.Consumer([queue], callbacks=[callback]):
            connection.drain_events(timeout=10)
    send, receive, settle, process = spans.take()
    assert [send.name, receive.name, settle.name, process.name] == [
        "publish events:key", "receive events:key:jobs", "ack jobs", "process events:key:jobs",
    ]  # fmt: skip
    assert current == [id_of(process)]
    assert linked(process) == linked(receive) == linked(settle) == [id_of(send)]


def test_a_message_that_kombu_returns_as_failed_has_a_span(tmp_path: Path, spans: Spans) -> None:
    with kombu.Connection(f"warren://{tmp_path / 'data'}") as connection, connection.Producer() as producer:
        queue = kombu.Queue("jobs")(producer.channel)
        spans.safe(producer.publish({"n": 1}, routing_key="jobs", declare=[queue]))
        (queue.get() or pytest.fail("nothing")).requeue()
    assert spans.names() == ["publish jobs", "receive jobs", "reject jobs"]


# ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_messages_of_topics_have_spans_as_the_conventions_for_rocketmq_have_it(
    any_node: warren.Node, spans: Spans
) -> None:
    topic = any_node.topic("events")
    spans.safe(topic.append(b"one", key="k", tag="T", properties={"own": "1"}))
    with topic.reader("group", auto_commit=False) as reader:
        [record] = reader.records(1, 10)
        with processing(record, spans.provider):
            record.commit()
        assert record.properties["own"] == "1"
    send, receive, settle, process = spans.take()
    said = {
        "messaging.system": "rocketmq",
        "messaging.destination.name": "events",
        "messaging.message.body.size": 3,
        "messaging.rocketmq.message.tag": "T",
        "messaging.rocketmq.message.keys": ("k",),
    }
    taken = {
        "messaging.consumer.group.name": "group",
        "messaging.destination.partition.id": str(record.queue_id),
        "messaging.message.id": record.message_id,
    }
    normal = {"messaging.rocketmq.message.type": "normal"}
    for span, name, kind, operation, more in (
        (send, "send", SpanKind.PRODUCER, "send", normal),
        (receive, "receive", SpanKind.CLIENT, "receive", taken),
        (process, "process", SpanKind.CONSUMER, "process", taken),
        (settle, "commit", SpanKind.CLIENT, "settle", taken),
    ):
        own = {"messaging.operation.type": operation, "messaging.operation.name": name}
        assert (span.name, span.kind) == (f"{name} events", kind)
        assert dict(span.attributes or {}) == {**said, **own, **more}
    assert [linked(span) for span in (send, receive, settle, process)] == [[], *[[id_of(send)]] * 3]
    assert process.parent is not None
    assert process.parent.span_id == id_of(send)


def test_batches_of_topics_and_transactions(node: warren.Node, spans: Spans) -> None:
    topic = node.topic("events", queues=1)
    spans.safe(topic.append_many([b"1", b"2"], keys=["a", "b"]))
    topic.prepare(b"3").commit()
    with topic.reader("group") as reader:
        assert [record.body for record in reader.read(2, timeout=10)] == [b"1", b"2"]
        assert [record.body for record in reader.read(2, timeout=10)] == [b"3"]
        reader.commit()
    send, prepare, receive, receive_committed, settle = spans.take()
    assert [send.name, prepare.name, receive.name, settle.name] == [
        "send events", "prepare events", "receive events", "commit events",
    ]  # fmt: skip
    assert (send.attributes or {})["messaging.batch.message_count"] == 2
    assert (receive.attributes or {})["messaging.batch.message_count"] == 2
    assert (prepare.attributes or {})["messaging.rocketmq.message.type"] == "transaction"
    assert linked(receive) == [id_of(send)]
    assert linked(receive_committed) == [id_of(prepare)]


def test_topics_of_coroutines(any_node: warren.Node, spans: Spans) -> None:
    async def program() -> None:
        topic = await aio.Node(any_node).topic("events")
        await topic.append(b"1")
        await topic.append_nowait(b"2")
        await topic.append_many([b"3"])
        async with topic.reader("group", auto_commit=False) as reader:
            left = 3
            async for record in reader.records(timeout=10):
                await record.commit()
                if not (left := left - 1):
                    break

    asyncio.run(program())
    assert spans.names() == [*("send events",) * 3, *("receive events", "commit events") * 3]


# ── on and off ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_hangs_on_one_hook_and_replaces_nothing() -> None:
    modules = [sys.modules[name] for name in sorted(sys.modules) if name.startswith("warren.") and name in sys.modules]
    places = [*modules, *(value for module in modules for value in vars(module).values() if isinstance(value, type))]
    before = [dict(vars(place)) for place in places]
    instrumentor = WarrenInstrumentor()
    assert instrumentor is WarrenInstrumentor()
    assert HOOK.instrumentation is None
    instrumentor.instrument(skip_dep_check=True)
    hanging = HOOK.instrumentation
    instrumentor.instrument()
    assert instrumentor.is_instrumented_by_opentelemetry
    assert HOOK.instrumentation is hanging
    assert [dict(vars(place)) for place in places] == before
    instrumentor.uninstrument()
    assert not instrumentor.is_instrumented_by_opentelemetry
    assert HOOK.instrumentation is None


def test_without_an_sdk_messages_stay_as_they_are(node: warren.Node) -> None:
    WarrenInstrumentor().instrument()
    try:
        queue = node.queue("jobs")
        queue.publish(b"x").wait()
        with queue.get() or pytest.fail("nothing") as delivery:
            assert delivery.properties.headers is None
    finally:
        WarrenInstrumentor().uninstrument()


def test_a_program_that_does_not_ask_for_it_does_not_load_it() -> None:
    told = """if True:
        import sys, warren
        with warren.open(":memory:") as node:
            queue = node.queue("q")
            queue.publish(b"x").wait()
            queue.get().ack()
        print([name for name in sys.modules if "opentelemetry" in name])
        sys.modules["opentelemetry"] = None
        try:
            import warren.opentelemetry
        except ModuleNotFoundError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "[]",
        'spans need OpenTelemetry\'s API: pip install "warrenmq[opentelemetry]"',
    ]


def test_the_entry_point_leads_to_the_instrumentor() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["opentelemetry_instrumentor"] == {
        "warren": "warren.opentelemetry:WarrenInstrumentor"
    }
