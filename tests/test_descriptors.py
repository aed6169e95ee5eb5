"""Files with a bound on open descriptors: they answer as any files do, and an eviction shows nowhere."""

from __future__ import annotations

import errno
import os
import random
import resource
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import times
from tests.support.waiting import together
from warren.storage.descriptors import BoundedFile, DescriptorCache, descriptor_bound
from warren.storage.errors import SettingsError, StorageError
from warren.storage.filesystem import File, FileSystem, RealFileSystem
from warren.storage.memory import MemoryFileSystem


def bounded(bound: int, **options: Any) -> tuple[RealFileSystem, DescriptorCache]:
    files = RealFileSystem(bound, threading.Lock(), **options)
    assert files.descriptors is not None
    return files, files.descriptors


def evicted(*files: File) -> list[bool]:
    """Which files have no descriptor just now."""
    return [file.evicted for file in files if isinstance(file, BoundedFile)]


def open_below(directory: Path) -> int:
    """Descriptors of this process that are open on files there, deleted ones too."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # that of the listing itself
            continue
    return sum(link.startswith(str(directory)) for link in links)


@pytest.mark.slow
def test_five_hundred_files_share_fifty_descriptors_between_threads(tmp_path: Path) -> None:
    files, cache = bounded(50)
    handles = [files.open_append(f"{tmp_path}/{n}") for n in range(500)]
    assert len(cache) == open_below(tmp_path) == 50
    models = [bytearray() for _ in handles]
    owned = [threading.Lock() for _ in handles]
    most: list[int] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(1500):
            number = rng.randrange(500)
            with owned[number]:
                handle, model = handles[number], models[number]
                choice = rng.random()
                if choice < 0.5:
                    data = rng.randbytes(rng.randrange(1, 40))
                    assert handle.append(data) == len(model)
                    model += data
                elif choice < 0.9:
                    at, size = rng.randrange(len(model) + 1), rng.randrange(1, 60)
                    assert handle.pread(size, at) == model[at : at + size]
                elif choice < 0.95:
                    handle.sync()
                elif choice < 0.98:
                    assert handle.size() == len(model)
                else:
                    handle.truncate(len(model) // 2)
                    del model[len(model) // 2 :]
            most.append(len(cache))

    together(*[lambda seed=seed: work(seed) for seed in range(4)])
    assert max(most) == 50
    assert cache.evictions > 1000
    cache.check_invariants()
    assert len(cache) == open_below(tmp_path) == 50
    for handle, model in zip(handles, models, strict=True):
        assert files.read(handle.path) == model
        handle.close()
    cache.check_invariants()
    assert len(cache) == open_below(tmp_path) == 0


def test_without_a_bound_every_file_has_its_descriptor(tmp_path: Path) -> None:
    files = RealFileSystem()
    handles = [files.open_append(f"{tmp_path}/{n}") for n in range(60)]
    assert files.descriptors is None
    assert open_below(tmp_path) == 60
    for handle in handles:
        handle.close()


def test_the_file_that_was_used_longest_ago_is_evicted(tmp_path: Path) -> None:
    files, _ = bounded(3)
    a, b, c = (files.open_append(f"{tmp_path}/{name}") for name in "abc")
    a.size()
    d = files.open_append(f"{tmp_path}/d")
    assert evicted(a, b, c, d) == [False, True, False, False]
    b.size()
    assert evicted(a, b, c, d) == [False, False, True, False]


def test_a_read_counts_as_a_use(tmp_path: Path) -> None:
    files, _ = bounded(4)
    a, b, c, d = (files.open_append(f"{tmp_path}/{name}") for name in "abcd")
    a.pread(1, 0)
    b.pread(1, 0)
    e = files.open_append(f"{tmp_path}/e")
    assert evicted(a, b, c, d, e) == [False, False, True, False, False]
    b.pread(1, 0)
    f, g = files.open_append(f"{tmp_path}/f"), files.open_append(f"{tmp_path}/g")
    assert evicted(a, b, d, e, f, g) == [True, False, True, False, False, False]


def test_a_file_that_is_read_without_a_pause_can_be_evicted_by_its_own_thread(tmp_path: Path) -> None:
    files, cache = bounded(1)
    file = files.open_append(f"{tmp_path}/f")
    file.append(b"data")
    for n in range(5):
        assert file.pread(2, 1) == b"at"
        files.open_append(f"{tmp_path}/{n}")
        assert evicted(file) == [True]
    cache.check_invariants()


class Held:
    """A call of ``os`` that blocks, once entered, until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.entered, self.released = threading.Event(), threading.Event()
        self._call = getattr(os, name)
        monkeypatch.setattr(os, name, self._wait)

    def _wait(self, *arguments: Any) -> Any:
        if not self.entered.is_set():
            self.entered.set()
            assert self.released.wait(30)
        return self._call(*arguments)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("pwrite", lambda file: file.append(b"late")),
        ("pread", lambda file: file.pread(4, 0)),
        ("fsync", lambda file: file.sync()),
        ("ftruncate", lambda file: file.truncate(2)),
    ],
)
def test_a_descriptor_in_use_is_not_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, use: Callable[[File], object]
) -> None:
    files, cache = bounded(2)
    file = files.open_append(f"{tmp_path}/used")
    file.append(b"data")
    file.sync()
    held = Held(monkeypatch, name)
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(use(file)))
    thread.start()
    assert held.entered.wait(30)
    others = [files.open_append(f"{tmp_path}/{n}") for n in range(5)]
    for number, other in enumerate(others * 2):
        assert other.append(b"%d" % number) == number // 5
    assert len(cache) == 2, "the others share the other one"
    held.released.set()
    thread.join()
    after = {"pwrite": b"datalate", "ftruncate": b"da"}.get(name, b"data")
    assert answers == [{"pwrite": 4, "pread": b"data"}.get(name)]
    assert files.read(f"{tmp_path}/used") == after
    assert [files.read(other.path) for other in others] == [b"%d%d" % (n, n + 5) for n in range(5)]
    cache.check_invariants()


