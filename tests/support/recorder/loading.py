"""Erlang modules of ours, compiled against the server's libraries; loaded into a running broker, or run without one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.broker import SERVER_SCRIPT, Broker, BrokerError

ENVIRONMENT = os.environ | {"ERL_LIBS": str(SERVER_SCRIPT.resolve().parent.parent / "plugins")}
"""In which Erlang finds the server's libraries."""


def load(broker: Broker, source: Path, directory: Path) -> str:
    """Load ``source``, compiled into ``directory``, which is there; returns the module's name."""
    compiled(source, directory)
    broker.eval(f'{{module, {source.stem}}} = code:load_abs("{directory / source.stem}")')
    return source.stem


def compiled(source: Path, directory: Path) -> None:
    """Compile ``source`` into ``directory``."""
    run(["erlc", "-o", str(directory), str(source)])


def run(command: list[str], directory: Path | None = None) -> None:
    """One of Erlang's programs. Raises :class:`BrokerError` with what it printed where it fails."""
    done = subprocess.run(command, cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BrokerError(done.stdout + done.stderr)
