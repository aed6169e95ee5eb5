"""One run of the demo: the acts one after the other, and what they come to."""

from __future__ import annotations

import time

import attrs

from examples.demo import acts, fleet, queue_types, topics
from examples.demo.acts import Drained, Recovered, Stage
from examples.demo.checking import Check
from examples.demo.dead_rocketmq import Salvaged, salvage
from examples.demo.fleet import FleetPlayed
from examples.demo.killing import Killed
from examples.demo.measuring import Frame, peak_memory_bytes
from examples.demo.numbered import payload_bytes
from examples.demo.publisher import Plan, open_directory
from examples.demo.queue_types import TypesPlayed
from examples.demo.screen import Screen
from examples.demo.shipped import Shipped
from examples.demo.summary import Summary
from examples.demo.topics import TopicPlayed
from warren.actors.vhost import Vhost


def run(directory: str, total: int, screen: Screen, *, with_spark: bool = True) -> Summary:
    """Play the demo with ``total`` messages in ``directory``, which is empty or not there.

    Raises :class:`warren.storage.errors.WarrenError` where an act cannot be finished.
    """
    began_at = time.monotonic()
    stage = Stage(directory, Plan(total), screen)
    shipped = acts.look(stage)
    acts.move_in(stage, shipped)
    killed = acts.publish_and_kill(stage, shipped)
    screen.heading(4, "The directory is opened again and recovered")
    opened_at = time.monotonic()
    with stage.opened(open_directory(directory, shipped.vhost)) as vhost:
        recovered = acts.recover(stage, opened_at, vhost)
        contradictions = _contradictions(vhost)
        last = acts.publish_rest(stage, vhost, killed.last.done)
        drained = acts.drain(stage, shipped, vhost, killed.last.done)
        contradictions += _contradictions(vhost)
    left, peak_bytes = _left(stage, shipped), peak_memory_bytes()
    types, salvaged, topic = queue_types.play(stage), salvage(stage), topics.play(stage)
    outcome = Outcome(
        stage=stage,
        shipped=shipped,
        killed=killed,
        recovered=recovered,
        last=last,
        drained=drained,
        contradictions=contradictions,
        left=left,
        peak_bytes=peak_bytes,
        types=types,
        salvaged=salvaged,
        topic=topic,
        fleet=fleet.play(stage, shipped, salvaged.oracle) if with_spark else None,
    )
    summary = outcome.summary(time.monotonic() - began_at)
    screen.heading(11, "What it came to")
    screen.put(summary.tables())
    return summary


def _contradictions(vhost: Vhost) -> list[str]:
    """What the engine's own checks say."""
    try:
        vhost.check_invariants()
    except RuntimeError as error:
        return [str(error)]
    return []


def _left(stage: Stage, shipped: Shipped) -> tuple[int, int]:
    """Messages in the queues and bodies in the store when the directory, stopped cleanly, is opened once more."""
    with stage.opened(open_directory(stage.directory, shipped.vhost)) as vhost:
        return sum(queue.depth for queue in vhost.queues.values()), vhost.persistent_store.status().messages


@attrs.frozen(kw_only=True)
class Outcome:
    """What the acts brought."""

    stage: Stage
    shipped: Shipped
    killed: Killed
    recovered: Recovered
    last: Frame
    """Of the second publisher."""
    drained: Drained
    contradictions: list[str]
    left: tuple[int, int]
    peak_bytes: int
    types: TypesPlayed
    salvaged: Salvaged
    topic: TopicPlayed
    fleet: FleetPlayed | None

    def checks(self) -> list[Check]:
        """Everything that had to hold."""
        of_spark = [] if self.fleet is None else self.fleet.checks()
        others = [*self.types.checks(), *self.salvaged.checks(), *self.topic.checks()]
        return [*self._of_the_queues(), *others, *of_spark]

    def _of_the_queues(self) -> list[Check]:
        drained, numbered, taken_over = self.drained, self.drained.numbered, self.shipped.count
        expected = taken_over + self.stage.plan.total + numbered.survivors
        return [
            Check.that(
                "the publisher was killed by SIGKILL before it was done",
                self.killed.by_signal and self.killed.last.done < self.stage.plan.total,
                f"it ended after {self.killed.last.done:,} messages",
            ),
            Check.that(
                "the memory limit moved messages out to disk", self.stage.peaks.on_disk_only > 0, "none were there"
            ),
            Check.of(
                f"RabbitMQ's {taken_over:,} messages came first, in order, with id, exchange, routing keys, "
                "properties, headers and body as they were",
                drained.taken_over,
            ),
            Check.of("their bodies are those that RabbitMQ itself delivered from a copy", drained.delivered),
            Check.of(
                f"none of {self.killed.last.done:,} messages confirmed before the kill, nor of those after it, is lost",
                numbered.lost,
            ),
            Check.of("none is out of order", numbered.misplaced),
            Check.of("each is, to the last byte, what was published", numbered.damaged),
            Check.that(
                f"{expected:,} messages were fetched, neither more nor fewer",
                drained.fetched == expected,
                f"{drained.fetched:,} were fetched",
            ),
            Check.that("the engine's own invariants hold", not self.contradictions, "; ".join(self.contradictions)),
            Check.that(
                "after a clean stop and a start nothing is left",
                self.left == (0, 0),
                f"{self.left[0]:,} messages and {self.left[1]:,} bodies are",
            ),
        ]

    def summary(self, elapsed_s: float) -> Summary:
        """All of it in numbers."""
        stage, killed, drained = self.stage, self.killed, self.drained
        return Summary(
            directory=stage.directory,
            taken_over=self.shipped.count,
            published=stage.plan.total,
            payload_bytes=payload_bytes(stage.plan.total),
            confirmed_before_kill=killed.last.done,
            survivors=drained.numbered.survivors,
            publish_rate=killed.last.rate,
            publish_rate_after_recovery=self.last.rate,
            first_message_s=self.recovered.first_message_s,
            recovery_s=self.recovered.all_s,
            recovered=self.recovered.messages,
            fetched=drained.fetched,
            drain_rate=drained.fetched / drained.elapsed_s,
            memory_target=stage.plan.target,
            most_in_memory=stage.peaks.in_memory,
            most_on_disk_only=stage.peaks.on_disk_only,
            publisher_peak_bytes=killed.last.peak_memory_bytes,
            publisher_start_bytes=killed.start_memory_bytes,
            peak_bytes=self.peak_bytes,
            types=self.types,
            rocketmq=self.salvaged,
            topic=self.topic,
            fleet=self.fleet,
            elapsed_s=elapsed_s,
            checks=self.checks(),
        )
