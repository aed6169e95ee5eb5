"""A quorum queue's machine against a model that keeps everything in lists and looks through all of them each time.

The model knows competing consumers, and the rules of versions 2, 3 and 4 (one priority). Beside the machine runs
another one, which is now and then rebuilt from a snapshot: from there on the same commands must make the same queue.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.effort import times
from tests.support.quorum_state import NODE, OTHER_NODE, again, body, pid, settings
from warren.salvage.quorum.fifo.commands import (
    Cancel,
    Checkout,
    Command,
    ConsumerId,
    Credit,
    Discard,
    Down,
    Enqueue,
    NodeUp,
    Nothing,
    Purge,
    Requeue,
    Return,
    Settle,
    UpdateConfig,
)
from warren.salvage.quorum.fifo.machine import QuorumMachine
from warren.storage.erlang_terms import Atom, Term

PROCESSES = {number: (NODE, OTHER_NODE)[number % 2] for number in range(1, 5)}
NUMBERS = st.sampled_from(sorted(PROCESSES))
CONSUMERS = st.builds(lambda tag, number: (tag, pid(number, PROCESSES[number])), st.sampled_from([b"x", b"y"]), NUMBERS)
MSG_IDS = st.lists(st.integers(0, 8), max_size=4)
MODES = st.sampled_from(["simple_prefetch", "simple_prefetch", "credited"])
SOMETIMES = st.none() | st.integers(0, 4)


class Model:
    """Messages are ``[index, size, expiry, count]``; consumers are dictionaries in a list, in the order of keys."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.returns: list[list[Any]] = []
        self.rest: list[list[Any]] = []
        self.consumers: list[dict[str, Any]] = []
        self.turns: list[tuple[int, ConsumerId]] = []
        self.publishers: dict[bytes, int] = {}
        self.limit: int | None = None
        self.length: int | None = None
        self.ttl: int | None = None

    def consumer(self, key: ConsumerId) -> dict[str, Any] | None:
        return next((one for one in self.consumers if one["key"] == key), None)

    def credit(self, one: dict[str, Any], count: int) -> None:
        if not one["once"] and not one["credited"]:
            one["credit"] += count
            if self.version > 2 and one["cap"]:
                one["credit"] = min(one["credit"], one["cap"])

    def refresh(self, one: dict[str, Any]) -> None:
        if one["once"] and one["credit"] == 0:
            if not one["held"] and one in self.consumers:
                self.consumers.remove(one)
        elif one["credit"] > 0 and one["up"] == "up" and all(key != one["key"] for _, key in self.turns):
            self.turns.append((-one["priority"], one["key"]))
            self.turns.sort(key=lambda turn: turn[0])

    def enqueue(self, index: int, now: int, command: Enqueue) -> None:
        assert command.pid is not None
        following = self.publishers.setdefault(command.pid, 1)
        if command.seq != following:
            return
        self.publishers[command.pid] += 1
        ttls = [one for one in (command.body.ttl_ms, self.ttl) if one is not None]
        self.rest.append([index, command.body.size, now + max(1, min(ttls)) if ttls else None, 0])
        self.checkout(now)

    def attach(self, now: int, command: Checkout) -> None:
        if command.lifetime == "get":
            self.get(now, command)
            return
        one = self.consumer(command.consumer)
        credited = command.credit_mode == "credited"
        credit = 0 if credited and self.version > 3 else command.credit
        if one is None:
            one = {"key": command.consumer, "held": {}, "next": 0, "delivered": 0}
            self.consumers.append(one)
            self.consumers.sort(key=lambda each: each["key"])
        one |= {
            "once": command.lifetime == "once",
            "credited": credited,
            "cap": command.credit,
            "priority": command.priority,
            "credit": max(0, credit - len(one["held"])),
            "up": "up",
        }
        self.refresh(one)
        self.checkout(now)

    def get(self, now: int, command: Checkout) -> None:
        if self.consumer(command.consumer):
            return
        self.expire(now)
        waiting = self.returns or self.rest
        if waiting:
            message = waiting.pop(0)
            if command.settled:
                self.checkout(now)
            else:
                common = {"once": True, "credited": False, "cap": 1, "priority": 0, "credit": 0, "up": "up"}
                held = {0: message}
                self.consumers.append({"key": command.consumer, "held": held, "next": 1, "delivered": 1, **common})
                self.consumers.sort(key=lambda each: each["key"])
        self.drop()

    def give_back(self, one: dict[str, Any], msg_ids: list[int], failed: bool) -> int:
        returned = 0
        for msg_id in msg_ids:
            if msg_id in one["held"]:
                returned += 1
                message = one["held"].pop(msg_id)
                count, acquired = _counts(message)
                back = [*message[:3], (count + (failed or self.version < 4), acquired + 1)]
                if self.limit is not None and acquired + 1 > self.limit:
                    self.credit(one, 1)
                    self.refresh(one)
                else:
                    self.returns.append(back)
                    if self.version > 2:
                        self.credit(one, 1)
        return returned

    def answer(self, now: int, key: ConsumerId, msg_ids: list[int], how: str) -> None:
        one = self.consumer(key)
        if one is None:
            return
        if how == "return":
            returned = self.give_back(one, msg_ids if self.version > 3 else sorted(msg_ids), False)
            if one in self.consumers:
                if self.version == 2:
                    self.credit(one, returned)
                self.refresh(one)
        else:
            done = [one["held"].pop(msg_id) for msg_id in msg_ids if msg_id in one["held"]]
            self.credit(one, len(done))
            self.refresh(one)
        self.checkout(now)

    def requeue(self, index: int, now: int, key: ConsumerId, msg_id: int) -> None:
        one = self.consumer(key)
        if one is not None and msg_id in one["held"]:
            message = one["held"].pop(msg_id)
            count, acquired = _counts(message)
            self.rest.append([index, message[1], message[2], (count + (self.version < 4), acquired + 1)])
            self.credit(one, 1)
            self.refresh(one)
            self.checkout(now)

    def down(self, now: int, key: bytes, node: str | None) -> None:
        gone = [one for one in self.consumers if one["key"][1] == key]
        if node is not None:
            gone = [one for one in self.consumers if one["key"][1] in _pids_of(node) and one["up"] == "up"]
        else:
            self.publishers.pop(key, None)
        for one in gone:
            held = sorted(one["held"])
            if node is not None:
                one["up"] = "away"
                if self.version == 2:
                    self.credit(one, len(held))
            self.give_back(one, held, True)
            if node is None and one in self.consumers:
                self.consumers.remove(one)
        self.checkout(now)

    def node_up(self, now: int, node: str) -> None:
        for one in list(self.consumers):
            if one["key"][1] in _pids_of(node) and one["up"] != "cancelled":
                one["up"] = "up"
                self.refresh(one)
        self.checkout(now)

    def cancel(self, now: int, key: ConsumerId) -> None:
        one = self.consumer(key)
        if one is not None:
            one |= {"once": True, "credit": 0, "up": "cancelled"}
            self.refresh(one)
        elif self.version > 3:
            return
        self.checkout(now)

    def grant(self, now: int, command: Credit) -> None:
        one = self.consumer(command.consumer)  # type: ignore[arg-type]  # keys are pairs here
        if one is not None:
            one["credit"] = max(0, command.delivery_count + command.credit - one["delivered"])
            if one["credit"]:
                self.refresh(one)
            self.checkout(now)
            if command.drain:
                one["delivered"] += one["credit"]
                one["credit"] = 0

    def expire(self, now: int) -> None:
        while (waiting := self.returns or self.rest) and waiting[0][2] is not None and waiting[0][2] <= now:
            waiting.pop(0)

    def checkout(self, now: int) -> None:
        while True:
            self.expire(now)
            while self.turns and self.consumer(self.turns[0][1]) is None:
                self.turns.pop(0)
            waiting = self.returns or self.rest
            if not self.turns or not waiting:
                break
            one = self.consumer(self.turns.pop(0)[1])
            assert one is not None
            if one["credit"] and one["up"] == "up":
                one["held"][one["next"]] = waiting.pop(0)
                one["next"] += 1
                one["delivered"] += 1
                one["credit"] -= 1
                self.refresh(one)
        self.drop()

    def drop(self) -> None:
        while self.length is not None and len(self.returns) + len(self.rest) > self.length:
            (self.returns or self.rest).pop(0)


