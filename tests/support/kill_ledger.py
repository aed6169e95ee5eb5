"""What the processes of :mod:`tests.support.kill_child` have told, and what must be there after each kill."""

from __future__ import annotations

from pathlib import Path

import attrs

import warren
from tests.support.kill_child import QUEUES, SETTINGS, STREAMS, name_of


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
    """Whether messages that nobody took may have come back in this round."""

    def deliver(self, name: str, redelivered: bool) -> None:
        before = name in self.left or name in self.delivered
        assert redelivered or not before, f"{name} was delivered before, or is from before a kill, and does not say so"
        assert not redelivered or before or self.requeued, f"{name} says redelivered, and nobody can have had it"
        assert name not in self.gone, f"{name} comes though its ack was safe"
        self.delivered.add(name)

    def survive(self, found: list[str], published: set[str]) -> None:
        """``found``: what is there after a kill, in order; ``published``: what this round may have added."""
        here = set(found)
        assert len(here) == len(found), "a message is there twice"
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
class Ledger:
    """What all processes have told until now."""

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
            case "open" | "ready":
                pass
            case _:
                raise AssertionError(f"the process says: {line}")

    def check(self, directory: Path) -> None:
        """Open what a kill has left."""
        with warren.open(directory, sync="os", **SETTINGS) as node:
            assert node.failed_queues == {}
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
