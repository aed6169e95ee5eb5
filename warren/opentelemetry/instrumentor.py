"""WarrenInstrumentor: hangs the spans on the hook of the handles (:mod:`warren.verbs.instrumentation`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Span, Tracer, TracerProvider

from warren.handles.channel import DeliveredMessage
from warren.opentelemetry.receiving import (
    RECEIVING,
    SETTLING,
    of_handed_out,
    received,
    settled,
    settling_many,
    start_processing,
    tracer_of,
)
from warren.opentelemetry.sending import SENDING, sent
from warren.opentelemetry.spans import ended, fail, is_suppressed
from warren.values.read_message import ReadMessage
from warren.verbs.instrumentation import HOOK
from warren.verbs.steps import Steps


class SpanInstrumentation:
    """Makes the spans; an :class:`~warren.verbs.instrumentation.Instrumentation`."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: dict[int, tuple[Span, Any]] = {}
        """The spans of deliveries that are being processed, by the identity of the delivery."""

    def call(
        self,
        verb: Callable[..., Steps[Any]],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        becomes: Callable[[Any], Any] | None = None,
    ) -> Steps[Any]:
        function: Callable[..., Any] = getattr(verb, "__func__", verb)
        if is_suppressed():
            result = yield from verb(*args, **kwargs)
        elif (receives := RECEIVING.get(function)) is not None:
            return (yield from received(receives, self._tracer, verb, args, kwargs, becomes=becomes))
        elif (sends := SENDING.get(function)) is not None:
            result = yield from sent(sends, self._tracer, verb, args, kwargs)
        elif (settles := SETTLING.get(function)) is not None:
            result = yield from settled(settles, self._tracer, verb, args, kwargs)
        else:
            result = yield from verb(*args, **kwargs)
        return result if becomes is None else becomes(result)

    def handed_out(self, message: DeliveredMessage | ReadMessage) -> None:
        if not is_suppressed():
            of_handed_out(message).start(self._tracer).end()

    def settling(self, deliveries: Sequence[DeliveredMessage], outcome: str) -> AbstractContextManager[object]:
        if not deliveries or is_suppressed():
            return nullcontext()
        return ended(settling_many(self._tracer, deliveries, outcome))

    def enter(self, delivery: DeliveredMessage) -> None:
        if not is_suppressed():
            span = start_processing(delivery, self._tracer)
            self._open[id(delivery)] = span, contexts.attach(trace.set_span_in_context(span))

    def leave(self, delivery: DeliveredMessage, error: BaseException | None) -> None:
        span, token = self._open.pop(id(delivery), (None, None))
        if span is not None and token is not None:
            contexts.detach(token)
            if error is not None:
                fail(span, error)
            span.end()


class WarrenInstrumentor:
    """A singleton with the interface of OpenTelemetry's ``BaseInstrumentor``."""

    _instance: ClassVar[WarrenInstrumentor | None] = None

    def __new__(cls) -> WarrenInstrumentor:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Whether the spans are made at the moment."""
        return isinstance(HOOK.instrumentation, SpanInstrumentation)

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return no dependencies: it is part of the package that it instruments."""
        return ()

    def instrument(self, *, tracer_provider: TracerProvider | None = None, **_: Any) -> None:
        """Make spans from now on, of handles that are there too. ``tracer_provider``: ``None``: the global one.

        Once instrumented, more calls do nothing.
        """
        if not self.is_instrumented_by_opentelemetry:
            HOOK.instrumentation = SpanInstrumentation(tracer_of(tracer_provider))

    def uninstrument(self, **_: Any) -> None:
        """Make no more spans."""
        HOOK.instrumentation = None
