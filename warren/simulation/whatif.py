"""What if: a scenario that starts with the queues of a real directory instead of empty ones.

The directory is read as ``warren inspect`` reads it (:mod:`warren.salvage`), read-only: a stopped RabbitMQ's or
warren's, or an archive of one. Of each queue, the scenario has the number of messages that a restarted broker would
deliver, and the average size of their bodies. The levels of a priority queue become one queue. The declaration of a
queue comes from a warren directory or from a broker's exported definitions, which also name queues that were never used
and have no files. Without either, a queue is durable and not lazy.

What cannot be read is left out, with a *note*. If nothing is left, that is an error.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import attrs

from warren.actors.engines.declared.definitions_file import DefinitionsFile
from warren.salvage.names import printable, shown, split_level, to_text
from warren.salvage.queue_reader import QueueDirectory
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.salvage.source import Source, open_place
from warren.salvage.vhost import Vhost
from warren.simulation.scenarios.scenario import QueueSpec
from warren.simulation.scenarios.sizes import LARGEST, ConstantSize
from warren.simulation.scenarios.units import ScenarioError
from warren.storage.errors import StorageError, WarrenError
from warren.storage.own_files import DEFINITIONS_FILE, DEFINITIONS_LOG

Note = Callable[[str], object]
Arguments = Mapping[str, Any]
Declared = Mapping[tuple[str, str], Arguments]
"""The arguments of queues, by vhost and name; ``""``: of any vhost."""

_LEVELS_ABOVE: Final = 3
"""How deep a vhost's folder lies in a warren's directory, which has the definitions."""
_DEAD_LETTERS: Final = ("x-dead-letter-exchange", "x-dead-letter-routing-key", "x-overflow")
_MOST_DEFINITIONS_BYTES: Final = 256 << 20


@attrs.define
class _QueueTotals:
    """A queue, its levels together."""

    vhost: str
    name: str
    ready: int = 0
    payload_bytes: int = 0
    top: int | None = None
    """The highest level that it has, of a priority queue."""


# ── queues of a directory ───────────────────────────────────────────────────────────────────────────────────────────


def queues_of_directory(
    path: str | os.PathLike[str],
    *,
    vhost: str | None = None,
    queues: Sequence[str] = (),
    definitions: str | os.PathLike[str] | None = None,
    note: Note | None = None,
) -> tuple[QueueSpec, ...]:
    """Return the queues at ``path`` as a scenario has them, in order of their names.

    ``path`` is a node's data directory, its vhosts folder, a vhost's or a queue's folder, or an archive of one.
    ``vhost`` and ``queues``: only these. ``definitions``: a broker's export (``rabbitmqctl export_definitions``).
    ``note`` is called with a sentence for each thing that could not be read. If two vhosts have a queue of the same
    name, the vhost's name comes first.

    Raises :class:`~warren.storage.errors.DataError` or :class:`~warren.storage.errors.StorageError` if there is no such
    directory, and ScenarioError if nothing in it can be read.
    """
    name = os.fspath(path)
    notes: list[str] = []

    def add_note(text: str) -> None:
        notes.append(text)
        if note is not None:
            note(text)

    with open_place(name) as place:
        source = place.queues()
        with closing(source):
            declared = dict(_declared(place.files, source, add_note))
            if definitions is not None:
                declared |= _exported(os.fspath(definitions))
            directory_queues = list(_directory_queues(source, vhost, queues, declared, add_note))
    if not directory_queues:
        which = "" if vhost is None and not queues else " of that name"
        because = f": {notes[0]}" if notes else ""
        raise ScenarioError(f"{name}: there is no queue{which} that can be read{because}")
    several = {
        queue_name for queue_name, times in Counter(queue.name for queue in directory_queues).items() if times > 1
    }
    specs = [_spec(queue, queue.name in several, declared, add_note) for queue in directory_queues]
    return tuple(sorted((spec for spec in specs if spec is not None), key=lambda spec: spec.name))


def _directory_queues(
    source: Source, vhost: str | None, queues: Sequence[str], declared: Declared, note: Note
) -> Iterator[_QueueTotals]:
    for opened_vhost in source.vhosts:
        name = to_text(opened_vhost.name)
        if vhost is None or name == vhost:
            yield from _vhost_queues(opened_vhost, name, queues, declared, note)
        for problem in opened_vhost.problems:
            if problem.severity == "damage":
                note(str(problem))


def _vhost_queues(
    vhost: Vhost, vhost_name: str, queues: Sequence[str], declared: Declared, note: Note
) -> Iterator[_QueueTotals]:
    by_name: dict[str, _QueueTotals | None] = {}
    for directory in vhost.queues:
        base_name, level = split_level(directory.name)
        name = to_text(base_name) or posixpath.basename(directory.path)
        totals = _counted(directory, note) if not queues or name in queues else None
        if totals is None:
            by_name.setdefault(name, None)
            continue
        queue = by_name.get(name) or _QueueTotals(vhost_name, name)
        by_name[name] = queue
        queue.ready += totals[0]
        queue.payload_bytes += totals[1]
        if level is not None:
            queue.top = level if queue.top is None else max(queue.top, level)
    if vhost.is_whole:  # a queue that was never used has no directory
        for declared_vhost, name in declared:
            if declared_vhost in (vhost_name, "") and (not queues or name in queues):
                by_name.setdefault(name, _QueueTotals(vhost_name, name))
    yield from (queue for queue in by_name.values() if queue is not None)


def _counted(directory: QueueDirectory, note: Note) -> tuple[int, int] | None:
    """Return the number of messages that would be delivered, and their bytes. ``None``: it cannot be read."""
    try:
        summary = directory.summary()
    except WarrenError as error:
        note(f"queue {shown(directory.name)} is left out: {error}")
        return None
    if "unreadable" in summary.details:
        note(f"queue {shown(directory.name)} is left out: {summary.details['unreadable']}")
        return None
    kind = summary.details.get("type")
    if kind != "classic":
        reason = (
            f"what is simulated is classic queues, and this is a {'stream' if kind == 'stream' else 'quorum queue'}"
        )
        note(f"queue {shown(directory.name)} is left out: {reason}")
        return None
    return summary.ready, summary.payload_bytes


def _spec(queue: _QueueTotals, with_vhost: bool, declared: Declared, note: Note) -> QueueSpec | None:
    """Return the queue as a scenario has it. ``None``: a scenario cannot have it."""
    name = printable(f"{queue.vhost}/{queue.name}" if with_vhost else queue.name)
    body = ConstantSize(min(round(queue.payload_bytes / queue.ready), LARGEST)) if queue.ready else ConstantSize(1000)
    arguments = dict(declared.get((queue.vhost, queue.name)) or declared.get(("", queue.name)) or {})
    if queue.top is not None:
        arguments.setdefault("x-max-priority", max(queue.top, 1))
    problem: ScenarioError | None = None
    for left_out in ((), _DEAD_LETTERS, arguments):
        retained = {key: value for key, value in arguments.items() if key not in left_out}
        try:
            spec = QueueSpec(name=name, messages=queue.ready, body=body, arguments=retained)
        except ScenarioError as error:
            problem = problem or error
            continue
        if problem is not None:
            note(f"queue {name}: {', '.join(key for key in arguments if key not in retained)} left out: {problem}")
        return attrs.evolve(spec, lazy=spec.arguments.get("x-queue-mode") == "lazy")
    note(f"queue {name} is left out: {problem}")
    return None


# ── what they were declared as ──────────────────────────────────────────────────────────────────────────────────────


def _declared(files: ReadOnlyFileSystem, source: Source, note: Note) -> Iterator[tuple[tuple[str, str], Arguments]]:
    """Return the arguments in a warren's directory. A broker's own database is not read."""
    for directory in {_definitions_directory(files, vhost.path) for vhost in source.vhosts}:
        if directory is None:
            continue
        try:
            snapshot = DefinitionsFile(files, directory).load()
        except WarrenError as error:
            note(f"what the queues were declared as cannot be read: {error}")
            continue
        yield from _arguments((snapshot or {}).get("queues", ()))


def _definitions_directory(files: ReadOnlyFileSystem, path: str) -> str | None:
    for _ in range(_LEVELS_ABOVE):
        path = posixpath.dirname(path)
        for name in (DEFINITIONS_FILE, DEFINITIONS_LOG):
            if files.exists(f"{path}/{name}" if path else name):
                return path or "."
    return None


def _exported(path: str) -> dict[tuple[str, str], Arguments]:
    try:
        if not os.path.isfile(path):
            raise StorageError(f"{path}: there is no such file")
        if os.path.getsize(path) > _MOST_DEFINITIONS_BYTES:
            raise StorageError(f"{path}: more than {_MOST_DEFINITIONS_BYTES} bytes are no definitions")
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{path}: not JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("queues"), list):
        raise ScenarioError(f"{path}: no definitions of a broker: there are no queues in it")
    return dict(_arguments(document["queues"]))


def _arguments(queues: Any) -> Iterator[tuple[tuple[str, str], Arguments]]:
    for definition in queues if isinstance(queues, Sequence) else ():
        if not isinstance(definition, Mapping) or definition.get("durable") is not True:  # gone with the broker
            continue
        vhost, name, arguments = definition.get("vhost", ""), definition.get("name"), definition.get("arguments")
        kind = arguments.get("x-queue-type", "classic") if isinstance(arguments, Mapping) else None
        if isinstance(vhost, str) and isinstance(name, str) and isinstance(arguments, Mapping) and kind == "classic":
            yield (vhost, name), arguments


# ── into a scenario ─────────────────────────────────────────────────────────────────────────────────────────────────


def merged(own: Sequence[QueueSpec], directory_queues: Sequence[QueueSpec]) -> tuple[QueueSpec, ...]:
    """Return the queues of a scenario and of a directory, each once.

    A queue that both have keeps the scenario's settings and gets the directory's messages.
    """
    from_directory = {spec.name: spec for spec in directory_queues}
    merged: list[QueueSpec] = []
    for index, spec in enumerate(own):
        if spec.count > 1 and (both := next((name for name in spec.names if name in from_directory), None)) is not None:
            raise ScenarioError(
                f"queues[{index}]: {both!r} of the group {spec.name!r} is in the directory, too; left out of the "
                "scenario, the directory's queues are there by themselves"
            )
        filled = from_directory.pop(spec.name, None)
        if filled is None:
            merged.append(spec)
        elif spec.count > 1:
            raise ScenarioError(f"queues[{index}]: {spec.name!r} is a group, and in the directory a queue")
        else:
            merged.append(attrs.evolve(spec, durable=True, messages=filled.messages, body=filled.body))
    return (*merged, *from_directory.values())
