"""The web page: its files, and logging in and out of it."""

from __future__ import annotations

from http import HTTPStatus
from importlib import resources
from typing import Any, Final

import attrs
from starlette.requests import Request
from starlette.responses import Response

from warren.management import access
from warren.management.call import Managed
from warren.management.http import HttpError, json_response, not_found, parse_body, read_body, required

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
