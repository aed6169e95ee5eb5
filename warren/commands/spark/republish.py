"""``warren spark republish``."""

from __future__ import annotations

from typing import Annotated

import typer

from warren.commands.options import JsonOption
from warren.commands.output import print_json
from warren.commands.spark.arguments import InputFormat, Master, job
from warren.salvage.names import printable


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
