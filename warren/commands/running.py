"""How commands run, and how they fail: what goes wrong is one line on stderr and exit code 2.

A command is a function with its arguments as Typer has them; options that belong together may come as one value
(:func:`warren.commands.loading.with_options`). Other exit codes are its own.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, NoReturn, ParamSpec, TextIO

import typer

from warren.commands.output import report_error
from warren.storage.errors import WarrenError

Parameters = ParamSpec("Parameters")

EXIT_ERROR: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141
"""What a shell reports for a program that SIGPIPE ended."""

_VALIDATOR_PREFIX: Final = ": Value error, "
"""Typer's validation of values begins its reasons so."""
_REFUSED_OUTPUT: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What a file that stdout goes to can answer. Errors of other files are reported by those who write them."""

USAGE_ERROR: type[Any] = typer.BadParameter.__base__ or typer.BadParameter
"""What wrong arguments raise. It has an ``exit_code``. Which library defines it depends on Typer's version."""


def guarded(function: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """The same command, whose errors become one line and exit code 2."""

    @wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except WarrenError as error:
            report_error(error)
            raise typer.Exit(EXIT_ERROR) from error

    return run


def run_app(app: typer.Typer) -> NoReturn:
    """Run the command that the command line says, and exit."""
    _open_streams()
    try:
        code = _exit_code(app)
    except (BrokenPipeError, SystemExit) as error:
        # Rich and Typer turn a broken pipe into exit code 1, which means damage here.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        _discard(sys.stdout)
        _discard(sys.stderr)
        code = EXIT_BROKEN_PIPE
    sys.exit(code)


def _open_streams() -> None:
    """Open the null device in place of streams that the caller has closed (``>&-``)."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - it stays open


def _exit_code(app: typer.Typer) -> int:
    """Run the command that the command line says, and report what is wrong with the call or with stdout."""
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except USAGE_ERROR as error:
        if error.format_message():  # empty if there were no arguments, and the help was printed
            report_error(error.format_message().replace(_VALIDATOR_PREFIX, ": "))
        return int(error.exit_code)
    except typer.Abort:
        return EXIT_INTERRUPTED
    except OSError as error:
        if error.filename is not None or error.errno not in _REFUSED_OUTPUT:
            raise
        _discard(sys.stdout)
        report_error(f"stdout: {error.strerror}")
        return EXIT_ERROR
    return code or 0


def _discard(stream: TextIO) -> None:
    """Discard what is still buffered for the stream; Python would try to write it at exit, and report the failure."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
