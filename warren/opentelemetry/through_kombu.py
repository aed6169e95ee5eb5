"""Kombu's channels: a span for each message that a callback is given, and for what is settled through them.

What is published goes through an exchange's handle, and has its span there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Tracer

from warren.kombu import channel
from warren.opentelemetry.patches import Patches
from warren.opentelemetry.processing import start_processing
from warren.opentelemetry.receiving import settling
from warren.opentelemetry.spans import ended, is_suppressed


def patch(patches: Patches, tracer: Tracer) -> None:
    """Put the spans around what Kombu calls."""

    def deliver(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def handed(self: Any, subscription: Any, delivery: Any) -> None:
            if is_suppressed():
                original(self, subscription, delivery)
                return
            span = start_processing(delivery, tracer)
            with (
                ended(span),
                trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False),
            ):
                original(self, subscription, delivery)

        return handed

    patches.replace(channel.Channel, "deliver", deliver)
    patches.replace(channel, "settle", settling(tracer))
