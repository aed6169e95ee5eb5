"""Each fault of the file system in memory: that it strikes as it says, and spares what it must spare."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import times
from warren.storage.errors import DirectoryLockedError, DiskFullError, StorageError
from warren.storage.faults import FaultRules, SimulatedCrash, UnfairFaultError
from warren.storage.filesystem import write_file
from warren.storage.memory import MemoryFile, MemoryFileSystem

SEEDS = range(80)
"""Enough for each outcome of a choice to turn up."""

FAIR = FaultRules()
IN_ORDER = FaultRules(reordered=False)
WHOLE = FaultRules(torn_writes=False)
ROT = FaultRules(damage=True)


def with_file(synced: bytes = b"", rules: FaultRules = FAIR) -> tuple[MemoryFileSystem, MemoryFile]:
    """A file system with a file ``f`` that holds ``synced``, all of it durable, and a handle on the file."""
    files = MemoryFileSystem(7, rules=rules)
    handle = files.open_append("f")
    handle.append(synced)
    files.sync_all()
    return files, handle


def outcomes(files: MemoryFileSystem) -> set[bytes | None]:
    """What a power loss just now makes of ``f``, over many seeds."""
    return {files.after_power_loss(random.Random(seed)).contents().get("/f") for seed in SEEDS}


def remaining(files: MemoryFileSystem) -> set[tuple[str, ...]]:
    """Which files a power loss just now leaves, over many seeds."""
    return {tuple(files.after_power_loss(random.Random(seed)).contents()) for seed in SEEDS}


# Crashes of the process


@pytest.mark.parametrize("operation", [1, 2, 3])
def test_crash_strikes_the_nth_operation_before_it_takes_effect(operation: int) -> None:
    files, handle = with_file()
    files.crash_at(operation)
    for _ in range(operation - 1):
        handle.append(b"x")
    with pytest.raises(SimulatedCrash, match="append f"):
        handle.append(b"x")
    with pytest.raises(SimulatedCrash, match="after the crash"):
        handle.append(b"x")
    assert files.after_process_crash().read("f") == b"x" * (operation - 1)


def test_process_crash_leaves_unsynced_writes_and_names() -> None:
    files, handle = with_file(b"synced ")
    handle.append(b"issued")
    files.open_append("g").append(b"new")
    assert files.after_process_crash().contents() == {"/f": b"synced issued", "/g": b"new"}


def test_what_was_unsynced_at_a_process_crash_can_still_lose_power() -> None:
    files, handle = with_file(b"synced", IN_ORDER)
    handle.append(b"!")
    assert outcomes(files.after_process_crash()) == {b"synced", b"synced!"}


def test_torn_crash_leaves_a_prefix_of_the_write() -> None:
    seen = set()
    for seed in SEEDS:
        files = MemoryFileSystem(seed)
        handle = files.open_append("f")
        files.crash_at(1, torn=True)
        with pytest.raises(SimulatedCrash):
            handle.append(b"abc")
        seen.add(files.after_process_crash().read("f"))
    assert seen == {b"", b"a", b"ab", b"abc"}


def test_a_gathered_write_is_one_operation_and_torn_anywhere() -> None:
    seen = set()
    for seed in SEEDS:
        files = MemoryFileSystem(seed)
        handle = files.open_append("f")
        handle.appendv([b"be", memoryview(b"fore")])
        files.crash_at(1, torn=True)
        with pytest.raises(SimulatedCrash):
            handle.appendv([b"a", bytearray(b"b"), memoryview(b"c")])
        seen.add(files.after_process_crash().read("f"))
    assert seen == {b"before", b"beforea", b"beforeab", b"beforeabc"}


def test_a_full_disk_leaves_a_prefix_of_a_gathered_write() -> None:
    files, handle = with_file(b"synced")
    files.capacity_bytes = 8
    with pytest.raises(DiskFullError):
        handle.appendv([b"a", b"b", b"c"])
    assert files.read("f") == b"syncedab"


def test_crash_is_not_swallowed_by_a_handler_of_exceptions() -> None:
    files, handle = with_file()
    files.crash_at(1)

    def careless() -> None:
        with contextlib.suppress(Exception):
            handle.append(b"x")

    with pytest.raises(SimulatedCrash):
        careless()


def test_after_a_crash_only_close_and_release_work_on_the_old_file_system() -> None:
    files, handle = with_file(b"abc")
    lock = files.lock("lock", "me")
    files.after_process_crash()
    for use in (
        lambda: handle.append(b"x"),
        lambda: handle.pread(1, 0),
        handle.sync,
        handle.size,
        lambda: files.open_append("g"),
        lambda: files.read("f"),
        lambda: files.exists("f"),
        lambda: files.list(""),
        lambda: files.make_directories("d"),
    ):
        with pytest.raises(SimulatedCrash):
            use()
    handle.close()
    lock.release()
    assert files.contents()["/f"] == b"abc"


def test_a_lock_ends_with_its_process() -> None:
    files, _ = with_file()
    files.lock("lock", "first")
    with pytest.raises(DirectoryLockedError):
        files.lock("lock", "second")
    files.after_process_crash().lock("lock", "second")


def test_crash_within_delete_tree_leaves_part_of_it() -> None:
    files = MemoryFileSystem(0)
    files.make_directories("d/e")
    for name in ("d/a", "d/e/b", "d/z"):
        files.open_append(name)
    files.crash_at(3)
    with pytest.raises(SimulatedCrash):
        files.delete_tree("d")
    assert list(files.after_process_crash().contents()) == ["/d/z"]


def test_write_file_cut_at_every_operation_leaves_the_old_file_or_the_new_one() -> None:
    seen = set()
    for operation in range(1, 7):
        files, _ = with_file(b"old")
        files.crash_at(operation, torn=operation == 2)
        try:
            write_file(files, "f", b"new", sync=True)
        except SimulatedCrash:
            seen |= outcomes(files)
        else:
            assert operation == 6
            assert outcomes(files) == {b"new"}
    assert seen == {b"old", b"new"}


# Power loss: bytes


def test_power_loss_in_order_keeps_synced_bytes_and_any_prefix_of_the_rest() -> None:
    files, handle = with_file(b"ab", IN_ORDER)
    handle.append(b"cd")
    handle.append(b"ef")
    assert outcomes(files) == {b"abcdef"[:size] for size in range(2, 7)}


def test_power_loss_out_of_order_leaves_zeros_where_a_write_was_lost() -> None:
    files, handle = with_file(b"a", FaultRules(torn_writes=False))
    handle.append(b"b")
    handle.append(b"c")
    assert outcomes(files) == {b"a", b"ab", b"abc", b"a\0c", b"a\0", b"ab\0", b"a\0\0"}


def test_power_loss_out_of_order_keeps_an_overwrite_whole_where_writes_are_not_torn() -> None:
    files, handle = with_file(b"abcd", FaultRules(torn_writes=False))
    handle.pwrite(b"BC", 1)
    assert outcomes(files) == {b"abcd", b"aBCd"}


def test_power_loss_before_an_unsynced_truncation_brings_the_old_end_back() -> None:
    files, handle = with_file(b"abc")
    handle.truncate(0)
    handle.append(b"X")
    assert outcomes(files) == {b"abc", b"", b"\0", b"X"}


def test_synced_bytes_survive_every_power_loss() -> None:
    files, handle = with_file()
    handle.append(b"abc")
    handle.truncate(1)
    handle.pwrite(b"d", 3)
    handle.sync()
    assert outcomes(files) == {b"a\0\0d"}


def test_the_same_seed_loses_the_same() -> None:
    files, handle = with_file()
    for _ in range(20):
        handle.append(b"12345")
    first, second = (files.after_power_loss(random.Random(5)).contents() for _ in range(2))
    assert first == second


@settings(max_examples=times(150))
@given(
    st.lists(st.one_of(st.binary(min_size=1, max_size=6), st.just("sync"), st.just("crash")), max_size=20),
    st.randoms(use_true_random=False),
)
def test_whatever_is_appended_a_power_loss_keeps_the_synced_and_invents_nothing(
    steps: list[bytes | str], rng: random.Random
) -> None:
    files, handle = with_file()
    issued, synced = b"", 0
    for step in steps:
        if isinstance(step, bytes):
            handle.append(step)
            issued += step
        elif step == "sync":
            handle.sync()
            synced = len(issued)
        else:
            files = files.after_process_crash()
            handle = files.open_append("f")
        files.check_invariants()
    left = files.after_power_loss(rng)
    left.check_invariants()
    content = left.read("f")
    assert content[:synced] == issued[:synced]
    assert len(content) <= len(issued)
    assert all(now in (0, before) for now, before in zip(content, issued, strict=False))
    assert left.synced_size("f") == len(content)


# Power loss: names


def test_a_created_file_is_there_for_sure_only_once_its_directory_is_synced() -> None:
    files = MemoryFileSystem(0)
    files.open_append("f").sync()
    assert remaining(files) == {(), ("/f",)}
    files = files.after_process_crash()
    files.sync_directory("")
    assert remaining(files) == {("/f",)}


def test_a_synced_file_in_an_unsynced_directory_can_be_lost() -> None:
    files = MemoryFileSystem(0)
    files.make_directories("d")
    files.open_append("d/f").sync()
    files.sync_directory("d")
    assert remaining(files) == {(), ("/d/f",)}


def test_an_unsynced_delete_can_be_undone() -> None:
    files, _ = with_file(b"abc")
    files.delete("f")
    assert outcomes(files) == {None, b"abc"}


def test_a_rename_happens_whole_or_not_at_all() -> None:
    files, _ = with_file(b"abc")
    files.make_directories("d")
    files.sync_all()
    files.rename("f", "d/g")
    assert remaining(files) == {("/f",), ("/d/g",)}
    files = files.after_process_crash()
    files.sync_directory("d")
    assert remaining(files) == {("/d/g",)}


def test_syncing_a_directory_takes_earlier_changes_of_the_same_names_along() -> None:
    files, _ = with_file(b"1")
    files.make_directories("d")
    files.sync_all()
    files.open_append("short-lived")
    files.delete("short-lived")
    files.rename("f", "g")
    files.rename("g", "d/h")
    files.open_append("other")
    files.sync_directory("d")
    files.check_invariants()
    assert remaining(files) == {
        ("/d/h",), ("/d/h", "/other"), ("/d/h", "/short-lived"), ("/d/h", "/other", "/short-lived"),
    }  # fmt: skip


def test_a_name_given_anew_never_costs_the_file_that_had_it() -> None:
    files, _ = with_file(b"abc")
    files.rename("f", "g")
    files.open_append("f")
    for seed in SEEDS:
        assert b"abc" in files.after_power_loss(random.Random(seed)).contents().values()


def test_unsynced_names_survive_in_any_combination_but_each_name_in_order() -> None:
    files, _ = with_file()
    files.open_append("a")
    files.open_append("b")
    files.rename("b", "c")
    assert remaining(files) == {
        ("/f",), ("/a", "/f"), ("/b", "/f"), ("/c", "/f"), ("/a", "/b", "/f"), ("/a", "/c", "/f"),
    }  # fmt: skip


def test_unsynced_names_survive_as_a_prefix_where_nothing_is_reordered() -> None:
    files, _ = with_file(rules=IN_ORDER)
    for name in ("g", "h"):
        files.open_append(name)
    assert remaining(files) == {("/f",), ("/f", "/g"), ("/f", "/g", "/h")}


def test_no_name_is_lost_where_the_rules_forbid_it() -> None:
    files, _ = with_file(rules=FaultRules(lost_names=False))
    files.make_directories("d")
    files.rename("f", "d/g")
    assert remaining(files) == {("/d/g",)}


# Failures


@pytest.mark.parametrize(
    ("kind", "use"),
    [
        ("append", lambda fs, h: h.append(b"x")),
        ("pwrite", lambda fs, h: h.pwrite(b"x", 0)),
        ("truncate", lambda fs, h: h.truncate(0)),
        ("sync", lambda fs, h: h.sync()),
        ("pread", lambda fs, h: h.pread(1, 0)),
        ("read", lambda fs, h: fs.read("f")),
        ("create", lambda fs, h: fs.open_append("g")),
        ("rename", lambda fs, h: fs.rename("f", "g")),
        ("delete", lambda fs, h: fs.delete("f")),
        ("make_directory", lambda fs, h: fs.make_directories("d")),
        ("sync_directory", lambda fs, h: fs.sync_directory("")),
        ("lock", lambda fs, h: fs.lock("lock", "me")),
    ],
)
def test_a_failure_strikes_its_kind_once_and_changes_nothing(
    kind: str, use: Callable[[MemoryFileSystem, MemoryFile], object]
) -> None:
    files, handle = with_file(b"abc", WHOLE)
    files.fail(kind)
    with pytest.raises(StorageError, match=f"{kind} failed"):
        use(files, handle)
    assert files.contents() == {"/f": b"abc"}
    files.check_invariants()
    use(files, handle)
    files.check_invariants()


def test_a_failed_delete_tree_leaves_part_of_it() -> None:
    files = MemoryFileSystem(0)
    files.make_directories("d")
    for name in "abc":
        files.open_append(f"d/{name}")
    files.fail("delete_tree", "*/b")
    with pytest.raises(StorageError):
        files.delete_tree("d")
    assert files.list("d") == ["b", "c"]


def test_a_failure_takes_only_its_paths_after_those_it_skips() -> None:
    files, handle = with_file()
    other = files.open_append("journal.jif")
    files.fail("append", "*.jif", skip=1, times=2, error=DiskFullError)
    handle.append(b"x")
    other.append(b"x")
    for _ in range(2):
        with pytest.raises(DiskFullError, match=r"journal\.jif"):
            other.append(b"")
    other.append(b"x")


def test_a_failed_append_leaves_a_torn_prefix_that_can_be_cut() -> None:
    sizes = set()
    for seed in SEEDS:
        files = MemoryFileSystem(seed)
        handle = files.open_append("f")
        files.fail("append")
        with pytest.raises(StorageError):
            handle.append(b"abc")
        assert b"abc".startswith(files.read("f"))
        sizes.add(handle.size())
        handle.truncate(0)
        assert handle.append(b"again") == 0
    assert sizes == {0, 1, 2, 3}


def after_a_failed_sync() -> tuple[MemoryFileSystem, MemoryFile]:
    """A file with two bytes that are safe, and two that could not be synced."""
    files, handle = with_file(b"ab")
    handle.append(b"cd")
    files.fail("sync")
    with pytest.raises(StorageError):
        handle.sync()
    return files, handle


def test_after_a_failed_sync_the_bytes_are_read_but_never_reach_the_disk() -> None:
    files, handle = after_a_failed_sync()
    handle.append(b"ef")
    handle.sync()
    assert files.read("f") == b"abcdef"
    assert files.after_process_crash().read("f") == b"abcdef"
    assert outcomes(files) == {b"ab\0\0ef"}


def test_a_sync_after_a_failed_one_saves_nothing_of_it() -> None:
    files, _ = after_a_failed_sync()
    assert outcomes(files) == {b"ab"}
    heir = files.after_process_crash()
    heir.open_append("f").sync()
    assert outcomes(heir) == {b"ab\0\0"}


def test_bytes_written_anew_after_a_failed_sync_are_saved_by_the_next() -> None:
    files, handle = after_a_failed_sync()
    handle.pwrite(b"cd", 2)
    handle.sync()
    assert outcomes(files) == {b"abcd"}


@pytest.mark.parametrize(("rules", "left"), [(FAIR, b"abcde"), (WHOLE, b"abc")])
def test_a_full_disk_takes_what_it_has_room_for(rules: FaultRules, left: bytes) -> None:
    files, handle = with_file(b"abc", rules)
    files.capacity_bytes = 5
    with pytest.raises(DiskFullError):
        handle.append(b"defg")
    assert files.read("f") == left
    handle.pwrite(b"X", 0)
    with pytest.raises(DiskFullError):
        handle.truncate(9)
    assert files.read("f") == b"X" + left[1:]


def test_a_full_disk_goes_on_once_there_is_room() -> None:
    files, handle = with_file(b"abc")
    other = files.open_append("g")
    other.append(b"1234")
    files.capacity_bytes = files.used_bytes
    with pytest.raises(DiskFullError):
        handle.append(b"d")
    files.delete("g")
    handle.append(b"d")
    files.capacity_bytes = 0
    with pytest.raises(DiskFullError):
        handle.append(b"e")
    handle.truncate(1)
    assert files.contents() == {"/f": b"a"}


# Damage, and what is not fair


def test_a_flipped_bit_is_on_the_disk() -> None:
    files, handle = with_file(b"abc", ROT)
    handle.append(b"d")
    files.flip_bit("f", 1, 0)
    files.check_invariants()
    assert handle.pread(4, 0) == b"accd"
    assert {content[:3] for content in outcomes(files) if content} == {b"acc"}


def test_any_flipped_bit_changes_just_that_bit() -> None:
    for seed in SEEDS:
        files, _ = with_file(bytes(10), ROT)
        offset, bit = files.flip_any_bit("f", random.Random(seed))
        assert files.read("f") == bytes(offset) + bytes([1 << bit]) + bytes(9 - offset)


def test_a_file_is_cut_where_the_test_says() -> None:
    files, handle = with_file(b"abc")
    handle.append(b"defg")
    files = files.after_process_crash()
    files.cut("f", files.synced_size("f") + 1)
    files.check_invariants()
    assert files.read("f") == b"abcd"


def test_a_cut_of_synced_bytes_is_damage() -> None:
    files, _ = with_file(b"abc")
    with pytest.raises(UnfairFaultError, match="synced bytes of f"):
        files.cut("f", 2)
    assert files.read("f") == b"abc"
    files, _ = with_file(b"abc", ROT)
    files.cut("f", 2)
    assert outcomes(files) == {b"ab"}


def test_unfair_and_unknown_faults_are_refused() -> None:
    files, _ = with_file(b"abc", WHOLE)
    with pytest.raises(UnfairFaultError):
        files.flip_bit("f", 0, 0)
    with pytest.raises(UnfairFaultError):
        files.crash_at(1, torn=True)
    with pytest.raises(ValueError, match="number 1"):
        files.crash_at(0)
    with pytest.raises(ValueError, match="no operation is called 'write'"):
        files.fail("write")
    with pytest.raises(ValueError, match="cut to 4"):
        files.cut("f", 4)
    damaged, _ = with_file(b"abc", ROT)
    with pytest.raises(ValueError, match="no bit 8"):
        damaged.flip_bit("f", 0, 8)


def test_a_second_writer_is_a_bug_of_the_caller() -> None:
    files, first = with_file()
    files.open_append("f").append(b"x")
    with pytest.raises(RuntimeError, match="another writer"):
        first.append(b"y")


def test_operations_are_counted_and_logged_and_reads_are_not() -> None:
    files = MemoryFileSystem(0)
    files.make_directories("a/b")
    handle = files.open_append("a/b/f")
    handle.append(b"x")
    handle.sync()
    handle.pread(1, 0)
    files.read("a/b/f")
    files.open_append("a/b/f")
    files.rename("a/b/f", "a/g")
    files.delete_tree("a")
    assert list(files.plan.log) == [
        ("make_directory", "/a"),
        ("make_directory", "/a/b"),
        ("create", "a/b/f"),
        ("append", "a/b/f"),
        ("sync", "a/b/f"),
        ("rename", "a/b/f"),
        ("delete_tree", "a/b"),
        ("delete_tree", "a/g"),
        ("delete_tree", "a"),
    ]
    assert files.operations == len(files.plan.log)


@pytest.mark.parametrize("attribute", ["issued", "durable"])
def test_check_invariants_finds_bytes_and_names_that_do_not_add_up(attribute: str) -> None:
    files, _ = with_file(b"abc")
    getattr(files._root.issued["f"], attribute).extend(b"!")
    with pytest.raises(RuntimeError, match="/f"):
        files.check_invariants()
    files, _ = with_file()
    getattr(files._root, attribute).clear()
    with pytest.raises(RuntimeError, match="names"):
        files.check_invariants()


def test_a_power_loss_without_a_generator_leaves_what_is_durable_and_nothing_else() -> None:
    files, handle = with_file(b"synced")
    handle.append(b" and not")
    files.open_append("unsynced name").append(b"x")
    after = files.after_power_loss(None)
    after.check_invariants()
    assert after.contents() == {"/f": b"synced"}
    assert files.after_process_crash().contents() == {"/f": b"synced and not", "/unsynced name": b"x"}


def test_a_volatile_disk_holds_nothing_twice_and_a_power_loss_leaves_nothing() -> None:
    files = MemoryFileSystem(volatile=True)
    handle = files.open_append("f")
    handle.append(b"abc")
    handle.pwrite(b"X", 1)
    handle.truncate(2)
    handle.append(b"d")
    handle.sync()
    write_file(files, "g", b"whole", sync=True)
    files.check_invariants()
    assert files.contents() == {"/f": b"aXd", "/g": b"whole"}
    assert files.after_process_crash().contents() == files.contents()
    assert files.after_power_loss(None).contents() == {}
