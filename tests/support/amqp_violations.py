"""What a peer may do wrong once it has channel 1 open, and what the connection is closed with."""

from __future__ import annotations

import struct
from typing import Final

from pamqp import commands as c

from warren.amqp.framing import BODY, HEADER, HEARTBEAT, METHOD, frame
from warren.amqp.methods import encode_method

NO_PROPERTIES: Final = b"\0\0"
PUBLISH: Final = encode_method(1, c.Basic.Publish(0, "", "q"))
HEADER_OF_5: Final = frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 5) + NO_PROPERTIES)
_DECLARE: Final = c.Queue.Declare(queue="q")

RABBITMQS: Final[list[tuple[bytes, str]]] = [
    (
        struct.pack(">BHI", 1, 1, 200_000),
        "501 FRAME_ERROR - type 1, all octets = <<>>: {frame_too_large,200000,131064}",
    ),
    (
        struct.pack(">BHI", 3, 1, 5) + b"hello\0",
        '501 FRAME_ERROR - type 3, all octets = <<"hello">>: {invalid_frame_end_marker,0}',
    ),
    (
        frame(4, 1, bytes(range(20))),
        "501 FRAME_ERROR - type 4, first 16 octets = <<0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15>>: unknown_frame",
    ),
    (
        frame(4, 1, b'a "quoted" \\ word'),
        '501 FRAME_ERROR - type 4, first 16 octets = <<"a \\"quoted\\" \\\\ wor">>: unknown_frame',
    ),
    (frame(METHOD, 0, b""), "501 FRAME_ERROR - type 1, all octets = <<>>: unknown_frame"),
    (frame(METHOD, 1, b""), "501 FRAME_ERROR - type 1, all octets = <<>>: unknown_frame"),
    (frame(HEADER, 1, b"abc"), '501 FRAME_ERROR - type 2, all octets = <<"abc">>: unknown_frame'),
    (frame(HEARTBEAT, 1, b""), "505 UNEXPECTED_FRAME - type 8, all octets = <<>>"),
    (frame(BODY, 0, b"x"), '505 UNEXPECTED_FRAME - type 3, all octets = <<"x">>'),
    (frame(BODY, 1, b"x"), "505 UNEXPECTED_FRAME - expected method frame, got non method frame instead"),
    (
        PUBLISH + PUBLISH,
        "505 UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
    ),
    (
        PUBLISH + frame(HEADER, 1, struct.pack(">HHQ", 60, 1, 5) + NO_PROPERTIES),
        "505 UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
    ),
    (
        PUBLISH + frame(HEADER, 1, struct.pack(">HHQ", 50, 0, 5) + NO_PROPERTIES),
        "505 UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead",
    ),
    (
        PUBLISH + HEADER_OF_5 + HEADER_OF_5,
        "505 UNEXPECTED_FRAME - expected content body, got non content body frame instead",
    ),
    (encode_method(2, _DECLARE), "504 CHANNEL_ERROR - expected 'channel.open'"),
    (encode_method(2, c.Channel.Close(200, "", 0, 0)), "504 CHANNEL_ERROR - expected 'channel.open'"),
    (encode_method(2, c.Channel.CloseOk()), "504 CHANNEL_ERROR - expected 'channel.open'"),
    (encode_method(1, c.Channel.Open()), "504 CHANNEL_ERROR - second 'channel.open' seen"),
    (encode_method(1, c.Queue.DeclareOk("q", 0, 0)), "503 COMMAND_INVALID - unimplemented method"),
    (encode_method(1, c.Channel.CloseOk()), "503 COMMAND_INVALID - unimplemented method"),
    (encode_method(1, c.Channel.FlowOk(True)), "503 COMMAND_INVALID - unimplemented method"),
    (encode_method(1, c.Basic.CancelOk("tag")), "503 COMMAND_INVALID - unimplemented method"),
    (encode_method(1, c.Connection.Open("/")), "503 COMMAND_INVALID - unimplemented method"),
    (
        encode_method(0, c.Connection.TuneOk(1, 4096, 0)),
        "504 CHANNEL_ERROR - unexpected method in connection state running",
    ),
    (encode_method(0, c.Connection.Open("/")), "504 CHANNEL_ERROR - unexpected method in connection state running"),
    (encode_method(0, _DECLARE), "504 CHANNEL_ERROR - unexpected method in connection state running"),
    (frame(METHOD, 1, b"\0\x32\0\x0a\0"), "501 FRAME_ERROR - cannot decode <<0>>"),
    (frame(METHOD, 1, b"\0\x3c\0\x28\0\0\x20x"), "501 FRAME_ERROR - cannot decode <<0,0,32,120>>"),
    (frame(METHOD, 1, b"\0\x5a\0\x0ax"), "501 FRAME_ERROR - cannot decode <<120>>"),
    (frame(METHOD, 0, b"\0\x0a\0\x28\x20x"), "541 INTERNAL_ERROR"),
]
"""As RabbitMQ 3.10.8 does it."""

OURS: Final[list[tuple[bytes, str]]] = [
    (
        PUBLISH + HEADER_OF_5 + frame(BODY, 1, b"123456"),
        "501 FRAME_ERROR - content body frame exceeds remaining content size",
    ),
    (
        PUBLISH + frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 1 << 40) + NO_PROPERTIES),
        "501 FRAME_ERROR - content body size 1099511627776 exceeds maximum allowed size 536870912",
    ),
]
"""Where RabbitMQ 3.10.8 waits for more, and later ones close."""

UNKNOWN_METHODS: Final = [frame(METHOD, 0, b"\0\x63\0\x0a"), frame(METHOD, 1, b"\0\x3c\0\x09")]
"""After which the socket is closed without a word."""
