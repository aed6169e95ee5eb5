"""What a damaged entry did, as far as what stands behind it depends on that.

Commands name deliveries by their number. Leave out one message, or one consumer's turn, and every later settle hits
another message. So an entry whose checksum is wrong still counts for its *structure*: a message keeps its place, which
nobody can have; a consumer gets what it got; a settle gives credit back. Nothing is lost on its word: what it settles
is doubtful (:mod:`queue_index.quorum.doubtful`), no settings and no version are taken from it, and the time is that of
the entry before.

An entry that cannot be decoded is known by its command's name (one byte of it may be wrong), else by the sound ones
that are most like it. One that is like none of them is taken for a message: one too many leaves messages over that were
settled, one too few takes some that were not.
"""

from __future__ import annotations

import re
from typing import Final

from queue_index.quorum.command_terms import READERS, command_of
from queue_index.quorum.commands import (
    Body,
    Checkout,
    Command,
    DeadLetterSettle,
    Discard,
    Down,
    Enqueue,
    MachineVersion,
    Modify,
    Pid,
    RegisterEnqueuer,
    Requeue,
    Return,
    Settle,
    Unknown,
    UpdateConfig,
)
from queue_index.quorum.decoding import MAX_DEPTH, decode_entry
from queue_index.quorum.doubtful import nearest
from queue_index.quorum.log import BadEntry, LogEntry, QuorumLog
from queue_index.quorum.machine import UNKNOWN_PID, QuorumMachine
from storage.erlang_terms import Atom, decode
from storage.errors import TermError
from storage.term_walk import term_end

MAX_BYTES: Final = 64 << 20
"""Of damaged entries that are looked at, of one log."""
_LEAST_COST = 4096
MIN_BYTES: Final = 16
"""Shorter ones are not."""
MAX_NAMED: Final = 10
"""Messages that are named one by one."""

_COMPARED = 96
"""Bytes at an entry's begin: the name of its command is among them."""
_ALIKE = 0.6
"""Of those that are compared."""
_VERSION, _TUPLE = b"\x83", b"h"
_NAME_WITHIN = 128
_GET = b"dequeue"
_OF_MESSAGES = frozenset({b"enqueue", b"e"})


def _pattern(*, nearly: bool) -> re.Pattern[bytes]:
    """The names of commands, with their lengths; ``nearly``: with any one byte changed."""
    names = sorted({*READERS, "noop"} - {"e"} if nearly else {*READERS, "noop"})
    groups = []
    for name in names:
        text = bytes([len(name)]) + name.encode()
        ways = [re.escape(text[:at]) + b"." + re.escape(text[at + 1 :]) for at in range(len(text))]
        groups.append(b"(?P<%s>%s)" % (name.encode(), b"|".join(ways if nearly else [re.escape(text)])))
    return re.compile(b"|".join(groups), re.DOTALL)


_NAMES, _NEARLY = _pattern(nearly=False), _pattern(nearly=True)
NOT_SURE: Final = "what was acked behind it is not sure"


