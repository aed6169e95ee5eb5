"""``GET /api/events?path=…``: what paths of the API answer, as an event stream (server-sent events) for the page.

The stream begins with the answers, and has them again whenever they differ. They are looked at every second, but at
most half of the time. An event is a JSON list with one object for each ``path``: ``status`` and ``body``. Each look is
a request of its own, so a session that ends or a permission that is taken away is noticed at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from warren.management.access import EVENT_STREAM

EVERY_S: Final = 1.0
MAX_PATHS: Final = 8
Look = Callable[[], Awaitable[bytes]]


class EventStream(Response):
    """An answer that ends when its client goes away, or the server stops."""

    media_type = EVENT_STREAM

    def __init__(self, look: Look, stopping: asyncio.Event) -> None:
        super().__init__(headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._look = look
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        ends = {asyncio.create_task(_gone(receive)), asyncio.create_task(self._stopping.wait())}
        try:
            await self._stream(send, ends)
        finally:
            for end in ends:
                end.cancel()

    async def _stream(self, send: Send, ends: set[asyncio.Task[object]]) -> None:
        loop, last = asyncio.get_running_loop(), b""
        while not any(end.done() for end in ends):
            began_s = loop.time()
            data = await self._look()
            event = b":\n\n" if data == last else b"data: %s\n\n" % data  # a comment, which shows if the client is gone
            await send({"type": "http.response.body", "body": event, "more_body": True})
            last, took_s = data, loop.time() - began_s
            await asyncio.wait(ends, timeout=max(EVERY_S, took_s), return_when=asyncio.FIRST_COMPLETED)
        await send({"type": "http.response.body", "body": b""})


async def _gone(receive: Receive) -> object:
    while (message := await receive())["type"] != "http.disconnect":
        pass
    return message


async def collected(response: Response, scope: Scope) -> bytes:
    """An answer as an object of an event: its status and its body."""
    body = bytearray()

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        body.extend(message.get("body", b""))

    await response(scope, receive, send)
    return b'{"status":%d,"body":%s}' % (response.status_code, bytes(body) or b"null")
