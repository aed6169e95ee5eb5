"""A broker's own files in ``config``: its topics, groups, and the offsets of groups and of delay levels.

Each has a backup beside it, ``.bak``, which is read if the file is missing, empty or damaged, as RocketMQ does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import attrs

from warren.actors.engines.topics.store_files import CONFIG
from warren.queue_index.index.config_file import ConfigFile
from warren.queue_index.topics.consumer_offsets_format import decode_consumer_offsets, decode_delay_offsets
from warren.storage.errors import DataError, WarrenError, shortly
from warren.storage.filesystem import FileSystem

TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"
DELAY_OFFSETS: Final = "delayOffset.json"
CONSUMER_OFFSETS: Final = "consumerOffset.json"


class ConfigError(WarrenError):
    """A text that is no such file."""


@attrs.frozen
class ConfigFiles:
    """What the files in ``config`` say, by name: a file that is missing, or damaged with its backup, is left out."""

    contents: dict[str, Any]
    notes: list[str]
    """For people: which backups were read."""
    damage: list[DataError]

    @classmethod
    def of(cls, files: FileSystem, directory: str) -> ConfigFiles:
        """Read those of the store in this directory."""
        read = cls({}, [], [])
        for name, decode in DECODERS.items():
            file = ConfigFile(files, f"{directory}/{CONFIG}/{name}")
            try:
                content = file.load(decode)
            except DataError as error:
                read.damage.append(error)
                continue
            if content is not None:
                read.contents[name] = content
            if file.fallback is not None:
                read.notes.append(f"{file.path}: {file.fallback}")
        return read

    def to_json(self) -> dict[str, list[dict[str, Any]]]:
        """The topics and groups as their files have them, and the levels with the offset up to which each is
        delivered."""
        levels = sorted(self.contents.get(DELAY_OFFSETS, {}).items())
        return {
            "topics": [topic for _, topic in sorted(self.contents.get(TOPICS, {}).items())],
            "subscription_groups": [group for _, group in sorted(self.contents.get(GROUPS, {}).items())],
            "delay_levels": [{"level": level, "offset": offset} for level, offset in levels],
        }


def _table_named(name: str) -> Callable[[str], dict[str, Any]]:
    """Return a decoder of a JSON object whose member ``name`` has objects by their names."""

    def decode(text: str) -> dict[str, Any]:
        try:
            table = json.loads(text, strict=False)[name]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"cannot be parsed: {shortly(error)}") from None
        if not isinstance(table, dict) or not all(isinstance(entry, dict) for entry in table.values()):
            raise ConfigError(f"holds no table {name}")
        return table

    return decode


DECODERS: Final[dict[str, Callable[[str], Any]]] = {
    TOPICS: _table_named("topicConfigTable"),
    GROUPS: _table_named("subscriptionGroupTable"),
    DELAY_OFFSETS: decode_delay_offsets,
    CONSUMER_OFFSETS: decode_consumer_offsets,
}
