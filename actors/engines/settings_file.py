"""A settings file: TOML with three tables, all optional.

    [node]                                  what NodeSettings has
    vm_memory_high_watermark = "2GB"
    disk_free_limit.mem_relative = 1.5

    [engine]                                what warren.storage.settings.Settings has
    profile = "rabbitmq-3.10"               the one key of its own: where the other values come from
    msg_store_file_size_limit = 1048576

    [topics]                                what warren.storage.topic_settings.TopicSettings has
    file_reserved_time = 24

A file is accepted as a whole or not at all: an unknown table or key, or a value of the wrong kind, raises SettingsError
with the file, the key and the reason. This module parses bytes; it does not read files.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

import attrs

from warren.actors.engines.node_settings import NodeSettings
from warren.storage.errors import SettingsError, shortly, shown
from warren.storage.settings import PROFILES, Settings
from warren.storage.topic_settings import TopicSettings

_PROFILE: Final = "profile"
_NODE_KEYS: Final = tuple(field.name for field in attrs.fields(NodeSettings))
_ENGINE_KEYS: Final = (_PROFILE, *(field.name for field in attrs.fields(Settings)))
_TOPIC_KEYS: Final = tuple(field.name for field in attrs.fields(TopicSettings))
_TABLES: Final = {"node": _NODE_KEYS, "engine": _ENGINE_KEYS, "topics": _TOPIC_KEYS}
_KINDS: Final = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}

S = TypeVar("S")


def load_settings(data: bytes, path: str, base: Settings) -> tuple[NodeSettings, Settings, TopicSettings]:
    """Parse the settings in a file. ``path`` is used in error messages, ``base`` for an engine for which the file names
    no profile."""
    import tomllib

    try:
        tables = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # not text, no TOML, a number of 5,000 digits; nested too deep
        raise SettingsError(f"{path}: no TOML: {shortly(str(error))}") from None
    for name, table in tables.items():
        if name not in _TABLES:
            raise SettingsError(f"{path}: {_unknown_at_the_top(name)}")
        if not isinstance(table, dict):
            raise SettingsError(f"{path}: {name} must be a table, [{name}], not {shortly(table)}")
        for key in table:
            if key not in _TABLES[name]:
                raise SettingsError(f"{path}: [{name}] {_unknown(key, name)}")
    node = _made(path, "node", lambda: NodeSettings(**tables.get("node", {})))
    engine = _made(path, "engine", lambda: engine_settings(tables.get("engine", {}), base))
    return node, engine, _made(path, "topics", lambda: topic_settings(tables.get("topics", {})))


def _made(path: str, table: str, make: Callable[[], S]) -> S:
    try:
        return make()
    except SettingsError as error:
        raise SettingsError(f"{path}: [{table}] {error}") from None


def _nearest(word: str, words: Collection[str]) -> str:
    import difflib

    return difflib.get_close_matches(word, words, n=1, cutoff=0.0)[0]


def _unknown_at_the_top(name: str) -> str:
    for table, keys in _TABLES.items():
        if name in keys:
            return f"{name} stands in the table [{table}]"
    return f"{shortly(name)} is no table of a settings file; the nearest is [{_nearest(name, _TABLES)}]"


def _unknown(key: str, table: str) -> str:
    for other, keys in _TABLES.items():
        if key in keys:
            return f"{key} stands in the table [{other}]"
    return f"{shortly(key)} is no setting; the nearest is {_nearest(key, _TABLES[table])}"


# ── settings whose classes leave the kinds of values to the type checker ────────────────────────────────────────────


def engine_settings(table: Mapping[str, Any], base: Settings | None = None) -> Settings:
    """The settings of a table; the others come from its ``profile``, or else ``base`` (the profile ``default``).

    Raises :class:`SettingsError`.
    """
    profile = table.get(_PROFILE, "default")
    if not isinstance(profile, str) or profile not in PROFILES:
        raise SettingsError(f"{_PROFILE} must be one of {', '.join(map(repr, PROFILES))}, not {shown(profile)}")
    before = PROFILES[profile] if base is None or _PROFILE in table else base
    hints = typing.get_type_hints(Settings)
    values = {key: _of_kind(key, hints[key], value) for key, value in table.items() if key != _PROFILE}
    return attrs.evolve(before, **values)


def topic_settings(table: Mapping[str, Any], base: TopicSettings | None = None) -> TopicSettings:
    """The settings of a table, the others from ``base``; raises :class:`SettingsError`."""
    hints = typing.get_type_hints(TopicSettings)
    values = {key: _of_kind(key, hints[key], value) for key, value in table.items()}
    return attrs.evolve(TopicSettings() if base is None else base, **values)


def _of_kind(key: str, kind: Any, value: Any) -> Any:
    """Convert ``value`` to the type of the field's annotation: a number, a truth value, a tuple of numbers."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):  # a value or None, which TOML cannot say
        if value is None:
            return None
        [kind] = [inner for inner in typing.get_args(kind) if inner is not types.NoneType]
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)
        if not isinstance(value, list) or len(value) != len(inner):
            raise SettingsError(f"{key} must be a list of {len(inner)} values, not {shown(value)}")
        return tuple(_of_kind(key, inner_kind, part) for inner_kind, part in zip(inner, value, strict=True))
    if kind is float and type(value) is int and abs(value) < 1 << 53:
        return float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise SettingsError(f"{key} must be {_KINDS[kind]}, not {shown(value)}")
    return value
