"""The commands of ``warren simulate``: a scenario, two beside each other, a grid of them, one on a real directory.

The simulation, and what it needs (SimPy, pandas, pyarrow, matplotlib), is looked for when one of them runs.

``--out`` is a folder that gets an answer, all of it or nothing. The folder is a new one, an empty one, or one that has
an earlier answer of the same kind, recognised by one file: the *mark*. An answer is written beside the folder and moved
into it when it is complete. Only the earlier answer's own files are replaced, or deleted if the new answer has no file
of that name; others stay.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import attrs
import typer

from warren.commands.loading import SCENARIO_NAMES
from warren.commands.options import JsonOption, QueueOption, UsageError, distinct
from warren.commands.output import naming_errors, print_json, print_text, report_error
from warren.commands.simulation.simulate_text import Summary, bar, comparison_lines, summary_lines, sweep_lines
from warren.salvage.names import printable
from warren.storage.errors import StorageError, WarrenError

if TYPE_CHECKING:
    from warren.simulation.compare import Comparison
    from warren.simulation.result import Result
    from warren.simulation.scenarios.scenario import Scenario


@attrs.frozen
class Kind:
    """How to recognise an answer of one kind."""

    mark: str
    """A file of JSON that every answer has."""
    keys: frozenset[str]
    """Keys that the object in that file has, besides others."""
    others: Collection[str] = ()
    """Names of further files."""

    def is_in(self, folder: str) -> bool:
        """Whether a folder has an answer of this kind."""
        try:
            with open(os.path.join(folder, self.mark), encoding="utf-8") as file:
                document = json.load(file)
        except (OSError, ValueError):
            return False
        return isinstance(document, dict) and self.keys <= document.keys()


@contextmanager
def answer_folder(out: str, kind: Kind) -> Iterator[str]:
    """A folder to write to, whose files become those of ``out`` when this ends well.

    Raises :class:`StorageError`, before anything is computed, if ``out`` cannot be such a folder.
    """
    _check(out, kind)
    target = os.path.abspath(out)
    partial = f"{target}.partial-{uuid.uuid4().hex[:8]}"
    new_directories = _missing_above(target)
    try:
        with naming_errors(out):
            os.makedirs(partial)
        yield partial
        with naming_errors(out):
            _move(partial, target, kind)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        for directory in new_directories:
            with suppress(OSError):  # there is something in it
                os.rmdir(directory)


def _missing_above(target: str) -> list[str]:
    """The directories above that are not there, the innermost first."""
    missing = []
    while not os.path.lexists(target := os.path.dirname(target)):
        missing.append(target)
    return missing


def _check(out: str, kind: Kind) -> None:
    if "\0" in out or not out:
        raise StorageError("--out: wants the name of a directory")
    if "://" in out:
        raise StorageError(f"{out}: is no directory of a file system that this machine has")
    if not os.path.lexists(out):
        return
    if not os.path.isdir(out):
        raise StorageError(f"{out}: is there, and is no directory")
    with naming_errors(out):
        is_empty = not os.listdir(out)
    if not is_empty and not kind.is_in(out):
        raise StorageError(
            f"{out}: there is something in it, and no {kind.mark} of an earlier answer; --out wants a new directory, "
            "an empty one, or one with an earlier answer"
        )


def _move(partial: str, target: str, kind: Kind) -> None:
    """The mark comes last: a folder without it has no whole answer."""
    os.makedirs(target, exist_ok=True)
    written = sorted(os.listdir(partial), key=lambda name: (name == kind.mark, name))
    for name in written:
        if os.path.isdir(os.path.join(target, name)):
            raise StorageError(f"{os.path.join(target, name)}: is a directory, and an answer has a file of that name")
    for name in written:
        os.replace(os.path.join(partial, name), os.path.join(target, name))
    for name in kind.others:
        stale = os.path.join(target, name)
        if name not in written and os.path.isfile(stale):
            os.unlink(stale)


_EXIT_SOME_FAILED: Final = 1
_NEEDED: Final = ("simpy", "pandas", "pyarrow", "matplotlib")

ANSWER: Final = Kind(
    "summary.json",
    frozenset({"node", "queues", "marks"}),
    ("overview.png", "memory.png", "states.png", "target.png", "disk.png", "latency.png", "flow.png"),
)
SWEEP: Final = Kind("sweep.json", frozenset({"axes", "points"}))
COMPARISON: Final = Kind("comparison.json", frozenset({"a", "b", "rows"}))

_SCENARIO_HELP: Final = f"The scenario's file, or the name of one that comes with warren: {', '.join(SCENARIO_NAMES)}."
ScenarioArgument = Annotated[str, typer.Argument(metavar="SCENARIO.toml", help=_SCENARIO_HELP)]
SeedOption = Annotated[int | None, typer.Option("--seed", metavar="N", min=0, help="A seed other than the scenario's.")]
OutOption = Annotated[
    str | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Write the answer to DIR: new, empty, or with an earlier answer, which it replaces.",
    ),
]


class MissingSimulationError(WarrenError):
    """SimPy, or what else the simulation needs, is not installed."""

    def __init__(self, module: str) -> None:
        super().__init__(f'{module} is not installed: pip install "warrenmq[sim]"')


def part(name: str) -> Any:
    """A module of the simulation; raises :class:`MissingSimulationError` if a package that it needs is missing."""
    for needed in _NEEDED:
        try:
            spec = importlib.util.find_spec(needed)
        except ModuleNotFoundError:
            spec = None
        if spec is None:
            raise MissingSimulationError(needed)
    return importlib.import_module(f"warren.simulation.{name}")


# ── one scenario ─────────────────────────────────────────────────────────────────────────────────────────────────────


def simulate(
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="SCENARIO.toml",
            help=_SCENARIO_HELP,
            show_default=False,
        ),
    ] = None,
    *,
    out: OutOption = None,
    seed: SeedOption = None,
    example: Annotated[
        bool, typer.Option("--example", help="Print a scenario with all its keys explained, and exit.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Simulate a scenario, and report paging, alarms, latency and backlog.

    DIR gets the timeline and the node's as Parquet, summary.json, pictures as PNG, and report.html with all of them.
    """
    if example:
        typer.echo(part("toml_file").EXAMPLE, nl=False)
        return
    if scenario is None:
        raise UsageError("no scenario; give one, as warren simulate SCENARIO.toml; --example prints one to begin with")
    _answer(_loaded(scenario, seed), out, as_json=as_json)


