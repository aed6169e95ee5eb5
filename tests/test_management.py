"""The management API of a node: who may ask what, and what it answers. Beside RabbitMQ's: test_management_broker."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pika
import pytest
import trustme

import warren
from tests.support.management_tools import Api
from tests.support.server_tools import served
from tests.support.waiting import wait_until
from warren import management
from warren.management import ManagementSettings
from warren.management.access import Sessions
from warren.management.http import HttpError
from warren.management.lists import listed
from warren.management.rates import Rates, rates_of
from warren.management.routing import Route, Router
from warren.management.server import HttpProtocol, ManagementServer
from warren.server import ServerSettings
from warren.server.peer import is_loopback
from warren.server.settings import ListenError
from warren.storage.errors import SettingsError


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[warren.Node]:
    with warren.open(tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture(scope="module")
def server(node: warren.Node) -> Iterator[ManagementServer]:
    with management.serve(node, port=0) as server:
        yield server


@pytest.fixture(scope="module")
def api(server: ManagementServer) -> Iterator[Api]:
    with Api(server.url) as api:
        yield api


AskAs = Callable[..., Api]


@pytest.fixture
def ask_as(api: Api, request: pytest.FixtureRequest) -> Iterator[AskAs]:
    """Makes a user of the test's own, with tags and maybe all permissions in a vhost."""
    found: list[Api] = []

    def make(tags: str, vhost: str | None = None) -> Api:
        name = f"user{len(found)}"
        assert api.ask("PUT", f"/users/{name}", {"password": "secret", "tags": tags}).status in (201, 204)
        if vhost is not None:
            every = {"configure": ".*", "write": ".*", "read": ".*"}
            assert api.ask("PUT", f"/permissions/{vhost}/{name}", every).status in (201, 204)
        found.append(Api(api.url, name, "secret"))
        return found[-1]

    yield make
    for number, one in enumerate(found):
        one.close()
        api.ask("DELETE", f"/users/user{number}")


# ── who may what ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nobody_is_let_in_without_a_name_and_a_password(server: ManagementServer, api: Api) -> None:
    for auth in (None, ("guest", "wrong"), ("nobody", "guest"), ("guest", "")):
        answer = httpx.get(f"{server.url}api/whoami", auth=auth)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == 'Basic realm="RabbitMQ Management"'
    broken = httpx.get(f"{server.url}api/whoami", headers={"authorization": "Basic ?"})
    assert broken.status_code == 401
    assert api.get("/whoami") == {"name": "guest", "tags": ["administrator"]}


WHO: dict[str, dict[str, int]] = {
    "": {"/whoami": 401, "/overview": 401},
    "management": {"/whoami": 200, "/overview": 200, "/nodes": 401, "/users": 401, "/policies/%2F": 200,
                   "/parameters/x/%2F": 401, "/definitions": 401, "/queues/%2F": 200, "/queues/other": 401},
    "policymaker": {"/whoami": 200, "/nodes": 401, "/users": 401, "/parameters/x/%2F": 200,
                    "/parameters/x/other": 401, "/global-parameters": 200},
    "monitoring": {"/whoami": 200, "/nodes": 200, "/users": 401, "/vhosts": 200, "/queues/other": 401,
                   "/vhost-limits/other": 200, "/parameters/x/%2F": 401},
    "administrator": {"/nodes": 200, "/users": 200, "/definitions": 200, "/queues/other": 200},
}  # fmt: skip
"""By a user's tags: the status of paths, for one who may use the vhost "/" and not the vhost "other"."""


@pytest.mark.parametrize("tags", WHO)
def test_tags_say_who_may_look_at_what(api: Api, ask_as: AskAs, tags: str) -> None:
    api.ask("PUT", "/vhosts/other", {})
    one = ask_as(tags, "%2F")
    assert {path: one.ask("GET", path).status for path in WHO[tags]} == WHO[tags]
    if tags == "management":
        assert [vhost["name"] for vhost in one.get("/vhosts")] == ["/"]
    if tags == "monitoring":
        assert {vhost["name"] for vhost in one.get("/vhosts")} == {"/", "other"}
    api.ask("DELETE", "/vhosts/other")


