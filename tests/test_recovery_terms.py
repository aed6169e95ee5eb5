"""recovery.dets: what real brokers and real DETS wrote is read; what is written, real DETS opens without repair."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import os
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import times
from warren.queue_index.index.dets_format import (
    TableObject,
    encode_table,
    read_table,
    slot_of,
    slots_for,
    surviving_terms,
)
from warren.queue_index.index.erlang_hash import phash2_characters
from warren.queue_index.index.recovery_terms import RecoveryTerms, encode_recovery_terms, read_recovery_terms
from warren.storage.erlang_terms import Atom, Term, decode, encode
from warren.storage.errors import DataError

DATA = Path(__file__).parent / "data"
PATH = "vhost/recovery.dets"
HEADER_BYTES, FIRST_SEGMENT, BASE = 1336, 3384, 5432
NOTHING = RecoveryTerms((), None, None, None, None, None)


def stored(name: str) -> bytes:
    """A file that RabbitMQ 3.10.8 (or, if it is compressed, a program using DETS of OTP 25) left."""
    path = DATA / name
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def queue(number: int) -> tuple[str, RecoveryTerms]:
    """A queue's directory name and terms, whose sizes differ from number to number."""
    name = hashlib.sha256(str(number).encode()).hexdigest().upper()[:25]
    segments = tuple((segment, number) for segment in range(number % 40))
    return name, RecoveryTerms(segments, number << 20, number, name[:16].encode(), number, number << 35)


def queues(count: int) -> dict[str, RecoveryTerms]:
    return dict(map(queue, range(count)))


def table_of(*objects: Term, keys: tuple[bytes, ...] = (b"Q", b"R")) -> bytes:
    """A sound table with these terms under the hashes of ``keys``."""
    return encode_table(
        TableObject(key, phash2_characters(key), encode(one)) for key, one in zip(keys, objects, strict=False)
    )


@pytest.mark.parametrize(
    ("characters", "expected"),
    [
        (b"", 113427502),
        (b"A", 12572761),
        (b"AB", 77946764),
        (b"ABC", 117972958),
        (b"ABCD", 24194194),
        (b"ABCDE", 108480955),
        (b"\0", 10493030),
        (b"\0\0\0\0", 10493030),
        (b"\xff\xfe\xfd\xfc\xfb", 35800692),
        (b"AKO705JYL6AICHY9SFXGU0UEP", 102891836),
    ],
)
def test_hash_is_the_one_otp_25_answers(characters: bytes, expected: int) -> None:
    assert phash2_characters(characters) == expected


@given(key_hash=st.integers(0, (1 << 27) - 1), segments=st.integers(1, 3000))
def test_growing_by_one_segment_moves_keys_only_into_the_new_one(key_hash: int, segments: int) -> None:
    slots = 256 * segments
    before, after = slot_of(key_hash, slots), slot_of(key_hash, slots + 256)
    assert 0 <= before < slots
    assert after == before or slots <= after < slots + 256


def test_slots_are_whole_segments_and_never_fewer_than_keys() -> None:
    assert [slots_for(keys) for keys in (0, 1, 256, 257, 512, 513)] == [256, 256, 256, 512, 512, 768]


def test_two_queues_of_a_broker_that_stopped_cleanly() -> None:
    assert read_recovery_terms(stored("recovery-two-queues.dets"), PATH) == {
        "F0LI8Q2L5NQQX8KRJAO1AHU7J": RecoveryTerms(
            ((0, 31),), 53, 15, bytes.fromhex("7158de4389262a80dc8724a10f4a7d43"), 31, 111332
        ),
        "AKO705JYL6AICHY9SFXGU0UEP": RecoveryTerms(
            ((0, 15),), 23, 5, bytes.fromhex("c11269808a467f6195d7a7baee4abbc0"), 15, 46575
        ),
    }


def test_nine_queues_of_a_broker_that_stopped_cleanly() -> None:
    found = read_recovery_terms(stored("recovery-nine-queues.dets"), PATH)
    assert sorted((terms.next_seq_id, terms.persistent_count, terms.segments) for terms in found.values()) == [
        (6, 2, ((0, 2),)),
        (6, 6, ((0, 6),)),
        (7, 6, ((0, 6),)),
        (8, 0, ()),
        (9, 6, ((0, 6),)),
        (9, 8, ((0, 8),)),
        (12, 4, ((0, 4),)),
        (24, 19, ((0, 19),)),
        (41, 18, ((0, 18),)),
    ]


def test_broker_that_crashed_left_no_terms() -> None:
    assert read_recovery_terms(stored("recovery-after-crash.dets"), PATH) == {}


