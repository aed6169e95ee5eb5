"""Answers of the management API that are large: bounded, encoded in pieces, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

import warren
from tests.support.management_tools import Api
from warren import management, metrics
from warren.actors.engines.declared.definitions import Definitions
from warren.actors.engines.queue.queue_turn import PART_MESSAGES
from warren.hosting.running_node import RunningNode
from warren.management import http, lists
from warren.management.handlers import mending, messages
from warren.management.http import json_response
from warren.verbs.steps import run

QUEUE = "/queues/%2F/large"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[warren.Node]:
    with warren.open(tmp_path / "node", sync="os") as found:
        yield found


@pytest.fixture
def api(node: warren.Node) -> Iterator[Api]:
    with management.serve(node, port=0) as server, Api(server.url) as found:
        yield found


def asked(count: int, ackmode: str = "ack_requeue_false") -> dict[str, Any]:
    return {"count": count, "ackmode": ackmode, "encoding": "auto"}


def test_a_get_ends_where_its_answer_is_full_and_the_others_stay(
    node: warren.Node, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "ANSWER_BYTES", 1000)
    queue = node.queue("large")
    queue.publish_many([b"%d" % number * 300 for number in range(9)]).wait()
    first = api.ask("POST", f"{QUEUE}/get", asked(9)).document
    assert [(one["payload"][0], one["message_count"]) for one in first] == [("0", 8), ("1", 7), ("2", 6), ("3", 5)]
    rest = [one for _ in range(2) for one in api.ask("POST", f"{QUEUE}/get", asked(9)).document]
    assert [one["payload"][0] for one in rest] == ["4", "5", "6", "7", "8"]
    assert not any(one["redelivered"] for one in rest)


def test_a_get_counts_headers(node: warren.Node, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "ANSWER_BYTES", 1000)
    queue = node.queue("large")
    queue.publish_many([b""] * 200, headers={"long": "x" * 100}).wait()
    assert len(api.ask("POST", f"{QUEUE}/get", asked(200)).document) == PART_MESSAGES


def test_a_message_that_is_larger_than_an_answer_is_answered_alone(
    node: warren.Node, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "ANSWER_BYTES", 1000)
    node.queue("large").publish_many([bytes(5000), b"next"]).wait()
    assert [one["payload_bytes"] for one in api.ask("POST", f"{QUEUE}/get", asked(2)).document] == [5000]


def test_messages_whose_answer_fails_go_back(node: warren.Node, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = node.queue("large")
    queue.publish(b"kept").wait()
    monkeypatch.setattr(messages, "message_document", lambda *_: 1 / 0)
    assert api.ask("POST", f"{QUEUE}/get", asked(1)).status == 500
    assert [one.body for one in queue.get_many(1)] == [b"kept"]


def test_a_browse_ends_where_its_answer_is_full_and_says_where_it_goes_on(
    node: warren.Node, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mending, "ANSWER_BYTES", 1000)
    node.queue("large").publish_many([b"%d" % number * 300 for number in range(9)]).wait()
    for path in (f"{QUEUE}/browse?truncate=300", f"{QUEUE}/browse?truncate=300&where=size%20%3E%201"):
        seen: list[str] = []
        after: str | None = ""
        while after is not None:
            page = api.get(path + after)
            assert len(page["messages"]) <= 4
            seen += [one["payload"][0] for one in page["messages"]]
            after = None if page["next"] is None else f"&after={page['next']}"
        assert seen == list("012345678")
    assert len(api.get(f"{QUEUE}/browse?truncate=1")["messages"]) > 4


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.text('aé"\\\n', min_size=30, max_size=60),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_pieces_are_together_what_json_has(document: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http, "_PIECE_BYTES", 25)
        pieces, _ = asyncio.run(_sent(document))
    assert json.loads(b"".join(pieces)) == document


def test_others_are_served_between_two_pieces_of_an_answer() -> None:
    document = {"items": [{"name": "x" * 1000}] * 1000, "long": "y" * 1_000_000}
    pieces, served = asyncio.run(_sent(document))
    assert json.loads(b"".join(pieces)) == document
    assert max(map(len, pieces)) < 3 * http._PIECE_BYTES
    assert served >= len(pieces) - 1 > 20


async def _sent(document: Any) -> tuple[list[bytes], int]:
    """The pieces that are sent, and how many turns another task had meanwhile."""
    pieces, turns = list[bytes](), 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def send(message: Any) -> None:
        pieces.append(message.get("body", b""))

    async def receive() -> Any:
        raise AssertionError

    task = asyncio.get_running_loop().create_task(other())
    await json_response(document)({"type": "http", "method": "GET"}, receive, send)
    task.cancel()
    return [piece for piece in pieces if piece], turns


def test_a_long_list_is_sorted_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "_SORTED_AT_ONCE", 7)
    items = [{"vhost": "/", "name": str(number * 37 % 100), "n": number % 3} for number in range(100)]
    by_name = sorted(items, key=lambda item: (str(item["n"]), item["name"]))
    assert lists.listed(items, {"sort": "n"}) == by_name
    assert lists.listed(items, {"sort": "n", "sort_reverse": "true"}) == by_name[::-1]


def test_metrics_are_written_in_parts_as_prometheus_client_writes_them(
    node: warren.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        node.queue(f"queue\n{number}").publish(b"x").wait()
    stats = node.stats()
    served = [metrics.Series("counter", "served", "How many", {("a",): 1.0, ("b",): 2.0, ("c",): 3.0}, ("who",))]
    families = [*metrics.metrics_of(stats, per_object=True), *map(metrics._family, served)]
    monkeypatch.setattr(metrics, "_PART_SERIES", 2)
    parts = list(metrics.exposition(stats, served, per_object=True)[0])
    assert b"".join(parts) == generate_latest(metrics._Collected(families))
    assert max(part.count(b"\n") for part in parts) == metrics._COMMENT_LINES + 2


def test_metrics_are_sent_in_pieces(node: warren.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_PIECE_BYTES", 1000)
    node.queue("large").publish(b"x").wait()
    with management.serve(node, port=0) as server:
        answer = httpx.get(f"{server.url}metrics/per-object")
    assert answer.headers["transfer-encoding"] == "chunked"
    assert 'rabbitmq_queue_messages_ready{queue="large",vhost="/"} 1.0' in answer.text
    assert answer.text.endswith("\n")


def test_a_scrape_asks_no_queue_again(node: warren.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each queue was asked for the sums, and again for its own numbers."""
    node.queue("one").publish(b"x").wait()
    stats, known = RunningNode.stats, list[Any]()

    def noted(running: RunningNode, asked: Any = None) -> Any:
        known.append(asked)
        return stats(running, asked)

    monkeypatch.setattr(RunningNode, "stats", noted)
    with management.serve(node, port=0) as server:
        httpx.get(f"{server.url}metrics/per-object")
    assert known[0]["/", "one"]["messages_ready"] == 1
    answer = run(stats(node._running, {("/", "one"): {"messages_ready": 7}}))
    assert answer["vhosts"]["/"]["queues"]["one"] == {"messages_ready": 7, "messages_delayed": 0}


