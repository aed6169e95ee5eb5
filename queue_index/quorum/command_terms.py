"""What ``rabbit_fifo``'s commands are in the log: tuples of a name and its arguments, of 3.10 to 4.3.

A command whose name is not known is :class:`Unknown`; one whose arguments are not what its name asks for raises
:class:`TermError`. Names that were given another shape in a later version have both here; which rules apply to it
is the machine's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, cast

from warren.queue_index.quorum.commands import (
    AssignDeferred,
    Body,
    Cancel,
    Checkout,
    Command,
    ConsumerId,
    ConsumerKey,
    ConsumerTimeout,
    Credit,
    DeadLetterCheckout,
    DeadLetterSettle,
    Discard,
    Down,
    Enqueue,
    MachineVersion,
    Modify,
    NodeDown,
    NodeUp,
    Nothing,
    Pid,
    Purge,
    PurgeNodes,
    RegisterEnqueuer,
    Requeue,
    RetryDelayed,
    Return,
    Settle,
    Unknown,
    UpdateConfig,
)
from warren.storage.erlang_terms import Atom, Opaque, Term, pid_key
from warren.storage.errors import TermError

BodyAt = Callable[[int], Body]
"""The message that is the command's element of this number."""

_Reader = Callable[["tuple[Term, ...]", Term, BodyAt], "Command | None"]
"""Of the command, its entry's reply mode, and its bodies; ``None``: it has not the shape."""


def command_of(command: Term, reply_mode: Term, body_at: BodyAt) -> Command:
    """The command that is said by ``command``, the third element of an entry, and ``reply_mode``, the fourth.

    Raises :class:`TermError` where a known command has another shape, and for what is no command at all.
    """
    match command:
        case (Atom() as name, *_):
            pass
        case Atom():
            return Unknown(command)
        case _:
            raise TermError("a command without a name")
    reader = READERS.get(name)
    if reader is None:
        return Unknown(name)
    found = reader(cast("tuple[Term, ...]", command), reply_mode, body_at)
    if found is None:
        raise TermError(f"a {name} command of another shape")
    return found


def natural(term: Term) -> int:
    """``term``, where it is an integer from 0 on; else raises :class:`TermError`."""
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


def _or_none(term: Term, of: Callable[[Term], object]) -> object | None:
    return None if term == "undefined" else of(term)


def _enqueue(command: tuple[Term, ...], _: Term, body_at: BodyAt) -> Command | None:
    match command:
        case (_, pid, seq, _):
            return Enqueue(
                cast("Pid | None", _or_none(pid, _pid)), cast("int | None", _or_none(seq, natural)), body_at(3)
            )
    return None


def _short_enqueue(command: tuple[Term, ...], reply_mode: Term, body_at: BodyAt) -> Command | None:
    """``{e, Seq, Message, {MetadataSize, Size}}``; the reply mode says who publishes."""
    match command:
        case (_, seq, _, (metadata_size, size)):
            match reply_mode:
                case ("notify", _, publisher):
                    pid: Pid | None = _pid(publisher)
                case _:
                    pid = None
            body = body_at(2)._replace(size=natural(size), metadata_size=natural(metadata_size))
            return Enqueue(pid, cast("int | None", _or_none(seq, natural)), body)
    return None


def _register(command: tuple[Term, ...], _: Term, __: BodyAt) -> Command | None:
    match command:
        case (_, pid):
            return RegisterEnqueuer(_pid(pid))
    return None


def _checkout(command: tuple[Term, ...], _: Term, __: BodyAt) -> Command | None:
    match command:
        case (_, consumer, spec, meta):
            return _checkout_of(_consumer_id(consumer), spec, meta if isinstance(meta, dict) else {})
    return None


def _checkout_of(consumer: ConsumerId, spec: Term, meta: Mapping[Term, Term]) -> Command | None:
    match spec:
        case "cancel":
            return Cancel(consumer)
        case "remove":
            return Cancel(consumer, removes=True)
        case ("dequeue", ("settled" | "unsettled") as settlement):
            found = Checkout(consumer, "get", settlement == "settled", 1, "simple_prefetch", 0)
        case ("auto" | "once" as lifetime, credit, Atom() as mode):
            found = Checkout(consumer, _lifetime(lifetime), False, natural(credit), str(mode), _priority(meta))
        case ("auto" | "once" as lifetime, ("simple_prefetch", credit)):
            found = Checkout(
                consumer, _lifetime(lifetime), False, natural(credit), "simple_prefetch", _priority(meta), True
            )
        case ("auto" | "once" as lifetime, ("credited", count)):
            begin = count if type(count) is int else 0
            found = Checkout(consumer, _lifetime(lifetime), False, 0, "credited", _priority(meta), True, begin)
        case _:
            return None
    return found._replace(timeout_ms=_setting(meta, "timeout"), prefetch=_setting(meta, "prefetch"))


def _lifetime(name: str) -> Literal["auto", "once"]:
    return "once" if name == "once" else "auto"


def _setting(meta: Mapping[Term, Term], name: str) -> int | None:
    value = meta.get(Atom(name))
    return value if type(value) is int and value >= 0 else None


