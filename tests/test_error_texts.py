"""What stands in a damaged file does not all stand in the error about it, and nothing that a terminal obeys."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import warren
from tests.support.runtime_tools import DATA, hand_node, put
from warren.actors.engines.settings_file import load_settings
from warren.actors.engines.topics.topic_table import TopicTable
from warren.pipeline.jobs.republish_ledger import _ranges
from warren.salvage.archives.archive import unpack
from warren.shovel.progress import Progress
from warren.storage.errors import SHOWN_CHARACTERS, WarrenError, shortly
from warren.storage.memory import MemoryFileSystem
from warren.storage.settings import Settings

HOSTILE = "\x1b[31m\n\u202e" + "x" * 5000
SOURCES = ("actors", "warren", "queue_index", "msg_store", "storage")


@pytest.mark.parametrize("said", [HOSTILE, HOSTILE.encode(), ValueError(HOSTILE), {HOSTILE: [HOSTILE]}, "\ud800" * 300])
def test_what_is_said_of_a_file_is_a_line_within_a_bound(said: object) -> None:
    text = shortly(said)
    assert len(text) == SHOWN_CHARACTERS
    assert text.isprintable()
    assert text.endswith("…")


@pytest.mark.parametrize("said", ["", "é", "x" * SHOWN_CHARACTERS, b"a", KeyError("a"), None])
def test_what_is_short_and_can_be_printed_is_said_as_it_is(said: object) -> None:
    assert shortly(said) == (said if isinstance(said, str) else repr(said))


def in_memory(data: bytes, path: str) -> MemoryFileSystem:
    files = MemoryFileSystem()
    files.make_directories(path.rpartition("/")[0])
    put(files, path, data)
    return files


def topics(text: str) -> object:
    data = json.dumps({"topicConfigTable": {"t": {"writeQueueNums": text}}})
    return TopicTable.load(in_memory(data.encode(), "/d/topics.json"), "/d")


def progress(text: str) -> object:
    data = json.dumps({"warren": text, "source": "", "destination": "", "queues": []})
    return Progress.open(in_memory(data.encode(), "/d/progress"), "/d/progress", source="a", destination="b")


def vhost(text: str) -> object:
    scene = hand_node()
    scene.node.queue("q").publish(b"x").wait()
    scene.node.close()
    files = scene.files.after_process_crash()
    (path,) = [path for path in files.contents() if path.startswith(DATA) and path.endswith("/.vhost")]
    put(files, path, text.encode())
    again = hand_node(files)
    try:
        return again.node.queue("q")
    finally:
        again.forget()


TAKEN: dict[str, Callable[[str], object]] = {
    "topics": topics,
    "progress": progress,
    "ledger": lambda text: _ranges("/d/ledger", [json.dumps({"warren": text}).encode()], None),  # type: ignore[arg-type]
    "vhost": vhost,
    "settings": lambda text: load_settings(f"topics = {json.dumps(text)}".encode(), "/d/settings", Settings()),
}


@pytest.mark.parametrize("read", TAKEN.values(), ids=TAKEN)
def test_an_error_about_a_file_does_not_hold_the_file(read: Callable[[str], object]) -> None:
    with pytest.raises(WarrenError) as caught:
        read(HOSTILE)
    assert len(str(caught.value)) < 3 * SHOWN_CHARACTERS
    assert str(caught.value).isprintable()


def test_a_members_name_that_leaves_the_directory_is_said_shortly(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../" + HOSTILE), io.BytesIO())
    (tmp_path / "out").mkdir()
    with pytest.raises(WarrenError, match="would leave the directory") as caught:
        unpack(str(tmp_path / "a.tar.gz"), str(tmp_path / "out"))
    said = str(caught.value).removeprefix(str(tmp_path))
    assert len(said) < 2 * SHOWN_CHARACTERS
    assert said.isprintable()


def test_no_error_quotes_another_one_without_a_bound() -> None:
    root = Path(warren.__file__).parent.parent
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for folder in SOURCES
        for path in sorted((root / folder).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\{(error|exc|err)!r", line)
    ]
    assert found == []
