"""Alarms: their events, what they block, and when the disk is looked at again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.actors.engines.alarms import AlarmEvent, Alarms, DiskMonitor, MemRelative, Resource, disk_limit_bytes
from warren.storage.errors import SettingsError

LIMIT_BYTES = 50_000_000


def test_publishers_are_blocked_until_the_last_alarm_clears() -> None:
    alarms = Alarms()
    assert not alarms.publishers_blocked
    assert alarms.update("memory", alarmed=True) == AlarmEvent("memory", "set", publishers_blocked=True)
    assert alarms.update("disk", alarmed=True) == AlarmEvent("disk", "set", publishers_blocked=True)
    assert alarms.update("memory", alarmed=False) == AlarmEvent("memory", "cleared", publishers_blocked=True)
    assert alarms.active == {"disk"}
    assert alarms.update("disk", alarmed=False) == AlarmEvent("disk", "cleared", publishers_blocked=False)
    assert not alarms.active


def test_an_alarm_that_stays_as_it_was_is_no_event() -> None:
    alarms = Alarms()
    assert alarms.update("disk", alarmed=False) is None
    alarms.update("disk", alarmed=True)
    assert alarms.update("disk", alarmed=True) is None
    assert alarms.active == {"disk"}


@given(st.lists(st.tuples(st.sampled_from(("memory", "disk")), st.booleans())))
def test_events_alone_tell_how_the_alarms_stand(updates: list[tuple[Resource, bool]]) -> None:
    alarms, told, last = Alarms(), set[Resource](), dict[Resource, bool]()
    for resource, alarmed in updates:
        event = alarms.update(resource, alarmed=alarmed)
        last[resource] = alarmed
        if event is not None:
            assert event.change == ("cleared" if resource in told else "set")
            told ^= {event.resource}
            assert event.publishers_blocked == bool(told)
        assert told == alarms.active == {name for name, is_set in last.items() if is_set}
        assert alarms.publishers_blocked == bool(told)


@pytest.mark.parametrize(
    ("free_bytes", "alarmed"), [(0, True), (LIMIT_BYTES - 1, True), (LIMIT_BYTES, False), (LIMIT_BYTES + 1, False)]
)
def test_the_disk_alarm_is_set_by_less_than_the_limit(free_bytes: int, alarmed: bool) -> None:
    disk = DiskMonitor(LIMIT_BYTES)
    assert disk.check(free_bytes) is alarmed
    assert (disk.alarmed, disk.free_bytes) == (alarmed, free_bytes)


@pytest.mark.parametrize(
    ("free_above_limit_bytes", "next_check_ms"),
    [
        (-1, 10_000),  # under the alarm nothing is published that could fill the disk
        (0, 100),
        (12_500_000, 100),
        (12_624_999, 100),
        (12_625_000, 101),
        (1_000_000_000, 8_000),
        (1_250_000_000, 10_000),
        (10**15, 10_000),
    ],
)
def test_the_next_look_comes_sooner_the_less_is_free(free_above_limit_bytes: int, next_check_ms: int) -> None:
    disk = DiskMonitor(LIMIT_BYTES)
    assert disk.next_check_ms == 0
    disk.check(LIMIT_BYTES + free_above_limit_bytes)
    assert disk.next_check_ms == next_check_ms


def test_a_new_limit_counts_from_the_next_check() -> None:
    disk = DiskMonitor(LIMIT_BYTES)
    disk.check(LIMIT_BYTES)
    disk.limit_bytes = 2 * LIMIT_BYTES
    assert not disk.alarmed
    assert disk.next_check_ms == 100
    assert disk.check(LIMIT_BYTES)


def test_a_limit_is_an_amount_or_a_multiple_of_the_memory() -> None:
    assert disk_limit_bytes(LIMIT_BYTES, 3) == LIMIT_BYTES
    assert disk_limit_bytes(MemRelative(1.5), 1_000) == 1_500
    assert disk_limit_bytes(MemRelative(0.5), 3) == 2
    assert disk_limit_bytes(MemRelative(0.0), 1_000) == 0


@pytest.mark.parametrize("factor", [-0.1, 1e7, float("inf"), float("nan")])
def test_a_multiple_that_is_none_is_refused(factor: float) -> None:
    with pytest.raises(SettingsError, match=r"^disk_free_limit must be 0\.0 … 1000000\.0 times the memory"):
        MemRelative(factor)
