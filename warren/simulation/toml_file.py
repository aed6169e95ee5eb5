"""Scenario files: TOML with the names of :mod:`warren.simulation.scenarios.scenario`.

    length = "10min"

    [node]
    memory = "1GB"

    [[queues]]
    name = "orders"

    [[publishers]]
    queue = "orders"
    rate = {bursts = {base = 100, peak = 3000, every = "2min", lasting = "20s"}}
    body = {lognormal = {median = "2kB", sigma = 1.0}}

A *table* here is such a file's contents as Python has them: mappings, lists, texts, numbers and truth values. A sweep
changes tables (:func:`vary`), and a scenario that was built in Python has one (:func:`table_of`). Files of rates are
looked for beside the scenario's. :data:`EXAMPLE` is a file with every key, and what each means.

A file is right as a whole or not taken at all: :class:`~warren.simulation.scenarios.units.ScenarioError` names the
file, the key and the reason.
"""

from __future__ import annotations

import copy
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

import attrs

from warren.simulation.scenarios.curves import Bursts, Constant, Daily
from warren.simulation.scenarios.forms import inside, nearest, part, parts, under
from warren.simulation.scenarios.node_spec import NodeSpec
from warren.simulation.scenarios.scenario import QueueSpec, Scenario
from warren.simulation.scenarios.sizes import ConstantSize, EmpiricalSize, LognormalSize
from warren.simulation.scenarios.units import ScenarioError
from warren.simulation.whatif import merged
from warren.storage.errors import did_you_mean, shown

Table = dict[str, Any]
EXAMPLE: Final = (resources.files("warren.data") / "scenario.toml").read_text(encoding="utf-8")
"""A scenario file with comments."""

SCENARIOS: Final = resources.files("warren.data") / "scenarios"
"""Known situations, which a scenario's name stands for if no file has that name."""

MOST_FILE_BYTES: Final = 16 << 20
_LARGEST: Final = 1 << 63
_DEEPEST: Final = 16
_FILES: Final = ("trace", "record")
"""Keys of a rate that name a file."""
_KEY: Final = re.compile(r"(\w[\w-]*)(?:\[([0-9]{1,7})\])?")


# ── from files ──────────────────────────────────────────────────────────────────────────────────────────────────────


def load_scenario(path: str | os.PathLike[str], *, queues: Sequence[QueueSpec] = ()) -> Scenario:
    """Return the scenario in a file, or a known situation by its name: :func:`names_of_scenarios`.

    ``queues`` are added: those of a directory (:mod:`warren.simulation.whatif`).
    """
    return scenario_from_table(load_table(path), path, queues=queues)


