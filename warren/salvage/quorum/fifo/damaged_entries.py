"""What a damaged entry did, as far as later entries depend on it.

Commands name deliveries by their number. If one message, or one consumer's turn, is left out, every later settle hits
another message. So an entry whose checksum is wrong still counts for its *structure*: a message keeps its place, but
cannot be read; a consumer gets what it got; a settle gives credit back. A damaged entry removes nothing: what it
settles is doubtful (:mod:`warren.salvage.quorum.fifo.settlements`), no settings and no version are taken from it,
and the time is that of the entry before.

An entry that cannot be decoded is recognised by its command's name (one byte of it may be wrong), else by the sound
entries that are most similar. If none is similar (all zeros, for example), it is taken for a message: one message too
many keeps messages that were settled, one too few loses messages that were not. Then it is reported as unknown.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

import attrs

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
from warren.salvage.quorum.fifo.machine import QuorumMachine
from warren.salvage.quorum.fifo.settlements import UNKNOWN_PID
from warren.salvage.quorum.ra.entry_runs import BadEntry, LogEntry
from warren.salvage.quorum.ra.log import QuorumLog
from warren.salvage.quorum.ra.similar_names import nearest
from warren.storage.erlang_terms import Atom, Term, decode
from warren.storage.errors import TermError
from warren.storage.term_walk import term_end

MAX_BYTES: Final = 64 << 20
"""Of one log's damaged entries that are examined."""
_LEAST_COST = 4096
MIN_BYTES: Final = 16
"""Shorter entries are not examined."""
MAX_LOOKS: Final = 64
"""Maximum number of a log's damaged entries for which the later commands are read."""
MAX_NAMED: Final = 10
"""Messages that are named one by one."""

_COMPARED = 96
"""Bytes at an entry's start that are compared; the name of its command is among them."""
_LEAST_LIKENESS = 0.6
"""How much of the compared bytes has to be equal, as a share."""
_REQUEUE_ELEMENTS = 3
"""After its name, before the message's header and the message itself."""
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
NOT_SURE: Final = "which messages were acked after it is uncertain"
UNKNOWN: Final = f"treated as a message, although its kind is unknown; {NOT_SURE}"


