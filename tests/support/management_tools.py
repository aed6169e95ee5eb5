"""Asking a management API, and comparing what two of them answer."""

from __future__ import annotations

import json
from typing import Any

import attrs
import httpx

from tests.support.management_requests import Request


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
