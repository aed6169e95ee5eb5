"""Users, and what they may do. Passwords come in and never go out."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

from warren.actors.engines.declared.users import DEFAULT_HASHING, USER_LIMITS, User
from warren.actors.engines.errors import NotFoundError
from warren.management.call import Call
from warren.management.http import bad_request, done, integer, not_found, required
from warren.management.lists import listed
from warren.management.samples import Document
from warren.verbs.steps import Steps

Rows = list[dict[str, str]]


def _find(call: Call) -> User:
    try:
        return call.managed.users[call.parts["user"]]
    except NotFoundError:
        raise not_found() from None


# ── users ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def users(call: Call) -> Any:
    """``/api/users``."""
    return listed([user.to_json() for user in call.managed.users], call.query, ("name",))


async def users_without_permissions(call: Call) -> Any:
    """``/api/users/without-permissions``."""
    all_users = call.managed.users
    return listed([user.to_json() for user in all_users if not all_users.permissions(user.name)], call.query, ("name",))


async def user(call: Call) -> Any:
    """``/api/users/:user``."""
    return _find(call).to_json()


async def put_user(call: Call) -> Any:
    """Declare a user: ``tags``, and ``password`` or ``password_hash``; with neither, no password is right."""
    name, body = call.parts["user"], await call.body()
    if "tags" not in body:
        raise bad_request("tags_not_present")
    if "password" in body and "password_hash" in body:
        raise bad_request("both_password_and_password_hash_are_provided")
    document: Document = {
        "name": name,
        "tags": _tags(body["tags"]),
        "password_hash": _hash(body.get("password_hash", "")),
    }
    document["hashing_algorithm"] = body.get("hashing_algorithm") or DEFAULT_HASHING
    if "password" in body:
        document["password"] = str(body["password"])
        del document["password_hash"]
    new = name not in call.managed.users
    if not new:
        document["limits"] = dict(call.managed.users[name].limits)
    user = call.managed.users.from_json(document)
    await call.managed.change(lambda registry: registry.define(lambda definitions: definitions.users.put(user)))
    return done(new)


def _tags(tags: Any) -> list[str]:
    parts = tags.split(",") if isinstance(tags, str) else tags
    if not isinstance(parts, list):
        raise bad_request("tags are a list, or a text with commas")
    return [tag for part in parts if (tag := str(part).strip())]


def _hash(password_hash: Any) -> str:
    try:
        base64.b64decode(password_hash, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise bad_request(["not_base64", password_hash]) from None
    return str(password_hash)


async def delete_user(call: Call) -> Any:
    """Delete a user with all its permissions."""
    await call.managed.run(call.verbs.users.delete_user(_find(call).name))
    return done()


async def bulk_delete(call: Call) -> Any:
    """``/api/users/bulk-delete``: delete users one after the other; stop at a name that does not exist."""
    (names,) = required(await call.body(), "users")
    if not isinstance(names, list):
        raise bad_request("users are a list")
    for name in names:
        if not isinstance(name, str) or name not in call.managed.users:
            raise bad_request(["no_such_user", name])
        await call.managed.run(call.verbs.users.delete_user(name))
    return done()


# ── permissions ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def _granted(call: Call, verb: Callable[[str | None, str | None], Steps[Rows]]) -> Rows:
    """Return all permissions, or those of the user and the vhost in the path."""
    user = _find(call).name if "user" in call.parts else None
    return await call.managed.run(verb(user, call.vhost if "vhost" in call.parts else None))


async def permissions(call: Call) -> Any:
    """``/api/permissions``, and those of a vhost or of a user."""
    return listed(await _granted(call, call.verbs.users.permissions), call.query, ("vhost", "user"))


async def permission(call: Call) -> Any:
    """``/api/permissions/:vhost/:user``."""
    for row in await _granted(call, call.verbs.users.permissions):
        return row
    raise not_found()


def _both(call: Call) -> tuple[str, str]:
    name, vhost = call.parts["user"], call.parts["vhost"]
    if name not in call.managed.users or vhost not in call.vhosts:
        raise bad_request("vhost_or_user_not_found")
    return name, vhost


async def put_permission(call: Call) -> Any:
    """``configure``, ``write`` and ``read``: patterns."""
    name, vhost = _both(call)
    patterns = required(await call.body(), "configure", "write", "read")
    new = vhost not in call.managed.users.permissions(name)
    await call.managed.run(call.verbs.users.set_permissions(name, *patterns, vhost=vhost))
    return done(new)


async def delete_permission(call: Call) -> Any:
    """Delete a user's permissions in a vhost."""
    await permission(call)
    await call.managed.run(call.verbs.users.clear_permissions(call.parts["user"], vhost=call.parts["vhost"]))
    return done()


# ── topic permissions ─────────────────────────────────────────────────────────────────────────────────────────────────


async def topic_permissions(call: Call) -> Any:
    """``/api/topic-permissions``, and those of a vhost or of a user."""
    return listed(await _granted(call, call.verbs.users.topic_permissions), call.query, ("vhost", "user", "exchange"))


async def topic_permission(call: Call) -> Any:
    """``/api/topic-permissions/:vhost/:user``, ``/api/topic-permissions/:vhost/:user/:exchange``."""
    rows = await _granted(call, call.verbs.users.topic_permissions)
    if "exchange" in call.parts:
        rows = [row for row in rows if row["exchange"] == call.parts["exchange"]]
    if not rows:
        raise not_found()
    return rows


async def put_topic_permission(call: Call) -> Any:
    """``exchange``, ``write`` and ``read``."""
    name, vhost = _both(call)
    exchange, write, read = required(await call.body(), "exchange", "write", "read")
    new = not await call.managed.run(call.verbs.users.topic_permissions(name, vhost))
    await call.managed.run(call.verbs.users.set_topic_permissions(name, str(exchange), write, read, vhost=vhost))
    return done(new)


async def delete_topic_permission(call: Call) -> Any:
    """Delete a user's topic permissions for one exchange, or for all."""
    await topic_permission(call)
    name, vhost, exchange = call.parts["user"], call.parts["vhost"], call.parts.get("exchange")
    await call.managed.run(call.verbs.users.clear_topic_permissions(name, exchange, vhost=vhost))
    return done()


# ── limits ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def user_limits(call: Call) -> Any:
    """``/api/user-limits``, ``/api/user-limits/:user``."""
    users = [_find(call)] if "user" in call.parts else list(call.managed.users)
    return listed(
        [{"user": user.name, "value": dict(user.limits)} for user in users if user.limits], call.query, ("user",)
    )


async def put_user_limit(call: Call) -> Any:
    """``value``: how many ``max-connections`` or ``max-channels``."""
    user, name = _find(call), call.parts["name"]
    (value,) = required(await call.body(), "value")
    if name not in USER_LIMITS:
        raise bad_request(f'Unrecognised terms [{{<<"{name}">>,{value}}}] in user-limits')
    await call.managed.run(call.verbs.users.set_user_limits(user.name, {name: integer(value)}))
    return done()


async def delete_user_limit(call: Call) -> Any:
    """Delete a limit of a user."""
    await call.managed.run(call.verbs.users.clear_user_limits(_find(call).name, call.parts["name"]))
    return done()
