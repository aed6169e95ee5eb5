"""Messages of any size and headers of any depth: they come back as they were, or are one clear error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest

import warren
from tests.support.cli_tools import warren as command
from tests.support.server_tools import served
from warren.errors import MessageError, WarrenError
from warren.server import ServerSettings
from warren.storage.settings import Settings

EMBED = Settings().queue_index_embed_msgs_below
FILE = 1 << 16


@pytest.mark.slow
@pytest.mark.parametrize(
    "size", [0, 1, EMBED - 200, *range(EMBED - 1, EMBED + 2), FILE - 1, FILE, FILE + 1, 5 * FILE], ids=str
)
def test_a_message_of_any_size_outlives_a_restart(tmp_path: Path, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
    with warren.open(tmp_path, sync="os", msg_store_file_size_limit=FILE) as node:
        node.queue("q").publish_many([body, b"between", body]).wait()
    with warren.open(tmp_path, sync="os", msg_store_file_size_limit=FILE) as node:
        queue = node.queue("q")
        assert [message.body for message in queue.browse()] == [body, b"between", body]
        for message in queue.get_many(2):
            message.ack()
    with warren.open(tmp_path, sync="os", msg_store_file_size_limit=FILE) as node:
        assert [message.body for message in node.queue("q").browse()] == [body]


def test_a_server_takes_a_message_of_its_size_and_no_byte_more(tmp_path: Path) -> None:
    with served(tmp_path, ServerSettings(max_message_size=FILE), sync="os") as one:
        one.node.queue("q")
        for size in (0, 1, FILE - 1, FILE):
            with one.channel() as channel:
                channel.confirm_delivery()
                channel.basic_publish("", "q", b"x" * size)
        with one.connection() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="FRAME_ERROR"):
                channel.basic_publish("", "q", b"x" * (FILE + 1))
        assert [len(message.body) for message in one.node.queue("q").browse()] == [0, 1, FILE - 1, FILE]


@pytest.mark.slow
def test_a_topic_takes_a_message_of_its_size_and_no_byte_more(tmp_path: Path) -> None:
    def append(node: warren.Node, size: int) -> bool:
        try:
            node.topic("t").append(b"x" * size).wait()
        except MessageError:
            return False
        return True

    with warren.open(tmp_path, sync="os", max_message_size=4096) as node:
        taken = [size for size in (0, 1, *range(3800, 4100), 8192) if append(node, size)]
        assert taken == sorted(taken)
        assert 3800 in taken
        assert taken[-1] <= 4096
    with (
        warren.open(tmp_path, sync="os", max_message_size=4096) as node,
        node.topic("t").reader("g") as reader,
    ):
        assert sorted(len(record.body) for record in reader.records(len(taken), timeout=5)) == taken


# ── depth ────────────────────────────────────────────────────────────────────────────────────────────────────────────

PLACES: dict[str, Callable[[warren.Node, Any], object]] = {
    "headers": lambda node, deep: node.queue("q").publish(b"x", headers=deep).wait(),
    "many": lambda node, deep: node.queue("q").publish_many([b"x"] * 3, headers=deep).wait(),
    "unique": lambda node, deep: node.queue("q").publish(b"x", unique="k", unique_for=1, headers=deep).wait(),
    "delayed": lambda node, deep: node.queue("q").publish(b"x", delay=3600, headers=deep).wait(),
    "arguments": lambda node, deep: node.queue("deep", arguments={"x-any": deep}),
    "exchange": lambda node, deep: node.exchange("deep", "headers", arguments={"x-any": deep}),
    "binding": lambda node, deep: node.bind("q", "amq.headers", arguments=deep),
    "policy": lambda node, deep: node.set_policy("p", "^none$", {"max-length": deep}),
    "parameter": lambda node, deep: node.set_parameter("component", "name", deep),
    "global parameter": lambda node, deep: node.set_global_parameter("name", deep),
    "description": lambda node, deep: node.set_vhost_metadata(description=deep),
    "definitions": lambda node, deep: node.import_definitions({"parameters": [{"value": deep}], "queues": [deep]}),
    "topic": lambda node, deep: node.topic("t").append(b"x", properties=deep).wait(),
}


def nested(levels: int, *, lists: bool) -> dict[str, Any]:
    value: Any = 1
    for _ in range(levels):
        value = [value] if lists else {"a": value}
    return {"a": value}


@pytest.mark.slow
@pytest.mark.parametrize("share", [False, True], ids=["alone", "guest"])
def test_what_is_nested_too_deep_is_an_error_wherever_it_is_said(tmp_path: Path, share: bool) -> None:
    host = warren.open(tmp_path / "node", sync="os", share=share)
    node = warren.open(tmp_path / "node", share=True) if share else host
    node.queue("q")
    for place, say in PLACES.items():
        for levels in (61, 62, 63, 64, 65, 500, 100_000):
            for lists in (False, True):
                try:
                    say(node, nested(levels, lists=lists))
                except WarrenError:
                    continue
                assert levels < 66, place
    node.queue("q").publish(b"goes on").wait(10)
    count = len(node.queue("q"))
    node.close()
    host.close()
    assert count > 4
    with warren.open(tmp_path / "node") as again:
        assert sum(1 for _ in again.queue("q").browse()) == count
    for verb in ("export", "queues", "inspect", "verify", "definitions"):
        assert command(verb, tmp_path / "node").exit_code == 0, verb
    assert command("export", tmp_path / "node", "--format", "csv").exit_code == 0