def _counts(message: list[Any]) -> tuple[int, int]:
    counts = message[3]
    return counts if isinstance(counts, tuple) else (counts, counts)


def _pids_of(node: str) -> set[bytes]:
    return {pid(number, each) for number, each in PROCESSES.items() if each == node}


def _same(message: list[Any]) -> tuple[Any, ...]:
    return (*message[:3], *_counts(message))


class MachineAgainstModel(RuleBasedStateMachine):
    """Random commands; none may be refused."""

    @initialize(version=st.sampled_from([2, 3, 4]))
    def begin(self, version: int) -> None:
        self.model = Model(version)
        self.machine = QuorumMachine.new(settings(), version)
        self.other = again(self.machine)
        self.index = 0
        self.now = 1000
        self.published = dict.fromkeys(PROCESSES, 0)

    def both(self, command: Command) -> int:
        self.index += 1
        self.machine.apply(self.index, self.now, command)
        self.other.apply(self.index, self.now, command)
        return self.now

    @rule(number=NUMBERS, size=st.integers(0, 3), ttl=SOMETIMES, skip=st.sampled_from([0, 0, 0, 0, 1, -1]))
    def publish(self, number: int, size: int, ttl: int | None, skip: int) -> None:
        seq = max(1, self.published[number] + 1 + skip)
        if skip == 0:
            self.published[number] += 1
        key = pid(number, PROCESSES[number])
        command = Enqueue(key, seq, body(size, ttl))
        now = self.both(command)
        self.model.enqueue(self.index, now, command)

    @rule(consumer=CONSUMERS, once=st.booleans(), credit=st.integers(0, 3), mode=MODES, priority=st.integers(-1, 1))
    def attach(self, consumer: ConsumerId, once: bool, credit: int, mode: str, priority: int) -> None:
        command = Checkout(consumer, "once" if once else "auto", False, credit, mode, priority)
        self.model.attach(self.both(command), command)

    @rule(number=NUMBERS, settled=st.booleans())
    def get(self, number: int, settled: bool) -> None:
        consumer = (str(self.index).encode(), pid(number, PROCESSES[number]))
        command = Checkout(consumer, "get", settled, 1, "simple_prefetch", 0)
        self.model.attach(self.both(command), command)

    @rule(consumer=CONSUMERS, msg_ids=MSG_IDS, how=st.sampled_from(["settle", "settle", "return", "discard"]))
    def answer(self, consumer: ConsumerId, msg_ids: list[int], how: str) -> None:
        msg_ids = list(dict.fromkeys(msg_ids))
        command = _KINDS[how](consumer, msg_ids)
        self.model.answer(self.both(command), consumer, msg_ids, how)

    @rule(data=st.data(), how=st.sampled_from(["settle", "return", "discard", "requeue"]))
    def answer_what_is_out(self, data: st.DataObject, how: str) -> None:
        out = [(one["key"], sorted(one["held"])) for one in self.model.consumers if one["held"]]
        if not out:
            return
        consumer, held = data.draw(st.sampled_from(out))
        if how == "requeue":
            now = self.both(Requeue(consumer, held[0], 0, 0, body()))
            self.model.requeue(self.index, now, consumer, held[0])
        else:
            self.answer(consumer, data.draw(st.lists(st.sampled_from(held), min_size=1)), how)

    @rule(consumer=CONSUMERS)
    def cancel(self, consumer: ConsumerId) -> None:
        self.model.cancel(self.both(Cancel(consumer)), consumer)

    @rule(consumer=CONSUMERS, credit=st.integers(0, 3), behind=st.integers(0, 1), drain=st.booleans())
    def credit(self, consumer: ConsumerId, credit: int, behind: int, drain: bool) -> None:
        one = self.model.consumer(consumer)
        command = Credit(consumer, credit, max(0, (one["delivered"] if one else 0) - behind), drain)
        self.model.grant(self.both(command), command)

    @rule(number=NUMBERS, away=st.booleans())
    def down(self, number: int, away: bool) -> None:
        key, node = pid(number, PROCESSES[number]), PROCESSES[number]
        if not away:
            self.published[number] = 0
        now = self.both(Down(key, "noconnection" if away else "normal"))
        self.model.down(now, key, node if away else None)

    @rule(node=st.sampled_from([NODE, OTHER_NODE]))
    def node_up(self, node: str) -> None:
        self.model.node_up(self.both(NodeUp(node)), node)

    @rule()
    def purge(self) -> None:
        self.both(Purge())
        self.model.returns, self.model.rest = [], []

    @rule(ms=st.integers(0, 3))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        self.model.checkout(self.both(Nothing("timeout", True)))

    @rule(limit=SOMETIMES, length=SOMETIMES, ttl=SOMETIMES)
    def change_settings(self, limit: int | None, length: int | None, ttl: int | None) -> None:
        values: dict[str, Term] = {
            "delivery_limit": limit or _NONE,
            "max_length": length or _NONE,
            "msg_ttl": ttl or _NONE,
        }
        now = self.both(UpdateConfig(settings(**values)))
        self.model.limit, self.model.length, self.model.ttl = limit or None, length or None, ttl or None
        self.model.checkout(now)

    @rule()
    def take_a_snapshot(self) -> None:
        self.other = again(self.machine)

    @invariant()
    def same(self) -> None:
        for machine in (self.machine, self.other):
            machine.check_invariants()
            assert [tuple(one) for one in machine.ready()] == [
                _same(one) for one in self.model.returns + self.model.rest
            ]
            assert [(key, msg_id, tuple(one)) for key, msg_id, one in machine.outstanding()] == [
                (one["key"], msg_id, _same(message))
                for one in self.model.consumers
                for msg_id, message in one["held"].items()
            ]

    def teardown(self) -> None:
        everything = [message for _, _, message in self.machine.outstanding()] + list(self.machine.ready())
        self.machine.restart()
        self.other.restart()
        self.machine.check_invariants()
        assert sorted(one.index for one in self.machine.ready()) == sorted(one.index for one in everything)
        assert list(self.machine.ready()) == list(self.other.ready())
        assert self.machine.messages.out_count == 0
        kept = {one.index for one in self.machine.ready()}
        assert {*self.machine.messages.past_limit, *self.machine.messages.past_length} <= kept


_KINDS: dict[str, type[Settle] | type[Return] | type[Discard]] = {
    "settle": Settle,
    "return": Return,
    "discard": Discard,
}
_NONE: Term = Atom("undefined")
TestMachineAgainstModel = MachineAgainstModel.TestCase
TestMachineAgainstModel.settings = hypothesis_settings(max_examples=times(60), stateful_step_count=40)
