"""A request of the management API as its handlers see it, and their answers: JSON, and RabbitMQ's errors."""

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
from starlette.types import Receive, Scope, Send

from warren.actors.engines.errors import (
    AccessRefusedError,
    NotFoundError,
    RefusedError,
    ResourceLockedError,
)
from warren.aio import bridge
from warren.storage.errors import WarrenError

T = TypeVar("T")

REALM: Final = 'Basic realm="RabbitMQ Management"'
_REST_EVERY: Final = 20
_DEPTH: Final = 2
"""Lists in which a value's items are encoded one by one: those of an answer and of its objects."""
_LINE: Final = 78
"""The column after which Erlang breaks a line that it prints."""


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
    """Return a 400: the request cannot be fulfilled."""
    return HttpError(HTTPStatus.BAD_REQUEST, "bad_request", reason)


def not_found(reason: str | None = None) -> HttpError:
    """404; without a ``reason`` the path leads nowhere."""
    if reason is None:
        return HttpError(HTTPStatus.NOT_FOUND, "Object Not Found", "Not Found")
    return HttpError(HTTPStatus.NOT_FOUND, "not_found", reason)


def not_authorised(reason: str = "Access refused.") -> HttpError:
    """401 as well, but for a user who is known and lacks permission."""
    return HttpError(HTTPStatus.UNAUTHORIZED, "not_authorised", reason)


def refused(error: RefusedError) -> HttpError:
    """Return the answer to a request that the node has refused."""
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
    """The same for requests that RabbitMQ performs through a channel, which it then closes with a code."""
    if isinstance(error, (NotFoundError, AccessRefusedError)) and not isinstance(error, ResourceLockedError):
        return refused(error)
    return bad_request(closed_with(error))


def closed_with(error: RefusedError) -> str:
    """The code and text that a channel is closed with."""
    words = {403: "ACCESS_REFUSED", 404: "NOT_FOUND", 405: "RESOURCE_LOCKED"}
    return f"{error.reply_code} {words.get(error.reply_code, 'PRECONDITION_FAILED')} - {error}"


# ── answers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def done(new: bool = False, location: str | None = None) -> Response:
    """Return the answer to a change: 204, or 201 if something was created."""
    headers = {} if location is None else {"location": location}
    return Response(status_code=HTTPStatus.CREATED if new else HTTPStatus.NO_CONTENT, headers=headers)


def failed(document: Mapping[str, Any]) -> Response:
    """Return 503: a health check that failed."""
    return json_response(document, HTTPStatus.SERVICE_UNAVAILABLE)


def escaped(text: str) -> str:
    """Return a text escaped for HTML, as RabbitMQ does."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


ANSWER_BYTES: Final = 16_000_000
"""An answer takes no further message once its messages have this many bytes."""
_PIECE_BYTES: Final = 1 << 16
"""How much of an answer is written before other requests have their turn. It is encoded in a millisecond or so."""


@attrs.frozen
class Long:
    """An answer that may take long: it is put together in a thread."""

    make: Callable[[], Any]

    def response(self) -> Response:
        """As it goes out."""
        return json_response(self.make())


class Pieces(Response):
    """A response that is encoded as it is sent, a piece at a time: it is never whole in memory, and others are served
    between two pieces. ``makes_in_thread``: a piece may take longer than a millisecond.
    """

    def __init__(
        self,
        pieces: Iterator[bytes],
        status: int,
        headers: Mapping[str, str],
        media_type: str,
        makes_in_thread: bool = False,
    ) -> None:
        self._first = next(pieces, b"")
        self._next = next(pieces, None)
        self._rest = pieces
        self._makes_in_thread = makes_in_thread
        super().__init__(self._first, status, headers, media_type)
        if self._next is not None:
            del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._next is None or scope["method"] == "HEAD":
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        piece: bytes | None = self._first
        while piece is not None:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            piece, self._next = self._next, await self._made()
        await send({"type": "http.response.body", "body": b""})

    async def _made(self) -> bytes | None:
        if self._makes_in_thread:
            return await bridge.in_thread(lambda: next(self._rest, None))
        await asyncio.sleep(0)
        return next(self._rest, None)


def with_rests(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, and let other threads run now and then; otherwise each waits for Python's switch interval."""
    for index, item in enumerate(items):
        if index % _REST_EVERY == 0:
            time.sleep(0)
        yield item


