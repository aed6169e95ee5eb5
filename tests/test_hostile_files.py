"""What stands where a broker's file should be: a FIFO, a sparse file of any size, a name that no broker can have made.

The commands that read a foreign directory end soon, within bounded memory, and with nothing but errors of ours,
whichever file of whichever kind of directory it is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fuzz.directories import KINDS, ROOTS, bounded, export, one_of_each, read_all
from tests.support.rabbitmq_golden import GOLDEN
from warren.commands.inspect import inspect
from warren.commands.verify import verify
from warren.salvage.archives.archive import unpack
from warren.salvage.export import Selection, export_source
from warren.salvage.queue_directory import MISSING_BODY, Finding
from warren.salvage.source import open_source
from warren.storage.errors import DataError

pytestmark = pytest.mark.slow
SPARSE_BYTES = 6 << 30

Spoil = Callable[[Path], None]


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def socket_or_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    """Append zeros that take no room on the disk."""
    path.chmod(0o600)
    os.truncate(path, SPARSE_BYTES)


def holes(path: Path) -> None:
    path.unlink()
    path.touch()
    os.truncate(path, SPARSE_BYTES)


@pytest.mark.parametrize("spoil", [fifo, socket_or_device, sparse, holes], ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_stands_in_a_files_place_nothing_hangs_or_fills_the_memory(
    kind: str, spoil: Spoil, tmp_path: Path
) -> None:
    unpack(str(KINDS[kind]), str(tmp_path))
    for path in one_of_each(tmp_path / ROOTS[kind]):
        kept = tmp_path / "kept"
        shutil.copy(path, kept)
        spoil(path)
        with bounded():
            read_all(tmp_path / ROOTS[kind])
        path.unlink()
        shutil.move(kept, path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_that_no_file_can_have_is_a_finding(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unpack(str(KINDS[kind]), str(tmp_path))
    root, impossible = tmp_path / ROOTS[kind], []
    messages = None if kind == "rocketmq" else export(str(root), Selection())
    for path in one_of_each(root):
        stem, dot, suffix = path.name.partition(".")
        for number in (1 << 31, 1 << 46, 1 << 49, (1 << 63) - 1, 10**30) if stem.isdigit() else ():
            strange = path.with_name(str(number).rjust(len(stem), "0") + dot + suffix)
            shutil.copy(path, strange)
            of_logs = {"quorum", "coordination"} & set(strange.parts)  # whose numbers say nothing but the order
            if number >= 1 << 62 and not of_logs and suffix != "index":  # of a stream: its segment is reported
                impossible.append(strange)
    read_all(root)
    assert messages is None or export(str(root), Selection()) >= messages
    capsys.readouterr()
    with suppress(RuntimeError):  # the exit code
        verify(str(root), as_json=True)
    told = {finding["path"] for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert not {str(path) for path in impossible} - told


@pytest.mark.parametrize("store", ["msg_store_persistent", "msg_store_persistent/0.rdq"])
def test_a_store_that_cannot_be_read_costs_its_messages_and_no_others(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unpack(str(GOLDEN / "01-clean-small-mixed.tar.gz"), str(tmp_path))
    before = export(str(tmp_path), Selection())
    (path,) = tmp_path.glob(f"vhosts/*/{store}")
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    os.mkfifo(path)
    problems: list[Finding] = []
    with open_source(str(tmp_path)) as source:
        exported = export_source(source, Selection(), lambda line: None, problems.append)
    missing = [one for one in problems if one.kind == MISSING_BODY]
    assert 0 < exported.messages == before - len(missing)
    assert [one.path for one in problems if one.kind != MISSING_BODY] == [str(path)]
    with suppress(RuntimeError):  # the exit code
        verify(str(tmp_path), as_json=True)
    assert str(path) in {finding["path"] for finding in json.loads(capsys.readouterr().out)["findings"]}


@pytest.mark.parametrize("content", [None, b"[core]\n"])
def test_a_folder_of_other_peoples_settings_is_no_vhost(content: bytes | None, tmp_path: Path) -> None:
    config = tmp_path / "home" / "user" / ".config"
    config.mkdir(parents=True) if content is None else config.parent.mkdir(parents=True)
    if content is not None:
        config.write_bytes(content)
    with pytest.raises(DataError, match="is no RabbitMQ data directory"):
        inspect(str(tmp_path / "home"))


@pytest.mark.parametrize("arguments", [["inspect"], ["inspect", "--json"], ["verify"], ["export"]], ids=" ".join)
def test_output_that_finds_no_room_is_one_line_and_no_traceback(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "warren.cli", *arguments, str(KINDS["v1"])]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "warren: stdout: No space left on device\n")
