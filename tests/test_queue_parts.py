"""The small parts of a queue: credit, rates, delta, confirms, names on disk, bodies of many messages, settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.index_tools import DELIVERING, Bodies, msg_id, queue_files
from warren.queue_index.index import directory as names
from warren.queue_index.index.terms import bodies_of, properties_of
from warren.queue_index.message.message_format import Envelope, decode_message, encode_many, locate_addresses
from warren.queue_index.properties import encode_properties
from warren.queue_index.queue.body_store import CreditFlow, UnlimitedCredit
from warren.queue_index.queue.delta import Delta
from warren.queue_index.queue.rates import Rates, moving_average
from warren.queue_index.queue.run import EMBEDDED, IN_RAM, Batch, PackedTerms, Run
from warren.queue_index.queue.variable_queue import VariableQueue
from warren.storage.errors import DataError, MessageError, SettingsError
from warren.storage.memory import MemoryFileSystem
from warren.storage.settings import PROFILES, RABBITMQ_3_10, Settings

ENVELOPE = Envelope(b"/", b"", (b"q",), b"\x10\x00\x02", persistent=True)

# Credit


def test_a_sender_is_blocked_when_its_credit_comes_to_0_until_a_grant_makes_it_positive() -> None:
    flow = CreditFlow(4, 2)
    flow.spend(3)
    assert (flow.credit, flow.blocked) == (1, False)
    flow.spend(1)
    assert (flow.credit, flow.blocked) == (0, True)
    assert flow.receive_grant()
    assert (flow.credit, flow.blocked) == (2, False)


def test_what_has_to_be_written_takes_the_credit_below_0() -> None:
    flow = CreditFlow(4, 2)
    flow.spend(7)
    assert (flow.credit, flow.blocked) == (-3, True)
    assert [flow.receive_grant() for _ in range(2)] == [True, True]
    assert (flow.credit, flow.blocked) == (1, False)
    assert flow.receive_grant()
    assert not flow.receive_grant()
    assert flow.credit == 3


def test_credit_that_is_below_0_already_does_not_block_again() -> None:
    flow = CreditFlow(2, 2)
    flow.spend(3)
    flow.blocked = False
    flow.spend(1)
    assert not flow.blocked


def test_a_receivers_count_towards_its_next_grant_survives_a_new_sender() -> None:
    flow = CreditFlow(4, 3)
    flow.spend(5)
    flow.restart()
    assert (flow.credit, flow.blocked, flow.receive_grant()) == (4, False, False)
    flow.spend(1)
    assert flow.receive_grant()


@given(st.lists(st.integers(1, 20)), st.integers(1, 10), st.integers(0, 30))
def test_settled_credit_lacks_less_than_a_grant(spent: list[int], more_after: int, extra: int) -> None:
    flow = CreditFlow(more_after + extra, more_after)
    for count in spent:
        flow.spend(count)
    flow.settle()
    assert flow.initial - flow.credit == sum(spent) % more_after
    assert not flow.blocked


def test_a_sender_that_writes_itself_is_never_blocked() -> None:
    credit = UnlimitedCredit()
    credit.spend(1 << 61)
    assert (credit.blocked, credit.credit > 1 << 61) == (False, True)


# Rates


def test_after_one_half_life_an_old_rate_counts_half() -> None:
    assert moving_average(5.0, 5.0, 0.0, 100.0) == pytest.approx(50)
    assert moving_average(5.0, 5.0, 30.0, 100.0) == pytest.approx(65)
    assert moving_average(10.0, 5.0, 0.0, 100.0) == pytest.approx(25)


def test_rates_take_their_counters_in_as_a_sample() -> None:
    rates = Rates(1_000, ingress=10.0, in_count=500, out_count=50, ack_in_count=5, ack_out_count=1)
    rates.update(1_000_001_000, Settings())
    weight = math.exp(math.log(0.5) / 5)
    assert rates.ingress == pytest.approx(500 * (1 - weight) + 10 * weight)
    assert rates.egress == pytest.approx(50 * (1 - weight))
    assert (rates.ack_ingress, rates.ack_egress) == pytest.approx((5 * (1 - weight), 1 - weight))
    assert rates.total == pytest.approx(556 * (1 - weight) + 10 * weight)
    assert rates == attrs.evolve(rates, in_count=0, out_count=0, ack_in_count=0, ack_out_count=0)
    assert rates.timestamp_ns == 1_000_001_000


def test_time_counts_in_whole_microseconds_and_none_changes_no_rate() -> None:
    rates = Rates(0, ingress=10.0, in_count=500)
    rates.update(999, Settings())
    assert (rates.ingress, rates.in_count) == (10.0, 0)


def test_rates_are_due_when_more_messages_than_the_threshold_have_passed() -> None:
    assert not Rates(0, in_count=60, out_count=40).due(Settings())
    assert Rates(0, in_count=60, out_count=41).due(Settings())
    assert not Rates(0, ack_in_count=500).due(Settings())


def test_a_queue_is_idle_where_hardly_anything_moves() -> None:
    assert Rates(0, 0.009, 0.009, 0.009, 0.009).idle
    assert not Rates(0, ack_egress=0.01).idle


def test_acks_grow_faster_where_more_of_them_pile_up_than_ready_messages() -> None:
    assert Rates(0, ingress=10, egress=9, ack_ingress=9, ack_egress=7).acks_grow_faster
    assert not Rates(0, ingress=10, egress=9, ack_ingress=9, ack_egress=8).acks_grow_faster


# Delta


def test_delta_grows_at_both_ends_and_in_between() -> None:
    delta = Delta()
    assert delta.blank
    with pytest.raises(RuntimeError, match="blank"):
        _ = delta.bounds
    delta.expand(10, 5, transient=False)
    delta.expand(30, 2, transient=True)
    delta.expand(4, 1, transient=True)
    delta.expand(20, 3, transient=False)
    assert delta == Delta(4, 11, 3, 32)
    delta.check_invariants()


def test_a_delta_that_was_used_up_begins_anew() -> None:
    delta = Delta(8, 0, 0, 8)
    delta.expand(20, 2, transient=True)
    assert delta == Delta(20, 2, 2, 22)
    delta.clear()
    assert delta == Delta()


@pytest.mark.parametrize(
    "delta",
    [Delta(0, 5, 0, 4), Delta(0, 2, 3, 4), Delta(0, -1, -1, 4), Delta(None, 0, 0, 4)],
    ids=["more than positions", "more transient than all", "negative", "half a bound"],
)
def test_a_contradictory_delta_is_found_out(delta: Delta) -> None:
    with pytest.raises(RuntimeError, match=r"delta|positions"):
        delta.check_invariants()


# Confirms


class HeldBackStore(Bodies):
    """A store that makes nothing safe until it is asked to."""

    def sync(self) -> None:
        pass


def test_a_publish_is_confirmed_when_position_and_payload_are_safe_in_order() -> None:
    parts = queue_files(MemoryFileSystem(), DELIVERING)
    assert parts.persistent_store is not None
    store = parts.persistent_store.store = HeldBackStore()
    queue = VariableQueue.create(parts)
    queue.publish(ENVELOPE, msg_id(0), b"embedded", confirm=True)
    queue.publish(ENVELOPE, msg_id(1), bytes(5000), confirm=True)
    queue.publish(ENVELOPE, msg_id(2), b"nobody asked")
    queue.publish_many(ENVELOPE, msg_id(3) + msg_id(4), [b"embedded"] * 2, confirm=True)
    assert queue.drain_confirmed() == []
    queue.sync()
    assert queue.drain_confirmed() == [range(1)]
    store.synced_ticket = 1
    assert queue.drain_confirmed() == [range(1, 2), range(3, 5)]
    assert queue.drain_confirmed() == []


def test_transient_messages_are_confirmed_at_once() -> None:
    queue = VariableQueue.create(queue_files(MemoryFileSystem(), durable=False))
    queue.publish(ENVELOPE, msg_id(0), b"body", confirm=True)
    assert queue.drain_confirmed() == [range(1)]


# Names on disk


@pytest.mark.parametrize(
    ("vhost", "queue", "directory"),
    [
        ("/", "plain", "628WB79CIFDYO9LJI6DKMI09L/9DQ96OGDALOYM9ZF15RWLAM2G"),
        ("/", "audit", "628WB79CIFDYO9LJI6DKMI09L/AKO705JYL6AICHY9SFXGU0UEP"),
        ("/", "orders", "628WB79CIFDYO9LJI6DKMI09L/F0LI8Q2L5NQQX8KRJAO1AHU7J"),
        ("prod/eu", "очередь", "3J3P3WFZ4QZ2IOB5W4SYV2TWA/2896C9W9UC0Q1D2BN4AFORN2C"),
        ("prod/eu", "kolejka-żółć", "3J3P3WFZ4QZ2IOB5W4SYV2TWA/9V9298ZSCNBC6ZSZ667SBGXSO"),
        ("prod/eu", "日本語キュー", "3J3P3WFZ4QZ2IOB5W4SYV2TWA/DA8FMK4TVGZUXAJP1FZR2OEWC"),
    ],
)
def test_directories_are_named_as_a_real_broker_named_them(vhost: str, queue: str, directory: str) -> None:
    expected_vhost, expected_queue = directory.split("/")
    assert names.vhost_directory_name(vhost.encode()) == expected_vhost
    assert names.queue_directory_name(vhost.encode(), queue.encode()) == expected_queue


@given(st.integers(min_value=0, max_value=1 << 128))
def test_base36_is_a_number_in_upper_case_without_leading_zeros(number: int) -> None:
    shown = names.base36(number)
    assert int(shown, 36) == number
    assert shown == shown.upper()
    assert number == 0 or not shown.startswith("0")


def test_a_level_of_a_priority_queue_has_its_raw_byte_in_its_name() -> None:
    assert names.level_name(b"q", 10) == b"q\0\n"
    assert names.level_name(b"q", 200) == b"q\0\xc8"


@given(st.text().filter(lambda vhost: "\nQUEUE: " not in vhost), st.binary())
def test_a_queues_name_file_gives_any_name_back(vhost: str, queue: bytes) -> None:
    data = names.queue_name_file(vhost.encode(), queue)
    assert names.parse_queue_name_file(data, "f") == (vhost.encode(), queue)


@pytest.mark.parametrize("data", [b"", b"VHOST: /\nQUEUE: q", b"QUEUE: q\n", b"/\nQUEUE: q\n", b"VHOST: /\nq\n"])
def test_anything_else_is_no_name_file(data: bytes) -> None:
    with pytest.raises(DataError, match="QUEUE"):
        names.parse_queue_name_file(data, "f")


def test_a_vhosts_config_is_read_as_it_is_written() -> None:
    data = b"%% This file is auto-generated! Edit at your own risk!\n{segment_entry_count, 2048}."
    assert names.vhost_config(2048) == data
    assert names.parse_vhost_config(data, "f") == 2048
    assert names.parse_vhost_config(b"{ segment_entry_count ,7 } .\n%% {segment_entry_count, 9}.", "f") == 7


@pytest.mark.parametrize("count", [b"0", b"16385", b"-1", b"x"])
def test_a_vhosts_config_with_an_impossible_segment_size_is_damage(count: bytes) -> None:
    with pytest.raises(DataError, match="segment_entry_count"):
        names.parse_vhost_config(b"{segment_entry_count, " + count + b"}.", "f")


def test_segments_are_numbered_by_name_and_other_files_are_not() -> None:
    assert [names.segment_number(name) for name in ("0.idx", "17.idx")] == [0, 17]
    assert [names.segment_name(number) for number in (0, 17)] == ["0.idx", "17.idx"]
    for name in ("journal.jif", "07.idx", "x.idx", ".idx", "-1.idx", "1.idx.new", "٣.idx", "²5.idx"):
        assert names.segment_number(name) is None


# Bodies of many messages


class PlainMessage(NamedTuple):
    properties: bytes
    body: bytes


@st.composite
def encoded(draw: st.DrawFn) -> tuple[list[bytes | None], list[bytes]]:
    """Bodies, and their messages: of one envelope and length, of one of the two, of one address, or all different."""
    alike = draw(st.sampled_from(["all", "length", "envelope", "address", "nothing"]))
    size, count = draw(st.integers(0, 20)), draw(st.integers(1, 40))
    varies = 0 if alike in {"all", "length"} else 9
    bodies = [draw(st.binary(min_size=size, max_size=size + varies)) for _ in range(count)]
    envelopes = [ENVELOPE] * count
    if alike == "address":
        own = st.sampled_from([b"\x10\0\x02", b"\x18\0\x02\x05", b"\0\0"])
        envelopes = [attrs.evolve(ENVELOPE, properties=draw(own)) for _ in range(count)]
    elif alike in {"length", "nothing"}:
        keys = st.sampled_from([b"k", b"j"] if alike == "length" else [b"k", b"jj", b"iii"])
        envelopes = [attrs.evolve(ENVELOPE, routing_keys=(draw(keys),)) for _ in range(count)]
    pairs = zip(envelopes, bodies, strict=True)
    return list(bodies), [encode_many(one, msg_id(n), [body])[0] for n, (one, body) in enumerate(pairs)]


def _alone(term: bytes, part: Callable[[PlainMessage], bytes]) -> bytes | None:
    """A part of a message, read by itself; ``None``: it is no message."""
    located = locate_addresses(term)
    if located is not None:
        return part(PlainMessage(located.properties, term[located.body_at : located.body_end]))
    try:
        decoded = decode_message(term)
    except MessageError:
        return None
    return part(PlainMessage(encode_properties(decoded.properties), decoded.body))


@given(encoded(), st.sampled_from(["list", "packed", "ascending", "descending"]), st.data())
def test_bodies_and_properties_are_taken_out_of_messages_however_they_lie(
    messages: tuple[list[bytes | None], list[bytes]], form: str, data: st.DataObject
) -> None:
    bodies, terms = messages
    for index in data.draw(st.lists(st.integers(0, len(terms) - 1), max_size=2)):
        place = data.draw(st.integers(0, len(terms[index]) - 1))
        octet = data.draw(st.binary(min_size=1, max_size=1))
        terms[index] = terms[index][:place] + octet + terms[index][place + 1 :]
        bodies[index] = _alone(terms[index], lambda found: found.body)
    count, lengths = len(terms), [len(term) for term in terms]
    starts = [sum(lengths[:index]) for index in range(count)]
    packed: list[bytes] | PackedTerms = terms
    if form == "packed":
        packed = PackedTerms(b"".join(terms), starts, lengths)
    elif form != "list" and len(set(lengths)) == 1:
        blob = b"".join(terms if form == "ascending" else terms[::-1])
        offsets = range(0, len(blob), lengths[0])
        packed = PackedTerms(blob, offsets if form == "ascending" else offsets[::-1], lengths[0])
    batch = Batch(count, b"".join(map(msg_id, range(count))), 0, 0, packed)
    low = data.draw(st.integers(0, count - 1))
    window = Run(low, batch, low, data.draw(st.integers(1, count - low)), IN_RAM | EMBEDDED)
    for run, chosen in ((window, slice(low, window.high)), (Run(0, batch, 0, count, IN_RAM | EMBEDDED), slice(None))):
        for given_terms in (None, terms[chosen]):
            assert bodies_of(run, given_terms) == bodies[chosen]
            each = [_alone(term, lambda found: found.properties) for term in terms[chosen]]
            if None in each:
                with pytest.raises(MessageError):
                    properties_of(run, given_terms)
            else:
                assert properties_of(run, given_terms) == each


def test_messages_of_one_length_can_hold_their_bodies_in_different_places() -> None:
    envelopes = [attrs.evolve(ENVELOPE, routing_keys=(key,)) for key in (b"k", b"jj", b"iii")]
    bodies = [b"four", b"the", b"be"]
    terms = [encode_many(one, msg_id(0), [body])[0] for one, body in zip(envelopes, bodies, strict=True)]
    size = len(terms[0])
    batch = Batch(3, msg_id(0) * 3, 0, 0, PackedTerms(b"".join(terms), range(0, 3 * size, size), size))
    assert bodies_of(Run(0, batch, 0, 3, IN_RAM | EMBEDDED), None) == bodies


# Settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"segment_entry_count": 0},
        {"segment_entry_count": 16385},
        {"queue_index_max_journal_entries": 0},
        {"msg_store_file_size_limit": 0},
        {"msg_store_credit_disc_bound": (100, 0)},
        {"msg_store_credit_disc_bound": (100, 101)},
    ],
    ids=str,
)
def test_a_setting_that_cannot_work_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        Settings(**wrong)  # type: ignore[arg-type]


def test_the_profile_of_rabbitmq_3_10_has_that_versions_numbers() -> None:
    profile = PROFILES["rabbitmq-3.10"]
    assert profile is RABBITMQ_3_10
    assert (profile.segment_entry_count, profile.queue_index_max_journal_entries) == (2048, 32768)
    assert (profile.msg_store_io_batch_size, profile.msg_store_credit_disc_bound) == (4096, (4000, 800))
    assert PROFILES["default"] == Settings()
    assert Settings().segment_entry_count == 16384
