"""QueueMessages: the events of a queue's messages, for tests to inspect and to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypedDict, Unpack

import attrs

from warren.actors.engines.queue.queue_log import EVENTS, Event, QueueLog, SeenMessage
from warren.actors.queue.message_log import MessageLog
from warren.storage.call_arguments import checked
from warren.storage.errors import InvalidValueError
from warren.values.messages import as_body
from warren.where import compile_where

Test = Callable[[SeenMessage], bool]
Where = str | Test
_SHOWN: Final = 20


class Such(TypedDict, total=False):
    """Conditions on messages, beside the event: all of them must hold."""

    body: bytes | None
    """Exactly this body."""
    headers: Mapping[str, Any] | None
    """These headers, and maybe others."""
    where: Where | None
    """A condition (:mod:`warren.where`), such as ``"headers['try'] > 1 AND size < 100"``, or a function."""


@attrs.frozen(eq=False, repr=False)
class _Criteria:
    """The criteria of a search for messages."""

    event: Event
    such: Such
    _test: Test | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        if self.event not in EVENTS:
            raise InvalidValueError(f"no {self.event!r} becomes of a message; there is {', '.join(EVENTS)}")
        body, where = self.such.get("body"), self.such.get("where")
        if body is not None:
            as_body(body)
        object.__setattr__(self, "_test", compile_where(where) if isinstance(where, str) else where)

    def takes(self, seen: SeenMessage) -> bool:
        body, headers = self.such.get("body"), self.such.get("headers") or {}
        return (
            self.event in seen.events
            and (body is None or seen.body == body)
            and all(name in seen.headers and seen.headers[name] == value for name, value in headers.items())
            and (self._test is None or self._test(seen))
        )

    def __str__(self) -> str:
        where = self.such.get("where")
        conditions: list[str] = []
        for name in ("body", "headers"):
            if self.such.get(name) is not None:
                conditions.append(f"with {name} {self.such[name]!r}")
        if where is not None:
            conditions.append(f"where {where if isinstance(where, str) else getattr(where, '__name__', where)}")
        return " ".join([self.event, *conditions])


class QueueMessages:
    """The messages that a queue was seen to have. Made by :meth:`warren.testing.TestNode.messages`.

    Waiting takes real time: a program's threads and coroutines need some to get there.
    """

    def __init__(self, log: MessageLog, of_queue: QueueLog, settle: Callable[[], None], vhost: str, queue: str) -> None:
        self._log = log
        self._of_queue = of_queue
        self._settle = settle
        self._name = f"queue '{queue}'" + ("" if vhost == "/" else f" in vhost '{vhost}'")

    def __repr__(self) -> str:
        return f"<warren.testing.{type(self).__name__} of {self._name}>"

    def all(self) -> list[SeenMessage]:
        """Return all messages, in the order in which they came."""
        self._settle()
        return list(self._of_queue.messages)

    @checked
    def of(self, event: Event = "published", **such: Unpack[Such]) -> list[SeenMessage]:
        """Return the messages that this event has happened to until now, in the order in which they came."""
        self._settle()
        return self._matching(_Criteria(event, such))

    @checked
    def expect(self, event: Event = "published", count: int = 1, **such: Unpack[Such]) -> list[SeenMessage]:
        """As :meth:`of`; raise ``AssertionError`` with the history if their number is not ``count`` now."""
        __tracebackhide__ = True
        self._settle()
        messages = self._matching(expected := _Criteria(event, such))
        if len(messages) != count:
            raise AssertionError(self._story(expected, f"{count}", messages))
        return messages

    @checked
    def wait_for(
        self, event: Event = "published", count: int = 1, *, timeout: float = 5.0, **such: Unpack[Such]
    ) -> list[SeenMessage]:
        """Wait until the event has happened to ``count`` messages, or more; return them.

        Raises ``AssertionError`` with the history after ``timeout`` seconds.
        """
        __tracebackhide__ = True
        expected = _Criteria(event, such)
        messages: list[SeenMessage] = []

        def enough() -> bool:
            messages[:] = self._matching(expected)
            return len(messages) >= count

        if not self._log.wait_for(enough, timeout):
            self._settle()  # what was sent in time counts
            if enough():
                return messages
            raise AssertionError(self._story(expected, f"{count} or more", messages, timeout))
        return messages

    @checked
    async def arrived(
        self, event: Event = "published", count: int = 1, *, timeout: float = 5.0, **such: Unpack[Such]
    ) -> list[SeenMessage]:
        """:meth:`wait_for`, for a coroutine: other coroutines of its event loop continue."""
        __tracebackhide__ = True
        expected, changed = _Criteria(event, such), asyncio.Event()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout

        def tell() -> None:
            loop.call_soon_threadsafe(changed.set)

        with self._log.listening(tell):
            while len(messages := self._matching(expected)) < count:
                try:
                    await asyncio.wait_for(changed.wait(), max(deadline - loop.time(), 0))
                except TimeoutError:
                    raise AssertionError(self._story(expected, f"{count} or more", messages, timeout)) from None
                changed.clear()
        return messages

    def _matching(self, expected: _Criteria) -> list[SeenMessage]:
        return [seen for seen in list(self._of_queue.messages) if expected.takes(seen)]

    def _story(
        self, expected: _Criteria, count: str, messages: list[SeenMessage], timeout_s: float | None = None
    ) -> str:
        """Describe what was expected, and what happened instead."""
        within = "" if timeout_s is None else f" within {timeout_s:g} seconds"
        lines = [f"{self._name}: expected {count} {expected}{within}, got {len(messages)}"]
        lines += self._lines("headers" in expected.such)
        if not self._of_queue.messages:
            others = ", ".join(repr(name) for _, name in self._log.queues()[:10])
            lines.append("  no message ever came here" + (f"; there were some in {others}" if others else ""))
        return "\n".join(lines)

    def _lines(self, with_headers: bool) -> Iterator[str]:
        messages = list(self._of_queue.messages)
        for seen in messages[:_SHOWN]:
            yield f"  {seen}" + (f", headers {dict(seen.headers)!r}" if with_headers else "")
        if len(messages) > _SHOWN:
            yield f"  … and {len(messages) - _SHOWN} more"

    def __str__(self) -> str:
        """Show what happened to each message, in a few lines."""
        return "\n".join([f"{self._name}:", *self._lines(with_headers=False)])
