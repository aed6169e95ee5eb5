"""Power losses on a real ext4: what was confirmed is in every state that a disk may have (docs/how-it-is-tested.md)."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.real_disk.loop_mounts import mounted_ext4
from tests.real_disk.power_loss import FailingDisk, PowerLoss, draw_losses, kept
from tests.real_disk.session import LENGTHS, why_not
from tests.real_disk.write_log import Counter, LogWriter, Record, read_log
from tests.support.effort import new_seed, times
from tests.support.tried import Count, Tried

STATES = times(20, quick=5, nightly=300)
"""Of each recording."""
ROUNDS = times(2, quick=1, nightly=4)
RECORDINGS = times(1, nightly=2)
OPTIONS = (
    "data=ordered",
    "data=writeback",
    "data=journal",
    "data=ordered,nodelalloc",
    "data=writeback,noauto_da_alloc,commit=1",
)
"""Of mounts. With ``noauto_da_alloc`` ext4 does not itself flush a file that is renamed over another."""
WATCHDOG_S = 1800


@pytest.fixture
def disk() -> None:
    """Needed by what records a disk."""
    if reason := why_not():
        pytest.skip(reason)


def run_session(tmp_path: Path, **options: object) -> dict[str, Any]:
    """What ``python -m tests.real_disk`` says last; all that it does is printed."""
    return run_module("tests.real_disk", keep=tmp_path, **options)


def run_module(module: str, **options: object) -> dict[str, Any]:
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", module, *words]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=WATCHDOG_S, check=False)
    print(ended.stdout)
    assert ended.returncode in (0, 1)
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result


@pytest.mark.usefixtures("disk")
@pytest.mark.slow
@pytest.mark.parametrize("workload", LENGTHS)
def test_what_was_confirmed_survives_every_power_loss(tmp_path: Path, workload: str, tried: Count) -> None:
    rng = random.Random(new_seed())
    for _ in range(RECORDINGS):
        result = run_session(
            tmp_path,
            workload=workload,
            sync=rng.choice(["group", "always"]),
            options=rng.choice(OPTIONS),
            block=rng.choice([1024, 4096]),
            rounds=ROUNDS,
            states=STATES,
            seed=rng.getrandbits(32),
        )
        assert result["failures"] == []
        assert result["states"] == STATES
        tried(Tried.EXT4_STATES, STATES)


@pytest.mark.usefixtures("disk")
@pytest.mark.slow
def test_what_is_confirmed_around_writes_that_the_disk_refuses_survives_a_power_loss(tried: Count) -> None:
    rng, rounds = random.Random(new_seed()), times(2, nightly=4)
    for _ in range(times(1, nightly=6)):
        result = run_module("tests.real_disk.refusals", rounds=rounds, states=STATES, seed=rng.getrandbits(32))
        assert result["lost"] == []
        assert min(result["confirmed"], result["refused"]) > 10 * rounds
        tried(Tried.DISK_FAULTS, rounds)
        tried(Tried.EXT4_STATES, result["states"])


@pytest.mark.usefixtures("disk")
@pytest.mark.slow
@pytest.mark.parametrize("workload", ["queues", "topics"])
def test_what_was_not_fsynced_is_found_missing(tmp_path: Path, workload: str) -> None:
    """``sync="os"`` promises nothing of the kind: the search has to see it, in messages or in a queue as a whole.

    One state of six or seven shows it: of 20 states none did once in thirty runs.
    """
    result = run_session(tmp_path, workload=workload, sync="os", rounds=2, states=120, seed=new_seed())
    signs = "confirmed and lost", "failed_queues == {}"
    assert any(sign in failure["error"] for failure in result["failures"] for sign in signs)


@pytest.mark.usefixtures("disk")
@pytest.mark.slow
def test_a_fresh_ext4_is_mounted_and_gone_with_its_block(tmp_path: Path) -> None:
    with mounted_ext4(tmp_path, 2 << 20, options="nodelalloc") as point:
        (point / "file").write_bytes(b"content")
        assert "nodelalloc" in _mount_of(point)
    assert not (point / "file").exists()
    assert not _mount_of(point)


def _mount_of(point: Path) -> str:
    lines = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    return "".join(line for line in lines if line.split(" ")[1] == str(point))


# ── what a failing disk has ─────────────────────────────────────────────────────────────────────────────────────────


def write(offset: int, data: bytes) -> Record:
    return Record(offset, memoryview(data))


FLUSH = Record(0, None)
RECORDS = [write(0, b"a" * 512), FLUSH, FLUSH, write(512, b"b" * 1024), write(512, b"c" * 512), FLUSH]


def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    counter = Counter(tmp_path / "counter", create=True)
    log = LogWriter(tmp_path / "log", tmp_path / "counter")
    for record in RECORDS:
        if record.data is None:
            log.flush()
        else:
            log.write(record.offset, record.data)
    assert counter.value == len(RECORDS)
    assert read_log(tmp_path / "log") == RECORDS


def test_a_torn_log_is_refused(tmp_path: Path) -> None:
    Counter(tmp_path / "counter", create=True)
    LogWriter(tmp_path / "log", tmp_path / "counter").write(0, memoryview(b"data"))
    (tmp_path / "log").write_bytes((tmp_path / "log").read_bytes()[:-1])
    with pytest.raises(ValueError, match="is torn"):
        read_log(tmp_path / "log")


def test_what_was_flushed_is_on_the_disk_and_of_the_rest_a_part(tmp_path: Path) -> None:
    seen = set()
    for seed in range(200):
        disk = FailingDisk(bytes(2048), RECORDS)
        disk.write_image(PowerLoss(5, 2, seed), tmp_path / "image")
        image = (tmp_path / "image").read_bytes()
        assert image[:512] == b"a" * 512
        assert image[1536:] == bytes(512)
        seen.add((image[512:1024], image[1024:1536]))
        disk.write_image(PowerLoss(6, 6, 0), tmp_path / "image")
        assert (tmp_path / "image").read_bytes() == b"a" * 512 + b"c" * 512 + b"b" * 512 + bytes(512)
    firsts, seconds = (b"\0" * 512, b"b" * 512, b"c" * 512), (b"\0" * 512, b"b" * 512)
    assert seen == {(first, second) for first in firsts for second in seconds}


def test_losses_come_in_order_and_leave_a_flush_out_of_which_nothing_comes() -> None:
    losses = draw_losses(RECORDS, 40, random.Random(7))
    assert losses == sorted(losses, key=lambda loss: loss.record_count)
    assert {(loss.flushed_count, loss.record_count) for loss in losses} == {(0, 1), (2, 2), (3, 4), (3, 5), (6, 6)}


def test_superblocks_are_not_torn() -> None:
    journal = b"\xc0\x3b\x39\x98\0\0\0\x04" + b"j" * 1016
    written = [write(0, b"s" * 4096), write(1024, b"s" * 1024), write(9 << 20, journal)]
    for seed in range(100):
        for offset, data in kept(written, random.Random(seed)):
            assert len(data) == (4096 if offset == 0 else 1024)
