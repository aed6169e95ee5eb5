"""Surveys that are known: handed over by the option ``survey``, or made before and kept while the files do not change.

Spark plans a frame again for every action, in a Python process that forgets: without this each would recover the store
again. A small file is kept for each store, in a folder below the system's for temporary files that no other user may
write to. A store is known again by the names, sizes and modification times of its files; only directories on this
machine's file systems say those cheaply and exactly, so others are surveyed each time.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from warren.storage.own_files import private_folder
from warren.tables.errors import PipelineError
from warren.tables.options import ReadOptions
from warren.tables.places import Node
from warren.tables.survey import Survey, survey

_FORMAT: Final = 1
"""Part of what names a kept file; to be increased when recovery or the surveys change."""
_MOST_KEPT: Final = 1000
"""The most files; beyond that the oldest are deleted."""


def survey_of(node: Node, options: ReadOptions) -> Survey:
    """A node's survey: the one that was handed over, one that is kept, or one that is made now."""
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
    """The survey of a node: the one that is kept, or what ``make`` makes, which is kept then."""
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