def test_permissions_hold_for_requests(api: Api, ask_as: AskAs) -> None:
    one = ask_as("management", "%2F")
    api.ask("PUT", "/permissions/%2F/user0", {"configure": "^mine", "write": "^(mine|amq.default)", "read": "^mine"})
    assert one.ask("PUT", "/queues/%2F/mine", {}).status == 201
    assert api.ask("PUT", "/queues/%2F/theirs", {}).status == 201
    message = {"routing_key": "mine", "properties": {}, "payload": "x", "payload_encoding": "string"}
    assert one.ask("POST", "/exchanges/%2F/amq.default/publish", message).document == {"routed": True}
    denied = [
        one.ask("PUT", "/queues/%2F/other", {}),
        one.ask("DELETE", "/queues/%2F/theirs"),
        one.ask("DELETE", "/queues/%2F/theirs/contents"),
        one.ask("POST", "/queues/%2F/theirs/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}),
        one.ask("GET", "/queues/%2F/theirs/browse"),
        one.ask("POST", "/queues/%2F/theirs/move", {"to": "mine", "count": 1}),
        one.ask("POST", "/queues/%2F/theirs/remove", {"where": "TRUE"}),
        one.ask("POST", "/queues/%2F/theirs/requeue", {}),
        one.ask("POST", "/queues/%2F/theirs/take", {"id": "x"}),
        one.ask("POST", "/queues/%2F/mine/move", {"exchange": "amq.topic", "routing_key": "x"}),
        one.ask("PUT", "/queues/%2F/mine2", {"arguments": {"x-dead-letter-exchange": "amq.fanout"}}),
        one.ask("POST", "/bindings/%2F/e/amq.topic/q/mine", {}),
        one.ask("POST", "/exchanges/%2F/amq.topic/publish", message),
    ]
    assert [(answer.status, answer.document["error"]) for answer in denied[:-1]] == [(401, "not_authorised")] * 12
    assert denied[-1].status == 400  # RabbitMQ publishes through a channel, and repeats what closed that
    assert denied[-1].document["reason"].startswith("403 ACCESS_REFUSED - access to exchange 'amq.topic'")
    for name in ("mine", "theirs"):
        assert api.ask("DELETE", f"/queues/%2F/{name}").status == 204


def test_a_user_whose_password_changes_is_out_at_once(api: Api, ask_as: AskAs) -> None:
    one = ask_as("management")
    assert one.ask("GET", "/whoami").status == 200
    api.ask("PUT", "/users/user0", {"password": "other", "tags": "management"})
    assert one.ask("GET", "/whoami").status == 401


# ── sessions of the page ─────────────────────────────────────────────────────────────────────────────────────────────


def _log_in(server: ManagementServer, password: str = "guest", **headers: str) -> tuple[httpx.Client, httpx.Response]:
    client = httpx.Client(base_url=server.url)
    return client, client.post("/login", json={"username": "guest", "password": password}, headers=headers)


@pytest.mark.slow
def test_a_session_needs_its_token_for_every_change(server: ManagementServer) -> None:
    client, answer = _log_in(server)
    assert answer.json()["name"] == "guest"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    token = {"x-csrf-token": answer.json()["csrf_token"]}
    assert client.get("/api/whoami").json()["name"] == "guest"
    assert client.get("/session").json()["csrf_token"] == token["x-csrf-token"]
    changes = [("PUT", "/api/queues/%2F/s"), ("DELETE", "/api/queues/%2F/s"), ("POST", "/logout")]
    for method, path in changes:
        assert client.request(method, path).status_code == 403
        assert client.request(method, path, headers={"x-csrf-token": "x"}).status_code == 403
    for method, path in changes:
        assert client.request(method, path, headers=token).status_code in (201, 204)
    assert client.get("/session").json() is None
    assert client.get("/api/whoami").status_code == 401


def test_another_sites_page_changes_nothing(server: ManagementServer) -> None:
    for elsewhere in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}):
        _, answer = _log_in(server, **elsewhere)
        assert answer.status_code == 403
        put = httpx.put(f"{server.url}api/queues/%2F/s", auth=("guest", "guest"), headers=elsewhere)
        assert put.status_code == 403
    form = httpx.post(f"{server.url}login", data={"username": "guest", "password": "guest"})
    assert form.status_code == 415
    _, wrong = _log_in(server, password="wrong")
    assert wrong.status_code == 401


def test_a_session_ends_with_its_users_password(server: ManagementServer, api: Api) -> None:
    api.ask("PUT", "/users/ann", {"password": "one", "tags": "management"})
    client = httpx.Client(base_url=server.url)
    assert client.post("/login", json={"username": "ann", "password": "one"}).status_code == 200
    assert client.get("/api/whoami").status_code == 200
    api.ask("PUT", "/users/ann", {"password": "two", "tags": "management"})
    assert client.get("/api/whoami").status_code == 401
    assert client.get("/session").json() is None
    api.ask("DELETE", "/users/ann")


def test_sessions_end_by_time_and_are_bounded() -> None:
    now = 0.0
    sessions = Sessions(60.0, lambda: now)
    first, _ = sessions.begin(_user("a"))
    assert sessions.get(first) is not None
    for number in range(2000):
        sessions.begin(_user(str(number)))
    assert len(sessions) == 1000
    assert sessions.get(first) is None
    last, _ = sessions.begin(_user("b"))
    now = 60.0
    assert sessions.get(last) is None


def _user(name: str) -> Any:
    from warren.actors.engines.declared.users import User

    return User(name, b"")


def test_every_answer_has_the_security_headers(server: ManagementServer) -> None:
    for path in ("", "app.js", "api/whoami", "nothing", "metrics"):
        headers = httpx.get(f"{server.url}{path}").headers
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "unsafe" not in headers["content-security-policy"]
        assert "default-src 'none'" in headers["content-security-policy"]


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _publish(api: Api, key: str, payload: str, **properties: Any) -> Any:
    said = {"routing_key": key, "properties": properties, "payload": payload, "payload_encoding": "string"}
    return api.ask("POST", "/exchanges/%2F/amq.default/publish", said)


