"""The command ``warren``: the list of its commands, and how they fail.

Every command has ``--json``. What goes wrong is one line on stderr and exit code 2; other codes are a command's own.
A command is a function in a module of its own, with its arguments as Typer has them; a new one is a line below. Those
of ``warren topic``, ``warren spark`` and ``warren simulate`` are groups.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, NoReturn, ParamSpec

import typer

from storage.errors import WarrenError
from warren.commands.consume import consume
from warren.commands.definitions import definitions
from warren.commands.option_help import Command, Group
from warren.commands.publish import publish
from warren.commands.queues import purge, queues
from warren.commands.scenario_group import ScenarioGroup
from warren.commands.simulate import COMMANDS as SIMULATE_COMMANDS
from warren.commands.spark import COMMANDS as SPARK_COMMANDS
from warren.commands.topic import COMMANDS as TOPIC_COMMANDS
from warren.demo.command import demo
from warren.salvage.commands import export, inspect, verify
from warren.salvage.output import complain
from warren.shovel.command import shovel
from warren.top.command import top
from warren.traces import replay_command

Parameters = ParamSpec("Parameters")

EXIT_ERROR: Final = 2
EXIT_INTERRUPTED: Final = 130

_LIBRARYS_WORDS: Final = ": Value error, "
"""Typer's checker of values begins its reasons so."""
_REFUSED_OUTPUT: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What a file that stdout goes to can answer. Errors of other files are told by those who write them."""

_USAGE_ERROR: type[Any] = typer.BadParameter.__base__ or typer.BadParameter
"""What wrong arguments raise; whose class that is depends on Typer's version."""

app = typer.Typer(
    name="warren",
    help="An embedded message store, which also gets the messages out of a dead RabbitMQ's or RocketMQ's directory.",
    no_args_is_help=True,
    add_completion=False,
    cls=Group,
    pretty_exceptions_enable=False,
)
topics = typer.Typer(
    cls=Group,
    help="The topics of a stopped RocketMQ's store folder, or of a warren's: messages, entries, the index.",
    no_args_is_help=True,
)
app.add_typer(topics, name="topic")
spark = typer.Typer(
    cls=Group,
    help='The directories of many brokers at once, read and written by Spark (pip install "warren\\[spark]").',
    no_args_is_help=True,
)
app.add_typer(spark, name="spark")
simulation = typer.Typer(
    cls=ScenarioGroup,
    help="Simulate a node under a workload, with the code that pages for real: what will memory do?\n\n"
    "SCENARIO.toml says which node, queues, publishers and consumers; --example prints one to begin with. It needs "
    'pip install "warren\\[sim]".',
    no_args_is_help=True,
    subcommand_metavar="SCENARIO.toml | COMMAND",
)
app.add_typer(simulation, name="simulate")


def main() -> NoReturn:
    """Run the command that the command line says, and exit."""
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except _USAGE_ERROR as error:
        if error.format_message():  # none of its own: there were no arguments, and the help was printed
            complain(error.format_message().replace(_LIBRARYS_WORDS, ": "))
        code = EXIT_ERROR
    except typer.Abort:
        code = EXIT_INTERRUPTED
    except OSError as error:
        if error.filename is not None or error.errno not in _REFUSED_OUTPUT:
            raise
        _write_no_more()
        complain(f"stdout: {error.strerror}")
        code = EXIT_ERROR
    sys.exit(code or 0)


def _write_no_more() -> None:
    """What is left for stdout goes nowhere: Python would try once more at its end, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def command(function: Callable[Parameters, None], name: str | None = None, group: typer.Typer = app) -> None:
    """Make a command of a function; its errors become one line and exit code 2."""

    @wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except WarrenError as error:
            complain(error)
            raise typer.Exit(EXIT_ERROR) from error
        except BrokenPipeError as error:  # whoever reads our output has had enough
            _write_no_more()
            raise typer.Exit(1) from error

    group.command(name, cls=Command)(run)


command(inspect)
command(export)
command(verify)
command(shovel)
command(replay_command, "replay")
command(top)
command(publish)
command(consume)
command(queues)
command(purge)
command(definitions)
command(demo)
for _name, _function in TOPIC_COMMANDS.items():
    command(_function, _name, topics)
for _name, _function in SPARK_COMMANDS.items():
    command(_function, _name, spark)
for _name, _function in SIMULATE_COMMANDS.items():
    command(_function, _name, simulation)


if __name__ == "__main__":
    main()
