"""A topic store against a list, whatever happens in whatever order: appends, parts of dispatching and of flushing,
failing disks, kills and power losses at any operation, those of a recovery too.

After every recovery: what was safe is there, whole and in order, then nothing or a beginning of what was appended;
and entries and index items are those that another store builds from the CommitLog alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import attrs
import pytest
from hypothesis import settings

from tests.support.effort import times
from tests.support.topic_tools import SETTINGS, TopicStoreMachine
from warren.storage.errors import StorageError

# ── what it found ───────────────────────────────────────────────────────────────────────────────────────────────────

NINE = [20] * 9
"""Six messages fill a file, the other three are in the next one."""


def played(*steps: Callable[[TopicStoreMachine], object]) -> TopicStoreMachine:
    """A machine that has gone these steps; everything that must hold is asked for after each."""
    machine = TopicStoreMachine()
    for step in steps:
        step(machine)
        machine.it_holds_what_the_list_holds()
        machine.next_numbers_are_right()
        if machine.store.indexed == machine.store.dispatched == machine.store.commit_log.end:
            machine.what_was_built_is_what_a_rebuild_builds()
    return machine


def test_files_do_not_expire_before_their_messages_have_entries() -> None:
    """The queue's next message would get the number of the first one that went."""
    machine = played(
        lambda it: it.append((0, [0], 0, 0)),
        lambda it: it.die(None),
        lambda it: it.append((0, NINE, 0, 0)),
        lambda it: it.append((0, NINE, 0, 0)),
        lambda it: it.expire(90.0),
    )
    assert machine.store.commit_log.min_offset == 0
    machine.dispatch(9)
    machine.expire(90.0)
    assert machine.store.commit_log.min_offset > 0
    machine.die(None)
    machine.next_numbers_are_right()


@pytest.mark.slow
def test_numbers_go_on_where_a_power_loss_took_the_entries_of_expired_messages() -> None:
    for seed in range(40):
        played(
            lambda it: it.append((0, NINE, 1, 1)),
            lambda it: it.stop_and_start(),
            lambda it: it.die(None),
            lambda it: it.expire(90.0),
            lambda it, seed=seed: it.die(seed),  # type: ignore[misc]
        )


def test_an_index_item_that_is_half_an_older_one_is_none() -> None:
    """It can look good: it names no item before it, and no key has its hash."""
    machine = TopicStoreMachine()
    machine.append((0, [20], 1, 1))
    machine.dispatch(9)
    machine.flush(4)
    [file] = machine.store.index.index_files
    handle = machine.files.open_append(file.path)
    place = SETTINGS.max_hash_slot_num * 4 + 40 + 20
    [hashed] = struct.unpack(">i", handle.pread(4, place))
    handle.pwrite(struct.pack(">i", hashed + 1), place)
    machine.die(None)
    machine.dispatch(9)
    machine.what_was_built_is_what_a_rebuild_builds()


def test_a_message_whose_keys_were_half_put_expires_and_the_next_ones_keys_are_put() -> None:
    machine = TopicStoreMachine()
    for _ in range(4):
        machine.append((0, [600], 3, 1))
    machine.dispatch(9)
    store = machine.store
    store.index.delete(store.index.index_files)
    store.indexed, store.skip_keys = 0, 2  # what a recovery may find
    assert store.expire_commit_log(machine.now_ms, 4, 90.0)
    store.expire_queues()
    machine.forget_expired()
    machine.dispatch(9)
    machine.what_was_built_is_what_a_rebuild_builds()


@pytest.mark.parametrize("process", ["the same", "another"])
def test_what_is_confirmed_after_a_sync_failed_is_safe_with_all_before_it(process: str) -> None:
    """The system takes what it could not write for written: no later sync brings it to the disk, nor does writing it
    over in place, where ext4 was to write a block for the first time. A copy does."""
    machine = TopicStoreMachine()
    machine.append((0, [20], 0, 1))
    machine.files.fail("sync")
    with pytest.raises(StorageError):
        machine.store.flush_commit_log()
    if process == "another":
        machine.store.fail()
        machine.reopen(machine.files.after_process_crash())
    else:
        machine.store.abandon()
        machine.reopen(machine.files, sync_failed=True)
    machine.append((0, [20], 0, 1))
    machine.flush(1)
    machine.die(7)
    assert len(machine.sent) == 2


def test_after_a_write_that_failed_the_store_wants_to_be_opened_anew() -> None:
    """Some of the messages are there, with numbers that the next ones would get again."""
    machine = TopicStoreMachine()
    machine.append((0, [20], 0, 1))
    machine.files.fail("pwrite", skip=1)
    batch = attrs.evolve(machine.batch(0, [400] * 3, 0, 1), as_one=False)
    with pytest.raises(StorageError):
        machine.store.append(batch, 0)
    with pytest.raises(StorageError, match="open it again"):
        machine.store.append(batch, 0)


TestTopicStore = TopicStoreMachine.TestCase
TestTopicStore.settings = settings(max_examples=times(60), stateful_step_count=25, report_multiple_bugs=False)
