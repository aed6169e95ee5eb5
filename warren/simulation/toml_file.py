"""Scenario files: TOML with the names of :mod:`warren.simulation.scenario`.

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

A file is right as a whole or not taken at all: :class:`~warren.simulation.units.ScenarioError` names the file, the key
and the reason.
"""

from __future__ import annotations

import copy
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

import attrs

from warren.simulation.forms import nearest, part, parts, under
from warren.simulation.node_spec import NodeSpec
from warren.simulation.rates import Bursts, Constant, Daily
from warren.simulation.scenario import QueueSpec, Scenario
from warren.simulation.sizes import ConstantSize, EmpiricalSize, LognormalSize
from warren.simulation.units import ScenarioError, shown
from warren.simulation.whatif import merged

Table = dict[str, Any]
EXAMPLE: Final = (resources.files("warren.data") / "scenario.toml").read_text(encoding="utf-8")
"""A scenario file with comments."""

SCENARIOS: Final = resources.files("warren.data") / "scenarios"
"""Known situations, which a scenario's name stands for where there is no file of that name."""

MOST_FILE_BYTES: Final = 16 << 20
_LARGEST: Final = 1 << 63
_DEEPEST: Final = 16
_FILES: Final = ("trace", "record")
"""Keys of a rate that name a file."""
_KEY: Final = re.compile(r"(\w[\w-]*)(?:\[([0-9]{1,7})\])?")


# ── from files ──────────────────────────────────────────────────────────────────────────────────────────────────────


def load_scenario(path: str | os.PathLike[str], *, queues: Sequence[QueueSpec] = ()) -> Scenario:
    """The scenario in a file, or a known situation by its name: :func:`names_of_scenarios`.

    ``queues``: more of them, of a directory (:mod:`warren.simulation.whatif`).
    """
    return scenario_from_table(load_table(path), path, queues=queues)


def load_table(path: str | os.PathLike[str]) -> Table:
    """A file's table as it stands there: nothing is known of its keys yet."""
    name = os.fspath(path)
    if not os.path.exists(name) and name in names_of_scenarios():
        return _parsed((SCENARIOS / f"{name}.toml").read_bytes(), name)
    try:
        if not os.path.isfile(name):
            raise ScenarioError(f"{name}: {'no file' if os.path.exists(name) else 'there is no such file'}")
        if os.path.getsize(name) > MOST_FILE_BYTES:
            raise ScenarioError(f"{name}: more than {MOST_FILE_BYTES} bytes are no scenario")
        data = Path(name).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ScenarioError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return _parsed(data, name)


def names_of_scenarios() -> list[str]:
    """The situations that come with warren."""
    return sorted(file.name.removesuffix(".toml") for file in SCENARIOS.iterdir() if file.name.endswith(".toml"))


def scenario_from_toml(text: str, path: str | os.PathLike[str] | None = None) -> Scenario:
    """The scenario that a text stands for; ``path`` is for what errors say, and for where files of rates are."""
    return scenario_from_table(_parsed(text.encode(errors="surrogatepass"), None if path is None else str(path)), path)


def _parsed(data: bytes, path: str | None) -> Table:
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # not text, no TOML, a number of 5,000 digits; nested too deep
        raise _in_file(path, f"no TOML: {error}") from None


def _in_file(path: object, said: object) -> ScenarioError:
    return ScenarioError(str(said) if path is None else f"{os.fspath(path)}: {said}")  # type: ignore[call-overload]


# ── from tables ─────────────────────────────────────────────────────────────────────────────────────────────────────


def scenario_from_table(
    table: Mapping[str, Any], path: str | os.PathLike[str] | None = None, *, queues: Sequence[QueueSpec] = ()
) -> Scenario:
    """The scenario that a table stands for; ``path`` is for what errors say, and for where files of rates are.

    ``queues``: more of them, of a directory (:mod:`warren.simulation.whatif`).
    """
    try:
        _check_values(table, "", 0)
        _check_top(table)
        table = _with_places(table, "" if path is None else os.path.dirname(os.fspath(path)))
        if queues:
            table["queues"] = merged(_named_queues(table), queues)
        return part(Scenario, table)
    except ScenarioError as error:
        raise _in_file(path, error) from None


def _check_values(value: Any, key: str, depth: int) -> None:
    """Raise ScenarioError where there is something that no key can mean."""
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
    """A key at the top that belongs elsewhere is easier to find than the nearest of its name."""
    if not isinstance(table, Mapping):
        raise ScenarioError(f"a scenario must be a table, not {shown(table)}")
    own = [field.name for field in attrs.fields(Scenario)]
    of_node = [field.name for field in attrs.fields(NodeSpec)]
    for key, value in table.items():
        if key not in own and key in of_node:
            raise ScenarioError(f"{key}: stands in the table [node]")
        if key not in own and isinstance(value, Mapping | list) and nearest(key, own) in _LISTS:
            raise ScenarioError(f"{key}: there is no such table; the nearest is [[{nearest(key, own)}]]")
        if key in _LISTS and isinstance(value, Mapping):
            raise ScenarioError(f"{key} must be a list of tables, each [[{key}]], not one [{key}]")


