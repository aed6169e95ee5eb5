"""OpenTelemetry: a span for each publish, receive, processing and settlement, and its context in the messages.

:class:`WarrenInstrumentor` works like OpenTelemetry's own instrumentations: call ``WarrenInstrumentor().instrument()``
once, at the beginning of a program, or use the command ``opentelemetry-instrument``, which finds it. It sees the verbs
that handles call (:mod:`warren.verbs.instrumentation`): those of threads, of coroutines, of a shared directory and
Kombu's. In a program that does not call it, a call costs one look at an attribute.

Names and attributes are those of the semantic conventions for messaging, RabbitMQ's for queues, RocketMQ's for topics.
Needs ``pip install "warrenmq[opentelemetry]"``, which is OpenTelemetry's API; its SDK decides how spans are exported.
"""

from __future__ import annotations

try:
    from warren.opentelemetry.instrumentor import WarrenInstrumentor
    from warren.opentelemetry.receiving import context_of, processing
except ModuleNotFoundError as error:
    if not str(error.name).startswith("opentelemetry"):
        raise
    raise ModuleNotFoundError(
        'spans need OpenTelemetry\'s API: pip install "warrenmq[opentelemetry]"', name=error.name
    ) from error

__all__ = ["WarrenInstrumentor", "context_of", "processing"]
