"""Each file of each golden node is deleted, emptied and cut in half: no message is lost without a word.

The export has the same messages as before, or it reports damage; where nothing on the disk tells that anything is
missing, ``verify`` names the file. RabbitMQ's own archives are the measure, every kind of queue and of stop.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.rabbitmq_golden import QUORUM, V1, V2, archives, name_of
from warren.salvage.archives.archive import unpack
from warren.salvage.export import Selection, export_source
from warren.salvage.queue_directory import Finding
from warren.salvage.source import open_source
from warren.salvage.verify import verify_source

QUICK: Final = frozenset({"02-crash-small-mixed", "06-crash-fanout-shared", "04-crash-fanout-refcount"})

WAYS: Final[dict[str, Callable[[Path, bytes], object]]] = {
    "deleted": lambda path, _: path.unlink(),
    "emptied": lambda path, _: path.write_bytes(b""),
    "cut in half": lambda path, data: path.write_bytes(data[: len(data) // 2]),
}


def exported(node: Path) -> tuple[Counter[str], list[Finding]]:
    """The messages, without whether they were delivered before, and what the export reports."""
    lines: list[bytes | bytearray] = []
    findings: list[Finding] = []
    with open_source(str(node)) as source:
        export_source(source, Selection(), lines.append, findings.append)
    messages = [json.loads(line) for line in b"".join(lines).splitlines()]
    return Counter(json.dumps({**message, "redelivered": None}) for message in messages), findings


def verified(node: Path) -> set[Finding]:
    with open_source(str(node)) as source:
        return set(verify_source(source))


def unreported(node: Path) -> Iterator[str]:
    """The changes to a file that lose messages without a word."""
    sound, _ = exported(node)
    known = verified(node)
    for path in sorted(one for one in node.rglob("*") if one.is_file()):
        data = path.read_bytes()
        for way, change in WAYS.items():
            change(path, data)
            try:
                left, findings = exported(node)
                lost = (sound - left).total()
                if lost and not any(finding.severity == "damage" for finding in findings):
                    named = (f"{finding.path} {finding.detail}" for finding in verified(node) - known)
                    if not any(path.name in name for name in named):
                        yield f"{path.relative_to(node)} {way}: {lost} of {sound.total()}"
            finally:
                path.write_bytes(data)


@pytest.mark.parametrize(
    "archive",
    [
        pytest.param(
            archive, id=f"{kind}-{name_of(archive)}", marks=[] if name_of(archive) in QUICK else pytest.mark.slow
        )
        for kind in (V1, V2, QUORUM)
        for archive in archives(kind)
    ],
)
def test_no_message_is_lost_without_a_word_when_a_file_is(archive: Path, tmp_path: Path) -> None:
    unpack(str(archive), str(tmp_path))
    (node,) = tmp_path.iterdir()
    assert list(unreported(node)) == []
