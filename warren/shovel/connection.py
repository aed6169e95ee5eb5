"""A connection to a broker through pika, driven from here: calls that wait, and events in between.

pika calls back; a caller collects what it asked for (confirms, deliveries) while :class:`Loop` turns. One loop serves
both connections of a shovel from broker to broker, so that heartbeats go on at one while the other is waited for.

Properties pass as the bytes that they are. pika's own decoder would cut doubles to whole numbers, take every string
that is not UTF-8 for binary, and has no words for some values; its encoder refuses doubles. So a content header's frame
is read here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import attrs
import pika
import pika.exceptions
from pika import frame
from pika.adapters.select_connection import IOLoop

from warren.shovel.address import Address
from warren.shovel.errors import ChannelRefusedError, ShovelError

WAIT_S: Final = 1.0
"""How long one turn of the loop waits at most."""

_HEADER_FRAME, _FRAME_END, _BASIC_CLASS = 2, 0xCE, 60
_FRAME_HEAD, _CONTENT_HEAD = struct.Struct(">BHL"), struct.Struct(">HHQ")


class RawProperties:
    """Basic properties as bytes, in the place of pika's."""

    INDEX: Final = _BASIC_CLASS

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def encode(self) -> list[bytes]:
        """What pika puts after the body's size."""
        return [self.data]


class _RawConnection(pika.SelectConnection):  # type: ignore[misc]  # pika has no types
    """Decodes content headers itself; pika decodes all other frames."""

    def _read_frame(self) -> Any:
        buffer = self._frame_buffer
        if len(buffer) < _FRAME_HEAD.size or buffer[0] != _HEADER_FRAME:
            return super()._read_frame()
        _, channel, size = _FRAME_HEAD.unpack_from(buffer)
        end = _FRAME_HEAD.size + size
        if len(buffer) <= end:
            return 0, None
        if buffer[end] != _FRAME_END or size < _CONTENT_HEAD.size:
            return super()._read_frame()
        _, _, body_size = _CONTENT_HEAD.unpack_from(buffer, _FRAME_HEAD.size)
        properties = RawProperties(bytes(buffer[_FRAME_HEAD.size + _CONTENT_HEAD.size : end]))
        return end + 1, frame.Header(channel, body_size, properties)


@attrs.define(eq=False)
class Loop:
    """What lets events come in, for every connection of a shovel."""

    io: Any = attrs.field(factory=IOLoop)

    def __attrs_post_init__(self) -> None:
        self.io.activate_poller()

    def turn(self, wait_s: float) -> None:
        """Send and receive; wait at most ``wait_s`` seconds for an event."""
        timer = self.io.call_later(wait_s, lambda: None)
        self.io.poll()
        self.io.process_timeouts()
        self.io.remove_timeout(timer)

    def close(self) -> None:
        """All connections must be closed before."""
        self.io.deactivate_poller()
        self.io.close()


@attrs.define(eq=False)
class Connection:
    """An open connection. Made by :meth:`open`."""

    address: Address
    loop: Loop
    notify: Callable[[str], None]
    """Called when the broker blocks publishers (a memory or disk alarm)."""
    _pika: Any = None
    _lost: BaseException | None = None

    @classmethod
    @contextmanager
    def open(cls, address: Address, loop: Loop, notify: Callable[[str], None]) -> Iterator[Connection]:
        """Connect, within pika's own time limits. Raises :class:`ShovelError` if that fails."""
        connection = cls(address, loop, notify)
        connection._connect()
        try:
            yield connection
        finally:
            connection._close()

    def _connect(self) -> None:
        opened: list[object] = []

        def lose(_: object, reason: BaseException) -> None:
            self._lost = reason

        def block(_: object, method: Any) -> None:
            self.notify(f"{self.address}: takes no messages for the time being, waiting: {method.method.reason}")

        self._pika = _RawConnection(
            self.address.parameters,
            on_open_callback=opened.append,
            on_open_error_callback=lose,
            on_close_callback=lose,
            custom_ioloop=self.loop.io,
        )
        self._pika.add_on_connection_blocked_callback(block)
        while not opened:
            if self._lost is not None:
                raise ShovelError(f"{self.address}: no connection: {_reason_text(self._lost)}")
            self.loop.turn(WAIT_S)

    def _close(self) -> None:
        with suppress(pika.exceptions.AMQPError):  # lost already, or on its way out
            if self._lost is None:
                self._pika.close()
                while self._lost is None:
                    self.loop.turn(WAIT_S)

    def check(self) -> None:
        """Raise :class:`ShovelError` if the connection is lost."""
        if self._lost is not None:
            raise ShovelError(f"{self.address}: the connection is lost: {_reason_text(self._lost)}")

    def channel(self) -> Channel:
        """A new channel."""
        self.check()
        opened: list[object] = []
        raw = self._pika.channel(on_open_callback=opened.append)
        channel = Channel(self, raw)
        channel.wait(lambda: bool(opened))
        return channel


