"""Config: everything that a node can be told, in one value.

Three parts: the node's settings (:class:`warren.actors.engines.node_settings.NodeSettings`) and the queue engine's
(:class:`warren.storage.settings.Settings`), under RabbitMQ's names, and the topics'
(:class:`warren.storage.topic_settings.TopicSettings`), under RocketMQ's. No name is in two, so keywords find their
place.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, Final, Unpack

import attrs

from warren.actors.engines.node_settings import NodeSettings
from warren.actors.engines.settings_file import load_settings, topic_settings
from warren.storage.call_arguments import checked, checked_class
from warren.storage.errors import SettingsError, did_you_mean
from warren.storage.filesystem import RealFileSystem
from warren.storage.settings import Settings
from warren.storage.topic_settings import TopicSettings
from warren.values.setting_keywords import SettingKeywords

ENGINE: Final = Settings(target_ram_count_max=24_576, delta_read_max=4096)
"""The engine of a node that names no profile: its queues keep a backlog on the disk, whatever memory there is, and read
it back in parts that stay in a processor's cache while bodies are taken out of them."""

_NODE = {field.name for field in attrs.fields(NodeSettings)}
_ENGINE = {field.name for field in attrs.fields(Settings)}
_TOPICS = {field.name for field in attrs.fields(TopicSettings)}


def _among(names: set[str], settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name in names}


def check_names(settings: Mapping[str, Any], others: Collection[str] = ()) -> None:
    """Raise :class:`SettingsError` unless all are names of settings. ``others``: what may have been meant instead."""
    names = _NODE | _ENGINE | _TOPICS
    for name in settings:
        if name not in names:
            raise SettingsError(f"no setting {name!r}{did_you_mean(name, (*others, *names))}")


@checked_class
@attrs.frozen(kw_only=True)
class Config:
    """A node's settings."""

    node: NodeSettings = attrs.Factory(NodeSettings)
    engine: Settings = ENGINE
    topics: TopicSettings = attrs.Factory(TopicSettings)

    @property
    def record(self) -> str | None:
        """The file that the node is recorded in (:mod:`warren.recording`)."""
        return self.node.record

    @classmethod
    @checked
    def of(cls, config: Config | str | os.PathLike[str] | None = None, **settings: Unpack[SettingKeywords]) -> Config:
        """A config, or a TOML file's, or the defaults, with ``settings`` put in their places.

        Raises :class:`SettingsError` for a name that is no setting, and for values that cannot work.
        """
        base = config if isinstance(config, Config) else cls() if config is None else cls.from_toml(config)
        changes = dict[str, Any](settings)
        check_names(changes)
        return cls(
            node=attrs.evolve(base.node, **_among(_NODE, changes)),
            engine=attrs.evolve(base.engine, **_among(_ENGINE, changes)),
            topics=topic_settings(_among(_TOPICS, changes), base.topics),
        )

    @classmethod
    @checked
    def from_toml(cls, path: str | os.PathLike[str]) -> Config:
        """What a file says in its tables ``[node]``, ``[engine]`` and ``[topics]``."""
        node, engine, topics = load_settings(RealFileSystem().read(os.fspath(path)), os.fspath(path), ENGINE)
        return cls(node=node, engine=engine, topics=topics)
