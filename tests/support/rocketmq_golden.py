"""What the real RocketMQ 4.9.3 wrote and answered: ``tests/golden/rocketmq``, one archive and one manifest a scenario.

A store is unpacked once a run; a test that changes it (damage, recovery) gets an overlay over it, so it stays as it is.
"""

from __future__ import annotations

import functools
import json
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warren.storage.filesystem import FileSystem, RealFileSystem
from warren.storage.overlay import OverlayFileSystem
from warren.storage.topic_settings import ROCKETMQ_4_9, TopicSettings

GOLDEN = Path(__file__).parents[1] / "golden" / "rocketmq"
SCENARIOS = sorted(path.stem for path in GOLDEN.glob("*.json"))

Json = dict[str, Any]

FILES = RealFileSystem(64)  # for all tests together: stores that a test does not close keep no file open
_UNPACKED = tempfile.TemporaryDirectory(prefix="warren-golden-")


@functools.cache
def manifest(scenario: str) -> Json:
    """What the real one answered."""
    loaded: Json = json.loads((GOLDEN / f"{scenario}.json").read_text(encoding="utf-8"))
    return loaded


@functools.cache
def unpacked(scenario: str) -> Path:
    """The directory with ``store`` and perhaps ``after`` in it, modification times kept. Not to be changed."""
    target = Path(_UNPACKED.name) / scenario
    target.mkdir()
    with tarfile.open(GOLDEN / f"{scenario}.tar.gz") as archive:
        archive.extractall(target, filter="data")
    return target


def directory(scenario: str, part: str = "store") -> str:
    """The path of the store itself."""
    return str(unpacked(scenario) / part)


def overlay(scenario: str, patch: list[Json] | None = None, part: str = "store") -> OverlayFileSystem:
    """A file system in which the store may be changed, with a variant's ``patch`` done to it."""
    files = OverlayFileSystem(FILES)
    for step in patch or []:
        apply_step(files, directory(scenario, part), step)
    return files


def apply_step(files: FileSystem, place: str, step: Json) -> None:
    """Do to the files what one step of a variant's patch says."""
    path = f"{place}/{step['path']}"
    if step["op"] == "delete":
        if files.is_directory(path):
            files.delete_tree(path)
        else:
            files.delete(path)
        return
    handle = files.open_append(path)
    match step["op"]:
        case "write":
            handle.pwrite(bytes.fromhex(step["hex"]), step["offset"])
        case "zero":
            handle.pwrite(bytes(step["length"]), step["offset"])
        case "truncate":
            handle.truncate(step["size"] if "size" in step else step["length"])
        case "create":
            handle.truncate(step["size"] if "size" in step else step.get("length", 0))
        case other:
            raise ValueError(f"unknown step {other}")
    handle.close()


def settings(scenario: str, override: Json | None = None) -> TopicSettings:
    """The settings of the store's writer, with a variant's changes."""
    return ROCKETMQ_4_9.with_changes(
        {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in {**manifest(scenario)["config"], **(override or {})}.items()
        }
    )


def records(scenario: str) -> list[Json]:
    """Every record and blank that the scenario's ``store`` holds, in physical order."""
    found = manifest(scenario)
    listed: list[Json] = found["store"]["records"] if "store" in found else found["recordsWritten"]
    return listed


def answers(scenario: str) -> Iterator[tuple[str, str, list[Json], Json, str, Json]]:
    """Every state with answers: its name, the archive's part, the patch, changed settings, the mode, the answers."""
    found = manifest(scenario)
    if "store" in found:
        yield "store", "store", [], {}, "load", found["store"]
    if "afterRestart" in found:
        yield "afterRestart", "store", [], {}, "load+start+shutdown", found["afterRestart"]
    if "after" in found:
        yield "after", "after", [], {}, "load", found["after"]["result"]
    for variant in found.get("variants", []):
        yield (
            variant["name"],
            "store",
            variant["patch"],
            variant["configOverride"],
            variant["mode"],
            variant["result"],
        )