def test_table_that_grew_halfway_through_a_doubling_and_was_thinned_out() -> None:
    found = read_recovery_terms(stored("recovery-grown.dets.gz"), PATH)
    expected = {number for number in range(1, 521) if number % 3 != 1}
    assert {terms.next_seq_id for terms in found.values()} == expected
    for terms in found.values():
        assert terms.next_seq_id is not None
        assert terms.segments == tuple((number, 1) for number in range(1, terms.next_seq_id // 10 + 1))
        assert terms.persistent_ref is None


@pytest.mark.parametrize("name", ["recovery-after-crash.dets", "recovery-one-queue.dets"])
def test_what_the_broker_wrote_is_written_again_byte_for_byte(name: str) -> None:
    assert encode_recovery_terms(read_recovery_terms(stored(name), PATH)) == stored(name)


@pytest.mark.parametrize("count", [0, 1, 256, 257, 1300])
def test_queues_come_back_from_a_file_of_any_size(count: int) -> None:
    assert read_recovery_terms(encode_recovery_terms(queues(count)), PATH) == queues(count)


def test_properties_of_ours_among_the_others_are_refused() -> None:
    with pytest.raises(ValueError, match="next_seq_id"):
        encode_recovery_terms({"Q": attrs.evolve(NOTHING, others=(("next_seq_id", 5),))})


@pytest.mark.slow
def test_table_with_more_segments_than_one_part_holds() -> None:
    keys = [number.to_bytes(3, "big") for number in range(512 * 256 + 1)]
    data = encode_table(TableObject(key, number, b"\x83j") for number, key in enumerate(keys))
    assert struct.unpack_from(">2I", data, 20) == (512 * 256, 513 * 256)
    assert struct.unpack_from(">3I", data, 312) == (HEADER_BYTES, HEADER_BYTES + 2048, 0)


NUMBERS = st.none() | st.integers(0, 1 << 64)
TERMS = st.builds(
    RecoveryTerms,
    st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, 16384)), max_size=5).map(tuple),
    NUMBERS,
    NUMBERS,
    st.none() | st.binary(max_size=20),
    NUMBERS,
    NUMBERS,
)
NAMES = st.text(st.characters(max_codepoint=255), min_size=1, max_size=30)


@given(st.dictionaries(NAMES, TERMS, max_size=20))
@settings(max_examples=times(50))
def test_any_terms_come_back(expected: dict[str, RecoveryTerms]) -> None:
    assert read_recovery_terms(encode_recovery_terms(expected), PATH) == expected


def test_queue_without_a_reference_has_undefined_in_its_place() -> None:
    assert encode((Atom("persistent_ref"), Atom("undefined")))[1:] in encode_recovery_terms({"Q": NOTHING})


def test_properties_of_other_versions_are_kept() -> None:
    index: Term = (Atom("v2_index_state"), (2, {7: 11}))
    data = table_of((list(b"Q"), [index, (Atom("next_seq_id"), 5)]))
    found = read_recovery_terms(data, PATH)
    assert found == {"Q": RecoveryTerms((), 5, None, None, None, None, others=(("v2_index_state", (2, {7: 11})),))}
    assert read_recovery_terms(encode_recovery_terms(found), PATH) == found


def put(offset: int, *numbers: int) -> Callable[[bytearray], None]:
    """Overwrite u32s; in the header, with the MD5 made to fit."""

    def change(data: bytearray) -> None:
        struct.pack_into(f">{len(numbers)}I", data, offset, *numbers)
        data[168:184] = hashlib.md5(data[12:168]).digest()

    return change


def used_slots(data: bytes | bytearray) -> list[int]:
    """Offsets of the slots that have a collection, in the file's only segment."""
    return [at for at in range(FIRST_SEGMENT, BASE, 8) if any(data[at : at + 8])]


SLOT, OTHER_SLOT = used_slots(stored("recovery-two-queues.dets"))
SIZE, POSITION = struct.unpack_from(">2I", stored("recovery-two-queues.dets"), SLOT)
FREE_LISTS = struct.unpack_from(">I", stored("recovery-two-queues.dets"))[0]


