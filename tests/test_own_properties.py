"""Messages that each have properties of their own, published together: contents, on their way and on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import warren
from tests.support.index_tools import Bodies, msg_id, queue_files
from warren.queue_index.message.content_columns import contents_of_columns
from warren.queue_index.message.contents import contents_of
from warren.queue_index.message.message_format import Envelope, content_of, decode_message
from warren.queue_index.properties import Properties, decode_properties, encode_properties
from warren.queue_index.queue.body_store import StoreClient
from warren.queue_index.queue.variable_queue import VariableQueue
from warren.storage.counted import CountedFileSystem
from warren.storage.errors import MessageError
from warren.storage.settings import Settings

CONTENTS = Envelope(b"/", b"", (b"q",), b"", True, of_contents=True)
SETTINGS = Settings(segment_entry_count=64)

TEXTS = st.text(max_size=12)
VALUES = st.one_of(TEXTS, st.integers(-(1 << 40), 1 << 40), st.booleans(), st.none(), st.binary(max_size=4))


def same_keys(draw: st.DrawFn, count: int) -> list[dict[str, Any]]:
    names = draw(st.lists(TEXTS, max_size=3, unique=True))
    kinds = [draw(st.sampled_from((TEXTS, st.integers(-(1 << 31), (1 << 31) - 1), VALUES))) for _ in names]
    return [{name: draw(kind) for name, kind in zip(names, kinds, strict=True)} for _ in range(count)]


@st.composite
def publications(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, list[Any]], list[bytes]]:
    count = draw(st.integers(1, 12))
    many: dict[str, Any] = {"min_size": count, "max_size": count}
    columns = {
        "headers": draw(st.lists(st.dictionaries(TEXTS, VALUES, max_size=2), **many))
        if draw(st.booleans())
        else same_keys(draw, count),
        "message_id": draw(st.lists(st.one_of(st.none(), TEXTS) if draw(st.booleans()) else TEXTS, **many)),
        "timestamp": draw(st.lists(st.integers(0, 1 << 40), **many)),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(columns)), min_size=1))
    bodies = draw(st.lists(st.binary(min_size=draw(st.integers(0, 1)), max_size=20), **many))
    common = {"delivery_mode": 2, "content_type": draw(st.one_of(st.none(), TEXTS))}
    return common, {name: columns[name] for name in chosen}, bodies


@given(publications())
def test_contents_made_as_columns_are_those_of_each_message(
    publication: tuple[dict[str, Any], dict[str, list[Any]], list[bytes]],
) -> None:
    common, columns, bodies = publication
    each = [
        content_of(encode_properties(Properties(**common, **{name: one[n] for name, one in columns.items()})), body)
        for n, body in enumerate(bodies)
    ]
    assert contents_of_columns(common, columns, bodies) == each


@pytest.mark.parametrize(
    "headers",
    [
        [{"trace": f"{n:04}", "kind": "made"} for n in range(9)],
        [{"trace": f"{n}\0", "kind": "é" * (1 + n % 2)} for n in range(9)],
        [{"a": "1", "b": "2"} if n % 2 else {"b": "2", "a": "1"} for n in range(9)],
        [{"a": "1", "b": "2"}, {"a": "1"}, {"b": "2", "a": "1"}, {"b": "2"}, *[{"a": "1", "b": "2"}] * 6],
        [{}] * 9,
        [{"": ""}] * 9,
    ],
    ids=["of one length", "not ASCII", "in another order", "of other lengths", "none", "empty"],
)
def test_headers_made_as_columns_are_those_of_each_message(headers: list[dict[str, Any]]) -> None:
    bodies = [b"%d" % n for n in range(len(headers))]
    each = [
        content_of(encode_properties(Properties(headers=one)), body) for one, body in zip(headers, bodies, strict=True)
    ]
    assert contents_of_columns({}, {"headers": headers}, bodies) == each


@pytest.mark.parametrize(
    "columns",
    [
        {"message_id": ["x" * 256] * 9},
        {"message_id": [17] * 9},
        {"headers": [{"n": object()}] * 9},
        {"headers": ["no table"] * 9},
        {"headers": [{"n": "\ud800"}] * 9},
        {"colour": ["red"] * 9},
    ],
)
def test_a_value_that_has_no_place_is_refused(columns: dict[str, list[Any]]) -> None:
    with pytest.raises(MessageError):
        contents_of_columns({}, columns, [b"body"] * 9)


def files_of(envelopes: list[Envelope], bodies: list[bytes], *, step: int, flushed: bool) -> dict[str, bytes]:
    """What a queue leaves on disk of messages that are published ``step`` at a time."""
    files = CountedFileSystem()
    queue = new_queue(files)
    for low in range(0, len(bodies), step):
        ids = b"".join(map(msg_id, range(low, min(low + step, len(bodies)))))
        if step == 1:
            queue.publish(envelopes[low], ids, bodies[low])
        else:
            queue.publish_many(envelopes[low], ids, bodies[low : low + step])
    queue.ack([seq_ids for one in queue.fetch_many(5) for seq_ids in [one.seq_ids]])
    queue.fetch_many(9)
    if flushed:
        queue.flush()
    else:
        queue.write_out()
    queue.check_invariants()
    path = queue_files(files, SETTINGS).path
    return {name: files.read(f"{path}/{name}") for name in files.list(path)}


def new_queue(files: CountedFileSystem) -> VariableQueue:
    parts = queue_files(files, SETTINGS)
    store = StoreClient(Bodies())
    return VariableQueue.create(attrs.evolve(parts, persistent_store=store, transient_store=store))


def published(count: int, size: int | None = None) -> tuple[list[Envelope], list[bytes], list[bytes]]:
    """Messages with a header each: their envelopes, bodies and contents; some are too large for the index."""
    own = [encode_properties(Properties(delivery_mode=2, headers={"n": "x" * (n % 7)})) for n in range(count)]
    sizes = [
        size if size is not None else (5000 if n % 50 == 3 else 0 if n % 40 == 9 else 10 + n) for n in range(count)
    ]
    bodies = [(b"%d." % n).ljust(each, b".")[:each] for n, each in enumerate(sizes)]
    envelopes = [Envelope(b"/", b"", (b"q",), properties, True) for properties in own]
    return envelopes, bodies, [content_of(properties, body) for properties, body in zip(own, bodies, strict=True)]


@pytest.mark.parametrize("flushed", [False, True], ids=["journal", "segments"])
@pytest.mark.parametrize("size", [None, 100], ids=["sizes of their own", "one size"])
@pytest.mark.parametrize("step", [1, 5, 30, 200])
def test_contents_leave_the_bytes_of_messages_that_were_published_one_by_one(
    step: int, size: int | None, flushed: bool
) -> None:
    envelopes, bodies, contents = published(200, size)
    one_by_one = files_of(envelopes, bodies, step=1, flushed=flushed)
    assert files_of([CONTENTS] * 200, contents, step=step, flushed=flushed) == one_by_one


@pytest.mark.parametrize("flushed", [False, True], ids=["journal", "segments"])
@pytest.mark.parametrize("step", [5, 30, 200])
def test_bodies_of_all_sizes_leave_the_bytes_of_messages_that_were_published_one_by_one(
    step: int, flushed: bool
) -> None:
    _, bodies, _ = published(200)
    envelopes = [Envelope(b"/", b"", (b"q",), b"\x10\x00\x02", True)] * 200
    one_by_one = files_of(envelopes, bodies, step=1, flushed=flushed)
    assert files_of(envelopes, bodies, step=step, flushed=flushed) == one_by_one


def test_fetched_contents_are_the_messages() -> None:
    envelopes, bodies, contents = published(60)
    queue = new_queue(CountedFileSystem())
    queue.publish_many(CONTENTS, b"".join(map(msg_id, range(60))), contents)
    at = 0
    for fetched in queue.fetch_many(60):
        assert fetched.bodies() == bodies[at : at + fetched.count]
        [content] = contents_of(fetched)
        assert content is not None
        assert list(content.bodies) == bodies[at : at + fetched.count]
        for index, encoded in enumerate(content.properties):
            envelope, message = envelopes[at + index], decode_message(fetched.term(index))
            assert fetched.properties(index) == envelope.properties == encoded
            assert (message.body, message.properties) == (bodies[at + index], decode_properties(envelope.properties))
        at += fetched.count
    assert at == 60


# ── through a node ──────────────────────────────────────────────────────────────────────────────────────────────────

ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"x-max-length": 1000, "x-overflow": "reject-publish"},
    {"x-max-length-bytes": 100_000},
    {"x-max-priority": 3},
    {"x-message-ttl": 3_600_000},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=lambda one: next(iter(one), "plain"))
def test_each_message_of_a_batch_has_its_own_properties(tmp_path: Path, arguments: dict[str, Any]) -> None:
    count = 40
    bodies = [b"body %d" % n if n != 7 else b"" for n in range(count)]
    with warren.open(tmp_path, sync="os") as node:
        queue = node.queue("q", arguments=arguments)
        queue.publish_many(
            bodies,
            headers=[{"n": n, "text": f"number {n}"} for n in range(count)],
            message_id=[f"id-{n}" for n in range(count)],
            content_type="text/plain",
            priority=1,
        ).wait()
        queue.publish(b"single", headers={"n": count, "text": "alone"}, message_id="last", priority=1).wait()
        got = queue.get_many(count + 1)
        assert [one.body for one in got] == [*bodies, b"single"]
        assert [one.headers["n"] for one in got] == list(range(count + 1))
        assert [one.properties.message_id for one in got[:3]] == ["id-0", "id-1", "id-2"]
        assert (got[-1].headers["text"], got[-1].routing_key, got[-1].properties.priority) == ("alone", "q", 1)
        queue.nack(got)
    with warren.open(tmp_path, sync="os") as node:
        again = node.queue("q", arguments=arguments).get_many(count + 1)
        assert [(one.body, one.properties) for one in again] == [(one.body, one.properties) for one in got]


def test_a_batch_may_hold_bodies_of_several_fragments(tmp_path: Path) -> None:
    bodies = [b"a", bytes(200_000), b"c"]
    with warren.open(tmp_path, sync="os") as node:
        queue = node.queue("q")
        queue.publish_many(bodies, message_id=["1", "2", "3"]).wait()
        got = queue.get_many(3)
        assert [(one.properties.message_id, one.body) for one in got] == list(zip("123", bodies, strict=True))


def test_a_consumer_that_acks_unseen_gets_the_properties_of_a_message_that_passes_the_queue(tmp_path: Path) -> None:
    with warren.open(tmp_path, sync="os") as node:
        queue = node.queue("q")
        with queue.consume(auto_ack=True) as consumer:
            for n in range(3):
                queue.publish(b"%d" % n, message_id=f"id-{n}", headers={"n": n})
                one = consumer.receive(10)
                assert one is not None
                assert (one.body, one.properties.message_id, one.headers) == (b"%d" % n, f"id-{n}", {"n": n})


def test_a_list_has_one_for_each_body(tmp_path: Path) -> None:
    with warren.open(tmp_path, sync="os") as node:
        queue = node.queue("q")
        with pytest.raises(MessageError, match="message_id of 1 messages, and 2 bodies"):
            queue.publish_many([b"1", b"2"], message_id=["one"])
        with pytest.raises(MessageError, match="priority is one for all messages"):
            queue.publish_many([b"1", b"2"], priority=[1, 2])  # type: ignore[arg-type]
        assert len(queue) == 0
        queue.publish_many([], message_id=[]).wait()
