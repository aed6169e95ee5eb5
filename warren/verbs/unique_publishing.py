"""Messages with keys: the keys of a publish, and the way of its messages to a queue.

``unique`` is a key, text, bytes or a number; or ``True``, which is the body itself. While a message with a key is in
the queue no other one is stored; with ``unique_for``, for that many seconds after the publish. How the queue handles
them is described in :mod:`warren.actors.queue.unique_publisher`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import attrs

from warren.actors.engines.key_table import digest_of, key_of, key_of_body
from warren.actors.node.admission import Admission
from warren.actors.queue.intake import PublishKey
from warren.actors.queue.queue_intake import QueueIntake
from warren.actors.queue.unique_publisher import Key
from warren.actors.runtime.future import Confirm, CountDown
from warren.storage.errors import MessageError, shown
from warren.values.messages import KEY_ARGUMENTS, MAX_EXPIRATION_S
from warren.verbs.publishing import settled_confirm


@attrs.frozen
class UniqueMessages:
    """Messages of one publish that may have keys."""

    bodies: list[bytes]
    properties: Mapping[str, Any]
    """As they were given, with the keys."""
    several: bool
    """Whether ``unique`` is a list with a key for each."""
    keys: list[Key | None]
    """The key of each message."""
    rest: dict[str, Any]
    """The properties without the keys."""

    @classmethod
    def of(cls, bodies: list[bytes], properties: Mapping[str, Any], *, several: bool) -> Self:
        """Find the keys. Raises :class:`MessageError`."""
        return cls(bodies, properties, several, *_keys_of(properties, bodies, several=several))


def _keys_of(
    properties: Mapping[str, Any], bodies: Sequence[bytes], *, several: bool
) -> tuple[list[Key | None], dict[str, Any]]:
    unique, for_us = properties.get("unique"), _period_us(properties.get("unique_for"))
    rest = {name: value for name, value in properties.items() if name not in KEY_ARGUMENTS}
    if unique is not None and (rest.get("delay") is not None or rest.get("at") is not None):
        raise MessageError("a message that comes later has no key: unique goes with neither delay nor at")
    if unique is None or unique is False:
        if for_us:
            raise MessageError("unique_for says how long a key is taken; the key is unique")
        return [None] * len(bodies), rest
    if unique is True:
        return [Key(digest_of(key_of_body(body)), for_us) for body in bodies], rest
    if not several:
        return [_key(unique, for_us)], rest
    if not isinstance(unique, list):
        raise MessageError("of many messages unique is a list with a key for each, or True: their bodies")
    if len(unique) != len(bodies):
        raise MessageError(f"unique of {len(unique)} messages, and {len(bodies)} bodies")
    keys = zip(unique, bodies, strict=True)
    return [
        None
        if value is None or value is False
        else Key(digest_of(key_of_body(body)), for_us)
        if value is True
        else _key(value, for_us)
        for value, body in keys
    ], rest


def _key(value: object, for_us: int) -> Key:
    try:
        key = None if isinstance(value, (float, bool)) else key_of(value)
    except UnicodeEncodeError as error:
        raise MessageError(f"a key cannot be {shown(value)}: {error.reason}") from None
    if key is None:
        raise MessageError(f"a key is text, bytes or a whole number, not {shown(value)}")
    if not value and value != 0:
        raise MessageError("a key that is empty is every message's")
    return Key(digest_of(key), for_us)


def _period_us(period: object) -> int:
    if period is None:
        return 0
    if not isinstance(period, (int, float)) or isinstance(period, bool):
        raise MessageError(f"unique_for is a number of seconds, not {shown(period)}")
    if not 0 < period <= MAX_EXPIRATION_S:
        raise MessageError(f"unique_for is more than 0 and at most {MAX_EXPIRATION_S:.0f} seconds, not {period}")
    return max(round(period * 1_000_000), 1)


def publishing_unique(
    find: Callable[[], QueueIntake],
    key: PublishKey,
    bodies: list[bytes],
    keys: Sequence[Key | None],
    *,
    block: bool,
    timeout: float | None,
    passes_alarms: bool = False,
) -> Admission:
    """Give messages to a queue. The answer is their confirm."""

    def give(intakes: Sequence[QueueIntake], reserved_bytes: int, here: bool) -> Confirm:
        return intakes[0].publish_unique(key, bodies, keys, reserved_bytes, here=here)

    return Admission(
        lambda: (find(),), lambda _: key.size_bytes(bodies), give, block, timeout, passes_alarms=passes_alarms
    )


class UniqueCountDown(CountDown):
    """The confirm of messages that were handed over in several parts."""

    __slots__ = ("_pieces",)

    def __init__(self, confirms: Sequence[Confirm], sizes: Sequence[int]) -> None:
        super().__init__([*confirms])
        self._pieces = list(zip(confirms, sizes, strict=True))

    @property
    def duplicates(self) -> tuple[int, ...]:
        self.get()
        duplicates: list[int] = []
        first = 0
        for confirm, size in self._pieces:
            duplicates += [first + index for index in confirm.duplicates]
            first += size
        return tuple(duplicates)


def of_parts(confirms: Sequence[Confirm], sizes: Sequence[int]) -> Confirm:
    """One confirm for all."""
    if len(confirms) == 1:
        return confirms[0]
    return UniqueCountDown(confirms, sizes) if confirms else settled_confirm()
