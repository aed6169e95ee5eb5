"""Messages that are appended to a topic together: what is handed over, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import attrs

from warren.actors.engines.topics.routing import Part
from warren.actors.runtime.future import Confirm
from warren.actors.topics.log_intake import AppendResult
from warren.msg_store.commit_log.commit_log import Appended
from warren.values.topic_record import Origin


class AppendResults(Sequence[AppendResult]):
    """Where the messages of one :meth:`Topic.append_many` went, in their order."""

    __slots__ = ("_parts", "_places", "_topic")

    def __init__(self, topic: str, parts: list[Part], appended: list[Appended]) -> None:
        self._topic = topic
        self._parts = list(zip(parts, appended, strict=True))
        self._places: list[tuple[int, int]] | None = None

    def __len__(self) -> int:
        return sum(len(part.positions) for part, _ in self._parts)

    @overload
    def __getitem__(self, index: int) -> AppendResult: ...

    @overload
    def __getitem__(self, index: slice) -> list[AppendResult]: ...

    def __getitem__(self, index: int | slice) -> AppendResult | list[AppendResult]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        if self._places is None:
            places = {
                number: (at, row)
                for at, (part, _) in enumerate(self._parts)
                for row, number in enumerate(part.positions)
            }
            self._places = [places[number] for number in range(len(places))]
        at, row = self._places[index]
        part, appended = self._parts[at]
        return AppendResult(
            self._topic,
            part.queue_id,
            appended.queue_offset + row,
            int(appended.physical_offsets[row]),
            int(appended.sizes[row]),
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)}>"


@attrs.frozen
class Messages:
    """What is to be appended in one go."""

    parts: list[Part]
    bodies: Sequence[bytes]
    properties: bytes | Sequence[bytes]
    """One for all, or one for each."""
    origin: Origin


class AppendManyConfirm:
    """Messages on their way together: answered once all are as safe as the store's mode promises."""

    __slots__ = ("_parts", "_topic", "confirm")

    def __init__(self, topic: str, parts: list[Part], confirm: Confirm) -> None:
        self._topic = topic
        self._parts = parts
        self.confirm = confirm

    @property
    def done(self) -> bool:
        """Whether they are safe, or never will be."""
        return self.confirm.done

    def wait(self, timeout: float | None = None) -> AppendResults:
        """Come back when they are safe, with where they went. Raises ``TimeoutError``, or why they never will be."""
        self.confirm.wait(timeout)
        return self.positions()

    def positions(self) -> AppendResults:
        """Where they went; :attr:`confirm` is answered."""
        return AppendResults(self._topic, self._parts, self.confirm.get())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'failed' if self.confirm.error else 'answered' if self.done else 'pending'}>"
