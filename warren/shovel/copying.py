"""A source that is only read: a directory, or an archive of one. The progress is recorded elsewhere.

One pass over each queue's directory, in the order in which a restarted broker would deliver; memory: one segment, or a
quorum queue's replay. Unreadable messages are reported and skipped; all others are copied. The levels of a priority
queue are copied under its base name, the highest first.

A classic queue's messages come in the order of their seq_ids. A quorum queue's do not: redelivered messages come first,
and higher priorities overtake. There the progress counts as safe only what is below the lowest seq_id that is *still to
come*; a separate replay finds that without reading bodies.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cached_property

import attrs
import numpy as np
import numpy.typing as npt

from warren.salvage.export import chosen_queues
from warren.salvage.names import to_text
from warren.salvage.queue_directory import Finding, MessageRun, OnFinding, StoredMessage
from warren.salvage.queue_reader import QueueDirectory
from warren.salvage.quorum.quorum_directory import QuorumDirectory
from warren.salvage.source import Place
from warren.salvage.source import Source as OpenSource
from warren.salvage.vhost import Vhost
from warren.shovel.errors import ShovelError
from warren.shovel.letter import Letter, Position, from_term
from warren.shovel.places import SourceQueue
from warren.shovel.progress import Progress, Reach
from warren.storage.errors import DataError, MessageError


@attrs.define
class CopySource:
    """A directory that is not changed. Made by :meth:`open`."""

    _vhosts: list[Vhost]
    _progress: Progress
    _rename: Callable[[bytes], bytes]
    _report: OnFinding

    @classmethod
    @contextmanager
    def open(
        cls, place: Place, vhost: str | None, progress: Progress, rename: Callable[[bytes], bytes], report: OnFinding
    ) -> Iterator[CopySource]:
        """The source at ``place``, of its vhosts perhaps one only; ``rename``: a queue's name at the destination."""
        with closing(place.queues()) as source:
            yield cls(chosen_vhosts(source, vhost), progress, rename, report)

    def queues(self, names: Sequence[bytes]) -> list[SourceQueue]:
        queues: list[SourceQueue] = []
        for vhost in self._vhosts:
            left_out = []
            for name, directories in chosen_queues(vhost):
                if names and name not in names:
                    left_out += [directory.path for directory in directories]
                    continue
                reaches = [
                    self._progress.reach(vhost.name, _directory_name(directory), self._rename(name))
                    for directory in directories
                ]
                queues.append(_CopiedQueue(vhost.name, name, directories, reaches, self._progress, self._report))
            for problem in vhost.problems:
                if problem.severity != "leftover" and not problem.path.startswith(tuple(left_out)):
                    self._report(problem)
        for name in names:
            if not any(queue.name == name for queue in queues):
                raise ShovelError(f"no queue {to_text(name)!r} at the source (one never written to has no directory)")
        return queues


def chosen_vhosts(source: OpenSource, vhost_name: str | None) -> list[Vhost]:
    """Return the vhosts of a source, or only ``vhost_name``. Raises :class:`ShovelError` if there is no such vhost."""
    vhosts = [vhost for vhost in source.vhosts if vhost_name in (None, to_text(vhost.name))]
    if not vhosts:
        raise ShovelError(
            f"{source.path}: no vhost" if vhost_name is None else f"{source.path}: no vhost {vhost_name!r}"
        )
    return vhosts


def _directory_name(directory: QueueDirectory) -> str:
    """Return the key of its progress: seq_ids belong to a directory, and a quorum queue may have several."""
    path = directory.path
    if isinstance(directory, QuorumDirectory) and len(directory.members) > 1:
        with suppress(DataError):  # then nothing comes out of it
            path = directory.chosen().path
    return posixpath.basename(path)


