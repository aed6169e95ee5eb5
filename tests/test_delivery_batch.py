"""What get_many brings: deliveries as a sequence, bodies and properties as columns, settled together or one by one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import warren
from warren.queue_index.message.amqp_tables import LongString, Timestamp
from warren.queue_index.message.properties_of_many import decode_columns, decode_many
from warren.queue_index.properties import NAMES, Properties, decode_properties, encode_properties
from warren.storage.errors import MessageError

# ── columns ─────────────────────────────────────────────────────────────────────────────────────────────────────────

TEXTS = st.one_of(st.text(max_size=3), st.sampled_from(["red", "blue"]), st.just("é"))
KINDS = (
    TEXTS,
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.binary(min_size=1, max_size=2).map(lambda data: LongString(b"\xff" + data)),
    st.sampled_from([True, None, 1 << 40, 0.5, b"x", Timestamp(7), ["a"], {"b": 1}]),
)


@st.composite
def publishers(draw: st.DrawFn) -> list[Properties]:
    """Messages of some publishers, each with properties of its own, by turns or one after the other."""
    found: list[Properties] = []
    for _ in range(draw(st.integers(1, 3))):
        kinds = draw(st.dictionaries(TEXTS, st.sampled_from(KINDS), max_size=3))
        fields: dict[str, st.SearchStrategy[Any]] = {
            "headers": st.fixed_dictionaries(kinds) if draw(st.booleans()) else st.none(),
            "message_id": draw(st.sampled_from([TEXTS, st.none(), st.just(b"\xff")])),
            "timestamp": draw(st.sampled_from([st.integers(0, 1 << 63), st.none()])),
            "priority": draw(st.sampled_from([st.none(), st.just(3), st.integers(0, 255)])),
        }
        count = draw(st.sampled_from([1, 15, 16, 40]))
        row = st.builds(Properties, **fields)
        few = [draw(row) for _ in range(4)]
        found += [few[draw(st.integers(0, 3))] for _ in range(count)]
    return draw(st.permutations(found)) if draw(st.booleans()) else found


@given(publishers())
def test_properties_of_many_are_those_of_each(properties: list[Properties]) -> None:
    encoded = list(map(encode_properties, properties))
    each = list(map(decode_properties, encoded))
    assert decode_many(encoded) == each
    names = ("headers", "message_id", "timestamp", "priority", "app_id")
    assert decode_columns(encoded, names) == [[getattr(one, name) for one in each] for name in names]
    assert [[type(value) for value in (one.headers or {}).values()] for one in decode_many(encoded)] == [
        [type(value) for value in (one.headers or {}).values()] for one in each
    ]


def test_headers_that_are_alike_are_each_messages_own() -> None:
    one, other, *_ = decode_many([encode_properties(Properties(headers={"a": "b"}))] * 20)
    assert one.headers == other.headers
    assert one.headers is not other.headers


def test_of_equal_names_in_a_table_the_last_one_counts() -> None:
    def twice(first: bytes, last: bytes) -> bytes:
        fields = b"".join(b"\x01nS" + len(value).to_bytes(4, "big") + value for value in (first, last))
        return b"\x20\x00" + len(fields).to_bytes(4, "big") + fields

    encoded = [twice(b"%02d" % n, b"last") for n in range(20)]
    assert decode_columns(encoded, ["headers"]) == [[{"n": "last"}] * 20]
    encoded = [twice(b"first", b"%02d" % n) for n in range(20)]
    assert decode_columns(encoded, ["headers"]) == [[{"n": f"{n:02}"} for n in range(20)]]


@pytest.mark.parametrize("texts", [["a\0", "\0b"], ["ab", "é"], ["", ""]], ids=["zeros", "not ASCII", "empty"])
def test_strings_of_many_messages_are_those_of_each(texts: list[str]) -> None:
    properties = [Properties(message_id=text, headers={"n": text}) for text in texts * 10]
    encoded = list(map(encode_properties, properties))
    assert decode_columns(encoded, ["message_id", "headers"]) == [texts * 10, [{"n": text} for text in texts * 10]]


def test_bytes_that_are_characters_only_together_are_not_taken_together() -> None:
    halves = [b"\x20\x00\x00\x00\x00\x08\x01nS\x00\x00\x00\x01" + half for half in (b"\xc3", b"\xa9")] * 10
    (found,) = decode_columns(halves, ["headers"])
    assert found == [{"n": LongString(b"\xc3")}, {"n": LongString(b"\xa9")}] * 10
    assert {type(table["n"]) for table in found} == {LongString}


@pytest.mark.parametrize("cut", [b"", b"\x20\x00\x00\x00\x00\x09", b"\x00\x80\x05abc"])
def test_properties_that_cannot_be_read_are_refused(cut: bytes) -> None:
    sound = encode_properties(Properties(message_id="abcd"))
    with pytest.raises(MessageError):
        decode_many([sound] * 20 + [cut])
    with pytest.raises(MessageError):
        decode_many([cut] * 20)


def test_a_property_that_is_not_set_stands_in_no_instance() -> None:
    assert vars(decode_properties(encode_properties(Properties(app_id="x")))) == {"app_id": "x"}
    assert [getattr(Properties(), name) for name in NAMES] == [None] * len(NAMES)


# ── batches ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lazy", [False, True])
def test_a_batch_has_columns_and_deliveries(tmp_path: Path, lazy: bool) -> None:
    count = 60
    with warren.open(tmp_path, sync="os") as node:
        queue = node.queue("q", arguments={"x-queue-mode": "lazy"} if lazy else {})
        queue.publish_many([b"plain"] * 3)
        headers: list[Mapping[str, Any] | None] = [{"n": n, "text": "x" * (n % 5)} for n in range(count)]
        queue.publish_many(
            [b"%d" % n for n in range(count)], headers=headers, message_id=[f"id-{n}" for n in range(count)]
        )
        queue.publish(b"last", timestamp=17)
        batch = queue.get_many(1000)
        assert len(batch) == count + 4
        assert batch.bodies == [b"plain"] * 3 + [b"%d" % n for n in range(count)] + [b"last"]
        assert batch.headers == [{}] * 3 + headers + [{}]
        ids, times = batch.columns("message_id", "timestamp")
        assert (ids, times[-2:]) == ([None] * 3 + [f"id-{n}" for n in range(count)] + [None], [None, 17])
        assert [one.body for one in batch] == batch.bodies
        assert [one.properties for one in batch] == batch.properties
        assert (batch[-1].body, [one.body for one in batch[3:5]]) == (b"last", [b"0", b"1"])
        with pytest.raises(ValueError, match="no property colour"):
            batch.columns("colour")


def test_a_batch_is_acked_or_given_back_as_one(tmp_path: Path) -> None:
    with warren.open(tmp_path, sync="os") as node:
        queue = node.queue("q")
        queue.publish_many([b"%d" % n for n in range(6)])
        first, second = queue.get_many(2), queue.get_many(2)
        queue.ack(first)
        queue.nack(second)
        queue.nack(first)  # once is enough
        assert [one.settled for one in first] == [True, True]
        assert queue.stats()["messages"] == 4
        again = queue.get_many(9)
        assert (again.bodies, [one.redelivered for one in again]) == (
            [b"2", b"3", b"4", b"5"],
            [True, True, False, False],
        )


def test_what_was_settled_by_itself_is_passed_over(tmp_path: Path) -> None:
    with warren.open(tmp_path, sync="os") as node:
        queue = node.queue("q")
        queue.publish_many([b"%d" % n for n in range(4)])
        batch = queue.get_many(4)
        batch[1].nack()
        queue.ack(batch)
        assert queue.get_many(4, auto_ack=True).bodies == [b"1"]
        queue.sync()
        assert queue.stats()["messages"] == 0


def test_a_batch_that_is_acked_as_it_is_got_needs_no_more(tmp_path: Path) -> None:
    with warren.open(tmp_path, sync="os") as node:
        queue = node.queue("q")
        queue.publish_many([b"1", b"2"])
        batch = queue.get_many(5, auto_ack=True)
        queue.nack(batch)
        assert (batch.bodies, [one.settled for one in batch], len(queue)) == ([b"1", b"2"], [True, True], 0)
        assert not queue.get_many(5)
        assert queue.get_many(5) == []
        assert batch == list(batch)
        assert repr(batch) == "<DeliveryBatch of 2>"


def test_batches_are_added_to_lists(tmp_path: Path) -> None:
    with warren.open(tmp_path, sync="os") as node:
        queue = node.queue("q")
        queue.publish_many([b"1", b"2", b"3"])
        one, other = queue.get_many(1), queue.get_many(2)
        assert [found.body for found in one + other] == [b"1", b"2", b"3"]
        assert [found.body for found in list(other) + one] == [b"2", b"3", b"1"]
        found: list[warren.Delivery] = []
        found += other
        assert found == other
        with pytest.raises(TypeError):
            one + 3  # type: ignore[operator]


def test_a_batch_that_nobody_has_any_more_goes_back(tmp_path: Path) -> None:
    with warren.open(tmp_path, sync="os") as node:
        node.queue("q").publish_many([b"1", b"2"])
        assert node.queue("q").get_many(2).bodies == [b"1", b"2"]
        found = node.queue("q").get(timeout=30)
        assert found is not None
        assert (found.body, found.redelivered) == (b"1", True)
