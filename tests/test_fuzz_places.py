"""Files that a sound writer wrote with something wrong in it: any other value in any one place, and each left out.

What is damaged by bytes (:mod:`tests.test_fuzz`) is mostly no JSON, TOML or Erlang term any more, and goes no further.
"""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pytest

from tests.fuzz.table import TARGETS
from tests.support.tried import Count, Tried
from warren.storage import erlang_terms
from warren.storage.erlang_terms import Atom, ImproperList
from warren.storage.errors import TermError

OTHERS: Final[tuple[Any, ...]] = (
    *(None, True, 0, -1, 1 << 70, 0.5, "", "x", "\ud800", "\0", "x" * 5000),
    *([], [None], [[]], {}, {"x": 1}),
)
OTHER_TERMS: Final[tuple[Any, ...]] = (
    *(Atom("undefined"), Atom("x"), True, 0, -1, 1 << 70, 0.5, b"", b"x" * 5000, [], [1, 2], [[]], {}),
    *((), (Atom("x"),), (1, 2, 3, 4), {Atom("a"): 1}, ImproperList((1,), 2)),
)


def with_others(value: Any, others: Iterable[Any]) -> Iterator[Any]:
    """The value with each of ``others`` in each place, with each entry left out, and with one too many."""
    yield from others
    if isinstance(value, ImproperList):
        return
    if isinstance(value, list | tuple):
        made = type(value)
        yield made([*value, 1])
        for index, item in enumerate(value):
            yield made([*value[:index], *value[index + 1 :]])
            for other in with_others(item, others):
                yield made([*value[:index], other, *value[index + 1 :]])
    elif isinstance(value, dict):
        yield value | {"x": 1}
        for key, item in value.items():
            yield {name: kept for name, kept in value.items() if name != key}
            for other in with_others(item, others):
                yield value | {key: other}


def of_json(seed: bytes) -> Iterator[bytes]:
    """Variants of JSON, or of lines of it; but not of RocketMQ's tables with numbers for names."""
    try:
        yield from (json.dumps(other).encode() for other in with_others(json.loads(seed), OTHERS))
    except ValueError:
        lines = seed.splitlines()
        for index, line in enumerate(lines):
            with contextlib.suppress(ValueError):
                for other in with_others(json.loads(line), OTHERS):
                    yield b"\n".join([*lines[:index], json.dumps(other).encode(), *lines[index + 1 :]])


def of_toml(seed: bytes) -> Iterator[bytes]:
    for other in with_others(tomllib.loads(seed.decode()), OTHERS):
        if isinstance(other, dict):
            yield "\n".join(f"{json.dumps(key)} = {_toml(value)}" for key, value in other.items()).encode()


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml(item)}' for key, item in value.items())}}}"
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list) else json.dumps(value)


def of_terms(seed: bytes) -> Iterator[bytes]:
    for other in with_others(erlang_terms.decode(seed), OTHER_TERMS):
        with contextlib.suppress(TermError):  # the text is invalid
            yield erlang_terms.encode(other)


PLACES: Final[dict[str, Callable[[bytes], Iterator[bytes]]]] = {
    "consumer-offsets": of_json,
    "topics-json": of_json,
    "definitions-file": of_json,
    "definitions-sound": of_json,
    "definitions-log": of_json,
    "definitions-import": of_json,
    "shovel-progress": of_json,
    "export-jsonl": of_json,
    "settings": of_toml,
    "scenario": of_toml,
    "message": of_terms,
    "quorum-entry": of_terms,
    "quorum-indexes": of_terms,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLACES)
def test_any_value_in_any_place_is_refused_or_read(name: str, tried: Count) -> None:
    target, count = TARGETS[name], 0
    for seed in target.seeds():
        for data in PLACES[name](seed):
            count += 1
            try:
                target.run(data)
            except Exception as error:
                raise AssertionError(f"{name}: {data[:1000]!r}") from error
    assert count > 30
    tried(Tried.DAMAGED_FILES, count)
