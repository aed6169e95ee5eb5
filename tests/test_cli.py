"""The command line as a whole: its list of commands, its version, its completion, and what a command imports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import attrs
import pytest
import typer
import typer.main
from typer.testing import CliRunner

import warren
from warren.cli import app
from warren.commands.loading import ListedCommand, as_command, prepared
from warren.commands.options import JsonOption, NodePath, UsageError, pairs, parse_settings
from warren.commands.running import EXIT_BROKEN_PIPE
from warren.storage.errors import SettingsError

NAMED = """
import sys
before = set(sys.modules)
sys.argv[:] = ["warren", *sys.argv[1:]]
from warren.cli import main
try:
    main()
except SystemExit as end:
    code = end.code
libraries = {name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names
print(code, *sorted(libraries), file=sys.stderr)
print(*sorted(name for name in sys.modules if name.startswith("warren.")), file=sys.stderr)
"""
"""Runs a command, and names what was imported: libraries, and modules of ours."""

BASE = {"warren", "typer", "annotated_doc", "shellingham"}
"""What every command imports: Typer, and what it is made of."""
RICH = {"rich", "pygments", "markdown_it", "mdurl", "attr"}
"""What tables and helps are drawn with."""
FORMATS = {"attr", "attrs", "erlang", "numpy"}
"""What files are read with."""


def listed(group: Any = None, prefix: str = "") -> Iterator[tuple[str, ListedCommand]]:
    """Every command, those of groups too: ``topic read``."""
    main: Any = typer.main.get_command(app)
    for name, command in (group or main).commands.items():
        if isinstance(command, ListedCommand):
            yield prefix + name, command
        else:
            yield from listed(command, f"{prefix}{name} ")


@pytest.mark.parametrize(("name", "command"), list(listed()), ids=[name for name, _ in listed()])
def test_the_list_says_of_a_command_how_its_own_help_begins(name: str, command: ListedCommand) -> None:
    said = command.command.help.partition("\n\n")[0]
    assert " ".join(said.split()) == command.help


def imported(*arguments: str | Path) -> tuple[int, set[str], set[str]]:
    """The exit code of a command in a process of its own, the libraries that it imported, and the modules of ours."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    command = [sys.executable, "-c", NAMED, *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    libraries, modules = ran.stderr.splitlines()[-2:]
    code, *names = libraries.split()
    return int(code), {name for name in names if not name.startswith("_")}, set(modules.split())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node's directory with a queue."""
    path = tmp_path_factory.mktemp("cli") / "data"
    with warren.open(path) as node:
        node.queue("orders").publish_many([b"one", b"two"]).wait()
    return path


def test_the_help_imports_no_command_and_no_format() -> None:
    code, libraries, modules = imported("--help")
    assert code == 0
    assert libraries <= BASE | RICH
    ours = {"cli", "commands", "loading", "output", "running"}
    names = {"salvage", "names", "storage", "errors"}
    assert {name.rpartition(".")[2] for name in modules} == ours | names


def test_the_replay_of_a_trace_is_a_command_that_the_help_leaves_out() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert "shovel" in result.stdout
    assert "replay" not in result.stdout
    assert "TRACE.json" in CliRunner().invoke(app, ["replay", "--help"]).stdout


def test_a_parameter_that_converts_its_values_in_another_way_is_left_to_do_so() -> None:
    """Up to version 0.28 Typer's parameters have no conversion of their own that could be spared."""
    option = SimpleNamespace(is_flag=True, metavar=None)
    assert prepared(prepared([option])) == [SimpleNamespace(is_flag=True, metavar="")]


@attrs.frozen(kw_only=True)
class Choice:
    names: Annotated[list[str] | None, typer.Option("--name")] = None
    limit: Annotated[int, typer.Option("--limit", min=0)] = 5


def test_options_that_belong_together_come_as_one_value() -> None:
    calls: list[tuple[str, Choice, bool]] = []

    def choose(path: NodePath, *, choice: Choice, as_json: JsonOption = False) -> None:
        calls.append((path, choice, as_json))

    command = as_command("choose", choose)
    assert [param.name for param in command.params] == ["path", "names", "limit", "as_json"]
    command(["data", "--name", "a", "--json"], standalone_mode=False)
    command(["data", "--limit", "7"], standalone_mode=False)
    assert calls == [("data", Choice(names=["a"]), True), ("data", Choice(limit=7), False)]


def test_a_groups_help_imports_none_of_its_commands() -> None:
    _, libraries, modules = imported("topic", "--help")
    assert libraries <= BASE | RICH
    assert "warren.commands.topics.topic_reading" not in modules


def test_inspecting_queues_imports_what_reads_their_format(data: Path) -> None:
    code, libraries, modules = imported("inspect", "--json", data)
    assert code == 0
    assert libraries <= BASE | FORMATS | {"pamqp"}
    assert "warren.salvage.classic.classic_v1" in modules
    others = (
        "warren.salvage.classic.classic_v2",
        "warren.salvage.quorum.quorum_directory",
        "warren.salvage.rocketmq.rocketmq_store",
        "warren.handles.node",
    )
    assert not modules & {*others, "warren.queue_index.queue.variable_queue", "warren.salvage.export"}


@pytest.mark.slow
def test_inspecting_draws_with_rich_and_with_nothing_else(data: Path) -> None:
    code, libraries, _ = imported("inspect", data)
    assert (code, "rich" in libraries) == (0, True)
    assert libraries <= BASE | FORMATS | RICH | {"pamqp"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [["export"], ["verify"], ["queues", "--json"], ["consume", "--no-ack"], ["definitions"], ["top", "--json"]],
    ids=lambda command: command[0],
)
def test_no_command_on_a_directory_imports_what_others_need(command: list[str], data: Path) -> None:
    name, *options = command
    code, libraries, _ = imported(name, data, *(["orders"] if name == "consume" else []), *options)
    assert code == 0
    assert not libraries & {"pika", "pyspark", "py4j", "pandas", "pyarrow", "matplotlib", "simpy", "kombu", "amqp"}


def cpu_s(*arguments: str) -> float:
    """The CPU time of a process, with that of its system calls."""
    with subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


@pytest.mark.slow
def test_commands_start_in_a_few_times_what_numpy_takes(data: Path) -> None:
    commands = {
        "numpy": ["-c", "import numpy"],
        "help": ["-m", "warren", "--help"],
        "inspect": ["-m", "warren", "inspect", str(data)],
    }
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(5):
        for name, arguments in commands.items():
            taken[name].append(cpu_s(*arguments))
    least = {name: min(times) for name, times in taken.items()}
    assert least["help"] < 4 * least["numpy"]
    assert least["inspect"] < 6 * least["numpy"]


# ── a reader that goes away ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "verify DATA",
        "inspect DATA",
        "inspect DATA --json",
        "export DATA",
        "queues DATA",
        "simulate --example",
        "--help",
        "topic --help",
        "export --help",
        "--version",
    ],
)
def test_a_closed_pipe_is_told_from_damage(words: str, data: Path) -> None:
    assert _run_on_closed_pipe(words.replace("DATA", str(data)), "stdout").returncode == EXIT_BROKEN_PIPE


