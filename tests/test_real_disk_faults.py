"""What a real system refuses a node that runs: room, descriptors, permission; it goes on when it has them back."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import pytest

import warren
from tests.real_disk import loop_mounts
from tests.support.disk_fault_tools import counted_events
from tests.support.effort import times
from tests.support.tried import Count, Tried
from tests.support.waiting import wait_until
from warren.errors import WarrenError

DISK_BYTES: Final = 24 << 20
SMALL: Final[dict[str, Any]] = {
    "segment_entry_count": 512,
    "msg_store_file_size_limit": 1 << 18,
    "queue_index_max_journal_entries": 2000,
    "mapped_file_size_commit_log": 1 << 18,
    "mapped_file_size_consume_queue": 20 * 500,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
    "message_delay_level": "1s 10s",
    "clean_file_forcibly_enable": False,
    "disk_free_limit": 0,
}
LARGE: Final = b"L" * 6000
PATIENCE_S: Final = 60.0
PER_PHASE: Final = 25
"""Messages of each publisher while the disk is filled, and while it is free."""


def fill(path: Path) -> None:
    """Fill the disk to the last byte."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while os.write(descriptor, bytes(size)) == size:
                    pass
    finally:
        os.close(descriptor)


@attrs.define
class Traffic:
    """Threads that publish, consume, append, read and delay, whatever errors they get."""

    node: warren.Node
    may_be_down: bool = False
    """Whether consuming and reading may be refused, too."""
    confirmed: dict[str, set[bytes]] = attrs.Factory(lambda: {"q": set(), "topic": set(), "later": set()})
    acked: set[bytes] = attrs.Factory(set)
    read: set[bytes] = attrs.Factory(set)
    refused: dict[str, int] = attrs.Factory(lambda: {"q": 0, "topic": 0, "later": 0})
    unexpected: list[BaseException] = attrs.Factory(list)
    _most: dict[str, int] = attrs.Factory(dict)
    """How many confirmed messages each publisher stops at, by place; without an entry, it never stops."""
    _stop: threading.Event = attrs.Factory(threading.Event)
    _threads: list[threading.Thread] = attrs.Factory(list)

    def allow(self, count: int) -> None:
        """Let each publisher have ``count`` more messages confirmed: a slow run must not fill the disk by itself."""
        self._most = {place: len(bodies) + count for place, bodies in self.confirmed.items()}

    def refuses(self, place: str) -> Callable[[], bool]:
        """Return a condition: whether a publish was refused since now. Each look lets the publishers try again."""
        was_refused = grown(lambda: self.refused[place])

        def look() -> bool:
            self.allow(1)
            return was_refused()

        return look

    def wait_for_confirms(self, what: str) -> None:
        """Wait until each publisher has one more message confirmed."""
        counts = {place: grown(lambda place=place: len(self.confirmed[place])) for place in self.confirmed}  # type: ignore[misc]
        self.allow(PER_PHASE)
        for place, has_grown in counts.items():
            wait_until(has_grown, what % place)

    def start(self) -> None:
        queue, later, topic = self.node.queue("q"), self.node.queue("later"), self.node.topic("topic", queues=2)
        works: list[Callable[[int], None]] = [
            lambda n: self._publish("q", n, lambda body: queue.publish(body, block=False).wait(PATIENCE_S)),
            lambda n: self._publish(
                "topic", n, lambda body: topic.append(body, key=f"k{n}", block=False).wait(PATIENCE_S)
            ),
            lambda n: self._publish(
                "later", n, lambda body: later.publish(body, delay=0.5, block=False).wait(PATIENCE_S)
            ),
            lambda _: self._consume(queue),
        ]
        works.append(self._reading(topic))
        self._threads = [threading.Thread(target=self._run, args=(work,), daemon=True) for work in works]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[[int], None]) -> None:
        number = 0
        try:
            while not self._stop.is_set():
                number += 1
                try:
                    work(number)
                except WarrenError:
                    if not self.may_be_down:
                        raise
                    time.sleep(0.05)
        except BaseException as error:
            self.unexpected.append(error)

    def _publish(self, place: str, number: int, publish: Callable[[bytes], object]) -> None:
        if place in self._most and len(self.confirmed[place]) >= self._most[place]:
            time.sleep(0.01)
            return
        body = b"%s %d " % (place.encode(), number) + (LARGE if number % 4 == 0 else b"")
        try:
            publish(body)
        except WarrenError:
            self.refused[place] += 1
            time.sleep(0.01)  # a refused thread does not try again at once
        else:
            self.confirmed[place].add(body)
            time.sleep(0.001)

    def _consume(self, queue: warren.Queue) -> None:
        for message in queue.get_many(5):
            self.acked.add(message.body)
            message.ack()
        time.sleep(0.05)

    def _reading(self, topic: warren.Topic) -> Callable[[int], None]:
        reader = topic.reader("readers")

        def work(_: int) -> None:
            self.read |= {record.body for record in reader.read(50)}
            time.sleep(0.02)

        return work

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "somebody hangs"
        assert not self.unexpected, self.unexpected

    def check(self, node: warren.Node) -> None:
        """Nothing that was confirmed is missing."""
        for name in ("q", "later"):
            queue = node.queue(name)
            wait_until(lambda queue=queue: not queue.stats()["messages_delayed"], "all that is due comes")  # type: ignore[misc]
            found = {message.body for message in queue.browse()}
            missing = self.confirmed[name] - found - self.acked
            assert not missing, f"{name} has lost {len(missing)}: {sorted(missing)[:3]!r:.300}"
        found = {record.body for record in node.topic("topic").read(f"all-{uuid.uuid4()}")}
        missing = self.confirmed["topic"] - found
        assert not missing, f"the topic has lost {len(missing)}: {sorted(missing)[:3]!r:.300}"


