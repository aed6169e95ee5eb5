"""Run a scenario: make the node and its clients, apply the events, and collect the result."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final

import numpy as np

from warren.simulation.node.replayed_consumer import ReplayedConsumer
from warren.simulation.node.simulated_node import SimulatedNode
from warren.simulation.node.workload import SimulatedConsumer, SimulatedPublisher
from warren.simulation.result import Result, summarize
from warren.simulation.scenarios.curves import Curve
from warren.simulation.scenarios.recorded import Consumption
from warren.simulation.scenarios.scenario import Event, PublisherSpec, Scenario
from warren.simulation.scenarios.units import moment, ns
from warren.simulation.timeline import Line, Timeline
from warren.storage.call_arguments import checked

Progress = Callable[[float], None]
"""Called once a step with the share of the simulated time that has passed."""

_FACTOR_EVENTS: Final = {"publishers-down", "publishers-factor"}


class Simulation:
    """One scenario in motion. :func:`simulate` is what most want; step by step: :meth:`advance`."""

    @checked
    def __init__(self, scenario: Scenario, *, check_invariants: bool = False) -> None:
        self.scenario = scenario
        self.node = SimulatedNode(scenario, check_invariants=check_invariants)
        queues = self.node.queues
        lines: list[Line] = []
        for spec in scenario.queues:
            if spec.summed:
                lines.append(Line(spec.name, [queues[name] for name in spec.names]))
            else:
                lines += [Line(name, [queues[name]]) for name in spec.names]
        self.timeline = Timeline(self.node, lines)
        self._line_of = {queue.name: line for line in lines for queue in line.queues}
        self.publishers: list[SimulatedPublisher] = []
        self.consumers: dict[str, list[SimulatedConsumer | ReplayedConsumer]] = {}
        self._add_publishers()
        self._add_consumers()
        for event in scenario.events:
            self._add_event(event)
        self.node.time.env.process(self._sample())

    # ── who works with it ───────────────────────────────────────────────────────────────────────────────────────

    def _rng(self, *names: object) -> np.random.Generator:
        """Return a generator that does not depend on what else is in the scenario."""
        words = [zlib.crc32(str(name).encode()) for name in names]
        return np.random.default_rng([self.scenario.seed, *words])

    def _moment(self, value: float | str) -> float:
        return moment(value, self.scenario.start)

    def _add_publishers(self) -> None:
        scenario = self.scenario
        for number, spec in enumerate(scenario.publishers):
            for name in scenario.queues_of(spec.queue):
                curve = self._curve(spec, name)
                for instance in range(spec.count):
                    self.publishers.append(
                        SimulatedPublisher(
                            self.node,
                            self.node.queues[name],
                            spec,
                            curve,
                            self._rng("publisher", number, name, instance),
                            granularity_s=scenario.granularity,
                        )
                    )

    def _curve(self, spec: PublisherSpec, queue: str) -> Curve:
        scenario = self.scenario
        spans: list[tuple[float, float, float]] = []
        start = self._moment(spec.start)
        end = scenario.length if spec.end is None else self._moment(spec.end)
        spans += [(0.0, start, 0.0), (end, scenario.length, 0.0)]
        for event in scenario.events:
            if event.what in _FACTOR_EVENTS and queue in scenario.queues_of(event.queue):
                factor = 0.0 if event.what == "publishers-down" else float(event.value or 0.0)
                spans.append((*self._span(event), factor))
        return spec.rate.curve(scenario.start, scenario.length).scaled(spans)

    def _span(self, event: Event) -> tuple[float, float]:
        until = self.scenario.length if event.until is None else self._moment(event.until)
        return self._moment(event.at), min(until, self.scenario.length)

    def _add_consumers(self) -> None:
        scenario = self.scenario
        for number, spec in enumerate(scenario.consumers):
            for name in scenario.queues_of(spec.queue):
                if spec.record is not None:
                    self._add_replayed(spec.record, name, f"consumer-{number}")
                    continue
                for instance in range(spec.count):
                    consumer = SimulatedConsumer(
                        self.node,
                        self.node.queues[name],
                        spec,
                        f"consumer-{number}-{instance}",
                        self._rng("consumer", number, name, instance),
                        granularity_s=scenario.granularity,
                        latencies=self._line_of[name].latencies.add,
                    )
                    self.consumers.setdefault(name, []).append(consumer)
                    for outage in spec.outages:
                        at = self._moment(outage.at)
                        self._span_calls(at, at + outage.lasting, consumer.go_down, consumer.come_back)
            for outage in spec.outages if spec.record is None else ():
                at = self._moment(outage.at)
                self._mark_span(at, at + outage.lasting, f"consumers-down: {spec.queue}")

    def _add_replayed(self, record: Consumption, name: str, tag: str) -> None:
        queue, latencies = self.node.queues[name], self._line_of[name].latencies.add
        consumer = ReplayedConsumer(self.node, queue, record, tag, latencies=latencies)
        self.consumers.setdefault(name, []).append(consumer)

    # ── what happens to it ──────────────────────────────────────────────────────────────────────────────────────

    def _at(self, at_s: float, call: Callable[[], object]) -> None:
        if at_s <= self.scenario.length:
            self.node.time.after(ns(at_s), call)

    def _span_calls(self, at: float, until: float, begin: Callable[[], object], end: Callable[[], object]) -> None:
        self._at(at, begin)
        self._at(until, end)

    def _mark_span(self, at: float, until: float, text: str) -> None:
        self._span_calls(at, until, lambda: self.node.mark("event", text), lambda: self.node.mark("event-ends", text))

    def _add_event(self, event: Event) -> None:
        node = self.node
        at, until = self._span(event)
        value: Any = event.value
        names = self.scenario.queues_of(event.queue)
        text = event.what if event.queue == "*" else f"{event.what}: {event.queue}"
        self._at(at, lambda: node.mark("event", text))
        if event.what != "purge" and until < self.scenario.length:
            self._at(until, lambda: node.mark("event-ends", text))
        consumers = [consumer for name in names for consumer in self.consumers.get(name, [])]
        if event.what == "consumers-down":
            for consumer in consumers:
                self._span_calls(at, until, consumer.go_down, consumer.come_back)
        elif event.what == "consumers-factor":
            for consumer in consumers:
                begin, end = (partial(setattr, consumer, "factor", factor) for factor in (value, 1.0))
                self._span_calls(at, until, begin, end)
        elif event.what == "purge":
            for name in names:
                self._at(at, partial(node.queues[name].tell, node.queues[name].purge))
        elif event.what == "watermark":
            previous_watermark = node.settings.vm_memory_high_watermark
            self._span_calls(
                at, until, lambda: node.set_watermark(value), lambda: node.set_watermark(previous_watermark)
            )

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _sample(self) -> Generator[Any, Any, None]:
        scenario = self.scenario
        for step in range(1, scenario.steps + 1):
            at_ns = ns(min(step * scenario.step, scenario.length))
            yield self.node.time.env.timeout(at_ns - self.node.time.now_ns())
            self.timeline.take()

    def advance(self, until_s: float) -> None:
        """Let the simulation go on until a moment, including everything that happens at it."""
        env, until_ns = self.node.time.env, ns(until_s)
        while env.peek() <= until_ns:
            env.step()

    def run(self, progress: Progress | None = None) -> Result:
        """Run the simulation to its end."""
        scenario = self.scenario
        for step in range(1, scenario.steps + 1):
            self.advance(min(step * scenario.step, scenario.length))
            if progress is not None:
                progress(step / scenario.steps)
        self.node.finish()
        return Result(
            scenario=scenario,
            timeline_columns=self.timeline.queue_columns,
            node_columns=self.timeline.node_columns,
            marks=tuple(self.node.marks),
            summary=summarize(scenario, self.node, self.timeline),
        )


def simulate(scenario: Scenario, *, progress: Progress | None = None, check_invariants: bool = False) -> Result:
    """Run a scenario to its end. The same scenario and seed give the same result, byte for byte.

    ``check_invariants``: run every engine's checker after every turn, which is slow.
    """
    return Simulation(scenario, check_invariants=check_invariants).run(progress)