async def in_pieces(items: Iterable[T]) -> list[T]:
    """Return the items as a list, and let the event loop do other work now and then."""
    collected = []
    for item in items:
        collected.append(item)
        if len(collected) % _REST_EVERY == 0:
            await asyncio.sleep(0)
    return collected


def json_response(
    document: Any, status: int = 200, headers: Mapping[str, str] | None = None, errors: str = "replace"
) -> Response:
    """JSON that no cache keeps. ``errors``: what becomes of bytes that are not UTF-8, as in ``str.encode``. With
    ``backslashreplace`` they survive as ``\\udc80`` to ``\\udcff``, which not every program can read."""
    parts = (part.encode(errors=errors) for part in _json(document))
    return Pieces(joined(parts), status, {"cache-control": "no-cache", **(headers or {})}, "application/json")


def joined(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts in pieces of about :data:`_PIECE_BYTES`."""
    piece = bytearray()
    for part in parts:
        piece += part
        if len(piece) >= _PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


def _json(value: Any, depth: int = 0) -> Iterator[str]:
    """A value as JSON. Lists of it and of its objects go out item by item, long texts a part at a time."""
    if _is_long(value):
        yield '"'
        for start in range(0, len(value), _PIECE_BYTES):
            yield _ENCODER.encode(value[start : start + _PIECE_BYTES])[1:-1]
        yield '"'
    elif isinstance(value, list) and depth < _DEPTH:
        for index, item in enumerate(value):
            yield "," if index else "["
            yield from _json(item, depth + 1)
        yield "]" if value else "[]"
    elif isinstance(value, dict) and (depth == 0 or any(map(_is_long, value.values()))):
        for index, (name, item) in enumerate(value.items()):
            yield "," if index else "{"
            yield _ENCODER.encode(str(name)) + ":"
            yield from _json(item, depth + 1)
        yield "}" if value else "{}"
    else:
        yield _ENCODER.encode(value)


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and len(value) > _PIECE_BYTES


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    return str(value)


_ENCODER: Final = json.JSONEncoder(default=_plain, separators=(",", ":"), ensure_ascii=False)


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def read_body(request: Request, at_most: int) -> bytes:
    """Return a request's body. Raises :class:`HttpError` if it is longer than ``at_most`` bytes."""
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
    """The object in a body; an empty body is an empty object. Raises :class:`HttpError`."""
    if body in (b"", b"null", b"undefined"):
        return {}
    try:
        document = parse_json(body)
    except ValueError:
        raise bad_request("not_json") from None
    if isinstance(document, str):
        raise bad_request(
            "invalid payload: the request body JSON-decoded to a string. Is the input doubly-JSON-encoded?"
        )
    if document is None or isinstance(document, bool):
        return {}
    if not isinstance(document, dict):
        raise bad_request("not_json")
    return document


def parse_json(body: bytes) -> Any:
    """Decode JSON whose numbers are finite and whose texts stand for bytes. Raises ``ValueError``."""
    try:
        value = json.loads(body)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode(errors="surrogateescape")
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def arguments_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a declaration has. Raises :class:`HttpError`."""
    arguments = body.get("arguments") or {}
    if not isinstance(arguments, dict):
        raise bad_request("arguments are an object")
    return arguments


def required(body: Mapping[str, Any], *names: str) -> list[Any]:
    """Return the values of ``names``. Raises :class:`HttpError`, which lists the missing ones."""
    missing = [f"{{key_missing,{name}}}" for name in names if name not in body]
    if missing:
        line = f"[{','.join(missing)}]"
        raise bad_request(line if len(line) < _LINE else f"[{f',{chr(10)} '.join(missing)}]")
    return [body[name] for name in names]


def boolean(value: Any) -> bool:
    """Return a truth value, which may be given as text or missing. Raises :class:`HttpError`."""
    match value:
        case True | "true":
            return True
        case None | False | "false":
            return False
        case _:
            raise bad_request(["not_boolean", value])


def integer(value: Any) -> int:
    """Return a whole number, which may be given as text. Raises :class:`HttpError`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return int(value) if isinstance(value, str) else int(str(value), 10)
    except ValueError:
        raise bad_request(["not_integer", value]) from None