def _priority(meta: Mapping[Term, Term]) -> int:
    """4.0 says it; before that it is among the arguments, as the consumer gave it."""
    priority = meta.get(Atom("priority"))
    if type(priority) is int:
        return priority
    arguments = meta.get(Atom("args"))
    for argument in arguments if isinstance(arguments, list) else ():
        match argument:
            case (b"x-priority", _, value) if type(value) is int:
                return value
    return 0


def _of_msg_ids(kind: type[Settle] | type[Discard] | type[Return]) -> _Reader:
    def read(command: tuple[Term, ...], _: Term, __: BodyAt) -> Command | None:
        match command:
            case (_, consumer, msg_ids):
                return kind(consumer_key(consumer), _msg_ids(msg_ids))
        return None

    return read


def _modify(command: tuple[Term, ...], _: Term, __: BodyAt) -> Command | None:
    match command:
        case (_, consumer, msg_ids, failed, elsewhere, dict(annotations)):
            return Modify(consumer_key(consumer), _msg_ids(msg_ids), _boolean(failed), _boolean(elsewhere), annotations)
    return None


def _requeue(command: tuple[Term, ...], _: Term, body_at: BodyAt) -> Command | None:
    match command:
        case (_, consumer, msg_id, index, header, _):
            return Requeue(consumer_key(consumer), natural(msg_id), natural(index), header, body_at(5))
    return None


def _credit(command: tuple[Term, ...], _: Term, __: BodyAt) -> Command | None:
    match command:
        case (_, consumer, credit, count, drain):
            delivery_count = 0 if isinstance(count, Atom) else natural(count)
            return Credit(consumer_key(consumer), natural(credit), delivery_count, _boolean(drain))
    return None


def _purge(command: tuple[Term, ...], _: Term, __: BodyAt) -> Command | None:
    return Purge() if len(command) == 1 else None


def _down(command: tuple[Term, ...], _: Term, __: BodyAt) -> Command | None:
    match command:
        case (_, pid, reason):
            return Down(_pid(pid), str(reason) if isinstance(reason, Atom) else "other")
    return None


def _node(kind: type[NodeUp] | type[NodeDown]) -> _Reader:
    def read(command: tuple[Term, ...], _: Term, __: BodyAt) -> Command | None:
        match command:
            case (_, node):
                return kind(_name(node))
        return None

    return read


def _purge_nodes(command: tuple[Term, ...], _: Term, __: BodyAt) -> Command | None:
    match command:
        case (_, list(nodes)):
            return PurgeNodes(tuple(map(_name, nodes)))
    return None


def _update_config(command: tuple[Term, ...], _: Term, __: BodyAt) -> Command | None:
    match command:
        case (_, dict(settings)):
            return UpdateConfig(settings)
    return None


def _machine_version(command: tuple[Term, ...], _: Term, __: BodyAt) -> Command | None:
    match command:
        case (_, _, version):
            return MachineVersion(natural(version))
    return None


def _timeout(command: tuple[Term, ...], _: Term, __: BodyAt) -> Command | None:
    match command:
        case (_, "expire_msgs" | ("expire_msgs", _)):
            return Nothing("timeout", True)
        case (_, "evaluate_consumer_timeout"):
            return ConsumerTimeout(None)
        case (_, ("consumer_disconnected_timeout", consumer)):
            return ConsumerTimeout(consumer_key(consumer))
        case (_, Atom() as what) | (_, (Atom() as what, *_)):
            return Unknown(f"timeout {what}")
    return None


def _dead_letters(command: tuple[Term, ...], _: Term, __: BodyAt) -> Command | None:
    match command:
        case (_, ("checkout", pid, prefetch)):
            return DeadLetterCheckout(_pid(pid), natural(prefetch))
        case (_, ("settle", msg_ids)):
            return DeadLetterSettle(_msg_ids(msg_ids))
        case (_, (Atom() as what, *_)):
            return Unknown(f"dlx {what}")
    return None


def _delayed(command: tuple[Term, ...], _: Term, __: BodyAt) -> Command | None:
    match command:
        case (_, ("retry", "all")):
            return RetryDelayed(None)
        case (_, ("retry", limit)):
            return RetryDelayed(natural(limit))
        case (_, ("assign_deferred", consumer, list(tokens))) if all(isinstance(token, bytes) for token in tokens):
            return AssignDeferred(consumer_key(consumer), cast(list[bytes], tokens))
    return None


def _collect_garbage(_: tuple[Term, ...], __: Term, ___: BodyAt) -> Command | None:
    return Nothing("garbage_collection", True)


READERS: Final[Mapping[str, _Reader]] = {
    "enqueue": _enqueue,
    "e": _short_enqueue,
    "register_enqueuer": _register,
    "checkout": _checkout,
    "settle": _of_msg_ids(Settle),
    "discard": _of_msg_ids(Discard),
    "return": _of_msg_ids(Return),
    "modify": _modify,
    "requeue": _requeue,
    "credit": _credit,
    "purge": _purge,
    "down": _down,
    "nodeup": _node(NodeUp),
    "nodedown": _node(NodeDown),
    "purge_nodes": _purge_nodes,
    "update_config": _update_config,
    "machine_version": _machine_version,
    "timeout": _timeout,
    "dlx": _dead_letters,
    "delayed_cmd": _delayed,
    "garbage_collection": _collect_garbage,
}
"""By name; in all versions a name means the same command."""
