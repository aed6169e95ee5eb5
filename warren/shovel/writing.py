"""Data directories that are opened for writing: a source that is emptied, and a destination.

Both are vhosts of :mod:`warren.actors.vhost`, whose lock excludes other warrens; if a broker runs, nothing is opened.
The files may be RabbitMQ's; docs/recovery.md describes what it finds at its next start.

*Emptied*: messages are fetched, acks pending, and acked when they are settled; each batch of acks is synced. After a
kill, unacked messages are back. *Filled*: letters are held until the pump asks for outcomes; then they are published
and synced together, and all of them are safe. They are stored as persistent messages whatever the property
delivery_mode says, which is not changed: a restart must not lose a message taken from a source.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import groupby

import attrs

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.definitions import Definitions
from warren.actors.vhost import Vhost
from warren.commands.opening import opened_node
from warren.engine import open_vhost, vhost_path
from warren.hosting.data_directory import Kind, is_a_brokers, refuse_part
from warren.queue_index.index.directory import level_name
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.queue.fetching import Fetched
from warren.queue_index.queue.variable_queue import VariableQueue
from warren.salvage.classic import classic_v1
from warren.salvage.names import from_text, highest_level_first, split_level, to_text
from warren.salvage.queue_directory import Finding, OnFinding
from warren.salvage.quorum import quorum_directory
from warren.salvage.source import is_stream, open_source
from warren.salvage.streams import stream_directory
from warren.salvage.vhost import Vhost as OpenVhost
from warren.shovel.copying import chosen_vhosts
from warren.shovel.errors import ShovelError
from warren.shovel.letter import Letter, Position, from_term, priority_of
from warren.shovel.node_destination import NodeDestination
from warren.shovel.places import HELD, HELD_BYTES, HeldLetters, Intake, SourceQueue
from warren.storage.data_version import stamp
from warren.storage.errors import DirectoryLockedError, MessageError, StorageError, WarrenError
from warren.storage.filesystem import RealFileSystem
from warren.storage.lock_file import LOCK_FILE
from warren.storage.settings import RABBITMQ_3_10, Settings

_WITHOUT_STORE = (quorum_directory.KIND, stream_directory.KIND)


def settings_for(directory: str) -> Settings:
    """A broker's own directory is treated as that broker does."""
    return RABBITMQ_3_10 if is_a_brokers(directory) else Settings()


@contextmanager
def _opened(directory: str, vhost: str, settings: Settings | None = None) -> Iterator[Vhost]:
    """A vhost, closed at the end: cleanly where the error, if any, is not one of its own."""
    opened = open_vhost(directory, vhost, settings=settings_for(directory) if settings is None else settings)
    with ExitStack() as closing:
        closing.push(opened)
        try:
            yield opened
        except (ShovelError, DirectoryLockedError):  # of the other place: this one is sound
            closing.pop_all()
            opened.close()
            raise


# ── emptied ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.define
class MoveSource:
    """A directory that messages are taken out of. Made by :meth:`open`."""

    _path: str
    _vhosts: dict[bytes, Vhost]
    _report: OnFinding

    @classmethod
    @contextmanager
    def open(cls, path: str, vhost: str | None, names: Sequence[bytes], report: OnFinding) -> Iterator[MoveSource]:
        """Open the data directory ``path``, or only one of its vhosts; ``names``: the queues that will be emptied.

        Nothing is opened for writing unless that is possible for all of them.
        """
        if os.path.isfile(path) or is_stream(path):
            raise ShovelError(f"{path}: is an archive, which can only be copied from; leave out --move")
        with open_source(path) as source:
            chosen = chosen_vhosts(source, vhost)
            for candidate in chosen:
                _refuse_unwritable(path, candidate, names)
            places = [(to_text(candidate.name), candidate.path) for candidate in chosen]
        directory = os.path.abspath(path)
        with ExitStack() as opened:
            vhosts = {}
            for name, place in places:
                if str(vhost_path(directory, name)) != place:
                    raise ShovelError(f"{path}: --move wants the node's data directory, which holds msg_stores/vhosts")
                vhosts[from_text(name)] = opened.enter_context(_opened(directory, name))
            yield cls(path, vhosts, report)

    def queues(self, names: Sequence[bytes]) -> list[SourceQueue]:
        sources: list[SourceQueue] = []
        for vhost_name, vhost in self._vhosts.items():
            for reason in vhost.down.values():
                raise ShovelError(f"cannot be opened for writing, leave out --move to copy what can be read: {reason}")
            while vhost.recover_step():
                continue
            order = sorted(vhost.queues, key=highest_level_first)
            for name, levels in groupby(order, key=lambda queue: split_level(queue)[0]):
                if not names or name in names:
                    queues = [vhost.queues[level] for level in levels]
                    sources.append(_EmptiedQueue(vhost_name, name, vhost, queues, self._report))
        for name in names:
            if not any(queue.name == name for queue in sources):
                raise ShovelError(f"{self._path}: no queue {to_text(name)!r}")
        return sources