@pytest.fixture
def two_queues(api: Api) -> Iterator[tuple[str, str]]:
    names = ("from", "to")
    for name in names:
        assert api.ask("PUT", f"/queues/%2F/{name}", {"durable": True}).status == 201
    yield names
    for name in names:
        api.ask("DELETE", f"/queues/%2F/{name}")


def test_messages_are_browsed_in_pages_and_left(api: Api, two_queues: tuple[str, str]) -> None:
    for number in range(5):
        _publish(api, "from", f"m{number}", headers={"n": number}, delivery_mode=2)
    first = api.get("/queues/%2F/from/browse?count=3")
    second = api.get(f"/queues/%2F/from/browse?count=3&after={first['next']}")
    assert [one["payload"] for one in first["messages"] + second["messages"]] == [f"m{n}" for n in range(5)]
    assert first["messages"][1]["properties"] == {"headers": {"n": 1}, "delivery_mode": 2}
    assert second["next"] is None
    queue = api.get("/queues/%2F/from")
    assert (queue["messages_ready"], queue["messages_unacknowledged"]) == (5, 0)
    assert queue["message_stats"]["publish"] == 5
    assert "deliver_get" in queue["message_stats"]


def test_messages_are_moved_in_order_with_their_properties(api: Api, two_queues: tuple[str, str]) -> None:
    for number in range(600):
        _publish(api, "from", f"m{number}", message_id=str(number), delivery_mode=2) if number < 5 else None
    assert api.ask("POST", "/queues/%2F/from/move", {"to": "to", "count": 3}).document == {"moved": 3}
    assert api.ask("POST", "/queues/%2F/from/move", {"to": "from", "count": 3}).status == 400
    assert api.ask("POST", "/queues/%2F/from/move", {"to": "none", "count": 3}).status == 404
    moved = api.get("/queues/%2F/to/browse")["messages"]
    assert [one["properties"]["message_id"] for one in moved] == ["0", "1", "2"]
    assert [one["payload"] for one in api.get("/queues/%2F/from/browse")["messages"]] == ["m3", "m4"]
    assert api.get("/queues/%2F/from")["messages_unacknowledged"] == 0


def test_messages_are_browsed_by_condition_and_mended_by_id(api: Api, two_queues: tuple[str, str]) -> None:
    for number in range(8):
        _publish(api, "from", f"m{number}", headers={"n": number}, delivery_mode=2)
    first = api.get("/queues/%2F/from/browse?count=2&where=headers['n']%20%3E%203")
    assert [one["payload"] for one in first["messages"]] == ["m4", "m5"]
    rest = api.get(f"/queues/%2F/from/browse?count=5&where=headers['n']%20%3E%203&after={first['next']}")
    assert ([one["payload"] for one in rest["messages"]], rest["next"]) == (["m6", "m7"], None)
    one, two = (message["id"] for message in first["messages"])
    taken = api.ask("POST", "/queues/%2F/from/take", {"id": one}).document
    assert (taken["payload"], taken["properties"]["headers"], taken["id"]) == ("m4", {"n": 4}, one)
    assert api.ask("POST", "/queues/%2F/from/take", {"id": one}).status == 404
    assert api.ask("POST", "/queues/%2F/from/remove", {"ids": [one, two]}).document == {"removed": 1}
    assert api.ask("POST", "/queues/%2F/from/remove", {"where": "headers['n'] < 3", "count": 2}).document == {
        "removed": 2
    }
    by_key = {"exchange": "amq.direct", "routing_key": "to", "where": "headers['n'] = 3"}
    refused = api.ask("POST", "/queues/%2F/from/move", by_key)
    assert (refused.status, "0 messages were moved" in refused.document["reason"]) == (400, True)
    api.ask("POST", "/bindings/%2F/e/amq.direct/q/to", {"routing_key": "to"})
    assert api.ask("POST", "/queues/%2F/from/move", by_key).document == {"moved": 1}
    assert api.ask("POST", "/queues/%2F/from/move", {"to": "to", "where": "headers['n'] > 6"}).document == {"moved": 1}
    assert [one["payload"] for one in api.get("/queues/%2F/to/browse")["messages"]] == ["m3", "m7"]
    assert [one["payload"] for one in api.get("/queues/%2F/from/browse")["messages"]] == ["m2", "m6"]
    assert api.ask("POST", "/queues/%2F/from/requeue", {}).document == {"requeued": 0, "stayed": 0}
    for wrong in ({}, {"where": "n ="}, {"where": 3}, {"ids": "all"}, {"ids": ["x"]}, {"ids": [], "where": "unacked"}):
        assert api.ask("POST", "/queues/%2F/from/remove", wrong).status == 400, wrong
    assert api.ask("GET", "/queues/%2F/from/browse?where=n%20%3D").status == 400
    for too_large, why in (
        (f"body = '{'x' * 10_000}'", "at most 10,000"),
        ("TRUE" + " OR unacked" * 101, "100 fields"),
    ):
        refused = api.ask("POST", "/queues/%2F/from/remove", {"where": too_large})
        assert (refused.status, why in refused.document["reason"]) == (400, True)


