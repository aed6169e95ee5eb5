"""Jobs that fail and users that interrupt: no half output, and one line of what it was.

Executors that die and tasks that fail or run twice are on the cluster's page: ``test_pipeline_cluster``.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pipeline_tools import RABBITMQ, rabbitmq_node
from tests.support.waiting import wait_until
from warren.pipeline import PipelineError
from warren.pipeline.jobs.running import check_out, staged
from warren.pipeline.spark_errors import said_by, spark_errors
from warren.storage.errors import DataError
from warren.tables.places import find_nodes

PROJECT = Path(__file__).parent.parent
DRIVER = [sys.executable, str(Path(__file__).parent / "support" / "spark_faults.py")]
NODES = [rabbitmq_node(scenario) for scenario in RABBITMQ[:2]]


@pytest.mark.cluster
def test_an_interrupt_ends_a_job_and_leaves_nothing(tmp_path: Path) -> None:
    command = [*DRIVER, "slow", str(tmp_path), NODES[0]]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=PROJECT)
    try:
        wait_until((tmp_path / "writing").exists, "no task writes", process=process, patience_s=300)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, err.strip()) == (130, "", "")
    assert [path.name for path in tmp_path.iterdir()] == ["writing"]


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────

IN_A_TASK = """
An error occurred while calling o101.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent \
failure: Lost task 0.3 in stage 3.0 (TID 12) (10.0.0.7 executor 1): org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "/x/worker.py", line 1, in main
    process()
{said}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/worker.py", line 1, in main
    process()
{said}
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            IN_A_TASK.format(said="warren.storage.errors.DataError: /a/0.rdq, offset 7: is torn"),
            "/a/0.rdq, offset 7: is torn",
        ),
        (IN_A_TASK.format(said="warren.tables.pipeline_errors.PipelineError: no: such: thing"), "no: such: thing"),
        (IN_A_TASK.format(said="KeyError: 'x'"), "a task failed: KeyError: 'x'"),
        (IN_A_TASK.format(said="MemoryError"), "a task failed: MemoryError"),
        (
            "An error occurred while calling o9.load.\n: java.lang.RuntimeException: outer\n\tat a.b(C.scala:1)\n"
            "Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n\tat a.b(C:2)\n"
            "Caused by: java.io.EOFException\n\tat a.b(C.scala:3)\n",
            "Python worker exited unexpectedly (crashed)",
        ),
        ("something else\nin two lines", "something else"),
    ],
)
def test_one_line_is_left_of_what_spark_says(text: str, said: str) -> None:
    assert said_by(RuntimeError(text)) == said


def test_what_is_not_sparks_is_not_touched() -> None:
    with pytest.raises(DataError), spark_errors():
        raise DataError("/a", 1, "is torn")
    with pytest.raises(PipelineError, match=r"^Spark's Java process has ended$"), spark_errors():
        raise ConnectionRefusedError(111, "Connection refused")


# ── --out ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def names(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


@pytest.mark.parametrize("exists", [False, True])
def test_an_output_gets_its_name_when_all_of_it_is_there(tmp_path: Path, exists: bool) -> None:
    out = tmp_path / "deep" / "out"
    if exists:
        out.mkdir(parents=True)
    with staged(str(out)) as staging:
        Path(staging, "rows").touch()
        assert not (out / "rows").exists()
    assert names(tmp_path) == ["deep", "deep/out", "deep/out/rows"]


def fail_within(out: str, error: BaseException) -> None:
    with staged(out) as staging:
        Path(staging, "part").mkdir()
        Path(staging, "part", "rows").touch()
        raise error


@pytest.mark.parametrize("error", [PipelineError("no"), KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("exists", [False, True])
def test_a_failure_leaves_what_was_there(tmp_path: Path, error: BaseException, exists: bool) -> None:
    out = tmp_path / "deep" / "out"
    if exists:
        out.mkdir(parents=True)
    before = names(tmp_path)
    said = PipelineError if isinstance(error, OSError) else type(error)
    with pytest.raises(said):
        fail_within(str(out), error)
    assert names(tmp_path) == before


def test_an_output_that_came_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def another_comes() -> None:
        with staged(str(out)):
            out.mkdir()
            (out / "theirs").touch()

    with pytest.raises(PipelineError, match=f"^{out}: "):
        another_comes()
    assert names(tmp_path) == ["out", "out/theirs"]


def test_where_no_output_can_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    sources = find_nodes([NODES[0]])
    for out, said in (
        (tmp_path, "is there and not an empty directory"),
        (tmp_path / "file", "is there and not an empty directory"),
        (tmp_path / "link", "is there and not an empty directory"),
        (Path(NODES[0], "out"), f"lies in {NODES[0]}, which is not to be changed"),
        ("s3://bucket/out", "is no directory of a file system that this machine has"),
    ):
        with pytest.raises(PipelineError, match=f"^{out}: {said}$"):
            check_out(str(out), sources)
    with pytest.raises(PipelineError, match=f"^{tmp_path}/file/out: Not a directory$"), staged(f"{tmp_path}/file/out"):
        pass


def test_an_output_that_cannot_be_written_is_said() -> None:
    with pytest.raises(PipelineError, match=r"^/proc/out: "), staged("/proc/out"):
        pass
