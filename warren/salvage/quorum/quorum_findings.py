"""What is damaged or left over in a quorum queue's directories.

The log reports the problems of its files (:meth:`warren.salvage.quorum.ra.log.QuorumLog.problems`); the replay reports
invalid entries, and messages that cannot be read. Of several directories of one queue, the one that is read is compared
with the others: members hold the same entry at the same index and term, as far as both go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from warren.salvage.classic.needed_body import contents_of
from warren.salvage.queue_directory import Finding
from warren.salvage.quorum.member import Member, best_of, unreadable
from warren.salvage.quorum.ra.entry_runs import LogEntry
from warren.salvage.quorum.ra.log import QuorumLog
from warren.storage.errors import DataError

_FIRST_OWN: Final = 2
"""Up to this index every entry has the time of its making, which differs between two queues of one name."""


def of_members(members: list[Member]) -> Iterator[Finding]:
    """All findings about a queue's directories."""
    best = best_of(members)
    for member in members:
        yield from (*member.wal_problems, *member.log_problems)
        if member is not best:
            yield from _other_directory(best, member)
    try:
        replayed = best.replayed()
    except DataError as error:
        yield unreadable(error)
        return
    yield from replayed.problems
    messages = replayed.machine.messages
    for queued in replayed.machine.ready():
        message = best.message(queued)
        if isinstance(message, Finding):
            yield message
            continue
        problem = contents_of(message.encoded).problem
        if problem is not None:
            detail = f"message {queued.index}: {problem}"
            yield Finding("unreadable message", "damage", message.path, message.offset, detail)
        if queued.index in messages.past_limit:
            detail = f"message {queued.index}: came back {queued.delivery_count} times; a start sends or throws it away"
            yield Finding("leftover past the delivery limit", "leftover", message.path, message.offset, detail)
        elif queued.index in messages.past_length:
            detail = f"message {queued.index}: a start drops it, as the queue is too long with what comes back"
            yield Finding("leftover past the length limit", "leftover", message.path, message.offset, detail)
    for letter in messages.dead_letters:
        detail = f"message {letter.message.index} ({letter.reason}) has left the queue, and not arrived elsewhere yet"
        yield Finding("leftover dead letter", "leftover", best.path, None, detail)


def _other_directory(best: Member, other: Member) -> Iterator[Finding]:
    """Compare a directory that is not read with the one that is."""
    best_log, other_log = best.log, other.log
    if other_log.last_index is None or best_log.last_index is None:
        yield Finding("leftover directory", "leftover", other.path, None, "another directory of this queue, empty")
        return
    first = max(_first(best_log), _first(other_log))
    last = min(best_log.last_index, other_log.last_index)
    shared = 0
    for best_entry, other_entry in zip(_between(best, first, last), _between(other, first, last), strict=False):
        if (best_entry.index, best_entry.term) != (other_entry.index, other_entry.term):
            yield _apart(
                best,
                other,
                f"index {other_entry.index} is of term {other_entry.term} here, of term {best_entry.term} there",
            )
            return
        if best_entry.data != other_entry.data and other_entry.index > _FIRST_OWN:
            yield _apart(best, other, f"index {other_entry.index} is not the same entry")
            return
        if best_entry.data != other_entry.data:
            yield from _another_queue(best, other)
            return
        shared += 1
    detail = f"another directory of this queue: {shared} entries are the same in {best.path}, which is read"
    yield Finding("leftover directory", "leftover", other.path, None, detail)


def _another_queue(best: Member, other: Member) -> Iterator[Finding]:
    """A queue of the same name, declared at another time."""
    try:
        messages = other.replayed().machine.ready_count
    except DataError as error:
        yield unreadable(error)
        return
    detail = f"another queue of this name, with {messages} messages; {best.path} is read"
    if messages:
        yield Finding("another queue of this name", "damage", other.path, None, detail)
    else:
        yield Finding("leftover directory", "leftover", other.path, None, detail)


def _apart(best: Member, other: Member, detail: str) -> Finding:
    return Finding("directories of one queue differ", "damage", other.path, None, f"{detail}; {best.path} is read")


def _first(log: QuorumLog) -> int:
    return 0 if log.first_index is None else log.first_index


def _between(member: Member, first: int, last: int) -> Iterator[LogEntry]:
    for entry in member.log.entries(first - 1):
        if isinstance(entry, LogEntry):
            if entry.index > last:
                return
            yield entry
