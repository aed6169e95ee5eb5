"""A source that is only read: a directory, or an archive of one. What is done is written down elsewhere.

One pass over each queue's directory, in the order in which a restarted broker would deliver: memory is that of one
segment. What cannot be read is reported and passed over; all the rest is copied. The levels of a priority queue come
under its bare name, the highest first.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby

import attrs

from storage.errors import MessageError
from warren.salvage.names import split_level, to_text
from warren.salvage.queue_directory import Finding, QueueDirectory, StoredMessage, Stretch
from warren.salvage.source import Source as OpenSource
from warren.salvage.source import open_source
from warren.salvage.vhost import Vhost
from warren.shovel.errors import ShovelError
from warren.shovel.letter import Letter, Position, from_term
from warren.shovel.places import SourceQueue
from warren.shovel.progress import Progress, Reach

Report = Callable[[Finding], None]


@attrs.define
class CopySource:
    """A directory that stays as it is. Made by :meth:`open`."""

    _vhosts: list[Vhost]
    _progress: Progress
    _rename: Callable[[bytes], bytes]
    _report: Report
    copies: bool = True

    @classmethod
    @contextmanager
    def open(
        cls, path: str, vhost: str | None, progress: Progress, rename: Callable[[bytes], bytes], report: Report
    ) -> Iterator[CopySource]:
        """The source at ``path``, of its vhosts perhaps one only; ``rename``: a queue's name at the destination."""
        with open_source(path) as source:
            yield cls(chosen_vhosts(source, vhost), progress, rename, report)

    def queues(self, names: Sequence[bytes]) -> list[SourceQueue]:
        found: list[SourceQueue] = []
        for vhost in self._vhosts:
            left_out = []
            for name, directories in by_name(vhost):
                if names and name not in names:
                    left_out += [directory.path for directory in directories]
                    continue
                reaches = [
                    self._progress.reach(vhost.name, posixpath.basename(directory.path), self._rename(name))
                    for directory in directories
                ]
                found.append(_CopiedQueue(vhost.name, name, directories, reaches, self._progress, self._report))
            for problem in vhost.problems:
                if problem.severity == "damage" and not problem.path.startswith(tuple(left_out)):
                    self._report(problem)
        for name in names:
            if not any(queue.name == name for queue in found):
                raise ShovelError(f"no queue {to_text(name)!r} at the source (one never written to has no directory)")
        return found


def chosen_vhosts(source: OpenSource, wanted: str | None) -> list[Vhost]:
    """The vhosts of a source; raises where ``wanted`` is not one of them."""
    vhosts = [vhost for vhost in source.vhosts if wanted in (None, to_text(vhost.name))]
    if not vhosts:
        raise ShovelError(f"{source.path}: no vhost" if wanted is None else f"{source.path}: no vhost {wanted!r}")
    return vhosts


def by_name(vhost: Vhost) -> list[tuple[bytes, list[QueueDirectory]]]:
    """Bare name → directories, the highest level first."""

    def order(directory: QueueDirectory) -> tuple[bytes, int]:
        bare, level = split_level(directory.name)
        return bare, 0 if level is None else -level

    groups = groupby(sorted(vhost.queues, key=order), key=lambda directory: split_level(directory.name)[0])
    return [(name, list(directories)) for name, directories in groups]


@attrs.define(eq=False)
class _CopiedQueue:
    """One queue; position: which directory, and the seq_id."""

    vhost: bytes
    name: bytes
    _directories: list[QueueDirectory]
    _reaches: list[Reach]
    _progress: Progress
    _report: Report
    _open: list[dict[int, None]] = attrs.field(init=False)
    """For each directory the seq_ids that were handed out and are not settled, in order."""

    def __attrs_post_init__(self) -> None:
        self._open = [{} for _ in self._directories]

    @property
    def already(self) -> int:
        return sum(reach.messages for reach in self._reaches)

    def count(self) -> int:
        return max(sum(directory.summary().ready for directory in self._directories) - self.already, 0)

    def letters(self, limit: int) -> Iterator[Letter | None]:
        for part, directory in enumerate(self._directories):
            reach, handed_out = self._reaches[part], self._open[part]
            for message in self._messages(directory, reach):
                if not limit:
                    return
                try:
                    letter = from_term(message.encoded, message.expiry_us, (part, message.seq_id))
                except MessageError as error:
                    place = f"message {message.seq_id}: {error}"
                    self._report(Finding("unreadable message", "damage", message.path, message.offset, place))
                    continue
                handed_out[message.seq_id] = None
                limit -= 1
                yield letter

    def _messages(self, directory: QueueDirectory, reach: Reach) -> Iterator[StoredMessage]:
        for found in directory.stretches():
            if isinstance(found, Finding):
                if found.severity == "damage":
                    self._report(found)
            elif isinstance(found, Stretch):
                if int(found.seq_ids[-1]) >= reach.next_seq_id:
                    yield from (message for message in found.messages() if not reach.has(message.seq_id))
            elif not reach.has(found.seq_id):
                yield found

    def settle(self, positions: Sequence[Position]) -> None:
        for part, (reach, handed_out) in enumerate(zip(self._reaches, self._open, strict=True)):
            seq_ids = [seq_id for where, seq_id in positions if where == part]
            if seq_ids:
                for seq_id in seq_ids:
                    del handed_out[seq_id]
                reach.add(seq_ids, next(iter(handed_out), None))
        self._progress.save()

    def finish(self) -> None:
        """Everything is written down already."""
