"""The progress of a copy: a small JSON file, as a read-only source cannot be acked.

::

    {"warren": "shovel progress 1", "source": "…", "destination": "…",
     "queues": [{"vhost", "directory", "to", "messages", "next_seq_id", "beyond": [seq_id, …]}]}

In a queue's directory (each level of a priority queue has its own) all messages below ``next_seq_id`` that could be
copied are safe at the destination, and so are those in ``beyond``: confirmed after a refused message, or ahead of
messages with lower seq_ids.

The file is replaced as a whole, and synced, after every batch that the destination confirmed, so a kill leaves the old
file or the new one. The next run copies messages again that were confirmed after the last write.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from typing import Final

import attrs
from attrs.validators import deep_iterable, instance_of

from warren.salvage.names import Json, to_json, to_text
from warren.shovel.errors import ShovelError
from warren.storage.errors import DataError, shortly
from warren.storage.filesystem import FileSystem, write_file

_KIND: Final = "shovel progress 1"


@attrs.define(on_setattr=attrs.setters.NO_OP)
class Reach:
    """How far one queue's directory is copied. Raises ``TypeError`` for values of a wrong type."""

    vhost: str = attrs.field(validator=instance_of(str))
    directory: str = attrs.field(validator=instance_of(str))
    to: str = attrs.field(validator=instance_of(str))
    messages: int = attrs.field(default=0, validator=instance_of(int))
    next_seq_id: int = attrs.field(default=0, validator=instance_of(int))
    beyond: set[int] = attrs.field(factory=set, validator=deep_iterable(instance_of(int)))

    def has(self, seq_id: int) -> bool:
        """Whether that message is safe at the destination."""
        return seq_id < self.next_seq_id or seq_id in self.beyond

    def add(self, seq_ids: Iterable[int], first_open: int | None) -> None:
        """Note that these are safe. ``first_open``: the lowest seq_id that was sent and is not safe, or that comes
        although a higher one was sent; ``None``: no such seq_id."""
        added = set(seq_ids)
        self.messages += len(added)
        self.beyond |= added
        edge = max(self.beyond) + 1 if first_open is None and self.beyond else first_open
        if edge is not None and edge > self.next_seq_id:
            self.next_seq_id = edge
        self.beyond = {seq_id for seq_id in self.beyond if seq_id >= self.next_seq_id}


@attrs.define
class Progress:
    """The file and its content."""

    files: FileSystem
    path: str
    source: str
    destination: str
    _reaches: dict[tuple[str, str, str], Reach] = attrs.field(factory=dict)

    @classmethod
    def open(cls, files: FileSystem, path: str, *, source: str, destination: str) -> Progress:
        """Load the file at ``path``, if it exists.

        Raises :class:`ShovelError` for the file of another copy, and :class:`DataError` for a damaged file.
        """
        progress = cls(files, path, source, destination)
        if not files.exists(path):
            return progress
        try:
            content = json.loads(files.read(path))
            if content["warren"] != _KIND:
                raise DataError(path, None, f"is {shortly(content['warren'], 80)}, not {_KIND!r}")
            places = content["source"], content["destination"]
            for entry in content["queues"]:
                reach = Reach(**(entry | {"beyond": set(entry["beyond"])}))
                progress._reaches[reach.vhost, reach.directory, reach.to] = reach
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(path, None, f"is no progress of a shovel: {shortly(error)}") from error
        if places != (source, destination):
            description = f"from {shortly(places[0])} to {shortly(places[1])}"
            raise ShovelError(f"{path}: is the progress of another copy, {description}")
        return progress

    def reach(self, vhost: bytes, directory: str, to: bytes) -> Reach:
        """How far the queue in that directory is copied to the queue ``to``."""
        key = to_text(vhost), directory, to_text(to)
        return self._reaches.setdefault(key, Reach(*key))

    def save(self) -> None:
        """Write the file; it is safe on disk when this returns."""
        reaches = self._reaches.values()
        queues: list[Json] = [attrs.asdict(reach) | {"beyond": sorted(reach.beyond)} for reach in reaches]
        content: Json = {"warren": _KIND, "source": self.source, "destination": self.destination, "queues": queues}
        if not self.files.is_directory(os.path.dirname(self.path)):
            self.files.make_directories(os.path.dirname(self.path))
        write_file(self.files, self.path, to_json(content) + b"\n", sync=True)


def default_path(source: str, destination: str, *, beside: str | None) -> str:
    """Return the default path of a copy's progress: in the directory ``beside``, else among the user's state."""
    digest = hashlib.sha256(f"{source}\0{destination}".encode(errors="surrogateescape")).hexdigest()[:16]
    if beside is not None:
        return os.path.join(beside, f"warren.shovel-{digest}.json")
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(os.path.abspath(state), "warren", f"shovel-{digest}.json")