def _refuse_unwritable(path: str, vhost: OpenVhost, names: Sequence[bytes]) -> None:
    """Raise :class:`ShovelError` if a queue has a read-only format.

    A quorum queue or a stream that was not chosen does not matter. A classic queue does: it shares the vhost's store.
    """
    for queue in vhost.queues:
        name, _ = split_level(queue.name)
        is_wanted = not names or name in names or queue.kind not in _WITHOUT_STORE
        if queue.kind != classic_v1.KIND and is_wanted:
            raise ShovelError(
                f"{path}: queue {to_text(name)!r} is of the format {queue.kind}, which is only read; "
                "leave out --move to copy"
            )


@attrs.define(eq=False)
class _EmptiedQueue:
    """One queue, or the levels of a priority queue; position: which level, and the seq_id."""

    vhost: bytes
    name: bytes
    _home: Vhost
    _levels: list[VariableQueue]
    _report: OnFinding
    already: int = 0

    def count(self) -> int:
        return sum(len(level) for level in self._levels)

    def letters(self, limit: int) -> Iterator[Letter | None]:
        for part, level in enumerate(self._levels):
            count = 8  # until their sizes are known
            while fetched := level.fetch_many(min(limit, count)):
                size = 0
                for run in fetched:
                    limit -= run.count
                    for seq_id, term, expiry_us in zip(run.seq_ids, run.terms, _expiries_us(run), strict=True):
                        size = max(size, len(term))
                        letter = self._letter(term, expiry_us, (part, seq_id))
                        if letter is not None:
                            yield letter
                count = max(1, min(HELD_BYTES // size, HELD))

    def _letter(self, term: bytes, expiry_us: int, position: Position) -> Letter | None:
        """Return ``None`` for invalid bytes: they stay, pending and never settled."""
        try:
            return from_term(term, expiry_us, position)
        except MessageError as error:
            queue_name = to_text(self.name)
            self._report(Finding("unreadable message", "damage", queue_name, None, f"message {position[1]}: {error}"))
            return None

    def settle(self, positions: Sequence[Position]) -> None:
        for part, level in enumerate(self._levels):
            level.ack([seq_id for position_part, seq_id in positions if position_part == part])
        self._home.sync()

    def finish(self) -> None:
        """Acks are synced already; pending messages return to the queue when the vhost is closed."""


def _expiries_us(fetched: Fetched) -> list[int]:
    run = fetched._run
    return [run.batch.expiry(index) for index in range(run.low, run.high)]


# ── filled ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.define
class DirectoryDestination:
    """A data directory that messages are put into, created if it is missing. Made by :meth:`open`."""

    _directory: str
    _opened: ExitStack
    _settings: Settings | None = None
    _declares: bool = False
    _definitions: Definitions | None = None
    _vhosts: dict[bytes, Vhost] = attrs.field(factory=dict)
    _node: NodeDestination | None = None
    """While streams are filled, which only a node does; it has the directory in place of the others."""

    @classmethod
    @contextmanager
    def open(
        cls, path: str, settings: Settings | None = None, *, declares: bool = False
    ) -> Iterator[DirectoryDestination]:
        """Open the data directory ``path``; its vhosts are opened, or created, as they are filled.

        ``settings``: replace the default settings of such a directory. ``declares``: declare the queues in the node's
        definitions, unless the directory is a RabbitMQ's.
        """
        if os.path.exists(path) and not os.path.isdir(path):
            raise StorageError(f"{path}: is a file; messages can be put into a data directory or a broker")
        with ExitStack() as opened:
            yield cls(os.path.abspath(path), opened, settings, declares and refuse_part(path) is not Kind.BROKERS)

    def intake(self, vhost: bytes, source_name: bytes, name: bytes) -> Intake:
        if self._node is not None and self._node.topic_of(vhost, name) is None:
            self._close()
        if self._node is None:
            home = self._home(vhost)
            declaration = self._declare(to_text(vhost), name) if self._declares else None
            if declaration is None or not declaration.is_stream:
                top = None if declaration is None else declaration.max_priority
                return _queue_intake(home, vhost, source_name, name, top)
            self._close()
            self._node = NodeDestination(self._opened.enter_context(opened_node(self._directory)))
        return self._node.intake(vhost, source_name, name)

    def _close(self) -> None:
        """Close everything in the directory."""
        self._opened.close()
        self._vhosts.clear()
        self._definitions = self._node = None

    def _home(self, vhost: bytes) -> Vhost:
        if vhost not in self._vhosts:
            try:
                vhost_name = vhost.decode()
            except UnicodeDecodeError:
                raise ShovelError(f"a vhost's name that is not UTF-8 has no directory here: {vhost!r}") from None
            self._vhosts[vhost] = self._opened.enter_context(_opened(self._directory, vhost_name, self._settings))
        return self._vhosts[vhost]

    def _declare(self, vhost: str, name: bytes) -> QueueDeclaration | None:
        """Declare the queue for nodes that open the directory; one that cannot be declared they find on their own.

        Return its declaration; ``None`` if it could not be declared, and for a level of a priority queue.
        """
        if self._definitions is None:
            files = RealFileSystem()
            lock = files.lock(f"{self._directory}/{LOCK_FILE}", f"process {os.getpid()}")
            self._opened.callback(lock.remove)
            stamp(files, self._directory, is_new=False)
            self._definitions = Definitions.open(files, self._directory, os.urandom)
        self._definitions.declare_vhost(vhost)
        base, level = split_level(name)
        if level is None:
            with suppress(WarrenError):
                self._definitions.declare_queue(
                    QueueDeclaration(vhost=vhost, name=to_text(base), durable=True), named_by_node=True
                )
        self._definitions.save()
        queues = self._definitions.vhost(vhost)
        if level is not None or not queues.has("queue", to_text(base)):
            return None
        return queues.queue(to_text(base))


def _queue_intake(home: Vhost, vhost: bytes, source_name: bytes, name: bytes, top: int | None) -> Intake:
    """``top``: the highest level of a priority queue."""
    levels = [name] if top is None else [level_name(name, level) for level in range(top + 1)]
    queues = [home.queue(level) for level in levels]
    for queue in queues:
        queue.set_mode("lazy")  # nothing of the backlog stays in memory

    def address(letter: Letter) -> tuple[int, Envelope]:
        level = min(priority_of(letter.properties), len(queues) - 1) if top else 0
        keys = letter.keys_at(source_name, name)
        return level, Envelope(vhost, letter.exchange, keys, letter.properties, True)

    def publish(letters: Sequence[Letter]) -> list[None]:
        for (level, envelope), group in groupby(letters, key=address):
            batch = list(group)
            msg_ids, bodies = home.msg_ids.many(len(batch)), [letter.body for letter in batch]
            expiries_us = [letter.expiry_us for letter in batch]
            queues[level].publish_many(envelope, msg_ids, bodies, expiries_us=expiries_us)
        home.sync()
        return [None] * len(letters)

    return HeldLetters(publish)
