"""Streams: what a real RabbitMQ 3.10.8 answers is what was recorded of it; where warren does otherwise, on purpose."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.support.broker import Broker, requires_broker
from tests.support.server_tools import Served, served
from tests.support.stream_calls import RECORDED, answers, call, declares, publishes, reads, refused

pytestmark = requires_broker

INTERNAL_ERROR = ["connection", 541, "INTERNAL_ERROR"]
"""What RabbitMQ answers where it fails inside."""


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker")) as broker:
        broker.start()
        yield broker


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node") / "node") as found:
        yield found


def test_the_recorded_answers_are_rabbitmqs(there: Broker) -> None:
    """With which :mod:`tests.test_streams` compares warren's."""
    assert answers(there.amqp_url) == json.loads(RECORDED.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "failing",
    [
        declares("none", {"x-max-age": "soon"}),
        declares("none", {"x-max-age": ""}),
        reads("one", 0, "soon"),
        reads("one", 0, True),
        reads("one", 0, [1]),
        reads("one", 1, then=refused(lambda channel: channel.basic_recover(True))),
    ],
)
def test_what_rabbitmq_fails_at_is_refused_with_a_reason(there: Broker, here: Served, failing: Any) -> None:
    for url in (there.amqp_url, here.url):
        declares("one")(url), publishes("one", [b"0"])(url)
    assert failing(there.amqp_url) == INTERNAL_ERROR
    _, code, text = failing(here.url)
    assert code in (406, 540)
    assert "one" in text or "none" in text


def test_headers_that_rabbitmq_drops_are_kept(there: Broker, here: Served) -> None:
    """It stores messages as AMQP 1.0's, whose headers have neither tables nor lists."""
    headers = {"table": {"n": 1}, "list": [1, 2], "n": 1}

    def work(channel: Any) -> Any:
        channel.queue_declare("nested", durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_delivery()
        channel.basic_publish("", "nested", b"", pika.BasicProperties(headers=headers, cluster_id="c"))
        channel.basic_qos(prefetch_count=1)
        for _, properties, _ in channel.consume("nested", arguments={"x-stream-offset": "first"}, inactivity_timeout=5):
            del properties.headers["x-stream-offset"]
            return properties.headers, properties.cluster_id
        return None

    assert call(work)(there.amqp_url) == ({"n": 1}, None)
    assert call(work)(here.url) == (headers, "c")


def test_definitions_are_exported_as_rabbitmq_does(there: Broker, here: Served, tmp_path: Path) -> None:
    for url in (there.amqp_url, here.url):
        declares("exported", {"x-max-age": "7D", "x-max-length-bytes": 5})(url)
    there.ctl("export_definitions", str(tmp_path / "there.json"))
    theirs = json.loads((tmp_path / "there.json").read_text(encoding="utf-8"))["queues"]
    ours = here.node.definitions()["queues"]
    [(one, other)] = [(one, other) for one in ours for other in theirs if one["name"] == other["name"] == "exported"]
    assert one == other
