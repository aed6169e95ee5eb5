"""``warren spark compact``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.filesize import decimal
from rich.text import Text

from warren.commands.options import EXIT_DAMAGE, JsonOption, parse_settings
from warren.commands.output import plain_table, print_json, print_text, report_error
from warren.commands.spark.arguments import Master, Paths, job
from warren.salvage.names import printable

LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="msg_store_file_size_limit (16777216 bytes) or msg_store_garbage_fraction (0.5). Can be repeated.",
    ),
]


def compact(paths: Paths, *, master: Master = None, setting: LimitOption = None, as_json: JsonOption = False) -> None:
    """List the message store files that a broker would combine, and the bytes that frees. Changes nothing.

    Exit code 1: of a store it is not known what is needed, for a queue cannot be read.
    """
    compacting = job("compact").run(paths, master, parse_settings(setting))
    if as_json:
        print_json({"stores": compacting.stores, "frees": compacting.frees})
    else:
        print_text(_tables(compacting))
    for problem in compacting.problems:
        report_error(problem)
    if not all(store["known"] for store in compacting.stores):
        raise typer.Exit(EXIT_DAMAGE)


def _tables(compacting: Any) -> Iterator[RenderableType]:
    numbers = ("files", "size", "valid", "deleted", "combined", "frees")
    shape = plain_table("node", "vhost", "store", numbers=numbers)
    for store in compacting.stores:
        size = sum(file["size"] for file in store["files"])
        valid = sum(file["valid_bytes"] for file in store["files"])
        names = [Text(printable(str(store[name]))) for name in ("node", "vhost", "store")]
        counts = [f"{len(store[name]):,}" for name in ("delete", "combine")] if store["known"] else ["?", "?"]
        shape.add_row(
            *names, f"{len(store['files']):,}", decimal(size), decimal(valid), *counts, decimal(store["frees"])
        )
    yield shape
    yield Text(f"{compacting.frees:,} bytes could be freed.")
