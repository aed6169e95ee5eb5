"""What a damaged entry did, as far as later entries depend on it.

Commands name deliveries by their number. If one message, or one consumer's turn, is left out, every later settle hits
another message. So an entry whose checksum is wrong still counts for its *structure*: a message keeps its place, but
cannot be read; a consumer gets what it got; a settle gives credit back. A damaged entry removes nothing: what it
settles is doubtful (:mod:`warren.salvage.quorum.fifo.damaged_settles`), no settings and no version are taken from it,
and the time is that of the entry before.

An entry that cannot be decoded is known by its command's name (one byte of it may be wrong), else by the sound ones
that are most like it. One that is like none of them, all zeros for one, is taken for a message: a message too many
leaves some over that were settled, one too few takes some that were not. So it is reported as unknown.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

from warren.salvage.quorum.fifo.command_terms import NAMES, command_of, consumer_key, natural
from warren.salvage.quorum.fifo.commands import (
    Body,
    Checkout,
    Command,
    ConsumerKey,
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
from warren.salvage.quorum.fifo.decoding import MAX_DEPTH, decode_entry
from warren.salvage.quorum.fifo.later_commands import CommandsAhead, LaterCommands
from warren.salvage.quorum.fifo.machine import UNKNOWN_PID, QuorumMachine
from warren.salvage.quorum.ra.log import BadEntry, LogEntry, QuorumLog
from warren.salvage.quorum.ra.similar_names import nearest
from warren.storage.erlang_terms import Atom, Term, decode
from warren.storage.errors import TermError
from warren.storage.term_walk import term_end

MAX_BYTES: Final = 64 << 20
"""Of damaged entries that are looked at, of one log."""
_LEAST_COST = 4096
MIN_BYTES: Final = 16
"""Shorter ones are not."""
MAX_LOOKS: Final = 64
"""Maximum number of a log's damaged entries for which the later commands are read."""
MAX_NAMED: Final = 10
"""Messages that are named one by one."""

_COMPARED = 96
"""Bytes at an entry's begin: the name of its command is among them."""
_LEAST_LIKENESS = 0.6
"""Of those that are compared."""
_REQUEUE_ELEMENTS = 3
"""Behind its name, before the message's header and the message itself."""
_VERSION, _TUPLE = b"\x83", b"h"
_NAME_WITHIN = 128
_NAMING = (Settle, Discard, Requeue, Return, Modify, Down)
"""Commands that name a delivery or a process."""
_OF_MESSAGES = frozenset({b"enqueue", b"e"})


def _pattern(*, nearly: bool) -> re.Pattern[bytes]:
    """The names of commands, with their lengths; ``nearly``: with any one byte changed."""
    names = sorted({*NAMES, "noop"} - {"e"} if nearly else {*NAMES, "noop"})
    groups = []
    for name in names:
        text = bytes([len(name)]) + name.encode()
        groups.append(b"(?P<%s>%s)" % (name.encode(), _one_byte_changed(text) if nearly else re.escape(text)))
    return re.compile(b"|".join(groups), re.DOTALL)


def _one_byte_changed(text: bytes) -> bytes:
    """A pattern for ``text`` with any one of its bytes changed, or none."""
    return b"|".join(re.escape(text[:at]) + b"." + re.escape(text[at + 1 :]) for at in range(len(text)))


_NAMES, _NEARLY = _pattern(nearly=False), _pattern(nearly=True)
_GET = re.compile(_one_byte_changed(b"dequeue"), re.DOTALL)
NOT_SURE: Final = "what was acked behind it is not sure"
UNKNOWN: Final = f"taken for a message, though nothing in it says what it was; {NOT_SURE}"


