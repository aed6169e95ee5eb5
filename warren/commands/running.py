"""How commands run, and how they fail: what goes wrong is one line on stderr and exit code 2.

A command is a function in a module of its own, with its arguments as Typer has them. Other exit codes are its own.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, NoReturn, ParamSpec

import typer

from warren.commands.output import report_error
from warren.storage.errors import WarrenError

Parameters = ParamSpec("Parameters")

EXIT_ERROR: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141
"""As a shell has it of a program that SIGPIPE ended."""

_VALIDATOR_PREFIX: Final = ": Value error, "
"""Typer's validation of values begins its reasons so."""
_REFUSED_OUTPUT: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What a file that stdout goes to can answer. Errors of other files are reported by those who write them."""

_USAGE_ERROR: type[Any] = typer.BadParameter.__base__ or typer.BadParameter
"""What wrong arguments raise; whose class that is depends on Typer's version."""


def guarded(function: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """The same command, whose errors become one line and exit code 2."""

    @wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except WarrenError as error:
            report_error(error)
            raise typer.Exit(EXIT_ERROR) from error
        except BrokenPipeError as error:  # the reader of our output has closed it
            _write_no_more()
            raise typer.Exit(EXIT_BROKEN_PIPE) from error

    return run


def run_app(app: typer.Typer) -> NoReturn:
    """Run the command that the command line says, and exit."""
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except _USAGE_ERROR as error:
        if error.format_message():  # none of its own: there were no arguments, and the help was printed
            report_error(error.format_message().replace(_VALIDATOR_PREFIX, ": "))
        code = EXIT_ERROR
    except typer.Abort:
        code = EXIT_INTERRUPTED
    except BrokenPipeError:  # when the rest was written out
        _write_no_more()
        code = EXIT_BROKEN_PIPE
    except OSError as error:
        if error.filename is not None or error.errno not in _REFUSED_OUTPUT:
            raise
        _write_no_more()
        report_error(f"stdout: {error.strerror}")
        code = EXIT_ERROR
    sys.exit(code or 0)


def _write_no_more() -> None:
    """What is left for stdout goes nowhere: Python would try once more at its end, and report that."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
