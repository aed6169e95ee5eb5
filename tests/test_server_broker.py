"""One directory, served by a real RabbitMQ and by warren in turn; the clients only connect again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.support.broker import Broker
from tests.support.server_tools import served

pytestmark = pytest.mark.broker


class Application:
    """A user's program. It knows a URL and nothing of who answers there."""

    def __init__(self) -> None:
        self.published = 0
        self.done: list[int] = []

    def publish(self, channel: Any, count: int) -> None:
        channel.confirm_delivery()
        for number in range(self.published, self.published + count):
            size = 20_000 if number % 10 == 0 else 20
            properties = pika.BasicProperties(delivery_mode=2, headers={"number": number})
            channel.basic_publish("orders", f"order.{number % 3}", bytes(size), properties)
        self.published += count

    def work(self, channel: Any, count: int) -> None:
        for _ in range(count):
            method, properties, body = channel.basic_get("work")
            number = properties.headers["number"]
            assert len(body) == (20_000 if number % 10 == 0 else 20)
            assert method.routing_key == f"order.{number % 3}"
            self.done.append(number)
            channel.basic_ack(method.delivery_tag)
        channel.queue_declare("work", passive=True)  # the last ack has been done


def test_a_directory_goes_from_rabbitmq_to_warren_and_back(broker: Broker, tmp_path: Path) -> None:
    broker.start()
    application = Application()
    with broker.channel() as channel:
        channel.exchange_declare("orders", "topic", durable=True)
        channel.queue_declare("work", durable=True)
        channel.queue_bind("work", "orders", "order.*")
        application.publish(channel, 200)
        application.work(channel, 50)
    broker.ctl("export_definitions", str(tmp_path / "definitions.json"))
    definitions = json.loads((tmp_path / "definitions.json").read_text())
    broker.stop()
    with served(broker.node_directory, adopt=True) as here:
        here.node.import_definitions(definitions)
        with here.channel() as channel:
            assert channel.queue_declare("work", passive=True).method.message_count == 150
            application.publish(channel, 100)
            application.work(channel, 120)
    broker.start()
    with broker.channel() as channel:
        application.work(channel, 50)
        application.publish(channel, 10)
    broker.kill()
    with served(broker.node_directory) as here, here.channel() as channel:
        application.work(channel, 90)
        assert channel.basic_get("work")[0] is None
    assert application.done == list(range(310))
