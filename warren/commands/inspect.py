"""The command ``warren inspect``: what is in a broker's directory, in numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import typer

from warren.commands.nodes import ALL, NodeOption, Nodes, opened_nodes
from warren.commands.options import EXIT_DAMAGE, AnyPath, JsonOption, SetOption, StartOption, parse_settings
from warren.commands.output import FindingReporter, print_json, print_text, report_error, table_of
from warren.salvage.inspect import Report, inspect_source
from warren.salvage.names import printable
from warren.salvage.queue_directory import OnFinding
from warren.salvage.source import Place
from warren.storage.errors import WarrenError

if TYPE_CHECKING:
    from rich.console import RenderableType


def inspect(
    path: AnyPath,
    *,
    node: NodeOption = None,
    setting: SetOption = None,
    start: StartOption = False,
    as_json: JsonOption = False,
) -> None:
    """Count what is in a broker's directory: vhosts, queues, segments and stores; or topics and their files.

    If PATH holds the directories of several nodes, they are listed: when each was last written, and how many messages
    it has. Exit code 1: a node's topics cannot be read; its queues are shown.
    """
    changes = parse_settings(setting)
    findings = FindingReporter()
    problems: list[object] = []
    with opened_nodes(path, node) as nodes:
        if not nodes.chosen:
            _list(nodes, as_json=as_json)
            return
        reports = {
            name: _inspect(place, changes, start=start, report_finding=findings, problems=problems)
            for name, place in nodes.chosen.items()
        }
    findings.rest()
    if as_json:
        several = [{"node": name, **report} for name, report in reports.items()]
        print_json({"nodes": several} if len(reports) > 1 else next(iter(reports.values())))
    else:
        for name, report in reports.items():
            print_text(_titled(name) if len(reports) > 1 else ())
            print_text(_inspect_tables(report))
    for problem in problems:
        report_error(problem)
    if any(report.get("topics", report) is None for report in reports.values()):
        raise typer.Exit(EXIT_DAMAGE)


def _list(nodes: Nodes, *, as_json: bool) -> None:
    summaries = nodes.summaries()
    if as_json:
        print_json({"nodes": [node.report() for node in summaries]})
        return
    cells = [
        (node.name, node.last_written, "–" if node.messages is None else f"{node.messages:,}") for node in summaries
    ]
    table = table_of(cells, "node", "last written", numbers=("messages",))
    print_text([table, f"\n{len(summaries)} nodes: --node NAME says what is in one, --node {ALL} what is in each."])
    for node in summaries:
        if node.problem is not None:
            report_error(node.problem)


def _titled(name: str) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text(printable(name), "bold reverse")


def _inspect(
    place: Place, changes: dict[str, str], *, start: bool, report_finding: OnFinding, problems: list[object]
) -> Report:
    """One node's report; ``report_finding``: of its queues; ``problems``: gets what could not be read of its topics."""
    report: Report = {}
    source, store = place.both()
    if source is not None:
        with closing(source):
            report = inspect_source(source, report_finding)
    if store is not None:
        try:
            topics = _inspect_topics(place, store, changes, start=start, report=problems.append)
        except WarrenError as error:
            if source is None:
                raise
            topics = None
            problems.append(error)
        report = topics or {} if source is None else report | {"topics": topics}
    return report


def _inspect_topics(
    place: Place, directory: str, changes: dict[str, str], *, start: bool, report: Callable[[object], object]
) -> Report:
    from warren.salvage.progress_bars import reading_bar
    from warren.salvage.rocketmq.rocketmq_store import opened_store
    from warren.salvage.rocketmq.store_inspection import inspect_store

    with opened_store(place.path, place.files, directory, changes, start=start) as store:
        for note in store.notes:
            report(note)
        with reading_bar(store.store.commit_log, "Counting records") as advance:
            return inspect_store(store, report, advance)


def _inspect_tables(report: Report) -> Iterator[RenderableType]:
    if "vhosts" in report:
        from warren.salvage.inspect_tables import tables

        yield from tables(report)
        report = report.get("topics") or {}
    if report:
        from warren.salvage.rocketmq.store_inspection import store_tables

        yield from store_tables(report)
