"""A vhost's directory: whose it is, which queues serve, and what a stop leaves."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest

from warren.actors.vhost import Vhost
from warren.actors.vhost_files import PERSISTENT_STORE
from warren.queue_index.index.directory import queue_directory_name, queue_name_file, vhost_config
from warren.queue_index.index.entries import journal_entries, no_entries
from warren.queue_index.index.facts import ACKED, DELIVERED, PLUS, PUBLISHED
from warren.queue_index.index.record_format import JOURNAL, parse
from warren.queue_index.index.recovery_terms import read_recovery_terms
from warren.queue_index.index.segment_file import read_segment
from warren.storage.errors import DataError, DirectoryLockedError, StorageError, WarrenError
from warren.storage.filesystem import write_file
from warren.storage.lock_file import LOCK_FILE
from warren.storage.memory import MemoryFileSystem
from warren.storage.settings import Settings

PATH = "data/vhosts/V"
SETTINGS = Settings(segment_entry_count=8, queue_index_embed_msgs_below=100)
SMALL, LARGE = b"small", b"large" * 100


def open_vhost(files: MemoryFileSystem, **changes: Any) -> Vhost:
    arguments = {"settings": SETTINGS, "clock": lambda: 0, "random": random.Random(1).randbytes, **changes}
    return Vhost.open(files, PATH, b"/", **arguments)


def publish(vhost: Vhost, queue: bytes, bodies: list[bytes]) -> None:
    vhost.queue(queue).publish_many(vhost.envelope(queue), vhost.msg_ids.many(len(bodies)), bodies)


def bodies(vhost: Vhost, queue: bytes) -> list[bytes]:
    return [browsed.message.body for browsed in vhost.queue(queue).browse()]


def filled() -> MemoryFileSystem:
    """A directory with two queues, stopped cleanly."""
    files = MemoryFileSystem()
    with open_vhost(files) as vhost:
        publish(vhost, b"orders", [SMALL, LARGE] * 10)
        publish(vhost, b"audit", [LARGE] * 3)
    return files


def directory(queue: bytes) -> str:
    return f"{PATH}/queues/{queue_directory_name(b'/', queue)}"


def damage(files: MemoryFileSystem, queue: bytes) -> str:
    """Give a queue's first segment something that no crash leaves: a second publish of the same position."""
    with open_vhost(files) as vhost:
        vhost.queue(queue).flush()
    path = f"{directory(queue)}/0.idx"
    handle = files.open_append(path)
    handle.append(files.read(path)[:34])
    handle.close()
    files.sync_all()
    files.delete(f"{PATH}/recovery.dets")
    return path


def test_a_queue_with_damaged_files_is_down_and_everything_else_serves() -> None:
    files = filled()
    path = damage(files, b"audit")
    before = files.read(path)
    vhost = open_vhost(files)
    assert bodies(vhost, b"orders") == [SMALL, LARGE] * 10
    with pytest.raises(DataError, match="double publish"):
        vhost.queue(b"audit")
    assert list(vhost.down) == [queue_directory_name(b"/", b"audit")]
    vhost.close()
    assert files.read(path) == before


def test_the_store_keeps_what_a_queue_that_is_down_may_need() -> None:
    files = filled()
    path = damage(files, b"audit")
    with open_vhost(files) as vhost:
        vhost.queue(b"orders").purge()
        vhost.compact()
    whole = files.read(path)
    handle = files.open_append(path)
    handle.truncate(len(whole) - 34)
    handle.close()
    with open_vhost(files) as vhost:
        assert not vhost.down
        assert bodies(vhost, b"audit") == [LARGE] * 3


def test_a_queue_that_is_down_keeps_its_recovery_terms() -> None:
    files = filled()
    entry = queue_directory_name(b"/", b"audit")
    terms = read_recovery_terms(files.read(f"{PATH}/recovery.dets"), "")[entry]
    files.delete(f"{directory(b'audit')}/.queue_name")
    with open_vhost(files) as vhost:
        assert "no .queue_name" in str(vhost.down[entry])
    assert read_recovery_terms(files.read(f"{PATH}/recovery.dets"), "")[entry] == terms


def test_a_classic_queue_of_version_2_is_left_alone() -> None:
    files = filled()
    entry = queue_directory_name(b"/", b"modern")
    path = f"{PATH}/queues/{entry}"
    files.make_directories(path)
    for name, content in ((".queue_name", b"VHOST: /\nQUEUE: modern\nINDEX: v2\n"), ("0.qi", b"RCQI")):
        handle = files.open_append(f"{path}/{name}")
        handle.append(content)
        handle.close()
    listing = {name: files.read(f"{path}/{name}") for name in files.list(path)}
    with open_vhost(files) as vhost:
        with pytest.raises(DataError, match="classic queue v2"):
            vhost.queue(b"modern")
        assert sorted(vhost.queues) == [b"audit", b"orders"]
    assert {name: files.read(f"{path}/{name}") for name in files.list(path)} == listing