@pytest.mark.parametrize(
    ("change", "offset", "reason"),
    [
        (put(4, 0x00ABCDEE), 4, "cookie"),
        (put(8, 0), 8, "not closed properly"),
        (put(16, 8), 16, "version 8"),
        (put(12, 2), 12, "not a set"),
        (put(28, 2), 12, "not a set"),
        (put(48, 0), 12, "not a set"),
        (lambda data: data.__setitem__(60, 1), 168, "MD5"),
        (lambda data: data.__delitem__(slice(-10, None)), 6249, "size it was closed with"),
        (lambda data: data.extend(b"\0" * 4), 6263, "size it was closed with"),
        (lambda data: data.__delitem__(slice(1000, None)), None, "too few"),
        (put(20, 0, 0), 24, "0 slots"),
        (put(20, 256, 257), 24, "257 slots"),
        (put(20, 1 << 31, 1 << 31), 24, "slots"),
        (put(20, 512), 20, "256 slots as 512 and 0"),
        (put(32, 3, 2), 32, "3 objects with 2 keys"),
        (put(32, 3, 3), 32, "2 objects where the header counts 3"),
        (put(0, 1 << 30), 0, "outside the file"),
        (put(0, 100), 0, "outside the file"),
        (put(312, 0), 312, "outside the file"),
        (put(312, 0xFFFFFFF0), 312, "outside the file"),
        (put(312, FREE_LISTS - 100), 312, "outside the file"),
        (put(316, FIRST_SEGMENT), 312, "more than the 1 parts"),
        (put(HEADER_BYTES, 0), HEADER_BYTES, "outside the file"),
        (put(HEADER_BYTES, HEADER_BYTES), HEADER_BYTES, "where others lie"),
        (put(HEADER_BYTES + 4, BASE), HEADER_BYTES, "more than the 1 segments"),
        (put(SLOT, 0), POSITION, "no collection of 0 bytes"),
        (put(SLOT, SIZE, 0), SLOT, "outside the file"),
        (put(SLOT, SIZE, FIRST_SEGMENT), SLOT, "where others lie"),
        (put(SLOT, SIZE, FREE_LISTS - SIZE + 1), SLOT, "outside the file"),
        (put(SLOT, 0xFFFFFFFF), SLOT, "outside the file"),
        (put(OTHER_SLOT, SIZE, POSITION), OTHER_SLOT, "where others lie"),
        (put(SLOT, SIZE - 1), POSITION, "no collection"),
        (put(SLOT, 8), POSITION, "no collection"),
        (put(POSITION, SIZE + 1), POSITION, "no collection"),
        (put(POSITION + 4, 0x03ABCDEF), POSITION, "no collection"),
        (put(POSITION + 8, 0), POSITION + 8, "an object of 0 bytes"),
        (put(POSITION + 8, 4), POSITION + 8, "an object of 4 bytes"),
        (put(POSITION + 8, SIZE - 7), POSITION + 8, "an object of"),
        (put(POSITION + 8, SIZE - 10), POSITION + 8 + SIZE - 10, "where 2 are left"),
        (put(POSITION + 12, 0), POSITION + 12, "first byte is not 131"),
    ],
)
def test_damage_is_named_with_file_and_offset(
    change: Callable[[bytearray], None], offset: int | None, reason: str
) -> None:
    data = bytearray(stored("recovery-two-queues.dets"))
    change(data)
    with pytest.raises(DataError, match=reason) as caught:
        read_recovery_terms(bytes(data), PATH)
    assert (caught.value.path, caught.value.offset) == (PATH, offset)


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        (Atom("q"), "a pair is missing"),
        ((list(b"Q"), [], []), "a pair is missing"),
        ((b"Q", []), "no directory's name"),
        (([], []), "no directory's name"),
        (([81, 256], []), "no directory's name"),
        (([True, True], []), "no directory's name"),
        ((list(b"Q"), Atom("none")), "a list is missing"),
        ((list(b"Q"), [Atom("next_seq_id")]), "a pair is missing"),
        ((list(b"Q"), [(b"next_seq_id", 1)]), "no atom"),
        ((list(b"Q"), [(Atom("next_seq_id"), 1)] * 2), "next_seq_id stands there twice"),
        ((list(b"Q"), [(Atom("next_seq_id"), -1)]), "a number"),
        ((list(b"Q"), [(Atom("next_seq_id"), True)]), "a number"),
        ((list(b"Q"), [(Atom("persistent_bytes"), Atom("undefined"))]), "a number"),
        ((list(b"Q"), [(Atom("persistent_ref"), list(b"ref"))]), "persistent_ref"),
        ((list(b"Q"), [(Atom("segments"), (1, 2))]), "a list is missing"),
        ((list(b"Q"), [(Atom("segments"), [1, 2])]), "a pair is missing"),
        ((list(b"Q"), [(Atom("segments"), [(1, b"2")])]), "a number"),
        ((list(b"R"), []), "'R' stands in slot"),
    ],
)
def test_objects_that_are_no_queues_terms_are_refused(held: Term, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_recovery_terms(table_of(held), PATH)


def test_queue_that_stands_there_twice_is_refused() -> None:
    with pytest.raises(DataError, match="'Q' stands there twice"):
        read_recovery_terms(table_of((list(b"Q"), []), (list(b"Q"), []), keys=(b"Q", b"Q")), PATH)


def test_compressed_object_is_refused_before_it_grows() -> None:
    plain = encode((list(b"Q"), [(Atom("zeros"), bytes(1 << 20))]))[1:]
    packed = b"\x83P" + struct.pack(">I", len(plain)) + zlib.compress(plain)
    with pytest.raises(DataError, match="more than 0"):
        read_recovery_terms(encode_table([TableObject(b"Q", phash2_characters(b"Q"), packed)]), PATH)


def test_object_with_bytes_behind_its_term_is_refused() -> None:
    hashed = TableObject(b"Q", phash2_characters(b"Q"), encode((list(b"Q"), [])) + b"\0")
    with pytest.raises(DataError, match="1 bytes after the term"):
        read_recovery_terms(encode_table([hashed]), PATH)


def test_small_file_that_claims_all_slots_there_can_be_is_refused_at_once() -> None:
    data = bytearray(encode_recovery_terms(queues(600)))
    put(20, 1 << 25, 1 << 25)(data)
    put(52, 0)(data)
    put(312, *[HEADER_BYTES] * 256)(data)
    struct.pack_into(">512I", data, HEADER_BYTES, *range(FIRST_SEGMENT, FIRST_SEGMENT + 512))
    with pytest.raises(DataError, match="where others lie") as caught:
        read_recovery_terms(bytes(data), PATH)
    assert caught.value.offset == 316


@given(data=st.data())
@settings(max_examples=times(300))
def test_flipped_and_lost_bytes_never_surprise(data: st.DataObject) -> None:
    damaged = bytearray(stored("recovery-nine-queues.dets"))
    for _ in range(data.draw(st.integers(1, 3))):
        interesting = st.integers(0, HEADER_BYTES + 8) | st.sampled_from(used_slots(damaged)) | st.integers(BASE, 7700)
        damaged[data.draw(interesting)] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        damaged[168:184] = hashlib.md5(damaged[12:168]).digest()
    del damaged[data.draw(st.just(len(damaged)) | st.integers(0, len(damaged))) :]
    with contextlib.suppress(DataError):
        assert len(read_recovery_terms(bytes(damaged), PATH)) == 9


@pytest.mark.parametrize("name", ["recovery-nine-queues.dets", "recovery-grown.dets.gz"])
def test_what_survives_without_slots_is_all_that_there_is(name: str) -> None:
    """No deleted term survives."""
    data = stored(name)
    expected = sorted(one.term for one in read_table(data, PATH).objects)
    assert sorted(surviving_terms(data, PATH)) == expected
    assert sorted(surviving_terms(data[:11] + b"\0" + data[12:-8], PATH)) == expected


@given(data=st.data())
@settings(max_examples=times(300))
def test_what_survives_damage_is_at_most_what_there_was(data: st.DataObject) -> None:
    whole = stored("recovery-nine-queues.dets")
    terms = set(surviving_terms(whole, PATH))
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, HEADER_BYTES + 8) | st.integers(BASE, 7700))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.just(len(damaged)) | st.integers(0, len(damaged))) :]
    with contextlib.suppress(DataError):
        assert len([*surviving_terms(bytes(damaged), PATH)]) <= 2 * len(terms)