class DamagedEntries:
    """Those of one log, while it is replayed."""

    def __init__(self, log: QuorumLog, machine: QuorumMachine) -> None:
        self._log = log
        self._machine = machine
        self._samples: dict[str | type, tuple[LogEntry, Command]] = {}
        """The last sound entry of each kind."""
        self._budget = MAX_BYTES
        self._looks = 0
        self._ahead = CommandsAhead(log)

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
        guessed = self._guessed(data, bad)
        command = self._likest(bad) if guessed is None else guessed
        machine = self._machine
        later = self._later(bad) if isinstance(command, _NAMING) else LaterCommands()
        match command:
            case Enqueue(body=body):
                machine.apply(bad.index, machine.last_ts_ms, Enqueue(None, None, body))
                return "a message, as it seems" if guessed is not None else UNKNOWN
            case Settle(key, msg_ids) | Discard(key, msg_ids):
                consumer, meant = machine.meant_by(key, msg_ids, later)
                return _said_of([] if consumer is None else machine.doubt(consumer, meant))
            case Requeue():
                index = self._requeue(command, later)
                return NOT_SURE if index is None else f"message {index} was given back"
            case Return() | Modify():
                self._give_back(command, bad.index, later)
                return f"messages were given back; {NOT_SURE}"
            case Down(pid=pid):
                machine.apply(bad.index, machine.last_ts_ms, command._replace(pid=self._gone(pid, later)))
                return f"a process was gone; {NOT_SURE}"
            case Checkout(consumer=(tag, pid)):
                name = tag, self._known(pid)
                machine.apply(bad.index, machine.last_ts_ms, command._replace(consumer=name))
                machine.doubt_key(name)
                return f"a consumer begins; {NOT_SURE}"
            case MachineVersion() | UpdateConfig() | DeadLetterSettle() | Unknown():
                return f"left out; {NOT_SURE}"
            case _:
                machine.apply(bad.index, machine.last_ts_ms, command)
                return f"taken as {type(command).__name__.lower()}; {NOT_SURE}"

    def _later(self, bad: BadEntry) -> LaterCommands:
        if self._looks >= MAX_LOOKS:
            return LaterCommands()
        self._looks += 1
        return self._ahead.after(bad.index)

    def _give_back(self, command: Return | Modify, index: int, later: LaterCommands) -> None:
        """What this would send away, past the delivery limit, is doubtful instead: nothing is lost on its word."""
        machine = self._machine
        consumer, meant = machine.meant_by(command.consumer, command.msg_ids, later)
        if consumer is not None:
            last = [msg_id for msg_id in meant if machine.goes_with_a_return(consumer, msg_id)]
            given_back = [msg_id for msg_id in meant if msg_id not in last]
            machine.apply(index, machine.last_ts_ms, command._replace(consumer=consumer.key, msg_ids=given_back))
            if last:
                machine.doubt(consumer, last)

    def _requeue(self, command: Requeue, later: LaterCommands) -> int | None:
        """The message that was given back; its body is read from its former place."""
        machine = self._machine
        found = self._delivery_of(command.old_index, later)
        if found is None:
            consumer, meant = machine.meant_by(command.consumer, [command.msg_id], later)
            found = None if consumer is None else (consumer.key, meant[0])
        message = None if found is None else machine.held(*found)
        if found is None or message is None:
            return None
        again = command._replace(consumer=found[0], msg_id=found[1])
        machine.apply(message.index, machine.last_ts_ms, again)
        return message.index

    def _delivery_of(self, index: int, later: LaterCommands) -> tuple[ConsumerKey, int] | None:
        """Under which consumer and number the message ``index`` is out."""
        found = ((key, msg_id) for key, msg_id, message in self._machine.outstanding() if message.index == index)
        delivery = next(found, None)
        return None if delivery in later.deliveries else delivery

    def _gone(self, pid: Pid, later: LaterCommands) -> Pid:
        """The process that is meant: one that does nothing later."""
        known = set(self._machine.pids()) - later.pids
        return pid if pid in known else nearest(pid, known) or pid

    def _known(self, pid: Pid) -> Pid:
        """``pid`` if it is known, else the known one most like it, if there is one."""
        known = self._machine.pids()
        return pid if pid in known else nearest(pid, known) or pid

    def _likest(self, bad: BadEntry) -> Command:
        """The command that an entry unlike all sound ones is taken for."""
        is_late = self._samples.keys() & {Enqueue, RegisterEnqueuer}
        return _message(bad) if is_late else Unknown("")

    def _guessed(self, data: bytes, bad: BadEntry) -> Command | None:
        """What the entry was, by its bytes; ``None``: nothing in them says that."""
        try:
            found = decode_entry(data).command
        except TermError:
            pass
        else:
            if not isinstance(found, Unknown):
                return found
        name = _name_in(data)
        likest = [(_likeness(data, one.data), one.data, command) for one, command in self._samples.values()]
        best, sample, command = max(likest, key=lambda one: one[0], default=(0.0, b"", None))
        if name:
            _, sample, command = next((one for one in likest if _name_in(one[1]) == name), (0.0, b"", None))
        elif best < _LEAST_LIKENESS or Enqueue not in self._samples:
            return None
        inner = _inner_command(data, name or _name_in(sample))
        if inner is not None and not isinstance(inner, Enqueue):
            return inner
        if name in _OF_MESSAGES or isinstance(command, Enqueue):
            return _message(bad)
        if name in (b"settle", b"discard") or isinstance(command, Settle | Discard):
            return Settle(-1, [])
        if name == b"return" or isinstance(command, Return):
            return Return(-1, [])
        if name == b"checkout" and _GET.search(data):
            return Checkout((b"", UNKNOWN_PID), "get", False, 1, "simple_prefetch", 0)
        if isinstance(command, Checkout):
            return command._replace(consumer=(b"", UNKNOWN_PID), settled=False)
        return Unknown(name.decode())


def _message(bad: BadEntry) -> Enqueue:
    """A message known only by its length."""
    return Enqueue(None, None, Body(0, 0, bad.length, None, None))


def _likeness(data: bytes, sample: bytes) -> float:
    """Which part of both begins is the same, byte for byte."""
    size = min(len(data), len(sample), _COMPARED)
    return sum(map(int.__eq__, data[:size], sample[:size])) / size if size else 0.0


def _name_in(data: bytes) -> bytes:
    """The name of the command, in which one byte, or its length, may be wrong; empty if not found."""
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
        return _begun_command(data, name, name_at)


def _begun_command(data: bytes, name: bytes, name_at: int) -> Command | None:
    """A command whose last element is what is damaged: the message that it brings, or the numbers that it names."""
    elements: list[Term] = []
    at = name_at + len(name)
    with suppress(TermError, IndexError):
        while len(elements) < _REQUEUE_ELEMENTS:
            end = term_end(data, at)
            elements.append(decode(_VERSION + data[at:end], max_depth=MAX_DEPTH))
            at = end
    try:
        match name, elements:
            case b"requeue", [key, msg_id, old_index, *_]:
                return Requeue(consumer_key(key), natural(msg_id), natural(old_index), 0, Body(0, 0, 0, None, None))
            case ((b"settle" | b"discard"), [key, *_]):
                return Settle(consumer_key(key), [])
            case b"return", [key, *_]:
                return Return(consumer_key(key), [])
    except TermError:
        pass
    return None


def _said_of(indexes: list[int]) -> str:
    if not indexes:
        return f"a settle: what it settled may be back; {NOT_SURE}"
    named = ", ".join(map(str, indexes[:MAX_NAMED]))
    more = f" and {len(indexes) - MAX_NAMED} more" if len(indexes) > MAX_NAMED else ""
    return f"a settle: what it settled may be back (message {named}{more})"
