"""The run, act by act, in the order in which one watches it. Nothing is claimed before it is measured or checked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import attrs
from rich import box
from rich.filesize import decimal
from rich.table import Table

from examples.demo.checking import Faults, NumberedCheck, compare_taken_over
from examples.demo.killing import Killed, publish_until_killed
from examples.demo.measuring import Frame, Peaks, disk_usage
from examples.demo.numbered import envelope_of
from examples.demo.publisher import Plan, open_directory, publish
from examples.demo.screen import Act, Screen, Show
from examples.demo.shipped import BUSY_QUEUE, Shipped, digest_of, open_shipped, read_shipped, take_over
from warren.actors.vhost import Vhost
from warren.queue_index.message.message_format import decode_message
from warren.salvage.names import shown

_KILL_AT: Final = 0.7
_FETCH: Final = 1_000
_THE_LISTS: Final = (
    "A message enters the queue at Q1 and leaves it from Q4, or from Q3; Q2, delta and Q3 lead around by way of the "
    "disk. In delta nothing is left of it in memory."
)


@attrs.frozen
class Stage:
    """The place of the run: a directory, the plan with its numbers of messages, and a screen."""

    directory: str
    plan: Plan
    screen: Screen
    peaks: Peaks = attrs.field(factory=Peaks)

    def act(self, verb: str, goal: int, capacity: int) -> Act:
        return Act(verb, goal, capacity, lambda: disk_usage(self.directory))

    @staticmethod
    def table(*columns: str) -> Table:
        """An empty table: of names, and numbers about them."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
        table.add_column(columns[0], style="bold")
        for column in columns[1:]:
            table.add_column(column, justify="right")
        return table

    @contextmanager
    def opened(self, vhost: Vhost) -> Iterator[Vhost]:
        """Close it at the end; give it up as it is where something goes wrong, or Ctrl-C comes."""
        try:
            yield vhost
            vhost.close()
        except BaseException:
            vhost.abandon()
            raise


def look(stage: Stage) -> Shipped:
    """What is in the RabbitMQ directory?"""
    screen = stage.screen
    with open_shipped() as source:
        shipped = read_shipped(source)
    screen.heading(1, f"The directory of a {shipped.broker} node, opened read-only")
    table = stage.table("queue", "messages", "payload", "with headers")
    dead = 0
    for name in shipped.queues:
        if messages := shipped.messages(name):
            dead += sum("x-death" in (message.properties.headers or {}) for message in messages)
            table.add_row(
                shown(name),
                f"{len(messages):,}",
                decimal(sum(len(message.body) for message in messages)),
                f"{sum(message.properties.headers is not None for message in messages):,}",
            )
    screen.put(table)
    screen.say(f"{shipped.count:,} messages; {dead:,} of them were dead-lettered by RabbitMQ.", "dim")
    return shipped


def move_in(stage: Stage, shipped: Shipped) -> None:
    """Take RabbitMQ's messages over into a fresh directory, and stop cleanly."""
    stage.screen.heading(2, "Its messages, taken over into a fresh warren directory")
    began_at = time.monotonic()
    with stage.opened(open_directory(stage.directory, shipped.vhost)) as vhost:
        take_over(shipped, vhost)
        moved = sum(len(queue) for queue in vhost.queues.values())
    took_s = time.monotonic() - began_at
    stage.screen.say(f"{moved:,} messages in {took_s:.2f} s, synced to disk: {stage.directory}")


def publish_and_kill(stage: Stage, shipped: Shipped) -> Killed:
    """Publish more in another process, and kill it."""
    plan, screen, queue = stage.plan, stage.screen, shown(BUSY_QUEUE)
    screen.heading(3, f'{plan.total:,} more are published into "{queue}", by another process')
    screen.say(
        f"They are synced to disk and confirmed {plan.commit:,} at a time. From {plan.limited_from:,} on, the queue "
        f"may keep {plan.target:,} in memory."
    )
    screen.say(_THE_LISTS, "dim")
    act = stage.act("confirmed", plan.total, plan.total)
    with screen.watch(act) as show:
        killed = publish_until_killed(
            stage.directory,
            shipped.vhost,
            BUSY_QUEUE,
            count=plan.total,
            kill_at=int(plan.total * _KILL_AT),
            show=_seen(stage.peaks, show),
        )
    if killed.by_signal:
        screen.say(f"Killed (SIGKILL) while it published: {killed.last.done:,} messages were confirmed.", "red")
    else:
        screen.say("The publisher ended before it could be killed.", "bold red")
    return killed