OPEN_CHANGE_AND_EMPTY = r"""
    [File, Copy, Count] = init:get_plain_arguments(),
    Open = fun(Repair) ->
        {ok, t} = dets:open_file(t, [{file, File}, {ram_file, true}, {auto_save, infinity}, {repair, Repair}])
    end,
    All = fun() ->
        Objects = lists:sort(dets:traverse(t, fun(Object) -> {continue, Object} end)),
        true = length(Objects) =:= dets:info(t, size),
        true = lists:all(fun({Key, _} = Object) -> [Object] =:= dets:lookup(t, Key) end, Objects),
        Objects
    end,
    Reopened = fun(Repair) -> Before = All(), ok = dets:close(t), Open(Repair), Before = All() end,
    Open(false),
    Written = All(),
    Hashes = [erlang:phash2(Key) || {Key, _} <- Written],
    Reopened(false),
    [ok = dets:insert(t, {"NEW" ++ integer_to_list(N), [{next_seq_id, N}]})
        || N <- lists:seq(1, list_to_integer(Count))],
    Reopened(false),
    [ok = dets:delete(t, Key) || {{Key, _}, N} <- lists:zip(Written, lists:seq(1, length(Written))), N rem 2 =:= 0],
    Left = Reopened(false),
    ok = dets:close(t),
    {ok, _} = file:copy(File, Copy),
    Open(force),
    Left = All(),
    ok = dets:delete_all_objects(t),
    ok = dets:close(t),
    io:format("~s~n", [base64:encode(term_to_binary({Written, Hashes, Left}))]),
    halt().
"""


