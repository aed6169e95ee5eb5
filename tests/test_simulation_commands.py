"""The commands of ``warren simulate``: what they print and write, and how they fail."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from tests.support.waiting import wait_until
from warren.cli import app
from warren.commands.loading import SCENARIO_NAMES
from warren.commands.simulation.simulate import Kind, answer_folder
from warren.commands.simulation.simulate_text import moment_text, time_text
from warren.simulation.toml_file import names_of_scenarios
from warren.storage.errors import StorageError

PROJECT = Path(__file__).parent.parent
KIND = Kind("mark.json", frozenset({"a"}), ("picture.png",))

SCENARIO = """
name = "backlog"
length = 2.5

[node]
memory = "3MB"
monitor_interval = 0.25
report_interval = 0.5

[[queues]]
name = "orders"

[[publishers]]
queue = "orders"
rate = 200
body = "8kB"

[[consumers]]
queue = "orders"
rate = 50
"""

Ran = tuple[int, str, str]


def run(*arguments: object) -> Ran:
    """Exit code, stdout, stderr. What is no exit of a command's own is raised."""
    result = CliRunner().invoke(app, ["simulate", *map(str, arguments)], standalone_mode=False)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        if hasattr(result.exception, "format_message"):
            return 2, result.stdout, result.exception.format_message()
        raise result.exception
    return result.return_value or result.exit_code, result.stdout, result.stderr


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "backlog.toml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A folder with an answer, the text output, and the JSON output."""
    path = tmp_path_factory.mktemp("answer")
    (path / "backlog.toml").write_text(SCENARIO, encoding="utf-8")
    code, text, errors = run(path / "backlog.toml", "--out", path / "out")
    assert (code, errors) == (0, "")
    code, said, errors = run(path / "backlog.toml", "--json")
    assert (code, errors) == (0, "")
    return path / "out", text, said


# ── the group ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_help_says_the_way_to_a_scenario_its_options_and_the_commands() -> None:
    code, said, _ = run("--help")
    assert code == 0
    assert "simulate [OPTIONS] SCENARIO.toml | COMMAND" in said
    for word in ("--out", "--seed", "--json", "--example", "compare", "sweep", "whatif"):
        assert said.count(word) >= 1, word
    assert re.search(r"SCENARIO\.toml +Simulate a scenario", said)
    assert sorted(SCENARIO_NAMES) == names_of_scenarios()
    for name in SCENARIO_NAMES:
        assert name in said