def test_dead_letters_are_sent_back(api: Api, two_queues: tuple[str, str]) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "to"}
    assert api.ask("PUT", "/queues/%2F/dies", {"durable": True, "arguments": arguments}).status == 201
    _publish(api, "dies", "letter", delivery_mode=2)
    api.ask("POST", "/queues/%2F/dies/get", {"count": 1, "ackmode": "reject_requeue_false", "encoding": "auto"})
    wait_until(lambda: api.get("/queues/%2F/to/browse")["messages"], "the letter to be dead")
    assert api.ask("POST", "/queues/%2F/to/requeue", {}).document == {"requeued": 1, "stayed": 0}
    assert [one["payload"] for one in api.get("/queues/%2F/dies/browse?where=NOT%20unacked")["messages"]] == ["letter"]
    api.ask("DELETE", "/queues/%2F/dies")


def test_a_queue_that_refuses_says_so(api: Api) -> None:
    full = {"arguments": {"x-max-length": 1, "x-overflow": "reject-publish"}}
    assert api.ask("PUT", "/queues/%2F/full", full).status == 201
    assert _publish(api, "full", "one").document == {"routed": True}
    refused = _publish(api, "full", "two")
    assert (refused.status, refused.document["reason"]) == (
        400,
        "rejected Unable to publish message. Check queue limits.",
    )
    api.ask("DELETE", "/queues/%2F/full")


