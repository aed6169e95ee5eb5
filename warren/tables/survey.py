"""What planning has to know of a topic store: where its files end once it has been recovered.

Nothing in RocketMQ's files says where the valid data ends; recovery finds it, and after a dirty stop it adds entries
and index items. Here it runs as for the commands of one machine, in memory over the directory. What it found is small,
can be pickled and written as JSON, and is enough to cut the reading of a store into tasks.

Tasks read a file that recovery left alone as it lies. One that recovery *changed* is on no disk: its readers run the
recovery again (:func:`recovered`).

A recovery reads up to three CommitLog files, so the surveys of many nodes are better made by many tasks
(:func:`warren.pipeline.jobs.running.load` does so) and handed over by the option ``survey``.

Spark plans a frame again for every action, in a Python process that forgets: it would recover the store each time. So a
small file is kept for each survey, in a folder below the system's for temporary files that no other user may write to.
A store is known again by the names, sizes and modification times of its files; only directories on this machine's file
systems say those cheaply and exactly, so others are surveyed each time.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

import attrs

from warren.salvage.rocketmq.rocketmq_store import RocketmqStore, opened_store
from warren.storage.mapped_files import file_name
from warren.storage.own_files import private_folder
from warren.storage.topic_settings import TopicSettings
from warren.tables.pipeline_errors import PipelineError
from warren.tables.places import Node
from warren.tables.read_options import ReadOptions

_FORMAT: Final = 1
"""Part of a stored file's name. Increase it when recovery or the surveys change: older files are then ignored."""
_MOST_KEPT: Final = 1000
"""The most files; beyond that the oldest are deleted."""


@attrs.frozen(kw_only=True)
class MappedExtent:
    """The files of a directory of mapped files."""

    directory: str
    bases: tuple[int, ...]
    """The byte of the whole at which each file begins."""

    def path(self, base: int) -> str:
        """The path of the file that begins at ``base``."""
        return f"{self.directory}/{file_name(base)}"

    def gaps(self, file_bytes: int) -> Iterator[tuple[int, int]]:
        """The ranges of bytes between the files that no file covers."""
        ends = ((before + file_bytes, after) for before, after in pairwise(self.bases))
        return ((start, stop) for start, stop in ends if stop > start)


@attrs.frozen(kw_only=True)
class LogExtent(MappedExtent):
    """The extent of the CommitLog, in physical offsets."""

    min_offset: int
    end: int
    """After the last record."""


@attrs.frozen(kw_only=True)
class QueueExtent(MappedExtent):
    """The extent of a ConsumeQueue."""

    topic: str
    queue_id: int
    min_offset: int
    """The queue offset of the first message."""
    max_offset: int
    """The queue offset of the next message."""
    is_changed: bool
    """Recovery has written into its files."""


@attrs.frozen(kw_only=True)
class IndexExtent:
    """The extent of an index file."""

    path: str | None
    """``None``: the directory has no such file, only a recovery would make it."""
    begin_timestamp: int
    begin_physical_offset: int
    end_physical_offset: int
    index_count: int
    """The number of the next item."""
    is_changed: bool


@attrs.frozen(kw_only=True)
class Survey:
    """A topic store after its recovery."""

    node: str
    directory: str
    settings: TopicSettings
    """The user's settings, and those inferred from the files."""
    was_clean: bool
    log: LogExtent
    queues: tuple[QueueExtent, ...]
    """Sorted by topic and queue id."""
    index_files: tuple[IndexExtent, ...]
    """Oldest first."""

    @classmethod
    def of(cls, opened: RocketmqStore) -> Self:
        """Return the survey of an open store."""
        store, log, changed = opened.store, opened.store.commit_log, set(opened.files.changed)
        queues = [
            QueueExtent(
                topic=topic,
                queue_id=queue_id,
                directory=queue.mapped.directory,
                bases=tuple(queue.mapped.bases),
                min_offset=queue.min_offset,
                max_offset=queue.max_offset,
                is_changed=any(queue.mapped.path(base) in changed for base in queue.mapped.bases),
            )
            for (topic, queue_id), queue in sorted(store.queues.items())
        ]
        index_files = [
            IndexExtent(
                path=file.path if opened.below.exists(file.path) else None,
                begin_timestamp=file.header.begin_timestamp,
                begin_physical_offset=file.header.begin_physical_offset,
                end_physical_offset=file.header.end_physical_offset,
                index_count=file.header.index_count,
                is_changed=file.has_unflushed or file.path in changed,
            )
            for file in store.index.index_files
        ]
        return cls(
            node=opened.path,
            directory=opened.directory,
            settings=opened.settings,
            was_clean=store.was_clean,
            log=LogExtent(
                directory=log.mapped.directory, bases=tuple(log.mapped.bases), min_offset=log.min_offset, end=log.end
            ),
            queues=tuple(queues),
            index_files=tuple(index_files),
        )

    def to_json(self) -> str:
        """Return the survey as text that :meth:`from_json` reads."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises :class:`PipelineError` if the text is not a survey."""
        try:
            document = json.loads(text)
            return cls(
                node=document["node"],
                directory=document["directory"],
                settings=TopicSettings(**document["settings"]),
                was_clean=document["was_clean"],
                log=LogExtent(**_with_tuple(document["log"])),
                queues=tuple(QueueExtent(**_with_tuple(queue)) for queue in document["queues"]),
                index_files=tuple(IndexExtent(**file) for file in document["index_files"]),
            )
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise PipelineError(f"option survey: no survey of a node ({type(error).__name__}: {error})") from error


