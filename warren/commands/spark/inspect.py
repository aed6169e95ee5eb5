"""``warren spark inspect``."""

from __future__ import annotations

from warren.commands.opening import JsonOption
from warren.commands.spark.arguments import Master, Paths, job
from warren.salvage.commands import SetOption, parse_settings
from warren.salvage.output import print_json


def inspect(paths: Paths, *, master: Master = None, setting: SetOption = None, as_json: JsonOption = False) -> None:
    """Say what is in the directories of many brokers, in numbers: a row for each queue of each node."""
    print_json(job("inspect").run(paths, master, parse_settings(setting)))
