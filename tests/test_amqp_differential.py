"""AMQP programs on real servers, random ones and some with names: what comes is the same, frame by frame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from tests.support.amqp_differential import Side, differs, first_difference, own_server, program_of, real_server, report
from tests.support.amqp_program import FAR_MS, SHORT_MS, Program, Step, shortened
from tests.support.broker import requires_broker

pytestmark = pytest.mark.filterwarnings("ignore:This command is deprecated")  # basic.recover-async
SEEDS = range(140, 152)
"""More by hand: ``python -m tests.support.amqp_differential``. What they found has names in test_server_answers.py and
test_server_refusals.py."""
SAME_TWICE = range(2)
TRIES = 3


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    with real_server(tmp_path_factory.mktemp("broker")) as side:
        yield side


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    with own_server(tmp_path_factory.mktemp("warren") / "node") as side:
        yield side


def repeated(one: Side, other: Side, seed: int) -> str:
    """What differs, and does so each time: what a busy machine brings about once is no difference."""
    said = ""
    for _ in range(TRIES):
        if not (said := report(one, other, seed)):
            return ""
    return said


@requires_broker
def test_random_programs_are_answered_as_a_broker_answers_them(own: Side, real: Side) -> None:
    differences = [text for seed in SEEDS if (text := repeated(own, real, seed))]
    assert not differences, "\n".join(differences)


@requires_broker
def test_a_broker_says_the_same_twice(real: Side) -> None:
    assert not [text for seed in SAME_TWICE if (text := repeated(real, real, seed))]


# ── programs with names ─────────────────────────────────────────────────────────────────────────────────────────────

Call = tuple[str, dict[str, Any]]
"""A step's verb and arguments."""
WAIT: Call = ("wait", {})
ACK: Call = ("basic.ack", {"delivery": 0})
REJECT: Call = ("basic.reject", {"delivery": 0, "requeue": False})
REQUEUE: Call = ("basic.reject", {"delivery": 0, "requeue": True})


def declare(queue: str, *, dead: str | None = None, key: str | None = None, **arguments: Any) -> Call:
    """``dead``: the exchange of its dead letters; ``key``: their routing key."""
    more = {"dead_letter_exchange": dead, "dead_letter_routing_key": key, **arguments}
    given = {f"x-{name.replace('_', '-')}": value for name, value in more.items() if value is not None}
    return "queue.declare", {"queue": queue, "durable": True, "arguments": given}


def publish(queue: str, body: str, **properties: Any) -> Call:
    message = {"properties": {"delivery_mode": 2, **properties}, "body": body, "count": 1}
    return "basic.publish", {"exchange": "", "routing_key": queue, **message}


def get(queue: str, then: Call = ACK, count: int = 1) -> list[Call]:
    return [("basic.get", {"queue": queue, "no_ack": False}), then] * count


def check(own: Side, real: Side, calls: list[Call]) -> None:
    """Play them on one channel with confirms."""
    where = {"connection": 0, "channel": 1}
    steps = enumerate([("confirm.select", {}), *calls])
    difference = differs(own, real, tuple(Step(at, verb, where | given) for at, (verb, given) in steps))
    assert difference is None, str(difference)


def exchange(name: str, kind: str, **more: Any) -> Call:
    return "exchange.declare", {"exchange": name, "exchange_type": kind, **more}


def sent(to: str, key: str, *, mandatory: bool = False) -> Call:
    """A message through an exchange."""
    return "basic.publish", {**publish(key, key)[1], "exchange": to, "mandatory": mandatory}


def bind(queue: str, source: str, key: str = "") -> Call:
    return "queue.bind", {"queue": queue, "exchange": source, "routing_key": key}


def bind_exchange(destination: str, source: str, key: str = "") -> Call:
    return "exchange.bind", {"destination": destination, "source": source, "routing_key": key}


def consume(queue: str, tag: str, priority: int = 0, **more: Any) -> Call:
    return "basic.consume", {"queue": queue, "consumer_tag": tag, "arguments": {"x-priority": priority}, **more}


