"""Connection: one end of an AMQP 0-9-1 connection, without a socket.

Pass it the peer's bytes (:meth:`Connection.receive`) and get events; call its methods to send and take the bytes
(:meth:`Connection.data_to_send`). It checks the order of frames, the states of the connection and its channels, and
the sizes that were negotiated, and answers violations as RabbitMQ does. It does not know who may log in, what a queue
is, or when a heartbeat is due.

A message in several frames is assembled in memory, up to ``max_message_size``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs
from pamqp import commands as c
from pamqp.base import Frame as Method

from warren.amqp.errors import (
    CHANNEL_ERROR,
    COMMAND_INVALID,
    FRAME_ERROR,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    UNEXPECTED_FRAME,
    LostFramingError,
    OutOfOrderError,
    ProtocolError,
    UnknownMethodError,
    UntoldError,
    describe_frame,
)
from warren.amqp.framing import (
    BODY,
    CONTENT_METHODS,
    DELIVER,
    GET,
    GET_OK,
    HEADER,
    HEARTBEAT,
    METHOD,
    ContentFrames,
    ContentRun,
    Frame,
    FrameReader,
    Item,
    MethodRun,
    frame,
    settlements,
    split_at_tag,
    without_tag,
)
from warren.amqp.methods import (
    KINDS,
    check_utf8,
    decode_method,
    dotted_name,
    encode_method,
    encode_payload,
    method_index,
    settlement_flags,
)
from warren.amqp.own_methods import OWN_METHODS
from warren.amqp.received import (
    Content,
    Event,
    HeaderReceived,
    Heartbeat,
    MethodReceived,
    Violation,
    add_messages,
)
from warren.amqp.states import SENT_BY, TRANSITIONS, Side, State

PROTOCOL_HEADER: Final = b"AMQP\0\0\x09\x01"
_ACCEPTED_HEADERS: Final = frozenset((PROTOCOL_HEADER, b"AMQP\x01\x01\0\x09"))
"""AMQP 0-9-1, and 0-9, whose differences do not matter."""

FRAME_MIN_SIZE: Final = 4096
"""The frame size limit before the negotiation, and the lowest allowed after it."""
CHANNEL_MAX: Final = 2047
"""RabbitMQ's default."""
FRAME_MAX: Final = 131_072
"""RabbitMQ's default, bytes."""
MAX_MESSAGE_SIZE: Final = 536_870_912
"""RabbitMQ's upper limit on assembled messages, bytes."""

_HEARTBEAT: Final = frame(HEARTBEAT, 0, b"")
_LEAST_BYTES: Final = {METHOD: 4, HEADER: 12, BODY: 0}
_CONNECTION: Final = c.Connection.frame_id
_NO_KIND: Final = 1 << 32
"""Larger than any payload."""
_RUNNING: Final = State.RUNNING
_CLOSING: Final = State.CLOSING
_TERMINATED: Final = State.TERMINATED
_DEAF: Final = (State.CLOSED, State.TERMINATED)
_STOPPING: Final = (*_DEAF, State.CLOSING)
_ANSWERING: Final = (State.RUNNING, State.CLOSING)
"""States in which the peer's earlier requests may still be answered."""
_USUAL: Final = {
    side: frozenset(kind.index for kind in SENT_BY[side] - {c.Channel.Open} if kind.index >> 16 != _CONNECTION)
    - set(OWN_METHODS)
    for side in Side
}
"""What each side may send on a channel that is open."""
_OPEN_AND_CLOSE: Final = frozenset(
    kind.index for kind in (c.Channel.Open, c.Channel.OpenOk, c.Channel.Close, c.Channel.CloseOk)
)
_OFTEN: Final = (CONTENT_METHODS | {GET}) - {GET_OK}
"""Methods that often come with the same arguments."""
_CACHED: Final = 128
"""This many repeated methods and message headers are cached as they are read and written."""
_CACHED_BYTES: Final = 512
"""The longest of them, in bytes."""