def load_table(path: str | os.PathLike[str]) -> Table:
    """Return the table of a file. Its keys are not checked."""
    name = os.fspath(path)
    if not os.path.exists(name) and name in names_of_scenarios():
        return _parsed((SCENARIOS / f"{name}.toml").read_bytes(), name)
    if not os.path.exists(name):
        raise ScenarioError(f"{name}: there is no such file{did_you_mean(name, names_of_scenarios())}")
    if not os.path.isfile(name):
        raise ScenarioError(f"{name}: no file")
    try:
        with Path(name).open("rb") as file:
            data = file.read(MOST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ScenarioError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MOST_FILE_BYTES:
        raise ScenarioError(f"{name}: more than {MOST_FILE_BYTES} bytes are no scenario")
    return _parsed(data, name)


def names_of_scenarios() -> list[str]:
    """Return the names of the situations that come with warren."""
    return sorted(file.name.removesuffix(".toml") for file in SCENARIOS.iterdir() if file.name.endswith(".toml"))


def scenario_from_toml(text: str, path: str | os.PathLike[str] | None = None) -> Scenario:
    """Return the scenario in a text. ``path`` is named in errors; files of rates are looked for beside it."""
    return scenario_from_table(_parsed(text.encode(errors="surrogatepass"), None if path is None else str(path)), path)


def _parsed(data: bytes, path: str | None) -> Table:
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # not text, no TOML, a number of 5,000 digits; nested too deep
        raise _in_file(path, f"no TOML: {error}") from None


def _in_file(path: str | os.PathLike[str] | None, text: object) -> ScenarioError:
    return ScenarioError(str(text) if path is None else f"{os.fspath(path)}: {text}")


# ── from tables ─────────────────────────────────────────────────────────────────────────────────────────────────────


def scenario_from_table(
    table: Mapping[str, Any], path: str | os.PathLike[str] | None = None, *, queues: Sequence[QueueSpec] = ()
) -> Scenario:
    """Return the scenario of a table. ``path`` is named in errors; files of rates are looked for beside it.

    ``queues`` are added: those of a directory (:mod:`warren.simulation.whatif`).
    """
    try:
        _check_values(table, "", 0)
        _check_top(table)
        table = _with_places(table, "" if path is None else os.path.dirname(os.fspath(path)))
        if queues:
            with inside("queues"):
                own = parts(table.get("queues", ()), QueueSpec)
            table["queues"] = merged(own, queues)
        return part(table, Scenario)
    except ScenarioError as error:
        raise _in_file(path, error) from None


def _check_values(value: Any, key: str, depth: int) -> None:
    """Raise ScenarioError if there is a value that no key can have."""
    if depth > _DEEPEST:
        raise ScenarioError(f"{key:.100}: is nested too deep")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str) or not name.isprintable():
                raise ScenarioError(under(key, f": a key must be a text that can be printed, not {shown(name)}"))
            _check_values(inner, under(key, name), depth + 1)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _check_values(inner, f"{key}[{index}]", depth + 1)
    elif isinstance(value, int) and not isinstance(value, bool):
        if not -_LARGEST <= value < _LARGEST:
            raise ScenarioError(f"{key} must be a number of 64 bits, not {shown(value)}")
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ScenarioError(f"{key} must be a text of whole characters, not {shown(value)}") from None


def _check_top(table: Any) -> None:
    """Raise ScenarioError for a key at the top that belongs elsewhere. The error says where."""
    if not isinstance(table, Mapping):
        raise ScenarioError(f"a scenario must be a table, not {shown(table)}")
    scenario_fields = [field.name for field in attrs.fields(Scenario)]
    node_fields = [field.name for field in attrs.fields(NodeSpec)]
    for key, value in table.items():
        if key not in scenario_fields and key in node_fields:
            raise ScenarioError(f"{key}: stands in the table [node]")
        if key not in scenario_fields and isinstance(value, Mapping | list) and nearest(key, scenario_fields) in _LISTS:
            raise ScenarioError(f"{key}: there is no such table; the nearest is [[{nearest(key, scenario_fields)}]]")
        if key in _LISTS and isinstance(value, Mapping):
            raise ScenarioError(f"{key} must be a list of tables, each [[{key}]], not one [{key}]")


_LISTS: Final = ("queues", "publishers", "consumers", "events")


def _with_places(table: Mapping[str, Any], folder: str) -> Table:
    """Return the table with paths that are right from here, and with the queue of each record."""
    placed = dict(table)
    for key, inner in (("publishers", "rate"), ("consumers", "record")):
        users = table.get(key)
        if isinstance(users, list | tuple):
            placed[key] = [_with_place(user, inner, folder) for user in users]
    return placed


def _with_place(user: Any, key: str, folder: str) -> Any:
    """Return a publisher or a consumer. Under ``key`` it may name a file."""
    inner_table = user.get(key) if isinstance(user, Mapping) else None
    if not isinstance(inner_table, Mapping):
        return user
    resolved = {
        name: os.path.join(folder, value) if name in _FILES and isinstance(value, str) and value else value
        for name, value in inner_table.items()
    }
    if "record" in resolved and isinstance(user.get("queue"), str):
        resolved.setdefault("queue", user["queue"])
    return {**user, key: resolved}


