"""What other clients' test suites found, each as a situation of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pika import spec

from tests.support.server_tools import Served, served


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "node") as found:
        yield found


def test_who_deletes_a_queue_that_it_consumes_is_answered_before_its_consumer_is_cancelled(here: Served) -> None:
    """py-amqp takes a cancel for an error of the call that it waits for."""
    said: list[str] = []
    with here.connection() as connection:
        channel = connection.channel()
        channel.queue_declare("going")
        channel.add_on_cancel_callback(lambda _: said.append("cancelled"))
        channel.basic_consume("going", lambda *_: None)
        channel._impl.add_callback(lambda _: said.append("deleted"), [spec.Queue.DeleteOk])
        channel.queue_delete("going")
        while len(said) < 2:
            connection.process_data_events(time_limit=5)
        assert said == ["deleted", "cancelled"]
