"""What the commands of ``warren spark`` share: their arguments, and the way to their jobs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from warren.commands.options import TableFormat
from warren.pipeline import part

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...",
        help="Broker's directories: a RabbitMQ's or warren's data directory, a RocketMQ's store folder; globs and URIs "
        "(s3://, gs://, hdfs://, abfs://) too. Opened read-only.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="M", help="Where Spark runs, as spark://host:7077; default: local[*]."),
]
ExportPaths = Annotated[
    list[str],
    typer.Argument(metavar="PATH...", help="What warren spark export wrote: directories, files, globs, URIs."),
]
_OUT = typer.Option("--out", metavar="DIR", help="Write to DIR, completely or not at all.")
Out = Annotated[str, _OUT]
MayBeOut = Annotated[str | None, _OUT]
InputFormat = Annotated[
    TableFormat | None, typer.Option("--format", help="The format of the files; default: by their names.")
]
OutputFormat = Annotated[
    TableFormat, typer.Option("--format", help="With --out: one JSON object per line, or Parquet files.")
]


def job(name: str) -> Any:
    """The module of a job; raises :class:`warren.pipeline.MissingSparkError` if Spark is not installed."""
    return part(f"jobs.{name}")
