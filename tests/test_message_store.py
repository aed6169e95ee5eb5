"""The message store: what is written can be read, shared, removed, and found again after a stop."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from warren.msg_store.rdq import body_reader, clean_stop
from warren.msg_store.rdq.body_reader import BodyReader, ReadHandles
from warren.msg_store.rdq.locations import Location, Locations, pack
from warren.msg_store.rdq.message_store import MessageStore
from warren.msg_store.rdq.rdq_format import encode_record
from warren.msg_store.rdq.store_reader import StoreReader
from warren.msg_store.rdq.write_buffer import WriteBuffer
from warren.storage.errors import DataError, DiskFullError, StorageError, UnknownMessageError
from warren.storage.faults import FaultRules
from warren.storage.filesystem import RealFileSystem
from warren.storage.memory import MemoryFileSystem
from warren.storage.pieces import Pieces
from warren.storage.settings import Settings

DIRECTORY = "/vhost/msg_store_persistent"
SETTINGS = Settings(msg_store_file_size_limit=1000)
TOKEN = b"stopped once"


def key(n: int) -> bytes:
    return n.to_bytes(16, "big")


def body(n: int, size: int = 75) -> bytes:
    """A body whose record takes 100 bytes by default."""
    return f"<{n}>".encode().ljust(size, b".")


def fresh(files: MemoryFileSystem, buffer_bytes: int = 1 << 20) -> MessageStore:
    store = MessageStore.open(files, DIRECTORY, SETTINGS, buffer_bytes=buffer_bytes)
    assert store.set_references([]) == []
    return store


def write(store: MessageStore, *numbers: int) -> None:
    store.write_many([key(n) for n in numbers], [body(n) for n in numbers])


def remove(store: MessageStore, *numbers: int) -> None:
    store.remove_many([key(n) for n in numbers])
    store.check_invariants()


def rdq_files(files: MemoryFileSystem) -> list[str]:
    return [name for name in files.list(DIRECTORY) if name.endswith(".rdq")]


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem(rules=FaultRules(damage=True))


@pytest.fixture
def store(files: MemoryFileSystem) -> MessageStore:
    files.make_directories("/vhost")
    files.sync_all()
    return fresh(files)


# Writing and reading


def test_a_message_is_read_from_the_buffer_and_then_from_its_file(files: MemoryFileSystem, store: MessageStore) -> None:
    write(store, 1)
    assert files.size(f"{DIRECTORY}/0.rdq") == 0
    assert store.read(key(1)) == body(1)
    store.flush()
    assert files.read(f"{DIRECTORY}/0.rdq") == encode_record(key(1), body(1))
    assert store.read(key(1)) == body(1)
    store.check_invariants()


def test_a_flush_is_one_append_for_many_messages(files: MemoryFileSystem, store: MessageStore) -> None:
    write(store, *range(9))
    before = files.operations
    store.flush()
    assert [kind for kind, _ in files.plan.log][before:] == ["append"]


def test_a_full_buffer_is_flushed(files: MemoryFileSystem) -> None:
    store = fresh(files, buffer_bytes=250)
    write(store, 1, 2)
    assert store.status().buffered_messages == 2
    write(store, 3)
    assert (store.status().buffered_messages, files.size(f"{DIRECTORY}/0.rdq")) == (0, 300)


def test_a_write_and_a_remove_that_meet_in_the_buffer_cost_nothing(
    files: MemoryFileSystem, store: MessageStore
) -> None:
    store.sync()
    write(store, 1, 2)
    remove(store, 1, 2)
    before = files.operations
    store.sync()
    assert files.operations == before
    assert store.synced_ticket == store.written_ticket == 2
    assert not store.contains(key(1))


def test_a_shared_message_is_stored_once(files: MemoryFileSystem, store: MessageStore) -> None:
    write(store, 1, 1)
    store.flush()
    write(store, 1)
    store.flush()
    assert files.size(f"{DIRECTORY}/0.rdq") == 100
    assert store.reference_count(key(1)) == 3
    remove(store, 1, 1)
    assert store.read(key(1)) == body(1)
    remove(store, 1)
    assert (store.reference_count(key(1)), store.contains(key(1))) == (0, False)


def test_an_unknown_message_is_an_error(store: MessageStore) -> None:
    write(store, 1, 2)
    with pytest.raises(UnknownMessageError):
        store.read(key(9))
    with pytest.raises(UnknownMessageError):
        store.read_many([key(1), key(9)])
    with pytest.raises(UnknownMessageError):
        store.remove_many([key(1), key(9), key(2)])
    assert (store.contains(key(1)), store.contains(key(2))) == (False, True)


def test_an_id_of_another_length_is_refused(store: MessageStore) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        store.write_many([b"short"], [b""])


def test_neighbours_are_read_at_once(files: MemoryFileSystem, store: MessageStore) -> None:
    write(store, *range(9))
    store.flush()
    files.fail("pread", skip=1)
    assert store.read_many([key(n) for n in (8, 3, 5)]) == [body(n) for n in (8, 3, 5)]


def test_only_so_many_files_are_kept_open(store: MessageStore) -> None:
    store._reader.handles.capacity = 3
    write(store, *range(75))
    store.flush()
    assert store.read_many([key(n) for n in range(75)]) == [body(n) for n in range(75)]
    assert store.status().open_read_handles == 3


# Files


def test_a_file_is_closed_once_it_has_reached_the_limit(files: MemoryFileSystem, store: MessageStore) -> None:
    store.write_many([key(n) for n in range(4)], [body(n, 475) for n in range(4)])
    store.write_many([key(4)], [body(4, 5000)])
    store.flush()
    sizes = [files.size(f"{DIRECTORY}/{name}") for name in rdq_files(files)]
    assert sizes == [1000, 1000, 5025, 0]
    assert store.read(key(4)) == body(4, 5000)
    store.check_invariants()


def test_a_closed_file_without_a_message_is_deleted(files: MemoryFileSystem, store: MessageStore) -> None:
    write(store, *range(25))
    store.flush()
    remove(store, *range(9))
    assert rdq_files(files) == ["0.rdq", "1.rdq", "2.rdq"]
    remove(store, 9)
    assert rdq_files(files) == ["1.rdq", "2.rdq"]
    remove(store, *range(10, 25))
    assert rdq_files(files) == ["2.rdq"]


def test_a_file_whose_messages_went_before_it_was_full_is_deleted(files: MemoryFileSystem, store: MessageStore) -> None:
    write(store, *range(9))
    store.flush()
    remove(store, *range(9))
    write(store, *range(9, 11))
    store.flush()
    remove(store, 9)
    assert rdq_files(files) == ["1.rdq"]
    assert store.read(key(10)) == body(10)


# Durability


def test_tickets_say_what_is_durable(files: MemoryFileSystem, store: MessageStore) -> None:
    write(store, 1, 2)
    assert (store.written_ticket, store.synced_ticket) == (2, 0)
    store.flush()
    assert store.synced_ticket == 0
    store.sync()
    write(store, 1)
    assert (store.written_ticket, store.synced_ticket) == (3, 2)
    assert files.synced_size(f"{DIRECTORY}/0.rdq") == 200


def test_a_sync_covers_the_files_rolled_on_the_way_and_their_names(
    files: MemoryFileSystem, store: MessageStore
) -> None:
    write(store, *range(35))
    store.sync()
    for seed in range(8):
        recovered = MessageStore.open(files.after_power_loss(Random(seed)), DIRECTORY, SETTINGS)
        assert recovered.read_many([key(n) for n in range(35)]) == [body(n) for n in range(35)]


def test_without_syncs_a_file_that_is_full_waits_for_the_stop_to_be_synced() -> None:
    files = MemoryFileSystem(1)
    files.make_directories("/vhost")
    files.sync_all()
    store = MessageStore.open(files, DIRECTORY, SETTINGS, sync=False)
    assert store.set_references([]) == []
    write(store, *range(35))
    store.sync()
    assert store.synced_ticket == 35
    assert [files.synced_size(f"{DIRECTORY}/{name}") for name in rdq_files(files)] == [0, 0, 0, 0]
    store.remove_many([key(n) for n in range(10)])  # all that was in the first file
    store.close(TOKEN)
    for seed in range(8):
        recovered = MessageStore.open(files.after_power_loss(Random(seed)), DIRECTORY, SETTINGS, token=TOKEN)
        assert recovered.clean
        assert recovered.read_many([key(n) for n in range(10, 35)]) == [body(n) for n in range(10, 35)]


def test_what_a_process_without_syncs_left_is_synced_by_the_stop_after_its_crash() -> None:
    files = MemoryFileSystem(1)
    files.make_directories("/vhost")
    files.sync_all()
    store = MessageStore.open(files, DIRECTORY, SETTINGS, sync=False)
    store.set_references([])
    write(store, *range(35))
    store.flush()
    files = files.after_process_crash()
    store = MessageStore.open(files, DIRECTORY, SETTINGS)
    assert store.set_references([(key(n), 1) for n in range(35)]) == []
    store.close(TOKEN)
    for seed in range(8):
        recovered = MessageStore.open(files.after_power_loss(Random(seed)), DIRECTORY, SETTINGS, token=TOKEN)
        assert recovered.clean
        assert recovered.read_many([key(n) for n in range(35)]) == [body(n) for n in range(35)]


def test_a_message_in_pieces_is_read_from_the_buffer_and_from_its_file_as_a_whole(
    files: MemoryFileSystem, store: MessageStore
) -> None:
    whole = body(2, 300)
    pieces = Pieces((whole[:20], memoryview(whole)[20:200], memoryview(whole)[200:290], whole[290:]), len(whole))
    store.write_many([key(1), key(2), key(3)], [body(1), pieces, body(3)])
    for _ in range(2):
        assert store.read(key(2)) == whole
        assert type(store.read(key(2))) is bytes
        assert store.read_many([key(3), key(2), key(1)]) == [body(3), whole, body(1)]
        store.flush()
    records = [encode_record(key(1), body(1)), encode_record(key(2), whole), encode_record(key(3), body(3))]
    assert files.read(f"{DIRECTORY}/0.rdq") == b"".join(records)
    store.check_invariants()


def test_a_sync_covers_the_directory_of_a_new_store(files: MemoryFileSystem) -> None:
    files.make_directories("/vhost")
    files.sync_all()
    store = fresh(files)
    write(store, 1)
    store.sync()
    for seed in range(8):
        assert MessageStore.open(files.after_power_loss(Random(seed)), DIRECTORY, SETTINGS).read(key(1)) == body(1)


def test_a_known_message_found_after_a_crash_is_synced_before_it_is_confirmed(
    files: MemoryFileSystem, store: MessageStore
) -> None:
    write(store, 1)
    store.flush()
    recovered = MessageStore.open(after := files.after_process_crash(), DIRECTORY, SETTINGS)
    write(recovered, 1)
    recovered.sync()
    assert after.synced_size(f"{DIRECTORY}/0.rdq") == 100


def test_after_a_failed_fsync_nothing_is_confirmed_any_more(files: MemoryFileSystem, store: MessageStore) -> None:
    write(store, 1)
    files.fail("sync")
    with pytest.raises(StorageError):
        store.sync()
    for refused in (store.sync, store.flush, lambda: write(store, 2)):
        with pytest.raises(StorageError, match="fsync failed"):
            refused()
    assert store.synced_ticket == 0
    assert store.read(key(1)) == body(1)


def test_a_full_disk_loses_nothing_and_is_survived(files: MemoryFileSystem, store: MessageStore) -> None:
    write(store, 1)
    store.sync()
    write(store, 2, 3)
    files.capacity_bytes = 250
    with pytest.raises(DiskFullError):
        store.sync()
    assert store.read_many([key(1), key(2), key(3)]) == [body(1), body(2), body(3)]
    assert store.synced_ticket == 1
    store.check_invariants()
    files.capacity_bytes = None
    store.sync()
    assert store.synced_ticket == 3
    assert files.read(f"{DIRECTORY}/0.rdq") == b"".join(encode_record(key(n), body(n)) for n in (1, 2, 3))


def test_a_transient_store_begins_empty_and_is_never_fsynced(files: MemoryFileSystem, store: MessageStore) -> None:
    write(store, 1)
    store.close(TOKEN)
    before = files.operations
    transient = MessageStore.create(files, DIRECTORY, SETTINGS)
    write(transient, *range(2, 30))
    transient.sync()
    transient.close(TOKEN)
    assert not transient.contains(key(1))
    assert transient.synced_ticket == 28
    assert "sync" not in [kind for kind, _ in files.plan.log][before:]
    assert clean_stop.NAME not in files.list(DIRECTORY)


# A clean stop


def stopped(files: MemoryFileSystem) -> None:
    """A store of three files, with garbage, a shared message and a shortcut."""
    store = fresh(files)
    write(store, *range(25))
    write(store, 3)
    store.flush()
    remove(store, 3, 4, 15)
    store.close(TOKEN)


def test_a_clean_stop_is_found_again_without_a_scan(files: MemoryFileSystem, store: MessageStore) -> None:
    store.abandon()
    stopped(files)
    files.fail("pread")
    again = MessageStore.open(files, DIRECTORY, SETTINGS, token=TOKEN)
    files.plan.failures.clear()
    assert again.clean
    again.check_invariants()
    assert [again.reference_count(key(n)) for n in (2, 3, 4)] == [1, 1, 0]
    assert again.read(key(24)) == body(24)
    assert clean_stop.NAME not in files.list(DIRECTORY)
    write(again, 25)
    again.sync()


@pytest.mark.parametrize("name", ["clean.dot", "file_summary.ets", "msg_store_index.ets"])
def test_a_rabbitmq_that_ran_in_between_makes_our_shortcut_stale(files: MemoryFileSystem, name: str) -> None:
    stopped(files)
    files.open_append(f"{DIRECTORY}/{name}").close()
    again = MessageStore.open(files, DIRECTORY, SETTINGS, token=TOKEN)
    assert not again.clean
    assert not {clean_stop.NAME, name}.intersection(files.list(DIRECTORY))


def test_a_shortcut_with_another_token_is_not_trusted(files: MemoryFileSystem) -> None:
    stopped(files)
    assert not MessageStore.open(files, DIRECTORY, SETTINGS, token=b"another").clean


def test_a_shortcut_is_not_trusted_where_a_file_changed(files: MemoryFileSystem) -> None:
    stopped(files)
    files.open_append(f"{DIRECTORY}/2.rdq").append(encode_record(key(99), body(99)))
    again = MessageStore.open(files, DIRECTORY, SETTINGS, token=TOKEN)
    assert not again.clean
    assert again.read(key(99)) == body(99)


def test_a_shortcut_is_not_trusted_where_a_file_came(files: MemoryFileSystem) -> None:
    stopped(files)
    files.open_append(f"{DIRECTORY}/1.rdt").close()
    assert not MessageStore.open(files, DIRECTORY, SETTINGS, token=TOKEN).clean


def test_a_shortcut_is_not_trusted_where_a_file_went(files: MemoryFileSystem) -> None:
    stopped(files)
    files.delete(f"{DIRECTORY}/0.rdq")
    assert not MessageStore.open(files, DIRECTORY, SETTINGS, token=TOKEN).clean


def test_a_shortcut_does_not_come_back_with_a_power_loss(files: MemoryFileSystem) -> None:
    stopped(files)
    files.sync_all()
    again = MessageStore.open(files, DIRECTORY, SETTINGS, token=TOKEN)
    remove(again, 5)
    for seed in range(8):
        assert not MessageStore.open(files.after_power_loss(Random(seed)), DIRECTORY, SETTINGS, token=TOKEN).clean


@pytest.mark.parametrize("cut", [0, 5, 30, 60, 200])
def test_a_damaged_shortcut_is_not_trusted(files: MemoryFileSystem, cut: int) -> None:
    stopped(files)
    path = f"{DIRECTORY}/{clean_stop.NAME}"
    if cut:
        files.cut(path, cut)
    else:
        files.flip_any_bit(path, files.rng)
    again = MessageStore.open(files, DIRECTORY, SETTINGS, token=TOKEN)
    assert not again.clean
    assert again.read(key(24)) == body(24)


# A dirty start


def test_a_torn_end_is_cut_and_written_over(files: MemoryFileSystem, store: MessageStore) -> None:
    write(store, 1, 2)
    store.sync()
    store.abandon()
    files.cut(f"{DIRECTORY}/0.rdq", 150)
    again = MessageStore.open(files, DIRECTORY, SETTINGS)
    assert again.set_references([(key(1), 1), (key(2), 1)]) == [key(2)]
    write(again, 3)
    again.flush()
    assert files.read(f"{DIRECTORY}/0.rdq") == encode_record(key(1), body(1)) + encode_record(key(3), body(3))
    again.check_invariants()


def test_what_nobody_refers_to_is_garbage(files: MemoryFileSystem) -> None:
    stopped(files)
    again = MessageStore.open(files, DIRECTORY, SETTINGS)
    assert again.status().messages == 25
    assert again.set_references((key(n), 1) for n in (3, 3, 24)) == []
    again.check_invariants()
    assert [again.reference_count(key(n)) for n in (3, 5, 24)] == [2, 0, 1]
    assert rdq_files(files) == ["0.rdq", "2.rdq"]
    with pytest.raises(RuntimeError, match="are known"):
        again.set_references([])


def test_before_the_references_come_everything_works_and_nothing_goes(files: MemoryFileSystem) -> None:
    stopped(files)
    again = MessageStore.open(files, DIRECTORY, SETTINGS)
    write(again, 7, 50, 51)
    again.flush()
    remove(again, 7, 51, *range(10, 20))
    assert again.read(key(12)) == body(12)
    assert not again.needs_compaction()
    again.check_invariants()
    assert again.set_references((key(n), 1) for n in range(25)) == []
    again.check_invariants()
    assert [again.reference_count(key(n)) for n in (7, 12, 24, 50, 51)] == [1, 0, 1, 1, 0]
    assert rdq_files(files) == ["0.rdq", "2.rdq"]


def test_a_reference_that_comes_late_counts_for_a_message_in_the_buffer(store: MessageStore) -> None:
    again = MessageStore.open(store._files, "/other", SETTINGS)
    write(again, 1)
    assert again.set_references([(key(1), 2)]) == []
    assert again.reference_count(key(1)) == 3


def test_more_removed_than_referenced_is_a_bug(files: MemoryFileSystem) -> None:
    stopped(files)
    again = MessageStore.open(files, DIRECTORY, SETTINGS)
    remove(again, 5, 5)
    with pytest.raises(RuntimeError, match="more often"):
        again.set_references([(key(5), 1)])


def test_the_last_of_several_places_counts(files: MemoryFileSystem, store: MessageStore) -> None:
    store.abandon()
    files.open_append(f"{DIRECTORY}/0.rdq").append(encode_record(key(1), b"old") + encode_record(key(1), b"newer"))
    files.open_append(f"{DIRECTORY}/1.rdq").append(encode_record(key(1), b"newest"))
    assert MessageStore.open(files, DIRECTORY, SETTINGS).read(key(1)) == b"newest"
    assert StoreReader.open(files, DIRECTORY).read(key(1)) == b"newest"


# Damage


def test_a_damaged_record_is_an_error_that_names_its_place(files: MemoryFileSystem, store: MessageStore) -> None:
    write(store, 1, 2, 3)
    store.sync()
    files.flip_bit(f"{DIRECTORY}/0.rdq", 199, 0)
    for read in (lambda: store.read(key(2)), lambda: store.read_many([key(1), key(2), key(3)])):
        with pytest.raises(DataError, match="0xFF") as caught:
            read()
        assert (caught.value.path, caught.value.offset) == (f"{DIRECTORY}/0.rdq", 100)
    assert store.read(key(3)) == body(3)


def test_a_record_of_another_message_is_an_error(files: MemoryFileSystem, store: MessageStore) -> None:
    write(store, 1, 2)
    store.sync()
    files.flip_bit(f"{DIRECTORY}/0.rdq", 100 + 8, 3)
    with pytest.raises(DataError, match="holds message"):
        store.read(key(2))


def test_a_file_cut_under_the_store_is_an_error(files: MemoryFileSystem, store: MessageStore) -> None:
    write(store, 1, 2)
    store.sync()
    files.cut(f"{DIRECTORY}/0.rdq", 150)
    with pytest.raises(DataError, match="ends 50 bytes before"):
        store.read(key(2))


def test_damage_found_at_the_start_is_reported_and_stops_nothing(files: MemoryFileSystem, store: MessageStore) -> None:
    write(store, *range(25))
    store.close()
    files.flip_bit(f"{DIRECTORY}/0.rdq", 199, 0)  # a marker
    files.flip_bit(f"{DIRECTORY}/1.rdq", 500, 7)  # the highest byte of a size
    again = MessageStore.open(files, DIRECTORY, SETTINGS)
    assert [(e.path[-5:], e.offset) for e in again.unreadable] == [("0.rdq", 100), ("1.rdq", 500)]
    missing = again.set_references((key(n), 1) for n in range(25))
    assert missing == [key(n) for n in (1, 15, 16, 17, 18, 19)]
    assert again.read_many([key(0), key(2), key(14), key(24)]) == [body(0), body(2), body(14), body(24)]
    again.check_invariants()


def test_a_read_looks_again_where_a_message_was_moved_under_it(files: MemoryFileSystem) -> None:
    files.make_directories("/s")
    for name, n in (("0.rdq", 1), ("1.rdq", 2)):
        files.open_append(f"/s/{name}").append(encode_record(key(n), body(n)))
    locations = Locations({key(2): pack(0, 0, 100)})
    handles = ReadHandles(files, "/s")
    reader = BodyReader(WriteBuffer(), locations, handles)
    pread = handles.pread

    class MovingHandles(ReadHandles):
        """The writer moves the message while the first read is under way."""

        def pread(self, number: int, size: int, offset: int) -> bytes:
            data = pread(number, size, offset)
            locations.move(key(2), Location(0, 0, 100), Location(1, 0, 100))
            return data

    reader.handles = MovingHandles(files, "/s")
    assert reader.read(key(2)) == body(2)


def test_wanted_records_far_apart_are_read_one_by_one() -> None:
    near, far, other = Location(0, 0, 100), Location(0, 100 + body_reader.GAP_BYTES + 1, 100), Location(1, 200, 100)
    runs = body_reader.runs([(near, 0), (far, 1), (other, 2)])
    assert [len(run) for run in runs] == [1, 1, 1]


# Reading another process's store


def test_a_reader_of_a_foreign_store_changes_nothing(files: MemoryFileSystem) -> None:
    stopped(files)
    files.open_append(f"{DIRECTORY}/clean.dot").append(b"[].")
    files.open_append(f"{DIRECTORY}/2.rdq").append(b"\0\0\0\0\0\0\1torn")
    before, operations = files.contents(), files.operations
    reader = StoreReader.open(files, DIRECTORY)
    assert len(reader) == 25
    numbers = [24, 3, 3, 17]
    assert [reader.read(key(n)) for n in numbers] == [body(n) for n in numbers]
    assert [(name, record.offset) for name, record in reader.records()][9:11] == [("0.rdq", 900), ("1.rdq", 0)]
    assert [(e.path[-5:], e.offset) for e in reader.unreadable] == [("2.rdq", 500)]
    reader.close()
    assert (files.contents(), files.operations) == (before, operations)


def test_a_reader_finds_ids_that_end_in_zeros(files: MemoryFileSystem) -> None:
    files.make_directories("/s")
    ids = [b"id".ljust(16, b"\0"), b"id\0\1".ljust(16, b"\0"), bytes(16)]
    files.open_append("/s/0.rdq").append(b"".join(encode_record(msg_id, msg_id) for msg_id in ids))
    reader = StoreReader.open(files, "/s")
    assert [reader.read(msg_id) for msg_id in ids] == ids
    for unknown in (b"id", b"id\0\2".ljust(16, b"\0"), b"\xff" * 16, b""):
        assert not reader.contains(unknown)
        with pytest.raises(UnknownMessageError):
            reader.read(unknown)


def test_a_reader_reads_leftovers_on_their_own(files: MemoryFileSystem) -> None:
    files.make_directories("/s")
    files.open_append("/s/0.rdq").append(encode_record(key(1), body(1)) + bytes(200))
    files.open_append("/s/0.rdt").append(encode_record(key(2), body(2)))
    reader = StoreReader.open(files, "/s")
    assert [reader.read(key(n)) for n in (1, 2)] == [body(1), body(2)]
    assert reader.unreadable == []


def test_a_reader_of_nothing_has_nothing(files: MemoryFileSystem) -> None:
    reader = StoreReader.open(files, "/nowhere")
    assert (len(reader), list(reader.records()), reader.contains(key(1))) == (0, [], False)


def test_on_a_real_disk(tmp_path: Path) -> None:
    files, directory = RealFileSystem(), str(tmp_path / "msg_store_persistent")
    store = MessageStore.open(files, directory, SETTINGS)
    store.set_references([])
    write(store, *range(45))
    store.sync()
    remove(store, *(n for n in range(45) if n % 10 > 2))
    store.compact()
    store.check_invariants()
    store.close(TOKEN)
    store = MessageStore.open(files, directory, SETTINGS, token=TOKEN)
    assert store.clean
    kept = [n for n in range(45) if n % 10 <= 2]
    assert store.read_many([key(n) for n in kept]) == [body(n) for n in kept]
    store.close()