STRANGE: tuple[str, ...] = (
    "null", "[]", "{}", '"x"', "-1", "1.5", "true", "1e999", '"\\ud800"', '{"a": null}', '{"a": [1, {}]}',
    str(1 << 80), '"' + "x" * 300 + '"', "[" * 200 + "]" * 200, '"\\u0000"',
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("value", STRANGE, ids=lambda value: value[:20])
def test_whatever_a_request_says_is_answered(api: Api, value: str) -> None:
    """With a status below 500, and the node goes on."""
    requests = [
        ("PUT", "/queues/%2F/odd", ("durable", "auto_delete", "arguments", "node")),
        ("PUT", "/queues/%2F/odd", ("arguments/x-message-ttl", "arguments/x-max-length", "arguments/x-y")),
        ("PUT", "/exchanges/%2F/odd", ("type", "durable", "internal", "arguments", "arguments/alternate-exchange")),
        ("POST", "/bindings/%2F/e/amq.headers/q/odd", ("routing_key", "arguments", "arguments/x-match", "arguments/y")),
        ("POST", "/exchanges/%2F/amq.fanout/publish",
         ("routing_key", "properties", "properties/headers", "properties/priority", "properties/expiration",
          "properties/delivery_mode", "properties/timestamp", "properties/headers/x", "properties/user_id", "payload",
          "payload_encoding")),
        ("POST", "/queues/%2F/odd/get", ("count", "ackmode", "encoding", "truncate")),
        ("POST", "/queues/%2F/odd/move", ("to", "count", "where", "ids", "exchange")),
        ("POST", "/queues/%2F/odd/remove", ("where", "ids", "count")),
        ("POST", "/queues/%2F/odd/requeue", ("where", "ids", "count")),
        ("POST", "/queues/%2F/odd/take", ("id",)),
        ("POST", "/queues/%2F/odd/actions", ("action",)),
        ("PUT", "/users/odd", ("tags", "password", "password_hash", "hashing_algorithm")),
        ("POST", "/users/bulk-delete", ("users",)),
        ("PUT", "/permissions/%2F/odd", ("configure", "write", "read")),
        ("PUT", "/topic-permissions/%2F/odd", ("exchange", "write", "read")),
        ("PUT", "/user-limits/odd/max-channels", ("value",)),
        ("PUT", "/vhost-limits/%2F/max-connections", ("value",)),
        ("PUT", "/policies/%2F/odd", ("pattern", "definition", "definition/max-length", "priority", "apply-to")),
        ("PUT", "/operator-policies/%2F/odd", ("pattern", "definition", "definition/max-length")),
        ("PUT", "/parameters/shovel/%2F/odd", ("value",)),
        ("PUT", "/global-parameters/odd", ("value",)),
        ("PUT", "/vhosts/odd", ("description", "tags", "tracing", "default_queue_type")),
        ("POST", "/definitions", ("queues", "vhosts", "users", "policies", "bindings", "parameters", "permissions")),
        ("POST", "/definitions/%2F", ("queues", "exchanges", "parameters")),
    ]  # fmt: skip
    usual = {
        "properties": {}, "routing_key": "", "payload": "", "payload_encoding": "string", "count": 1, "to": "none",
        "ackmode": "ack_requeue_true", "encoding": "auto", "tags": "", "configure": "", "write": "", "read": "",
        "pattern": "^none$", "definition": {"max-length": 1}, "value": 1, "exchange": "amq.topic",
    }  # fmt: skip
    failed = []
    for method, path, fields in requests:
        for field in fields:
            document = usual | {"vhosts": []} if "definitions" not in path else {}
            answer = api.ask(method, path, _with(document, field.split("/"), value))
            if answer.status >= 500 and answer.status != 503:
                failed.append((method, path, field, answer.document))
    assert not failed
    for path in ("/queues/%2F/odd", "/exchanges/%2F/odd", "/users/odd", "/vhosts/odd", "/global-parameters/odd",
                 "/policies/%2F/odd", "/operator-policies/%2F/odd", "/parameters/shovel/%2F/odd",
                 "/vhost-limits/%2F/max-connections"):  # fmt: skip
        api.ask("DELETE", path)
    assert api.get("/whoami")["name"] == "guest"


def _with(document: dict[str, Any], path: list[str], value: str) -> str:
    """JSON in which a field has a value, however strange."""
    marker = "@value@"
    nested: Any = marker
    for name in reversed(path[1:]):
        nested = {name: nested}
    return json.dumps({**document, path[0]: nested}).replace(f'"{marker}"', value)


def test_a_body_that_is_too_long_is_refused(tmp_path: Path) -> None:
    settings = ManagementSettings(management_tcp_port=0, management_max_http_body_size=1000)
    with warren.open(tmp_path / "node") as node, management.serve(node, settings) as server, Api(server.url) as api:
        assert _publish(api, "q", "x" * 2000).status == 400
        assert _publish(api, "q", "x").status == 200


# ── beside a server ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_runs_in_the_loop_of_a_server_and_shows_its_clients(tmp_path: Path) -> None:
    with warren.open(tmp_path / "node") as node:
        server = node.serve(ServerSettings(port=0, management=ManagementSettings(management_tcp_port=0)))
        assert server.management is not None
        with Api(server.management.url) as api:
            port = server.addresses[0][1]
            connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
            channel = connection.channel()
            queue = channel.queue_declare("", exclusive=True).method.queue
            channel.basic_consume(queue, lambda *_: None, consumer_tag="tag")
            (consumer,) = api.get("/consumers")
            assert (consumer["consumer_tag"], consumer["queue"]) == ("tag", {"name": queue, "vhost": "/"})
            (detail,) = api.get(f"/queues/%2F/{queue}")["consumer_details"]
            assert detail["channel_details"]["name"] == api.get("/channels")[0]["name"]
            get = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
            locked = api.ask("POST", f"/queues/%2F/{queue}/get", get)
            assert (locked.status, locked.document["reason"][:21]) == (400, "405 RESOURCE_LOCKED -")
            overview = api.get("/overview")
            assert overview["object_totals"]["connections"] == 1
            assert port in [one["port"] for one in overview["listeners"]]
            connection.close()
        server.stop()
        assert not node._running.hosted


def test_a_connection_is_closed_with_a_long_reason(tmp_path: Path) -> None:
    with served(tmp_path / "node", ServerSettings(management=ManagementSettings(management_tcp_port=0))) as here:
        assert here.server.management is not None
        with here.connection() as client, Api(here.server.management.url) as api:
            (name,) = (quote(one["name"]) for one in api.get("/connections"))
            url = f"{api.url}/api/connections/{name}"
            answer = httpx.delete(url, auth=("guest", "guest"), headers={"x-reason": "r" * 300})
            assert answer.status_code == 204
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
                client.process_data_events(5)
    text = closed.value.reply_text
    assert (text[:23], text[-4:], len(text)) == ("CONNECTION_FORCED - rrr", "r...", 255)


@pytest.mark.slow
def test_who_connects_and_asks_nothing_is_let_go(tmp_path: Path) -> None:
    settings = ManagementSettings(management_tcp_port=0, management_tcp_request_timeout=100)
    with warren.open(tmp_path / "node") as node, management.serve(node, settings) as server:
        with socket.create_connection(server.addresses[0], timeout=20) as silent:
            assert silent.recv(1) == b""
        with socket.create_connection(server.addresses[0], timeout=20) as slow:
            slow.sendall(b"GET /api/whoami HTTP/1.1\r\nhost: x\r\n")
            assert slow.recv(1) == b""
        with socket.create_connection(server.addresses[0], timeout=20) as second:
            second.sendall(b"GET /api/whoami HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                answer += second.recv(1 << 16)
            second.sendall(b"GET /api/whoami HTTP/1.1\r\nhost: x\r\n")
            assert second.recv(1) == b""
        with httpx.Client(base_url=server.url, auth=("guest", "guest")) as client:
            assert client.get("/api/whoami").status_code == 200


def test_who_does_not_send_the_rest_of_a_request_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HttpProtocol, "body_timeout_s", 0.1)
    with warren.open(tmp_path / "node") as node, management.serve(node, port=0) as server:
        for credentials in (b"", b"authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"):
            with socket.create_connection(server.addresses[0], timeout=20) as slow:
                head = b"PUT /api/queues/%2F/q HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n"
                slow.sendall(head + credentials + b"\r\n{")
                while slow.recv(1 << 16):
                    pass  # refused at once where it says not who it is; and what it still owes is waited for


def test_it_speaks_https_where_it_has_a_certificate(tmp_path: Path) -> None:
    authority, server_pem = trustme.CA(), str(tmp_path / "server.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(server_pem)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    settings = ManagementSettings(
        management_tcp_port=0, management_ssl_certfile=server_pem, management_ssl_keyfile=server_pem
    )
    with warren.open(tmp_path / "node") as node, management.serve(node, settings) as server:
        assert server.url.startswith("https://")
        with httpx.Client(base_url=server.url, verify=context) as client:
            answer = client.post("/login", json={"username": "guest", "password": "guest"})
            assert "; Secure" in answer.headers["set-cookie"]


@pytest.mark.slow
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "plain beside TLS"])
def test_warren_serve_has_options_for_it(tls: bool, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "warren", "serve", str(tmp_path / "node"), "--port", "0", "--management-port", "0"]
    if tls:
        server_pem = str(tmp_path / "server.pem")
        trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(server_pem)
        command += ["--tls-port", "0", "--certfile", server_pem, "--keyfile", server_pem, "--no-management-tls"]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = json.loads(process.stdout.readline())
            assert len(found["addresses"]) == 1 + tls
            with Api(found["management"]) as api:
                assert api.get("/whoami")["name"] == "guest"
                assert api.get("/health/checks/protocol-listener/amqp091")["status"] == "ok"
        finally:
            process.terminate()
        assert process.wait(30) == 0


