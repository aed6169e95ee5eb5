"""The options of ``spark.read.format("warren")``, and how the texts that Spark hands over are understood."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, Literal, Self, cast

import attrs

from warren.storage.errors import did_you_mean
from warren.tables.pipeline_errors import PipelineError

DEFAULT_PARTITION_BYTES: Final = 128 << 20
READ_OPTIONS: Final = (
    "batch_bytes",
    "bodies",
    "include_metadata",
    "mode",
    "native_types",
    "partition_bytes",
    "path",
    "paths",
    "raw_bodies",
    "set",
    "skip_others",
    "survey",
    "table",
)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

Mode = Literal["permissive", "failfast"]


@attrs.frozen
class OptionTexts:
    """Options as Spark hands them over. Names may be written in any case, with or without ``_``; values are text.

    A value that cannot be understood raises :class:`PipelineError`, and so does an option that is not known.
    """

    texts: Mapping[str, str]
    """By :meth:`key`."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        return cls({cls.key(name): value for name, value in options.items()})

    @staticmethod
    def key(name: str) -> str:
        """The form of a name that all of its spellings share, Spark's ``partitionBytes`` included."""
        return name.lower().replace("_", "")

    def text(self, name: str) -> str | None:
        """The value as it was given."""
        return self.texts.get(self.key(name))

    def check_known(self, names: Sequence[str], what: str = "unknown") -> None:
        """Raise :class:`PipelineError` for an option that is not one of ``names``."""
        for name in self.texts.keys() - set(map(self.key, names)):
            near = did_you_mean(name, names)
            raise PipelineError(f"option {name!r}: {what}{near or ';'} known are {', '.join(names)}")

    def count(self, name: str, least: int = 1) -> int | None:
        """A whole number."""
        text = self.text(name)
        if text is not None and not (text.isascii() and text.isdecimal() and int(text) >= least):
            raise PipelineError(f"option {name} is {text!r}, not a whole number from {least} on")
        return None if text is None else int(text)

    def byte_count(self, name: str, default: int) -> int:
        """A number of bytes, perhaps with a unit."""
        text = self.text(name)
        if text is None:
            return default
        digits = text.lower().rstrip("b").rstrip("kmg")
        unit = text.lower().rstrip("b")[len(digits) :]
        if not digits.isascii() or not digits.isdecimal() or unit not in _UNITS or not int(digits):
            raise PipelineError(f"option {name} is {text!r}, no number of bytes as 134217728 or 128m")
        return int(digits) * _UNITS[unit]

    def yes_or_no(self, name: str, *, default: bool = True) -> bool:
        """Whether it is true."""
        text = self.text(name)
        text = str(default).lower() if text is None else text.lower()
        if text not in ("true", "false"):
            raise PipelineError(f"option {name} is {text!r}, not true or false")
        return text == "true"


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
    """``failfast``: damage stops the job. Else rows go on after it, and the table ``findings`` says what was lost."""
    bodies: bool = True
    """Whether columns of bodies are filled, or null."""
    raw_bodies: bool = False
    """Whether bodies of topics are as they are stored, and may be compressed."""
    skip_others: bool = False
    """Whether directories that have no such table, or that no broker wrote, are left out, and reported."""
    settings: Mapping[str, str] = attrs.Factory(dict)
    """A RocketMQ's settings that its files do not tell, as ``--set`` has them: option ``set``, ``name=value`` with
    commas between."""
    survey: str = ""
    """What is known of RocketMQ stores already, or a file that says it: see :mod:`warren.tables.survey`."""

    @staticmethod
    def paths_of(options: OptionTexts) -> tuple[str, ...]:
        """The paths to load."""
        texts = options.texts
        return tuple(json.loads(texts["paths"])) if "paths" in texts else (texts["path"],) if "path" in texts else ()

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Parse options. Raises :class:`PipelineError` for an unknown option or an invalid value."""
        option_texts = OptionTexts.of(options)
        option_texts.check_known(READ_OPTIONS)
        texts = option_texts.texts
        paths = cls.paths_of(option_texts)
        if not paths:
            raise PipelineError("no path to load")
        mode = texts.get("mode", "permissive").lower()
        if mode not in ("permissive", "failfast"):
            raise PipelineError(f"option mode is {mode!r}, not permissive or failfast")
        return cls(
            paths=paths,
            table=texts.get("table", ""),
            partition_bytes=option_texts.byte_count("partition_bytes", DEFAULT_PARTITION_BYTES),
            batch_bytes=option_texts.byte_count("batch_bytes", 8 << 20),
            mode=cast(Mode, mode),
            bodies=option_texts.yes_or_no("bodies"),
            raw_bodies=option_texts.yes_or_no("raw_bodies", default=False),
            skip_others=option_texts.yes_or_no("skip_others", default=False),
            settings=_settings(texts.get("set", "")),
            survey=texts.get("survey", ""),
        )


def _settings(text: str) -> dict[str, str]:
    settings = {}
    for assignment in filter(None, text.split(",")):
        name, equals, value = assignment.partition("=")
        if not (name and equals and value):
            raise PipelineError(f"option set: expected name=value, not {assignment!r}")
        settings[name.strip()] = value.strip()
    return settings
