"""Definitions of a RabbitMQ's directory, stopped or killed at any moment, against the export of the same, restarted."""

from __future__ import annotations

import json
import random
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.support.broker import Broker
from tests.support.cli_tools import warren
from tests.support.rabbitmq_golden import as_sets
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow]

Json = dict[str, Any]

ACCESS = """
    rabbit_vhost:add(<<"shop">>, <<"a shop">>, [a, b], <<>>),
    rabbit_auth_backend_internal:add_user(<<"ann">>, <<"pw">>, <<>>),
    rabbit_auth_backend_internal:add_user(<<"bob">>, <<"pw">>, <<>>),
    rabbit_auth_backend_internal:clear_password(<<"bob">>, <<>>),
    rabbit_auth_backend_internal:set_tags(<<"ann">>, [management, 'two words'], <<>>),
    rabbit_auth_backend_internal:set_permissions(<<"ann">>, <<"shop">>, <<".*">>, <<"^a">>, <<>>, <<>>),
    rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"shop">>, <<".*">>, <<".*">>, <<".*">>, <<>>),
    rabbit_auth_backend_internal:set_topic_permissions(<<"ann">>, <<"shop">>, <<"amq.topic">>, <<"w">>, <<"r">>, <<>>),
    rabbit_vhost_limit:set(<<"shop">>, [{<<"max-queues">>, 900}], <<>>),
    rabbit_policy:set(<<"shop">>, <<"p">>, <<"^q">>, [{<<"max-length">>, 9}], 5, <<"queues">>, <<>>),
    rabbit_policy:set_op(<<"shop">>, <<"op">>, <<".*">>, [{<<"max-length">>, 99}], 1, <<"all">>, <<>>),
    rabbit_runtime_parameters:set_global(a_map, [{<<"a">>, [1, true, null, 1.5, [{<<"x">>, <<"y">>}]]}], <<>>),
    rabbit_runtime_parameters:set_global(a_text, <<"text">>, <<>>),
    ok."""

ARGUMENTS = """
    [{<<"f">>, float, 1.25}, {<<"d">>, double, -1.0e300}, {<<"dec">>, decimal, {2, 314}},
     {<<"l">>, long, -9007199254740993}, {<<"ub">>, unsignedbyte, 255},
     {<<"b">>, byte, -1}, {<<"sh">>, short, -300}, {<<"us">>, unsignedshort, 65535},
     {<<"ui">>, unsignedint, 4294967295}, {<<"ts">>, timestamp, 1600000000}, {<<"v">>, void, undefined},
     {<<"x">>, binary, <<0, 1, 255>>}, {<<"long">>, binary, binary:copy(<<200>>, 100)}, {<<"bo">>, bool, false},
     {<<"t">>, table, [{<<"a">>, array, [{longstr, <<"z">>}, {table, []}, {decimal, {1, 5}}, {array, []}]}]},
     {<<"dup">>, long, 1}, {<<"dup">>, long, 2}, {<<"e">>, longstr, <<>>}]"""

TYPED = f"""
    Arguments = {ARGUMENTS},
    Headers = {{resource, <<"/">>, exchange, <<"amq.headers">>}}, Queue = {{resource, <<"/">>, queue, <<"typed">>}},
    [rabbit_binding:add({{binding, Headers, Key, Queue, Some}}, <<"u">>)
     || {{Key, Some}} <- [{{<<"k">>, Arguments}}, {{<<>>, lists:sublist(Arguments, 5)}}, {{<<"k">>, []}}]],
    Typed = {{resource, <<"/">>, exchange, <<"typed">>}}, Inner = {{resource, <<"/">>, exchange, <<"inner">>}},
    rabbit_exchange:declare(Typed, topic, true, true, false, Arguments, <<"u">>),
    rabbit_exchange:declare(Inner, direct, true, false, true, [], <<"u">>),
    rabbit_binding:add({{binding, Typed, <<"in">>, Inner, []}}, <<"u">>),
    rabbit_binding:add({{binding, Inner, <<"out">>, Queue, []}}, <<"u">>),
    ok."""

