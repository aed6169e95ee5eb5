"""``warren shovel`` without a broker: letters, the pump, copies and moves between directories, kills, errors."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.support.cli_tools import warren
from tests.support.shovel_tools import (
    ACK,
    SAVE,
    SYNC,
    RandomIntake,
    complaint,
    digest,
    exported,
    fill,
    numbers,
    shovel,
    shovel_and_die,
)
from warren import cli, engine
from warren import open as open_node
from warren.queue_index.message.message_format import Envelope, encode_message
from warren.queue_index.properties import Properties, decode_properties, encode_properties
from warren.salvage.archives.archive import unpack
from warren.shovel.address import Address
from warren.shovel.broker_source import _Acks
from warren.shovel.errors import RefusedError, ShovelError
from warren.shovel.letter import (
    ORIGINAL_EXCHANGE,
    Letter,
    carbon_copies,
    expiration_ms,
    from_term,
    with_original_exchange,
)
from warren.shovel.places import HeldLetters, Outcome
from warren.shovel.progress import Progress, Reach, default_path
from warren.shovel.pump import WINDOW_BYTES, Moved, Pump
from warren.storage.errors import DataError
from warren.storage.filesystem import RealFileSystem

GOLDEN = Path(__file__).parent / "golden"
MIXED = GOLDEN / "01-clean-small-mixed.tar.gz"
PRIORITIES = GOLDEN / "11-clean-priority-queue.tar.gz"

Json = dict[str, Any]


# ── letters ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def term_of(properties: bytes, body: bytes = b"body", *, keys: tuple[bytes, ...] = (b"k",)) -> bytes:
    return encode_message(Envelope(b"/", b"ex", keys, properties, True), bytes(16), body)


@pytest.mark.parametrize("body", [b"", b"short", bytes(300_000)])
@pytest.mark.parametrize("keys", [(b"k",), (b"k", b"cc")])
def test_properties_travel_as_the_bytes_that_were_published(body: bytes, keys: tuple[bytes, ...]) -> None:
    table = b"\x01ab\x05" + b"\x01bs\x00\x07" + b"\x01df\x3f\xc0\x00\x00" + b"\x01aI\x00\x00\x00\x01"  # narrow, twice
    properties = b"\x20\x00" + len(table).to_bytes(4, "big") + table
    assert encode_properties(decode_properties(properties)) != properties
    letter = from_term(term_of(properties, body, keys=keys), 77, (1, 2))
    assert letter == Letter(b"ex", keys, properties, body, 77, (1, 2))


TEXTS = st.text(max_size=20)
HEADERS = st.dictionaries(
    TEXTS, st.none() | st.booleans() | st.floats(allow_nan=False) | TEXTS | st.lists(TEXTS), max_size=4
)
PROPERTIES = st.builds(
    Properties,
    content_type=st.none() | TEXTS,
    content_encoding=st.none() | TEXTS,
    headers=st.none() | HEADERS,
    delivery_mode=st.none() | st.integers(1, 2),
    expiration=st.none() | st.just("60000"),
    message_id=st.none() | TEXTS,
)


@given(PROPERTIES, st.binary(max_size=30))
def test_the_original_exchange_is_one_more_header_and_nothing_else_changes(
    properties: Properties, exchange: bytes
) -> None:
    changed = with_original_exchange(encode_properties(properties), exchange)
    decoded = decode_properties(changed)
    said = dict(decoded.headers or {})
    value = said.pop(ORIGINAL_EXCHANGE)
    assert (value.encode() if isinstance(value, str) else value) == exchange
    assert said == dict(properties.headers or {})
    assert attrs.evolve(decoded, headers=None) == attrs.evolve(properties, headers=None)
    assert with_original_exchange(changed, b"another") == changed


def test_carbon_copies_are_found_where_they_are_and_only_there() -> None:
    assert carbon_copies(encode_properties(Properties(headers={"CC": ["a", "b"], "BCC": ["c"]}))) == (b"a", b"b", b"c")
    assert carbon_copies(encode_properties(Properties(headers={"x": "\x02CC", "CC": "no list"}))) == ()
    assert carbon_copies(encode_properties(Properties(content_type="\x02CC"))) == ()
    assert carbon_copies(b"\x20\x00\x02CC") == ()


def test_an_expiration_is_read_where_it_is_a_number() -> None:
    assert expiration_ms(encode_properties(Properties(expiration="250", headers={"a": 1}))) == 250
    assert expiration_ms(encode_properties(Properties(expiration="soon"))) is None
    assert expiration_ms(encode_properties(Properties(content_type="250"))) is None


# ── the pump ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.define
class ListSource:
    """A queue that is a list; knows what was handed out and settled."""

    bodies: list[bytes | None]
    settled: list[int] = attrs.field(factory=list)
    finished: int = 0
    vhost: bytes = b"/"
    name: bytes = b"q"
    already: int = 0

    def count(self) -> int:
        return len(self.bodies)

    def letters(self, limit: int) -> Iterator[Letter | None]:
        for number, body in enumerate(self.bodies):
            if body is None:
                yield None
            elif limit:
                limit -= 1
                yield Letter(b"", (b"q",), b"\0\0", body, 5 if number % 2 else 0, (0, number))

    def settle(self, positions: Sequence[tuple[int, int]]) -> None:
        self.settled += [number for _, number in positions]

    def finish(self) -> None:
        self.finished += 1


@given(
    st.lists(st.none() | st.integers(0, 1000), max_size=60),
    st.integers(1, 8),
    st.integers(1, 70),
    st.sampled_from([0.0, 0.0, 0.1]),
    st.integers(0, 2**32),
)
def test_nothing_is_settled_before_it_is_safe_and_all_is_in_the_end(
    plan: list[int | None], window: int, limit: int, refuse: float, seed: int
) -> None:
    bodies = [None if value is None else b"%d" % value for value in plan]
    source, intake = ListSource(bodies), RandomIntake(random.Random(seed), refuse, window)
    moved = Moved("/", "q", "q")
    pump = Pump(source, intake, moved, window, lambda: 10, lambda _: None)
    wanted = [number for number, body in enumerate(bodies) if body is not None][:limit]
    try:
        pump.run(limit)
    except RefusedError:
        assert refuse
        settled = {wanted[number - 1] for number in intake.safe}
        assert settled == set(source.settled)
        assert len(source.settled) == len(settled)
    else:
        assert source.settled == wanted
        assert intake.taken == [bodies[number] for number in wanted]
        assert moved.expired == sum(number % 2 for number in wanted)
    assert moved.messages == len(intake.safe)
    assert source.finished >= 1
    assert intake.closed >= 1


def test_a_window_is_full_of_large_bodies_too() -> None:
    source, intake = ListSource([bytes(WINDOW_BYTES // 4)] * 20), RandomIntake(random.Random(1), 0.0, 1000)
    Pump(source, intake, Moved("/", "q", "q"), 1000, lambda: 0, lambda _: None).run(20)
    assert len(source.settled) == 20


@given(st.permutations(list(range(1, 12))), st.integers(0, 11))
def test_a_held_back_ack_goes_out_last_and_none_goes_before_it_is_settled(order: list[int], hold_from: int) -> None:
    acks, settled, acked = _Acks(hold_from=hold_from), set[int](), set[int]()

    def take(*, all_of_them: bool = False) -> None:
        for tag, multiple in acks.take(all_of_them=all_of_them):
            acked.update(range(1, tag + 1) if multiple else [tag])
        assert acked <= settled

    for tag in order[:-1]:
        acks.settle([tag])
        settled.add(tag)
        take()
        assert len(acked) <= hold_from
    acks.hold_from = None
    take(all_of_them=True)
    assert acked == settled
    assert acks.settled == 10


# ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_confirmed_behind_a_refused_message_is_not_copied_again() -> None:
    reach = Reach("/", "D", "q")
    reach.add([0, 3, 5], first_open=4)
    assert (reach.next_seq_id, reach.beyond, reach.messages) == (4, {5}, 3)
    assert [reach.has(seq_id) for seq_id in (3, 4, 5, 6)] == [True, False, True, False]
    reach.add([4], first_open=None)
    assert (reach.next_seq_id, reach.beyond, reach.messages) == (6, set(), 4)


def test_progress_is_read_as_it_was_saved(tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "state.json")
    progress = Progress.open(RealFileSystem(), path, source="a", destination="b")
    progress.reach(b"\xff", "D", b"to").add([1, 7], first_open=2)
    progress.save()
    again = Progress.open(RealFileSystem(), path, source="a", destination="b")
    assert again.reach(b"\xff", "D", b"to") == Reach(again.reach(b"\xff", "D", b"to").vhost, "D", "to", 2, 2, {7})
    assert again.reach(b"/", "D", b"to").messages == 0
    with pytest.raises(ShovelError, match="another copy, from a to b"):
        Progress.open(RealFileSystem(), path, source="a", destination="c")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"warren": "x"}', '{"warren": "shovel progress 1", "queues": 3}'])
def test_a_file_that_is_no_progress_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(DataError):
        Progress.open(RealFileSystem(), str(path), source="a", destination="b")


def test_a_copys_progress_lies_beside_a_directory_or_among_the_users_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_path("a", "b", beside="/d").startswith("/d/warren.shovel-")
    assert default_path("a", "b", beside=None).startswith("/state/warren/shovel-")
    assert default_path("a", "b", beside=None) != default_path("a", "c", beside=None)


# ── copies ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_levels_of_a_priority_queue_become_one_queue_the_highest_first(tmp_path: Path) -> None:
    shovel(PRIORITIES, tmp_path / "data")
    assert exported(tmp_path / "data") == exported(PRIORITIES)


def test_a_copy_changes_nothing_at_its_source(tmp_path: Path) -> None:
    fill(tmp_path / "source", 100)
    before = digest(tmp_path / "source")
    shovel(tmp_path / "source", tmp_path / "data")
    assert digest(tmp_path / "source") == before
    assert numbers(tmp_path / "data") == list(range(100))


def test_a_copy_that_is_run_again_copies_nothing_twice(tmp_path: Path) -> None:
    fill(tmp_path / "source", 1000)
    for _ in range(3):
        assert shovel(tmp_path / "source", tmp_path / "data", "--limit", "300")["messages"] == 300
    last = shovel(tmp_path / "source", tmp_path / "data")
    assert (last["messages"], last["queues"][0]["already"]) == (100, 900)
    assert shovel(tmp_path / "source", tmp_path / "data")["messages"] == 0
    assert numbers(tmp_path / "data") == list(range(1000))
    os.remove(last["state"])
    assert shovel(tmp_path / "source", tmp_path / "data")["messages"] == 1000


def test_a_copy_says_so_if_its_source_was_replaced_by_a_shorter_one(tmp_path: Path) -> None:
    fill(tmp_path / "source", 10)
    state = shovel(tmp_path / "source", tmp_path / "data")["state"]
    shutil.rmtree(tmp_path / "source")
    fill(tmp_path / "source", 3)
    result = warren("shovel", tmp_path / "source", tmp_path / "data")
    assert result.exit_code == 1
    assert f"it ends at message 2, but {state} says that messages up to 9 are copied" in " ".join(result.stderr.split())
    os.remove(state)
    assert shovel(tmp_path / "source", tmp_path / "data")["messages"] == 3


def test_what_cannot_be_read_is_said_and_the_rest_is_copied(tmp_path: Path) -> None:
    unpack(str(MIXED), str(tmp_path))
    for file in tmp_path.rglob("msg_store_persistent/*.rdq"):
        file.unlink()
    readable = exported(tmp_path / "vhosts", exit_code=1)
    assert 0 < len(readable) < len(exported(MIXED))
    result = warren("shovel", tmp_path / "vhosts", tmp_path / "data")
    assert result.exit_code == 1
    assert "missing body" in result.stderr
    assert exported(tmp_path / "data") == readable


def test_queues_are_chosen_and_renamed(tmp_path: Path) -> None:
    for queue in (b"a", b"b", b"c"):
        fill(tmp_path / "source", 5, queue)
    summary = shovel(tmp_path / "source", tmp_path / "data", "--queue", "a", "--queue", "b", "--rename", "b=b2")
    assert [(queue["queue"], queue["to"]) for queue in summary["queues"]] == [("a", "a"), ("b", "b2")]
    keys = [(line["queue"], line["routing_keys"]) for line in exported(tmp_path / "data")]
    assert keys == [("a", ["a"])] * 5 + [("b2", ["b2"])] * 5  # the default exchange's keys are names of queues


def test_expired_messages_are_copied_and_counted(tmp_path: Path) -> None:
    with engine.open_vhost(tmp_path / "source") as vhost:
        envelope, queue = vhost.envelope(b"q"), vhost.queue(b"q")
        for expiry_us in (0, 1, 1 << 62):
            queue.publish(envelope, vhost.msg_ids.one(), b"%d" % expiry_us, expiry_us=expiry_us)
    assert shovel(tmp_path / "source", tmp_path / "data")["queues"][0]["expired"] == 1
    assert [line["expiry_us"] for line in exported(tmp_path / "data")] == [None, 1, 1 << 62]


def test_a_message_that_was_published_as_transient_survives_a_restart_of_its_new_directory(tmp_path: Path) -> None:
    fill(tmp_path / "source", 3, delivery_mode=1)  # the property says so, the message was kept as persistent
    shovel(tmp_path / "source", tmp_path / "data")
    assert [line["properties"] for line in exported(tmp_path / "data")] == [{"delivery_mode": 1}] * 3


# ── moves ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_move_takes_the_messages_out(tmp_path: Path) -> None:
    fill(tmp_path / "source", 5000, headers={"x": 1.5})
    messages = exported(tmp_path / "source")
    first = shovel(tmp_path / "source", tmp_path / "data", "--move", "--limit", "700")
    assert (first["kind"], first["messages"], first["state"]) == ("move", 700, None)
    assert numbers(tmp_path / "source") == list(range(700, 5000))
    assert shovel(tmp_path / "source", tmp_path / "data", "--move")["messages"] == 4300
    assert numbers(tmp_path / "source") == []
    assert exported(tmp_path / "data") == messages


def test_a_move_takes_expiries_and_levels_along(tmp_path: Path) -> None:
    with engine.open_vhost(tmp_path / "source") as vhost:
        envelope = vhost.envelope(b"q")
        for level in (0, 200, 7):
            name = b"q\0" + bytes([level])
            vhost.queue(name).publish_many(
                envelope, vhost.msg_ids.many(2), [b"%d" % level] * 2, expiries_us=[1 << 60, level]
            )
    shovel(tmp_path / "source", tmp_path / "data", "--move")
    assert numbers(tmp_path / "data") == [200, 200, 7, 7, 0, 0]
    assert [line["expiry_us"] for line in exported(tmp_path / "data")] == [1 << 60, 200, 1 << 60, 7, 1 << 60, None]


# ── kills ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "before", "twice"), [(SAVE, True, 250), (SAVE, False, 0), (SYNC, True, 0), (SYNC, False, 250)]
)
def test_a_copy_that_is_killed_goes_on_where_the_destination_had_confirmed(
    step: str, before: bool, twice: int, tmp_path: Path
) -> None:
    fill(tmp_path / "source", 3000)
    places = tmp_path / "source", tmp_path / "data", "--prefetch", "250"
    shovel_and_die(step, 4, before, *places)
    assert 0 < len(numbers(tmp_path / "data")) <= 1000
    shovel(*places)
    there = numbers(tmp_path / "data")
    assert list(dict.fromkeys(there)) == list(range(3000))  # all of them, first come in order
    assert len(there) == 3000 + twice  # what was on the way


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("step", [ACK, SYNC])
def test_a_move_that_is_killed_loses_nothing(step: str, before: bool, tmp_path: Path) -> None:
    fill(tmp_path / "source", 3000)
    places = tmp_path / "source", tmp_path / "data", "--move", "--prefetch", "250"
    shovel_and_die(step, 4, before, *places)
    left = numbers(tmp_path / "source")
    assert 2000 <= len(left) < 3000
    shovel(*places)
    there = numbers(tmp_path / "data")
    assert list(dict.fromkeys(there)) == list(range(3000))
    assert len(there) <= 3000 + 250
    assert numbers(tmp_path / "source") == []


# ── what cannot be done ──────────────────────────────────────────────────────────────────────────────────────────────


def test_orders_that_make_no_sense(tmp_path: Path) -> None:
    fill(tmp_path / "source", 3)
    source, data = tmp_path / "source", tmp_path / "data"
    assert "no such file" in complaint(tmp_path / "nothing", data)
    assert "no queue 'x'" in complaint(source, data, "--queue", "x")
    assert "no vhost 'x'" in complaint(source, data, "--vhost", "x")
    assert "expected OLD=NEW" in complaint(source, data, "--rename", "q")
    assert "renamed twice" in complaint(source, data, "--rename", "q=a", "--rename", "q=b")
    assert "no such queue" in complaint(source, data, "--rename", "x=y")
    assert "is inside of" in complaint(source, source, "--state", tmp_path / "state")
    for url in ("http://me:s3cret@localhost", "HTTPS://localhost/", "s3://bucket/node"):
        assert "neither a directory nor a broker" in (said := complaint(source, url)) + complaint(url, data)
        assert "s3cret" not in said
    assert "is inside of" in complaint(source, source / "inner", "--move")
    assert "which must not change" in complaint(source, data, "--state", source / "state")
    assert "copied from" in complaint(MIXED, data, "--move")
    assert "--state is for copies" in complaint(source, data, "--move", "--state", tmp_path / "state")
    assert "is a file" in complaint(source, MIXED, "--state", tmp_path / "state")
    assert "data directory" in complaint(source / "msg_stores", data, "--move")
    fill(source, 3, b"r")
    assert "two queues would become 'q'" in complaint(source, data, "--rename", "r=q")


@pytest.mark.slow
def test_a_directory_that_it_makes_opens_as_it_is(tmp_path: Path) -> None:
    fill(tmp_path / "source", 3)
    shovel(tmp_path / "source", tmp_path / "data")
    assert not (tmp_path / "data" / "warren.lock").exists()
    with open_node(tmp_path / "data") as node:
        assert {queue.name: len(queue) for queue in node.queues()} == {"q": 3}
    fill(tmp_path / "more", 2, b"r")  # into a node's directory, beside what is there
    shovel(tmp_path / "more", tmp_path / "data")
    with open_node(tmp_path / "data") as node:
        assert {queue.name: len(queue) for queue in node.queues()} == {"q": 3, "r": 2}
        assert "in use" in complaint(tmp_path / "more", tmp_path / "data", "--state", tmp_path / "state")


def test_a_brokers_directory_stays_a_brokers(tmp_path: Path) -> None:
    fill(tmp_path / "source", 3)
    fill(tmp_path / "data", 1)  # as a stopped RabbitMQ's: no definitions of a node's
    shovel(tmp_path / "source", tmp_path / "data")
    assert not list((tmp_path / "data").glob("warren.definitions*"))


@pytest.mark.slow
def test_a_directory_that_another_process_has_is_left_alone(tmp_path: Path) -> None:
    fill(tmp_path / "source", 3)
    with engine.open_vhost(tmp_path / "data"):
        assert "warren.lock" in complaint(tmp_path / "source", tmp_path / "data")
    assert shovel(tmp_path / "source", tmp_path / "data")["messages"] == 3


def test_a_queue_that_cannot_be_opened_for_writing_is_not_moved(tmp_path: Path) -> None:
    fill(tmp_path / "source", 3)
    [journal] = (tmp_path / "source").rglob("journal.jif")
    (journal.parent / "1.qi").write_bytes(b"")
    assert "leave out --move" in complaint(tmp_path / "source", tmp_path / "data", "--move")


def test_a_password_is_never_shown() -> None:
    assert str(Address.of("amqp://me:s3cret@host:5673/a%2Fb")) == "amqp://me@host:5673/a%2Fb"
    for url in ("amqp://me:s3cret@host:port/", "amqp://me:s3cret@host/a/b", "amqp://me:s3cret@host/?heartbeat=s3cret"):
        with pytest.raises(ShovelError) as raised:
            Address.of(url)
        assert "s3cret" not in str(raised.value)


def test_the_summary_for_people(tmp_path: Path) -> None:
    fill(tmp_path / "source", 12)
    result = warren("shovel", tmp_path / "source", tmp_path / "data")
    assert "12 messages copied." in result.stdout
    assert "warren.shovel-" in result.stdout
    assert "12 messages moved." in warren("shovel", tmp_path / "source", tmp_path / "d2", "--move").stdout


def test_a_bar_shows_how_far_it_is(tmp_path: Path) -> None:
    fill(tmp_path / "source", 12)
    command = ["shovel", str(tmp_path / "source"), str(tmp_path / "data"), "--rename", "q=[r]"]
    shown = CliRunner().invoke(cli.app, command, env={"FORCE_COLOR": "1"}).stderr
    assert "q → [r]" in shown
    assert "12/12" in shown


def test_what_is_interrupted_is_settled_as_far_as_it_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "source", 1000)
    works, work = [0], HeldLetters.work

    def interrupted(queue: HeldLetters, *, wait: bool) -> list[Outcome]:
        works[0] += 1
        if works[0] == 12:
            raise KeyboardInterrupt
        return work(queue, wait=wait)

    monkeypatch.setattr(HeldLetters, "work", interrupted)
    result = warren("shovel", tmp_path / "source", tmp_path / "data", "--move", "--prefetch", "100")
    assert result.exit_code == 130 or isinstance(result.exception, KeyboardInterrupt), result
    assert "before it ended" in result.stdout
    there, left = numbers(tmp_path / "data"), numbers(tmp_path / "source")
    assert 0 < len(there) < 1000
    assert there + left == list(range(1000))
