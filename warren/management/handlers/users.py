"""Users, and what they may do. Passwords come in and never go out."""

from __future__ import annotations

import base64
import binascii
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from warren.actors.engines.declared.definitions import Definitions
from warren.actors.engines.declared.permissions import Permissions, TopicPermissions
from warren.actors.engines.declared.users import DEFAULT_HASHING, USER_LIMITS, User
from warren.actors.engines.errors import ArgumentsError, NotFoundError
from warren.management.call import Call
from warren.management.http import Done, bad_request, integer, not_found, required
from warren.management.lists import listed
from warren.management.samples import Document
from warren.verbs.vhost_verbs import NodeVerbs

T = TypeVar("T")


async def define(call: Call, work: Callable[[Definitions], T]) -> T:
    """Change the node's definitions."""
    return await call.managed.change(lambda registry: registry.define(work))


def _find(call: Call, name: str = "user") -> User:
    try:
        return call.managed.users[call.parts[name]]
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
    await define(call, lambda definitions: definitions.users.put(user))
    return Done(new)


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
    name = _find(call).name
    await define(call, lambda definitions: definitions.users.delete(name))
    return Done()


async def bulk_delete(call: Call) -> Any:
    """``/api/users/bulk-delete``: delete users one after the other; stop at a name that does not exist."""
    (names,) = required(await call.body(), "users")
    if not isinstance(names, list):
        raise bad_request("users are a list")
    for name in names:
        if not isinstance(name, str) or name not in call.managed.users:
            raise bad_request(["no_such_user", name])
        await define(call, functools.partial(_delete, name))
    return Done()


def _delete(name: str, definitions: Definitions) -> None:
    definitions.users.delete(name)


# ── permissions ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def permissions(call: Call) -> Any:
    """``/api/permissions``."""
    return listed(await call.managed.run(NodeVerbs(call.node).permissions()), call.query, ("vhost", "user"))


async def vhost_permissions(call: Call) -> Any:
    """``/api/vhosts/:vhost/permissions``."""
    return listed(await call.managed.run(NodeVerbs(call.node).permissions(vhost=call.vhost)), call.query, ("user",))


async def user_permissions(call: Call) -> Any:
    """``/api/users/:user/permissions``."""
    rows = await call.managed.run(NodeVerbs(call.node).permissions(_find(call).name))
    return listed(rows, call.query, ("vhost",))


async def permission(call: Call) -> Any:
    """``/api/permissions/:vhost/:user``."""
    for row in await call.managed.run(NodeVerbs(call.node).permissions(_find(call).name, call.vhost)):
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
    granted = Permissions(*patterns)
    new = vhost not in call.managed.users.permissions(name)
    await define(call, lambda definitions: definitions.grant(name, vhost, granted))
    return Done(new)


async def delete_permission(call: Call) -> Any:
    """Delete a user's permissions in a vhost."""
    await permission(call)
    name, vhost = call.parts["user"], call.parts["vhost"]
    await define(call, lambda definitions: definitions.users.clear_permissions(name, vhost))
    return Done()


# ── topic permissions ─────────────────────────────────────────────────────────────────────────────────────────────────


async def topic_permissions(call: Call) -> Any:
    """``/api/topic-permissions``."""
    rows = await call.managed.run(NodeVerbs(call.node).topic_permissions())
    return listed(rows, call.query, ("vhost", "user", "exchange"))


async def vhost_topic_permissions(call: Call) -> Any:
    """``/api/vhosts/:vhost/topic-permissions``."""
    rows = await call.managed.run(NodeVerbs(call.node).topic_permissions(vhost=call.vhost))
    return listed(rows, call.query, ("user", "exchange"))


async def user_topic_permissions(call: Call) -> Any:
    """``/api/users/:user/topic-permissions``."""
    rows = await call.managed.run(NodeVerbs(call.node).topic_permissions(_find(call).name))
    return listed(rows, call.query, ("vhost", "exchange"))


async def topic_permission(call: Call) -> Any:
    """``/api/topic-permissions/:vhost/:user``, ``/api/topic-permissions/:vhost/:user/:exchange``."""
    rows = await call.managed.run(NodeVerbs(call.node).topic_permissions(_find(call).name, call.vhost))
    if "exchange" in call.parts:
        rows = [row for row in rows if row["exchange"] == call.parts["exchange"]]
    if not rows:
        raise not_found()
    return rows


async def put_topic_permission(call: Call) -> Any:
    """``exchange``, ``write`` and ``read``."""
    name, vhost = _both(call)
    exchange, write, read = required(await call.body(), "exchange", "write", "read")
    granted = TopicPermissions(write, read)
    new = not await call.managed.run(NodeVerbs(call.node).topic_permissions(name, vhost))
    await define(call, lambda definitions: definitions.grant_topics(name, vhost, str(exchange), granted))
    return Done(new)


async def delete_topic_permission(call: Call) -> Any:
    """Delete a user's topic permissions for one exchange, or for all."""
    await topic_permission(call)
    name, vhost, exchange = call.parts["user"], call.parts["vhost"], call.parts.get("exchange")
    await define(call, lambda definitions: definitions.users.clear_topic_permissions(name, vhost, exchange))
    return Done()


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
    try:
        limited = attrs.evolve(user, limits={**user.limits, name: integer(value)})
    except ArgumentsError as error:
        raise bad_request(str(error)) from error
    await define(call, lambda definitions: definitions.users.put(limited))
    return Done()


async def delete_user_limit(call: Call) -> Any:
    """Delete a limit of a user."""
    user, name = _find(call), call.parts["name"]
    limits = {key: value for key, value in user.limits.items() if key != name}
    await define(call, lambda definitions: definitions.users.put(attrs.evolve(user, limits=limits)))
    return Done()
