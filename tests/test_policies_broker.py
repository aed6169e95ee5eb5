"""Policies beside a real broker's: what it refuses and in which words, what it exports.

What they do with queues is in :mod:`tests.test_amqp_differential`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import Broker
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
