"""A recording of a workload on an ext4, and the checks of what power losses leave of it."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import attrs

import warren
from tests.real_disk import loop_mounts
from tests.real_disk.kernel import mount_tmpfs
from tests.real_disk.ledgers import new_ledger
from tests.real_disk.loop_mounts import make_ext4, mounted, run, unmount
from tests.real_disk.power_loss import FailingDisk, PowerLoss
from tests.real_disk.workload import SETTINGS
from tests.real_disk.write_log import Counter, Record, read_log
from tests.support.killing import Nursery, lines_until_killed

DISK_BYTES = 48 << 20
WATCHDOG_S = 120
"""A state whose check takes longer hangs: the process ends and prints the place."""
LENGTHS = {"queues": 6, "topics": 3, "changes": 6, "shared": 9}
"""How long a process works, in the unit of :func:`tests.support.killing.lines_until_killed`."""
LEAST_LINES, MOST = 25, 10
"""If processes report fewer lines each, on a busy machine, more of them work: at most this many times as many."""
CHECKED_BY_E2FSCK = 8
"""e2fsck checks one state in this many."""


@attrs.frozen
class Plan:
    """What is recorded."""

    workload: str
    sync: str
    options: str
    """Options of the mount."""
    block_bytes: int
    rounds: int
    """At least this many processes work one after the other; all are killed."""
    seed: int


@attrs.frozen
class Recording:
    """What is known of a disk's life."""

    plan: Plan
    base: bytes
    """The disk's content when it began."""
    records: list[Record]
    lines: list[tuple[int, str]]
    """The reported lines, each with the number of records at that time, ordered by it."""


@attrs.frozen
class Failure:
    loss: PowerLoss
    error: str


@contextlib.contextmanager
def recorder(disk: Path, log: Path, counter: Path, refused: Path) -> Iterator[None]:
    """Record what is written to the file ``disk`` in the meantime; not what has the content of ``refused`` in it."""
    Counter(counter, create=True)
    command = [sys.executable, "-m", "tests.real_disk.recorder", *map(str, (disk, log, counter, refused))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("the recorder does not start")
            yield
        finally:
            if process.poll() is None:
                unmount(disk)


def record(place: Path, plan: Plan) -> Recording:
    """Let the workload's processes work, each of them till it is killed."""
    disk, log, counter = place / "disk", place / "log", place / "counter"
    rng, ledger = random.Random(plan.seed), new_ledger(plan.workload)
    make_ext4(disk, DISK_BYTES, "-b", str(plan.block_bytes))
    base = disk.read_bytes()
    told: list[tuple[int, str]] = []
    with (
        recorder(disk, log, counter, place / "refused"),
        mounted(disk, place / "mount", options=plan.options) as point,
        contextlib.closing(Nursery("tests.real_disk.workload")) as nursery,
    ):
        for number in range(MOST * plan.rounds):
            if number >= plan.rounds and len(told) >= LEAST_LINES * plan.rounds:
                break
            child, reading = nursery.start(
                workload=plan.workload,
                counter=str(counter),
                directory=str(point / "data"),
                sync=plan.sync,
                next=ledger.started,
                seed=rng.getrandbits(32),
            )
            try:
                for line in lines_until_killed(child, reading, rng, times=LENGTHS[plan.workload]):
                    count, _, words = line.partition(" ")
                    told.append((int(count), words))
                    ledger.read(words)
            except BaseException:
                os.kill(child, signal.SIGKILL)
                raise
            finally:
                os.close(reading)
            nursery.ended()
    if len(told) < LEAST_LINES * plan.rounds:
        raise RuntimeError(f"the processes have told {len(told)} lines: nothing can be checked by them")
    recording = Recording(plan, base, read_log(log), sorted(told, key=lambda line: line[0]))
    log.unlink()
    return recording


def check(place: Path, recording: Recording, losses: list[PowerLoss], keep: Path) -> list[Failure]:
    """Mount what each loss leaves, and open the directory; ``losses`` in order of time.

    The image of the first failure is kept in the directory ``keep``.
    """
    disk, image, failures = FailingDisk(recording.base, recording.records), place / "image", list[Failure]()
    for number, loss in enumerate(losses):
        faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
        disk.write_image(loss, image)
        try:
            _check_image(image, place / "mount", recording, loss)
            if number % CHECKED_BY_E2FSCK == 0:
                run("e2fsck", "-f", "-n", str(image))
        except Exception as error:
            failures.append(Failure(loss, "".join(traceback.format_exception(error))))
            if len(failures) == 1:
                disk.write_image(loss, keep / "failed.img")
        finally:
            faulthandler.cancel_dump_traceback_later()
    return failures


def _check_image(image: Path, point: Path, recording: Recording, loss: PowerLoss) -> None:
    ledger = new_ledger(recording.plan.workload)
    for number, line in recording.lines:
        if number <= loss.record_count:
            ledger.read(line)
    with mounted(image, point) as mount, warren.open(mount / "data", sync="os", **SETTINGS) as node:
        assert node.failed_queues == {}, node.failed_queues
        ledger.check(node, random.Random(len(recording.lines)))


def why_not() -> str | None:
    """Return why no disk can be recorded here, as the reason of a skip; None if one can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "a recorded disk needs /dev/fuse"
    return loop_mounts.why_not()


@contextlib.contextmanager
def working_place() -> Iterator[Path]:
    """A directory in memory for images and logs; for processes that have mounts of their own."""
    with tempfile.TemporaryDirectory(prefix="warren-real-disk-") as directory:
        place = Path(directory)
        mount_tmpfs(directory)
        try:
            yield place
        finally:
            unmount(place)
