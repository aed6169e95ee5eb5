"""docs/limits.md says the limits that hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from warren.actors.engines.declared import texts
from warren.amqp.connection import CHANNEL_MAX, FRAME_MAX
from warren.management import server as management_server
from warren.management.settings import ManagementSettings
from warren.queue_index.message import amqp_tables
from warren.server import share
from warren.server.channels.channel import MAX_WAITING_EVENTS
from warren.server.settings import ServerSettings
from warren.storage.descriptors import LAST_DESCRIPTORS
from warren.storage.topic_settings import TopicSettings
from warren.where import MAX_CHARACTERS, MAX_FIELDS

PAGE = (Path(__file__).parent.parent / "docs" / "limits.md").read_text(encoding="utf-8")
ROWS = {
    cells[0]: cells[1:]
    for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if "|" in line)
}
SERVER, MANAGEMENT = ServerSettings(), ManagementSettings()


@pytest.mark.parametrize(
    ("limit", "number"),
    [
        ("size of a message", SERVER.max_message_size),
        ("size of a frame", FRAME_MAX),
        ("channels of a connection", CHANNEL_MAX),
        ("connections", LAST_DESCRIPTORS),
        ("time for the handshake", SERVER.handshake_timeout),
        ("time for which a delivery may be unacked", SERVER.consumer_timeout),
        ("depth of a table of arguments or headers", amqp_tables.MAX_DEPTH),
        ("answers that a client has not read", share.MAX_UNSENT_BYTES),
        ("what a connection holds while an alarm is set", share.MAX_HELD_BYTES),
        ("time for what one connection has sent", share.TURN_S * 1000),
        ("events that wait behind a method of a channel", MAX_WAITING_EVENTS),
        ("time for the head of a request", MANAGEMENT.management_tcp_request_timeout),
        ("time for the rest of a request", management_server.BODY_TIMEOUT_S),
        ("size of a request's body", MANAGEMENT.management_max_http_body_size),
        ("length of a name", texts.MAX_SHORT_STRING_BYTES),
        ("tables and lists in each other", texts.MAX_LEVELS),
        ("a [condition on messages", MAX_CHARACTERS),
        ("a [condition on messages", MAX_FIELDS),
        ("body of a topic's message", TopicSettings().max_message_size),
    ],
)
def test_the_page_says_the_number(limit: str, number: float | None) -> None:
    assert number is not None
    lines = [line for line in PAGE.splitlines() if line.startswith(f"| {limit}")]
    assert any(re.search(rf"(?<![\d,]){number:,.0f}(?![\d,])", line.replace("2047", "2,047").replace("5000", "5,000")
                         .replace("1024", "1,024")) for line in lines)  # fmt: skip


def test_every_setting_on_the_page_is_one() -> None:
    known = {*ServerSettings.__annotations__, *ManagementSettings.__annotations__}
    named = {cells[-1].strip("`") for cells in ROWS.values() if cells[-1].startswith("`")}
    assert named
    assert named <= known
