"""A queue's ``config``: which queue a directory of a quorum queue's log belongs to, and how it was declared.

An Erlang term in text (:mod:`warren.storage.erlang_text`), a map. The queue's name stands in the settings of its
machine, ``machine => {module,rabbit_fifo,#{queue_resource => {resource,VHost,queue,Name}, …}}``; the member whose
directory it is, in ``id => {ServerName,Node}``; the directory's own name, in ``uid``. Paths in it are those of the node
that wrote it: a reader goes by the directory that it is in. There is no checksum, but the queue's name stands in it
four times, and ``uid`` twice: if they differ, it is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NoReturn, cast

import attrs

from warren.salvage.quorum.ra.file_names import CONFIG_NAME
from warren.storage.erlang_terms import Atom, Term
from warren.storage.erlang_text import MAX_CHARACTERS, TextError, parse
from warren.storage.errors import DataError, TermError
from warren.storage.filesystem import FileSystem

QUEUE_MACHINE: Final = "rabbit_fifo"
OTHER_MACHINES: Final = frozenset({"rabbit_stream_coordinator", "khepri_machine"})
"""Machines of the broker's own logs, which it keeps in ``coordination``."""

Member = tuple[str, str]


class OtherMachineError(DataError):
    """The config of one of the broker's own logs: it is sound, and no queue's."""


@attrs.frozen
class QueueConfig:
    """Which queue a directory belongs to."""

    vhost: bytes
    name: bytes
    uid: bytes
    """The directory's name, and what the write-ahead log calls the queue."""
    server_name: str
    node: str
    members: tuple[Member, ...]
    """As (server's name, node), when the queue was declared; the log knows of later ones."""
    settings: Mapping[Term, Term]
    """The machine's, as declared."""


def read_config(files: FileSystem, directory: str) -> QueueConfig:
    """The config of the queue in ``directory``. Raises :class:`DataError` if it is invalid."""
    path = f"{directory}/{CONFIG_NAME}"
    size = files.size(path)
    if size > MAX_CHARACTERS:
        raise DataError(path, None, f"a config of {size} bytes, more than {MAX_CHARACTERS}")
    return parse_config(files.read(path), path)


def parse_config(data: bytes, path: str) -> QueueConfig:
    """The config that ``data`` holds.

    Raises :class:`OtherMachineError` for that of one of the broker's own logs, :class:`DataError` for anything else.
    """
    try:
        term = parse(data)
    except TextError as error:
        raise DataError(path, error.offset, f"no config: {error}") from error
    except TermError as error:
        raise DataError(path, None, f"no config: {error}") from error
    if not isinstance(term, Mapping):
        _refuse(path, f"no config: a {type(term).__name__} in place of a map")
    settings = _settings(term.get(Atom("machine")), path)
    resource = settings.get(Atom("queue_resource"))
    vhost, name = _resource(resource, path)
    for other in _resources(term):
        if other != resource:
            _refuse(path, f"two queues' names, {_shown(resource)} and {_shown(other)}")
    server_name, node = _member(term.get(Atom("id")), path)
    return QueueConfig(
        vhost=vhost,
        name=name,
        uid=_uid(term, path),
        server_name=server_name,
        node=node,
        members=_members(term.get(Atom("initial_members")), path),
        settings=settings,
    )


def _refuse(path: str, reason: str) -> NoReturn:
    raise DataError(path, None, reason)


def _settings(machine: Term | None, path: str) -> Mapping[Term, Term]:
    match machine:
        case (Atom("module"), Atom(module), Mapping() as settings):
            if module != QUEUE_MACHINE:
                kind = OtherMachineError if module in OTHER_MACHINES else DataError
                raise kind(path, None, f"the log of a {module}, not of a queue")
            return cast("Mapping[Term, Term]", settings)
        case _:
            _refuse(path, f"no machine, but {_shown(machine)}")


def _resource(resource: Term | None, path: str) -> tuple[bytes, bytes]:
    match resource:
        case (Atom("resource"), bytes(vhost), Atom("queue"), bytes(name)):
            return vhost, name
        case _:
            _refuse(path, f"no queue's name, but {_shown(resource)}")


def _resources(term: Term) -> Iterator[Term]:
    """Every queue's name in it."""
    match term:
        case (Atom("resource"), _, Atom("queue"), _):
            yield term
        case Mapping():
            for value in term.values():
                yield from _resources(value)
        case list() | tuple():
            for value in term:
                yield from _resources(value)


def _uid(config: Mapping[Term, Term], path: str) -> bytes:
    arguments = config.get(Atom("log_init_args"))
    inner = arguments.get(Atom("uid")) if isinstance(arguments, Mapping) else None
    uid = config.get(Atom("uid"), inner)
    if not isinstance(uid, bytes) or not uid:
        _refuse(path, f"no uid, but {_shown(uid)}")
    if inner is not None and inner != uid:
        _refuse(path, f"two uids, {_shown(uid)} and {_shown(inner)}")
    return uid


def _members(members: Term | None, path: str) -> tuple[Member, ...]:
    if members is None:
        return ()
    if not isinstance(members, list):
        _refuse(path, f"no members, but {_shown(members)}")
    return tuple(_member(member, path) for member in members)


def _member(member: Term | None, path: str) -> Member:
    if isinstance(member, Mapping):  # a member with more than its name
        member = member.get(Atom("id"))
    match member:
        case (Atom(server_name), Atom(node)):
            return str(server_name), str(node)
        case _:
            _refuse(path, f"no member's name, but {_shown(member)}")


def _shown(term: Term | None) -> str:
    return "nothing" if term is None else repr(term)[:100]