class _Walk:
    """A directory's messages in their order, as far as they have been passed."""

    def __init__(self, directory: QueueDirectory) -> None:
        self._directory = directory
        self._at = 0

    def count(self) -> int:
        """Of all of them."""
        return self._directory.summary().ready if self._seq_ids is None else len(self._seq_ids)

    @cached_property
    def _seq_ids(self) -> npt.NDArray[np.int64] | None:
        """In order of delivery; ``None``: they ascend."""
        return _delivery_order(self._directory) if isinstance(self._directory, QuorumDirectory) else None

    @cached_property
    def _lowest(self) -> npt.NDArray[np.int64] | None:
        """From each place on."""
        return None if self._seq_ids is None else np.minimum.accumulate(self._seq_ids[::-1])[::-1]

    def pass_by(self, seq_id: int) -> None:
        """Skip this message and those before it."""
        seq_ids = self._seq_ids
        if seq_ids is None:
            return
        while self._at < len(seq_ids):
            self._at += 1
            if seq_ids[self._at - 1] == seq_id:
                return
        raise RuntimeError(f"message {seq_id} is out of the queue's order")

    @property
    def lowest_to_come(self) -> int | None:
        """``None``: no message is left, or all that are left have higher seq_ids than those before."""
        return None if self._lowest is None or self._at == len(self._lowest) else int(self._lowest[self._at])


def _delivery_order(directory: QuorumDirectory) -> npt.NDArray[np.int64]:
    try:
        machine = directory.chosen().replayed().machine
    except DataError:
        return np.empty(0, np.int64)
    return np.fromiter((queued.index for queued in machine.ready()), np.int64)


@attrs.define(eq=False)
class _CopiedQueue:
    """One queue; position: which directory, and the seq_id."""

    vhost: bytes
    name: bytes
    _directories: list[QueueDirectory]
    _reaches: list[Reach]
    _progress: Progress
    _report: OnFinding
    _open: list[set[int]] = attrs.field(init=False)
    """For each directory the seq_ids that were handed out and are not settled."""
    _walks: list[_Walk] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._open = [set() for _ in self._directories]
        self._walks = [_Walk(directory) for directory in self._directories]

    @property
    def already(self) -> int:
        return sum(reach.messages for reach in self._reaches)

    def count(self) -> int:
        return max(sum(walk.count() for walk in self._walks) - self.already, 0)

    def letters(self, limit: int) -> Iterator[Letter | None]:
        for part, directory in enumerate(self._directories):
            reach, handed_out, walk = self._reaches[part], self._open[part], self._walks[part]
            for message in self._messages(directory, reach):
                if not limit:
                    return
                try:
                    letter = from_term(message.encoded, message.expiry_us, (part, message.seq_id))
                except MessageError as error:
                    place = f"message {message.seq_id}: {error}"
                    self._report(Finding("unreadable message", "damage", message.path, message.offset, place))
                    continue
                handed_out.add(message.seq_id)
                walk.pass_by(message.seq_id)
                limit -= 1
                yield letter

    def _messages(self, directory: QueueDirectory, reach: Reach) -> Iterator[StoredMessage]:
        copied_until, last = reach.next_seq_id, None
        for entry in directory.message_runs():
            if isinstance(entry, Finding):
                if entry.severity == "damage":
                    self._report(entry)
            elif isinstance(entry, MessageRun):
                last = int(entry.seq_ids[-1])
                if last >= reach.next_seq_id:
                    yield from (message for message in entry.messages() if not reach.has(message.seq_id))
            else:
                last = entry.seq_id
                if not reach.has(entry.seq_id):
                    yield entry
        # A quorum queue that is declared again gets another directory.
        if last is not None and last + 1 < copied_until and not isinstance(directory, QuorumDirectory):
            detail = (
                f"it ends at message {last}, but {self._progress.path} says that messages up to {copied_until - 1} are"
                " copied: the queue was emptied and filled again, or the directory replaced; delete that file to copy"
                " the queue from its first message"
            )
            self._report(Finding("queue behind its progress", "damage", directory.path, None, detail))

    def settle(self, positions: Sequence[Position]) -> None:
        for part, (reach, handed_out) in enumerate(zip(self._reaches, self._open, strict=True)):
            seq_ids = [seq_id for position_part, seq_id in positions if position_part == part]
            if seq_ids:
                handed_out.difference_update(seq_ids)
                to_come = self._walks[part].lowest_to_come
                reach.add(seq_ids, min(handed_out if to_come is None else {to_come, *handed_out}, default=None))
        self._progress.save()

    def finish(self) -> None:
        """Everything is written down already."""