def _with_tuple(extent: Mapping[str, Any]) -> dict[str, Any]:
    return {**extent, "bases": tuple(extent["bases"])}


def survey(node: Node, settings: Mapping[str, str]) -> Survey:
    """Survey a node's store; ``settings``: those that its files do not tell. Raises what opening the store raises."""
    with recovered(node, settings) as opened:
        return Survey.of(opened)


@contextmanager
def recovered(node: Node, settings: Mapping[str, str], good_until: int = 0) -> Iterator[RocketmqStore]:
    """A node's store, recovered in memory; recovery reads the CommitLog from ``good_until`` on."""
    place = node.place()
    with opened_store(node.name, place.files, place.store(), settings, good_until=good_until) as opened:
        yield opened


def to_option(surveys: Iterable[Survey]) -> str:
    """The text of the option ``survey`` for these surveys. The option may also name a file with this text."""
    return "\n".join(node_survey.to_json() for node_survey in surveys)


# ── surveys that are known ───────────────────────────────────────────────────────────────────────────────────────────


def survey_of(node: Node, options: ReadOptions) -> Survey:
    """A node's survey: the one in the option, else a stored one, else a new one."""
    given = _given(options.survey).get(node.name) if options.survey else None
    return remembered(node, options.settings, lambda: survey(node, options.settings)) if given is None else given


@functools.lru_cache(maxsize=1)
def _given(option: str) -> dict[str, Survey]:
    if not option.lstrip().startswith("{"):
        try:
            with open(option, encoding="utf-8") as file:
                option = file.read()
        except (OSError, ValueError) as error:
            raise PipelineError(f"option survey: {error}") from error
    surveys = [Survey.from_json(line) for line in option.splitlines() if line]
    return {node_survey.node: node_survey for node_survey in surveys}


def remembered(node: Node, settings: Mapping[str, str], make: Callable[[], Survey]) -> Survey:
    """The stored survey of a node; without one, store and return what ``make`` returns."""
    folder = None if node.is_remote else private_folder("warren-surveys")
    if folder is None:
        return make()
    survey_path = Path(folder, f"{_name(node, settings)}.json")
    with suppress(OSError, PipelineError):
        return Survey.from_json(survey_path.read_text(encoding="utf-8"))
    new_survey = make()
    with suppress(OSError):
        _keep(survey_path, new_survey)
    return new_survey


def _keep(survey_path: Path, node_survey: Survey) -> None:
    new_path = survey_path.with_name(f"{uuid.uuid4().hex}.new")
    new_path.write_text(node_survey.to_json(), encoding="utf-8")
    new_path.replace(survey_path)
    paths = sorted(survey_path.parent.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for path in paths[:-_MOST_KEPT]:
        path.unlink(missing_ok=True)


def _name(node: Node, settings: Mapping[str, str]) -> str:
    """Return a digest of a node's files as they are, and of the settings that the user gave."""
    facts = [_FORMAT, node.name, node.directory, sorted(settings.items()), list(_files(node.directory))]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _files(directory: str) -> Iterator[tuple[str, int, int]]:
    """Names, sizes and modification times of all files below."""
    for base, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(base, name)
            with suppress(OSError):
                status = os.stat(path)
                yield path, status.st_size, status.st_mtime_ns
