"""WarrenInstrumentor: puts the spans around the verbs, and takes them away."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any, ClassVar

from opentelemetry.trace import TracerProvider

from warren.opentelemetry import receiving, sending
from warren.opentelemetry.patches import Patches
from warren.opentelemetry.processing import tracer_of


class WarrenInstrumentor:
    """A singleton with the interface of OpenTelemetry's ``BaseInstrumentor``."""

    _instance: ClassVar[WarrenInstrumentor | None] = None
    _patches: Patches

    def __new__(cls) -> WarrenInstrumentor:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
            cls._instance._patches = Patches()
        return cls._instance

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Whether the spans are made at the moment."""
        return bool(self._patches)

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return no dependencies: it is part of the package that it instruments."""
        return ()

    def instrument(self, *, tracer_provider: TracerProvider | None = None, **_: Any) -> None:
        """Make spans from now on, of handles that are there too. ``tracer_provider``: ``None``: the global one.

        Once instrumented, more calls do nothing.
        """
        if self._patches:
            return
        tracer = tracer_of(tracer_provider)
        sending.patch(self._patches, tracer)
        receiving.patch(self._patches, tracer)
        with contextlib.suppress(ImportError):  # where Kombu is not installed
            from warren.opentelemetry import through_kombu

            through_kombu.patch(self._patches, tracer)

    def uninstrument(self, **_: Any) -> None:
        """Make no more spans."""
        self._patches.restore()
