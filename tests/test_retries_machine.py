"""What comes back to a queue, held against a model that takes messages one by one: counts, waits, limits, timeouts,
through clean stops and crashes."""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.effort import times
from tests.support.process_tools import Bench
from warren.actors.engines.declared.retry_policy import OF_FAILURES, RetryPolicy
from warren.queue_index.queue.fetching import FetchedAgain
from warren.storage.settings import Settings

CHANNELS = ["red", "blue"]
TIMEOUT_MS = 1600


@attrs.define(eq=False)
class Sent:
    """One message of the model."""

    number: int
    seq_id: int = 0
    """As it was when it was delivered."""
    count: int = 0
    due_us: int = 0
    """When its wait is over; 0: it does not wait."""
    resting: bool = False
    """Whether it waits at its place since a stop, and is held when it is fetched."""
    out: bool = False
    was_out: bool = False
    """When the process crashed."""

    @property
    def body(self) -> bytes:
        return b"%d" % self.number


class Returning(RuleBasedStateMachine):
    @initialize(
        limit=st.none() | st.integers(0, 3),
        arguments=st.fixed_dictionaries(
            {},
            optional={
                "x-delayed-retry-min": st.sampled_from([10, 100]),
                "x-delayed-retry-type": st.sampled_from(["disabled", "all", "failed", "returned"]),
                "x-delayed-retry-multiplier": st.integers(1, 3),
                "x-delayed-retry-jitter": st.sampled_from([0, 50]),
                "x-consumer-timeout": st.just(TIMEOUT_MS),
            },
        ),
    )
    def begin(self, arguments: dict[str, Any], limit: int | None) -> None:
        if limit is not None:
            arguments = {**arguments, "x-delivery-limit": limit, "x-dead-letter-exchange": "dlx"}
        self.bench = Bench(arguments, settings=Settings(segment_entry_count=4, queue_index_embed_msgs_below=40))
        self.messages: list[Sent] = []
        """All that are in the queue, in order."""
        self.tags: dict[tuple[str, int], tuple[Sent, int]] = {}
        """What channels have: the message, and when it lapses at the latest (0: never)."""
        self.dead: list[bytes] = []
        self.number = 0
        self.blames = False
        """Whether a message that was out has to take the blame for a crash, when it is delivered."""

    @property
    def arguments(self) -> Any:
        return self.bench.queue.context.arguments

    def came_back(
        self,
        sent: Sent,
        *,
        failed: bool = False,
        retried: bool = False,
        wait_ms: int | None = None,
        seen: bool = True,
    ) -> None:
        """One message is no longer unacked."""
        sent.out = False
        if not seen:
            return
        sent.count += 1
        limit, policy = self.arguments.delivery_limit, RetryPolicy.of(self.arguments, failed=failed or retried)
        if limit is not None and sent.count > limit:
            self.messages.remove(sent)
            self.dead.append(sent.body)
            return
        policy = policy or (OF_FAILURES if retried else None)
        if wait_ms is not None:
            sent.due_us = self.bench.now_us + wait_ms * 1000 if wait_ms else 0
        elif policy is not None:
            sent.due_us = self.bench.now_us + policy.wait_us(sent.count, sent.seq_id)

    # ── what users do ───────────────────────────────────────────────────────────────────────────────────────────

    @rule(count=st.integers(1, 6))
    def publish(self, count: int) -> None:
        new = [Sent(self.number + at) for at in range(count)]
        self.number += count
        self.messages += new
        self.bench.publish(*[sent.body for sent in new])

    @rule(channel=st.sampled_from(CHANNELS), count=st.integers(1, 6))
    def get(self, channel: str, count: int) -> None:
        ready = self.from_head(count)
        timeout_ms = self.arguments.consumer_timeout_ms
        lapses_us = 0 if timeout_ms is None else self.bench.now_us + timeout_ms * 1000 * 17 // 16
        found = []
        for part in self.bench.queue.deliveries.get_many(channel, count, ack_required=True):
            fetched = part.fetched
            counts = fetched.delivery_counts if isinstance(fetched, FetchedAgain) else [0] * part.count
            found += list(zip(fetched.bodies(), counts, part.tags, fetched.seq_ids, strict=True))
        assert [(body, many) for body, many, *_ in found] == [(sent.body, sent.count) for sent in ready], (found, ready)
        for sent, (_, _, tag, seq_id) in zip(ready, found, strict=True):
            sent.out, sent.seq_id = True, seq_id
            self.tags[channel, tag] = sent, lapses_us

    def from_head(self, count: int) -> list[Sent]:
        """The next ones that can be delivered; what waits on is held, and what came back too often dies."""
        found: list[Sent] = []
        limit = self.arguments.delivery_limit
        for sent in [sent for sent in self.messages if self.is_ready(sent)]:
            if len(found) == count:
                break
            if sent.resting and sent.due_us > self.bench.now_us:
                sent.resting = False
                continue
            sent.resting, sent.due_us = False, 0
            if self.blames and sent.was_out:
                sent.count += 1
                self.blames = False
            if limit is not None and sent.count > limit:
                self.messages.remove(sent)
                self.dead.append(sent.body)
            else:
                found.append(sent)
        return found

    def is_ready(self, sent: Sent) -> bool:
        return not sent.out and (sent.resting or not sent.due_us)

    @precondition(lambda self: self.tags)
    @rule(data=st.data(), how=st.sampled_from(["ack", "requeue", "failed", "retry", "retry in", "reject"]))
    def settle(self, data: st.DataObject, how: str) -> None:
        channel = data.draw(st.sampled_from(sorted({channel for channel, _ in self.tags})))
        there = sorted(tag for of, tag in self.tags if of == channel)
        tags = sorted(data.draw(st.lists(st.sampled_from(there), unique=True, min_size=1)))
        ranges = [range(tag, tag + 1) for tag in tags]
        settled = [self.tags.pop((channel, tag))[0] for tag in tags]
        queue = self.bench.queue
        match how:
            case "ack":
                queue.settlements.ack(channel, ranges)
                self.messages = [sent for sent in self.messages if sent not in settled]
            case "reject":
                queue.settlements.nack(channel, ranges, requeue=False)
                self.messages = [sent for sent in self.messages if sent not in settled]
                if self.arguments.dead_letter_exchange is not None:
                    self.dead += [sent.body for sent in settled]
            case "requeue":
                queue.settlements.nack(channel, ranges, requeue=True)
                for sent in settled:
                    self.came_back(sent)
            case "failed":
                queue.settlements.nack(channel, ranges, requeue=True, failed=True)
                for sent in settled:
                    self.came_back(sent, failed=True)
            case "retry":
                queue.settlements.retry(channel, ranges)
                for sent in settled:
                    self.came_back(sent, retried=True)
            case _:
                wait_ms = data.draw(st.sampled_from([0, 5, 500]))
                queue.settlements.retry(channel, ranges, wait_ms)
                for sent in settled:
                    self.came_back(sent, wait_ms=wait_ms)

    @rule(channel=st.sampled_from(CHANNELS), data=st.data())
    def close_channel(self, channel: str, data: st.DataObject) -> None:
        there = sorted(tag for of, tag in self.tags if of == channel)
        seen_up_to = data.draw(st.sampled_from([None, 0, *there]))
        assert self.bench.queue.settlements.close_channel(channel, seen_up_to) == len(there)
        for tag in there:
            sent, _ = self.tags.pop((channel, tag))
            self.came_back(sent, failed=True, seen=seen_up_to is None or tag <= seen_up_to)

    @precondition(lambda self: self.tags and self.arguments.consumer_timeout_ms is not None)
    @rule(data=st.data(), time_ms=st.sampled_from([100, 5000]))
    def extend(self, data: st.DataObject, time_ms: int) -> None:
        channel, tag = data.draw(st.sampled_from(sorted(self.tags)))
        self.bench.queue.settlements.extend(channel, tag, time_ms)
        sent, lapses_us = self.tags[channel, tag]
        self.tags[channel, tag] = sent, max(lapses_us, self.bench.now_us + time_ms * 1000)

    @rule()
    def purge(self) -> None:
        gone = [sent for sent in self.messages if not sent.out]
        assert self.bench.queue.purge() == len(gone)
        self.messages = [sent for sent in self.messages if sent.out]

    # ── what happens around it ──────────────────────────────────────────────────────────────────────────────────

    @rule(milliseconds=st.sampled_from([1, 10, 100, 2000]))
    def time_goes_by(self, milliseconds: int) -> None:
        """To each moment at which something is due, as a host does."""
        end_us = self.bench.now_us + milliseconds * 1000
        while (due_us := self.bench.queue.settlements.next_due_us) is not None and due_us <= end_us:
            self.bench.now_us = max(self.bench.now_us, due_us)
            self.bench.queue.settlements.tick()
            for sent in self.messages:
                if 0 < sent.due_us <= self.bench.now_us and not sent.resting:
                    sent.due_us = 0
            self.lapse()
        self.bench.now_us = end_us

    def lapse(self) -> None:
        """What the queue says has lapsed was held for its time, and not for much longer."""
        there = {(of, tag) for of, tags in self.unsettled().items() for tag in tags}
        for key in sorted(self.tags.keys() - there):
            sent, lapses_us = self.tags.pop(key)
            assert self.bench.now_us >= lapses_us - TIMEOUT_MS * 1000 // 16
            self.came_back(sent)
        assert all(lapses_us == 0 or lapses_us > self.bench.now_us for _, lapses_us in self.tags.values())

    def unsettled(self) -> dict[str, list[int]]:
        channels = self.bench.queue.consumers._channels or {}
        return {
            name: [tag for run in tags.runs for tag in range(run.first, run.end)] for name, tags in channels.items()
        }

    @rule(how=st.sampled_from(["asleep", "opened", "crash"]), rarely=st.integers(0, 2))
    def start_again(self, how: str, rarely: int) -> None:
        if rarely:
            return
        self.check_dead()
        oldest: dict[str, int] = {}
        for channel, tag in self.tags:
            oldest[channel] = min(tag, oldest.get(channel, tag))
        for (channel, tag), (sent, _) in self.tags.items():
            sent.count += how != "crash" and oldest[channel] == tag
            sent.out, sent.was_out = False, how == "crash"
        self.blames = how == "crash"
        self.tags = {}
        for sent in self.messages:
            sent.resting = sent.due_us > self.bench.now_us
            sent.due_us = sent.due_us if sent.resting else 0
        if how == "crash":
            self.bench.crash()
        else:
            self.bench.stop_and_start(asleep=how == "asleep")

    @rule()
    def hibernate(self) -> None:
        if self.bench.sleep():
            assert not self.tags
            assert not any(sent.due_us and not sent.resting for sent in self.messages)

    # ── what must hold ──────────────────────────────────────────────────────────────────────────────────────────

    def check_dead(self) -> None:
        assert sorted(body for _, body in self.bench.dead()) == sorted(self.dead)
        self.dead = []

    @invariant()
    def as_the_model(self) -> None:
        if not hasattr(self, "messages"):
            return
        self.check_dead()
        queue = self.bench.queue
        queue.check_invariants()
        assert len(queue.backing) == sum(map(self.is_ready, self.messages))
        assert queue.stats()["messages_retrying"] == sum(
            bool(sent.due_us) and not sent.resting for sent in self.messages
        )
        assert queue.consumers.unacked == len(self.tags)


TestReturning = Returning.TestCase
TestReturning.settings = hypothesis_settings(max_examples=times(600), stateful_step_count=40)
