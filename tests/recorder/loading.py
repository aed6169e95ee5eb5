"""Erlang modules of ours, compiled and loaded into a running broker."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from broker import SERVER_SCRIPT, Broker, BrokerError

_LIBRARIES = SERVER_SCRIPT.resolve().parent.parent / "plugins"


def load(broker: Broker, source: Path, directory: Path) -> str:
    """Load ``source``, compiled into ``directory``, which is there; returns the module's name."""
    environment = os.environ | {"ERL_LIBS": str(_LIBRARIES)}
    compiler = ["erlc", "-o", str(directory), str(source)]
    done = subprocess.run(compiler, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BrokerError(done.stdout + done.stderr)
    broker.eval(f'{{module, {source.stem}}} = code:load_abs("{directory / source.stem}")')
    return source.stem
