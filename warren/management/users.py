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
    """Change who may what."""
    return await call.managed.change(lambda actor: actor.define(work))


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
    known = call.managed.users
    return listed([user.to_json() for user in known if not known.permissions(user.name)], call.query, ("name",))


async def user(call: Call) -> Any:
    """``/api/users/:user``."""
    return _find(call).to_json()


async def put_user(call: Call) -> Any:
    """A user as it is to be: ``tags``, and ``password`` or ``password_hash``; with neither, no password is right."""
    name, said = call.parts["user"], await call.body()
    if "tags" not in said:
        raise bad_request("tags_not_present")
    if "password" in said and "password_hash" in said:
        raise bad_request("both_password_and_password_hash_are_provided")
    item: Document = {"name": name, "tags": _tags(said["tags"]), "password_hash": _hash(said.get("password_hash", ""))}
    item["hashing_algorithm"] = said.get("hashing_algorithm") or DEFAULT_HASHING
    if "password" in said:
        item["password"] = str(said["password"])
        del item["password_hash"]
    new = name not in call.managed.users
    if not new:
        item["limits"] = dict(call.managed.users[name].limits)
    found = call.managed.users.from_json(item)
    await define(call, lambda known: known.users.put(found))
    return Done(new)


def _tags(said: Any) -> list[str]:
    parts = said.split(",") if isinstance(said, str) else said
    if not isinstance(parts, list):
        raise bad_request("tags are a list, or a text with commas")
    return [tag for part in parts if (tag := str(part).strip())]


def _hash(said: Any) -> str:
    try:
        base64.b64decode(said, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise bad_request(["not_base64", said]) from None
    return str(said)


async def delete_user(call: Call) -> Any:
    """With all permissions."""
    name = _find(call).name
    await define(call, lambda known: known.users.delete(name))
    return Done()


async def bulk_delete(call: Call) -> Any:
    """``/api/users/bulk-delete``: one after the other; ends at one who is not there."""
    (names,) = required(await call.body(), "users")
    if not isinstance(names, list):
        raise bad_request("users are a list")
    for name in names:
        if not isinstance(name, str) or name not in call.managed.users:
            raise bad_request(["no_such_user", name])
        await define(call, functools.partial(_delete, name))
    return Done()


def _delete(name: str, known: Definitions) -> None:
    known.users.delete(name)


# ── permissions ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def permissions(call: Call) -> Any:
    """``/api/permissions``."""
    return listed(await call.managed.run(NodeVerbs(call.node).permissions()), call.query, ("vhost", "user"))


async def vhost_permissions(call: Call) -> Any:
    """``/api/vhosts/:vhost/permissions``."""
    return listed(await call.managed.run(NodeVerbs(call.node).permissions(vhost=call.vhost)), call.query, ("user",))


async def user_permissions(call: Call) -> Any:
    """``/api/users/:user/permissions``."""
    found = await call.managed.run(NodeVerbs(call.node).permissions(_find(call).name))
    return listed(found, call.query, ("vhost",))


async def permission(call: Call) -> Any:
    """``/api/permissions/:vhost/:user``."""
    for found in await call.managed.run(NodeVerbs(call.node).permissions(_find(call).name, call.vhost)):
        return found
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
    await define(call, lambda known: known.grant(name, vhost, granted))
    return Done(new)


async def delete_permission(call: Call) -> Any:
    """From now on the user may not use the vhost."""
    await permission(call)
    name, vhost = call.parts["user"], call.parts["vhost"]
    await define(call, lambda known: known.users.clear_permissions(name, vhost))
    return Done()


# ── topic permissions ─────────────────────────────────────────────────────────────────────────────────────────────────


async def topic_permissions(call: Call) -> Any:
    """``/api/topic-permissions``."""
    found = await call.managed.run(NodeVerbs(call.node).topic_permissions())
    return listed(found, call.query, ("vhost", "user", "exchange"))


async def vhost_topic_permissions(call: Call) -> Any:
    """``/api/vhosts/:vhost/topic-permissions``."""
    found = await call.managed.run(NodeVerbs(call.node).topic_permissions(vhost=call.vhost))
    return listed(found, call.query, ("user", "exchange"))


async def user_topic_permissions(call: Call) -> Any:
    """``/api/users/:user/topic-permissions``."""
    found = await call.managed.run(NodeVerbs(call.node).topic_permissions(_find(call).name))
    return listed(found, call.query, ("vhost", "exchange"))


async def topic_permission(call: Call) -> Any:
    """``/api/topic-permissions/:vhost/:user``, ``/api/topic-permissions/:vhost/:user/:exchange``."""
    found = await call.managed.run(NodeVerbs(call.node).topic_permissions(_find(call).name, call.vhost))
    if "exchange" in call.parts:
        found = [one for one in found if one["exchange"] == call.parts["exchange"]]
    if not found:
        raise not_found()
    return found


async def put_topic_permission(call: Call) -> Any:
    """``exchange``, ``write`` and ``read``."""
    name, vhost = _both(call)
    exchange, write, read = required(await call.body(), "exchange", "write", "read")
    granted = TopicPermissions(write, read)
    new = not await call.managed.run(NodeVerbs(call.node).topic_permissions(name, vhost))
    await define(call, lambda known: known.grant_topics(name, vhost, str(exchange), granted))
    return Done(new)


async def delete_topic_permission(call: Call) -> Any:
    """Of one exchange, or of all."""
    await topic_permission(call)
    name, vhost, exchange = call.parts["user"], call.parts["vhost"], call.parts.get("exchange")
    await define(call, lambda known: known.users.clear_topic_permissions(name, vhost, exchange))
    return Done()


# ── limits ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def user_limits(call: Call) -> Any:
    """``/api/user-limits``, ``/api/user-limits/:user``."""
    found = [_find(call)] if "user" in call.parts else list(call.managed.users)
    return listed([{"user": one.name, "value": dict(one.limits)} for one in found if one.limits], call.query, ("user",))


async def put_user_limit(call: Call) -> Any:
    """``value``: how many ``max-connections`` or ``max-channels``."""
    found, name = _find(call), call.parts["name"]
    (value,) = required(await call.body(), "value")
    if name not in USER_LIMITS:
        raise bad_request(f'Unrecognised terms [{{<<"{name}">>,{value}}}] in user-limits')
    try:
        limited = attrs.evolve(found, limits={**found.limits, name: integer(value)})
    except ArgumentsError as error:
        raise bad_request(str(error)) from error
    await define(call, lambda known: known.users.put(limited))
    return Done()


async def delete_user_limit(call: Call) -> Any:
    """Any number from now on."""
    found, name = _find(call), call.parts["name"]
    left = {key: value for key, value in found.limits.items() if key != name}
    await define(call, lambda known: known.users.put(attrs.evolve(found, limits=left)))
    return Done()