_LISTS: Final = ("queues", "publishers", "consumers", "events")


def _named_queues(table: Table) -> tuple[QueueSpec, ...]:
    try:
        return parts(QueueSpec, table.get("queues", ()))
    except ScenarioError as error:
        raise ScenarioError(under("queues", error)) from None


def _with_places(table: Mapping[str, Any], folder: str) -> Table:
    """The table with its rates' and records' files as they are found from here, and with the queue that is meant."""
    placed = dict(table)
    for key, inner in (("publishers", "rate"), ("consumers", "record")):
        users = table.get(key)
        if isinstance(users, list | tuple):
            placed[key] = [_with_place(user, inner, folder) for user in users]
    return placed


def _with_place(user: Any, key: str, folder: str) -> Any:
    """A publisher or a consumer; ``key``: where it may name a file."""
    held = user.get(key) if isinstance(user, Mapping) else None
    if not isinstance(held, Mapping):
        return user
    found = {
        name: os.path.join(folder, value) if name in _FILES and isinstance(value, str) and value else value
        for name, value in held.items()
    }
    if "record" in found and isinstance(user.get("queue"), str):
        found.setdefault("queue", user["queue"])
    return {**user, key: found}


# ── and back ────────────────────────────────────────────────────────────────────────────────────────────────────────


def table_of(scenario: Scenario) -> Table:
    """The table of a scenario; what is ``None`` is left out. Traces stand in it as they are, not as their files."""
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
        return {name: each for name, each in inner.items() if each is not None}
    return value


_SPECS: Final = (Scenario.__module__, NodeSpec.__module__)


# ── other values in a table ─────────────────────────────────────────────────────────────────────────────────────────


def vary(table: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
    """A copy of the table with other values: ``{"node.paging_ratio": 0.3, "publishers[0].rate": 50}``.

    A key names its way: through tables with a dot, to one item of a list by its number from 0, to all of them without
    (``publishers.rate``). Whether there is such a key and may have such a value is found out when a scenario is made
    of the table. Raises ScenarioError where a key leads nowhere.
    """
    changed = copy.deepcopy(dict(table))
    for key, value in changes.items():
        steps = key.split(".")
        holders = list(_held(changed, steps[:-1], key))
        for holder, where in holders:
            _set(holder, where, steps[-1], key, value)
    return changed


def _held(table: Table, steps: list[str], key: str) -> Iterator[tuple[Table, str]]:
    """The tables that a way leads to, each with how it is called."""
    places: list[tuple[Table, str]] = [(table, "")]
    for step in steps:
        places = [inner for holder, where in places for inner in _stepped(holder, where, step, key)]
    yield from places


def _stepped(holder: Table, where: str, step: str, key: str) -> list[tuple[Table, str]]:
    name, index = _step(step, key)
    called = under(where, name)
    if index is None and name not in holder and name not in _LISTS:
        holder[name] = {}
    found: Any = holder.get(name)
    if isinstance(found, list | tuple):
        found = holder[name] = [dict(item) if isinstance(item, Mapping) else item for item in found]
    elif isinstance(found, Mapping):
        found = holder[name] = dict(found)
    if isinstance(found, dict) and index is None:
        return [(found, called)]
    numbers = _numbers(found, index, called, key)
    for number in numbers:
        if not isinstance(found[number], dict):
            raise ScenarioError(f"{key}: {called}[{number}] is no table, but {shown(found[number])}")
    return [(found[number], f"{called}[{number}]") for number in numbers]


def _numbers(found: Any, index: int | None, called: str, key: str) -> list[int]:
    """Which items of a list are meant."""
    if found is None or found == []:
        raise ScenarioError(f"{key}: the scenario has no {called}")
    if not isinstance(found, list):
        raise ScenarioError(f"{key}: {called} is no {'list' if index is not None else 'table'}, but {shown(found)}")
    if index is None:
        return list(range(len(found)))
    if index >= len(found):
        raise ScenarioError(f"{key}: {called} has {len(found)} items, numbered from 0")
    return [index]


def _set(holder: Table, where: str, step: str, key: str, value: Any) -> None:
    name, index = _step(step, key)
    if index is None:
        holder[name] = copy.deepcopy(value)
        return
    found: Any = holder.get(name)
    if isinstance(found, tuple):
        found = list(found)
    [number] = _numbers(found, index, under(where, name), key)
    holder[name] = [*found[:number], copy.deepcopy(value), *found[number + 1 :]]


def _step(step: str, key: str) -> tuple[str, int | None]:
    matched = _KEY.fullmatch(step)
    if matched is None:
        raise ScenarioError(f"{key!r} is no key such as 'node.paging_ratio' or 'publishers[0].rate'")
    return matched[1], None if matched[2] is None else int(matched[2])