def whatif(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="A stopped node's data directory, or an archive of one. Opened read-only."),
    ],
    scenario: ScenarioArgument,
    *,
    vhost: Annotated[str | None, typer.Option(help="Only this vhost's queues.")] = None,
    queue: QueueOption = None,
    definitions: Annotated[
        str | None, typer.Option(metavar="FILE", help="The broker's exported definitions, for the queues' arguments.")
    ] = None,
    out: OutOption = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate a scenario that starts with the queues and messages of a real directory.

    Those that the scenario has too are as it says, with the directory's messages; its publishers and consumers may name
    all of them. What cannot be read is left out, and stderr says what.
    """
    read_queues = part("whatif").queues_of_directory
    queues = read_queues(path, vhost=vhost, queues=distinct(queue), definitions=definitions, note=report_error)
    _answer(_loaded(scenario, seed, queues=queues), out, as_json=as_json)


def _loaded(path: str, seed: int | None, **queues: Any) -> Scenario:
    scenario: Scenario = part("toml_file").load_scenario(path, **queues)
    return _seeded(scenario, seed)


def _seeded(scenario: Scenario, seed: int | None) -> Scenario:
    return scenario if seed is None else attrs.evolve(scenario, seed=seed)


def _simulated(scenario: Scenario) -> Result:
    with bar(scenario.name) as progress:
        result: Result = part("running").simulate(scenario, progress=progress)
    return result


def _answer(scenario: Scenario, out: str | None, *, as_json: bool) -> None:
    """Simulate, write, tell."""

    def work(folder: str | None) -> Summary:
        result = _simulated(scenario)
        if folder is not None and out is not None:
            with naming_errors(out):
                result.save(folder)
                part("plots").draw(result, folder)
                part("report").write_report(result, folder)
        return _summary(result)

    _work_and_tell(work, ANSWER, out, summary_lines, as_json=as_json)


def _summary(result: Result) -> Summary:
    """As summary.json has it."""
    return {**result.summary, "marks": [attrs.asdict(mark) for mark in result.marks]}


def _work_and_tell(
    work: Callable[[str | None], Any],
    kind: Kind,
    out: str | None,
    tell: Callable[..., Any],
    *,
    as_json: bool,
    to_json: Callable[[Any], Any] = dict,
) -> None:
    """Do ``work``, which writes its answer to the folder that it is given; say it as JSON or as ``tell`` does."""
    files: list[str] = []
    if out is None:
        answer = work(None)
    else:
        with answer_folder(out, kind) as folder:
            answer = work(folder)
            files = sorted(os.listdir(folder))
    if as_json:
        print_json(to_json(answer))
    else:
        print_text(tell(answer, files, out))


# ── two ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A folder with an answer, or a scenario's file.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The other one.")],
    *,
    out: OutOption = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two simulations: folders with an answer, or scenarios, which are simulated first.

    DIR gets the numbers of both as comparison.json, and a picture and a page in which both share their axes.
    """

    def work(folder: str | None) -> Comparison:
        results = [_result_of(path, seed) for path in (first, second)]
        with naming_errors(out or "."):
            comparison: Comparison = part("compare").compare(*results, folder)
            if folder is not None:
                part("result").write_json(os.path.join(folder, COMPARISON.mark), comparison.to_json())
        return comparison

    _work_and_tell(
        work, COMPARISON, out, comparison_lines, as_json=as_json, to_json=lambda comparison: comparison.to_json()
    )


