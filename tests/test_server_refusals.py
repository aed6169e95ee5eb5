"""What the server refuses, and with which words: those of RabbitMQ 3.10.8. One table, both servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.amqp_differential import real_server
from tests.support.amqp_driver import Driver
from tests.support.amqp_refusals import BEFORE, REFUSALS
from tests.support.broker import requires_broker
from tests.support.differential_program import Program, Step
from tests.support.server_tools import served

pytestmark = pytest.mark.filterwarnings("ignore:This command is deprecated")  # basic.recover-async
WHERE = {"connection": 0, "channel": 1}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with served(tmp_path_factory.mktemp("node") / "node") as found:
        yield found.port


def program() -> Program:
    """What is there, then everything that is refused."""
    methods = [*BEFORE, *((verb, arguments) for verb, arguments, _ in REFUSALS)]
    return tuple(Step(number, verb, WHERE | arguments) for number, (verb, arguments) in enumerate(methods))


def closings(port: int) -> list[str]:
    """What each refusal closed its channel or connection with."""
    steps = program()
    told = Driver(port).run(steps)
    return [_closing(step, found) for step, found in list(zip(steps, told, strict=True))[len(BEFORE) :]]


def _closing(step: Step, found: Any) -> str:
    for where in ("0", "0.1"):
        for name, arguments in found.get(where, ()):
            if name.endswith(".close"):
                return f"{arguments['reply_code']} {arguments['reply_text']}"
    return f"nothing: {step} {found}"


def test_refusals_have_the_broker_s_words(here: int) -> None:
    assert closings(here) == [text for _, _, text in REFUSALS]


@requires_broker
def test_the_broker_s_refusals_are_these(tmp_path: Path) -> None:
    with real_server(tmp_path) as port:
        assert closings(port) == [text for _, _, text in REFUSALS]