def test_a_directory_that_names_another_queue_is_down() -> None:
    files = filled()
    path = f"{directory(b'orders')}/.queue_name"
    files.delete(path)
    handle = files.open_append(path)
    handle.append(queue_name_file(b"/", b"someone-else"))
    handle.close()
    with open_vhost(files) as vhost, pytest.raises(DataError, match="whose directory this is not"):
        vhost.queue(b"orders")


def test_an_empty_directory_without_a_name_is_no_queue() -> None:
    files = filled()
    files.make_directories(directory(b"new"))
    with open_vhost(files) as vhost:
        assert not vhost.down
        publish(vhost, b"new", [SMALL])
    with open_vhost(files) as vhost:
        assert bodies(vhost, b"new") == [SMALL]


def test_damaged_recovery_terms_are_put_aside_and_reported() -> None:
    files = filled()
    path = f"{PATH}/recovery.dets"
    damaged = b"\xff" + files.read(path)[1:]
    files.delete(path)
    handle = files.open_append(path)
    handle.append(damaged)
    handle.close()
    with open_vhost(files) as vhost:
        assert [error.path for error in vhost.damage] == [path]
        assert bodies(vhost, b"orders") == [SMALL, LARGE] * 10
        assert vhost.queue(b"orders").fetch_many(1)[0].redelivered
    assert files.read(f"{path}.damaged") == damaged


def test_a_stop_that_fails_gives_the_lock_back_and_loses_nothing() -> None:
    files = filled()
    vhost = open_vhost(files)
    publish(vhost, b"orders", [SMALL])
    vhost.sync()
    files.fail("rename", "*recovery.dets*")
    with pytest.raises(StorageError):
        vhost.close()
    with open_vhost(files) as again:
        assert bodies(again, b"orders") == [*[SMALL, LARGE] * 10, SMALL]


@pytest.mark.slow
def test_two_cannot_have_one_directory() -> None:
    files = filled()
    vhost = open_vhost(files, owner="the first one")
    with pytest.raises(DirectoryLockedError, match="the first one"):
        open_vhost(files)
    vhost.close()
    assert LOCK_FILE not in files.list(PATH)


def test_the_directory_of_another_vhost_is_refused() -> None:
    files = filled()
    with pytest.raises(DataError, match="not of b'other'"):
        Vhost.open(files, PATH, b"other", settings=SETTINGS, clock=lambda: 0, random=random.Random(1).randbytes)


def test_an_existing_config_says_the_segment_entry_count() -> None:
    files = filled()
    with open_vhost(files, settings=attrs.evolve(SETTINGS, segment_entry_count=64)) as vhost:
        assert vhost.settings.segment_entry_count == 8


def test_a_queue_cannot_change_its_durability_while_it_holds_messages() -> None:
    with open_vhost(filled()) as vhost:
        with pytest.raises(WarrenError, match="is durable"):
            vhost.queue(b"orders", durable=False)
        vhost.queue(b"audit").purge()
        assert not vhost.queue(b"audit", durable=False).durable


def test_messages_of_a_queue_that_is_not_durable_end_with_the_process() -> None:
    files = filled()
    vhost = open_vhost(files)
    queue = vhost.queue(b"passing", durable=False)
    queue.publish_many(vhost.envelope(b"passing"), vhost.msg_ids.many(20), [SMALL] * 20)
    queue.state.rates.ingress = 1.0
    queue.set_ram_duration_target(0.0)
    queue.flush()
    vhost.abandon()
    with open_vhost(files.after_process_crash()) as again:
        assert len(again.queue(b"passing", durable=False)) == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_power_loss_after_the_first_sync_of_a_wholly_new_directory_loses_nothing(seed: int) -> None:
    files = MemoryFileSystem()
    vhost = open_vhost(files)
    publish(vhost, b"orders", [SMALL, LARGE])
    vhost.sync()
    with open_vhost(files.after_power_loss(random.Random(seed))) as again:
        assert bodies(again, b"orders") == [SMALL, LARGE]


def test_the_shortcut_of_a_clean_stop_is_used_once_and_only_when_nothing_ran_in_between() -> None:
    files = filled()
    vhost = open_vhost(files)
    assert vhost.persistent_store.clean
    vhost.abandon()
    vhost = open_vhost(files.after_process_crash())
    assert not vhost.persistent_store.clean
    vhost.close()


def test_a_body_that_two_queues_hold_stands_in_the_store_once() -> None:
    files = MemoryFileSystem()
    with open_vhost(files) as vhost:
        msg_id = vhost.msg_ids.one()
        for queue in (b"one", b"two"):
            vhost.queue(queue).publish(vhost.envelope(b"one"), msg_id, LARGE)
        assert vhost.persistent_store.reference_count(msg_id) == 2
    assert files.read(f"{PATH}/{PERSISTENT_STORE}/0.rdq").count(LARGE) == 1
    with open_vhost(files) as vhost:
        for part in vhost.queue(b"one").fetch_many(1):
            vhost.queue(b"one").ack([part.seq_ids])
        assert bodies(vhost, b"two") == [LARGE]
        assert vhost.persistent_store.reference_count(msg_id) == 1


