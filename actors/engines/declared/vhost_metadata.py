"""A vhost's metadata: a description, tags, and the default queue type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs

from warren.actors.engines.declared.texts import check_depth, check_texts
from warren.actors.engines.errors import ArgumentsError


@attrs.frozen(kw_only=True)
class VhostMetadata:
    """Of one vhost; for people and their tools. Making one raises :class:`ArgumentsError` for what it cannot be."""

    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: str | None = None
    """Kept, and nothing more."""

    def __attrs_post_init__(self) -> None:
        for what, value, is_right in (
            ("description", self.description, isinstance(self.description, str)),
            ("tags", self.tags, isinstance(self.tags, tuple) and all(isinstance(tag, str) for tag in self.tags)),
            ("default_queue_type", self.default_queue_type, isinstance(self.default_queue_type, str | None)),
        ):
            if not is_right:
                check_depth(f"a vhost's {what}", value)
                raise ArgumentsError(f"a vhost's {what} cannot be {value!r:.100}")
            check_texts(f"a vhost's {what}", value)

    def to_json(self) -> dict[str, Any]:
        """The ``metadata`` of a vhost in RabbitMQ's definitions."""
        said: dict[str, Any] = {"description": self.description, "tags": list(self.tags)}
        return said if self.default_queue_type is None else said | {"default_queue_type": self.default_queue_type}

    def in_file(self) -> dict[str, Any]:
        """Return the item for the definitions file: as :meth:`to_json`, empty if everything is at its default."""
        return {"metadata": self.to_json()} if self != VhostMetadata() else {}

    @classmethod
    def from_json(cls, vhost: Mapping[str, Any]) -> Self | None:
        """Of a vhost in RabbitMQ's definitions; ``None`` where they say nothing. Raises :class:`ArgumentsError`."""
        metadata = vhost.get("metadata") or {}
        if not isinstance(metadata, Mapping):
            raise ArgumentsError(f"a vhost's metadata are an object, not {metadata!r:.100}")
        said = {name: vhost.get(name, metadata.get(name)) for name in ("description", "tags", "default_queue_type")}
        if all(value is None for value in said.values()):
            return None
        tags = said["tags"] or ()
        if isinstance(tags, str):
            tags = [tag.strip() for tag in tags.split(",")] if tags not in ("null", "undefined") else ()
        return cls(
            description="" if said["description"] is None else said["description"],
            tags=tuple(tags) if isinstance(tags, list) else tags,
            default_queue_type=said["default_queue_type"],
        )