class DamagedEntries:
    """Those of one log, while it is replayed."""

    def __init__(self, log: QuorumLog, machine: QuorumMachine) -> None:
        self._log = log
        self._machine = machine
        self._samples: dict[str | type, tuple[LogEntry, Command]] = {}
        """The last sound entry of each kind."""
        self._budget = MAX_BYTES

    def learn(self, entry: LogEntry, command: Command) -> None:
        """A sound entry."""
        kind = command.lifetime if isinstance(command, Checkout) else type(command)
        self._samples[kind] = entry, command

    def apply(self, bad: BadEntry) -> str:
        """Do what the entry did, as far as it is known; says what that was, and what is not sure."""
        self._budget -= max(bad.length, _LEAST_COST)
        data = self._log.bytes_of(bad) if self._budget >= 0 else b""
        if len(data) < MIN_BYTES:
            return NOT_SURE
        command = self._guessed(data, bad)
        machine = self._machine
        match command:
            case Enqueue(body=body):
                machine.apply(bad.index, machine.last_ts_ms, Enqueue(None, None, body))
                return "a message, as it seems"
            case Settle(consumer, msg_ids) | Discard(consumer, msg_ids):
                return _said_of(machine.doubt(consumer, msg_ids))
            case Requeue(consumer=key, msg_id=msg_id):
                message = machine.held(key, msg_id)
                if message is None:
                    return NOT_SURE
                machine.apply(message.index, machine.last_ts_ms, command)  # it is read where it was before
                return f"message {message.index} was given back"
            case Return(consumer, msg_ids) | Modify(consumer, msg_ids):
                key = machine.consumer_of(consumer, msg_ids)
                machine.apply(bad.index, machine.last_ts_ms, command._replace(consumer=key))
                return f"messages were given back; {NOT_SURE}"
            case Down(pid=pid):
                machine.apply(bad.index, machine.last_ts_ms, command._replace(pid=self._known(pid)))
                return f"a process was gone; {NOT_SURE}"
            case Checkout(consumer=(tag, pid)):
                consumer = tag, self._known(pid)
                machine.apply(bad.index, machine.last_ts_ms, command._replace(consumer=consumer))
                machine.doubt_key(consumer)
                return f"a consumer begins; {NOT_SURE}"
            case MachineVersion() | UpdateConfig() | DeadLetterSettle() | Unknown():
                return f"left out; {NOT_SURE}"
            case _:
                machine.apply(bad.index, machine.last_ts_ms, command)
                return f"taken as {type(command).__name__.lower()}; {NOT_SURE}"

    def _known(self, pid: Pid) -> Pid:
        """The process that is meant, where this one is none."""
        known = self._machine.pids()
        return pid if pid in known else nearest(pid, known) or pid

    def _guessed(self, data: bytes, bad: BadEntry) -> Command:
        try:
            found = decode_entry(data).command
        except TermError:
            pass
        else:
            if not isinstance(found, Unknown):
                return found
        message = Enqueue(None, None, Body(0, 0, bad.length, None, None))
        name = _name_in(data)
        alike = [(_likeness(data, one.data), one.data, command) for one, command in self._samples.values()]
        best, sample, command = max(alike, key=lambda one: one[0], default=(0.0, b"", None))
        if name:
            _, sample, command = next((one for one in alike if _name_in(one[1]) == name), (0.0, b"", None))
        elif best < _ALIKE or Enqueue not in self._samples:
            return message if self._samples.keys() & {Enqueue, RegisterEnqueuer} else Unknown("")
        inner = _inner_command(data, name or _name_in(sample))
        if inner is not None and not isinstance(inner, Enqueue):
            return inner
        if name in _OF_MESSAGES or isinstance(command, Enqueue):
            return message
        if name in (b"settle", b"discard") or isinstance(command, Settle | Discard):
            return Settle(-1, [])
        if name == b"return" or isinstance(command, Return):
            return Return(-1, [0])
        if name == b"checkout" and _GET in data:
            return Checkout((b"", UNKNOWN_PID), "get", False, 1, "simple_prefetch", 0)
        if isinstance(command, Checkout):
            return command._replace(consumer=(b"", UNKNOWN_PID), settled=False)
        return Unknown(name.decode())


def _likeness(data: bytes, sample: bytes) -> float:
    """Which part of both begins is the same, byte for byte."""
    size = min(len(data), len(sample), _COMPARED)
    return sum(map(int.__eq__, data[:size], sample[:size])) / size if size else 0.0


def _name_in(data: bytes) -> bytes:
    """The name of the command; one byte of it, or of its length, may be another. Empty: there is none."""
    found = _NAMES.search(data, 0, _NAME_WITHIN) or _NEARLY.search(data, 0, _NAME_WITHIN)
    return b"" if found is None or found.lastgroup is None else found.lastgroup.encode()


def _inner_command(data: bytes, name: bytes) -> Command | None:
    """The command alone, which begins before its name: the rest of the entry may be what is damaged."""
    name_at = data.find(name, 0, _NAME_WITHIN) if name else -1
    if name_at < 0:
        return None
    try:
        at = data.rfind(_TUPLE, 0, name_at)
        term = decode(_VERSION + data[at : term_end(data, at)], max_depth=MAX_DEPTH)
        return command_of(term, Atom("noreply"), lambda element: Body(0, 0, 0, None, None))
    except (TermError, IndexError):
        return None


def _said_of(indexes: list[int]) -> str:
    if not indexes:
        return f"a settle: what it settled may be back; {NOT_SURE}"
    named = ", ".join(map(str, indexes[:MAX_NAMED]))
    more = f" and {len(indexes) - MAX_NAMED} more" if len(indexes) > MAX_NAMED else ""
    return f"a settle: what it settled may be back (message {named}{more})"
