"""Tables of a job's result, written below ``--out``: all of them, or nothing.

Each is a directory of Parquet files, or of files with a JSON object on each line, which include nulls.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.sql import DataFrame

from warren.pipeline.errors import PipelineError
from warren.pipeline.jobs.running import staged
from warren.tables.places import Node

FORMATS: Final = ("parquet", "jsonl")


def check_format(name: str | None) -> None:
    """Raise :class:`PipelineError` for an unknown format. ``None`` means that no format is given."""
    if name not in (None, *FORMATS):
        raise PipelineError(f"--format {name}: is not parquet or jsonl")


def write_tables(tables: Mapping[str, DataFrame], out: str, output_format: str, sources: Iterable[Node]) -> None:
    """Write each table into the directory of its name; the only one with an empty name into ``out`` itself."""
    with staged(out, sources) as staging:
        for name, frame in tables.items():
            writer = frame.write.mode("overwrite")
            target = os.path.join(staging, name) if name else staging
            if output_format == "parquet":
                writer.parquet(target)
            else:
                writer.option("ignoreNullFields", "false").json(target)
