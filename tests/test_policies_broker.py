"""Policies beside a real broker's: what it refuses and in which words, what it does with queues, what it exports."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pika
import pytest

import warren
from tests.support.broker import Broker
from tests.support.waiting import wait_until
from warren.actors.engines.declared.definitions import Definitions
from warren.actors.engines.declared.policies import Policy
from warren.actors.engines.errors import ArgumentsError

pytestmark = pytest.mark.broker

ATTEMPTS: list[tuple[str, str, dict[str, Any], Any, Any]] = [
    ("policy", ".*", {"message-ttl": 1}, 0, "all"),
    ("policy", ".*", {"message-ttl": -1}, 0, "all"),
    ("policy", ".*", {"message-ttl": "soon"}, 0, "all"),
    ("policy", ".*", {"message-ttl": 1.5}, 0, "all"),
    ("policy", ".*", {"message-ttl": True}, 0, "all"),
    ("policy", ".*", {"message-ttl": None}, 0, "all"),
    ("policy", ".*", {"message-ttl": [300, 65]}, 0, "all"),
    ("policy", ".*", {"message-ttl": [72, 105]}, 0, "all"),
    ("policy", ".*", {"message-ttl": {"a": {"b": 'say "x"\\'}}}, 0, "all"),
    ("policy", ".*", {"message-ttl": ""}, 0, "all"),
    ("policy", ".*", {"expires": 0}, 0, "all"),
    ("policy", ".*", {"expires": 1}, 0, "queues"),
    ("policy", ".*", {"max-length": 0, "max-length-bytes": -5}, 0, "queues"),
    ("policy", ".*", {"max-length-bytes": 0, "max-length": -5}, 0, "queues"),
    ("policy", ".*", {"alternate-exchange": 1}, 0, "exchanges"),
    ("policy", ".*", {"alternate-exchange": ""}, 0, "exchanges"),
    ("policy", ".*", {"dead-letter-exchange": 1}, 0, "queues"),
    ("policy", ".*", {"dead-letter-routing-key": 1}, 0, "queues"),
    ("policy", ".*", {"dead-letter-routing-key": "k"}, 0, "queues"),
    ("policy", ".*", {"dead-letter-strategy": "never"}, 0, "queues"),
    ("policy", ".*", {"dead-letter-strategy": "at-least-once"}, 0, "queues"),
    ("policy", ".*", {"queue-mode": "fast"}, 0, "queues"),
    ("policy", ".*", {"queue-mode": "lazy"}, 0, "queues"),
    ("policy", ".*", {"queue-version": 3}, 0, "queues"),
    ("policy", ".*", {"queue-version": 1}, 0, "queues"),
    ("policy", ".*", {"overflow": "drop"}, 0, "queues"),
    ("policy", ".*", {"overflow": "reject-publish-dlx"}, 0, "queues"),
    ("policy", ".*", {"delivery-limit": "x"}, 0, "queues"),
    ("policy", ".*", {"max-in-memory-length": -1}, 0, "queues"),
    ("policy", ".*", {"max-in-memory-bytes": -1}, 0, "queues"),
    ("policy", ".*", {"max-age": "1h"}, 0, "queues"),
    ("policy", ".*", {"max-age": "1"}, 0, "queues"),
    ("policy", ".*", {"queue-leader-locator": "here"}, 0, "queues"),
    ("policy", ".*", {"queue-leader-locator": "least-leaders"}, 0, "queues"),
    ("policy", ".*", {"initial-cluster-size": -1}, 0, "queues"),
    ("policy", ".*", {"stream-max-segment-size-bytes": 3_000_000_001}, 0, "queues"),
    ("policy", ".*", {"stream-max-segment-size-bytes": 3_000_000_000}, 0, "queues"),
    ("policy", ".*", {"max-priority": 5}, 0, "queues"),
    ("policy", ".*", {"x": "y", "a": 1}, 0, "queues"),
    ("policy", ".*", {"ha-params": 2}, 0, "queues"),
    ("policy", ".*", {"ha-mode": "all"}, 0, "queues"),
    ("policy", ".*", {}, 0, "queues"),
    ("policy", "[", {"max-length": 1}, 0, "queues"),
    ("policy", "", {"max-length": 1}, 0, "queues"),
    ("policy", ".*", {"max-length": 1}, 0, "classic_queues"),
    ("policy", ".*", {"max-length": 1}, -5, "queues"),
    ("operator_policy", ".*", {"max-length": 1}, 0, "queues"),
    ("operator_policy", ".*", {"max-length": "1"}, 0, "queues"),
    ("operator_policy", ".*", {"queue-mode": "lazy"}, 0, "queues"),
    ("operator_policy", ".*", {"overflow": "drop-head", "max-length": 3}, 0, "queues"),
    ("operator_policy", ".*", {"message-ttl": 1, "expires": 1, "max-length-bytes": 1, "delivery-limit": 1}, 0, "all"),
]
"""Kind, pattern, definition, priority, apply-to."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker")) as running:
        running.start()
        yield running


