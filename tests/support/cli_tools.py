"""The command line, run in this process."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from warren import cli


def warren(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
