"""``warren spark load``."""

from __future__ import annotations

from typing import Annotated

import typer

from warren.commands.options import JsonOption, parse_settings
from warren.commands.output import print_json
from warren.commands.spark.arguments import ExportPaths, InputFormat, Master, Out, job
from warren.salvage.names import printable


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
