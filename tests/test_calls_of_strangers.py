"""Calls over a directory's socket with arguments that no handle of this version sends: of another version, or of a
program that is no warren. The caller gets an error, and no actor of the host stops.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import warren
from warren.client.calls import call, packed
from warren.client.errors import ServerError
from warren.client.link_reader import ReaderChannel
from warren.errors import WarrenError
from warren.server.channels.guest_calls import VERBS
from warren.verbs.operation import DEFINITIONS
from warren.verbs.steps import run

STRANGE: Final[tuple[Any, ...]] = (
    *(0.5, -1, 10**18, True, None, "\0", "a@b", b"x", [[0.5]], {0.5: 0}, {0: 0.5}, [{"x": 1}]),
)
HOST: Final = {"address": b"\x7f\0\0\1", "port": 0}
BATCH: Final[dict[str, Any]] = {
    "topic": "t",
    "queue_id": 0,
    "bodies": packed([b"x"]),
    "properties": b"",
    "born_timestamp": 0,
    "born_host": HOST,
    "store_host": HOST,
    "sys_flag": 0,
    "flag": 0,
    "reconsume_times": 0,
    "prepared_transaction_offset": 0,
    "as_one": False,
}
GROUP: Final = {"exchange": b"", "routing_keys": [b"q"], "properties": b"\0\0", "bodies": packed([b"x"])}
TAKEN: Final = {"queue_id": 0, "queue_offset": 0, "count": 1, "skipped": 0, "claim": 1}
RIGHT: Final[dict[str, Any]] = {
    **dict.fromkeys(("name", "queue", "user", "component", "pattern", "message_id", "key", "group"), "q"),
    **dict.fromkeys(("tag", "wait_ms", "time_ms", "count", "queues", "last", "size", "value"), 1),
    **dict.fromkeys(("half_offset", "physical_offset", "queue_id", "queue_offset"), 0),
    **dict.fromkeys(("several", "passive", "force"), False),
    **dict.fromkeys(("if_empty", "if_unused"), True),
    **dict.fromkeys(("configure", "write", "read"), ".*"),
    "ids": [],
    "tags": [],
    "limits": {},
    "document": {},
    "request": {"want": "snapshot"},
    **dict.fromkeys(("seen_up_to", "where", "after")),
    "vhost": "/",
    "names": ["q"],
    "to": ["", "q"],
    "id": f"0:0:{'00' * 16}",
    "groups": [GROUP],
    "bodies": packed([b"x"]),
    "properties": {},
    "batches": [BATCH],
    "verb": "record",
    "topic": "t",
    "ends": {0: 9},
    "mode": "default",
    "password": "p",
    "exchange": "amq.topic",
    "source": "amq.topic",
    "destination": "q",
    "destination_type": "queue",
    "routing_key": "q",
    "type": "topic",
    **dict.fromkeys(("durable", "auto_delete", "internal"), False),
    "arguments": {},
    "definition": {"max-length": 9},
    "moment": 0.0,
    "place": "first",
}
"""By name: an argument that a verb takes."""


@pytest.fixture
def guest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[warren.Node]:
    """A guest of a node with a queue, a topic, delayed messages and a transaction; no part of the host may stop."""
    with (
        warren.open(tmp_path, share=True) as host,
        warren.open(tmp_path, share=True) as guest,
        caplog.at_level("ERROR"),
    ):
        guest.queue("q").publish_many([b"x"] * 3).wait()
        guest.queue("q").publish(b"later", delay=1000.0).wait()
        guest.topic("t").append(b"x").wait()
        guest.topic("t").prepare(b"x")
        yield guest
        queue, topic = host.queue("q"), host.topic("t")
        assert queue.stats()["messages_delayed"] == 1
        assert len(host.delayed()) == len(host.pending_transactions()) == 1
        assert topic.lag("other").keys() == topic.offsets().keys()
        assert ("/", "q") in [(queue["vhost"], queue["name"]) for queue in host.definitions()["queues"]]
    stopped = [record for record in caplog.records if getattr(record, "event", "") in {"actor_stopped", "queue_down"}]
    assert [record.getMessage() for record in stopped] == []


def refused(guest: warren.Node, verb: str, /, **arguments: Any) -> Exception:
    """The error that a call brings."""
    try:
        result = run(call(guest._verbs.host.remote, verb, **arguments))  # type: ignore[attr-defined]
    except (WarrenError, ValueError, TypeError, LookupError) as error:
        return error
    raise AssertionError(f"{verb} {arguments!r:.200} returned {result!r:.100}")


def performed(guest: warren.Node, name: str, of: str, /, **keywords: Any) -> Exception:
    return refused(guest, name, of=of, arguments=keywords)


def test_no_argument_of_another_type_reaches_an_actor(guest: warren.Node) -> None:
    errors = [
        performed(guest, "topic.seek", "t", group="g", place={0.5: 0}),
        performed(guest, "topic.seek", "t", group="g", place={0: 0.5}),
        performed(guest, "topic.seek", "a@b", group="g", place="first"),
        performed(guest, "queue.page", "q", count=-1, after=None),
        performed(guest, "queue.page", "q", count=1, after=[0, "x"]),
        performed(guest, "queue.select", "q", where=None, after=None, ends={0: "x"}),
        performed(guest, "queue.length", "q", colour=1),
        performed(guest, "vhost.delayed", "/", queue="x" * 300),
        refused(guest, "queue.get", name="q", count=0.5),
        refused(guest, "queue.get", name=["q"], count=1),
        refused(guest, "channel.retry", tag=1, wait_ms=10**18),
        refused(guest, "channel.extend", tag=1, time_ms=-1),
        performed(guest, "vhost.declare_queue", "/", name=["new"], properties={}),
        performed(guest, "vhost.declare_queue", "/", name="new", properties={"durable": 5}),
        performed(guest, "vhost.declare_queue", "/", name="new", properties={"colour": 5}),
        performed(guest, "vhost.declare_queue", "/", name="new", properties={"arguments": {1: 2}}),
        performed(guest, "node.declare_vhost", "/", name=5),
        refused(guest, "queue.publish_as_they_were", name="q", groups=[GROUP | {"routing_keys": ["q"]}]),
        performed(guest, "node.declare_topic", "/", name="t", queues=0.5),
        refused(guest, "topic.append", batches=[BATCH | {"queue_id": 1 << 40}]),
        refused(guest, "topic.append", batches=[BATCH | {"topic": "../t"}]),
        refused(guest, "topic.append", batches=[BATCH | {"properties": {"x": 1}}]),
        refused(guest, "topic.append", batches=[BATCH | {"born_host": HOST | {"address": b"x"}}]),
        refused(guest, "transaction", verb="commit", topic="t", half_offset=0.5, physical_offset=0, size=1),
    ]
    assert [error for error in errors if not isinstance(error, WarrenError) or isinstance(error, ServerError)] == []


def _reader(guest: warren.Node, **arguments: Any) -> ReaderChannel:
    channel = ReaderChannel(guest._verbs.host.remote.link)  # type: ignore[attr-defined]
    channel.open().get()
    channel.join(topic="t", group="g", name="n", **arguments).get()
    return channel


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        {"broadcast": True, "positions": {0.5: 0}},
        {"broadcast": True, "positions": {0: 0.5}},
        {"broadcast": True, "positions": {0: -1}},
        {"broadcast": True, "positions": {99: 0}},
        {"consume_from": {0.5: 0}},
        {"consume_from": {0: "x"}},
        {"consume_from": {99: 0}},
        {"consume_from": -1},
        {"tags": [5]},
        {"broadcast": 5},
        {"colour": 5},
    ],
    ids=str,
)
def test_a_reader_of_a_stranger_does_not_join(guest: warren.Node, arguments: dict[str, Any]) -> None:
    with pytest.raises(WarrenError):
        _reader(guest, **arguments)
    with pytest.raises(WarrenError):
        _reader(guest, consume_from="nowhere")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("take", {"max_records": 0.5}),
        ("commit", {"done": [["t", 0.0, 1, 1]]}),
        ("commit", {"done": [["t", 0, 0.5, 1]]}),
        ("commit", {"done": [["t", 0, "x", 1]]}),
        ("commit", {"done": [["t", 0, 1, [5]]]}),
        ("commit", {"done": [[["t"], 0, 1, 1]]}),
        ("take_back", {"topic": "t", "taken": TAKEN | {"queue_offset": "x"}, "queue_offset": 0}),
        ("take_back", {"topic": "t", "taken": TAKEN | {"colour": 5}, "queue_offset": 0}),
        ("take_back", {"topic": "t", "taken": TAKEN, "queue_offset": 0.5}),
        ("take_back", {"topic": ["t"], "taken": TAKEN, "queue_offset": 0}),
        ("send_back", {"record": "x", "delay_level": 0}),
        ("__init__", {}),
    ],
    ids=str,
)
def test_a_reader_of_a_stranger_changes_nothing(guest: warren.Node, verb: str, arguments: dict[str, Any]) -> None:
    channel = _reader(guest)
    with pytest.raises(WarrenError) as caught:
        channel.call(verb, **arguments).get()
    assert not isinstance(caught.value, ServerError)
    assert guest.topic("t").groups()["g"]["committed"] == dict.fromkeys(range(4), 0)


@pytest.mark.slow
def test_no_verb_stops_an_actor_whatever_it_is_called_with(guest: warren.Node) -> None:
    remote = guest._verbs.host.remote  # type: ignore[attr-defined]

    def attempt(verb: str, /, **arguments: Any) -> None:
        with contextlib.suppress(WarrenError, ValueError, TypeError, LookupError):
            run(call(remote, verb, **arguments))

    for verb in sorted(VERBS.keys() - {"reader", "reader.join"}):
        names = list(inspect.signature(VERBS[verb]).parameters)[1:]
        right = {name: RIGHT[name] for name in names}
        for strange in STRANGE:
            for name in names:
                attempt(verb, **right | {name: strange})
            if verb == "topic.append":
                for name in BATCH:
                    attempt(verb, batches=[BATCH | {name: strange}])
    of = {"node": "", "users": "", "vhost": "/", "queue": "q", "topic": "t"}
    for name in sorted(DEFINITIONS.keys() - {"node.delete_vhost", "queue.purge"}):
        definition = DEFINITIONS[name]
        parameters = list(inspect.signature(definition.body).parameters.values())[1:]
        right = {one.name: RIGHT[one.name] for one in parameters if one.default is one.empty or one.name in RIGHT}
        for strange in STRANGE:
            for one in parameters:
                attempt(name, of=of[definition.target], arguments=right | {one.name: strange})
            attempt(name, of=strange, arguments=right)
            attempt(name, of=of[definition.target], arguments=strange)
            if name == "vhost.declare_queue":
                for field in ("durable", "exclusive", "auto_delete", "arguments"):
                    attempt(name, of="/", arguments=right | {"name": "new", "properties": {field: strange}})