@pytest.mark.parametrize("kind", ["append", "sync"])
def test_a_sync_that_failed_is_not_made_good_by_one_that_succeeds(kind: str) -> None:
    files = filled()
    vhost = open_vhost(files)
    queue = vhost.queue(b"orders")
    publish(vhost, b"orders", [SMALL])
    vhost.sync()
    queue.publish(vhost.envelope(b"orders"), vhost.msg_ids.one(), b"never confirmed", confirm=True)
    files.fail(kind, "*journal.jif")
    with pytest.raises(StorageError):
        vhost.sync()
    with pytest.raises(StorageError, match="unusable since"):
        vhost.sync()
    assert queue.drain_confirmed() == []
    vhost.abandon()
    with open_vhost(files.after_process_crash()) as again:
        assert bodies(again, b"orders")[:21] == [*[SMALL, LARGE] * 10, SMALL]


def facts_on_disk(files: MemoryFileSystem, queue: bytes) -> list[int]:
    """What journal and segment together say of each position of the first segment, up to the last published."""
    journal = files.read(f"{directory(queue)}/journal.jif")
    known, _ = journal_entries(parse(JOURNAL, journal), SETTINGS.segment_entry_count)
    path = f"{directory(queue)}/0.idx"
    exists = files.exists(path)
    entries = read_segment(files, path, SETTINGS.segment_entry_count).entries if exists else no_entries(0)
    entries.reach(SETTINGS.segment_entry_count)
    if 0 in known:
        known[0].reach(SETTINGS.segment_entry_count)
    return [int(fact) for fact in (PLUS[entries.facts, known[0].facts] if 0 in known else entries.facts)]


def make_as_a_broker(files: MemoryFileSystem) -> None:
    """What a broker has of an empty vhost."""
    files.make_directories(f"{PATH}/queues")
    for name, data in ((".config", vhost_config(SETTINGS.segment_entry_count)), (".vhost", b"/")):
        write_file(files, f"{PATH}/{name}", data, sync=True)


def test_a_vhost_made_by_warren_says_that_deliver_records_come_later() -> None:
    files = filled()
    assert files.read(f"{PATH}/.config") == vhost_config(8) + b"\n{deliver_with_publish, false}."
    assert facts_on_disk(files, b"audit") == [PUBLISHED] * 3 + [0] * 5
    with open_vhost(files) as vhost:
        assert not vhost.settings.deliver_with_publish


def test_in_a_brokers_vhost_every_position_has_its_deliver_record_whatever_the_settings() -> None:
    files = MemoryFileSystem()
    make_as_a_broker(files)
    with open_vhost(files) as vhost:
        publish(vhost, b"audit", [LARGE, SMALL, LARGE])
        vhost.queue(b"audit").flush()
        vhost.queue(b"audit").publish(vhost.envelope(b"audit"), vhost.msg_ids.one(), SMALL)
        first = next(iter(vhost.queue(b"audit").fetch_many(1)))
        vhost.queue(b"audit").ack([first.seq_ids])
    assert facts_on_disk(files, b"audit") == [PUBLISHED | DELIVERED | ACKED] + [PUBLISHED | DELIVERED] * 3 + [0] * 4
    assert files.read(f"{PATH}/.config") == vhost_config(8)


def test_what_comes_back_from_a_brokers_clean_stop_is_redelivered_only_where_it_was_delivered() -> None:
    files = MemoryFileSystem()
    make_as_a_broker(files)
    with open_vhost(files) as vhost:
        publish(vhost, b"audit", [SMALL] * 4)
        vhost.queue(b"audit").fetch_many(1)
    with open_vhost(files) as vhost:
        assert [part.redelivered for part in vhost.queue(b"audit").fetch_many(4) for _ in part.seq_ids] == [True] + [
            False
        ] * 3


@pytest.mark.parametrize("end", ["closed", "killed while it was opened", "killed"])
def test_a_vhost_opened_with_the_brokers_habits_becomes_one_that_a_broker_reads(end: str) -> None:
    files = filled()
    settings = attrs.evolve(SETTINGS, deliver_with_publish=True)
    if end == "killed while it was opened":
        with pytest.raises(RuntimeError, match="no more"), open_vhost(files, settings=settings, clock=_no_clock):
            raise AssertionError("it was opened")
    vhost = open_vhost(files, settings=SETTINGS if end == "killed while it was opened" else settings)
    assert vhost.settings.deliver_with_publish
    assert bodies(vhost, b"orders") == [SMALL, LARGE] * 10
    vhost.queue(b"audit").ack([next(iter(vhost.queue(b"audit").fetch_many(1))).seq_ids])
    if end == "killed":
        vhost.abandon()
        vhost = open_vhost(files)
    vhost.close()
    assert files.read(f"{PATH}/.config") == vhost_config(8)
    assert facts_on_disk(files, b"orders") == [PUBLISHED | DELIVERED] * 8
    assert [fact & DELIVERED for fact in facts_on_disk(files, b"audit")[:3]] == [DELIVERED] * 3


def _no_clock() -> int:
    raise RuntimeError("no more")