@pytest.mark.slow
@pytest.mark.parametrize("words", ["no-such-command", "inspect /no/such/directory"])
def test_a_closed_pipe_on_stderr_is_told_from_damage(words: str) -> None:
    assert _run_on_closed_pipe(words, "stderr").returncode == EXIT_BROKEN_PIPE


def _run_on_closed_pipe(words: str, stream: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command with ``stream`` a pipe that has no reader; it writes nothing to the other stream."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: closed}
        ran = subprocess.run([sys.executable, "-m", "warren", *words.split()], check=False, **streams)
    assert not ran.stdout
    assert not ran.stderr
    return ran


# ── version, module, completion ──────────────────────────────────────────────────────────────────────────────────────


def test_the_version_is_that_of_the_distribution() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"warren {version('warrenmq')}\n")


def test_the_package_is_a_program() -> None:
    ran = subprocess.run([sys.executable, "-m", "warren", "--version"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, f"warren {version('warrenmq')}\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("warren in", ["inspect"]),
        ("warren topic re", ["reset-offset", "read", "rebuild"]),
        ("warren inspect --s", ["--set", "--start"]),
        ("warren spark export --f", ["--format"]),
    ],
)
def test_a_shell_completes_commands_and_their_options(words: str, completed: list[str]) -> None:
    environment = os.environ | {
        "_WARREN_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    command = [str(Path(sys.executable).parent / "warren")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.stdout.split() == completed


# ── what options say ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_pairs_are_read_as_they_are_said() -> None:
    assert pairs("--x", ["a=1", "b=c=d", "a=2"]) == {"a": "2", "b": "c=d"}
    assert pairs("--x", None) == {}
    assert pairs("--header", ["empty="], may_be_empty=True) == {"empty": ""}


@pytest.mark.parametrize("said", ["", "a", "=1", "a="])
def test_what_is_no_pair_is_refused(said: str) -> None:
    with pytest.raises(UsageError, match=f"^--x {said}: expected OLD=NEW$"):
        pairs("--x", [said], "OLD=NEW")
    with pytest.raises(SettingsError, match=f"^--set {said}: expected NAME=VALUE$"):
        parse_settings([said])


@pytest.mark.parametrize("arguments", [["--limit", "x"], ["--limit", "0"], ["--sort", "colour"], ["--interval", "no"]])
def test_values_that_typer_converts_are_checked(arguments: list[str], data: Path) -> None:
    result = CliRunner().invoke(app, ["top", str(data), "--once", *arguments])
    assert result.exit_code == 2
    assert arguments[0] in result.stderr