@attrs.frozen
class Recovered:
    """What came of opening the directory after the kill."""

    messages: int
    """In the queue that was being published to."""
    first_message_s: float
    all_s: float


def recover(stage: Stage, began_at: float, vhost: Vhost) -> Recovered:
    """Fetch the first message as soon as that can be done (and put it back), then scan the rest."""
    queue = vhost.queue(BUSY_QUEUE)
    first = queue.fetch()
    first_s = time.monotonic() - began_at
    if first is not None:
        queue.requeue([first.seq_ids])
    steps = 0
    while vhost.recovering:
        vhost.recover_step()
        steps += 1
    recovered = Recovered(len(queue), first_s, time.monotonic() - began_at)
    stage.screen.say(
        f"The first message could be fetched after {first_s:.2f} s. The rest was found in {steps:,} more steps: "
        f"{recovered.messages:,} messages after {recovered.all_s:.2f} s."
    )
    return recovered


def publish_rest(stage: Stage, vhost: Vhost, confirmed: int) -> Frame:
    """A second publisher: whatever was not confirmed once more, and what is left."""
    plan = stage.plan
    rest = range(confirmed, plan.total)
    stage.screen.heading(5, f"Whatever was not confirmed is published again, and the rest: {len(rest):,} messages")
    last: list[Frame] = []
    with stage.screen.watch(stage.act("confirmed", len(rest), plan.total)) as show:
        shown_and_seen = _seen(stage.peaks, show)

        def report(frame: Frame) -> None:
            last[:] = [frame]
            shown_and_seen(frame)

        publish(vhost, BUSY_QUEUE, publisher=2, numbers=rest, plan=plan, report=report)
    return last[0]


@attrs.define
class Drained:
    """What came of fetching everything."""

    numbered: NumberedCheck
    began_at: float
    taken_over: Faults = attrs.field(factory=Faults)
    """Where a message that was taken over is not what it was."""
    delivered: Faults = attrs.field(factory=Faults)
    """Where a queue's bodies are not those that RabbitMQ delivered."""
    fetched: int = 0
    elapsed_s: float = 0.0


def drain(stage: Stage, shipped: Shipped, vhost: Vhost, confirmed: int) -> Drained:
    """Fetch, check and ack everything."""
    envelopes = [envelope_of(vhost.name, BUSY_QUEUE, publisher) for publisher in (1, 2)]
    ready = sum(len(queue) for queue in vhost.queues.values())
    stage.screen.heading(6, f"All {ready:,} messages are fetched, checked and acked")
    drained = Drained(NumberedCheck(envelopes, confirmed, stage.plan.total), time.monotonic())
    with stage.screen.watch(stage.act("fetched", ready, stage.plan.total), keep=False) as show:
        for name in shipped.queues:
            _drain_queue(shipped, vhost, name, drained, _seen(stage.peaks, show))
    drained.numbered.finish()
    drained.elapsed_s = time.monotonic() - drained.began_at
    stage.screen.say(f"{drained.fetched:,} messages in {drained.elapsed_s:.1f} s.")
    return drained


def _drain_queue(shipped: Shipped, vhost: Vhost, name: bytes, drained: Drained, show: Show) -> None:
    """One queue: first what was taken over, then what was published."""
    queue, expected = vhost.queue(name), shipped.messages(name)
    queue.set_ram_duration_target(None)  # nothing is published any more, and delta comes back a segment at a time
    own: list[bytes] = []
    while fetched := queue.fetch_many(_FETCH):
        for part in fetched:
            terms, msg_ids = part.terms, part.msg_ids
            missing = len(expected) - len(own)
            own += terms[:missing]
            if missing < len(terms):
                drained.numbered.take(terms[missing:], msg_ids[missing:])
            queue.ack([part.seq_ids])
            drained.fetched += part.count
        drained.elapsed_s = time.monotonic() - drained.began_at
        show(Frame.of(queue, drained.fetched, drained.elapsed_s))
    messages = [decode_message(term) for term in own]
    compare_taken_over(shown(name), expected, messages, drained.taken_over)
    said = shipped.delivered.get(name)
    if said is None or (len(own), digest_of([message.body for message in messages])) != (said.messages, said.sha256):
        drained.delivered.add(f"{shown(name)}: not what RabbitMQ delivered")


def _seen(peaks: Peaks, show: Show) -> Show:
    """Show a frame, and remember the peaks."""

    def both(frame: Frame) -> None:
        peaks.see(frame)
        show(frame)

    return both