def test_a_broker_refuses_the_same_policies_in_the_same_words(broker: Broker, tmp_path: Path) -> None:
    asked, answered = tmp_path / "asked.json", tmp_path / "answered.json"
    asked.write_text(json.dumps([[kind, at, json.dumps(of), *rest] for kind, at, of, *rest in ATTEMPTS]))
    broker.eval(
        f'{{ok, Text}} = file:read_file("{asked}"), Set = fun(K) -> '
        '  case K of <<"policy">> -> fun rabbit_policy:parse_set/7; _ -> fun rabbit_policy:parse_set_op/7 end end, '
        'Said = [case (Set(K))(<<"/">>, <<"p">>, Pattern, Definition, Priority, ApplyTo, <<"guest">>) of '
        "  ok -> <<>>; {error_string, Error} -> unicode:characters_to_binary(Error) end"
        "  || [K, Pattern, Definition, Priority, ApplyTo] <- rabbit_json:decode(Text)], "
        f'ok = file:write_file("{answered}", rabbit_json:encode(Said)), '
        'rabbit_policy:delete(<<"/">>, <<"p">>, <<"guest">>), rabbit_policy:delete_op(<<"/">>, <<"p">>, <<"guest">>)'
    )
    for (kind, pattern, definition, priority, apply_to), said in zip(
        ATTEMPTS, json.loads(answered.read_text()), strict=True
    ):
        try:
            Policy(
                kind=kind,  # type: ignore[arg-type]
                vhost="/",
                name="p",
                pattern=pattern,
                definition=definition,
                priority=priority,
                apply_to=apply_to,
            )
        except ArgumentsError as error:
            text = f"Validation failed\n\n{error}\n"
        else:
            text = ""
        ours, theirs = ("".join(one.split()) for one in (text, said))  # Erlang breaks long lines
        if pattern == "[":  # every library has its own words for it
            ours, theirs = (one.partition("invalid:")[0] for one in (ours, theirs))
        assert ours == theirs, (pattern, definition)


# ── what a policy does ────────────────────────────────────────────────────────────────────────────────────────────────


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
    Case({"x-max-length": 4}, after=({"dead-letter-exchange": "", "dead-letter-routing-key": "dead"}, {})),
    Case({"x-max-length": 4, "x-dead-letter-exchange": ""}, ({"dead-letter-routing-key": "dead"}, {})),
    Case(
        {"x-max-length": 4, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
        ({"dead-letter-exchange": "amq.fanout", "dead-letter-routing-key": "nowhere"}, {}),
    ),
    Case(before=({"max-length": 4, "dead-letter-exchange": "", "dead-letter-routing-key": "dead"}, {})),
    Case(after=({"max-length": 2, "dead-letter-exchange": "", "dead-letter-routing-key": "dead"}, {})),
    Case(
        before=({"max-length": 4, "dead-letter-exchange": "", "dead-letter-routing-key": "dead"}, {}),
        after=({"max-length": 2}, {}),
    ),
    Case(before=({"message-ttl": 0}, {})),
    Case(before=({"max-length": 4}, {}), after=({"max-length": 7, "message-ttl": 0}, {})),
    Case(after=({"message-ttl": 0}, {})),
    Case(after=({"message-ttl": 0, "dead-letter-exchange": "", "dead-letter-routing-key": "dead"}, {})),
    Case(after=({"message-ttl": 0, "max-length": 3, "overflow": "reject-publish"}, {})),
    Case(before=({"message-ttl": 1, "dead-letter-exchange": "", "dead-letter-routing-key": "dead"}, {})),
    Case(before=({}, {"message-ttl": 1})),
    Case(before=({"message-ttl": 100_000}, {}), after=({"message-ttl": 1}, {})),
    Case(before=({"message-ttl": 100_000}, {"message-ttl": 1}), after=({"message-ttl": 1}, {"message-ttl": 100_000})),
    Case({"x-message-ttl": 1}, ({"message-ttl": 100_000}, {})),
    Case({"x-message-ttl": 100_000}, ({"message-ttl": 1}, {})),
    Case({"x-max-priority": 3}, ({"max-length": 4}, {}), ({"max-length": 3, "queue-mode": "lazy"}, {})),
    Case(before=({"queue-mode": "lazy"}, {})),
    Case({"x-queue-mode": "default"}, after=({"queue-mode": "lazy", "max-length": 7}, {})),
    Case({"x-queue-mode": "lazy"}, ({"queue-mode": "default"}, {})),
]
MESSAGES = 6


