"""What the commands after a damaged one reveal about it.

A delivery is settled, discarded or given back once. So a delivery that a later sound command names is not the one that
the damaged command named, and a process that sends commands later was not gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import attrs

from warren.salvage.quorum.fifo.commands import (
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
from warren.salvage.quorum.fifo.decoding import EntryDecoder
from warren.salvage.quorum.ra.entry_runs import BadEntry, Hole, LogEntry
from warren.salvage.quorum.ra.log import QuorumLog
from warren.storage.errors import TermError

MAX_ENTRIES: Final = 8192
"""Maximum number of entries that are read after one damaged entry."""


@attrs.define(eq=False, repr=False)
class LaterCommands:
    """The deliveries and the processes that later commands name."""

    deliveries: set[tuple[ConsumerKey, int]] = attrs.field(factory=set)
    """Consumers, and the numbers of their deliveries; not of consumers that begin later."""
    pids: set[Pid] = attrs.field(factory=set)
    """Processes that publish or consume later, before they are found gone."""
    _begun: set[ConsumerKey] = attrs.field(factory=set)
    _down_pids: set[Pid] = attrs.field(factory=set)

    def add(self, command: Command) -> None:
        """Collect what the next command names."""
        match command:
            case Settle(key, msg_ids) | Discard(key, msg_ids) | Return(key, msg_ids) | Modify(key, msg_ids):
                self._add_deliveries(key, msg_ids)
            case Requeue(consumer=key, msg_id=msg_id):
                self._add_deliveries(key, [msg_id])
            case Checkout(consumer=key):
                self._begun.add(key)
                self._add_process(key[1])
            case Enqueue(pid=bytes(pid)) | RegisterEnqueuer(pid=pid):
                self._add_process(pid)
            case Down(pid=pid):
                self._down_pids.add(pid)

    def _add_deliveries(self, key: ConsumerKey, msg_ids: Iterable[int]) -> None:
        if key not in self._begun:
            self.deliveries.update((key, msg_id) for msg_id in msg_ids)
        if isinstance(key, tuple):
            self._add_process(key[1])

    def _add_process(self, pid: Pid) -> None:
        if pid not in self._down_pids:
            self.pids.add(pid)


@attrs.define(eq=False, repr=False)
class CommandsAhead:
    """Reads a log ahead of its replay. The window moves forward only, so each entry is read and decoded once."""

    _log: QuorumLog
    _decoder: EntryDecoder = attrs.Factory(EntryDecoder)
    _entries: Iterator[LogEntry | Hole | BadEntry] = attrs.field(factory=lambda: iter(()))
    _window: deque[tuple[int, Command | None]] = attrs.Factory(deque)

    def after(self, index: int) -> LaterCommands:
        """What the entries after ``index`` name, as far as they can be read; ``index`` ascends from call to call."""
        while self._window and self._window[0][0] <= index:
            self._window.popleft()
        if not self._window:
            self._entries = self._log.entries(index)
        self._window.extend(map(self._command, islice(self._entries, MAX_ENTRIES - len(self._window))))
        later = LaterCommands()
        for _, command in self._window:
            if command is not None:
                later.add(command)
        return later

    def _command(self, entry: LogEntry | Hole | BadEntry) -> tuple[int, Command | None]:
        if isinstance(entry, Hole):
            return entry.last, None
        if isinstance(entry, BadEntry):
            return entry.index, None
        try:
            return entry.index, self._decoder.decode(entry.data).command
        except TermError:
            return entry.index, None