def grown(count: Callable[[], int]) -> Callable[[], bool]:
    before = count()
    return lambda: count() > before


@pytest.mark.slow
@pytest.mark.skipif(loop_mounts.why_not() is not None, reason=str(loop_mounts.why_not()))
@pytest.mark.parametrize("sync", ["group", "os"])
def test_a_real_file_system_is_filled_and_freed_under_traffic(
    tmp_path: Path, sync: Literal["group", "os"], tried: Count
) -> None:
    cycles = times(5, nightly=50)
    with loop_mounts.mounted_ext4(tmp_path, DISK_BYTES) as disk, counted_events() as events:
        node = warren.open(disk / "node", sync=sync, **SMALL)
        traffic = Traffic(node)
        traffic.allow(0)
        traffic.start()
        try:
            for cycle in range(cycles):
                traffic.wait_for_confirms(f"{cycle}: %s takes")
                traffic.allow(PER_PHASE)
                fill(disk / "filler")
                for place in ("q", "topic"):
                    wait_until(traffic.refuses(place), f"{cycle}: {place} refuses")
                (disk / "filler").unlink()
            traffic.wait_for_confirms("%s takes in the end")
        finally:
            traffic.stop()
        wait_until(lambda: not node.memory()["alarms"], "the alarm is over")
        assert node.failed_queues == {}
        assert events["topics_reopened"] == events["vhost_reopened"] == events["queue_restarted"] == 0, events
        assert events["disk_full"] <= 12 * cycles, f"a line for each beginning, and none for each try: {events}"
        traffic.check(node)
        node.close()
        with warren.open(disk / "node", sync=sync, **SMALL) as again:
            traffic.check(again)
    tried(Tried.FULL_DISKS, cycles)


def trigger_error(point: Path) -> None:
    """Make ext4 find an error: mounted with ``errors=remount-ro`` it no longer writes, even to open files."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    device = next(source for source, place, *_ in mounts if place == str(point))
    (Path("/sys/fs/ext4") / Path(device).name / "trigger_fs_error").write_text("1")


def open_below(point: Path) -> list[str]:
    """What this process has open of a file system."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(descriptor.readlink()))
    return [path for path in found if path.startswith(f"{point}/")]


@pytest.mark.slow
@pytest.mark.skipif(loop_mounts.why_not() is not None, reason=str(loop_mounts.why_not()))
def test_a_real_file_system_that_becomes_read_only_refuses_serves_and_loses_nothing(
    tmp_path: Path, tried: Count
) -> None:
    """What was confirmed before. An fsync that is under way in that moment may report success, and the next mount
    finds the file as it was before (seen with Linux 6.18): nothing above the file system can know."""
    loop_mounts.make_ext4(tmp_path / "image", DISK_BYTES)
    options, point = "errors=remount-ro", tmp_path / "mount"
    with loop_mounts.mounted(tmp_path / "image", point, options=options), counted_events() as events:
        node = warren.open(point / "node", **SMALL)
        kept = node.vhost("quiet").queue("kept")  # whose message store has nothing to write
        kept.publish_many([b"%d" % number for number in range(100)]).wait()
        traffic = Traffic(node, may_be_down=True)
        traffic.start()
        try:
            for place in ("q", "topic", "later"):
                wait_until(grown(lambda place=place: len(traffic.confirmed[place])), f"{place} takes")  # type: ignore[misc]
            confirmed = {place: set(bodies) for place, bodies in traffic.confirmed.items()}
            trigger_error(point)
            for place in ("q", "topic", "later"):
                wait_until(grown(lambda place=place: traffic.refused[place]), f"{place} refuses")  # type: ignore[misc]
        finally:
            traffic.stop()
        assert [one.body for one in kept.browse()] == [b"%d" % number for number in range(100)]
        assert max(events.values()) < 20, f"no storm: {events}"
        with contextlib.suppress(WarrenError):  # what could not be written it says
            node.close()
        assert open_below(point) == []
    with (
        loop_mounts.mounted(tmp_path / "image", point, options=options),
        warren.open(point / "node", **SMALL) as again,
    ):
        traffic.confirmed = confirmed
        traffic.check(again)
        assert len(again.vhost("quiet").queue("kept")) == 100
    tried(Tried.DISK_FAULTS, 1)


DESCRIPTORS: Final = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
import warren
from warren.errors import WarrenError

