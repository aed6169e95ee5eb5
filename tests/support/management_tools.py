"""Requests to a management API, one after the other: each finds what those before it have made; and a comparison of
what two APIs answer.
"""

from __future__ import annotations

import json
from typing import Any

import attrs
import httpx


@attrs.frozen
class Answer:
    """What came back."""

    status: int
    document: Any
    headers: dict[str, str]


class Api:
    """A client of a management API, with the credentials of one user."""

    def __init__(self, url: str, user: str = "guest", password: str = "guest") -> None:
        self.url = url.rstrip("/")
        alone = httpx.Limits(max_keepalive_connections=0)  # RabbitMQ ends a connection now and then, unannounced
        self._client = httpx.Client(base_url=f"{self.url}/api", auth=(user, password), timeout=30.0, limits=alone)

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        """One request."""
        sent: dict[str, Any] = {}
        if body is not None:
            sent["content"] = body if isinstance(body, str) else json.dumps(body)
            sent["headers"] = {"content-type": "application/json"}
        response = self._client.request(method, path, **sent)
        kept = {name: response.headers[name] for name in ("location", "allow") if name in response.headers}
        return Answer(response.status_code, response.json() if response.content else None, kept)

    def get(self, path: str) -> Any:
        """What a path has; an error fails the test."""
        answer = self.ask("GET", path)
        assert answer.status == 200, (path, answer)
        return answer.document

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def said(request: Request) -> str:
    """A request, for people."""
    method, path, body = request
    return f"{method} {path}" + ("" if body is None else f" {json.dumps(body)}")


def shape(value: Any) -> Any:
    """The keys and kinds of values of a document; of a list, those of all its items together."""
    match value:
        case bool():
            return "truth"
        case int() | float():
            return "number"
        case None:
            return "null"
        case str():
            return "text"
        case dict():
            return {name: shape(one) for name, one in value.items()}
        case _:
            items: Any = None
            for one in value:
                items = _joined(items, shape(one))
            return [items]


def _joined(one: Any, other: Any) -> Any:
    if one is None or one == other:
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _joined(one.get(name), other.get(name, one.get(name))) for name in one | other}
    return one


def differences(there: Any, here: Any, where: str = "") -> list[str]:
    """How the shape of a document here is not that of the one there."""
    if isinstance(there, dict) and isinstance(here, dict):
        found = [f"{where}.{name}: missing" for name in sorted(there.keys() - here.keys())]
        found += [f"{where}.{name}: too many" for name in sorted(here.keys() - there.keys())]
        for name in sorted(there.keys() & here.keys()):
            found += differences(there[name], here[name], f"{where}.{name}")
        return found
    if isinstance(there, list) and isinstance(here, list):
        return [] if [None] in (there, here) else differences(there[0], here[0], f"{where}[]")
    return [] if there == here else [f"{where}: {there} there, {here} here"]


Request = tuple[str, str, Any]
"""Method, path below ``/api``, and the body: a value that is sent as JSON, a text that is sent as it is, or none."""

