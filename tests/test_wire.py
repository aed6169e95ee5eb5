"""What stands on the wire, byte by byte: the same conversation with a real RabbitMQ 3.10.8 and with this server."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands as c

from tests.support.amqp_differential import own_server, real_server
from tests.support.broker import requires_broker
from tests.support.wire import PROTOCOL_HEADER, Wire, method
from tests.support.wire_cases import VALUES, all_cases, long, publish, raw, reply, short
from warren.amqp.framing import PUBLISH, contents
from warren.amqp.methods import encode_arguments, method_of

SERVERS = ["warren", pytest.param("rabbitmq", marks=requires_broker)]


DIFFERENT = Path(__file__).parents[1] / "docs" / "clients.md"
CONVERSATIONS = 32
"""At a time: a server that refuses a login lets the client wait."""


def replies(port: int) -> dict[str, list[str]]:
    """What a server answers in each case."""
    cases = all_cases()
    with ThreadPoolExecutor(CONVERSATIONS) as pool:
        found = pool.map(lambda at: reply(port, cases[at], at), range(len(cases)))
        return dict(zip([case.name for case in cases], found, strict=True))


def documented() -> list[str]:
    """The cases that the documentation says are answered in another way."""
    section = DIFFERENT.read_text().split("### Byte by byte")[1].split("\n## ")[0]
    return re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)


@requires_broker
def test_every_method_is_answered_as_a_broker_answers_it_but_for_what_is_documented(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with (
        own_server(tmp_path_factory.mktemp("own") / "node") as own,
        real_server(tmp_path_factory.mktemp("real") / "node") as real,
        ThreadPoolExecutor(2) as pool,
    ):
        here, there = pool.map(replies, (own.port, real.port))
        cases = all_cases()
        for at, case in enumerate(cases * 3, len(cases)):  # again, alone: a busy broker's answer may vary
            if here[case.name] != there[case.name] and case.name not in documented():
                here[case.name], there[case.name] = (reply(side.port, case, at) for side in (own, real))
    different = {name: (said, there[name]) for name, said in here.items() if said != there[name]}
    assert {name: said for name, said in different.items() if name not in documented()} == {}
    assert list(different) == documented()


@pytest.fixture(scope="module", params=SERVERS)
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    server = real_server if request.param == "rabbitmq" else own_server
    with server(tmp_path_factory.mktemp("server") / "node") as side:
        yield side.port


def publishes(routing_key: str, *bodies: bytes) -> bytes:
    publish = encode_arguments(method_of(c.Basic.Publish, exchange="", routing_key=routing_key))
    return contents(1, PUBLISH, (publish, b""), b"\0\0", list(bodies), frame_max=131072)


def next_delivery(wire: Wire) -> tuple[str, int]:
    """The tag of the consumer that gets the next message, and the delivery tag."""
    [consumer] = re.findall(r"'consumer_tag': '(\w+)'", delivery := wire.read_to("1 Basic.Deliver"))
    [tag] = re.findall(r"'delivery_tag': (\d+)", delivery)
    return consumer, int(tag)


def test_consumers_of_one_queue_on_one_channel_get_its_messages_in_its_order(port: int) -> None:
    with Wire(port) as wire:
        wire.log_in()
        wire.send(method(c.Queue.Declare(queue="in turn", auto_delete=True)))
        for tag in "AB":
            wire.send(method(c.Basic.Consume(queue="in turn", consumer_tag=tag)))
            wire.read_to("1 Basic.ConsumeOk")
        wire.send(publishes("in turn", *(b"m%d" % n for n in range(40))))
        delivered = [(next_delivery(wire)[0], wire.read_to("1 body")) for _ in range(40)]
    assert delivered == [("AB"[n % 2], f"1 body {b'm%d' % n!r}") for n in range(40)]


def test_a_dead_letter_has_the_headers_that_its_message_had_byte_by_byte(port: int) -> None:
    arguments: dict[str, Any] = {"x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    wide = b"L" + VALUES["L"]
    nested = short("y") + b"b\xff" + short("w") + wide + short("z") + b"A" + long(b"s\xff\xfeB\xff" + wide)
    values = [kind.encode() + value for kind, value in VALUES.items()] + [b"F" + long(nested)]
    with Wire(port) as wire:
        wire.log_in()
        wire.send(method(c.Queue.Declare(queue="dead", auto_delete=True)))
        wire.send(method(c.Queue.Declare(queue="wire-0000", exclusive=True, arguments=arguments)))
        wire.send(method(c.Basic.Consume(queue="dead", consumer_tag="t", no_ack=True)))
        wire.read_to("1 Basic.ConsumeOk")
        for value in values:
            wire.send(publish(b"\x20\0" + long(short("n") + value)))
            header = ast.literal_eval(wire.read_to("1 header").removeprefix("1 header "))
            assert short("n") + value.replace(b"L", b"l") + short("x-death") in header


def test_a_rejected_publish_has_the_flag_requeue_in_its_nack(port: int) -> None:
    arguments: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    with Wire(port) as wire:
        wire.log_in()
        wire.send(method(c.Queue.Declare(queue="wire-0000", exclusive=True, arguments=arguments)))
        wire.send(method(c.Confirm.Select()), publish())
        wire.read_to("1 Basic.Ack")
        wire.send(publish())
        assert "'requeue': True" in wire.read_to("1 Basic.Nack")


def start_ok(capabilities: bytes = b"", response: bytes = b"\0guest\0guest", locale: bytes = b"en_US") -> bytes:
    properties = short("capabilities") + b"F" + long(capabilities)
    return raw(10, 11, long(properties) + short("PLAIN") + long(response) + short(locale), 0)


def answer_to(wire: Wire, start_ok: bytes) -> str:
    wire.send(PROTOCOL_HEADER)
    wire.read_to("0 Connection.Start")
    wire.send(start_ok)
    return wire.read_to("0 Connection.Tune", "0 Connection.Close", "end")


TUNE_OK = method(c.Connection.TuneOk(2047, 131072, 0), 0)


@pytest.mark.slow
@pytest.mark.parametrize("value", [b"t\1", b"t\0", b"I\0\0\0\1", b"S\0\0\0\4true"])
def test_only_a_true_truth_value_is_a_capability(port: int, value: bytes) -> None:
    names = ("authentication_failure_close", "consumer_cancel_notify")
    capabilities = b"".join(short(name) + value for name in names)
    with Wire(port) as wire:
        is_told = answer_to(wire, start_ok(capabilities, b"\0guest\0wrong")).startswith("0 Connection.Close")
    with Wire(port) as wire:
        assert answer_to(wire, start_ok(capabilities)).startswith("0 Connection.Tune")
        wire.send(TUNE_OK, method(c.Connection.Open("/"), 0))
        wire.read_to("0 Connection.OpenOk")
        wire.send(method(c.Channel.Open()), method(c.Queue.Declare(queue="q")))
        wire.send(method(c.Basic.Consume(queue="q", consumer_tag="t")))
        wire.read_to("1 Basic.ConsumeOk")
        wire.send(method(c.Queue.Delete(queue="q")))
        wire.read_to("1 Queue.DeleteOk")
        wire.send(method(c.Channel.Flow(True)))
        wire.read_to("1 Basic.Cancel" if is_told else "1 Channel.FlowOk")
        is_cancelled = any(one.startswith("1 Basic.Cancel") for one in wire.told)
    assert [is_told, is_cancelled] == [value == b"t\1"] * 2


def test_short_strings_of_methods_on_channel_0_are_utf8(port: int) -> None:
    with Wire(port) as wire:
        assert answer_to(wire, start_ok(locale=b"\xff")) == "end"
    with Wire(port) as wire:
        assert answer_to(wire, start_ok()).startswith("0 Connection.Tune")
        wire.send(TUNE_OK, raw(10, 40, short(b"\xff") + short("") + b"\0", 0))
        close = wire.read_to("0 Connection.Close", "end")
    assert "'class_id': 10, 'method_id': 40, 'reply_code': 501" in close
    assert "FRAME_ERROR - Malformed UTF-8 in shortstr" in close


@pytest.mark.slow
def test_a_silent_client_has_three_heartbeat_intervals(port: int) -> None:
    with Wire(port) as wire:
        began_s = time.monotonic()
        wire.log_in(heartbeat_s=1)
        assert wire.read_to("end") == "end"
        assert time.monotonic() - began_s >= 2.9, "nothing is missed in the first, in which it was tuned"


@pytest.mark.parametrize("published", [2, 3])
def test_a_commit_of_which_a_message_is_refused_closes_its_channel_alone_and_settles(port: int, published: int) -> None:
    arguments: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    with Wire(port) as wire:
        wire.log_in(channels=(1, 2))
        wire.send(method(c.Queue.Declare(queue="small", auto_delete=True, arguments=arguments)))
        wire.send(publishes("small", b"first"), method(c.Tx.Select()), method(c.Basic.Get(queue="small")))
        wire.send(method(c.Basic.Ack(1)), publishes("small", *[b"m"] * published), method(c.Tx.Commit()))
        refused = wire.read_to("1 Channel.Close", "1 Tx.CommitOk", "0 Connection.Close")
        wire.send(method(c.Basic.Get(queue="small", no_ack=True), 2))
        got = wire.read_to("2 body", "2 Basic.GetEmpty")
    assert "'PRECONDITION_FAILED - partial tx completion'" in refused
    assert got == "2 body b'm'"


@pytest.mark.slow
@pytest.mark.parametrize("queues", [["one", "one"], ["a", "b", "c"]], ids=["one queue", "three queues"])
def test_consumers_that_share_a_prefetch_take_turns(port: int, queues: list[str]) -> None:
    with Wire(port) as wire:
        wire.log_in()
        for queue in dict.fromkeys(queues):
            wire.send(method(c.Queue.Declare(queue=queue, auto_delete=True)), publishes(queue, *[b"m"] * 40))
        wire.send(method(c.Basic.Qos(0, 1, True)))
        for at, queue in enumerate(queues):
            wire.send(method(c.Basic.Consume(queue=queue, consumer_tag=f"c{at}")))
        turns = []
        for _ in range(40):
            consumer, tag = next_delivery(wire)
            turns.append(consumer)
            wire.send(method(c.Basic.Ack(tag)))
    assert min(turns.count(f"c{at}") for at in range(len(queues))) >= 2, turns