def test_a_scenarios_help_is_the_scenarios() -> None:
    code, said, _ = run("any.toml", "--help")
    assert code == 0
    assert "--example" in said
    assert "Commands" not in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing.toml"], "nothing.toml: there is no such file"),
        (["comapre", "a", "b"], "'comapre' is neither a scenario nor a command. Did you mean 'compare'?"),
        (["brust"], "'brust' is neither a scenario nor a command. Did you mean 'burst'?"),
        (["sweep", "brust", "--vary", "seed=1"], "brust: there is no such file; did you mean 'burst'?"),
        (
            ["--seed", "3"],
            "no scenario; give one, as warren simulate SCENARIO.toml; --example prints one to begin with",
        ),
        (["--json"], "no scenario; give one, as warren simulate SCENARIO.toml; --example prints one to begin with"),
        (["a.toml", "b.toml"], "Got unexpected extra argument(s) (b.toml)"),
        (["a.toml", "--sed", "3"], "No such option: --sed"),
        (["a.toml", "--seed", "x"], "Invalid value for '--seed'"),
        (["sweep", "nothing.toml", "--vary", "seed=1"], "nothing.toml: there is no such file"),
        (["sweep", "nothing.toml"], "Missing option '--vary'"),
        (["sweep", "a.toml", "--vary", "seed"], "vary: 'seed' is not KEY=VALUE,VALUE,…"),
        (["sweep", "a.toml", "--vary", "seed=1", "--spark", "local", "--processes", "2"], "--processes and --spark"),
        (["sweep", "a.toml", "--vary", "seed=1", "--processes", "0"], "Invalid value for '--processes'"),
        (["compare", "nothing.toml"], "Missing argument 'B'"),
        (["compare", "nothing.toml", "other"], "nothing.toml: there is no such file"),
        (["whatif", "nothing", "nothing.toml"], "nothing: no such file or directory"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(arguments: list[str], said: str) -> None:
    code, out, errors = run(*arguments)
    assert (code, out) == (2, "")
    assert said in errors
    assert len(errors.splitlines()) == 1


def test_a_scenario_may_be_called_as_a_command_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("sweep", "SCENARIO.toml"):
        (tmp_path / name).write_text(SCENARIO.replace("backlog", f"my {name}"), encoding="utf-8")
    for path, name in (("./sweep", "my sweep"), ("SCENARIO.toml", "my SCENARIO.toml")):
        code, said, _ = run(path, "--json")
        assert (code, json.loads(said)["name"]) == (0, name)


def test_the_example_is_a_scenario_that_can_be_simulated(tmp_path: Path) -> None:
    import tomllib

    code, said, errors = run("--example")
    assert (code, errors) == (0, "")
    assert said.count("#") > 20
    assert {"node", "queues", "publishers", "consumers"} <= tomllib.loads(said).keys()
    assert run("any.toml", "--example")[1] == said


# ── one scenario ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_the_answer_is_written_and_its_json_is_alone_on_stdout(answer: tuple[Path, str, str]) -> None:
    out, _, said = answer
    written = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert json.loads(said) == written
    assert {"timeline.parquet", "node.parquet", "summary.json", "overview.png", "report.html"} <= set(os.listdir(out))
    assert all(path.stat().st_size for path in out.iterdir())
    assert not [path for path in out.parent.iterdir() if "partial" in path.name]


def test_every_picture_of_an_earlier_answer_is_known() -> None:
    from warren.commands.simulation.simulate import ANSWER
    from warren.simulation.plots import TITLES

    assert {f"{name}.png" for name in ("overview", *TITLES)} <= set(ANSWER.others)


@pytest.mark.slow
def test_people_are_told_of_paging_alarms_latency_backlog_and_files(answer: tuple[Path, str, str]) -> None:
    out, text, said = answer
    summary = json.loads(said)
    orders = summary["queues"]["orders"]
    lines = {line.partition(" ")[0]: line for line in text.splitlines() if line}
    assert lines["backlog"].startswith("backlog ")
    assert f"starts after {time_text(summary['node']['first_paging_s'])}: orders" in lines["paging"]
    assert summary["node"]["alarm_s"] > 0
    assert f"publishers blocked for {time_text(summary['node']['alarm_s'])}" in lines["alarms"]
    assert f"at worst {time_text(orders['latency_max_s'])}" in lines["latency"]
    assert f"{orders['ready'] + orders['unacked']:,} messages at the end" in text
    assert f"{out}: " in lines["files"]
    assert "report.html" in lines["files"]
    assert f"{orders['published']:,}" in lines["orders"]


def test_without_out_nothing_is_written(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(scenario.parent)
    code, said, _ = run(scenario)
    assert code == 0
    assert "files" not in said
    assert os.listdir(scenario.parent) == ["backlog.toml"]


def test_another_seed_is_another_answer_and_the_same_one_the_same(
    scenario: Path, answer: tuple[Path, str, str]
) -> None:
    said = [json.loads(run(scenario, "--seed", seed, "--json")[1]) for seed in (1, 2)]
    assert said[0] == json.loads(answer[2])
    assert said[1]["seed"] == 2
    assert said[1]["queues"] != said[0]["queues"]


@pytest.mark.slow
def test_the_same_scenario_writes_the_same_bytes_over_an_earlier_answer(
    scenario: Path, answer: tuple[Path, str, str], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(answer[0], tmp_path / "out"))
    for name in os.listdir(out):
        if name != "summary.json":
            (out / name).write_text("of an earlier answer", encoding="utf-8")
    (out / "mine.txt").write_text("mine", encoding="utf-8")
    assert run(scenario, "--out", out)[0] == 0
    assert (out / "mine.txt").read_text(encoding="utf-8") == "mine"
    (out / "mine.txt").unlink()
    first, second = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in (answer[0], out))
    assert first == second


def test_a_directory_with_something_else_is_left_as_it_is(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "summary.json").write_text('{"mine": 1}', encoding="utf-8")
    code, said, errors = run(scenario, "--out", out)
    assert (code, said) == (2, "")
    assert "no summary.json of an earlier answer" in errors
    assert [path.read_text(encoding="utf-8") for path in out.iterdir()] == ['{"mine": 1}']


def test_a_wrong_scenario_leaves_no_directory(scenario: Path, tmp_path: Path) -> None:
    scenario.write_text(SCENARIO.replace("rate = 200", "rate = -200"), encoding="utf-8")
    code, _, errors = run(scenario, "--out", tmp_path / "a" / "b")
    assert code == 2
    assert str(scenario) in errors
    assert "publishers[0].rate" in errors
    assert os.listdir(tmp_path) == ["backlog.toml"]


# ── two ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_an_answer_and_a_scenario_are_put_beside_each_other(
    scenario: Path, answer: tuple[Path, str, str], tmp_path: Path
) -> None:
    scenario.write_text(SCENARIO.replace("8kB", "1kB").replace("backlog", "small bodies"), encoding="utf-8")
    code, text, errors = run("compare", answer[0], scenario, "--out", tmp_path / "out")
    assert (code, errors) == (0, "")
    assert "small bodies" in text
    assert {"comparison.json", "compare.png", "compare.html"} <= set(os.listdir(tmp_path / "out"))
    said = json.loads((tmp_path / "out" / "comparison.json").read_text(encoding="utf-8"))
    assert (said["a"], said["b"]) == ("backlog", "small bodies")
    used = next(row for row in said["rows"] if row["what"] == "most memory used")
    assert used["a"] > used["b"] > 0
    assert json.loads(run("compare", answer[0], scenario, "--json")[1]) == said


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"marks": 3}', "\x00"])
def test_a_folder_that_has_no_answer_is_one_line(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_text(content, encoding="utf-8")
    code, said, errors = run("compare", tmp_path, tmp_path)
    assert (code, said) == (2, "")
    assert "summary.json" in errors
    assert "not the answer of a simulation" in errors
    assert len(errors.splitlines()) == 1


# ── many ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_sweep_is_told_and_written(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    vary = ["--vary", "node.paging_ratio=0.2,0.9", "--vary", "publishers.body=1kB,8kB"]
    code, text, errors = run("sweep", scenario, *vary, "--processes", 1, "--out", out)
    assert (code, errors) == (0, "")
    assert sorted(os.listdir(out)) == ["sweep.json", "sweep.parquet", "sweep.png"]
    said = json.loads((out / "sweep.json").read_text(encoding="utf-8"))
    assert len(said["points"]) == 4
    rows = [line.split() for line in text.splitlines() if re.match(r" +0\.[29] ", line)]
    assert [row[:2] for row in rows] == [["0.2", "1kB"], ["0.2", "8kB"], ["0.9", "1kB"], ["0.9", "8kB"]]
    code, printed, errors = run("sweep", scenario, *vary, "--processes", 1, "--json", "--seed", 1)
    assert (code, errors, json.loads(printed)) == (0, "", said)


def test_a_point_that_fails_is_said_with_its_values_and_exit_code_1(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("warren.simulation.grid")
    real: Callable[..., Any] = module.simulate

    def failing(scenario: Any) -> Any:
        if scenario.seed == 2:
            raise MemoryError("too much")
        return real(scenario)

    monkeypatch.setattr(module, "simulate", failing)
    code, text, errors = run("sweep", scenario, "--vary", "seed=1,2", "--processes", 1, "--out", tmp_path / "out")
    assert code == 1
    assert errors == "warren: seed=2: MemoryError: too much\n"
    assert "failed" in text
    assert sorted(os.listdir(tmp_path / "out")) == ["sweep.json", "sweep.parquet", "sweep.png"]
    code, text, errors = run("sweep", scenario, "--vary", "seed=2", "--processes", 1, "--out", tmp_path / "none")
    assert (code, text) == (2, "")
    assert errors == "warren: every point failed; the first one: seed=2: MemoryError: too much\n"
    assert not (tmp_path / "none").exists()


def test_a_value_that_cannot_be_ends_a_sweep_before_it_begins(scenario: Path) -> None:
    code, said, errors = run("sweep", scenario, "--vary", "node.paging_ratio=0.5,-1")
    assert (code, said) == (2, "")
    assert "node.paging_ratio=-1: " in errors
    assert len(errors.splitlines()) == 1


# ── a real directory ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_simulation_starts_from_a_directorys_queues(scenario: Path) -> None:
    from tests.support.pipeline_tools import RABBITMQ, rabbitmq_node

    node = rabbitmq_node(RABBITMQ[0])
    vhosts = json.loads(CliRunner().invoke(app, ["inspect", node, "--json"]).stdout)["vhosts"]
    there = {queue["name"]: queue["ready"] for vhost in vhosts for queue in vhost["queues"]}
    assert sum(there.values())
    scenario.write_text('length = 1\n[[consumers]]\nqueue = "*"\nrate = 4\n', encoding="utf-8")
    code, said, errors = run("whatif", node, scenario, "--json")
    assert (code, errors) == (0, "")
    queues = json.loads(said)["queues"]
    assert {name: one["ready"] + one["unacked"] + one["acked"] for name, one in queues.items()} == there
    assert any(one["acked"] for one in queues.values())
    one = next(iter(there))
    assert list(json.loads(run("whatif", node, scenario, "--queue", one, "--json")[1])["queues"]) == [one]


# ── the folder ───────────────────────────────────────────────────────────────────────────────────────────────────────


def write(folder: str, *names: str) -> None:
    for name in names:
        Path(folder, name).write_text('{"a": 1}', encoding="utf-8")


def fail(out: str, *names: str) -> float:
    """Something goes wrong when the files are there."""
    with answer_folder(out, KIND) as folder:
        write(folder, *names)
        return 1 / 0


def test_an_answer_that_does_not_come_leaves_what_was_there(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with pytest.raises(ZeroDivisionError):
        fail(str(out), "mark.json")
    assert not (tmp_path / "deep").exists()
    with answer_folder(str(out), KIND) as folder:
        write(folder, "mark.json", "old.txt")
    with pytest.raises(ZeroDivisionError):
        fail(str(out), "mark.json", "new.txt")
    assert sorted(os.listdir(out)) == ["mark.json", "old.txt"]
    assert os.listdir(tmp_path / "deep") == ["out"]


def test_a_picture_that_the_new_answer_has_not_is_deleted_and_files_of_others_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with answer_folder(str(out), KIND) as folder:
        write(folder, "mark.json", "picture.png")
    write(str(out), "theirs.png")
    with answer_folder(str(out), KIND) as folder:
        write(folder, "mark.json")
    assert sorted(os.listdir(out)) == ["mark.json", "theirs.png"]


def test_a_directory_in_a_files_place_is_left_and_nothing_is_changed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with answer_folder(str(out), KIND) as folder:
        write(folder, "mark.json", "z.txt")
    (out / "picture.png").mkdir()
    (out / "z.txt").write_text("old", encoding="utf-8")
    with (
        pytest.raises(StorageError, match=r"picture\.png: is a directory"),
        answer_folder(str(out), KIND) as folder,
    ):
        write(folder, "mark.json", "picture.png", "z.txt")
    assert (out / "z.txt").read_text(encoding="utf-8") == "old"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.write_text("x"), "is there, and is no directory"),
        (lambda path: path.symlink_to("nowhere"), "is there, and is no directory"),
        (lambda path: (path.mkdir(), (path / "mark.json").write_text("[1]")), "no mark.json of an earlier answer"),
        (lambda path: (path.mkdir(), (path / "mark.json").write_bytes(b"\xff{")), "no mark.json of an earlier answer"),
        (lambda path: (path.mkdir(), (path / "mark.json").mkdir()), "no mark.json of an earlier answer"),
    ],
)
def test_an_out_that_cannot_be_is_said_before_anything_is_done(
    tmp_path: Path, make: Callable[[Path], Any], said: str
) -> None:
    make(tmp_path / "out")
    with pytest.raises(StorageError, match=said), answer_folder(str(tmp_path / "out"), KIND):
        pytest.fail("it began")
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("out", ["s3://bucket/out", "\0", "", "/proc/nowhere/out", "x" * 300])
def test_a_place_that_cannot_be_written_is_one_error(out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError), answer_folder(out, KIND):
        pytest.fail("it began")
    assert not os.listdir(tmp_path)


# ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("period_s", "said"),
    [
        (None, "–"), (0.0, "0 s"), (2e-6, "2 µs"), (0.0032, "3.2 ms"), (0.9999, "1 s"), (41.53, "41.5 s"),
        (1e-9, "0 s"), (59.96, "1 min"), (60.0, "1 min"), (182.4, "3 min 2 s"), (3599.6, "1 h"), (4800, "1 h 20 min"),
        (86_400, "1 d"), (90_000, "1 d 1 h"),
    ],
)  # fmt: skip
def test_a_time_is_short_and_has_its_unit(period_s: float | None, said: str) -> None:
    assert time_text(period_s) == said


def test_a_moment_is_of_the_day_where_the_scenario_says_the_day() -> None:
    assert moment_text(0.0, 0.0) == "at once"
    assert moment_text(90.0, 0.0) == "after 1 min 30 s"
    assert moment_text(90.0, 36_000.0) == "at 10:01:30"
    assert moment_text(7200.0, 82_800.0) == "at 01:00:00"


# ── as a program ─────────────────────────────────────────────────────────────────────────────────────────────────────


def warren(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "warren.cli", "simulate", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, text=True, **{**streams, **options})


@pytest.mark.slow
def test_the_help_and_the_package_import_nothing_of_the_simulation() -> None:
    script = """
    import sys
    import warren, warren.cli
    sys.argv = ["warren", "simulate", "--help"]
    try:
        warren.cli.main()
    except SystemExit:
        pass
    wrong = {"simpy", "pandas", "pyarrow", "matplotlib", "pyspark", "warren.simulation"} & set(sys.modules)
    print("imported:", sorted(wrong))
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True, cwd=PROJECT
    )
    assert ran.stdout.splitlines()[-1] == "imported: []"


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["simpy", "matplotlib"])
def test_what_the_simulation_needs_and_is_not_there_is_named(missing: str, scenario: Path) -> None:
    script = f"""
    import sys

    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == {missing!r}:
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

    sys.meta_path.insert(0, Blocker())
    import warren.cli
    sys.argv = ["warren", "simulate", {str(scenario)!r}]
    warren.cli.main()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PROJECT)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f'warren: {missing} is not installed: pip install "warrenmq[sim]"\n'


@pytest.mark.slow
def test_an_interrupt_leaves_nothing_behind(scenario: Path, tmp_path: Path) -> None:
    scenario.write_text(SCENARIO.replace("length = 2.5", "length = 3000000"), encoding="utf-8")
    with warren("sweep", scenario, "--vary", "seed=1,2,3", "--processes", 2, "--out", tmp_path / "out") as running:
        ours = psutil.Process(running.pid)

        def workers() -> int:
            return sum("spawn_main" in " ".join(one.cmdline()) for one in ours.children())

        wait_until(lambda: workers() == 2, "no two processes began", process=running)
        children = ours.children(recursive=True)
        running.send_signal(signal.SIGINT)
        try:
            said, errors = running.communicate(timeout=60)
        finally:
            running.kill()  # one that did not hear it would run for hours
    assert (running.returncode, said, errors) == (130, "", "")
    assert not psutil.wait_procs(children, timeout=60)[1]
    assert os.listdir(tmp_path) == ["backlog.toml"]
