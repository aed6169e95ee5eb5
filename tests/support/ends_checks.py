"""What a program that has ended has said, and what has to be there then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import warren
from tests.support.ends import DELAYED, QUEUE, TOPIC, Kept, name_of

Name = tuple[str, int]


class Said:
    """What a program has said of each place."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.begun: dict[str, set[Name]] = defaultdict(set)
        self.published: dict[str, set[Name]] = defaultdict(set)
        self.confirmed: dict[str, set[Name]] = defaultdict(set)
        self.ack_begun: dict[str, set[Name]] = defaultdict(set)
        self.acked: dict[str, set[Name]] = defaultdict(set)
        self.prepared: dict[str, set[Name]] = defaultdict(set)
        self.rolled_back: dict[str, set[Name]] = defaultdict(set)
        kinds = {"b": self.begun, "p": self.published, "c": self.confirmed, "a": self.ack_begun, "g": self.acked}
        kinds |= {"h": self.prepared, "r": self.rolled_back}
        for line in lines:
            kind, place, stream, *numbers = line.split()
            first, last = int(numbers[0]), int(numbers[-1])
            kinds[kind][place] |= {(stream, number) for number in range(first, last + 1)}


def check_node(node: warren.Node, said: Said, kept: Kept, *, twice: bool = False, races: bool = False) -> None:
    """Everything is there that was promised, and nothing else; ``twice``, ``races``: as an :class:`End` has them."""
    queue = node.queue("q")
    there = {
        QUEUE: [name_of(message.body) for message in queue.browse()],
        TOPIC: [name_of(record.body) for record in node.topic("t").read("check")] if said.begun[TOPIC] else [],
        DELAYED: [name_of(message.body) for message in queue.delayed(1_000_000)],
    }
    assert said.begun, "it did nothing"
    halves = {name_of(one.message.body) for one in node.pending_transactions()}
    committed = set(there[TOPIC])
    assert not (lost := said.prepared[TOPIC] - halves - committed), f"prepared, and neither there nor open: {lost}"
    if kept is Kept.ALL and not twice:
        decided = committed | said.rolled_back[TOPIC]
        assert not (both := halves & decided), f"decided, and to be decided again: {both}"
    for place, found in there.items():
        here = set(found)
        assert twice or len(here) == len(found), f"{place}: a message occurs twice"
        assert here <= said.begun[place]
        for stream in {stream for stream, _ in here}:
            numbers = [number for at, number in found if at == stream]
            assert numbers == sorted(numbers), f"{place}: stream {stream} is out of order"
        must = said.published[place] if kept is Kept.ALL else said.confirmed[place]
        assert not (lost := must - said.ack_begun[place] - here), f"{place}: {sorted(lost)[:20]} are lost"
        if kept is Kept.ALL and not races:
            assert not (back := said.acked[place] & here), f"{place}: {sorted(back)[:20]} were acked, and are there"
