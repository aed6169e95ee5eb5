"""``warren spark export``, ``load`` and ``republish``: messages out of many brokers' directories, and to others."""

from __future__ import annotations

from typing import Annotated

import typer

from warren.commands.options import (
    EXIT_DAMAGE,
    JsonOption,
    OnlyVhostOption,
    QueueOption,
    SetOption,
    TableFormat,
    WhereOption,
    distinct,
    parse_settings,
)
from warren.commands.output import FindingReporter, print_json, report_error
from warren.commands.spark.arguments import ExportPaths, InputFormat, Master, Out, Paths, job
from warren.salvage.export import Selection
from warren.salvage.names import printable


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
    master: Master = None,
    setting: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export the messages of many brokers, as warren export and warren topic scan do, with node and position.

    Exit code 1: some could not be read; stderr says which and why, and all the others are there.
    """
    export_job = job("export")
    order = export_job.Order(
        out=out,
        format=output_format.value,
        selection=Selection(vhost=vhost, queues=distinct(queue), where=where),
        settings=parse_settings(setting),
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
