"""What a request of the management API is to its handlers, and how they answer: JSON, and RabbitMQ's errors."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final, TypeVar

import attrs
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from warren.actors.engines.errors import (
    AccessRefusedError,
    NotFoundError,
    RefusedError,
    ResourceLockedError,
)
from warren.actors.node_actor import NodeActor
from warren.aio import bridge
from warren.steps import Steps
from warren.storage.errors import WarrenError

T = TypeVar("T")

REALM: Final = 'Basic realm="RabbitMQ Management"'
_REST_EVERY: Final = 20
_LINE: Final = 78
"""Erlang breaks what it prints behind so many characters."""


class HttpError(WarrenError):
    """An answer that is an error, as RabbitMQ words it: ``{"error", "reason"}``."""

    def __init__(self, status: int, error: str, reason: Any, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{status} {error}: {reason}")
        self.status = status
        self.error = error
        self.reason = reason
        self.headers = dict(headers or {})

    def response(self) -> Response:
        """As it goes out."""
        return json_response({"error": self.error, "reason": self.reason}, self.status, self.headers)


def bad_request(reason: Any) -> HttpError:
    """400: what was asked for cannot be."""
    return HttpError(HTTPStatus.BAD_REQUEST, "bad_request", reason)


def not_found(reason: str | None = None) -> HttpError:
    """404; without a ``reason`` the path leads nowhere."""
    if reason is None:
        return HttpError(HTTPStatus.NOT_FOUND, "Object Not Found", "Not Found")
    return HttpError(HTTPStatus.NOT_FOUND, "not_found", reason)


def not_authorised(reason: str = "Access refused.") -> HttpError:
    """401 as well, but of one who is known: it may not."""
    return HttpError(HTTPStatus.UNAUTHORIZED, "not_authorised", reason)


def refused(error: RefusedError) -> HttpError:
    """What the node has refused to do, as the answer to a request for it."""
    match error:
        case NotFoundError():
            return not_found(str(error))
        case AccessRefusedError():
            return not_authorised()
        case ResourceLockedError():
            return bad_request(str(error))
        case _:
            return bad_request(str(error))


def refused_in_channel(error: RefusedError) -> HttpError:
    """The same where RabbitMQ does it through a channel, which is closed with a code."""
    if isinstance(error, (NotFoundError, AccessRefusedError)) and not isinstance(error, ResourceLockedError):
        return refused(error)
    return bad_request(closed_with(error))


def closed_with(error: RefusedError) -> str:
    """The code and text that a channel is closed with."""
    words = {403: "ACCESS_REFUSED", 404: "NOT_FOUND", 405: "RESOURCE_LOCKED"}
    return f"{error.reply_code} {words.get(error.reply_code, 'PRECONDITION_FAILED')} - {error}"


# ── answers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Done:
    """Something was changed: 204, or 201 where it is new."""

    new: bool = False
    location: str | None = None

    def response(self) -> Response:
        """As it goes out."""
        headers = {} if self.location is None else {"location": self.location}
        return Response(status_code=HTTPStatus.CREATED if self.new else HTTPStatus.NO_CONTENT, headers=headers)


@attrs.frozen
class Failed:
    """503: a health check that found something."""

    document: Mapping[str, Any]

    def response(self) -> Response:
        """As it goes out."""
        return json_response(self.document, HTTPStatus.SERVICE_UNAVAILABLE)


def escaped(text: str) -> str:
    """As RabbitMQ writes what a page may show as it is."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@attrs.frozen
class Long:
    """An answer that may take long: it is put together, and written as JSON, in a thread."""

    make: Callable[[], Any]

    def response(self) -> Response:
        """As it goes out."""
        found = self.make()
        if not isinstance(found, list):
            return json_response(found)
        return _response(b"[" + b",".join([_encoded(one) for one in with_rests(found)]) + b"]")


def with_rests(items: Iterable[T]) -> Iterator[T]:
    """These; now and then other threads get their turn, which wait for it otherwise as long as Python lets them."""
    for index, item in enumerate(items):
        if index % _REST_EVERY == 0:
            time.sleep(0)
        yield item


async def in_pieces(items: Iterable[T]) -> list[T]:
    """These; now and then the event loop does what else there is."""
    found = []
    for item in items:
        found.append(item)
        if len(found) % _REST_EVERY == 0:
            await asyncio.sleep(0)
    return found


def json_response(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON that no cache keeps."""
    return _response(_encoded(document), status, headers)


def _encoded(document: Any) -> bytes:
    return json.dumps(document, default=_plain, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def _response(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        body,
        status_code=status,
        headers={"cache-control": "no-cache", **(headers or {})},
        media_type="application/json",
    )


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    return str(value)


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def read_body(request: Request, at_most: int) -> bytes:
    """A request's body. Raises :class:`HttpError` where it is longer than ``at_most`` bytes."""
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > at_most:
                raise bad_request("Exceeded HTTP request body size limit")
            parts.append(part)
    except ClientDisconnect as error:
        raise bad_request("the request ended early") from error
    return b"".join(parts)


def parse_body(body: bytes) -> dict[str, Any]:
    """The object that a body holds; none is an empty one. Raises :class:`HttpError`."""
    if body in (b"", b"null", b"undefined"):
        return {}
    try:
        found = parse_json(body)
    except ValueError:
        raise bad_request("not_json") from None
    if isinstance(found, str):
        raise bad_request(
            "invalid payload: the request body JSON-decoded to a string. Is the input doubly-JSON-encoded?"
        )
    if found is None or isinstance(found, bool):
        return {}
    if not isinstance(found, dict):
        raise bad_request("not_json")
    return found


def parse_json(body: bytes) -> Any:
    """A value that can be written down again: of numbers and texts that are some. Raises ``ValueError``."""
    try:
        found = json.loads(body)
        json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return found


def arguments_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a declaration has. Raises :class:`HttpError`."""
    arguments = found.get("arguments") or {}
    if not isinstance(arguments, dict):
        raise bad_request("arguments are an object")
    return arguments


def required(found: Mapping[str, Any], *names: str) -> list[Any]:
    """Those values. Raises :class:`HttpError`, which says which are missing."""
    missing = [f"{{key_missing,{name}}}" for name in names if name not in found]
    if missing:
        line = f"[{','.join(missing)}]"
        raise bad_request(line if len(line) < _LINE else f"[{f',{chr(10)} '.join(missing)}]")
    return [found[name] for name in names]


def boolean(value: Any, otherwise: bool = False) -> bool:
    """A truth value, which may be said as a text. Raises :class:`HttpError`."""
    match value:
        case None:
            return otherwise
        case True | "true":
            return True
        case False | "false":
            return False
        case _:
            raise bad_request(["not_boolean", value])


def integer(value: Any) -> int:
    """A whole number, which may be said as a text. Raises :class:`HttpError`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return int(value) if isinstance(value, str) else int(str(value), 10)
    except ValueError:
        raise bad_request(["not_integer", value]) from None


# ── the node ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def changed(node: Any, work: Callable[[NodeActor], T]) -> T:
    """Change what is declared."""
    steps: Steps[T] = node.change(work)
    return await bridge.run(steps)