@attrs.define
class _Channel:
    """The state of a channel."""

    is_open: bool = False
    is_closing: bool = False
    """We have asked to close it; everything until the answer is ignored."""
    content: Content | None = None


class Connection:
    """One end of a connection."""

    def __init__(
        self,
        side: Side,
        *,
        channel_max: int = CHANNEL_MAX,
        frame_max: int = FRAME_MAX,
        max_message_size: int = MAX_MESSAGE_SIZE,
        has_own_methods: bool = False,
    ) -> None:
        """``channel_max``, ``frame_max``: the highest that we accept; 0: no limit. ``has_own_methods``: whether the
        peer may send those of :mod:`warren.amqp.own_methods`."""
        self.side = side
        self.state = State.HANDSHAKE
        self.channel_max = channel_max
        self.frame_max = frame_max
        self.heartbeat = 0
        """Seconds between heartbeats, once negotiated; 0: none."""
        self.max_message_size = max_message_size
        self.has_own_methods = has_own_methods
        self._ours, self._theirs = SENT_BY[side], SENT_BY[side.peer]
        self._usual = _USUAL[side.peer]
        self._methods: dict[bytes, Method] = {}
        """Decoded methods by their bytes, for those that repeat; never modified."""
        self._frames: dict[tuple[Any, ...], ContentFrames] = {}
        """The same for messages that are sent."""
        self._reader = FrameReader(FRAME_MIN_SIZE, max_message_size)
        self._writable_bytes = FRAME_MIN_SIZE
        self._channels: dict[int, _Channel] = {}
        self._header_due = side is Side.SERVER
        self.assembled_bytes = 0
        """Bytes received so far of bodies in several frames."""
        self._out: list[bytes] = [] if side is Side.SERVER else [PROTOCOL_HEADER]

    # ── what came ───────────────────────────────────────────────────────────────────────────────────────────────

    def receive(self, data: bytes) -> list[Event]:
        """Parse the peer's bytes. Never raises for invalid bytes: a :class:`Violation` is the last event."""
        if self._is_over():
            return []
        events: list[Event] = []
        reader = self._reader
        reader.feed(data)
        try:
            if self._header_due and not self._receive_header(events):
                return events
            while not self._is_over():
                reader.finds_runs = self.state is _RUNNING
                if (item := reader.next()) is None:
                    break
                self._receive_item(item, events)
        except ProtocolError as error:
            if self.state in _DEAF:  # frames were ignored anyway; now not even the answer to our close can be found
                self.state = State.TERMINATED
            else:
                self._fail(error)
                events.append(Violation(error))
        return events

    def _is_over(self) -> bool:
        return self.state is _TERMINATED

    def _receive_header(self, events: list[Event]) -> bool:
        """Read the protocol header; return whether frames may follow."""
        header = self._reader.take(len(PROTOCOL_HEADER))
        if header is None:
            return False
        self._header_due = False
        refused = header not in _ACCEPTED_HEADERS
        if refused:
            self._out.append(PROTOCOL_HEADER)
            self.state = State.TERMINATED
        events.append(HeaderReceived(header, refused))
        return not refused

    def _receive_item(self, item: Item, events: list[Event]) -> None:
        if isinstance(item, ContentRun):
            method = self._known_method(item.method)
            channel = self._channel_for(item.channel, item.index)
            if not channel.is_closing:
                add_messages(events, method, item)
        elif isinstance(item, MethodRun):
            if not self._channel_for(item.channel, item.index).is_closing:
                events.append(item)
        elif self.state in _DEAF or (self.state is _CLOSING and item.channel):
            self._pass_over(item, events)
        else:
            self._receive_frame(item, events)

    def _known_method(self, payload: bytes) -> Method:
        """Return the method with this payload, decoded once."""
        method = self._methods.get(payload) if len(payload) <= _CACHED_BYTES else None
        return self._new_method(payload) if method is None else method

    def _new_method(self, payload: bytes) -> Method:
        method = decode_method(payload)
        if method.index not in CONTENT_METHODS:
            self._check_utf8(method)
        if method.index in _OFTEN and len(payload) <= _CACHED_BYTES:
            if len(self._methods) >= _CACHED:
                self._methods.clear()
            self._methods[payload] = method
        return method

    def _check_utf8(self, method: Method, method_index: int = 0) -> None:
        if self.side is Side.SERVER and not self.has_own_methods:
            check_utf8(method, method_index)

    def _receive_frame(self, received: Frame, events: list[Event]) -> None:
        kind, number, payload = received.kind, received.channel, received.payload
        if kind == HEARTBEAT and not payload:
            if number:
                raise ProtocolError(UNEXPECTED_FRAME, describe_frame(kind, payload))
            events.append(Heartbeat())
        elif len(payload) < _LEAST_BYTES.get(kind, _NO_KIND):
            raise ProtocolError(FRAME_ERROR, f"{describe_frame(kind, payload)}: unknown_frame")
        elif not number:
            if kind != METHOD:
                raise ProtocolError(UNEXPECTED_FRAME, describe_frame(kind, payload))
            method = _decode_on_0(payload)
            self._check_utf8(method, method.index)
            self._receive_connection_method(method, events)
        elif self.state is not State.RUNNING:
            raise ProtocolError(UNEXPECTED_FRAME, describe_frame(kind, payload))
        elif kind == METHOD:
            self._receive_method(number, payload, events)
        else:
            self._receive_content(number, kind, payload, events)

    def _pass_over(self, item: Item, events: list[Event]) -> None:
        """Ignore an item after our close, except for methods about closing."""
        if not isinstance(item, Frame) or item.channel or item.kind != METHOD:
            return
        if len(item.payload) < _LEAST_BYTES[METHOD]:
            return
        method = decode_method(item.payload)
        if isinstance(method, c.Connection.Close):
            self._out.append(encode_method(0, c.Connection.CloseOk()))
        elif isinstance(method, c.Connection.CloseOk):
            self.state = State.TERMINATED
            events.append(MethodReceived(0, method))

    # ── channel 0 ───────────────────────────────────────────────────────────────────────────────────────────────

    def _receive_connection_method(self, method: Method, events: list[Event]) -> None:
        if isinstance(method, c.Connection.Close) and self._may_be_closed():
            self.state = State.CLOSING
        else:
            following = TRANSITIONS.get(type(method), {}).get(self.state)
            if following is None or type(method) not in self._theirs:
                if self.state is State.CLOSING:
                    return
                raise ProtocolError(
                    CHANNEL_ERROR, f"unexpected method in connection state {self.state.value}", method.index
                )
            if isinstance(method, c.Connection.Tune):
                self._offered(method)
            if isinstance(method, c.Connection.TuneOk):
                self._negotiated(method)
            self.state = following
        events.append(MethodReceived(0, method))

    def _may_be_closed(self) -> bool:
        """Whether the peer may close: a server at any time, a client after login."""
        return self.state is State.RUNNING or (self.side is Side.CLIENT and self.state is not State.HANDSHAKE)

    def _offered(self, tune: c.Connection.Tune) -> None:
        self.channel_max = _lower(self.channel_max, tune.channel_max)
        self.frame_max = _lower(self.frame_max, tune.frame_max)

    def _negotiated(self, tune: c.Connection.TuneOk) -> None:
        for name, least, ours in (
            ("frame_max", FRAME_MIN_SIZE, self.frame_max),
            ("channel_max", 1, self.channel_max),
        ):
            theirs: int = getattr(tune, name)
            refused = None
            if theirs and theirs < least:
                refused = f"lower than the minimum allowed value ({least})"
            elif ours and (not theirs or theirs > ours):
                refused = f"higher than the maximum allowed value ({ours})"
            if refused:
                raise ProtocolError(NOT_ALLOWED, f"negotiated {name} = {theirs} is {refused}", tune.index)
        self._tuned(tune)

    def _tuned(self, tune: c.Connection.TuneOk) -> None:
        self.channel_max, self.frame_max = tune.channel_max, tune.frame_max
        self.heartbeat = tune.heartbeat
        self._reader.frame_max = self._writable_bytes = self.frame_max

    # ── channels ────────────────────────────────────────────────────────────────────────────────────────────────

    def _channel(self, number: int) -> _Channel:
        channel = self._channels.get(number)
        if channel is None:
            if self.channel_max and len(self._channels) >= self.channel_max:
                raise ProtocolError(
                    NOT_ALLOWED,
                    f"number of channels opened ({len(self._channels)}) has reached the negotiated channel_max "
                    f"({self.channel_max})",
                )
            channel = self._channels[number] = _Channel()
        return channel

    def _channel_for(self, number: int, index: int) -> _Channel:
        """Return the channel for a method with this index from the peer; raise if the peer may not send it."""
        channel = self._channels.get(number)
        if channel is not None and channel.is_open and channel.content is None and index in self._usual:
            return channel
        channel = self._channel(number)
        if index in OWN_METHODS and not self.has_own_methods:
            raise UnknownMethodError(index)
        if channel.content is not None:
            raise channel.content.unexpected()
        if index == c.Channel.Open.index:
            if channel.is_open:
                raise ProtocolError(CHANNEL_ERROR, "second 'channel.open' seen", index)
        elif not channel.is_open and (index != c.Channel.OpenOk.index or self.side is Side.SERVER):
            raise ProtocolError(CHANNEL_ERROR, "expected 'channel.open'", index)
        if KINDS[index] not in self._theirs or index >> 16 == _CONNECTION:
            raise ProtocolError(COMMAND_INVALID, "unimplemented method", index)
        return channel

    def _receive_method(self, number: int, payload: bytes, events: list[Event]) -> None:
        index = method_index(payload)
        if index in CONTENT_METHODS:
            payload, tags = without_tag(index, payload)
            method = self._known_method(payload)
            self._channel_for(number, index).content = Content(method, tags)
            return
        method = self._known_method(payload)
        channel = self._channel_for(number, index)
        if index in _OPEN_AND_CLOSE:
            self._receive_open_or_close(number, channel, method, events)
        elif not channel.is_closing:
            events.append(MethodReceived(number, method))

    def _receive_open_or_close(self, number: int, channel: _Channel, method: Method, events: list[Event]) -> None:
        if isinstance(method, c.Channel.CloseOk):
            if not channel.is_closing:
                raise ProtocolError(COMMAND_INVALID, "unimplemented method", method.index)
            del self._channels[number]
        elif isinstance(method, c.Channel.Close):
            if channel.is_closing:  # both closed at the same time
                self._out.append(encode_method(number, c.Channel.CloseOk()))
                return
        else:
            channel.is_open = True
            if channel.is_closing:
                return
        events.append(MethodReceived(number, method))

    def _receive_content(self, number: int, kind: int, payload: bytes, events: list[Event]) -> None:
        channel = self._channel(number)
        content = channel.content
        if content is None:
            raise ProtocolError(UNEXPECTED_FRAME, "expected method frame, got non method frame instead")
        if not content.has_header:
            if kind != HEADER:
                raise content.unexpected()
            content.begin(payload, self.max_message_size)
        elif kind != BODY:
            raise content.unexpected()
        elif len(payload) > content.left:
            raise ProtocolError(FRAME_ERROR, "content body frame exceeds remaining content size", content.method.index)
        else:
            content.left -= len(payload)
            self.assembled_bytes += len(payload)
            if payload and not channel.is_closing:
                content.add(payload)
        if not content.left:
            channel.content = None
            if not channel.is_closing:
                body, method = b"".join(content.fragments), content.method
                run = ContentRun(number, method.index, b"", content.tags, [content.properties], [body])
                add_messages(events, method, run)

    # ── sending ─────────────────────────────────────────────────────────────────────────────────────────────────

    def data_to_send(self) -> bytes:
        """Return the bytes for the peer, and forget them."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def pieces_to_send(self) -> list[bytes]:
        """The same in pieces, with bodies of :data:`~warren.amqp.framing.LARGE_BYTES` or more uncopied."""
        pieces, self._out = self._out, []
        return pieces

    def send(self, channel: int, method: Method) -> None:
        """Send a method without content. Raises :class:`OutOfOrderError` if it may not be sent now, and
        :class:`MessageError` if it does not fit into a frame; then nothing has changed."""
        self._check_ours(method)
        encoded = encode_method(channel, method)
        if not channel:
            self._send_on_connection(method)
        else:
            self._send_on_channel(channel, method)
        self._out.append(encoded)

    def _check_ours(self, method: Method) -> None:
        if type(method) not in self._ours:
            raise OutOfOrderError(f"a {self.side.value} does not send {dotted_name(method)}")
        if self.state is State.TERMINATED:
            raise OutOfOrderError(f"the connection is over: {dotted_name(method)} cannot be sent")

    def _send_on_connection(self, method: Method) -> None:
        if isinstance(method, c.Connection.Close) and self.state not in _STOPPING:
            self.state = State.CLOSED
        elif isinstance(method, c.Connection.CloseOk) and self.state is State.CLOSING:
            self.state = State.TERMINATED
        else:
            following = TRANSITIONS.get(type(method), {}).get(self.state)
            if following is None or self._header_due:
                raise OutOfOrderError(f"{dotted_name(method)} cannot be sent in connection state {self.state.value}")
            if isinstance(method, c.Connection.Tune):
                self._offered(method)
            if isinstance(method, c.Connection.TuneOk):
                self._tuned(method)
            self.state = following

    def _send_on_channel(self, number: int, method: Method) -> None:
        if self.state not in _ANSWERING:
            raise OutOfOrderError(f"{dotted_name(method)} cannot be sent in connection state {self.state.value}")
        channel = self._channels.get(number)
        if channel is not None and not channel.is_closing and method.index not in _OPEN_AND_CLOSE:
            return
        if isinstance(method, c.Channel.Open):
            if channel is not None:
                raise OutOfOrderError(f"channel {number} is open")
            self._channels[number] = _Channel()
        elif channel is None or (channel.is_closing and not isinstance(method, c.Channel.CloseOk)):
            raise OutOfOrderError(f"{dotted_name(method)}: channel {number} is not open")
        elif isinstance(method, c.Channel.Close):
            channel.is_closing = True
        elif isinstance(method, c.Channel.CloseOk) and not channel.is_closing:  # otherwise ours is not answered yet
            del self._channels[number]

    def publish(self, channel: int, publish: c.Basic.Publish, properties: bytes, bodies: Sequence[bytes]) -> None:
        """Send messages with the same method and properties (flags and list)."""
        self._check_content(channel, publish)
        key = (channel, publish.exchange, publish.routing_key, publish.mandatory, publish.immediate, publish.ticket)
        frames = self._frames.get(key) or self._new_frames(key, publish)
        frames.write(properties, bodies, None, self._out)

    def deliver(
        self,
        channel: int,
        deliver: c.Basic.Deliver,
        tags: Iterable[int],
        properties: bytes | Sequence[bytes],
        bodies: Sequence[bytes],
    ) -> None:
        """Send deliveries; the method's own tag does not count. ``properties``: those that all have, or of each."""
        self._frames_of_deliver(channel, deliver).write(properties, bodies, tags, self._out)

    def _frames_of_deliver(self, channel: int, deliver: c.Basic.Deliver) -> ContentFrames:
        self._check_content(channel, deliver)
        key = (channel, deliver.consumer_tag, deliver.exchange, deliver.routing_key, deliver.redelivered)
        return self._frames.get(key) or self._new_frames(key, deliver)

    def _new_frames(self, key: tuple[Any, ...], method: c.Basic.Publish | c.Basic.Deliver) -> ContentFrames:
        """Make and cache frames for messages on a channel (the first of ``key``)."""
        payload, tagged = encode_payload(method), method.index == DELIVER
        parts = split_at_tag(DELIVER, payload) if tagged else (payload, b"")
        frames = ContentFrames(key[0], parts, tagged=tagged, frame_max=self._writable_bytes)
        if len(self._frames) >= _CACHED:
            self._frames.clear()
        self._frames[key] = frames
        return frames

    def send_message(
        self, channel: int, method: c.Basic.GetOk | c.Basic.Return, properties: bytes, body: bytes
    ) -> None:
        """Send one message that is neither published nor delivered."""
        self._check_content(channel, method)
        payload = encode_payload(method)
        frames = ContentFrames(channel, (payload, b""), tagged=False, frame_max=self._writable_bytes)
        frames.write(properties, (body,), None, self._out)

    def settle(self, channel: int, method: c.Basic.Ack | c.Basic.Nack | c.Basic.Reject, tags: Iterable[int]) -> None:
        """Send acks, nacks or rejects with the same flags, one for each tag; the method's own tag does not count."""
        self._check_content(channel, method)
        self._out.append(settlements(channel, method.index, tags, settlement_flags(method)))

    @property
    def unfinished_bytes(self) -> int:
        """Bytes held for messages that have not arrived completely."""
        contents = (channel.content for channel in self._channels.values())
        return sum(content.size for content in contents if content is not None)

    def forget_unfinished(self) -> None:
        """Drop incomplete messages: nothing comes any more."""
        for channel in self._channels.values():
            channel.content = None
        self._reader = FrameReader(self.frame_max, self.max_message_size)

    def is_open(self, number: int) -> bool:
        """Whether messages may be sent on a channel. Later bytes of the same read may have closed it."""
        channel = self._channels.get(number)
        return channel is not None and channel.is_open and not channel.is_closing and self.state in _ANSWERING

    def is_closing(self, number: int) -> bool:
        """Whether we have asked to close a channel, and the peer has not answered."""
        channel = self._channels.get(number)
        return self.state is State.RUNNING and channel is not None and channel.is_closing

    def _check_content(self, number: int, method: Method) -> None:
        self._check_ours(method)
        if not self.is_open(number):
            raise OutOfOrderError(f"{dotted_name(method)}: channel {number} is not open")

    def send_heartbeat(self) -> None:
        """Send a heartbeat."""
        self._out.append(_HEARTBEAT)

    def _fail(self, error: ProtocolError) -> None:
        """Close the connection for an error of the peer. Before the connection is open, the peer gets no reason."""
        told_early = error.reply_code == UNEXPECTED_FRAME or (error.reply_code == FRAME_ERROR and error.method_index)
        opens = self.state is State.OPENING and told_early  # as in RabbitMQ
        tells = (self.state in _ANSWERING or opens) and not isinstance(error, UntoldError)
        if tells:
            class_id, method_id = divmod(error.method_index, 1 << 16)
            close = c.Connection.Close(error.reply_code, error.reply_text, class_id, method_id)
            self._out.append(encode_method(0, close))
        self.state = State.TERMINATED if isinstance(error, LostFramingError) or not tells else State.CLOSED
        self._channels.clear()


def _decode_on_0(payload: bytes) -> Method:
    try:
        return decode_method(payload)
    except UntoldError:
        raise
    except ProtocolError:
        raise ProtocolError(INTERNAL_ERROR, "") from None


def _lower(ours: int, theirs: int) -> int:
    """The lower of two limits; 0 means no limit."""
    return min(ours, theirs) if ours and theirs else ours or theirs
