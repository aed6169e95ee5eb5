"""The terms of ``rabbit_fifo``'s commands in the log, from 3.10 to 4.3: tuples of a name and its arguments.

A command with an unknown name is :class:`~warren.salvage.quorum.fifo.commands.Unknown`; one with invalid arguments
raises :class:`TermError`. If a later version changed the shape of a command, both are accepted here; the machine
decides which rules apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, cast

from warren.salvage.quorum.fifo import commands
from warren.salvage.quorum.fifo.commands import Body, Command, ConsumerId, ConsumerKey, Pid
from warren.storage.erlang_terms import Atom, Opaque, Term, pid_key
from warren.storage.errors import TermError

BodyAt = Callable[[int], Body]
"""The message that is the command's element of this number."""

NAMES: Final = frozenset((
    "enqueue", "e", "register_enqueuer", "checkout", "settle", "discard", "return", "modify", "requeue", "credit",
    "purge", "down", "nodeup", "nodedown", "purge_nodes", "update_config", "machine_version", "timeout", "dlx",
    "delayed_cmd", "garbage_collection",
))  # fmt: skip
"""Of the known commands; a name means the same command in all versions."""


def command_of(command: Term, reply_mode: Term, body_at: BodyAt) -> Command:
    """The command in ``command``, the third element of an entry, and ``reply_mode``, the fourth.

    Raises :class:`TermError` if a known command has another shape, and if it is not a command.
    """
    match command:
        case (Atom() as name, *_):
            if name not in NAMES:
                return commands.Unknown(name)
        case Atom():
            return commands.Unknown(command)
        case _:
            raise TermError("a command without a name")
    parsed = _of_messages(command, reply_mode, body_at) or _of_consumers(command) or _of_the_queue(command)
    if parsed is None:
        raise TermError(f"a {name} command of another shape")
    return parsed


def _of_messages(command: Term, reply_mode: Term, body_at: BodyAt) -> Command | None:
    """A command about messages: it publishes, settles or returns them."""
    match command:
        case ("enqueue", pid, seq, _):
            return commands.Enqueue(_pid_or_none(pid), _natural_or_none(seq), body_at(3))
        case ("e", seq, _, (metadata_size, size)):
            body = body_at(2)._replace(size=natural(size), metadata_size=natural(metadata_size))
            return commands.Enqueue(_publisher(reply_mode), _natural_or_none(seq), body)
        case ("settle", consumer, msg_ids):
            return commands.Settle(consumer_key(consumer), _msg_ids(msg_ids))
        case ("discard", consumer, msg_ids):
            return commands.Discard(consumer_key(consumer), _msg_ids(msg_ids))
        case ("return", consumer, msg_ids):
            return commands.Return(consumer_key(consumer), _msg_ids(msg_ids))
        case ("modify", consumer, msg_ids, failed, elsewhere, dict(annotations)):
            key, numbers = consumer_key(consumer), _msg_ids(msg_ids)
            return commands.Modify(key, numbers, _boolean(failed), _boolean(elsewhere), annotations)
        case ("requeue", consumer, msg_id, index, header, _):
            return commands.Requeue(consumer_key(consumer), natural(msg_id), natural(index), header, body_at(5))
        case ("delayed_cmd", ("retry", limit)):
            return commands.RetryDelayed(None if limit == "all" else natural(limit))
        case ("delayed_cmd", ("assign_deferred", consumer, list(tokens))) if all(isinstance(t, bytes) for t in tokens):
            return commands.AssignDeferred(consumer_key(consumer), cast(list[bytes], tokens))
        case ("dlx", ("checkout", pid, prefetch)):
            return commands.DeadLetterCheckout(_pid(pid), natural(prefetch))
        case ("dlx", ("settle", msg_ids)):
            return commands.DeadLetterSettle(_msg_ids(msg_ids))
        case ("dlx", (Atom() as kind, *_)):
            return commands.Unknown(f"dlx {kind}")
    return None


def _of_consumers(command: Term) -> Command | None:
    """A command about publishers, consumers and their credit."""
    match command:
        case ("register_enqueuer", pid):
            return commands.RegisterEnqueuer(_pid(pid))
        case ("checkout", consumer, spec, meta):
            return _checkout(_consumer_id(consumer), spec, meta if isinstance(meta, dict) else {})
        case ("credit", consumer, credit, count, drain):
            delivery_count = 0 if isinstance(count, Atom) else natural(count)
            return commands.Credit(consumer_key(consumer), natural(credit), delivery_count, _boolean(drain))
        case ("down", pid, reason):
            return commands.Down(_pid(pid), str(reason) if isinstance(reason, Atom) else "other")
        case ("nodeup", node):
            return commands.NodeUp(_name(node))
        case ("nodedown", node):
            return commands.NodeDown(_name(node))
        case ("purge_nodes", list(nodes)):
            return commands.PurgeNodes(tuple(map(_name, nodes)))
        case ("timeout", "evaluate_consumer_timeout"):
            return commands.ConsumerTimeout(None)
        case ("timeout", ("consumer_disconnected_timeout", consumer)):
            return commands.ConsumerTimeout(consumer_key(consumer))
    return None