def _result_of(path: str, seed: int | None) -> Result:
    if not os.path.isdir(path):
        return _simulated(_loaded(path, seed))
    result: Result = part("result").Result.load(path)
    return result


# ── many ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def sweep(
    scenario: ScenarioArgument,
    *,
    vary: Annotated[
        list[str],
        typer.Option(
            "--vary",
            metavar="KEY=V,V…",
            help="A key and its values, as node.paging_ratio=0.3,0.5. If repeated: every combination.",
        ),
    ],
    processes: Annotated[
        int | None,
        typer.Option("--processes", metavar="N", min=1, help="N simulations at a time; default: one per core."),
    ] = None,
    spark: Annotated[
        str | None, typer.Option("--spark", metavar="MASTER", help="Run them on Spark, as spark://host:7077.")
    ] = None,
    out: OutOption = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate a scenario with different values for some of its keys: one row per combination.

    DIR gets the rows as sweep.parquet, all that is known of each point as sweep.json, and a heat map for two keys, or
    lines for one. Exit code 1: some points failed; stderr says which, and all others are there.
    """
    if spark is not None and processes is not None:
        raise UsageError("--processes and --spark exclude each other")
    axes = [part("grid").Axis.from_text(text) for text in vary]
    failed: list[str] = []

    def work(folder: str | None) -> Summary:
        swept = _swept(scenario, axes, processes, spark, seed)
        failed.extend(swept.failed)
        if len(failed) == len(swept.points):
            raise WarrenError(f"every point failed; the first one: {failed[0]}")
        if folder is not None and out is not None:
            with naming_errors(out):
                _save_sweep(swept, [axis.key for axis in axes], folder)
        summary: Summary = swept.to_json()
        return summary

    _work_and_tell(work, SWEEP, out, sweep_lines, as_json=as_json)
    for problem in failed:
        report_error(problem)
    if failed:
        raise typer.Exit(_EXIT_SOME_FAILED)


def _save_sweep(swept: Any, keys: list[str], folder: str) -> None:
    """Write the rows and the picture."""
    swept.save(folder)
    title = f"{printable(swept.name)}: {' and '.join(keys)}"
    part("heatmap").draw_sweep(swept.frame, keys, folder, title=title)


def _swept(path: str, axes: list[Any], processes: int | None, spark: str | None, seed: int | None) -> Any:
    sweeps, table = part("sweep"), part("toml_file").load_table(path)
    if seed is not None:
        table["seed"] = seed
    if spark is not None:
        from warren.pipeline import part as part_of_pipeline

        run = partial(part_of_pipeline("grid").on_spark, master=spark)
        return sweeps.run_grid(table, axes, path=path, run=run)
    with bar("points", math.prod(len(axis.values) for axis in axes)) as progress:
        return sweeps.run_grid(table, axes, path=path, processes=processes, progress=progress)