class Channel:
    """A channel. If the broker closes it, the next call raises the reason."""

    def __init__(self, connection: Connection, raw: Any) -> None:
        self.raw = raw
        self._connection = connection
        self._closed: BaseException | None = None
        raw.add_on_close_callback(self._on_close)

    def _on_close(self, _: object, reason: BaseException) -> None:
        self._closed = reason

    def check(self) -> None:
        """Raise :class:`ChannelRefusedError`, or :class:`ShovelError` where the whole connection is gone."""
        self._connection.check()
        if self._closed is not None:
            code = getattr(self._closed, "reply_code", 0)
            raise ChannelRefusedError(f"{self._connection.address}: {_reason_text(self._closed)}", code)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Let the loop turn until the condition holds."""
        while True:
            self.check()
            if condition():
                return
            self._connection.loop.turn(WAIT_S)

    def turn(self, wait_s: float) -> None:
        """Let the loop turn once."""
        self.check()
        self._connection.loop.turn(wait_s)

    def tell(self, method: Callable[..., object], *values: Any, **arguments: Any) -> None:
        """Call one of pika's methods; its frames are sent when the loop turns."""
        self.check()
        try:
            method(*values, **arguments)
        except pika.exceptions.AMQPError as error:  # on its way out: not reported yet
            raise ShovelError(f"{self._connection.address}: {_reason_text(error)}") from error

    def call(self, method: Callable[..., object], **arguments: Any) -> Any:
        """Call one of pika's methods that answer, and wait for the answer (the method of the frame)."""
        answers: list[Any] = []
        self.tell(method, callback=answers.append, **arguments)
        self.wait(lambda: bool(answers))
        return answers[0].method

    def close(self) -> None:
        """Close it in order: the broker has acted on everything that was sent before."""
        if self._closed is None:
            self.tell(self.raw.close)
            while self._closed is None:
                self._connection.loop.turn(WAIT_S)


def text(name: bytes) -> str:
    """A name as pika takes it; raises :class:`ShovelError` for one that is not UTF-8."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise ShovelError(
            f"a name that is not UTF-8 cannot be told to a broker; --rename helps with a queue's: {name!r}"
        ) from None


def as_bytes(name: str | bytes) -> bytes:
    """A name as pika gives it."""
    return name if isinstance(name, bytes) else name.encode()


def _reason_text(reason: BaseException) -> str:
    """Describe an error: with the broker's reply text if there is one."""
    if (reply_text := getattr(reason, "reply_text", "")) != "":
        hint = ""
        if "user_id" in reply_text:
            hint = " (to publish in the name of others, a user needs the tag impersonator)"
        return f"{getattr(reason, 'reply_code', '')} {reply_text}{hint}"
    causes: list[str] = []
    pending: list[BaseException] = [reason]
    while pending:
        error = pending.pop()
        inner = [
            nested for nested in (*getattr(error, "exceptions", ()), *error.args) if isinstance(nested, BaseException)
        ]
        if isinstance(getattr(error, "exception", None), BaseException):
            inner.append(error.exception)  # type: ignore[attr-defined]
        pending += inner
        if not inner:
            causes.append(getattr(error, "reply_text", "") or str(error) or type(error).__name__)
    return "; ".join(dict.fromkeys(causes))
