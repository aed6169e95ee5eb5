"""From an entry of a quorum queue's log to its command: real brokers' entries, those of later versions, damaged ones.

An :class:`EntryDecoder`, which reads entries by the shapes of earlier ones, must give what decoding in full gives.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import times
from tests.support.quorum_commands import (
    NO_REPLY,
    NONE,
    UNDEFINED,
    basic_message,
    called,
    content,
    entries_of,
    notify,
    p_basic,
    pid,
    snapshot_states,
    usr,
)
from tests.support.rabbitmq_golden import QUORUM, archives, name_of
from warren.queue_index.message.message_format import decode_message
from warren.salvage.quorum.fifo import decoding, entry_shapes
from warren.salvage.quorum.fifo.commands import (
    AssignDeferred,
    Cancel,
    Checkout,
    Command,
    ConsumerTimeout,
    Credit,
    DeadLetterCheckout,
    DeadLetterSettle,
    Decoded,
    Discard,
    Down,
    Enqueue,
    MachineVersion,
    Modify,
    NewCluster,
    NodeDown,
    NodeUp,
    Nothing,
    Purge,
    PurgeNodes,
    RegisterEnqueuer,
    Requeue,
    RetryDelayed,
    Return,
    Settle,
    Unknown,
    UpdateConfig,
)
from warren.salvage.quorum.fifo.decoding import EntryDecoder, decode_entry
from warren.storage.erlang_terms import Atom, ImproperList, Opaque, Term, decode, encode, pid_key
from warren.storage.errors import TermError

TS = 1_795_250_432_574
ME, YOU = pid(611), pid(612)
MY_KEY, YOUR_KEY = pid_key(ME.encoded), pid_key(YOU.encoded)
CONSUMER: Term = (b"ctag", ME)
KNOWN = (b"ctag", MY_KEY)


@pytest.fixture(params=archives(QUORUM), ids=name_of)
def archive(request: pytest.FixtureRequest) -> Path:
    return request.param


# ── what a broker wrote ──────────────────────────────────────────────────────────────────────────────────────────────


IN_FULL = 7
"""One entry in this many is decoded in full, too."""


def test_every_entry_of_a_broker_is_a_known_command(archive: Path) -> None:
    decoder = EntryDecoder()
    entries = entries_of(archive)
    assert entries
    for number, entry in enumerate(entries):
        decoded = decoder.decode(entry)
        assert not isinstance(decoded.command, Unknown)
        if not number % IN_FULL:
            assert decode_entry(entry) == decoded


def test_the_bodies_are_those_that_were_published(archive: Path) -> None:
    decoder = EntryDecoder()
    sizes: dict[str, int] = {}
    for entry in entries_of(archive):
        command = decoder.decode(entry).command
        if isinstance(command, Enqueue | Requeue):
            body = command.body
            message = decode_message(b"\x83" + entry[body.start : body.end])
            assert len(message.body) == body.size
            sizes[hashlib.sha256(message.body).hexdigest()] = body.size
    for size, digest in delivered_rows(archive):
        assert sizes[digest] == size


def delivered_rows(archive: Path) -> Iterator[tuple[int, str]]:
    """Size and digest of every message that the manifest lists one by one and that a broker delivered."""
    manifest: dict[str, Any] = json.loads(archive.with_name(archive.name.replace(".tar.gz", ".json")).read_text())
    for queue in manifest["queues"]:
        for _, size, digest, *_ in queue["after_restart"].get("rows", ()):
            yield size, digest


def test_the_states_of_a_brokers_snapshots_are_read_and_written_again(archive: Path) -> None:
    for state in snapshot_states(archive):
        term = decode(state)
        assert isinstance(term, tuple)
        assert term[0] == "rabbit_fifo"
        assert decode(encode(term)) == term


# ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────────────

MODE = Atom("simple_prefetch")
PRIORITY: Term = {Atom("args"): [(b"x-priority", Atom("signedint"), -3)]}
COMMANDS: dict[str, tuple[Term, Command]] = {
    "register": ((Atom("register_enqueuer"), ME), RegisterEnqueuer(MY_KEY)),
    "get": (
        (Atom("checkout"), CONSUMER, (Atom("dequeue"), Atom("unsettled")), {}),
        Checkout(KNOWN, "get", False, 1, "simple_prefetch", 0),
    ),
    "get without acks": (
        (Atom("checkout"), CONSUMER, (Atom("dequeue"), Atom("settled")), {}),
        Checkout(KNOWN, "get", True, 1, "simple_prefetch", 0),
    ),
    "consume": (
        (Atom("checkout"), CONSUMER, (Atom("auto"), 7, MODE), PRIORITY),
        Checkout(KNOWN, "auto", False, 7, "simple_prefetch", -3),
    ),
    "consume with credit": (
        (Atom("checkout"), CONSUMER, (Atom("once"), 0, Atom("credited")), {Atom("ack"): True}),
        Checkout(KNOWN, "once", False, 0, "credited", 0),
    ),
    "consume, 4.0": (
        (
            Atom("checkout"),
            CONSUMER,
            (Atom("auto"), (MODE, 7)),
            {Atom("priority"): 4, Atom("prefetch"): 7, Atom("timeout"): 9},
        ),
        Checkout(KNOWN, "auto", False, 7, "simple_prefetch", 4, True, timeout_ms=9, prefetch=7),
    ),
    "consume with credit, 4.0": (
        (Atom("checkout"), CONSUMER, (Atom("auto"), (Atom("credited"), 5)), {}),
        Checkout(KNOWN, "auto", False, 0, "credited", 0, True, 5),
    ),
    "cancel": ((Atom("checkout"), CONSUMER, Atom("cancel"), {}), Cancel(KNOWN)),
    "remove": ((Atom("checkout"), CONSUMER, Atom("remove"), {}), Cancel(KNOWN, True)),
    "settle": ((Atom("settle"), CONSUMER, [0, 1, 2]), Settle(KNOWN, [0, 1, 2])),
    "settle of many": ((Atom("settle"), CONSUMER, [3, 300, 70_000]), Settle(KNOWN, [3, 300, 70_000])),
    "settle of none": ((Atom("settle"), CONSUMER, []), Settle(KNOWN, [])),
    "settle, 4.0": ((Atom("settle"), 4711, [256]), Settle(4711, [256])),
    "discard": ((Atom("discard"), CONSUMER, [9]), Discard(KNOWN, [9])),
    "return": ((Atom("return"), CONSUMER, [9, 1 << 40]), Return(KNOWN, [9, 1 << 40])),
    "modify": (
        (Atom("modify"), 12, [1], True, False, {b"x-opt-why": (Atom("utf8"), b"")}),
        Modify(12, [1], True, False, {b"x-opt-why": (Atom("utf8"), b"")}),
    ),
    "credit": ((Atom("credit"), CONSUMER, 10, 4, True), Credit(KNOWN, 10, 4, True)),
    "purge": ((Atom("purge"),), Purge()),
    "down": ((Atom("down"), YOU, Atom("noconnection")), Down(YOUR_KEY, "noconnection")),
    "down for a long reason": ((Atom("down"), YOU, (Atom("shutdown"), b"")), Down(YOUR_KEY, "other")),
    "nodeup": ((Atom("nodeup"), Atom("n@h")), NodeUp("n@h")),
    "nodedown": ((Atom("nodedown"), Atom("n@h")), NodeDown("n@h")),
    "purge_nodes": ((Atom("purge_nodes"), [Atom("n@h"), Atom("m@h")]), PurgeNodes(("n@h", "m@h"))),
    "update_config": ((Atom("update_config"), {Atom("max_length"): 5}), UpdateConfig({Atom("max_length"): 5})),
    "machine_version": ((Atom("machine_version"), 2, 3), MachineVersion(3)),
    "garbage_collection": ((Atom("garbage_collection"),), Nothing("garbage_collection", True)),
    "expiry": ((Atom("timeout"), Atom("expire_msgs")), Nothing("timeout", True)),
    "expiry, 4.3": ((Atom("timeout"), (Atom("expire_msgs"), Atom("shallow"))), Nothing("timeout", True)),
    "a consumer's time is over": ((Atom("timeout"), Atom("evaluate_consumer_timeout")), ConsumerTimeout(None)),
    "a consumer's node is away": (
        (Atom("timeout"), (Atom("consumer_disconnected_timeout"), 77)),
        ConsumerTimeout(77),
    ),
    "dead letters are settled": ((Atom("dlx"), (Atom("settle"), [1, 2])), DeadLetterSettle([1, 2])),
    "dead letters are taken": ((Atom("dlx"), (Atom("checkout"), YOU, 32)), DeadLetterCheckout(YOUR_KEY, 32)),
    "delayed ones again": ((Atom("delayed_cmd"), (Atom("retry"), Atom("all"))), RetryDelayed(None)),
    "some delayed ones again": ((Atom("delayed_cmd"), (Atom("retry"), 5)), RetryDelayed(5)),
    "deferred ones": (
        (Atom("delayed_cmd"), (Atom("assign_deferred"), 3, [b"token"])),
        AssignDeferred(3, [b"token"]),
    ),
    "what is not known": ((Atom("teleport"), 1), Unknown("teleport")),
    "a name that is not known": (Atom("teleport"), Unknown("teleport")),
    "a timeout that is not known": ((Atom("timeout"), Atom("tea")), Unknown("timeout tea")),
}


@pytest.mark.parametrize(("term", "command"), COMMANDS.values(), ids=COMMANDS)
def test_a_command_is_read_as_its_version_wrote_it(term: Term, command: Command) -> None:
    assert decode_entry(usr(term)) == (TS, command)
    assert decode_entry(called(term, YOU)) == (TS, command)


MEMBER: Term = (Atom("q"), Atom("n@h"))
ENTRIES: dict[str, tuple[Term, Decoded]] = {
    "the first": (UNDEFINED, Decoded(0, Nothing("undefined", False))),
    "a leader": ((Atom("noop"), {Atom("ts"): TS}, 3), Decoded(TS, MachineVersion(3))),
    "a version": ((Atom("machine_version"), 3, 4), Decoded(0, MachineVersion(4))),
    "members": (
        (Atom("$ra_cluster_change"), {Atom("ts"): TS}, {MEMBER: {Atom("next_index"): 1}}, NO_REPLY),
        Decoded(TS, NewCluster((("q", "n@h"),))),
    ),
    "members as a list": (
        (Atom("$ra_cluster_change"), {}, [MEMBER], NO_REPLY),
        Decoded(0, NewCluster((("q", "n@h"),))),
    ),
    "a join": ((Atom("$ra_join"), {}, MEMBER, NO_REPLY), Decoded(0, Nothing("$ra_join", False))),
    "another one": ((Atom("$ra_beyond"), 1), Decoded(0, Unknown("$ra_beyond"))),
}


@pytest.mark.parametrize(("term", "decoded"), ENTRIES.values(), ids=ENTRIES)
def test_an_entry_of_the_log_itself(term: Term, decoded: Decoded) -> None:
    assert decode_entry(encode(term)) == decoded


NO_ENTRIES: dict[str, bytes] = {
    "nothing": b"",
    "a number": encode(1),
    "a tuple without a name": encode((1, 2)),
    "a command without a time": encode((Atom("$usr"), {}, (Atom("purge"),), NO_REPLY)),
    "a time before 1970": usr((Atom("purge"),), ts=-1),
    "a command that is a number": usr(1),
    "a leader without a version": encode((Atom("noop"), {Atom("ts"): TS}, True)),
    "a settle without ids": usr((Atom("settle"), CONSUMER)),
    "a settle of a negative id": usr((Atom("settle"), CONSUMER, [-1])),
    "a settle of ids that are no list": usr((Atom("settle"), CONSUMER, 1)),
    "a settle of nobody": usr((Atom("settle"), ME, [1])),
    "a consumer without a pid": usr((Atom("settle"), (b"ctag", 1), [1])),
    "a consumer of another kind": usr((Atom("checkout"), CONSUMER, (Atom("always"), 1, MODE), {})),
    "an enqueue of no message": usr((Atom("enqueue"), ME, 1, Atom("hello"))),
    "an enqueue without a number": usr((Atom("enqueue"), ME, Atom("one"), basic_message([b""]))),
    "a payload that is no payload": usr((Atom("enqueue"), ME, 1, basic_message([Atom("x")]))),
    "a message of a protocol that is not known": usr((Atom("enqueue"), ME, 1, (Atom("mc"), Atom("mc_x"), 1, {}))),
    "members that are none": encode((Atom("$ra_cluster_change"), {}, {Atom("q"): 1}, NO_REPLY)),
    "no members": encode((Atom("$ra_cluster_change"), {}, {}, NO_REPLY)),
}


@pytest.mark.parametrize("entry", NO_ENTRIES.values(), ids=NO_ENTRIES)
def test_what_is_no_entry_is_refused_with_a_reason(entry: bytes) -> None:
    for decode_it in (decode_entry, EntryDecoder().decode):
        with pytest.raises(TermError, match=r"\w+ \w+"):
            decode_it(entry)


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def container(data: Term, protocol: str = "mc_amqpl", **annotations: Term) -> Term:
    routing: dict[Term, Term] = {Atom("rk"): [b"orders"], Atom("x"): b""}
    return (Atom("mc"), Atom(protocol), data, routing | {Atom(name): value for name, value in annotations.items()})


EXPIRES = p_basic(expiration=b"60000")
MQTT: Term = (Atom("mqtt_msg"), False, 1, b"a/b", False, UNDEFINED, [b"ab", [b"c"]], {Atom("Content-Type"): b"x"}, 5)
SECTIONS: Term = [(Atom("v1_0.data"), b"abc"), (Atom("v1_0.amqp_sequence"), [1]), (Atom("v1_0.data"), [b"d", b"e"])]
BODIES: dict[str, tuple[Term, int, int | None, int | None, int, int]] = {
    # size, time to live, priority, delivery count, size of the metadata
    "as published": (basic_message([b"abc"]), 3, None, None, 0, 3),
    "empty": (basic_message([]), 0, None, None, 0, 3),
    "two fragments": (basic_message([b"defg", b"abc"]), 7, None, None, 0, 3),
    "fragments within": (basic_message([[b"d", 1], ImproperList((b"ab",), b"c")]), 5, None, None, 0, 3),
    "expiring": (basic_message([b"abc"], EXPIRES, b"\x11\0"), 3, 60_000, None, 0, 2),
    "expiring at once": (basic_message([b"abc"], p_basic(expiration=b"0")), 3, 0, None, 0, 3),
    "an expiration that is none": (basic_message([b"abc"], p_basic(expiration=b"soon")), 3, None, None, 0, 3),
    "dead-lettered": (basic_message([b"abc"], p_basic(headers=[1, 2]), NONE), 3, None, None, 0, 200),
    "with a priority": (basic_message([b"abc"], p_basic(priority=9), NONE), 3, None, 9, 0, 0),
    "a container": (container(content([b"abc"])), 3, None, None, 0, 3),
    "a container that expires": (container(content([b"abc"]), ttl=5, p=7, delivery_count=2), 3, 5, 7, 2, 3),
    "AMQP 1.0 of 3.13": (container((Atom("msg"), *[[]] * 5, SECTIONS, []), "mc_amqp"), 5, None, None, 0, 0),
    "AMQP 1.0's value": (
        container((Atom("msg"), *[[]] * 5, (Atom("v1_0.amqp_value"), 1), []), "mc_amqp"),
        0, None, None, 0, 0,
    ),
    "AMQP 1.0": (container((Atom("v1"), [], b"SwSu", 0, 1, 2, 3), "mc_amqp"), 4, None, None, 0, 0),
    "AMQP 1.0, annotated": (container((Atom("v1"), [1], b"SwSu", 0, 1, 2, 3), "mc_amqp"), 4, None, None, 0, 100),
    "MQTT": (container(MQTT, "mc_mqtt"), 3, None, None, 0, 4),
}  # fmt: skip


@pytest.mark.parametrize(("message", "expected"), [(body[0], body[1:]) for body in BODIES.values()], ids=BODIES)
def test_what_the_queue_looks_at_in_a_message(message: Term, expected: tuple[int | None, ...]) -> None:
    entry = usr((Atom("enqueue"), ME, 5, message))
    ts, found = decode_entry(entry)
    assert isinstance(found, Enqueue)
    assert (ts, found.pid, found.seq) == (TS, MY_KEY, 5)
    start, end, *rest, delivery_time_ms = found.body
    assert tuple(rest) == expected
    assert delivery_time_ms == 0
    assert b"\x83" + entry[start:end] == encode(message)


def test_each_message_has_its_own_delivery_time() -> None:
    times, decoder = [TS + number for number in range(5)], EntryDecoder()
    entries = [usr((Atom("enqueue"), ME, 5, container(content([b"abc"]), dt=time))) for time in times]
    decoded = [decoder.decode(entry).command for entry in entries]
    assert [command.body.delivery_time_ms for command in decoded if isinstance(command, Enqueue)] == times


def test_a_dead_lettered_message_has_no_publisher() -> None:
    _, found = decode_entry(usr((Atom("enqueue"), UNDEFINED, UNDEFINED, basic_message([b"abc"]))))
    assert isinstance(found, Enqueue)
    assert (found.pid, found.seq, found.body.size) == (None, None, 3)


def test_a_short_enqueue_has_its_publisher_in_the_reply_mode_and_says_its_size() -> None:
    message = container(content([b"abc"]))
    entry = usr((Atom("e"), 7, message, (40, 300)), notify(3, YOU))
    _, found = decode_entry(entry)
    assert isinstance(found, Enqueue)
    assert (found.pid, found.seq) == (YOUR_KEY, 7)
    assert (found.body.size, found.body.metadata_size) == (300, 40)
    assert b"\x83" + entry[found.body.start : found.body.end] == encode(message)
    _, untracked = decode_entry(usr((Atom("e"), UNDEFINED, message, (40, 300))))
    assert isinstance(untracked, Enqueue)
    assert (untracked.pid, untracked.seq) == (None, None)


def test_a_requeued_message_is_in_the_log_again() -> None:
    header: Term = ImproperList((3,), TS + 60_000)
    message = basic_message([b"abc"])
    entry = usr((Atom("requeue"), CONSUMER, 4, 1234, header, message), notify(1, ME))
    _, found = decode_entry(entry)
    assert isinstance(found, Requeue)
    assert found[:4] == (KNOWN, 4, 1234, header)
    assert b"\x83" + entry[found.body.start : found.body.end] == encode(message)


# ── by shapes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def refuse(data: bytes) -> Decoded:
    pytest.fail(f"decoded in full: {data!r}")


def test_the_entries_of_one_publisher_are_decoded_in_full_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(number: int, key: bytes = b"orders", publisher: Opaque = ME) -> bytes:
        message = basic_message([bytes(number)], encoded=b"\x80\0" + bytes(number % 5), key=key)
        return usr((Atom("enqueue"), publisher, number, message), notify(number + 1, publisher), TS + number)

    later = [entry(500), entry(501), entry(70_000, b"a longer key"), entry(300, b"k", YOU), entry(301, b"", YOU)]
    expected = [decode_entry(one) for one in later]
    decoder = EntryDecoder()
    decoder.decode(entry(400))
    monkeypatch.setattr(decoding, "decode_entry", refuse)
    assert [decoder.decode(one) for one in later] == expected


@pytest.mark.parametrize("name", ["settle", "discard", "return"])
@pytest.mark.parametrize("consumers", [(CONSUMER, (b"another", YOU)), (4711, 70_000)], ids=["by tag", "by number"])
def test_settles_are_decoded_in_full_once(
    monkeypatch: pytest.MonkeyPatch, name: str, consumers: tuple[Term, Term]
) -> None:
    ids = [[1], [300], [2, 3], [300, 5, 70_000], []]
    later = [usr((Atom(name), one, msg_ids), notify(3, ME), TS) for one in consumers for msg_ids in ids]
    expected = [decode_entry(one) for one in later]
    decoder = EntryDecoder()
    decoder.decode(usr((Atom(name), consumers[0], [0]), notify(4, ME)))
    monkeypatch.setattr(decoding, "decode_entry", refuse)
    assert [decoder.decode(one) for one in later] == expected


def test_gets_are_decoded_in_full_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(tag: bytes, process: Opaque, prefetch: int = 0) -> bytes:
        meta: Term = {Atom("prefetch"): prefetch, Atom("username"): b"guest"}
        return called((Atom("checkout"), (tag, process), (Atom("dequeue"), Atom("unsettled")), meta), process)

    later = [get(b"2", ME), get(b"10", ME), get(b"11", YOU)]
    expected = [decode_entry(one) for one in later]
    decoder = EntryDecoder()
    decoder.decode(get(b"1", ME))
    assert decoder.decode(get(b"1", ME, 3)) == decode_entry(get(b"1", ME, 3)), "its meta counts"
    monkeypatch.setattr(decoding, "decode_entry", refuse)
    assert [decoder.decode(one) for one in later] == expected


def test_messages_of_one_shape_that_expire_at_different_times() -> None:
    messages = [basic_message([b"abc"], p_basic(expiration=ttl)) for ttl in (b"10", b"20", b"10")]
    messages += [container(content([b"abc"]), ttl=ttl, p=p) for ttl in (10, 20) for p in (1, 2)]
    entries = [usr((Atom("enqueue"), ME, seq, message), notify(1, ME)) for seq, message in enumerate(messages)] * 2
    decoder = EntryDecoder()
    assert [decoder.decode(one) for one in entries] == [decode_entry(one) for one in entries]


def test_entries_of_many_shapes_and_processes_take_no_more_memory_than_allowed() -> None:
    decoder = EntryDecoder()
    for number in range(100):
        publisher = pid(number)
        entry = usr((Atom("enqueue"), publisher, 300, basic_message([b"x"] * (number % 20))), notify(300, publisher))
        for _ in range(3):
            assert decoder.decode(entry) == decode_entry(entry)
    (shapes,) = decoder._shapes.values()
    assert len(shapes) <= decoding.MAX_SHAPES


BINARIES = st.binary(max_size=12)
NUMBERS = st.sampled_from([0, 1, 255, 256, 300, 1 << 27, 1 << 31, 1 << 40, 1 << 60])
PIDS = st.builds(
    pid, st.integers(0, 3), st.integers(0, 1), st.sampled_from([b"d\0\3n@h", b"w\3n@h", b"w\4n@hh"]), st.integers(0, 2)
)
PROPERTIES = st.sampled_from([NONE, p_basic(), p_basic(b"10"), p_basic(b"200", [(b"k", Atom("long"), 1)], 3)])
CONTENTS = st.builds(content, st.lists(BINARIES, max_size=2), PROPERTIES, BINARIES | st.just(NONE))
ANNOTATIONS = st.fixed_dictionaries(
    {Atom("rk"): st.lists(BINARIES, max_size=2)},
    optional={Atom(name): NUMBERS for name in ("ttl", "p", "delivery_count", "rts")},
)
MESSAGES = st.builds(basic_message, st.lists(BINARIES, max_size=2), PROPERTIES, BINARIES, BINARIES) | st.builds(
    lambda data, annotations: (Atom("mc"), Atom("mc_amqpl"), data, annotations), CONTENTS, ANNOTATIONS
)
CONSUMERS = st.tuples(BINARIES, PIDS) | NUMBERS
SPECS = st.sampled_from([(Atom("dequeue"), Atom("settled")), (Atom("auto"), 3, MODE), (Atom("auto"), (MODE, 3)), MODE])
METAS = st.fixed_dictionaries({}, optional={Atom(name): NUMBERS for name in ("priority", "prefetch", "timeout")})
GENERATED = st.builds(
    usr,
    st.tuples(st.just(Atom("enqueue")), PIDS | st.just(UNDEFINED), NUMBERS | st.just(UNDEFINED), MESSAGES)
    | st.tuples(st.just(Atom("e")), NUMBERS, MESSAGES, st.tuples(NUMBERS, NUMBERS))
    | st.tuples(st.sampled_from([Atom("settle"), Atom("return")]), CONSUMERS, st.lists(NUMBERS, max_size=3))
    | st.tuples(st.just(Atom("checkout")), st.tuples(BINARIES, PIDS), SPECS, METAS),
    st.builds(notify, NUMBERS, PIDS) | st.just(NO_REPLY),
    NUMBERS,
)


def outcome(decode_it: Any, entry: bytes) -> Decoded | str:
    try:
        return decode_it(entry)
    except TermError:
        return "refused"


@settings(max_examples=times(60))
@given(st.lists(GENERATED, min_size=2, max_size=6))
def test_shapes_say_what_decoding_in_full_says(entries: list[bytes]) -> None:
    decoder = EntryDecoder()
    for entry in entries * (entry_shapes.LAYOUT_TIMES + 2):
        assert outcome(decoder.decode, entry) == outcome(decode_entry, entry)


@settings(max_examples=times(60))
@given(st.lists(GENERATED, min_size=1, max_size=2), st.data())
def test_a_damaged_entry_is_refused_or_means_the_same_by_its_shape(entries: list[bytes], data: st.DataObject) -> None:
    decoder = EntryDecoder()
    for entry in entries * data.draw(st.sampled_from([2, entry_shapes.LAYOUT_TIMES + 3])):
        outcome(decoder.decode, entry)
    for _ in range(4):
        damaged = bytearray(data.draw(st.sampled_from(entries)))
        for _ in range(data.draw(st.integers(1, 2))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        whole = bytes(damaged[: data.draw(st.integers(len(damaged) // 2, len(damaged)))])
        for entry in (bytes(damaged), whole):
            assert outcome(decoder.decode, entry) == outcome(decode_entry, entry)


def test_each_damaged_byte_of_a_brokers_entry_is_refused_or_read(archive: Path) -> None:
    """An entry of each kind; the last byte is among those that are changed."""
    decoder = EntryDecoder()
    by_kind = {type(decoder.decode(entry).command): entry for entry in entries_of(archive) if len(entry) < 600}
    for entry in by_kind.values():
        for _ in range(entry_shapes.LAYOUT_TIMES + 3):  # as often as it takes to expect its layout
            decoder.decode(entry)
    for entry in by_kind.values():
        for at in range(len(entry), 0, -7):
            damaged = entry[: at - 1] + bytes([entry[at - 1] ^ (1 << at % 8)]) + entry[at:]
            for one in (damaged, entry[: at - 1]):
                assert outcome(decoder.decode, one) == outcome(decode_entry, one)


@pytest.mark.slow
@pytest.mark.parametrize("msg_ids", [[1, 2, 3], [300, 2, 70_000]])
def test_where_a_layout_is_expected_every_byte_counts(msg_ids: list[int]) -> None:
    """Change each byte in each bit, after enough entries of one length that they are compared in one go."""
    entries = [
        usr((Atom("settle"), (b"tag", pid(1)), msg_ids), NO_REPLY, 1_700_000_000_000),
        usr((Atom("enqueue"), pid(1), 7, basic_message([b"a body"])), notify(7, pid(1)), 1_700_000_000_000),
    ]
    decoder = EntryDecoder()
    for entry in entries * (entry_shapes.LAYOUT_TIMES + 3):
        decoder.decode(entry)
    for entry in entries:
        for at in range(len(entry)):
            for bit in range(8):
                damaged = entry[:at] + bytes([entry[at] ^ 1 << bit]) + entry[at + 1 :]
                assert outcome(decoder.decode, damaged) == outcome(decode_entry, damaged), (at, bit)