def _of_the_queue(command: Term) -> Command | None:
    match command:
        case ("purge",):
            return commands.Purge()
        case ("update_config", dict(settings)):
            return commands.UpdateConfig(settings)
        case ("machine_version", _, version):
            return commands.MachineVersion(natural(version))
        case ("timeout", "expire_msgs" | ("expire_msgs", _)):
            return commands.Nothing("timeout", True)
        case ("timeout", Atom() as kind) | ("timeout", (Atom() as kind, *_)):
            return commands.Unknown(f"timeout {kind}")
        case ("garbage_collection", *_):
            return commands.Nothing("garbage_collection", True)
    return None


def natural(term: Term) -> int:
    """Return ``term`` if it is an integer from 0 on; else raise :class:`TermError`."""
    if type(term) is int and term >= 0:
        return term
    raise TermError("something else in place of a number")


def _pid(term: Term) -> Pid:
    if isinstance(term, Opaque):
        return pid_key(term.encoded)
    raise TermError("something else in place of a pid")


def _consumer_id(term: Term) -> ConsumerId:
    match term:
        case (bytes(tag), pid):
            return tag, _pid(pid)
        case _:
            raise TermError("something else in place of a consumer")


def consumer_key(term: Term) -> ConsumerKey:
    return natural(term) if type(term) is int else _consumer_id(term)


def _msg_ids(term: Term) -> list[int]:
    if not isinstance(term, list):
        raise TermError("something else in place of a list of message ids")
    return [natural(msg_id) for msg_id in term]


def _boolean(term: Term) -> bool:
    if isinstance(term, bool):
        return term
    raise TermError("something else in place of a boolean")


def _name(term: Term) -> str:
    if isinstance(term, Atom):
        return str(term)
    raise TermError("something else in place of a name")


def _pid_or_none(term: Term) -> Pid | None:
    return None if term == "undefined" else _pid(term)


def _natural_or_none(term: Term) -> int | None:
    return None if term == "undefined" else natural(term)


def _publisher(reply_mode: Term) -> Pid | None:
    """The publisher of ``{e, Seq, Message, {MetadataSize, Size}}``, which is in the reply mode."""
    match reply_mode:
        case ("notify", _, publisher):
            return _pid(publisher)
        case _:
            return None


def _checkout(consumer: ConsumerId, spec: Term, meta: Mapping[Term, Term]) -> Command | None:
    match spec:
        case "cancel":
            return commands.Cancel(consumer)
        case "remove":
            return commands.Cancel(consumer, removes=True)
        case ("dequeue", ("settled" | "unsettled") as settlement):
            checkout = commands.Checkout(consumer, "get", settlement == "settled", 1, "simple_prefetch", 0)
        case ("auto" | "once" as lifetime, credit, Atom() as mode):
            checkout = commands.Checkout(
                consumer, _lifetime(lifetime), False, natural(credit), str(mode), _priority(meta)
            )
        case ("auto" | "once" as lifetime, ("simple_prefetch", credit)):
            checkout = commands.Checkout(
                consumer, _lifetime(lifetime), False, natural(credit), "simple_prefetch", _priority(meta), True
            )
        case ("auto" | "once" as lifetime, ("credited", count)):
            begin = count if type(count) is int else 0
            checkout = commands.Checkout(
                consumer, _lifetime(lifetime), False, 0, "credited", _priority(meta), True, begin
            )
        case _:
            return None
    return checkout._replace(timeout_ms=_setting(meta, "timeout"), prefetch=_setting(meta, "prefetch"))


def _lifetime(name: str) -> Literal["auto", "once"]:
    return "once" if name == "once" else "auto"


def _setting(meta: Mapping[Term, Term], name: str) -> int | None:
    value = meta.get(Atom(name))
    return value if type(value) is int and value >= 0 else None


def _priority(meta: Mapping[Term, Term]) -> int:
    """From 4.0 on it has a key of its own; before that it is among the consumer's arguments."""
    priority = meta.get(Atom("priority"))
    if type(priority) is int:
        return priority
    arguments = meta.get(Atom("args"))
    for argument in arguments if isinstance(arguments, list) else ():
        match argument:
            case (b"x-priority", _, value) if type(value) is int:
                return value
    return 0
