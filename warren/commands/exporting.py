"""Where the commands that write messages write them to, and in which form: what ``--out``, ``--format`` and ``--text``
say."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from warren.commands.options import STDOUT, UsageError
from warren.commands.output import opened, opened_folder
from warren.salvage.body_rows import body_files
from warren.salvage.export import MessageWriter
from warren.salvage.formats import Format, format_of
from warren.salvage.writing import Form, writer_of


@attrs.frozen
class Output:
    """An output that is open."""

    writer: MessageWriter
    out: str | None
    """``None``: it is stdout."""
    format: Format

    @property
    def may_show(self) -> bool:
        """Whether a bar on the terminal is in nobody's way."""
        return self.out is not None or not sys.stdout.isatty()


@contextmanager
def opened_writer(
    out: str | None,
    source: str,
    output_format: Format | None,
    *,
    with_text: bool = False,
    include_acked: bool = False,
    orphans: bool = False,
    records: bool = False,
) -> Iterator[Output]:
    """What writes messages of ``source`` to ``out``; what is there becomes whole, or nothing of it is left."""
    out = None if out == STDOUT else out
    output_format = output_format or format_of(out)
    form = Form(
        format=output_format,
        with_text=with_text,
        node=source,
        records=records,
        include_acked=include_acked,
        orphans=orphans,
    )
    form.check()
    if out is None and output_format is Format.PARQUET and sys.stdout.isatty():
        raise UsageError("--format parquet: is nothing for a terminal; say --out FILE")
    if output_format is Format.BODIES and out is not None and (out.endswith("/") or os.path.isdir(out)):
        with opened_folder(out, source) as folder:
            yield Output(body_files(folder), out, output_format)
        return
    with opened(out, source) as write, writer_of(form, write) as writer:
        yield Output(writer, out, output_format)