def erlang(script: str, *arguments: str) -> str:
    """What ``erl`` prints, warnings included; without Erlang the test is skipped, or fails where it must run."""
    executable = shutil.which("erl")
    if executable is None:
        if os.environ.get("WARREN_REQUIRE_BROKER"):
            pytest.fail("Erlang is not installed")
        pytest.skip("Erlang is not installed")
    # With DETS_DEBUG, DETS checks every position it uses against a map of its own.
    environment = os.environ | {"DETS_DEBUG": "true", "ERL_CRASH_DUMP_BYTES": "0"}
    command = [executable, "-noshell", "-kernel", "logger_level", "warning", "-eval", script, "-extra", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 5, 256, 257, 1300])
def test_real_dets_opens_changes_compacts_and_empties_what_was_written(tmp_path: Path, count: int) -> None:
    there = queues(count)
    file, copy = tmp_path / "recovery.dets", tmp_path / "changed.dets"
    file.write_bytes(encode_recovery_terms(there))
    said, answer = erlang(OPEN_CHANGE_AND_EMPTY, str(file), str(copy), str(count)).splitlines()
    assert said == f'dets: file "{file}" is now compacted ...'  # where that fails, it goes on with a repair and says so

    lists: Any = decode(base64.b64decode(answer))
    written, hashes, left = lists
    names = sorted(there)
    assert ["".join(map(chr, key)) for key, _ in written] == names
    assert hashes == [phash2_characters(name.encode()) for name in names]
    for key, properties in written:
        terms = there["".join(map(chr, key))]
        assert properties == [
            ("segments", list(terms.segments)),
            ("next_seq_id", terms.next_seq_id),
            ("next_deliver_seq_id", terms.next_deliver_seq_id),
            ("persistent_ref", terms.persistent_ref),
            ("persistent_count", terms.persistent_count),
            ("persistent_bytes", terms.persistent_bytes),
        ]
    changed = {name: there[name] for name in names[::2]}
    changed |= {f"NEW{number}": RecoveryTerms((), number, None, None, None, None) for number in range(1, count + 1)}
    assert len(left) == len(changed)
    assert read_recovery_terms(copy.read_bytes(), str(copy)) == changed
    assert file.read_bytes() == stored("recovery-after-crash.dets")


CHANGE_AND_LEAVE_OPEN = r"""
    [File, Copy, Repaired, Count] = init:get_plain_arguments(),
    {ok, t} = dets:open_file(t, [{file, File}, {auto_save, infinity}]),
    Numbers = lists:seq(1, list_to_integer(Count)),
    Put = fun(N, Size) -> ok = dets:insert(t, {integer_to_binary(N), lists:seq(1, Size)}) end,
    [Put(N, N rem 30) || N <- Numbers],
    [Put(N, N rem 70) || N <- Numbers, N rem 3 =:= 0],
    [ok = dets:delete(t, integer_to_binary(N)) || N <- Numbers, N rem 5 =:= 0],
    [Put(N, 3) || N <- Numbers, N rem 10 =:= 0],
    _ = dets:match_object(t, '_'),
    {ok, _} = file:copy(File, Copy),
    {ok, _} = file:copy(File, Repaired),
    {ok, r} = dets:open_file(r, [{file, Repaired}]),
    io:format("~s~n", [base64:encode(term_to_binary(dets:match_object(r, '_')))]),
    halt().
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 40, 300, 3000])
def test_what_survives_in_a_table_left_open_is_what_the_real_repair_finds(tmp_path: Path, count: int) -> None:
    copy = tmp_path / "left-open.dets"
    said, answer = erlang(
        CHANGE_AND_LEAVE_OPEN, str(tmp_path / "open.dets"), str(copy), str(tmp_path / "repaired.dets"), str(count)
    ).splitlines()
    assert "not properly closed, repairing" in said
    repaired: Any = decode(base64.b64decode(answer))
    found = [decode(term) for term in surviving_terms(copy.read_bytes(), str(copy))]
    assert sorted(map(repr, found)) == sorted(map(repr, repaired))
    with pytest.raises(DataError, match="not closed properly"):
        read_table(copy.read_bytes(), str(copy))
