"""What the commands behind a damaged one say of it.

A delivery is settled, discarded or given back once. So a delivery that a later sound command names is not the one that
the damaged command named, and a process that sends commands later was not gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Final

import attrs

from warren.queue_index.quorum.commands import (
    Checkout,
    Command,
    ConsumerKey,
    Discard,
    Down,
    Enqueue,
    Modify,
    Pid,
    RegisterEnqueuer,
    Requeue,
    Return,
    Settle,
)
from warren.queue_index.quorum.decoding import EntryDecoder
from warren.queue_index.quorum.log_entries import BadEntry, Hole, LogEntry
from warren.storage.errors import TermError

MAX_ENTRIES: Final = 8192
"""That are read behind one damaged entry."""


@attrs.frozen(eq=False, repr=False)
class LaterCommands:
    """What they name."""

    deliveries: frozenset[tuple[ConsumerKey, int]] = frozenset()
    """Consumers, and the numbers of their deliveries; not of consumers that begin later."""
    pids: frozenset[Pid] = frozenset()
    """Of processes that publish or consume later, before somebody finds them gone."""

    @classmethod
    def of(cls, entries: Iterable[LogEntry | Hole | BadEntry]) -> LaterCommands:
        """Those of the entries behind the damaged one, as far as they can be read."""
        names = _Names()
        decode = EntryDecoder().decode
        for entry in islice(entries, MAX_ENTRIES):
            if isinstance(entry, LogEntry):
                with suppress(TermError):
                    names.add(decode(entry.data).command)
        return cls(frozenset(names.deliveries), frozenset(names.pids))


@attrs.define
class _Names:
    """What commands name, one after the other."""

    deliveries: set[tuple[ConsumerKey, int]] = attrs.field(factory=set)
    pids: set[Pid] = attrs.field(factory=set)
    _begun: set[ConsumerKey] = attrs.field(factory=set)
    _gone: set[Pid] = attrs.field(factory=set)

    def add(self, command: Command) -> None:
        match command:
            case Settle(key, msg_ids) | Discard(key, msg_ids) | Return(key, msg_ids) | Modify(key, msg_ids):
                self._deliveries(key, msg_ids)
            case Requeue(consumer=key, msg_id=msg_id):
                self._deliveries(key, [msg_id])
            case Checkout(consumer=key):
                self._begun.add(key)
                self._process(key[1])
            case Enqueue(pid=bytes(pid)) | RegisterEnqueuer(pid=pid):
                self._process(pid)
            case Down(pid=pid):
                self._gone.add(pid)

    def _deliveries(self, key: ConsumerKey, msg_ids: Iterable[int]) -> None:
        if key not in self._begun:
            self.deliveries.update((key, msg_id) for msg_id in msg_ids)
        if isinstance(key, tuple):
            self._process(key[1])

    def _process(self, pid: Pid) -> None:
        if pid not in self._gone:
            self.pids.add(pid)
