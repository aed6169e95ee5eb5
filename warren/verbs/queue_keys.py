"""The publish keys of a queue: what its messages have in common, made of a publish's properties."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.queue.intake import PublishKey
from warren.queue_index.message.message_format import MAX_FRAGMENT_BYTES, content_of
from warren.queue_index.properties import encode_values
from warren.values.messages import (
    NOTHING_SHARED,
    SHARED,
    Shared,
    columns_of,
    content_key,
    publish_key,
    publish_values,
)

_CACHED_KEYS: Final = 16
_OWN: Final = frozenset({"headers", "message_id", "correlation_id", "timestamp"})

Part = tuple[PublishKey, list[bytes]]
"""Messages that are handed over together: their key, and their bodies or contents."""


class QueueKeys:
    """Makes publish keys, and keeps the last few, as most publishers reuse theirs."""

    def __init__(self, declaration: QueueDeclaration, *, contents: bool) -> None:
        """``contents``: messages whose properties differ can be handed over together, as contents."""
        self._declaration = declaration
        self._takes_contents = contents
        self.plain = self._new_key({})
        """The publish key of a body without properties."""
        self._keys: dict[tuple[tuple[str, object], ...], PublishKey] = {}
        self._content_keys: dict[Shared, PublishKey] = {}

    def key(self, properties: Mapping[str, Any]) -> PublishKey:
        """Return the publish key of bodies with these properties."""
        if not properties:
            return self.plain
        given = tuple(properties.items())
        try:
            key = self._keys.get(given)
        except TypeError:  # headers
            return self._new_key(properties)
        if key is None:
            key = self._new_key(properties)
            if len(self._keys) >= _CACHED_KEYS:
                self._keys = {}
            self._keys[given] = key
        return key

    def keyed(self, body: bytes, properties: Mapping[str, Any]) -> tuple[PublishKey, bytes]:
        """Return the publish key of a message and what to hand over: its body, or its content if it has properties that
        usually differ from message to message."""
        if not self._takes_contents or _OWN.isdisjoint(properties) or len(body) > MAX_FRAGMENT_BYTES:
            return self.key(properties), body
        if SHARED.isdisjoint(properties):
            return self._content_key(NOTHING_SHARED), content_of(
                encode_values({**properties, "delivery_mode": 2}), body
            )
        values, shared = publish_values(properties)
        return self._content_key(shared), content_of(encode_values(values), body)

    def parts(self, bodies: list[bytes], properties: Mapping[str, Any]) -> Iterator[Part]:
        """Split messages into parts that are handed over together. A property that is a list has a value for each."""
        columns = columns_of(properties, len(bodies))
        if not columns and len(bodies) == 1:
            key, given = self.keyed(bodies[0], properties)
            yield key, [given]
        elif not columns:
            key = self.key(properties)  # raises what is wrong with them, even if there are no bodies
            if bodies:
                yield key, bodies
        elif self._takes_contents:
            yield from self._parts_of_contents(bodies, properties, columns)
        else:
            for at, body in enumerate(bodies):
                yield self.key({**properties, **{name: column[at] for name, column in columns.items()}}), [body]

    def _parts_of_contents(
        self, bodies: list[bytes], properties: Mapping[str, Any], columns: Mapping[str, list[Any]]
    ) -> Iterator[Part]:
        from warren.queue_index.message.content_columns import contents_of_columns

        values, shared = publish_values({name: value for name, value in properties.items() if name not in columns})
        low = 0
        large = [index for index, size in enumerate(map(len, bodies)) if size > MAX_FRAGMENT_BYTES]
        for high in (*large, len(bodies)):
            if low < high:
                part = {name: column[low:high] for name, column in columns.items()}
                yield self._content_key(shared), contents_of_columns(values, part, bodies[low:high])
            if high < len(bodies):  # a large body is handed over separately
                own = {name: column[high] for name, column in columns.items()}
                yield self.key({**properties, **own}), [bodies[high]]
            low = high + 1

    def _content_key(self, shared: Shared) -> PublishKey:
        key = self._content_keys.get(shared)
        if key is None:
            if len(self._content_keys) >= _CACHED_KEYS:
                self._content_keys = {}
            declaration = self._declaration
            key = self._content_keys[shared] = content_key(declaration.vhost, "", declaration.name, shared)
        return key

    def _new_key(self, properties: Mapping[str, Any]) -> PublishKey:
        return publish_key(self._declaration.vhost, "", (self._declaration.name,), properties)