def test_pythons_garbage_is_not_collected_during_an_import(node: warren.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    importing = Definitions.importing

    def import_slices(*arguments: Any) -> Any:
        seen.append(gc.isenabled())
        yield from importing(*arguments)

    monkeypatch.setattr(Definitions, "importing", import_slices)
    node.import_definitions({"queues": [{"vhost": "/", "name": "q", "durable": True, "arguments": {}}]})
    with pytest.raises(warren.WarrenError):
        node.import_definitions({"bindings": [{"vhost": "/", "source": "nowhere", "destination": "q"}]})
    assert seen == [False, False]
    assert gc.isenabled()


def test_an_import_with_an_unknown_vhost_is_refused_by_its_name(node: warren.Node, api: Api) -> None:
    queue = {"name": "q", "durable": True, "arguments": {}}
    for unknown in ("nowhere", ["no", "name"]):
        document = {"queues": [queue | {"vhost": "/"}, queue | {"vhost": unknown}]}
        answer = api.ask("POST", "/definitions", document)
        assert (answer.status, answer.document["reason"]) == (400, ["no_such_vhost", unknown])
    assert not node.queues()
    document = {"vhosts": [{"name": "nowhere"}], "queues": [queue | {"vhost": "nowhere"}]}
    assert api.ask("POST", "/definitions", document).status == 204
    assert [found.name for found in node.vhost("nowhere").queues()] == ["q"]
