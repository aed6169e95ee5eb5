"""Replaying a quorum queue's log: from the newest snapshot through every entry after it, into the machine.

An unknown command and a hole are reported, and left out; a damaged entry is reported, and counts for what can be known
of it (:mod:`warren.salvage.quorum.fifo.damaged_entries`). After them a publisher's sequence numbers may jump forward,
so that what it published later is not taken for a repetition. Acks after a hole are uncertain: an ack names a delivery
by its number, and a message or a consumer that the hole hides takes numbers.
"""

from __future__ import annotations

from typing import Final

import attrs

from warren.salvage.queue_directory import Finding
from warren.salvage.quorum.fifo.commands import (
    Checkout,
    Command,
    Enqueue,
    MachineVersion,
    Pid,
    RegisterEnqueuer,
    Unknown,
)
from warren.salvage.quorum.fifo.damaged_entries import DamagedEntries
from warren.salvage.quorum.fifo.decoding import EntryDecoder
from warren.salvage.quorum.fifo.later_commands import CommandsAhead
from warren.salvage.quorum.fifo.machine import QuorumMachine
from warren.salvage.quorum.ra.config import QueueConfig
from warren.salvage.quorum.ra.entry_runs import BadEntry, Hole, LogEntry
from warren.salvage.quorum.ra.log import HOLE, QuorumLog
from warren.salvage.quorum.ra.wal_scan import UNREADABLE_RECORD
from warren.storage.errors import DataError, TermError

FIRST_VERSION: Final = 2
"""Of the machine, until the log has one: 3.10's."""

UNREADABLE_ENTRY: Final = "unreadable entry"
UNKNOWN_COMMAND: Final = "unknown command"


@attrs.frozen(kw_only=True)
class Replayed:
    """A queue after its log."""

    machine: QuorumMachine
    problems: tuple[Finding, ...]
    """Entries that make no sense, and so were left out."""
    missing: tuple[Finding, ...]
    """Holes, and entries that cannot be read."""
    outstanding: int
    """Messages that were out at a consumer at the end of the log; all are back now."""
    members: tuple[tuple[str, str], ...]
    """Server's name and node, as the log has them last."""


def replay(log: QuorumLog, config: QueueConfig | None, applied: int | None = None) -> Replayed:
    """The queue as a restart finds it, with every process of the previous run gone.

    The new leader finds them gone in this order: first, by their pids, all that exist after the entry ``applied``; then
    those of later entries, in the order of the log. ``None``: all by their pids.

    Raises :class:`DataError` for a machine, or a snapshot's state, of a version that is not known.
    """
    machine = _beginning(log, config)
    missed: dict[Pid, None] | None = None
    problems: list[Finding] = []
    missing: list[Finding] = []
    unknown: set[str] = set()
    decode, apply = EntryDecoder().decode, machine.apply
    damaged = DamagedEntries(log, machine, CommandsAhead(log))
    for entry in log.entries():
        if not isinstance(entry, LogEntry):
            machine.publishers.after_hole()
            missing.append(_missing(log, entry, damaged.apply(entry) if isinstance(entry, BadEntry) else ""))
            continue
        if missed is None and applied is not None and entry.index > applied:
            missed = dict.fromkeys(machine.pids())
        try:
            ts_ms, command = decode(entry.data)
            apply(entry.index, ts_ms, command)
            damaged.learn(entry, command)
            if missed is not None:
                for pid in _processes_of(command):
                    missed.setdefault(pid)
        except TermError as error:
            problems.append(_problem(UNREADABLE_ENTRY, entry, str(error)))
            machine.publishers.after_hole()
        except ValueError as error:
            if isinstance(command, MachineVersion):
                raise DataError(entry.path, entry.offset, f"entry {entry.index}: {error}") from error
            if not isinstance(command, Unknown):
                raise
            if command.name not in unknown:  # report each once, at its first place
                unknown.add(command.name)
                problems.append(_problem(UNKNOWN_COMMAND, entry, command.name))
            machine.publishers.after_hole()
    outstanding = machine.messages.out_count
    machine.restart(missed or ())
    return Replayed(
        machine=machine,
        problems=tuple(problems),
        missing=tuple(missing),
        outstanding=outstanding,
        members=machine.members or _declared_members(log, config),
    )


def _beginning(log: QuorumLog, config: QueueConfig | None) -> QuorumMachine:
    settings = {} if config is None else config.settings
    snapshot = log.snapshot
    if snapshot is None:
        return QuorumMachine.new(settings, FIRST_VERSION)
    try:
        return QuorumMachine.from_snapshot(snapshot.state(), settings, snapshot.machine_version)
    except (TermError, ValueError) as error:
        raise DataError(snapshot.path, None, f"the snapshot's state: {error}") from error


def _processes_of(command: Command) -> tuple[Pid, ...]:
    """The process of the publisher or the consumer that a command introduces, if any."""
    match command:
        case Enqueue(pid=bytes(pid)) | RegisterEnqueuer(pid=pid) | Checkout(consumer=(_, pid)):
            return (pid,)
        case _:
            return ()


def _declared_members(log: QuorumLog, config: QueueConfig | None) -> tuple[tuple[str, str], ...]:
    """The members that the snapshot has, else those of the config."""
    return (log.snapshot.members if log.snapshot else ()) or (config.members if config else ())


def _missing(log: QuorumLog, entry: Hole | BadEntry, effect: str) -> Finding:
    if isinstance(entry, BadEntry):
        return Finding(
            UNREADABLE_RECORD, "damage", entry.path, entry.offset, f"entry {entry.index}: {entry.reason}; {effect}"
        )
    detail = f"no file has the entries {entry.first} to {entry.last}; which messages were acked after them is uncertain"
    return Finding(HOLE, "damage", log.directory, None, detail)


def _problem(kind: str, entry: LogEntry, detail: str) -> Finding:
    return Finding(kind, "damage", entry.path, entry.offset, f"entry {entry.index}: {detail}")
