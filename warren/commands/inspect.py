"""The command ``warren inspect``: what is in a broker's directory, in numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import typer

from warren.commands.options import EXIT_DAMAGE, AnyPath, JsonOption, SetOption, StartOption, parse_settings
from warren.commands.output import print_json, print_text, report_error
from warren.salvage.inspect import Report, inspect_source
from warren.salvage.source import Place, open_place
from warren.storage.errors import WarrenError

if TYPE_CHECKING:
    from rich.console import RenderableType


def inspect(
    path: AnyPath, *, setting: SetOption = None, start: StartOption = False, as_json: JsonOption = False
) -> None:
    """Say what is in a broker's directory, in numbers: vhosts, queues, segments and stores; or topics, and their files.

    Exit code 1: a node's topics cannot be read; its queues are said.
    """
    changes = parse_settings(setting)
    report: Report = {}
    problems: list[object] = []
    with open_place(path) as place:
        source, store = place.both()
        if source is not None:
            with closing(source):
                report = inspect_source(source)
                problems += [one for vhost in source.vhosts for one in vhost.problems if one.severity != "leftover"]
        if store is not None:
            try:
                topics = _inspect_topics(place, store, changes, start=start, report=problems.append)
            except WarrenError as error:
                if source is None:
                    raise
                topics = None
                problems.append(error)
            report = topics or {} if source is None else report | {"topics": topics}
    if as_json:
        print_json(report)
    else:
        print_text(_inspect_tables(report))
    for problem in problems:
        report_error(problem)
    if report.get("topics", report) is None:
        raise typer.Exit(EXIT_DAMAGE)


def _inspect_topics(
    place: Place, directory: str, changes: dict[str, str], *, start: bool, report: Callable[[object], object]
) -> Report:
    from warren.salvage.rocketmq.inspecting import inspect_store  # noqa: PLC0415  # a queue's directory needs none of it
    from warren.salvage.rocketmq.progress import reading_bar  # noqa: PLC0415
    from warren.salvage.rocketmq.store import opened_store  # noqa: PLC0415

    with opened_store(place.path, place.files, directory, changes, start=start) as store:
        for note in store.notes:
            report(note)
        with reading_bar(store.store.commit_log, "Counting records") as advance:
            return inspect_store(store, report, advance)


def _inspect_tables(report: Report) -> Iterator[RenderableType]:
    if "vhosts" in report:
        from warren.salvage.inspect_tables import tables  # noqa: PLC0415  # JSON is drawn by nobody

        yield from tables(report)
        report = report.get("topics") or {}
    if report:
        from warren.salvage.rocketmq.inspecting import store_tables  # noqa: PLC0415  # as above

        yield from store_tables(report)