def test_it_ends_with_its_node_and_does_not_start_twice_on_a_port(tmp_path: Path) -> None:
    with warren.open(tmp_path / "node") as node:
        server = management.serve(node, port=0)
        with pytest.raises(ListenError):
            management.serve(node, port=server.addresses[0][1])
        url = server.url
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_settings_that_cannot_be() -> None:
    for wrong in (
        {"management_tcp_port": 70_000},
        {"management_ssl_certfile": os.devnull},
        {"management_ssl_certfile": "/nowhere", "management_ssl_keyfile": "/nowhere"},
        {"management_login_session_timeout": 0},
        {"management_tcp_request_timeout": 0},
    ):
        with pytest.raises(SettingsError):
            ManagementSettings(**wrong)
    assert is_loopback(ManagementSettings().management_tcp_ip)
    assert not is_loopback("0.0.0.0")


# ── the parts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_rates_are_over_the_last_seconds_and_few_samples_are_kept() -> None:
    rates = Rates()
    assert rates.note("q", 0.0, {"publish": 10}) == {"publish": 0.0}
    assert rates.note("q", 2.0, {"publish": 30}) == {"publish": 10.0}
    for second in range(3, 100):
        found = rates.note("q", float(second), {"publish": 30 + 5 * (second - 2)})
    assert found == {"publish": 5.0}
    assert rates.note("q", 99.5, {"publish": 30 + 5 * 97 + 100})["publish"] > 5
    assert rates_of({"publish": 3}, {"publish": 0.6}) == {"publish": 3, "publish_details": {"rate": 0.6}}
    rates.note("other", 0.0, {})
    rates.keep(["q"])
    assert len(rates) == 1


def test_samples_of_the_past_are_those_of_their_moments() -> None:
    rates = Rates()
    for second in range(100, 6000, 5):
        rates.note("q", float(second), {"n": second, "m": 7})
    assert rates.samples("q", "n", [5999.0, 5990.0, 5600.5]) == [5995, 5990, 5600]
    assert rates.samples("q", "n", [5000.0, 4000.0]) == [5000, 4000]  # older than ten minutes: between those of minutes
    assert rates.samples("q", "n", [50.0, 0.0]) == [2335, 2335]  # of an hour and a little more
    assert rates.samples("q", "other", [999.0]) == [0]
    rates.note("new", 990.0, {"n": 5})
    assert rates.samples("new", "n", [995.0, 985.0]) == [5, 0]
    for second in range(1000, 3000, 5):
        rates.note("new", float(second), {"n": 6})
    assert rates.samples("new", "n", [2999.0, 2400.0, 1000.0]) == [6, 6, 6]


def test_a_queue_and_its_node_have_samples_of_the_past(api: Api) -> None:
    asked = "lengths_age=60&lengths_incr=5&msg_rates_age=20&msg_rates_incr=10"
    api.ask("PUT", "/queues/%2F/past", {})
    for _ in range(3):
        api.ask("POST", "/exchanges/%2F/amq.default/publish", {
            "routing_key": "past", "properties": {}, "payload": "x", "payload_encoding": "string",
        })  # fmt: skip
    found = api.get(f"/queues/%2F/past?{asked}")
    samples = found["messages_details"]["samples"]
    assert len(samples) == 13
    assert {one - other for one, other in pairwise([one["timestamp"] for one in samples])} == {5000}
    assert len(found["message_stats"]["publish_details"]["samples"]) == 3
    assert "samples" not in api.get("/queues/%2F/past")["messages_details"]
    assert api.get("/exchanges/%2F/amq.default")["message_stats"]["publish_in"] >= 3
    for path in ("/overview", "/vhosts/%2F"):
        assert "samples" in str(api.get(f"{path}?{asked}"))
    assert api.ask("GET", "/queues?lengths_age=3601&lengths_incr=60").document["error"] == "invalid_range_parameters"