def test_where_all_are_in_use_the_bound_gives_way_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, cache = bounded(1)
    file = files.open_append(f"{tmp_path}/used")
    held = Held(monkeypatch, "pwrite")
    thread = threading.Thread(target=file.append, args=(b"late",))
    thread.start()
    assert held.entered.wait(30)
    other = files.open_append(f"{tmp_path}/other")
    other.append(b"meanwhile")
    assert len(cache) == 2
    held.released.set()
    thread.join()
    assert files.read(f"{tmp_path}/used") == b"late"
    assert len(cache) == 0
    assert other.pread(99, 0) == b"meanwhile"
    assert len(cache) == 1


def test_two_users_of_one_reader_are_both_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, cache = bounded(1)
    file = files.open_append(f"{tmp_path}/f")
    file.append(b"data")
    held = Held(monkeypatch, "pread")
    answers: list[bytes] = []
    thread = threading.Thread(target=lambda: answers.append(file.pread(4, 0)))
    thread.start()
    assert held.entered.wait(30)
    assert file.pread(2, 1) == b"at"
    other = files.open_append(f"{tmp_path}/other")
    other.append(b"other")
    assert cache.evictions == 0, "one of the two is still in it"
    held.released.set()
    thread.join()
    assert answers == [b"data"]
    other.close()
    files.open_append(f"{tmp_path}/third")
    assert evicted(file) == [True]


# What was not synced yet


