"""AMQP 0-9-1 without a socket: bytes in, events out; calls in, bytes out.

:class:`~warren.amqp.connection.Connection` is one end of a connection, a server's or a client's. It has no socket and
no clock, so the same object serves asyncio, threads and tests. The modules below it, from the bytes up:

- :mod:`~warren.amqp.framing` cuts bytes into frames, and finds runs: messages, or acks, that differ in their bodies and
  delivery tags only;
- :mod:`~warren.amqp.methods` decodes and encodes methods, with pamqp;
- :mod:`~warren.amqp.states` says in tables which side may send what, and when.
"""
