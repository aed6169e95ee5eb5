"""One run of the demo: the acts one after the other, and what they come to."""

from __future__ import annotations

import time

from actors.vhost import Vhost
from warren.demo import acts
from warren.demo.acts import Drained, Recovered, Stage
from warren.demo.killing import Killed
from warren.demo.measuring import Frame, peak_memory_bytes
from warren.demo.numbered import payload_bytes
from warren.demo.publisher import Plan, open_directory
from warren.demo.screen import Screen
from warren.demo.shipped import Shipped
from warren.demo.summary import Check, Summary


def run(directory: str, total: int, screen: Screen) -> Summary:
    """Play the demo with ``total`` messages in ``directory``, which is empty or not there.

    Raises :class:`storage.errors.WarrenError` where an act cannot be finished.
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
    left = _left(stage, shipped)
    checks = _checks(stage, shipped, killed, drained, contradictions, left)
    summary = _summary(stage, shipped, killed, recovered, last, drained, checks, time.monotonic() - began_at)
    screen.heading(7, "What it came to")
    screen.put(summary.tables())
    return summary


def _contradictions(vhost: Vhost) -> list[str]:
    try:
        vhost.check_invariants()
    except RuntimeError as error:
        return [str(error)]
    return []


def _left(stage: Stage, shipped: Shipped) -> tuple[int, int]:
    """Messages in the queues and bodies in the store when the directory, stopped cleanly, is opened once more."""
    with stage.opened(open_directory(stage.directory, shipped.vhost)) as vhost:
        return sum(queue.depth for queue in vhost.queues.values()), vhost.persistent_store.status().messages


def _checks(
    stage: Stage,
    shipped: Shipped,
    killed: Killed,
    drained: Drained,
    contradictions: list[str],
    left: tuple[int, int],
) -> list[Check]:
    numbered, confirmed, total = drained.numbered, killed.last.done, stage.plan.total
    expected = shipped.count + total + numbered.survivors
    return [
        Check.that("the publisher was killed by SIGKILL before it was done", killed.by_signal, "it ended by itself"),
        Check.that(
            "the memory limit moved messages out to disk", stage.peaks.on_disk_only > 0, "none were on disk only"
        ),
        Check.of(
            f"RabbitMQ's {shipped.count:,} messages came first, in order, with id, exchange, routing keys, properties, "
            "headers and body as they were",
            drained.taken_over,
        ),
        Check.of("their bodies are those that RabbitMQ itself delivered from a copy", drained.delivered),
        Check.of(f"none of {confirmed:,} messages confirmed before the kill, nor of those after it, is lost", numbered.lost),
        Check.of("none is out of order", numbered.misplaced),
        Check.of("each is, to the last byte, what was published", numbered.damaged),
        Check.that(
            f"{expected:,} messages were fetched, neither more nor fewer",
            drained.fetched == expected,
            f"{drained.fetched:,} were fetched",
        ),
        Check.that("the engine's own invariants hold", not contradictions, "; ".join(contradictions)),
        Check.that(
            "after a clean stop and a start nothing is left", left == (0, 0), f"{left[0]:,} messages, {left[1]:,} bodies"
        ),
    ]


def _summary(
    stage: Stage,
    shipped: Shipped,
    killed: Killed,
    recovered: Recovered,
    last: Frame,
    drained: Drained,
    checks: list[Check],
    elapsed_s: float,
) -> Summary:
    return Summary(
        directory=stage.directory,
        taken_over=shipped.count,
        published=stage.plan.total,
        payload_bytes=payload_bytes(stage.plan.total),
        confirmed_before_kill=killed.last.done,
        survivors=drained.numbered.survivors,
        publish_rate=killed.last.rate,
        publish_rate_after_recovery=last.rate,
        first_message_s=recovered.first_message_s,
        recovery_s=recovered.all_s,
        recovered=recovered.messages,
        fetched=drained.fetched,
        drain_rate=drained.fetched / drained.elapsed_s,
        memory_target=stage.plan.target,
        most_in_memory=stage.peaks.in_memory,
        most_on_disk_only=stage.peaks.on_disk_only,
        publisher_peak_bytes=killed.last.peak_memory_bytes,
        publisher_start_bytes=killed.start_memory_bytes,
        peak_bytes=peak_memory_bytes(),
        elapsed_s=elapsed_s,
        checks=checks,
    )