class Syncs:
    """Counts fsyncs; fails those of files by these names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *failing: str) -> None:
        self.count, self.failing = 0, failing
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._sync)

    def _sync(self, descriptor: int) -> None:
        self.count += 1
        if os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")) in self.failing:
            raise OSError(errno.EIO, "Input/output error")
        self._fsync(descriptor)


def test_a_file_with_unsynced_writes_is_synced_before_it_is_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(monkeypatch)
    files, _ = bounded(1)
    written = files.open_append(f"{tmp_path}/written")
    files.open_append(f"{tmp_path}/clean")
    assert syncs.count == 0
    written.append(b"x")
    clean = files.open_append(f"{tmp_path}/clean")
    assert syncs.count == 1
    written.append(b"y")
    written.sync()
    clean.size()
    assert syncs.count == 2


def test_a_file_without_unsynced_writes_is_evicted_rather(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch)
    files, cache = bounded(4)
    a, b, c, d = (files.open_append(f"{tmp_path}/{name}") for name in "abcd")
    for file in (a, c, d):
        file.append(b"x")
    for file in (a, b, c, d):
        file.size()
    files.open_append(f"{tmp_path}/e")
    assert evicted(b) == [True]
    assert (cache.evictions, syncs.count) == (1, 0)


def test_who_makes_no_syncs_can_be_spared_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch)
    files, cache = bounded(1, sync_evicted=False)
    for n in range(3):
        files.open_append(f"{tmp_path}/{n}").append(b"x")
    assert (cache.evictions, syncs.count) == (2, 0)


def test_a_failed_sync_on_eviction_is_heard_of_by_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch, "bad")
    files, cache = bounded(2)
    bad = files.open_append(f"{tmp_path}/bad")
    bad.append(b"lost?")
    good = files.open_append(f"{tmp_path}/good")
    third = files.open_append(f"{tmp_path}/third")
    third.append(b"its owner notices nothing")
    assert evicted(bad, good) == [False, True]
    syncs.failing = ()
    for use in (bad.sync, lambda: bad.append(b"x"), lambda: bad.truncate(0)):
        with pytest.raises(StorageError, match=r"unusable since.*bad: Input/output error"):
            use()
    assert bad.pread(99, 0) == b"lost?"
    good.append(b"x")
    assert evicted(bad) == [False]
    bad.close()
    cache.check_invariants()
    reopened = files.open_append(f"{tmp_path}/bad")
    assert reopened.append(b"!") == 5


def test_a_failed_sync_of_the_owners_is_his_to_deal_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch, "f")
    files, _ = bounded(1)
    file = files.open_append(f"{tmp_path}/f")
    file.append(b"x")
    with pytest.raises(StorageError, match="Input/output"):
        file.sync()
    syncs.failing = ()
    files.open_append(f"{tmp_path}/g")
    assert syncs.count == 2, "what was not synced then is not taken for synced"


# Names that change


def evicted_file(files: RealFileSystem, path: str, data: bytes) -> File:
    file = files.open_append(path)
    file.append(data)
    files.open_append(f"{path}.next").size()
    assert evicted(file) == [True]
    return file


@pytest.mark.parametrize(
    "change",
    [
        lambda files, root: files.delete(f"{root}/d/f"),
        lambda files, root: files.delete_tree(f"{root}/d"),
        lambda files, root: files.delete_tree(root),
        lambda files, root: files.rename(f"{root}/d/f", f"{root}/g"),
        lambda files, root: files.rename(f"{root}/other", f"{root}/d/f"),
        lambda files, root: files.delete(f"{root}/d/../d/./f"),
    ],
)
def test_an_evicted_file_is_kept_through_the_loss_of_its_name(
    tmp_path: Path, change: Callable[[FileSystem, str], None]
) -> None:
    files, cache = bounded(1)
    root = f"{tmp_path}/root"
    files.make_directories(f"{root}/d")
    files.open_append(f"{root}/other").close()
    file = evicted_file(files, f"{root}/d/f", b"abc")
    change(files, root)
    for n in range(3):
        files.open_append(f"{tmp_path}/{n}").append(b"x")
    assert file.append(b"def") == 3
    assert file.pread(99, 0) == b"abcdef"
    file.close()
    cache.check_invariants()


def test_a_file_that_was_replaced_from_outside_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    files, cache = bounded(1)
    file = evicted_file(files, f"{tmp_path}/f", b"abc")
    (tmp_path / "new").write_bytes(b"abc")
    os.replace(tmp_path / "new", tmp_path / "f")
    for use in (lambda: file.append(b"x"), lambda: file.pread(1, 0), file.sync):
        with pytest.raises(StorageError, match="f: replaced by another file"):
            use()
    assert (tmp_path / "f").read_bytes() == b"abc"
    assert open_below(tmp_path) == len(cache) == 0
    file.close()
    cache.check_invariants()


def test_a_file_that_was_deleted_from_outside_does_not_come_back_empty(tmp_path: Path) -> None:
    files, cache = bounded(1)
    file = evicted_file(files, f"{tmp_path}/f", b"abc")
    (tmp_path / "f").unlink()
    with pytest.raises(StorageError, match="f: No such file"):
        file.append(b"x")
    assert not (tmp_path / "f").exists()
    file.close()
    cache.check_invariants()


def test_a_closed_file_stays_closed(tmp_path: Path) -> None:
    files, cache = bounded(1)
    file = evicted_file(files, f"{tmp_path}/f", b"abc")
    file.close()
    file.close()
    with pytest.raises(StorageError, match="f: closed"):
        file.append(b"x")
    cache.check_invariants()


# A system without a free descriptor


def test_where_the_system_has_no_descriptor_left_one_is_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, cache = bounded(50)
    a, b = files.open_append(f"{tmp_path}/a"), files.open_append(f"{tmp_path}/b")
    real_open, room = os.open, 1

    def open_few(*arguments: Any) -> int:
        if len(cache) > room:
            raise OSError(errno.EMFILE, "Too many open files")
        return real_open(*arguments)

    monkeypatch.setattr(os, "open", open_few)
    c = files.open_append(f"{tmp_path}/c")
    c.append(b"x")
    assert evicted(a, b, c) == [True, False, False]
    room = -1
    with pytest.raises(StorageError, match="a: Too many open files"):
        a.append(b"x")
    assert len(cache) == 0
    room = 1
    a.append(b"y")
    assert (a.pread(9, 0), c.pread(9, 0)) == (b"y", b"x")
    cache.check_invariants()


def test_the_bound_leaves_a_reserve_of_what_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, reserved, expected in [
        (1024, 256, 768),
        (1024, 0, 1024),
        (100, 256, 16),
        (resource.RLIM_INFINITY, 256, 65536),
        (1 << 30, 256, 65536),
    ]:
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert descriptor_bound(reserved) == expected


def test_a_bound_of_nothing_is_refused() -> None:
    with pytest.raises(SettingsError, match="max_open_files must be at least 1"):
        RealFileSystem(0)


# Against the file system in memory

_slots, _names = st.integers(0, 4), st.sampled_from(["a", "b", "d/a", "d/b"])
_data, _offsets = st.binary(min_size=1, max_size=9), st.integers(0, 20)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("open"), _slots, _names),
        st.tuples(st.just("append"), _slots, _data),
        st.tuples(st.just("pwrite"), _slots, _data, _offsets),
        st.tuples(st.just("pread"), _slots, _offsets, _offsets),
        st.tuples(st.just("truncate"), _slots, _offsets),
        st.tuples(st.sampled_from(["sync", "size", "close"]), _slots),
        st.tuples(st.just("rename"), _names, _names),
        st.tuples(st.just("delete"), _names),
        st.tuples(st.just("delete_tree"), st.just("d")),
        st.tuples(st.just("make_directories"), st.just("d")),
    ),
    max_size=40,
)


def perform(files: FileSystem, root: str, handles: dict[int, File], kind: str, first: Any, *rest: Any) -> object:
    """One step and what came of it. A name has one handle at a time: a file has one writer."""
    try:
        if kind == "open":
            if first in handles:
                handles.pop(first).close()
            handles[first] = files.open_append(f"{root}/{rest[0]}")
            return None
        if isinstance(first, int):
            return getattr(handles[first], kind)(*rest) if first in handles else None
        return getattr(files, kind)(f"{root}/{first}", *(f"{root}/{name}" for name in rest))
    except StorageError:
        return "refused"


@settings(max_examples=times(150))
@given(_steps, st.integers(1, 3))
def test_files_that_stay_open_answer_as_those_in_memory_do(steps: list[Any], bound: int) -> None:
    memory, (real, cache) = MemoryFileSystem(0), bounded(bound)
    with tempfile.TemporaryDirectory() as root:
        memory.make_directories(root)
        in_memory: dict[int, File] = {}
        on_disk: dict[int, File] = {}
        writers: dict[int, str] = {}
        for step in steps:
            if step[0] == "open":
                if step[2] in writers.values() and writers.get(step[1]) != step[2]:
                    continue
                writers[step[1]] = step[2]
            answer = perform(real, root, on_disk, *step)
            assert perform(memory, root, in_memory, *step) == answer, step
            if step[0] == "rename" and answer is None:
                writers = {slot: step[2] if name == step[1] else name for slot, name in writers.items()}
            cache.check_invariants()
            assert len(cache) <= max(bound, len(on_disk))
        for slot, handle in on_disk.items():
            try:
                assert handle.pread(100, 0) == in_memory[slot].pread(100, 0)
            except StorageError:
                with pytest.raises(StorageError):
                    in_memory[slot].pread(100, 0)
            handle.close()
        assert len(cache) == 0
