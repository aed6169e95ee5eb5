"""What the server refuses, and with which words: those of RabbitMQ 3.10.8. One table, both servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.support import amqp_refusals, amqp_user_refusals
from tests.support.amqp_differential import Side, own_server, real_server
from tests.support.amqp_driver import Driver
from tests.support.amqp_refusals import Refusal
from tests.support.broker import requires_broker
from tests.support.differential_program import Step

pytestmark = pytest.mark.filterwarnings("ignore:This command is deprecated")  # basic.recover-async
WHERE = {"connection": 0, "channel": 1}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    with own_server(tmp_path_factory.mktemp("node") / "node") as side:
        yield side


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    with real_server(tmp_path_factory.mktemp("broker")) as side:
        yield side


def closings(side: Side, before: Sequence[tuple[str, dict[str, Any]]], refusals: Sequence[Refusal]) -> list[str]:
    """What each refusal closed its channel or connection with."""
    methods = [*before, *((verb, arguments) for verb, arguments, _ in refusals)]
    steps = tuple(Step(number, verb, WHERE | arguments) for number, (verb, arguments) in enumerate(methods))
    told = Driver(side.port, side.api).run(steps)
    return [_closing(step, found) for step, found in list(zip(steps, told, strict=True))[len(before) :]]


def _closing(step: Step, found: Any) -> str:
    for where in ("0", "0.1"):
        for name, arguments in found.get(where, ()):
            if name.endswith(".close"):
                return f"{arguments['reply_code']} {arguments['reply_text']}"
    return str(found.get("status", f"nothing: {step} {found}"))


def test_refusals_have_the_broker_s_words(here: Side) -> None:
    found = closings(here, amqp_refusals.BEFORE, amqp_refusals.REFUSALS)
    assert found == [text for _, _, text in amqp_refusals.REFUSALS]


@requires_broker
def test_the_broker_s_refusals_are_these(there: Side) -> None:
    found = closings(there, amqp_refusals.BEFORE, amqp_refusals.REFUSALS)
    assert found == [text for _, _, text in amqp_refusals.REFUSALS]


def test_a_user_is_refused_in_the_broker_s_words(here: Side) -> None:
    found = closings(here, amqp_user_refusals.BEFORE, amqp_user_refusals.REFUSALS)
    assert found == [text for _, _, text in amqp_user_refusals.REFUSALS]


@requires_broker
def test_the_broker_refuses_a_user_with_these(there: Side) -> None:
    found = closings(there, amqp_user_refusals.BEFORE, amqp_user_refusals.REFUSALS)
    assert found == [text for _, _, text in amqp_user_refusals.REFUSALS]