node = warren.open(sys.argv[1], segment_entry_count=64)
queues = [node.queue(f"q{n}") for n in range(500)]
for queue in queues:
    queue.publish(b"1").wait()
topic = node.topic("t", queues=4)
topic.append(b"1", key="k").wait()
taken, refused = [], 0
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
confirmed = {}
for queue in queues:
    try:
        queue.publish(b"2", block=False).wait()
        confirmed[queue.name] = 2
    except WarrenError:
        refused += 1
        confirmed[queue.name] = 1
appended = [b"1"]
try:
    topic.append(b"2").wait()
    appended.append(b"2")
except WarrenError:
    refused += 1
print("refused", refused, flush=True)
for descriptor in taken:
    os.close(descriptor)

import time
deadline = time.monotonic() + 90
while True:
    try:
        for queue in queues:
            queue.publish(b"3").wait()
        topic.append(b"3").wait()
        appended.append(b"3")
        break
    except WarrenError as error:
        assert time.monotonic() < deadline, error
        time.sleep(0.2)
for queue in queues:
    assert len(queue) > confirmed[queue.name], queue.name
assert {record.body for record in topic.read("g")} >= set(appended)
assert node.failed_queues == {}
node.close()
with warren.open(sys.argv[1], segment_entry_count=64) as node:
    for name, count in confirmed.items():
        assert len(node.queue(name)) > count
print("went on", flush=True)
"""


def said_by(program: str, *arguments: str, before: tuple[str, ...] = ()) -> str:
    """What a Python says that ends well."""
    command = [*before, sys.executable, "-c", program, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


@pytest.mark.slow
def test_five_hundred_queues_without_a_descriptor_left_refuse_or_serve_and_go_on(tmp_path: Path, tried: Count) -> None:
    said = said_by(DESCRIPTORS, str(tmp_path / "node"))
    assert "went on" in said, said
    tried(Tried.DISK_FAULTS, 1)


PERMISSION: Final = """
import os, sys, time
import warren
from warren.errors import WarrenError

path = sys.argv[1]
node = warren.open(path, segment_entry_count=16, queue_index_max_journal_entries=20, msg_store_file_size_limit=20000,
                   mapped_file_size_commit_log=1 << 14, mapped_file_size_consume_queue=200)
queue, topic = node.queue("q"), node.topic("t", queues=1)
numbers = iter(range(1_000_000))
confirmed, appended, refused = [], [], 0


def work():
    global refused
    for n in (next(numbers) for _ in range(60)):
        body = b"%d " % n + (b"L" * 6000 if n % 5 == 0 else b"")
        for kept, publish, more in (confirmed, queue.publish, {}), (appended, topic.append, {"key": "k"}):
            try:
                publish(body, block=False, **more).wait(60)
                kept.append(body)
            except WarrenError:
                refused += 1


work()
assert not refused
directories = [directory for directory, _, _ in os.walk(path)]
for round in range(3):
    for directory in directories[::-1]:
        os.chmod(directory, 0o500)
    try:
        open(os.path.join(path, "probe"), "w")
        print("permission is not lost")
        sys.exit(0)
    except PermissionError:
        pass
    work()
    stats = node.stats()
    print("refused", refused, stats["topics"]["down"], stats["down_vhosts"], flush=True)
    for directory in directories:
        os.chmod(directory, 0o700)
    deadline = time.monotonic() + 100
    while True:
        try:
            queue.publish(b"after", block=False).wait(60)
            topic.append(b"after", block=False).wait(60)
            node.queue(f"new {round}")
            break
        except WarrenError as error:
            assert time.monotonic() < deadline, error
            time.sleep(0.2)
    directories = [directory for directory, _, _ in os.walk(path)]


def check(node):
    found = {message.body for message in node.queue("q").browse()}
    assert not set(confirmed) - found, len(set(confirmed) - found)
    found = {record.body for record in node.topic("t").read(f"g{next(numbers)}")}
    assert not set(appended) - found, len(set(appended) - found)


check(node)
node.close()
with warren.open(path, segment_entry_count=16, queue_index_max_journal_entries=20, msg_store_file_size_limit=20000,
                 mapped_file_size_commit_log=1 << 14, mapped_file_size_consume_queue=200) as node:
    check(node)
print("went on", flush=True)
"""

WITHOUT_OVERRIDE: Final = (
    "setpriv",
    "--bounding-set=-dac_override,-dac_read_search",
    "--inh-caps=-dac_override,-dac_read_search",
)
"""A root that the modes of files bind, as they bind everybody else."""


def unprivileged() -> tuple[str, ...]:
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("root needs the program setpriv to be bound by the modes of files")
    return WITHOUT_OVERRIDE


@pytest.mark.slow
def test_permission_to_make_files_is_lost_and_given_back(tmp_path: Path, tried: Count) -> None:
    said = said_by(PERMISSION, str(tmp_path / "node"), before=unprivileged())
    assert "permission is not lost" not in said, "the modes of directories bind nobody here"
    assert "went on" in said, said
    tried(Tried.DISK_FAULTS, 3)