STREAMS = '[rabbit_amqqueue:lookup({resource, V, queue, <<"stream">>}) || V <- [<<"/">>, <<"shop">>]].'

QUEUES: dict[str, Json] = {
    "classic": {},
    "quorum": {"arguments": {"x-queue-type": "quorum"}},
    "stream": {"arguments": {"x-queue-type": "stream", "x-max-age": "7D"}},
    "priorities": {"arguments": {"x-max-priority": 3, "x-dead-letter-exchange": ""}},
    "exclusive": {"exclusive": True},
    "exclusive and transient": {"exclusive": True, "durable": False},
    "transient": {"durable": False},
    "auto-delete": {"auto_delete": True},
}


def declare(broker: Broker, chance: random.Random, vhost: str) -> pika.BlockingConnection:
    """Exchanges, queues and bindings; exclusive queues live as long as the connection."""
    connection = broker.connect(vhost)
    channel = connection.channel()
    exchanges = []
    for number in range(8):
        name = f"x{number}.é"
        properties = {"durable": chance.random() < 0.75, "auto_delete": chance.random() < 0.5}
        arguments = {"alternate-exchange": "missing"} if chance.random() < 0.3 else {}
        kind = chance.choice(["direct", "fanout", "topic", "headers"])
        channel.exchange_declare(name, kind, arguments=arguments, **properties)
        exchanges.append(name)
    for name, properties in QUEUES.items():
        channel.queue_declare(name, **({"durable": True} | properties))
    for _ in range(24):
        source, key = chance.choice(exchanges), chance.choice(["", "a.#", "é"])
        if chance.random() < 0.7:
            channel.queue_bind(chance.choice(list(QUEUES)), source, key, {"x-match": "any"} if not key else {})
        else:
            channel.exchange_bind(chance.choice(exchanges), source, key)
    channel.exchange_delete(chance.choice(exchanges))
    return connection


def change_for_ever(broker: Broker) -> None:
    """Declare, bind and delete until the broker is gone."""
    with suppress(pika.exceptions.AMQPError, OSError):
        channel = broker.connect("shop").channel()
        for number in range(1_000_000):
            queue = f"changing {number % 40}"
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "amq.topic", f"k{number}")
            if number % 3 == 0:
                channel.queue_unbind(queue, "amq.topic", f"k{number}")
            if number % 7 == 0:
                channel.queue_delete(f"changing {number * 3 % 40}")


@pytest.mark.parametrize("seed", range(6))
def test_definitions_are_what_a_start_restores(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    with Broker(tmp_path / "broker") as broker:
        broker.start()
        broker.eval(ACCESS)
        connections = [declare(broker, chance, vhost) for vhost in ("/", "shop")]
        broker.declare("typed")
        broker.eval(TYPED)
        if seed % 2:
            broker.eval("mnesia:dump_log().")
        if seed == 0:
            broker.stop()
        else:
            if seed > 1:
                changing = threading.Thread(target=change_for_ever, args=[broker])
                changing.start()
                broker.eval("[begin mnesia:dump_log(), timer:sleep(20) end || _ <- lists:seq(1, 30)].")
                broker.eval("spawn(fun() -> [mnesia:dump_log() || _ <- lists:seq(1, 100000)] end).")
            broker.kill()
            if seed > 1:
                changing.join()
        shutil.copytree(broker.node_directory, tmp_path / "node")
        broker.start()
        for connection in connections:
            with suppress(pika.exceptions.AMQPError):
                connection.close()
        wait_until(lambda: "not_found" not in broker.eval(STREAMS), "streams are restored")
        broker.ctl("export_definitions", str(tmp_path / "exported.json"))
    expected = json.loads((tmp_path / "exported.json").read_text())
    assert as_sets(json.loads(warren("definitions", tmp_path / "node").stdout)) == as_sets(expected)