REQUESTS: tuple[Request, ...] = (
    ("PUT", "/queues/%2F/elsewhere", {"node": "none@nowhere"}),
    ("PUT", "/queues/%2F/t1", {}),
    ("PUT", "/queues/%2F/t1", {}),
    ("PUT", "/queues/%2F/t1", {"durable": False}),
    ("PUT", "/queues/%2F/t1b", {"durable": "true", "auto_delete": "false", "arguments": {"x-max-length": 5}}),
    ("PUT", "/queues/%2F/t2", {"arguments": {"x-message-ttl": "abc"}}),
    ("PUT", "/queues/%2F/amq.t2", {}),
    ("PUT", "/queues/nov/t2", {}),
    ("PUT", "/queues/%2F/t2", "notjson"),
    ("PUT", "/queues/%2F/t2", "[1]"),
    ("PUT", "/queues/%2F/t2", '"a"'),
    ("PUT", "/queues/%2F/t2", None),
    ("PUT", "/exchanges/%2F/x1", {}),
    ("PUT", "/exchanges/%2F/x1", {"type": "direct"}),
    ("PUT", "/exchanges/%2F/x1", {"type": "direct"}),
    ("PUT", "/exchanges/%2F/x1", {"type": "fanout"}),
    ("PUT", "/exchanges/%2F/x2", {"type": "nope"}),
    ("PUT", "/exchanges/%2F/amq.x", {"type": "direct"}),
    ("PUT", "/exchanges/%2F/xi", {"type": "fanout", "internal": True}),
    ("POST", "/bindings/%2F/e/x1/q/t1", {"routing_key": "k", "arguments": {"a": "b"}}),
    ("POST", "/bindings/%2F/e/x1/q/t1", {}),
    ("POST", "/bindings/%2F/e/x1/q/nope", {}),
    ("POST", "/bindings/%2F/e/x1/e/xi", {"routing_key": "a/b c~%é"}),
    ("POST", "/bindings/%2F/e/amq.default/q/t1", {"routing_key": "z"}),
    ("GET", "/bindings/%2F/e/x1/q/t1", None),
    ("GET", "/bindings/%2F/e/x1/e/xi", None),
    ("GET", "/bindings/%2F/e/x1/q/t1/~", None),
    ("GET", "/bindings/%2F/e/x1/q/t1/nope", None),
    ("GET", "/bindings/%2F/e/x1/q/t1/nope~zzz", None),
    ("GET", "/bindings/%2F", None),
    ("GET", "/bindings/nov", None),
    ("GET", "/exchanges/%2F/x1/bindings/source", None),
    ("GET", "/exchanges/%2F/xi/bindings/destination", None),
    ("GET", "/exchanges/%2F/none/bindings/source", None),
    ("GET", "/queues/%2F/none/bindings", None),
    ("GET", "/queues/nov/none/bindings", None),
    (
        "POST",
        "/exchanges/%2F/x1/publish",
        {"routing_key": "", "properties": {}, "payload": "hi", "payload_encoding": "string"},
    ),
    (
        "POST",
        "/exchanges/%2F/x1/publish",
        {"routing_key": "gone", "properties": {}, "payload": "hi", "payload_encoding": "string"},
    ),
    (
        "POST",
        "/exchanges/%2F/x1/publish",
        {
            "routing_key": "",
            "properties": {
                "headers": {"a": 1, "b": [1, 2], "c": {"d": "e"}, "f": 1.5, "g": True, "h": None},
                "delivery_mode": 2,
                "priority": 3,
                "content_type": "t/x",
                "expiration": "60000",
                "timestamp": 123,
                "message_id": "m",
            },
            "payload": "aGk=",
            "payload_encoding": "base64",
        },
    ),
    (
        "POST",
        "/exchanges/%2F/amq.default/publish",
        {"routing_key": "t1", "properties": {}, "payload": "/w==", "payload_encoding": "base64"},
    ),
    (
        "POST",
        "/exchanges/%2F/x1/publish",
        {"routing_key": "", "properties": {}, "payload": "a", "payload_encoding": "zip"},
    ),
    (
        "POST",
        "/exchanges/%2F/x1/publish",
        {"routing_key": "", "properties": {}, "payload": "!!", "payload_encoding": "base64"},
    ),
    (
        "POST",
        "/exchanges/%2F/x1/publish",
        {"routing_key": "", "properties": {}, "payload": 5, "payload_encoding": "string"},
    ),
    ("POST", "/exchanges/%2F/x1/publish", {"routing_key": ""}),
    ("POST", "/exchanges/%2F/none/publish", {"routing_key": ""}),
    (
        "POST",
        "/exchanges/%2F/xi/publish",
        {"routing_key": "", "properties": {}, "payload": "hi", "payload_encoding": "string"},
    ),
    (
        "POST",
        "/exchanges/%2F/x1/publish",
        {"routing_key": "", "properties": {"user_id": "bob"}, "payload": "hi", "payload_encoding": "string"},
    ),
    (
        "POST",
        "/exchanges/%2F/x1/publish",
        {"routing_key": "", "properties": {"expiration": "x"}, "payload": "hi", "payload_encoding": "string"},
    ),
    (
        "POST",
        "/exchanges/%2F/x1/publish",
        {"routing_key": "", "properties": {"expiration": "-1"}, "payload": "hi", "payload_encoding": "string"},
    ),
    (
        "POST",
        "/exchanges/%2F/x1/publish",
        {"routing_key": "", "properties": {"expiration": "5x"}, "payload": "hi", "payload_encoding": "string"},
    ),
    (
        "POST",
        "/exchanges/%2F/x1/publish",
        {"routing_key": "", "properties": {"expiration": "99999999999"}, "payload": "hi", "payload_encoding": "string"},
    ),
    (
        "POST",
        "/exchanges/%2F/x1/publish",
        {"routing_key": "", "properties": [], "payload": "hi", "payload_encoding": "string"},
    ),
    ("POST", "/queues/%2F/t1/get", {"count": 10, "ackmode": "ack_requeue_true", "encoding": "auto"}),
    (
        "POST",
        "/queues/%2F/t1/get",
        {"count": "1", "ackmode": "reject_requeue_true", "encoding": "base64", "truncate": 1},
    ),
    ("POST", "/queues/%2F/t1/get", {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}),
    ("POST", "/queues/%2F/t1/get", {"count": 1, "ackmode": "reject_requeue_false", "encoding": "auto"}),
    ("POST", "/queues/%2F/t1/get", {"count": 1, "ackmode": "bogus", "encoding": "auto"}),
    ("POST", "/queues/%2F/t1/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "x"}),
    ("POST", "/queues/%2F/t1/get", {"count": "x", "ackmode": "ack_requeue_true", "encoding": "auto"}),
    ("POST", "/queues/%2F/t1/get", {"count": 1}),
    ("POST", "/queues/%2F/none/get", {"count": 1}),
    ("GET", "/queues/%2F/t1/get", None),
    ("PUT", "/queues/%2F/t1/get", {}),
    ("DELETE", "/queues/%2F/t1/contents", None),
    ("GET", "/queues/%2F/t1/contents", None),
    ("DELETE", "/queues/%2F/none/contents", None),
    ("POST", "/queues/%2F/t1/actions", {"action": "sync"}),
    ("POST", "/queues/%2F/t1/actions", {"action": "x"}),
    ("DELETE", "/bindings/%2F/e/x1/q/t1/~", None),
    ("DELETE", "/bindings/%2F/e/x1/q/t1/~", None),
    ("DELETE", "/queues/%2F/t1b?if-empty=true&if-unused=true", None),
    ("DELETE", "/queues/%2F/none", None),
    ("GET", "/queues/%2F/none", None),
    ("GET", "/queues/nov", None),
    ("GET", "/queues/nov/none", None),
    ("DELETE", "/exchanges/%2F/x1?if-unused=true", None),
    ("DELETE", "/exchanges/%2F/x1", None),
    ("DELETE", "/exchanges/%2F/x1", None),
    ("DELETE", "/exchanges/%2F/amq.direct", None),
    ("DELETE", "/exchanges/%2F/xi", None),
    ("DELETE", "/queues/%2F/t1", None),
    ("DELETE", "/queues/%2F/t2", None),
    ("DELETE", "/queues/%2F/t1b", None),
    ("PUT", "/vhosts/v1", {}),
    ("PUT", "/vhosts/v1", {}),
    ("PUT", "/vhosts/v1", {"description": "d", "tags": "a,b"}),
    ("GET", "/vhosts/v1", None),
    ("GET", "/vhosts/none", None),
    ("DELETE", "/vhosts/none", None),
    ("GET", "/vhosts/v1/permissions", None),
    ("GET", "/vhosts/v1/topic-permissions", None),
    ("GET", "/vhosts/none/permissions", None),
    ("GET", "/vhosts/v1/connections", None),
    ("GET", "/vhosts/v1/channels", None),
    ("GET", "/vhosts/none/channels", None),
    ("PUT", "/users/u1", {"password": "pw", "tags": "management"}),
    ("PUT", "/users/u1", {"password": "pw", "tags": ["management", "x"]}),
    ("PUT", "/users/u2", {"password": "pw"}),
    ("PUT", "/users/u2", {"tags": ""}),
    ("PUT", "/users/u3", {"password_hash": "", "tags": ""}),
    ("PUT", "/users/u3", {"password_hash": "!!", "tags": ""}),
    ("PUT", "/users/u3", {"password_hash": "", "tags": "", "password": "x"}),
    ("PUT", "/users/u4", {"password": "", "tags": ""}),
    ("GET", "/users/u1", None),
    ("GET", "/users/u3", None),
    ("GET", "/users", None),
    ("GET", "/users/without-permissions", None),
    (
        "PUT",
        "/users/u5",
        {"password_hash": "", "hashing_algorithm": "rabbit_password_hashing_sha512", "tags": "monitoring"},
    ),
    ("PUT", "/permissions/v1/u1", {"configure": ".*", "write": ".*", "read": ".*"}),
    ("PUT", "/permissions/v1/u1", {"configure": ".*", "write": "a", "read": ".*"}),
    ("PUT", "/permissions/v1/u1", {"configure": "(", "write": ".*", "read": ".*"}),
    ("PUT", "/permissions/v1/u1", {"configure": ".*"}),
    ("PUT", "/permissions/none/u1", {"configure": ".*", "write": ".*", "read": ".*"}),
    ("PUT", "/permissions/v1/none", {"configure": ".*", "write": ".*", "read": ".*"}),
    ("GET", "/permissions/v1/u1", None),
    ("GET", "/permissions/v1/none", None),
    ("GET", "/permissions/%2F/u1", None),
    ("GET", "/users/u1/permissions", None),
    ("GET", "/users/none/permissions", None),
    ("GET", "/users/u1/topic-permissions", None),
    ("PUT", "/topic-permissions/v1/u1", {"exchange": "amq.topic", "write": ".*", "read": ".*"}),
    ("PUT", "/topic-permissions/v1/u1", {"write": ".*", "read": ".*"}),
    ("GET", "/topic-permissions/v1/u1", None),
    ("GET", "/topic-permissions", None),
    ("GET", "/topic-permissions/v1/none", None),
    ("DELETE", "/topic-permissions/v1/u1/amq.topic", None),
    ("DELETE", "/topic-permissions/v1/u1", None),
    ("GET", "/topic-permissions/v1/u1", None),
    ("DELETE", "/permissions/v1/u1", None),
    ("DELETE", "/permissions/v1/u1", None),
    ("POST", "/users/bulk-delete", {"users": ["u3", "u4", "nobody"]}),
    ("POST", "/users/bulk-delete", {}),
    ("PUT", "/user-limits/u1/max-connections", {"value": 5}),
    ("GET", "/user-limits", None),
    ("GET", "/user-limits/u1", None),
    ("DELETE", "/user-limits/u1/max-connections", None),
    ("PUT", "/user-limits/u1/bogus", {"value": 5}),
    ("DELETE", "/users/u1", None),
    ("DELETE", "/users/u1", None),
    ("DELETE", "/users/u2", None),
    ("DELETE", "/users/u5", None),
    ("PUT", "/policies/%2F/p1", {"pattern": "^p", "definition": {"max-length": 5}}),
    (
        "PUT",
        "/policies/%2F/p1",
        {"pattern": "^p", "definition": {"max-length": 5}, "priority": 3, "apply-to": "queues"},
    ),
    ("PUT", "/policies/%2F/p2", {"pattern": "^p", "definition": {"bogus": 5}}),
    ("PUT", "/policies/%2F/p2", {"pattern": "(", "definition": {"max-length": 5}}),
    ("PUT", "/policies/%2F/p2", {"pattern": "^p", "definition": {}}),
    ("PUT", "/policies/%2F/p2", {"pattern": "^p"}),
    ("PUT", "/policies/%2F/p2", {"pattern": "^p", "definition": {"max-length": "x"}}),
    ("PUT", "/policies/none/p2", {"pattern": "^p", "definition": {"max-length": 5}}),
    ("PUT", "/policies/%2F/p2", {"pattern": "^p", "definition": {"max-length": 5}, "apply-to": "bogus"}),
    ("PUT", "/policies/%2F/p2", {"pattern": "^p", "definition": {"max-length": 5}, "priority": "a"}),
    ("GET", "/policies", None),
    ("GET", "/policies/%2F", None),
    ("GET", "/policies/%2F/p1", None),
    ("GET", "/policies/%2F/none", None),
    ("GET", "/policies/none", None),
    ("DELETE", "/policies/%2F/p1", None),
    ("DELETE", "/policies/%2F/p1", None),
    ("PUT", "/operator-policies/%2F/o1", {"pattern": "^p", "definition": {"max-length": 5}, "apply-to": "queues"}),
    ("PUT", "/operator-policies/%2F/o2", {"pattern": "^p", "definition": {"dead-letter-exchange": "a"}}),
    ("GET", "/operator-policies", None),
    ("GET", "/operator-policies/%2F/o1", None),
    ("DELETE", "/operator-policies/%2F/o1", None),
    ("PUT", "/parameters/bogus/%2F/n", {"value": {"a": 1}}),
    ("GET", "/parameters/bogus", None),
    ("GET", "/parameters/bogus/%2F/n", None),
    ("DELETE", "/parameters/bogus/%2F/n", None),
    ("PUT", "/parameters/policy/%2F/n", {"value": {"pattern": "x", "definition": {"max-length": 1}}}),
    ("PUT", "/parameters/vhost-limits/%2F/limits", {"value": {"max-queues": 500}}),
    ("PUT", "/parameters/vhost-limits/%2F/limits", {"value": {"max-queues": "x"}}),
    ("PUT", "/parameters/vhost-limits/%2F/limits", {"value": {"bogus": 1}}),
    ("GET", "/parameters/vhost-limits/%2F/limits", None),
    ("GET", "/vhost-limits", None),
    ("DELETE", "/parameters/vhost-limits/%2F/limits", None),
    ("GET", "/vhost-limits", None),
    ("PUT", "/global-parameters/g1", {"value": {"a": 1}}),
    ("PUT", "/global-parameters/g1", {"value": "x"}),
    ("PUT", "/global-parameters/g1", {}),
    ("GET", "/global-parameters/g1", None),
    ("GET", "/global-parameters/none", None),
    ("GET", "/parameters", None),
    ("DELETE", "/global-parameters/g1", None),
    ("DELETE", "/global-parameters/g1", None),
    ("PUT", "/vhost-limits/v1/max-queues", {"value": 5}),
    ("PUT", "/vhost-limits/v1/bogus", {"value": 5}),
    ("PUT", "/vhost-limits/v1/max-queues", {"value": "x"}),
    ("PUT", "/vhost-limits/none/max-queues", {"value": 5}),
    ("GET", "/vhost-limits", None),
    ("GET", "/vhost-limits/v1", None),
    ("DELETE", "/vhost-limits/v1/max-queues", None),
    ("DELETE", "/vhost-limits/v1/max-queues", None),
    ("GET", "/vhost-limits/none", None),
    ("DELETE", "/vhosts/v1", None),
    ("GET", "/definitions/%2F", None),
    ("GET", "/definitions/none", None),
    (
        "POST",
        "/definitions",
        {"queues": [{"name": "dq", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}]},
    ),
    ("POST", "/definitions/%2F", {"queues": [{"name": "dq2", "durable": True, "auto_delete": False, "arguments": {}}]}),
    ("POST", "/definitions", "x"),
    ("POST", "/definitions/none", {}),
    (
        "POST",
        "/definitions",
        {"queues": [{"name": "dq", "vhost": "none", "durable": True, "auto_delete": False, "arguments": {}}]},
    ),
    ("POST", "/definitions", {}),
    ("DELETE", "/queues/%2F/dq", None),
    ("DELETE", "/queues/%2F/dq2", None),
    ("PUT", "/cluster-name", {"name": "cn"}),
    ("GET", "/cluster-name", None),
    ("PUT", "/cluster-name", {}),
    ("GET", "/nodes/none", None),
    ("GET", "/connections/none", None),
    ("DELETE", "/connections/none", None),
    ("GET", "/connections/none/channels", None),
    ("GET", "/channels/none", None),
    ("GET", "/consumers/%2F", None),
    ("GET", "/consumers/none", None),
    ("GET", "/connections/username/guest", None),
    ("GET", "/connections/username/none", None),
    ("GET", "/aliveness-test/none", None),
    ("GET", "/healthchecks/node/none", None),
    ("GET", "/health/checks/local-alarms", None),
    ("GET", "/health/checks/certificate-expiration/1/months", None),
    ("GET", "/health/checks/certificate-expiration/1/eons", None),
    ("GET", "/health/checks/port-listener/1", None),
    ("GET", "/health/checks/port-listener/x", None),
    ("GET", "/health/checks/protocol-listener/amqp091", None),
    ("GET", "/health/checks/protocol-listener/mqtt", None),
    ("GET", "/health/checks/protocol-listener/bogus", None),
    ("GET", "/health/checks/virtual-hosts", None),
    ("GET", "/health/checks/node-is-mirror-sync-critical", None),
    ("GET", "/health/checks/node-is-quorum-critical", None),
    ("GET", "/nonsense", None),
    ("POST", "/overview", {}),
    ("DELETE", "/overview", None),
    ("GET", "/", None),
    ("GET", "/queues?page=0", None),
    ("GET", "/queues?page=x", None),
    ("GET", "/queues?page=5&page_size=2", None),
    ("GET", "/queues?page=1&page_size=501", None),
    ("GET", "/queues?page=1&page_size=1&name=Q&columns=name,message_stats.publish", None),
    ("GET", "/queues?page=1&name=^q&use_regex=true&columns=name", None),
    ("GET", "/queues?page=1&name=(&use_regex=true&columns=name", None),
    ("GET", "/exchanges?columns=name,type&sort=type&sort_reverse=true", None),
    ("GET", "/queues?sort=messages&columns=name,messages", None),
    ("GET", "/queues/%2F?disable_stats=true", None),
    ("GET", "/queues/%2F/q1?disable_stats=true", None),
    ("GET", "/queues/%2F?disable_stats=true&enable_queue_totals=true", None),
    ("GET", "/connections?page=1&columns=name", None),
    ("GET", "/users?page=1", None),
    ("GET", "/users?columns=name", None),
    ("GET", "/whoami?columns=name", None),
    ("GET", "/queues?lengths_age=60&lengths_incr=5&columns=name,messages_details", None),
    ("GET", "/queues/%2F/q1?lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5", None),
    ("GET", "/overview?lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5", None),
    ("GET", "/exchanges/%2F/amq.default?msg_rates_age=60&msg_rates_incr=5", None),
    ("GET", "/connections?data_rates_age=60&data_rates_incr=5", None),
    ("GET", "/nodes?node_stats_age=60&node_stats_incr=5", None),
    ("GET", "/queues?lengths_age=100000&lengths_incr=5", None),
    ("GET", "/queues?lengths_age=x&lengths_incr=5", None),
    ("GET", "/queues?lengths_age=60", None),
    ("GET", "/exchanges?disable_stats=true&page=1&page_size=2", None),
    ("GET", "/vhosts?page=1&columns=name", None),
    ("GET", "/channels?page=1&columns=name", None),
    ("GET", "/bindings?page=1", None),
    ("GET", "/exchanges/none", None),
    ("GET", "/exchanges/%2F/none", None),
    ("GET", "/exchanges/%2F/amq.default", None),
    ("PUT", "/queues/%2F/log", {"durable": True, "arguments": {"x-queue-type": "stream"}}),
    ("PUT", "/queues/%2F/log", {"durable": True, "arguments": {"x-queue-type": "stream"}}),
    ("PUT", "/queues/%2F/log", {"durable": True}),
    ("PUT", "/queues/%2F/log2", {"arguments": {"x-queue-type": "stream"}}),
    ("GET", "/queues/%2F/log?disable_stats=true&columns=name,type,durable,arguments", None),
    (
        "POST",
        "/exchanges/%2F/amq.default/publish",
        {"routing_key": "log", "properties": {}, "payload": "hi", "payload_encoding": "string"},
    ),
    ("POST", "/queues/%2F/log/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}),
    ("DELETE", "/queues/%2F/log/contents", None),
    ("DELETE", "/queues/%2F/log", None),
)