def document(phase: str) -> dict[str, Any]:
    """Definitions with the policies of all cases that there are before, or after."""
    policies, operator_policies = [], []
    for number, case in enumerate(CASES):
        policy, operator_policy = getattr(case, phase)
        common = {"pattern": f"^q{number}$", "apply-to": "queues", "priority": 1}
        if policy:
            policies.append({"vhost": "/", "name": f"p{number}", **common, "definition": policy})
        if operator_policy:
            value = {**common, "definition": operator_policy}
            operator_policies.append(
                {"vhost": "/", "component": "operator_policy", "name": f"p{number}", "value": value}
            )
    return {"policies": policies, "parameters": operator_policies}


def gone() -> Iterator[tuple[str, str]]:
    """Policies that are there before and not after."""
    for number, case in enumerate(CASES):
        for kind, before, after in zip(("policy", "operator_policy"), case.before, case.after, strict=True):
            if before and not after:
                yield kind, f"p{number}"


def body(case: int, phase: str, number: int) -> bytes:
    return f"{case}{phase}{number}"[-2:].encode()


def run_here(node: warren.Node) -> None:
    node.import_definitions(document("before"))
    queues = [node.queue(f"q{number}", arguments=case.arguments) for number, case in enumerate(CASES)]
    node.queue("dead")
    for phase in ("a", "b"):
        for case, queue in enumerate(queues):
            for number in range(MESSAGES):
                with contextlib.suppress(warren.errors.PublishRefusedError):
                    queue.publish(body(case, phase, number), priority=number % 3, message_id=f"{case}").wait()
        settle(lambda: [queue.stats()["messages"] for queue in node.queues()])
        if phase == "a":
            for kind, name in gone():
                (node.clear_policy if kind == "policy" else node.clear_operator_policy)(name)
            node.import_definitions(document("after"))


def settle(counts: Callable[[], list[int]]) -> None:
    """Wait until short times to live have passed, and the dead have arrived."""
    seen: list[list[int]] = []

    def is_settled() -> bool:
        seen.append(counts())
        return len(seen) > 5 and len(set(map(tuple, seen[-5:]))) == 1

    wait_until(is_settled, "messages still come and go")


def found_here(node: warren.Node) -> tuple[dict[str, list[bytes]], list[Any]]:
    found = {
        queue.name: [delivery.body for delivery in queue.get_many(1000)]
        for queue in node.queues()
        if queue.name != "dead"
    }
    dead = [
        (delivery.properties.message_id, delivery.body, death(delivery.headers))
        for delivery in node.queue("dead", passive=True).get_many(1000)
    ]
    return found, sorted_by_queue(dead)


def death(headers: Any) -> list[Any]:
    return [(one["queue"], one["reason"], one["count"], one["exchange"]) for one in (headers or {}).get("x-death", [])]


def sorted_by_queue(dead: list[Any]) -> list[Any]:
    """Dead letters of different queues come in any order, those of one in theirs."""
    return sorted(dead, key=lambda one: int(one[0]))


