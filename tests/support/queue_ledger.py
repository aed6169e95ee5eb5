"""What killed processes have reported of their queues, and what must hold then.

- Every confirmed message whose ack had not begun is there, whole, in every queue that it was published to;
- what was acked, and the ack made safe by a later ``sync()``, stays away, and so does whatever a recovery did not find;
- nothing is there that was not published, and each publisher's messages are in order, none twice;
- a message that comes for a second time, or from before the kill, says redelivered; one that cannot have been
  delivered before does not.

An ack that was not made safe may be lost with the process: its message comes back, and says redelivered.
"""

from __future__ import annotations

import random
from typing import ClassVar

import attrs

import warren
from tests.support.queue_load import QUEUES, STREAMS, name_of


@attrs.define
class QueueLedger:
    """What is known about one queue."""

    left: set[str] = attrs.Factory(set)
    """What the last recovery found."""
    confirmed: set[str] = attrs.Factory(set)
    acked: set[str] = attrs.Factory(set)
    """Their acks have begun."""
    gone: set[str] = attrs.Factory(set)
    """Their acks are safe."""
    delivered: set[str] = attrs.Factory(set)
    requeued: bool = False
    """Whether untaken messages of a consumer may have come back in this round."""

    def deliver(self, name: str, redelivered: bool) -> None:
        before = name in self.left or name in self.delivered
        assert redelivered or not before, f"{name} was delivered before, or is from before a kill, and does not say so"
        assert not redelivered or before or self.requeued, f"{name} says redelivered, and nobody can have had it"
        assert name not in self.gone, f"{name} comes though its ack was safe"
        self.delivered.add(name)

    def survive(self, found: list[str], published: set[str]) -> None:
        """``found``: what is there after a kill, in order; ``published``: what this round may have added."""
        here = set(found)
        assert len(here) == len(found), "a message occurs twice"
        last: dict[str, int] = {}
        for name in found:
            stream, _, number = name.partition(":")
            assert int(number) > last.get(stream, -1), f"{name} is out of order"
            last[stream] = int(number)
        assert not here - self.left - published, "messages that never were published, or that were gone"
        assert not (lost := self.confirmed - self.acked - here), f"confirmed and lost: {sorted(lost)[:20]}"
        assert not (back := self.gone & here), f"acked for good and back: {sorted(back)[:20]}"
        self.left = here
        self.confirmed = set(here)  # it survived once: it must again
        self.acked, self.gone, self.delivered, self.requeued = set(), set(), set(), False


@attrs.define
class QueuesLedger:
    """What all processes have reported of the load :mod:`tests.support.queue_load`."""

    kind: ClassVar = "queues"

    queues: dict[str, QueueLedger] = attrs.Factory(lambda: {name: QueueLedger() for name in QUEUES})
    started: dict[str, int] = attrs.Factory(lambda: dict.fromkeys(STREAMS, 0))
    """The first number of each stream that was not begun to be published."""
    round_began: dict[str, int] = attrs.Factory(dict)
    confirmed_count: int = 0

    def begin(self) -> None:
        self.round_began = dict(self.started)

    def read(self, line: str) -> None:
        kind, *words = line.split(" ")
        match kind:
            case "p":
                self.started[words[0]] = int(words[1]) + 1
            case "c":
                names = {f"{words[0]}:{number}" for number in range(int(words[1]), int(words[2]) + 1)}
                self.confirmed_count += len(names)
                for queue in STREAMS[words[0]][0]:
                    self.queues[queue].confirmed |= names
            case "d":
                for name, _, flag in (word.partition("=") for word in words[1:]):
                    self.queues[words[0]].deliver(name, flag == "1")
            case "a":
                self.queues[words[0]].acked |= set(words[1:])
            case "s":
                self.queues[words[0]].gone |= self.queues[words[0]].acked
            case "x":
                self.queues[words[0]].requeued = True
            case _:
                raise AssertionError(f"the process says: {line}")

    def check(self, node: warren.Node, rng: random.Random) -> None:
        """Look at what a kill has left."""
        there = {queue.name: queue for queue in node.queues()}
        for name, ledger in self.queues.items():
            taken = there[name].get_many(1 << 20) if name in there else []
            assert all(one.redelivered for one in taken), "from before a kill, and does not say redelivered"
            found = [name_of(one.body) for one in taken]
            published = {
                f"{stream}:{number}"
                for stream, (targets, _) in STREAMS.items()
                if name in targets
                for number in range(self.round_began[stream], self.started[stream])
            }
            ledger.survive(found, published)
