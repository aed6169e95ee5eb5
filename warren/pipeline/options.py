"""The options of ``spark.read.format("warren")``, under the names that a user writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, Literal, Self, cast

import attrs

from warren.pipeline.errors import PipelineError

DEFAULT_PARTITION_BYTES: Final = 128 << 20
_KNOWN: Final = frozenset(
    {"path", "paths", "table", "partition_bytes", "batch_bytes", "mode", "bodies", "set", "survey"}
)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

Mode = Literal["permissive", "failfast"]


@attrs.frozen(kw_only=True)
class ReadOptions:
    """What to read, and how."""

    paths: tuple[str, ...]
    table: str
    partition_bytes: int = DEFAULT_PARTITION_BYTES
    """Of files, about, that one task reads."""
    batch_bytes: int = 8 << 20
    """Of files, about, that one Arrow batch is made of."""
    mode: Mode = "permissive"
    """``failfast``: damage stops the job. Else rows go on behind it, and the table ``findings`` says what was lost."""
    bodies: bool = True
    """Whether columns of bodies are filled, or null."""
    settings: Mapping[str, str] = attrs.Factory(dict)
    """A RocketMQ's settings that its files do not tell, as ``--set`` has them: option ``set``, ``name=value`` with
    commas between."""
    survey: str = ""
    """What is known of RocketMQ stores already, or a file that says it: see :mod:`warren.pipeline.survey`."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Raises :class:`PipelineError` for an option that is not known, or has no such value."""
        said = {name.lower(): value for name, value in options.items()}
        for name in said.keys() - _KNOWN:
            raise PipelineError(f"option {name!r}: there is none; known are {', '.join(sorted(_KNOWN))}")
        paths = tuple(json.loads(said["paths"])) if "paths" in said else (said["path"],) if "path" in said else ()
        if not paths:
            raise PipelineError("no path to load")
        mode = said.get("mode", "permissive").lower()
        if mode not in ("permissive", "failfast"):
            raise PipelineError(f"option mode is {mode!r}, not permissive or failfast")
        return cls(
            paths=paths,
            table=said.get("table", ""),
            partition_bytes=_byte_count(said, "partition_bytes", DEFAULT_PARTITION_BYTES),
            batch_bytes=_byte_count(said, "batch_bytes", 8 << 20),
            mode=cast(Mode, mode),
            bodies=_yes_or_no(said, "bodies", default=True),
            settings=_settings(said.get("set", "")),
            survey=said.get("survey", ""),
        )


def _byte_count(said: Mapping[str, str], name: str, default: int) -> int:
    text = said.get(name)
    if text is None:
        return default
    digits = text.lower().rstrip("b").rstrip("kmg")
    unit = text.lower().rstrip("b")[len(digits) :]
    if not digits.isascii() or not digits.isdecimal() or unit not in _UNITS or not int(digits):
        raise PipelineError(f"option {name} is {text!r}, no number of bytes as 134217728 or 128m")
    return int(digits) * _UNITS[unit]


def _yes_or_no(said: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = said.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise PipelineError(f"option {name} is {text!r}, not true or false")
    return text == "true"


def _settings(text: str) -> dict[str, str]:
    found = {}
    for each in filter(None, text.split(",")):
        name, equals, value = each.partition("=")
        if not (name and equals and value):
            raise PipelineError(f"option set: {each!r} wants name=value")
        found[name.strip()] = value.strip()
    return found
