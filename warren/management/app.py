"""The management API as an ASGI application: it admits requests, finds their handlers and encodes their answers.
It also serves the web page's files, and logs users in and out of the page.

``GET /api/events?path=…``: what paths of the API answer, as an event stream (server-sent events) for the page. It
begins with the answers, and has them again whenever they differ. They are looked at every second, but at
most half of the time. An event is a JSON list with one object for each ``path``: ``status`` and ``body``. Each look is
a request of its own, so a session that ends or a permission that is taken away is noticed at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from importlib import resources
from typing import Any, Final
from urllib.parse import unquote

import attrs
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from warren.actors.engines.errors import RefusedError
from warren.actors.log_events import log_event, logger
from warren.aio import bridge
from warren.management import access, api, prometheus
from warren.management.access import EVENT_STREAM
from warren.management.call import SHARED, Call, Managed
from warren.management.http import (
    HttpError,
    Long,
    bad_request,
    json_response,
    not_authorised,
    not_found,
    parse_body,
    read_body,
    refused,
    required,
)
from warren.management.lists import columns_of, pick
from warren.management.routing import Handler, Route, Router
from warren.storage.errors import MessageError, WarrenError

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_FILES: Final = frozenset({
    "index.html", "style.css", "icon.svg",
    "admin.js", "api.js", "app.js", "clients.js", "dom.js", "draw.js", "exchanges.js", "forms.js", "overview.js",
    "queue.js", "queues.js", "tables.js",
})  # fmt: skip
_LOGIN_BYTES: Final = 10_000


@attrs.define(eq=False)
class Page:
    """The page of one API."""

    _managed: Managed
    _sessions: access.Sessions
    _read: dict[str, bytes] = attrs.Factory(dict)

    async def answer(self, request: Request, path: str) -> Response:
        """The answer to a request for anything but the API. Raises :class:`HttpError`."""
        match path:
            case "/login" if request.method == "POST":
                return await self._log_in(request)
            case "/logout" if request.method == "POST":
                return self._log_out(request)
            case "/session" if request.method in ("GET", "HEAD"):
                return self._session(request)
            case _ if (name := path[1:] or "index.html") in _FILES:
                return self._file(request, name)
            case _:
                raise not_found()

    def _file(self, request: Request, name: str) -> Response:
        if request.method not in ("GET", "HEAD"):
            return Response(status_code=HTTPStatus.METHOD_NOT_ALLOWED, headers={"allow": "HEAD, GET"})
        if name not in self._read:
            self._read[name] = resources.files("warren.management").joinpath("static", name).read_bytes()
        kind = _TYPES[name.rpartition(".")[2]]
        return Response(self._read[name], headers={"content-type": kind, "cache-control": "no-cache"})

    # ── sessions ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _log_in(self, request: Request) -> Response:
        """``{"username", "password"}`` as JSON, which another site's form cannot send."""
        access.check_same_site(request)
        if not request.headers.get("content-type", "").startswith("application/json"):
            raise HttpError(415, "unsupported_media_type", "a login is JSON")
        name, password = required(parse_body(await read_body(request, _LOGIN_BYTES)), "username", "password")
        user = access.log_in(self._managed, request, str(name), str(password).encode(errors="surrogateescape"))
        token, session = self._sessions.begin(user)
        response = json_response(_session_json(session))
        response.set_cookie(
            access.COOKIE,
            token,
            max_age=round(self._sessions.lifetime_s),
            path="/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return response

    def _log_out(self, request: Request) -> Response:
        access.check_same_site(request)
        session = access.session_of(self._managed, self._sessions, request)
        if session is not None:
            access.check_token(request, session)
            self._sessions.end(request.cookies[access.COOKIE])
        response = Response(status_code=HTTPStatus.NO_CONTENT)
        response.delete_cookie(access.COOKIE, path="/", httponly=True, samesite="strict")
        return response

    def _session(self, request: Request) -> Response:
        """Return the user who is logged in, or ``null``."""
        session = access.session_of(self._managed, self._sessions, request)
        return json_response(None if session is None else _session_json(session))


def _session_json(session: access.Session) -> dict[str, Any]:
    return {"name": session.user.name, "tags": list(session.user.tags), "csrf_token": session.csrf_token}


EVERY_S: Final = 1.0
MAX_PATHS: Final = 8
Look = Callable[[], Awaitable[bytes]]


class EventStream(Response):
    """An answer that ends when its client goes away, or the server stops."""

    media_type = EVENT_STREAM

    def __init__(self, look: Look, stopping: asyncio.Event) -> None:
        super().__init__(headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._look = look
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        ends = {asyncio.create_task(_gone(receive)), asyncio.create_task(self._stopping.wait())}
        try:
            await self._stream(send, ends)
        finally:
            for end in ends:
                end.cancel()

    async def _stream(self, send: Send, ends: set[asyncio.Task[object]]) -> None:
        loop, last = asyncio.get_running_loop(), b""
        while not any(end.done() for end in ends):
            began_s = loop.time()
            data = await self._look()
            event = b":\n\n" if data == last else b"data: %s\n\n" % data  # a comment, which shows if the client is gone
            await send({"type": "http.response.body", "body": event, "more_body": True})
            last, took_s = data, loop.time() - began_s
            await asyncio.wait(ends, timeout=max(EVERY_S, took_s), return_when=asyncio.FIRST_COMPLETED)
        await send({"type": "http.response.body", "body": b""})


async def _gone(receive: Receive) -> object:
    while (message := await receive())["type"] != "http.disconnect":
        pass
    return message


async def collected(response: Response, scope: Scope) -> bytes:
    """An answer as an object of an event: its status and its body."""
    body = bytearray()

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        body.extend(message.get("body", b""))

    await response(scope, receive, send)
    return b'{"status":%d,"body":%s}' % (response.status_code, bytes(body) or b"null")


_LOG = logger("management")

API: Final = "/api"
_EVENTS: Final = "/events"

SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@attrs.define(eq=False)
class Application:
    """One node's API and page."""

    managed: Managed
    sessions: access.Sessions = attrs.field(init=False)
    _router: Router = attrs.field(init=False, factory=lambda: Router.of(api.ROUTES))
    _page: Page = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.sessions = access.Sessions(60.0 * self.managed.settings.management_login_session_timeout)
        self._page = Page(self.managed, self.sessions)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        response = await self._answered(request)
        for name, value in SECURITY_HEADERS.items():
            response.headers[name] = value
        if request.method == "HEAD":
            response.body = b""
        await response(scope, receive, send)

    async def _answered(self, request: Request) -> Response:
        try:
            return await self._answer(request)
        except HttpError as error:
            return error.response()
        except RefusedError as error:
            return refused(error).response()
        except MessageError as error:
            return bad_request(str(error)).response()
        except WarrenError as error:
            _LOG.warning(
                "%s %s: %s",
                request.method,
                request.url.path,
                error,
                extra=log_event("management_failed", error, method=request.method, url=request.url.path),
            )
            return json_response({"error": "internal_server_error", "reason": str(error)}, 500)
        except Exception as error:
            _LOG.exception(
                "%s %s",
                request.method,
                request.url.path,
                extra=log_event("management_failed", error, method=request.method, url=request.url.path),
            )
            return json_response({"error": "internal_server_error", "reason": "the server's log says why"}, 500)

    async def _answer(self, request: Request) -> Response:
        raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
        path = raw.decode("latin-1").partition("?")[0]
        if path in (API, f"{API}/"):
            return Response(status_code=HTTPStatus.MOVED_PERMANENTLY, headers={"location": "/"})
        if path in prometheus.PATHS:
            return await prometheus.answer(self.managed, request, path)
        if not path.startswith(f"{API}/"):
            return await self._page.answer(request, path)
        if path == API + _EVENTS and request.method == "GET":
            return self._events(request)
        match = self._router.find(path.removeprefix(API))
        if match is None:
            raise HttpError(404, "Object Not Found", "Not Found")
        route, parts = match
        handler = route[request.method]
        if handler is None:
            return _other_method(request.method, route)
        call = Call(self.managed, request, access.identify(self.managed, self.sessions, request), parts)
        if (reason := access.may(call, route.access)) is not None:
            raise not_authorised(reason)
        return await _called(handler, call)

    def _events(self, request: Request) -> Response:
        """The event stream of the paths in the query. Raises :class:`HttpError`."""
        access.identify(self.managed, self.sessions, request)
        paths = request.query_params.getlist("path")
        if not 0 < len(paths) <= MAX_PATHS:
            raise bad_request(f"an event stream is of 1 to {MAX_PATHS} paths, not of {len(paths)}")
        for path in paths:
            if not path.startswith("/") or not path.isascii() or path.partition("?")[0] == _EVENTS:
                raise bad_request(f"an event stream has no path {path!r}")

        async def look() -> bytes:
            scope = {**request.scope, SHARED: []}
            return b"[%s]" % b",".join([await self._look(scope, path) for path in paths])

        return EventStream(look, self.managed.stopping)

    async def _look(self, shared: Scope, path: str) -> bytes:
        raw, _, query = f"{API}{path}".partition("?")
        scope = {**shared, "path": unquote(raw), "raw_path": raw.encode(), "query_string": query.encode()}
        return await collected(await self._answered(Request(scope)), scope)


async def _called(handler: Handler, call: Call) -> Response:
    answer: Any = await handler(call)
    if isinstance(answer, Response):
        return answer
    if isinstance(answer, Long):
        return await bridge.in_thread(answer.response)
    if isinstance(answer, dict) and "items" not in answer:
        answer = pick(answer, columns_of(call.query))
    return json_response(answer)


def _other_method(method: str, route: Route) -> Response:
    status = HTTPStatus.OK if method == "OPTIONS" else HTTPStatus.METHOD_NOT_ALLOWED
    return Response(status_code=status, headers={"allow": route.allowed})