def cancel(tag: str) -> Call:
    return "basic.cancel", {"consumer_tag": tag}


def qos(count: int) -> Call:
    return "basic.qos", {"prefetch_size": 0, "prefetch_count": count, "global_": False}


COPIED = {"CC": ["@copy"], "BCC": ["@blind"], "other": True}
OLD_DEATH = {"queue": "@q", "reason": "rejected", "exchange": "e", "routing-keys": ["k"]}
OTHER_DEATH = {"queue": "z", "reason": "expired"}
TO_DEAD = {"dead": "", "key": "@dead"}
LAZY: list[dict[str, Any]] = [
    {},
    {"message_ttl": 0},
    {"max_length": 0},
    {"max_length": 0, "overflow": "reject-publish-dlx"},
]
SCENARIOS: dict[str, list[Call]] = {
    "a message that dies of everything, everywhere, and again": [
        *[declare(f"@{queue}", dead="", key=f"@{following}") for queue, following in ("ab", "bc", "ca")],
        publish("@a", "1", headers={"mine": 1, "zz": "last"}, expiration=str(SHORT_MS), content_type="text/plain"),
        WAIT,
        *[one for queue in "bcabcab" for one in get(f"@{queue}", REJECT)],
        *get("@c"),
    ],
    "a cycle of expiries": [
        declare("@a", dead="", key="@b", message_ttl=SHORT_MS),
        declare("@b", dead="", key="@a", message_ttl=20),
        publish("@a", "goes round once"),
        WAIT,
        declare("@self", dead="", message_ttl=SHORT_MS),
        publish("@self", "rejected, it may"),
        *get("@self", REJECT),
        *get("@self", REQUEUE),
        WAIT,
    ],
    "copies": [
        *[declare(queue) for queue in ("@copy", "@blind", "@target")],
        declare("@a", dead=""),
        declare("@b", dead="", key="@target"),
        publish("@b", "with a key of the queue's own", headers=COPIED),
        *[*get("@copy"), *get("@blind"), *get("@b", REJECT), *get("@target"), *get("@copy"), *get("@blind")],
        publish("@a", "with its own keys: back where it was, and to the others", headers=COPIED),
        *[*get("@copy"), *get("@blind"), *get("@a", REJECT), *get("@a"), *get("@copy"), *get("@blind")],
        publish("@b", "dead at once", headers=COPIED, expiration="0"),
        *[*get("@target"), *get("@copy", count=2), *get("@blind", count=2)],
    ],
    "the head is dropped": [
        declare("@dead"),
        declare("@q", max_length=3, **TO_DEAD),
        *[publish("@q", str(number), expiration=str(FAR_MS)) for number in range(5)],
        *[*get("@dead", count=2), *get("@q", REQUEUE), *get("@q", count=4)],
        declare("@r", max_length_bytes=6, **TO_DEAD),
        *[publish("@r", body) for body in ("12", "34", "5678", "", "far too long")],
        *get("@dead", count=6),
    ],
    "publishes are refused": [
        declare("@dead"),
        declare("@q", max_length=2, overflow="reject-publish-dlx", **TO_DEAD),
        *[publish("@q", str(number)) for number in range(4)],
        *[*get("@dead", count=3), *get("@q", count=3)],
    ],
    "the order of expiry": [
        declare("@dead"),
        declare("@q", **TO_DEAD),
        *[publish("@q", time, expiration=time) for time in (str(SHORT_MS), "1", str(FAR_MS), "1")],
        WAIT,
        *[*get("@dead", count=3), *get("@q", count=2), *get("@dead")],
    ],
    "deaths that another program wrote": [
        declare("@dead"),
        declare("@q", **TO_DEAD),
        *[
            one
            for deaths in (
                "made text of",
                [],
                [OLD_DEATH],
                [OLD_DEATH, OLD_DEATH, OTHER_DEATH],
                [OTHER_DEATH, OLD_DEATH],
                [OTHER_DEATH, {**OTHER_DEATH, "count": 5}],
                [{**OLD_DEATH, "count": 7}, OTHER_DEATH],
            )
            for one in (
                publish("@q", "x", headers={"x-death": deaths, "b": 1, "a": 2}),
                *get("@q", REJECT),
                *get("@dead"),
            )
        ],
    ],
    "priorities": [
        declare("@dead"),
        declare("@q", max_priority=3, max_length=3, **TO_DEAD),
        *[publish("@q", str(priority), priority=priority) for priority in (0, 9, 1, 2, None)],
        *[*get("@dead", count=2), *get("@q", REQUEUE), *get("@q", count=4)],
    ],
    "what a lazy queue tells of the expiration of what was in it": [
        declare("@dead"),
        *[declare(f"@q{number}", queue_mode="lazy", **TO_DEAD, **more) for number, more in enumerate(LAZY)],
        *[publish(f"@q{number}", "x", expiration=str(FAR_MS)) for number in range(len(LAZY))],
        *[*get("@q0", REQUEUE), *get("@q0", REJECT), *get("@dead", count=len(LAZY))],
    ],
    "a queue that goes with its last consumer": [
        ("queue.declare", {"queue": "@q", "auto_delete": True}),
        *[consume("@q", "@a"), consume("@q", "@b"), cancel("@a"), cancel("@b")],
    ],
    "exchanges that go with their last bindings": [
        *[exchange(name, "fanout", auto_delete=True) for name in ("@x", "@y")],
        *[declare("@q"), bind_exchange("@y", "@x"), bind("@q", "@y"), sent("@x", "k", mandatory=True)],
        ("queue.delete", {"queue": "@q"}),
        exchange("@y", "fanout", passive=True),
        exchange("@x", "fanout", passive=True),
    ],
    "alternates in a circle": [
        *[
            exchange(one, "direct", arguments={"alternate-exchange": other})
            for one, other in (("@a", "@b"), ("@b", "@a"))
        ],
        *[declare("@q"), bind("@q", "@b", "k"), sent("@a", "k", mandatory=True), sent("@a", "l", mandatory=True)],
        *get("@q", count=2),
    ],
    "bindings of exchanges in a circle": [
        *[exchange("@a", "topic"), exchange("@b", "fanout"), exchange("@c", "direct"), declare("@p"), declare("@q")],
        *[bind_exchange("@b", "@a", "a.#"), bind_exchange("@c", "@b"), bind_exchange("@a", "@c", "a.b")],
        *[bind("@p", "@a", "#"), bind("@p", "@b"), bind("@q", "@c", "a.b")],
        *[one for key in ("a.b", "a", "b") for one in (sent("@a", key), *get("@p"), *get("@q"))],
    ],
    "no time to live, and a consumer that waits": [
        declare("@q", message_ttl=0),
        *[publish("@q", "too early"), consume("@q", "@t", no_ack=True), publish("@q", "in time")],
    ],
    "consumers of different priorities": [
        *[declare("@q"), qos(2), consume("@q", "@low", -1), consume("@q", "@mid"), consume("@q", "@high", 5)],
        *[publish("@q", str(number)) for number in range(7)],
    ],
    "one active consumer at a time": [
        declare("@q", single_active_consumer=True),
        *[consume("@q", tag, no_ack=True) for tag in ("@first", "@second")],
        *[publish("@q", "a"), cancel("@first"), publish("@q", "b")],
    ],
    "a deleted queue's consumers": [
        *[declare("@q"), consume("@q", "@t"), consume("@q", "@u"), ("queue.delete", {"queue": "@q"})],
    ],
    "messages that a channel had": [
        *[declare("@q"), *[publish("@q", str(number)) for number in range(5)]],
        *[("basic.get", {"queue": "@q", "no_ack": False})] * 3,
        *[("basic.ack", {"delivery": 1, "multiple": True}), ("channel.close", {}), *get("@q", count=4)],
    ],
    "priorities and requeues": [
        declare("@q", max_priority=3),
        *[publish("@q", str(number), priority=one) for number, one in enumerate((0, 3, 1, None, 9, 3, 2))],
        *[("basic.get", {"queue": "@q", "no_ack": False})] * 4,
        *[("basic.nack", {"delivery": 2, "multiple": True, "requeue": True}), *get("@q", count=6)],
    ],
    "messages that are recovered": [
        *[declare("@q"), *[publish("@q", str(number)) for number in range(3)]],
        *[("basic.get", {"queue": "@q", "no_ack": False})] * 2,
        *[("basic.recover", {"requeue": True}), *get("@q", count=3)],
    ],
    "a queue that the server names": [
        ("queue.declare", {"queue": "", "auto_delete": True}),
        *[
            bind("", "amq.direct", "k"),
            bind("", "amq.direct"),
            sent("amq.direct", "k"),
            sent("amq.direct", "{queue 1}"),
        ],
        *get("", count=3),
    ],
}


