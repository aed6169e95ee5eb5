"""The management API as an ASGI application: it admits requests, finds their handlers and encodes their answers."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

import attrs
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from warren.actors.engines.errors import RefusedError
from warren.actors.log_events import log_event, logger
from warren.aio import bridge
from warren.management import access, api, prometheus
from warren.management.call import SHARED, Call, Managed
from warren.management.events import MAX_PATHS, EventStream, collected
from warren.management.http import HttpError, Long, bad_request, json_response, not_authorised, refused
from warren.management.lists import columns_of, pick
from warren.management.page import Page
from warren.management.routing import Handler, Route, Router
from warren.storage.errors import MessageError, WarrenError

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