@attrs.define(eq=False, repr=False)
class DamagedEntries:
    """The damaged entries of one log, while it is replayed."""

    _log: QuorumLog
    _machine: QuorumMachine
    _ahead: CommandsAhead
    _samples: dict[str | type, tuple[LogEntry, Command]] = attrs.Factory(dict)
    """The last sound entry of each kind."""
    _budget: int = MAX_BYTES
    _looks: int = 0

    def learn(self, entry: LogEntry, command: Command) -> None:
        """Remember a sound entry as a sample."""
        kind = command.lifetime if isinstance(command, Checkout) else type(command)
        self._samples[kind] = entry, command

    def apply(self, bad: BadEntry) -> str:
        """Apply what the entry did, as far as it is known; return a text about that and about what is uncertain."""
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
                machine.apply(bad.index, machine.messages.now_ms, Enqueue(None, None, body))
                return "probably a message" if guessed is not None else UNKNOWN
            case Settle(key, msg_ids) | Discard(key, msg_ids):
                consumer, actual_ids = machine.settlements.meant_by(key, msg_ids, later)
                return _settle_text([] if consumer is None else machine.settlements.doubt(consumer, actual_ids))
            case Requeue():
                index = self._requeue(command, later)
                return NOT_SURE if index is None else f"message {index} was requeued"
            case Return() | Modify():
                self._give_back(command, bad.index, later)
                return f"messages were requeued; {NOT_SURE}"
            case Down(pid=pid):
                machine.apply(bad.index, machine.messages.now_ms, command._replace(pid=self._actual_pid(pid, later)))
                return f"a process ended; {NOT_SURE}"
            case Checkout(consumer=(tag, pid)):
                name = tag, self._actual_pid(pid, LaterCommands())
                machine.apply(bad.index, machine.messages.now_ms, command._replace(consumer=name))
                machine.settlements.doubt_key(name)
                return f"a consumer started; {NOT_SURE}"
            case MachineVersion() | UpdateConfig() | DeadLetterSettle() | Unknown():
                return f"skipped; {NOT_SURE}"
            case _:
                machine.apply(bad.index, machine.messages.now_ms, command)
                return f"treated as {type(command).__name__.lower()}; {NOT_SURE}"

    def _later(self, bad: BadEntry) -> LaterCommands:
        if self._looks >= MAX_LOOKS:
            return LaterCommands()
        self._looks += 1
        return self._ahead.after(bad.index)

    def _give_back(self, command: Return | Modify, index: int, later: LaterCommands) -> None:
        """Messages that this would take past the delivery limit become doubtful instead, so that none is lost."""
        machine = self._machine
        consumer, actual_ids = machine.settlements.meant_by(command.consumer, command.msg_ids, later)
        if consumer is not None:
            doubtful = [msg_id for msg_id in actual_ids if machine.settlements.goes_with_a_return(consumer, msg_id)]
            given_back = [msg_id for msg_id in actual_ids if msg_id not in doubtful]
            machine.apply(index, machine.messages.now_ms, command._replace(consumer=consumer.key, msg_ids=given_back))
            if doubtful:
                machine.settlements.doubt(consumer, doubtful)

    def _requeue(self, command: Requeue, later: LaterCommands) -> int | None:
        """The message that was given back; its body is read from its former place."""
        machine = self._machine
        delivery = self._delivery_of(command.old_index, later)
        if delivery is None:
            consumer, actual_ids = machine.settlements.meant_by(command.consumer, [command.msg_id], later)
            delivery = None if consumer is None else (consumer.key, actual_ids[0])
        message = None if delivery is None else machine.settlements.held(*delivery)
        if delivery is None or message is None:
            return None
        resolved = command._replace(consumer=delivery[0], msg_id=delivery[1])
        machine.apply(message.index, machine.messages.now_ms, resolved)
        return message.index

    def _delivery_of(self, index: int, later: LaterCommands) -> tuple[ConsumerKey, int] | None:
        """The consumer and the msg_id under which the message ``index`` is out."""
        deliveries = ((key, msg_id) for key, msg_id, message in self._machine.outstanding() if message.index == index)
        delivery = next(deliveries, None)
        return None if delivery in later.deliveries else delivery

    def _actual_pid(self, pid: Pid, later: LaterCommands) -> Pid:
        """``pid`` if it is known, else the most similar known one, if any; of no process that does something later."""
        pids = set(self._machine.pids()) - later.pids
        return pid if pid in pids else nearest(pid, pids) or pid

    def _likest(self, bad: BadEntry) -> Command:
        """The command that an entry unlike all sound ones is taken for."""
        is_late = self._samples.keys() & {Enqueue, RegisterEnqueuer}
        return _message(bad) if is_late else Unknown("")

    def _guessed(self, data: bytes, bad: BadEntry) -> Command | None:
        """What the entry was, by its bytes; ``None`` if they do not tell."""
        try:
            decoded = decode_entry(data).command
        except TermError:
            pass
        else:
            if not isinstance(decoded, Unknown):
                return decoded
        name = _name_in(data)
        candidates = [(_likeness(data, entry.data), entry.data, command) for entry, command in self._samples.values()]
        best, sample, command = max(candidates, key=lambda candidate: candidate[0], default=(0.0, b"", None))
        if name:
            _, sample, command = next(
                (candidate for candidate in candidates if _name_in(candidate[1]) == name), (0.0, b"", None)
            )
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
    """The share of equal bytes at the start of both."""
    size = min(len(data), len(sample), _COMPARED)
    return sum(map(int.__eq__, data[:size], sample[:size])) / size if size else 0.0


def _name_in(data: bytes) -> bytes:
    """The name of the command, in which one byte, or its length, may be wrong; empty if not found."""
    match = _NAMES.search(data, 0, _NAME_WITHIN) or _NEARLY.search(data, 0, _NAME_WITHIN)
    return b"" if match is None or match.lastgroup is None else match.lastgroup.encode()


def _inner_command(data: bytes, name: bytes) -> Command | None:
    """The command alone, which begins before its name: the damage may be in the rest of the entry."""
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
    """A command whose last element is damaged: its message, or its msg_ids."""
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


def _settle_text(indexes: list[int]) -> str:
    if not indexes:
        return f"a settle: what it settled may be back; {NOT_SURE}"
    named = ", ".join(map(str, indexes[:MAX_NAMED]))
    more = f" and {len(indexes) - MAX_NAMED} more" if len(indexes) > MAX_NAMED else ""
    return f"a settle: what it settled may be back (message {named}{more})"