def _events(response: httpx.Response) -> Iterator[Any]:
    """The events of a stream, without comments."""
    return (json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line.startswith("data: "))


def test_an_event_stream_has_answers_again_when_they_differ(tmp_path: Path) -> None:
    path = "/queues/%2F/streamed?columns=arguments,name"
    with (
        warren.open(tmp_path / "node") as node,
        management.serve(node, port=0) as server,
        httpx.stream(
            "GET", f"{server.url}api/events", params={"path": ["/whoami", path]}, auth=("guest", "guest")
        ) as stream,
    ):
        assert stream.headers["content-type"].startswith("text/event-stream")
        events = _events(stream)
        whoami = {"status": 200, "body": {"name": "guest", "tags": ["administrator"]}}
        assert next(events)[0] == whoami
        node.queue("streamed")
        assert next(events) == [whoami, {"status": 200, "body": {"arguments": {}, "name": "streamed"}}]
        with Api(server.url) as own:
            own.ask("PUT", "/users/guest", {"password": "changed", "tags": "administrator"})
        assert [answer["status"] for answer in next(events)] == [401, 401]
        server.stop()
        assert list(events) == []  # the stream ends with the server


def test_an_event_stream_without_a_session_opens_no_prompt_of_the_browser(server: ManagementServer) -> None:
    answer = httpx.get(f"{server.url}api/events?path=/whoami", headers={"accept": "text/event-stream"})
    assert (answer.status_code, answer.headers.get("www-authenticate")) == (401, None)


@pytest.mark.parametrize("query", ["", "path=x", "path=/events", "path=/%C3%A4", "&".join(["path=/whoami"] * 9)])
def test_an_event_stream_of_no_paths_or_too_many_is_refused(api: Api, query: str) -> None:
    assert api.ask("GET", f"/events?{query}").status == 400


def test_a_snapshot_is_cut_into_pages(tmp_path: Path) -> None:
    with warren.open(tmp_path / "node") as node, management.serve(node, port=0) as server, Api(server.url) as own:
        for number in range(7):
            node.queue(f"q{number}")
        pages = [own.get(f"/snapshot?sort=name&limit=3&page={page}&name=Q") for page in range(1, 5)]
        assert [[row["name"] for row in page["queues"]] for page in pages] == [
            ["q0", "q1", "q2"], ["q3", "q4", "q5"], ["q6"], [],
        ]  # fmt: skip
        assert {page["matching"] for page in pages} == {7}
        assert own.ask("GET", "/snapshot?page=0").status == 400


def test_lists_are_sorted_filtered_and_cut() -> None:
    items = [{"vhost": "/", "name": name, "n": n, "in": {"x": -n}} for n, name in enumerate(("b", "A", "c"))]
    assert [one["name"] for one in listed(items, {})] == ["A", "b", "c"]
    assert [one["name"] for one in listed(items, {"sort": "in.x"})] == ["c", "A", "b"]
    assert listed(items, {"sort": "n", "sort_reverse": "true", "columns": "name"})[0] == {"name": "c"}
    assert listed(items, {"columns": "in.x", "sort": "n"}) == [{"in": {"x": 0}}, {"in": {"x": -1}}, {"in": {"x": -2}}]
    page = listed(items, {"page": "2", "page_size": "2", "columns": "name"}, pages=True)
    assert page["items"] == [{"name": "c"}]
    assert (page["total_count"], page["item_count"], page["page_count"]) == (3, 1, 2)
    assert [one["name"] for one in listed(items, {"page": "1", "name": "a"}, pages=True)["items"]] == ["A"]
    patterns = ("(", "^(?!amq)", "(a)\\1", "x" * 1001)
    wrong = [{"page": "1", "name": pattern, "use_regex": "true"} for pattern in patterns]
    for query in ({"page": "0"}, {"page": "x"}, {"page": "9"}, *wrong):
        with pytest.raises(HttpError):
            listed(items, query, pages=True)
    assert len(listed(items, {"page": "1", "name": "^[ab].*$", "use_regex": "true"}, pages=True)["items"]) == 2
    long = {"page": "1", "name": "a?" * 60 + "a" * 60 + "$|(b|c|[bc])+$", "use_regex": "true"}
    names = [{"name": "a" * 59 + "!"}, {"name": "b" * 250 + "!"}, {"name": "cb"}]
    assert [one["name"] for one in listed(names, long, pages=True)["items"]] == ["cb"]


def test_a_path_is_split_before_it_is_decoded() -> None:
    async def handler(_: Any) -> None: ...

    routes = [Route(path, "any", {"GET": handler}) for path in ("/a/:x", "/a/fixed", "/a/:x/:y", "/a/fixed/b")]
    router = Router.of(routes)

    def found(path: str) -> Any:
        match = router.find(path)
        return None if match is None else (match[0].path, match[1])

    assert found("/a/%2F") == ("/a/:x", {"x": "/"})
    assert found("/a/fixed") == ("/a/fixed", {})
    assert found("/a/fixed/") == ("/a/fixed", {})
    assert found("/a/fixed/c") == ("/a/:x/:y", {"x": "fixed", "y": "c"})
    assert found("/a/%2F/c%20d") == ("/a/:x/:y", {"x": "/", "y": "c d"})
    assert found("/b") is None
    assert found("/a/x/y/z") is None


