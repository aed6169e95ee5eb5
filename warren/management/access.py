"""Authentication by name and password (HTTP's basic authentication) or by a session of the page; and permissions."""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

import attrs
from starlette.requests import Request

from warren.actors.engines.declared.users import User
from warren.actors.engines.errors import AccessRefusedError, NotFoundError
from warren.management.call import MANAGEMENT_TAGS, POLICYMAKER_TAGS, Call, Managed
from warren.management.http import REALM, HttpError, not_authorised
from warren.management.routing import Access
from warren.server import peer

COOKIE: Final = "warren_session"
CSRF_HEADER: Final = "x-csrf-token"
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_SESSIONS: Final = 1000
"""With more, the least recently used session ends."""
EVENT_STREAM: Final = "text/event-stream"
"""What a browser accepts when it opens the page's event stream, to which it adds no other header."""
_TOKEN_BYTES: Final = 32


@attrs.define
class Session:
    """A login to the page."""

    user: User
    """The user at login; the session ends if it changes."""
    csrf_token: str
    ends_s: float


@attrs.define
class Sessions:
    """All sessions of a page; they end with the process. ``clock``: monotonic seconds."""

    lifetime_s: float
    _clock: Callable[[], float] = time.monotonic
    _sessions: dict[str, Session] = attrs.Factory(dict)

    def begin(self, user: User) -> tuple[str, Session]:
        """Return a new session, and the token by which a browser refers to it."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        session = Session(user, secrets.token_urlsafe(_TOKEN_BYTES), self._clock() + self.lifetime_s)
        self._sessions[token] = session
        return token, session

    def get(self, token: str) -> Session | None:
        """Return the session of a token; ``None`` if it is over."""
        session = self._sessions.pop(token, None)
        if session is None or session.ends_s <= self._clock():
            return None
        self._sessions[token] = session  # last in order: it was used just now
        return session

    def end(self, token: str) -> None:
        """End the session of a token."""
        self._sessions.pop(token, None)

    def __len__(self) -> int:
        return len(self._sessions)


def log_in(managed: Managed, request: Request, name: str, password: bytes) -> User:
    """The user of that name and password. Raises :class:`HttpError` if it is unknown or may not use the API."""
    try:
        user = managed.users.authenticate(name, password)
    except AccessRefusedError:
        raise HttpError(401, "not_authorized", "Login failed", challenge(request)) from None
    check_user(managed, request, user)
    return user


def check_user(managed: Managed, request: Request, user: User) -> None:
    """Raise :class:`HttpError` if an authenticated user may not use the API, or not from this address."""
    if user.name in managed.settings.loopback_users and not is_loopback(request):
        raise not_authorised("User can only log in via localhost")
    if MANAGEMENT_TAGS.isdisjoint(user.tags):
        raise not_authorised("Not management user")


def challenge(request: Request) -> dict[str, str]:
    """The header by which browsers ask for a name and a password; the page asks itself."""
    is_page = "x-requested-with" in request.headers or request.headers.get("accept") == EVENT_STREAM
    return {} if is_page else {"www-authenticate": REALM}


def is_loopback(request: Request) -> bool:
    """Whether a request is from this machine."""
    return request.client is None or peer.is_loopback(request.client.host)  # None: a Unix socket


def identify(managed: Managed, sessions: Sessions, request: Request) -> User:
    """Return the user. Raises :class:`HttpError` if credentials are missing or wrong, or another site's page asks."""
    check_same_site(request)
    kind, _, encoded = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "basic":
        try:
            name, colon, password = base64.b64decode(encoded, validate=True).partition(b":")
        except binascii.Error:
            colon = b""
        if not colon:
            raise HttpError(401, "not_authorized", "Login failed", challenge(request))
        return log_in(managed, request, name.decode(errors="surrogateescape"), password)
    session = session_of(managed, sessions, request)
    if session is None:
        raise HttpError(401, "not_authorised", "Login failed", challenge(request))
    if request.method not in SAFE_METHODS:
        check_token(request, session)
    check_user(managed, request, session.user)
    return session.user


def session_of(managed: Managed, sessions: Sessions, request: Request) -> Session | None:
    """The session that a request belongs to. It ends if the user was deleted, or has another password or tags."""
    token = request.cookies.get(COOKIE)
    session = None if token is None else sessions.get(token)
    if token is None or session is None:
        return None
    try:
        same = managed.users[session.user.name] == session.user
    except NotFoundError:
        same = False
    if not same:
        sessions.end(token)
        return None
    return session


def check_token(request: Request, session: Session) -> None:
    """Raise :class:`HttpError` if a change does not come from the page that the session's user has open."""
    token = request.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(token.encode("latin-1"), session.csrf_token.encode()):
        raise HttpError(403, "forbidden", f"a change needs the session's {CSRF_HEADER}")


def check_same_site(request: Request) -> None:
    """Raise :class:`HttpError` if a browser asks for a change on behalf of another site's page."""
    if request.method in SAFE_METHODS:
        return
    origin = request.headers.get("origin")
    elsewhere = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    if elsewhere or request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HttpError(403, "forbidden", "a change that another site asks for")


def may(call: Call, access: Access) -> str | None:
    """``None`` if the user may use the path; otherwise the reason."""
    match access:
        case "any":
            return None
        case "admin":
            return None if call.is_administrator else "Not administrator user"
        case "monitor":
            return None if call.is_monitor else "Not monitor user"
        case "global":
            return None if call.has_tag(*POLICYMAKER_TAGS) else "User not authorised to access object"
        case "policies":
            may_use = call.has_tag("policymaker") and _may_use(call, call.usable_vhosts)
            return None if call.is_administrator or may_use else "User not authorised to access object"
        case "vhost-visible":
            may_see = call.is_administrator or _may_use(call, call.visible_vhosts)
            return None if may_see else "User not authorised to access virtual host"
        case _:
            may_use = call.is_administrator or _may_use(call, call.usable_vhosts)
            return None if may_use else "User not authorised to access virtual host"


def _may_use(call: Call, allowed: list[str]) -> bool:
    """Whether the path's vhost is allowed. A vhost that does not exist is allowed: the handler answers for it."""
    name = call.parts.get("vhost")
    return name is None or name in allowed or name not in call.vhosts