@requires_broker
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_named_program_is_answered_as_a_broker_answers_it(own: Side, real: Side, name: str) -> None:
    check(own, real, SCENARIOS[name])


# ── policies ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Case(NamedTuple):
    """A queue, and what holds for it before some messages and after them, as (policy, operator policy)."""

    arguments: Mapping[str, Any] = {}
    before: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
    after: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})


CASES = [
    Case(),
    Case(before=({"max-length": 4}, {})),
    Case(before=({}, {"max-length": 4})),
    Case(before=({"max-length": 4}, {"max-length": 2}), after=({"max-length": 4}, {})),
    Case(after=({"max-length": 3}, {})),
    Case(before=({"max-length": 3}, {}), after=({"max-length": 12}, {})),
    Case({"x-max-length": 5}, ({"max-length": 4}, {"max-length": 6})),
    Case({"x-max-length": 3}, ({"max-length": 4}, {"max-length": 6})),
    Case({"x-max-length": 3}, ({"max-length": 4}, {"max-length": 6}), ({}, {"max-length": 1})),
    Case(before=({"max-length-bytes": 7}, {})),
    Case(after=({"max-length-bytes": 7}, {"max-length-bytes": 5})),
    Case(before=({"max-length": 4, "overflow": "reject-publish"}, {})),
    Case(after=({"max-length": 4, "overflow": "reject-publish"}, {})),
    Case(before=({"overflow": "reject-publish"}, {}), after=({"max-length": 4, "overflow": "reject-publish"}, {})),
    Case(before=({"overflow": "reject-publish"}, {}), after=({"max-length": 4}, {})),
    Case(before=({"overflow": "reject-publish-dlx", "max-length": 9}, {}), after=({"max-length": 4}, {})),
    Case({"x-overflow": "reject-publish"}, ({"max-length": 4, "overflow": "drop-head"}, {})),
    Case({"x-overflow": "drop-head"}, ({"max-length": 4, "overflow": "reject-publish"}, {})),
    Case({"x-max-length": 4}, ({"overflow": "reject-publish-dlx", "dead-letter-exchange": ""}, {})),
    Case({"x-max-length": 4}, after=({"dead-letter-exchange": "", "dead-letter-routing-key": "@dead"}, {})),
    Case({"x-max-length": 4, "x-dead-letter-exchange": ""}, ({"dead-letter-routing-key": "@dead"}, {})),
    Case(
        {"x-max-length": 4, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "@dead"},
        ({"dead-letter-exchange": "amq.fanout", "dead-letter-routing-key": "nowhere"}, {}),
    ),
    Case(before=({"max-length": 4, "dead-letter-exchange": "", "dead-letter-routing-key": "@dead"}, {})),
    Case(after=({"max-length": 2, "dead-letter-exchange": "", "dead-letter-routing-key": "@dead"}, {})),
    Case(
        before=({"max-length": 4, "dead-letter-exchange": "", "dead-letter-routing-key": "@dead"}, {}),
        after=({"max-length": 2}, {}),
    ),
    Case(before=({"message-ttl": 0}, {})),
    Case(before=({"max-length": 4}, {}), after=({"max-length": 7, "message-ttl": 0}, {})),
    Case(after=({"message-ttl": 0}, {})),
    Case(after=({"message-ttl": 0, "dead-letter-exchange": "", "dead-letter-routing-key": "@dead"}, {})),
    Case(after=({"message-ttl": 0, "max-length": 3, "overflow": "reject-publish"}, {})),
    Case(before=({"message-ttl": SHORT_MS, "dead-letter-exchange": "", "dead-letter-routing-key": "@dead"}, {})),
    Case(before=({}, {"message-ttl": SHORT_MS})),
    Case(before=({"message-ttl": FAR_MS}, {}), after=({"message-ttl": SHORT_MS}, {})),
    Case(
        before=({"message-ttl": FAR_MS}, {"message-ttl": SHORT_MS}),
        after=({"message-ttl": SHORT_MS}, {"message-ttl": FAR_MS}),
    ),
    Case({"x-message-ttl": SHORT_MS}, ({"message-ttl": FAR_MS}, {})),
    Case({"x-message-ttl": FAR_MS}, ({"message-ttl": SHORT_MS}, {})),
    Case({"x-max-priority": 3}, ({"max-length": 4}, {}), ({"max-length": 3, "queue-mode": "lazy"}, {})),
    Case(before=({"queue-mode": "lazy"}, {})),
    Case({"x-queue-mode": "default"}, after=({"queue-mode": "lazy", "max-length": 7}, {})),
    Case({"x-queue-mode": "lazy"}, ({"queue-mode": "default"}, {})),
]
MESSAGES = 6


