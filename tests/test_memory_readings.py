"""Memory readings: what is used, and what there is, containers' limits included."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.actors.engines import memory_readings
from warren.actors.engines.memory_readings import (
    AllocatedReading,
    MemoryReading,
    RssReading,
    memory_limit_bytes,
    total_memory_bytes,
)
from warren.storage.errors import SettingsError

PHYSICAL_BYTES = 16 << 30
NO_LIMIT_V1 = "9223372036854771712\n"


def total(files: dict[str, str]) -> int:
    return total_memory_bytes(PHYSICAL_BYTES, files.get)


def cgroup_v2(path: str, limits: dict[str, str]) -> dict[str, str]:
    limit_files = {f"/sys/fs/cgroup{group}/memory.max": limit for group, limit in limits.items()}
    return {"/proc/self/cgroup": f"0::{path}\n"} | limit_files


def cgroup_v1(path: str, limits: dict[str, str]) -> dict[str, str]:
    membership = f"12:pids:{path}\n9:memory:{path}\n3:cpu,cpuacct:/other\n1:name=systemd:{path}\n"
    files = {f"/sys/fs/cgroup/memory{group}/memory.limit_in_bytes": limit for group, limit in limits.items()}
    return {"/proc/self/cgroup": membership} | files


@pytest.mark.parametrize(
    ("files", "expected_bytes"),
    [
        pytest.param({}, PHYSICAL_BYTES, id="no control groups at all"),
        pytest.param(cgroup_v2("/", {}), PHYSICAL_BYTES, id="v2, the root, which has no file"),
        pytest.param(cgroup_v2("/", {"": "1073741824\n"}), 1 << 30, id="v2, a container that sees itself as the root"),
        pytest.param(cgroup_v2("/a/b", {"/a/b": "max\n", "/a": "max\n"}), PHYSICAL_BYTES, id="v2, no limit"),
        pytest.param(cgroup_v2("/a/b", {"/a/b": "500\n", "/a": "max\n"}), 500, id="v2, its own limit"),
        pytest.param(cgroup_v2("/a/b", {"/a/b": "900\n", "/a": "500\n"}), 500, id="v2, the parent's is the smaller"),
        pytest.param(cgroup_v2("/a/b", {"/a/b": "max", "/a": "500"}), 500, id="v2, the parent's alone"),
        pytest.param(cgroup_v2("/a/b", {"/a/c": "500", "/b": "500"}), PHYSICAL_BYTES, id="v2, somebody else's"),
        pytest.param(cgroup_v2("/a", {"/a": str(1 << 60)}), PHYSICAL_BYTES, id="v2, more than the machine has"),
        pytest.param(cgroup_v2("/../../x", {"/x": "500"}), 500, id="v2, outside of its namespace"),
        pytest.param(cgroup_v2("/a:b/c", {"/a:b/c": "500"}), 500, id="v2, a colon in the name"),
        pytest.param(cgroup_v2("/a", {"/a": "garbage"}), PHYSICAL_BYTES, id="v2, a limit that is no number"),
        pytest.param(cgroup_v2("/a", {"/a": ""}), PHYSICAL_BYTES, id="v2, an empty file"),
        pytest.param(cgroup_v1("/a/b", {"/a/b": NO_LIMIT_V1, "": NO_LIMIT_V1}), PHYSICAL_BYTES, id="v1, no limit"),
        pytest.param(cgroup_v1("/a/b", {"/a/b": "900\n", "/a": "500\n"}), 500, id="v1, the parent's is the smaller"),
        pytest.param(cgroup_v1("/host/path", {"": "500\n"}), 500, id="v1, a container, where the path is the host's"),
        pytest.param({"/proc/self/cgroup": "no such line\n\n7\n8:memory\n"}, PHYSICAL_BYTES, id="lines of no kind"),
    ],
)
def test_total_memory_is_the_machines_or_the_smallest_limit(files: dict[str, str], expected_bytes: int) -> None:
    assert total(files) == expected_bytes


def test_both_versions_at_once_count_both() -> None:
    version_1, version_2 = cgroup_v1("/a", {"/a": "700"}), cgroup_v2("/b", {"/b": "500"})
    membership = version_1["/proc/self/cgroup"] + version_2["/proc/self/cgroup"]
    assert total(version_1 | version_2 | {"/proc/self/cgroup": membership}) == 500
    assert total(version_1 | version_2) == 500
    assert total(version_2 | version_1) == 700


@given(st.text(alphabet="0123456789:/.\nmemory,a", max_size=60))
def test_no_membership_makes_it_fail_or_look_elsewhere(membership: str) -> None:
    asked = []

    def read_file(path: str) -> str | None:
        asked.append(path)
        return membership if path == "/proc/self/cgroup" else None

    assert total_memory_bytes(PHYSICAL_BYTES, read_file) == PHYSICAL_BYTES
    assert all(path.startswith("/sys/fs/cgroup/") and "/../" not in path for path in asked[1:])


@pytest.mark.parametrize(
    ("watermark", "limit_bytes"), [(0.4, 400), (1.0, 1_001), (0.0, 0), (0, 0), (1_000, 1_000), (2_000, 1_001)]
)
def test_the_watermark_is_a_share_or_an_amount_and_never_more_than_all(watermark: float, limit_bytes: int) -> None:
    assert memory_limit_bytes(watermark, 1_001) == limit_bytes


@pytest.mark.parametrize("watermark", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(watermark: float) -> None:
    with pytest.raises(SettingsError, match=r"0\.0 … 1\.0"):
        memory_limit_bytes(watermark, 1_000)


def test_rss_asks_anew_each_time() -> None:
    answers = iter((5, 7))
    reading: MemoryReading = RssReading(lambda: next(answers))
    assert [reading.read(), reading.read()] == [5, 7]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1_000)), max_size=40))
def test_allocated_is_the_sum_of_what_each_owner_said_last(said: list[tuple[int, int]]) -> None:
    reading = AllocatedReading()
    for owner, size_bytes in said:
        reading.account(owner, size_bytes)
        reading.check_invariants()
    as_protocol: MemoryReading = reading
    assert as_protocol.read() == sum(dict(said).values())


def test_an_owner_of_less_than_nothing_is_a_bug_and_changes_nothing() -> None:
    reading = AllocatedReading()
    reading.account("q", 10)
    with pytest.raises(RuntimeError, match="'q' accounts for -1 bytes"):
        reading.account("q", -1)
    assert reading.read() == 10


def test_the_machine_answers(tmp_path: Path) -> None:
    """Plausible numbers: which ones cannot be said beforehand."""
    physical_bytes = memory_readings.physical_memory_bytes()
    assert 1 << 20 < memory_readings.process_rss_bytes() < physical_bytes
    assert 0 < total_memory_bytes(physical_bytes, memory_readings.read_small_file) <= physical_bytes
    status = os.statvfs(tmp_path)
    assert 0 <= memory_readings.free_disk_bytes(tmp_path) <= status.f_blocks * status.f_frsize


def test_a_file_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / "limit").write_bytes(b"12\xff\n")
    assert memory_readings.read_small_file(str(tmp_path / "absent")) is None
    assert memory_readings.read_small_file(str(tmp_path)) is None
    assert memory_readings.read_small_file(str(tmp_path / "limit")) == "12�\n"
