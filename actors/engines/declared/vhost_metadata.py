"""A vhost's metadata: a description, tags, and the default queue type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs

from warren.actors.engines.declared.texts import check_depth, check_texts
from warren.actors.engines.errors import ArgumentsError


@attrs.frozen(kw_only=True)
class VhostMetadata:
    """The metadata of one vhost, for people and their tools. Raises :class:`ArgumentsError` for invalid values."""

    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: str | None = None
    """Stored, without effect."""

    def __attrs_post_init__(self) -> None:
        for field, value, is_right in (
            ("description", self.description, isinstance(self.description, str)),
            ("tags", self.tags, isinstance(self.tags, tuple) and all(isinstance(tag, str) for tag in self.tags)),
            ("default_queue_type", self.default_queue_type, isinstance(self.default_queue_type, str | None)),
        ):
            if not is_right:
                check_depth(f"a vhost's {field}", value)
                raise ArgumentsError(f"a vhost's {field} cannot be {value!r:.100}")
            check_texts(f"a vhost's {field}", value)

    def to_json(self) -> dict[str, Any]:
        """The ``metadata`` of a vhost in RabbitMQ's definitions."""
        metadata: dict[str, Any] = {"description": self.description, "tags": list(self.tags)}
        return (
            metadata if self.default_queue_type is None else metadata | {"default_queue_type": self.default_queue_type}
        )

    def in_file(self) -> dict[str, Any]:
        """Return the item for the definitions file: as :meth:`to_json`, empty if everything is at its default."""
        return {"metadata": self.to_json()} if self != VhostMetadata() else {}

    @classmethod
    def from_json(cls, vhost: Mapping[str, Any]) -> Self | None:
        """Parse a vhost of RabbitMQ's definitions; ``None`` if it has no metadata. Raises :class:`ArgumentsError`."""
        metadata = vhost.get("metadata") or {}
        if not isinstance(metadata, Mapping):
            raise ArgumentsError(f"a vhost's metadata are an object, not {metadata!r:.100}")
        fields = {name: vhost.get(name, metadata.get(name)) for name in ("description", "tags", "default_queue_type")}
        if all(value is None for value in fields.values()):
            return None
        tags = fields["tags"] or ()
        if isinstance(tags, str):
            tags = [tag.strip() for tag in tags.split(",")] if tags not in ("null", "undefined") else ()
        return cls(
            description="" if fields["description"] is None else fields["description"],
            tags=tuple(tags) if isinstance(tags, list) else tags,
            default_queue_type=fields["default_queue_type"],
        )