def program_of_case(case: Case) -> list[Call]:
    """Some messages under the first policies, as many under the second ones, and all that is left of them."""
    calls = [declare("@dead"), ("queue.declare", {"queue": "@q", "durable": True, "arguments": case.arguments})]
    for phase, policies in (("a", case.before), ("b", case.after)):
        for kind, definition in zip(("policies", "operator-policies"), policies, strict=True):
            path = f"/{kind}/%2F/@p"
            policy = {"pattern": "^@q$", "definition": definition, "priority": 1, "apply-to": "queues"}
            calls.append(("administer", {"method": "PUT" if definition else "DELETE", "path": path, "body": policy}))
        calls += [publish("@q", f"{phase}{number}", priority=number % 3) for number in range(MESSAGES)]
        if SHORT_MS in {**policies[0], **policies[1], **case.arguments}.values():
            calls.append(WAIT)
    return [*calls, *get("@q", count=2 * MESSAGES), *get("@dead", count=2 * MESSAGES)]


@requires_broker
@pytest.mark.parametrize("case", CASES, ids=str)
def test_queues_do_what_a_brokers_do_as_policies_come_change_and_go(own: Side, real: Side, case: Case) -> None:
    check(own, real, program_of_case(case))


# ── the tool itself ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_seed_gives_the_same_program_each_time() -> None:
    assert program_of(7) == program_of(7)
    assert program_of(7) != program_of(8)


def test_the_first_step_that_differs_is_found() -> None:
    program = tuple(Step(number, "basic.get", {}) for number in range(3))
    told: list[Mapping[str, Any]] = [{"0.1": [["basic.get_empty", {}]]}, {"queues": {}}, {}]
    found = first_difference(program, told, [told[0], {"queues": {"@q0": [1, 0]}}, {}])
    assert found is not None
    assert (found.step, found.what, found.there) == (program[1], "queues", {"@q0": [1, 0]})
    assert first_difference(program, told, list(told)) is None


@pytest.mark.parametrize("needed", [{0}, {3, 17}, {5, 6, 7, 19}])
def test_a_program_is_shortened_to_the_steps_that_matter(needed: set[int]) -> None:
    program = tuple(Step(number, "wait", {}) for number in range(20))

    def differs(part: Program) -> bool:
        return needed <= {step.number for step in part}

    assert {step.number for step in shortened(program, differs)} == needed
