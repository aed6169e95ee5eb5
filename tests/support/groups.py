"""Run the tests of one file in one process, even with several processes; also those of a group, in whatever files.

What a file's tests share is then made once, and forgotten when they are done. Groups come first, because they take
longest; files follow in their order.

pytest-xdist has groups (``--dist loadgroup``), but tells them from each other by what it adds to the tests' ids, and
pytest 9.2 does not let it. Here each worker process writes the groups of its tests into a file, before it tells the
controller which tests it has; the controller reads the file when it hands out the tests. Everything that is used of
pytest and pytest-xdist is public. ``conftest.py`` makes the marks that mean a group.
"""

from __future__ import annotations

import json
import os
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

MARK = "xdist_group"
_FILE = "warren_groups"


class GroupScheduling(LoadScopeScheduling):
    """Hands out tests file by file, those of a group together, in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: Any, groups: Path) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._path = groups

    @cached_property
    def _groups(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self._path.read_text())
        return found

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid, nodeid.partition("::")[0])


class Groups:
    """The plugin."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="warren-groups-")
        self._path = Path(self._directory.name) / "groups.json"

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_FILE] = str(self._path)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> GroupScheduling | None:
        return GroupScheduling(config, log, self._path) if config.getvalue("dist") == "load" else None

    def pytest_unconfigure(self) -> None:
        self._directory.cleanup()


class WorkersGroups:
    """The plugin in a worker process."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        marks = ((item.nodeid, item.get_closest_marker(MARK)) for item in session.items)
        groups = {nodeid: mark.args[0] for nodeid, mark in marks if mark is not None}
        path = Path(session.config.workerinput[_FILE])  # type: ignore[attr-defined]
        mine = path.with_name(f"{os.getpid()}.json")
        mine.write_text(json.dumps(groups))
        mine.replace(path)


def plugin(config: pytest.Config) -> Groups | WorkersGroups:
    return WorkersGroups() if hasattr(config, "workerinput") else Groups()
