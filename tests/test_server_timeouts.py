"""Deliveries without an ack: after ``consumer_timeout`` their channel is closed, and they come again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.server_tools import served
from tests.support.waiting import wait_until
from warren.server import ServerSettings
from warren.server.channels.settlements import UnackedAge
from warren.storage.errors import SettingsError

WHY = (
    "PRECONDITION_FAILED - delivery acknowledgement on channel 3 timed out. Timeout value used: 100 ms. "
    "This timeout value can be configured, see consumers doc guide to learn more"
)


def test_a_delivery_that_is_not_acked_in_time_closes_its_channel_and_comes_again(tmp_path: Path) -> None:
    with (
        served(tmp_path / "node", ServerSettings(consumer_timeout=100)) as here,
        here.connection() as connection,
        here.channel() as other,
    ):
        channel, idle = connection.channel(3), connection.channel(4)
        channel.queue_declare("slow")
        channel.confirm_delivery()
        for body in (b"1", b"2"):
            channel.basic_publish("", "slow", body)
        assert idle.basic_get("slow", auto_ack=True)[2] == b"1"
        assert channel.basic_get("slow")[2] == b"2"
        reasons: list[object] = []
        channel._impl.add_on_close_callback(lambda _, why: reasons.append(why.args))

        def is_closed() -> bool:
            connection.process_data_events(0)
            return not channel.is_open

        wait_until(is_closed, "the channel is closed")
        assert reasons == [(406, WHY)]
        assert idle.is_open
        method, _, body = other.basic_get("slow", auto_ack=True)
        assert (method.redelivered, body) == (True, b"2")


@given(steps=st.lists(st.tuples(st.floats(0.1, 5), st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=60))
def test_an_age_is_right_to_the_tick(steps: list[tuple[float, int, int]]) -> None:
    """Each step: time passes, messages are delivered, the oldest ones acked, and the clock ticks."""
    age, now, next_tag, held = UnackedAge(), 0.0, 1, dict[int, float]()
    for passes, delivered, acked in steps:
        now += passes
        for _ in range(delivered):
            held[next_tag] = now
            next_tag += 1
        for tag in sorted(held)[:acked]:
            del held[tag]
        now += 0.01
        found = age.tick(now, min(held, default=None), next_tag)
        if not held:
            assert found == 0
        else:
            real = now - held[min(held)]
            longest = max(step[0] for step in steps) + 0.02
            assert real - longest <= found <= real


def test_a_timeout_is_a_time() -> None:
    with pytest.raises(SettingsError, match="consumer_timeout"):
        ServerSettings(consumer_timeout=0)
