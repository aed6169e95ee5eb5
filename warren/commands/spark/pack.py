"""``warren spark pack``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import attrs
import typer

from warren.commands.options import JsonOption
from warren.commands.output import print_json, print_text
from warren.pipeline.shipping import Packed, pack_environment
from warren.pipeline.shipping import pack as pack_package
from warren.tables.pipeline_errors import PipelineError

Out = Annotated[
    str | None,
    typer.Option(
        "--out",
        metavar="FILE.zip",
        help="warren and the pure Python packages that it needs, for spark-submit's --py-files.",
    ),
]
Environment = Annotated[
    str | None,
    typer.Option(
        "--environment",
        metavar="FILE.tar.gz",
        help="Everything, also compiled packages (numpy, pyarrow), for --archives; only for this system and Python.",
    ),
]


def pack(*, out: Out = None, environment: Environment = None, as_json: JsonOption = False) -> None:
    """Pack warren into an archive that Spark sends to executors without it."""
    if out is None and environment is None:
        raise PipelineError("which archive: --out FILE.zip or --environment FILE.tar.gz")
    archives = []
    if out is not None:
        archives.append(pack_package(out))
    if environment is not None:
        archives.append(pack_environment(environment))
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