# ── and back ────────────────────────────────────────────────────────────────────────────────────────────────────────


def table_of(scenario: Scenario) -> Table:
    """Return the table of a scenario, without what is ``None``. Traces are in it themselves, not as files."""
    return {name: value for name, value in _plain(scenario).items() if value not in ([], "")}


def _plain(value: Any) -> Any:
    match value:
        case Constant():
            return value.rate
        case Bursts():
            times = {"every": value.every_s, "lasting": value.lasting_s, "first": value.first_s}
            return {"bursts": {"base": value.base, "peak": value.peak, **times}}
        case Daily():
            return {"daily": [list(point) for point in value.points]}
        case ConstantSize():
            return value.size
        case LognormalSize():
            return {"lognormal": {"median": value.median, "sigma": value.sigma}}
        case EmpiricalSize():
            return {"empirical": [list(pair) for pair in zip(value.sizes, value.weights, strict=True)]}
        case tuple() | list():
            return [_plain(inner) for inner in value]
        case Mapping():
            return {key: _plain(inner) for key, inner in value.items()}
    if type(value).__module__ in _SPECS:
        inner = {field.name: _plain(getattr(value, field.name)) for field in attrs.fields(type(value))}
        return {name: field_value for name, field_value in inner.items() if field_value is not None}
    return value


_SPECS: Final = (Scenario.__module__, NodeSpec.__module__)


# ── other values in a table ─────────────────────────────────────────────────────────────────────────────────────────


def vary(table: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
    """Return a copy of the table with other values: ``{"node.paging_ratio": 0.3, "publishers[0].rate": 50}``.

    A key is a path. A dot leads into a table, and a number from 0 on to one item of a list. Without a number, all items
    are meant (``publishers.rate``). Whether the key exists and may have that value shows when a scenario is made of the
    table. Raises ScenarioError if a key leads nowhere.
    """
    changed: Table = copy.deepcopy(dict(table))
    for key, value in changes.items():
        changed = _changed(changed, "", [_step(step, key) for step in key.split(".")], key, value)
    return changed


def _changed(holder: Mapping[str, Any], where: str, steps: Sequence[_Step], key: str, value: Any) -> Table:
    """Return a copy of the table ``holder`` with another value at the end of ``steps``. Errors call it ``where``."""
    (name, index), *further = steps
    path, current = under(where, name), holder.get(name)

    def inner(item: Any, place: str) -> Any:
        if not further:
            return copy.deepcopy(value)
        if not isinstance(item, Mapping):
            raise ScenarioError(f"{key}: {place} is no table, but {shown(item)}")
        return _changed(item, place, further, key, value)

    if index is None and (not further or isinstance(current, Mapping)):
        return {**holder, name: inner(current, path)}
    if index is None and name not in holder and name not in _LISTS:
        return {**holder, name: inner({}, path)}
    if current is None or current in ([], ()):
        raise ScenarioError(f"{key}: the scenario has no {path}")
    if not isinstance(current, list | tuple):
        raise ScenarioError(f"{key}: {path} is no {'list' if index is not None else 'table'}, but {shown(current)}")
    if index is not None and index >= len(current):
        raise ScenarioError(f"{key}: {path} has {len(current)} items, numbered from 0")
    items = list(current)
    for number in range(len(items)) if index is None else (index,):
        items[number] = inner(items[number], f"{path}[{number}]")
    return {**holder, name: items}


_Step = tuple[str, int | None]
"""A key of a table, and the number of an item if the key holds a list."""


def _step(step: str, key: str) -> _Step:
    match = _KEY.fullmatch(step)
    if match is None:
        raise ScenarioError(f"{shown(key)} is no key such as 'node.paging_ratio' or 'publishers[0].rate'")
    return match[1], None if match[2] is None else int(match[2])