def run_there(broker: Broker, tmp_path: Path) -> None:
    for phase in ("before", "after"):
        (tmp_path / phase).write_text(json.dumps(document(phase)))
    broker.ctl("import_definitions", str(tmp_path / "before"))
    with broker.channel() as channel:
        for number, case in enumerate(CASES):
            channel.queue_declare(f"q{number}", durable=True, arguments=dict(case.arguments))
        channel.queue_declare("dead", durable=True)
        channel.confirm_delivery()
        for phase in ("a", "b"):
            for at in range(len(CASES)):
                for number in range(MESSAGES):
                    properties = pika.BasicProperties(delivery_mode=2, priority=number % 3, message_id=f"{at}")
                    with contextlib.suppress(pika.exceptions.NackError):
                        channel.basic_publish("", f"q{at}", body(at, phase, number), properties)
            settle(lambda: [ready(channel, f"q{number}") for number in range(len(CASES))] + [ready(channel, "dead")])
            if phase == "a":
                clear = ", ".join(
                    f'rabbit_policy:{"delete" if kind == "policy" else "delete_op"}(<<"/">>, <<"{name}">>, <<"guest">>)'
                    for kind, name in gone()
                )
                broker.eval(clear)
                broker.ctl("import_definitions", str(tmp_path / "after"))


def ready(channel: Any, queue: str) -> int:
    count: int = channel.queue_declare(queue, passive=True).method.message_count
    return count


def found_there(broker: Broker) -> tuple[dict[str, list[bytes]], list[Any]]:
    with broker.channel() as channel:

        def drained(queue: str) -> Iterator[Any]:
            while (found := channel.basic_get(queue, auto_ack=True))[0] is not None:
                yield found

        queues = {f"q{number}": [one[2] for one in drained(f"q{number}")] for number in range(len(CASES))}
        dead = [(one[1].message_id, one[2], death(one[1].headers)) for one in drained("dead")]
    return queues, sorted_by_queue(dead)


def test_queues_do_what_a_brokers_do_as_policies_come_change_and_go(broker: Broker, tmp_path: Path) -> None:
    with warren.open(tmp_path / "data") as node:
        run_here(node)
        here = found_here(node)
        assert {letter[2][0][1] for letter in here[1]} == {"maxlen", "expired"}
        exported = node.definitions()
    run_there(broker, tmp_path)
    broker.ctl("export_definitions", str(tmp_path / "exported"))
    there = found_there(broker)
    for number, case in enumerate(CASES):
        name = f"q{number}"
        assert here[0][name] == there[0][name], case
        assert [one for one in here[1] if one[0] == str(number)] == [
            one for one in there[1] if one[0] == str(number)
        ], case
    theirs = json.loads((tmp_path / "exported").read_text())
    for part in ("policies", "parameters"):
        assert by_name(theirs[part]) == by_name(exported[part]) != {}


def by_name(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {item["name"]: item for item in items}


def test_a_broker_takes_our_policies_and_gives_them_back(broker: Broker, tmp_path: Path) -> None:
    definitions = Definitions()
    definitions.declare_vhost("shop")
    for vhost in ("/", "shop"):
        for kind in ("policy", "operator_policy"):
            definitions.set_policy(
                Policy(
                    kind=kind,
                    vhost=vhost,
                    name=f"{kind} of {vhost} ü",
                    pattern="^never ü.$",
                    definition={"max-length": 5, "expires": 60_000},
                    priority=-3,
                    apply_to="queues",
                )
            )
    ours, theirs = tmp_path / "ours.json", tmp_path / "theirs.json"
    ours.write_text(json.dumps(definitions.export_definitions()))
    broker.ctl("import_definitions", str(ours))
    broker.ctl("export_definitions", str(theirs))
    again = Definitions()
    done = again.import_definitions(json.loads(theirs.read_text()))
    assert "parameters" not in done.ignored
    for part in ("policies", "parameters"):
        sent, returned = definitions.export_definitions()[part], by_name(again.export_definitions()[part])
        assert [returned[item["name"]] for item in sent] == sent != []