def test_an_argument_that_is_no_utf8_survives_a_backup() -> None:
    key = {"k": b"\xff\xfe"}
    with (
        warren.open(":memory:") as old,
        warren.open(":memory:") as new,
        management.serve(old, port=0) as from_here,
        management.serve(new, port=0) as to_there,
        Api(from_here.url) as source,
        Api(to_there.url) as target,
    ):
        old.bind(old.queue("q"), old.exchange("h", "headers"), arguments=key)
        backup = source.get("/definitions")
        assert backup["bindings"] == old.definitions()["bindings"]
        assert source.ask("POST", "/definitions", backup).status == 204
        assert len(old.definitions()["bindings"]) == 1, "it was there already"
        assert target.ask("POST", "/definitions", old.definitions()).status == 204
        new.exchange("h").publish(b"routed", headers=key).wait()
        assert len(new.queue("q")) == 1


def test_definitions_come_back_as_they_went(api: Api, tmp_path: Path) -> None:
    api.ask("PUT", "/queues/%2F/kept", {"durable": True, "arguments": {"x-max-length": 3}})
    api.ask("PUT", "/users/ann", {"password": "one", "tags": "management"})
    api.ask("PUT", "/policies/%2F/p", {"pattern": "^k", "definition": {"max-length": 2}, "apply-to": "queues"})
    assert api.get("/queues/%2F/kept")["policy"] == "p"
    document = api.get("/definitions")
    with warren.open(tmp_path / "node") as node, management.serve(node, port=0) as server, Api(server.url) as other:
        assert other.ask("POST", "/definitions", json.dumps(document)).status == 204
        assert other.get("/definitions") == document
        ann = Api(server.url, "ann", "one")
        assert ann.get("/whoami")["name"] == "ann"
        ann.close()
    for path in ("/queues/%2F/kept", "/users/ann", "/policies/%2F/p"):
        assert api.ask("DELETE", path).status == 204


# ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stream_is_listed_among_the_queues(api: Api) -> None:
    stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    assert [api.ask("PUT", "/queues/%2F/stream", stream).status for _ in range(2)] == [201, 204]
    sent = {"properties": {}, "routing_key": "stream", "payload": "x", "payload_encoding": "string"}
    for _ in range(3):
        assert api.ask("POST", "/exchanges/%2F/amq.default/publish", sent).document == {"routed": True}
    found = api.get("/queues/%2F/stream")
    [among] = [one for one in api.get("/queues/%2F") if one["name"] == "stream"]
    fixed = {name: value for name, value in among.items() if not name.endswith("_details")}  # rates are of the moment
    assert {name: found[name] for name in fixed} == fixed
    assert (found["type"], found["state"], found["messages"], found["messages_ready"]) == ("stream", "running", 3, 3)
    assert (found["consumers"], found["consumer_details"], found["policy"]) == (0, [], None)
    assert found["members"] == found["online"] == [found["node"]]
    refused = api.ask("DELETE", "/queues/%2F/stream/contents")
    assert refused.status == 400
    assert refused.document["reason"] == "queue.purge not supported by stream queues queue 'stream' in vhost '/'"
    get = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    refused = api.ask("POST", "/queues/%2F/stream/get", get)
    assert refused.status == 400
    assert refused.document["reason"] == "540 basic.get not supported by stream queues queue 'stream' in vhost '/'"
    assert api.ask("DELETE", "/queues/%2F/stream?if-empty=true").status == 204
    assert api.ask("GET", "/queues/%2F/stream").status == 404


def test_a_stream_is_browsed_by_offsets_and_drawn_among_the_queues(api: Api) -> None:
    api.ask("PUT", "/queues/%2F/browsed-log", {"durable": True, "arguments": {"x-queue-type": "stream"}})
    for number in range(3):
        api.ask("POST", "/exchanges/%2F/amq.default/publish", {
            "routing_key": "browsed-log", "properties": {}, "payload": f"m{number}", "payload_encoding": "string",
        })  # fmt: skip
    first = api.get("/queues/%2F/browsed-log/browse?count=2")
    assert [(one["offset"], one["payload"]) for one in first["messages"]] == [(0, "m0"), (1, "m1")]
    second = api.get(f"/queues/%2F/browsed-log/browse?count=2&after={first['next']}")
    assert [one["payload"] for one in second["messages"]] == ["m2"]
    assert api.get(f"/queues/%2F/browsed-log/browse?after={second['next']}") == {"messages": [], "next": None}
    assert api.get("/snapshot?queue=browsed-log")["queue"]["type"] == "stream"


def test_a_stream_that_cannot_be_is_refused(api: Api) -> None:
    refused = api.ask("PUT", "/queues/%2F/stream", {"durable": False, "arguments": {"x-queue-type": "stream"}})
    assert refused.status == 400
    assert refused.document["reason"] == "invalid property 'non-durable' for queue 'stream' in vhost '/'"
