"""The command ``warren sql``: SQL over broker's directories."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from warren.commands.options import STDOUT, UsageError
from warren.commands.output import check_outside, opened, plain_table, print_json, print_text, report_error
from warren.commands.topics.topic_sources import StoreOptions
from warren.salvage.names import printable
from warren.sql import check_duckdb
from warren.storage.errors import StorageError, WarrenError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from warren.sql.directories import Directories
    from warren.sql.statements import Answer, Statements

_ROWS: Final = 40
_CELL: Final = 80
"""Characters of a value that a table for people shows."""
_NULL: Final = "NULL"
_STDIN: Final = "-"


class Format(enum.StrEnum):
    """How an answer is written."""

    TABLE = "table"
    CSV = "csv"
    JSONL = "jsonl"
    MARKDOWN = "markdown"
    PARQUET = "parquet"


_ENDINGS: Final = {
    ".csv": Format.CSV,
    ".json": Format.JSONL,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".md": Format.MARKDOWN,
    ".parquet": Format.PARQUET,
}


def sql(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH... SQL",
            help="Brokers' directories, or .tar.gz of them; globs and URIs (s3://) too. Opened read-only. Then the "
            "SQL; without it and --file, it is read from stdin, on a terminal with a prompt.",
            show_default=False,
        ),
    ] = None,
    *,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="Read the SQL from FILE; -: from stdin.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", "--output", "-o", metavar="FILE", help="Write the answer to FILE.")
    ] = None,
    output_format: Annotated[
        Format | None,
        typer.Option(
            "--format", help="Default: by FILE's ending (.csv, .jsonl, .md, .parquet); a table on a terminal, else CSV."
        ),
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", metavar="N", min=0, help="Show at most N rows of a table; 0: all.")
    ] = _ROWS,
    tables: Annotated[bool, typer.Option("--tables", help="List the tables and columns.")] = False,
    failfast: Annotated[
        bool, typer.Option("--failfast", help="Stop at damage, instead of continuing after it.")
    ] = False,
    store: StoreOptions,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format jsonl.")] = False,
) -> None:
    """Query brokers' directories with SQL, by DuckDB: messages, queues, index, store, findings, records, …

    Of several statements the last one is answered.
    """
    check_duckdb()
    if tables:
        _print_tables(as_json=as_json)
        return
    paths, text = _given(given or [], file)
    out = None if out == STDOUT else out
    form = _format_of(Format.JSONL if as_json and output_format is None else output_format, out)
    from warren.sql.directories import Directories

    if text is None and not (file is None and sys.stdin.isatty()):
        text = _read_stdin()
    directories = Directories.at(*paths, failfast=failfast, raw_bodies=store.raw_bodies, settings=store.settings())
    _query(directories, text, form, out, rows)


def _query(directories: Directories, text: str | None, form: Format, out: str | None, rows: int) -> None:
    """Answer the SQL, or what is typed at a prompt."""
    from warren.sql.statements import Statements

    for node in directories.nodes if out is not None else ():
        check_outside(out or "", node.directory)
    with closing(Statements(directories)) as statements:
        if text is None:
            _prompt(statements, form, rows)
        else:
            _answer(statements, text, form, out, rows)


def _given(arguments: list[str], file: str | None) -> tuple[list[str], str | None]:
    """The paths and the SQL; ``None``: the SQL is on stdin."""
    if file is None and len(arguments) > 1 and _is_sql(arguments[-1]):
        *arguments, text = arguments
    elif file is None or file == _STDIN:
        text = None
    else:
        try:
            with open(file, encoding="utf-8") as opened_file:
                text = opened_file.read()
        except (OSError, ValueError) as error:
            raise StorageError(f"{file}: {getattr(error, 'strerror', None) or error}") from error
    if not arguments:
        raise UsageError("give a broker's directory and SQL")
    return arguments, text


def _is_sql(argument: str) -> bool:
    """Whether an argument is not a path: SQL is more than one word."""
    return len(argument.split()) != 1 and not os.path.exists(argument)


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8: {error.reason} at {error.start}") from error


def _prompt(statements: Statements, form: Format, rows: int) -> None:
    """Ask for statements, and answer each, until the input ends."""
    with suppress(ImportError):  # with readline, lines can be edited and recalled
        import_module("readline")

    print("SQL, each statement up to its semicolon; .tables says what there is, Ctrl-D ends.")
    text = ""
    while True:
        try:
            line = input("  ... " if text else "sql> ")
            if not text and line.strip() == ".tables":
                _print_tables(as_json=False)
                continue
            text += line + "\n"
            if text.rstrip().endswith(";"):
                statement, text = text, ""
                _answer(statements, statement, form, None, rows)
            elif not text.strip():
                text = ""
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            text = ""
            print()
        except WarrenError as error:
            report_error(error)


def _format_of(chosen: Format | None, out: str | None) -> Format:
    """The format that was chosen, or the one for ``out`` or for the terminal."""
    on_terminal = out is None and sys.stdout.isatty()
    if chosen is Format.PARQUET and on_terminal:
        raise UsageError("--format parquet cannot be written to a terminal; give --out FILE")
    ending = os.path.splitext(out or "")[1].lower()
    return chosen or _ENDINGS.get(ending) or (Format.TABLE if on_terminal else Format.CSV)


def _answer(statements: Statements, text: str, form: Format, out: str | None, rows: int) -> None:
    with statements.errors(), _bar(statements.directories, shown=out is not None or form is Format.TABLE):
        answer = statements.run(text, in_batches=form is Format.PARQUET)
        if answer is None:
            return
        if form is not Format.TABLE:
            with opened(out, None) as write:
                _writer(form)(answer, write)
            return
        shown = list(islice(answer.rows(), rows + 1 if rows else None))
    is_cut = bool(rows) and len(shown) > rows
    print_text(_table(answer, shown[:rows] if is_cut else shown, is_cut=is_cut))


def _writer(form: Format) -> Callable[[Answer, Callable[[bytes], object]], None]:
    from warren.sql import answers

    return {
        Format.CSV: answers.write_csv,
        Format.JSONL: answers.write_jsonl,
        Format.MARKDOWN: answers.write_markdown,
        Format.PARQUET: answers.write_parquet,
    }[form]


# ── for people ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _table(answer: Answer, rows: list[tuple[Any, ...]], *, is_cut: bool) -> Iterator[RenderableType]:
    """The rows as a table; one below the other, name by name, if the terminal is too narrow for that."""
    from rich.console import Console
    from rich.rule import Rule
    from rich.text import Text

    from warren.sql.answers import is_number

    def styled(cell: str) -> Text:
        return Text(cell, "dim" if cell is _NULL else "")

    names = [printable(name) for name in answer.names]
    cells = [[_NULL if value is None else _cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    if sum(widths) + 2 * len(widths) <= Console().width or not sys.stdout.isatty():
        shape = plain_table()
        for name, column in zip(names, answer.columns, strict=True):
            shape.add_column(Text(name), justify="right" if is_number(column.kind) else "left", no_wrap=True)
        for row in cells:
            shape.add_row(*map(styled, row))
        yield shape
    else:
        for number, row in enumerate(cells, 1):
            yield Rule(f"row {number:,}", align="left", style="dim")
            shape = plain_table("name", "value")
            shape.show_header = False
            for name, value in zip(names, row, strict=True):
                shape.add_row(Text(name, "dim"), styled(value))
            yield shape
    if is_cut:
        yield Text(f"The first {len(rows):,} rows; there are more: --rows N shows N, --format csv writes all.", "dim")
    else:
        yield Text(f"{len(rows):,} {'row' if len(rows) == 1 else 'rows'}", "dim")


def _cell(value: Any) -> str:
    """The beginning of a value, as text."""
    from warren.sql.answers import for_people

    text = printable(for_people(value)[: _CELL + 1])
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"


def _print_tables(*, as_json: bool) -> None:
    """Which tables there are, and their columns."""
    from rich.text import Text

    from warren.tables.schemas import COMMENT
    from warren.tables.table import SCHEMAS

    def description(of: Any) -> str:
        return str(of.metadata[COMMENT].decode())

    if as_json:
        print_json(
            {
                name: {
                    "row": description(schema),
                    "columns": [
                        {"name": field.name, "type": _sql_type(field.type), "says": description(field)}
                        for field in schema
                    ],
                }
                for name, schema in SCHEMAS.items()
            }
        )
        return

    def parts() -> Iterator[RenderableType]:
        for name, schema in SCHEMAS.items():
            yield Text.assemble((name, "bold"), f": a row for {description(schema)}")
            shape = plain_table("column", "type", "says")
            for field in schema:
                shape.add_row(field.name, _sql_type(field.type), Text(description(field)))
            yield from (shape, "")

    print_text(parts())


def _sql_type(kind: Any) -> str:
    """A type of Arrow's as SQL names it."""
    names = {
        "string": "VARCHAR",
        "int64": "BIGINT",
        "int32": "INTEGER",
        "bool": "BOOLEAN",
        "binary": "BLOB",
        "list<element: string>": "VARCHAR[]",
        "map<string, string>": "MAP(VARCHAR, VARCHAR)",
    }
    return names[str(kind)]


@contextmanager
def _bar(directories: Directories, *, shown: bool) -> Iterator[None]:
    """A line on stderr for each table that is read, of what takes longer than a second; ``shown``: if at all."""
    if not shown or not sys.stderr.isatty():
        yield
        return
    from warren.sql.query_progress import ScanBars

    with closing(ScanBars()) as bars:
        directories.scanning.watcher = bars
        yield
