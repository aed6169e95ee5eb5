"""``warren spark export``, ``load``, ``republish``, ``rebuild`` and ``pack``: messages, files and archives written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import attrs
import typer

from warren.commands.options import (
    EXIT_DAMAGE,
    CheckOption,
    JsonOption,
    OnlyVhostOption,
    QueueOption,
    SetOption,
    TableFormat,
    WhereOption,
    distinct,
    parse_settings,
)
from warren.commands.output import FindingReporter, print_json, print_text, report_error
from warren.commands.spark.arguments import ExportPaths, InputFormat, Master, Out, Paths, job
from warren.commands.topics.topic_sources import StoreOptions
from warren.salvage.export import Selection
from warren.salvage.names import printable
from warren.tables.pipeline_errors import PipelineError

if TYPE_CHECKING:
    from warren.pipeline.shipping import Packed


def export(
    paths: Paths,
    *,
    out: Out,
    output_format: Annotated[
        TableFormat, typer.Option("--format", help="One JSON object per line, or Parquet.")
    ] = TableFormat.JSONL,
    vhost: OnlyVhostOption = None,
    queue: QueueOption = None,
    where: WhereOption = None,
    store: StoreOptions,
    master: Master = None,
    as_json: JsonOption = False,
) -> None:
    """Export the messages of many brokers, as warren export and warren topic scan do, with node and position.

    Exit code 1: some could not be read; stderr says which and why, and all the others are there.
    """
    export_job = job("export")
    order = export_job.Order(
        out=out,
        format=output_format.value,
        selection=Selection(vhost=vhost, queues=distinct(queue), where=where, raw_bodies=store.raw_bodies),
        settings=store.settings(),
    )
    exported = export_job.run(paths, order, master)
    for note in exported.notes:
        report_error(note)
    findings = FindingReporter()
    for _, finding in exported.problems:
        findings(finding)
    findings.rest()
    if as_json:
        print_json(exported.to_json())
    else:
        size = f"{exported.payload_bytes:,} bytes of payload"
        print(f"{exported.messages:,} messages, {size}, in {printable(out)}")
    if exported.problems:
        raise typer.Exit(EXIT_DAMAGE)


def load(
    paths: ExportPaths,
    *,
    out: Out,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, help="N directories: DIR/node-0 and following.")],
    input_format: InputFormat = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the new nodes. Can be repeated."),
    ] = None,
    master: Master = None,
    as_json: JsonOption = False,
) -> None:
    """Load exported messages into new node directories that warren and RabbitMQ can open."""
    loaded = job("load").run(
        paths,
        out,
        nodes,
        master,
        input_format=None if input_format is None else input_format.value,
        settings=parse_settings(setting),
    )
    if as_json:
        print_json(loaded.to_json())
        return
    for number, node in enumerate(loaded.nodes):
        summary = f"{node.messages:,} messages, {node.payload_bytes:,} bytes of payload, in {node.queues:,} queues"
        print(f"{printable(out)}/node-{number}: {summary}")


def republish(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="What warren spark export wrote, or RabbitMQ's data directories."),
    ],
    *,
    to: Annotated[str, typer.Option("--to", metavar="URL", help="The broker: amqp://user:password@host:port/vhost.")],
    out: Annotated[
        str, typer.Option("--out", metavar="DIR", help="The ledger of what was confirmed; an earlier one is continued.")
    ],
    vhost: Annotated[str | None, typer.Option(help="Only messages of this vhost.")] = None,
    input_format: InputFormat = None,
    connections: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="N queues at a time; default: one per core.")
    ] = None,
    as_published: Annotated[
        bool, typer.Option("--as-published", help="Publish to the original exchanges, not to the queues.")
    ] = False,
    master: Master = None,
    as_json: JsonOption = False,
) -> None:
    """Publish exported messages to a live RabbitMQ, each queue in order. Run it again to resume."""
    republish_job = job("republish")
    order = republish_job.Order(
        to=to,
        ledger=out,
        vhost=vhost,
        format=None if input_format is None else input_format.value,
        connections=connections,
        as_published=as_published,
    )
    results = republish_job.run(paths, order, master)
    if as_json:
        print_json(republish_job.to_json(order, results))
        return
    for entry in results:
        before = f", {entry.already:,} were there already" if entry.already else ""
        print(
            f"{printable(entry.queue)}: {entry.messages:,} messages, {entry.payload_bytes:,} bytes of payload{before}"
        )


def rebuild(
    paths: Paths,
    out: Annotated[
        str,
        typer.Option("--out", metavar="DIR", help="A new directory that all of Spark's machines share."),
    ],
    *,
    check: CheckOption = False,
    master: Master = None,
    setting: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rebuild ConsumeQueue and index files of many RocketMQ stores from their CommitLogs alone.

    One store's files lie directly in DIR, of several each has a folder there. Exit code 1: something differs from the
    files that are there (--check), or of a CommitLog could not be read.
    """
    reports = job("rebuild").run(paths, master, parse_settings(setting), out, check=check)
    for report in reports:
        for note in report.notes:
            report_error(note)
        for finding in report.damage:
            report_error(finding)
    if as_json:
        documents = [report.to_json() for report in reports]
        print_json(documents[0] if len(documents) == 1 else {"nodes": documents})
    else:
        for report in reports:
            place = printable(report.out)
            print(f"{printable(report.node)}: {report.records:,} records: {len(report.files):,} files in {place}")
            for file in report.differing:
                place = "" if file.file_offset is None else f" from offset {file.file_offset:,} on"
                print(f"{printable(report.node)}: {printable(file.name)}: {file.outcome}{place}")
            if check and not report.differing:
                print(f"{printable(report.node)}: {len(report.compared):,} files are as they were")
    if any(report.differing or report.damage for report in reports):
        raise typer.Exit(EXIT_DAMAGE)


def pack(
    *,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="FILE.zip",
            help="warren and the pure Python packages that it needs, for spark-submit's --py-files.",
        ),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(
            "--environment",
            metavar="FILE.tar.gz",
            help="Everything, also compiled packages (numpy, pyarrow), for --archives; only for this system and "
            "Python.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Pack warren into an archive that Spark sends to executors without it."""
    from warren.pipeline import shipping

    if out is None and environment is None:
        raise PipelineError("which archive: --out FILE.zip or --environment FILE.tar.gz")
    archives = []
    if out is not None:
        archives.append(shipping.pack(out))
    if environment is not None:
        archives.append(shipping.pack_environment(environment))
    if as_json:
        print_json(
            {
                "archives": [
                    {**attrs.asdict(archive), "brought": [*archive.brought], "needed": [*archive.needed]}
                    for archive in archives
                ]
            }
        )
    else:
        print_text(line for archive in archives for line in _said_of(archive))


def _said_of(packed: Packed) -> Iterator[str]:
    yield f"{packed.path}: {packed.size_bytes / 1e6:,.1f} MB: {', '.join(packed.brought)}"
    if packed.needed:
        yield f"the executors' Python must have: {', '.join(packed.needed)}"
