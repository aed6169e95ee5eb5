"""What a peer is: a store of messages that is opened in a directory, and does the same few things as all others.

A peer does each of them the fastest way that its documentation offers: in batches if it has batches, in one transaction
a batch if it has transactions, else one by one. What it cannot do is not in its :attr:`Peer.does`, and it is left out
of the works that need it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import attrs


class Promise(StrEnum):
    """What is promised of a message that was published (and settled), and of an ack."""

    VOLATILE = "gone in a kill"
    WRITTEN = "written"
    """Handed to the operating system: survives a kill of the process, not a power loss."""
    FSYNCED = "fsynced"
    """Survives a power loss."""


class Can(StrEnum):
    """What only some peers can do."""

    LETTERS = "headers and ids"
    MANY_QUEUES = "many queues in one store"
    THREADS = "several threads"
    HAND_OFF = "a take that waits"
    REOPEN = "opened again after a kill"
    TOPIC = "topics"
    COLD_START = "a program that starts"
    EXPORT = "reading a directory out"


@attrs.frozen(kw_only=True)
class Load:
    """What a program knows of its work beforehand, and would set its store up for."""

    queues: int = 1
    messages: int = 0
    """How many messages may wait at a time."""
    body_bytes: int = 128


@attrs.frozen
class Place:
    """The place of a peer: its directory, what it must promise, and the address of its server if it has one."""

    directory: Path
    promise: Promise
    server: str = ""


@attrs.frozen
class Letter:
    """A message with headers and an id."""

    body: bytes
    headers: dict[str, str]
    message_id: str


Token = Any
"""What a peer wants back for an ack."""


class Queue(ABC):
    """One queue of a peer."""

    @abstractmethod
    def put(self, body: bytes) -> None:
        """Publish one; it may be as safe as promised only after :meth:`settle`."""

    @abstractmethod
    def take(self) -> tuple[Token, bytes] | None:
        """Take the next message; ``None`` if the store is empty."""

    def ack(self, token: Token) -> None:  # noqa: B027 - with some peers it is gone when it is taken
        """It is done with."""

    def settle(self) -> None:  # noqa: B027 - most peers have done it when they return
        """Wait until everything that was put is as safe as promised."""

    def put_many(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self.put(body)

    def take_many(self, count: int) -> tuple[Sequence[Token], list[bytes]]:
        """Take at most ``count`` messages, in order."""
        tokens, bodies = [], []
        for _ in range(count):
            taken = self.take()
            if taken is None:
                break
            tokens.append(taken[0])
            bodies.append(taken[1])
        return tokens, bodies

    def ack_many(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            self.ack(token)

    def count(self) -> int:
        """Messages that wait, counted."""
        raise NotImplementedError

    def consume(self, count: int) -> Iterator[bytes]:
        """Yield ``count`` bodies, each acked on its own, with the peer's own way to loop over all messages."""
        raise NotImplementedError

    def receiver(self, *, ack: bool) -> AbstractContextManager[Callable[[], bytes]]:
        """A take for another thread that waits for a message, and acks it where ``ack`` says so."""
        raise NotImplementedError

    def send(self, letter: Letter) -> None:
        raise NotImplementedError

    def send_many(self, letters: Sequence[Letter]) -> None:
        for letter in letters:
            self.send(letter)

    def receive_many(self, count: int) -> tuple[Sequence[Token], list[Letter]]:
        """As :meth:`take_many`, with headers and ids read."""
        raise NotImplementedError


class Topic(ABC):
    """A log that is read by groups and searched by key."""

    @abstractmethod
    def append_many(self, bodies: Sequence[bytes], keys: Sequence[str]) -> None: ...

    @abstractmethod
    def read(self, count: int) -> list[bytes]:
        """The next ones for a group of readers, which is committed then; none at the end."""

    def append(self, body: bytes, key: str) -> None:
        self.append_many([body], [key])

    def settle(self) -> None:  # noqa: B027
        """Wait until everything is as safe as promised."""

    def catch_up(self) -> None:  # noqa: B027
        """Wait until everything can be read and found."""

    def find(self, key: str) -> bytes:
        """The body of the last message with this key."""
        raise NotImplementedError


class Peer(ABC):
    """A store, opened."""

    title: ClassVar[str]
    """As tables show it."""
    promises: ClassVar[frozenset[Promise]]
    does: ClassVar[frozenset[Can]] = frozenset()
    most: ClassVar[int] = 1 << 40
    """No work gives it more messages than this: it is slow, and rates are by second."""
    note: ClassVar[str] = ""
    """What a reader of the table must know."""
    imports: ClassVar[str] = ""
    """A program's import of it; with :attr:`Can.COLD_START`."""
    one_message: ClassVar[str] = ""
    """The rest of a program that opens it in ``{path}``, publishes one message, made safe, and closes it."""
    inspects: ClassVar[tuple[str, ...]] = ()
    """What Python is to run to say what is in the directory whose path follows."""

    distribution: ClassVar[str] = ""
    """The distribution that it is installed by, whose version is the peer's."""

    def __init__(self, place: Place, load: Load) -> None:
        self.place = place
        self.load = load
        place.directory.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def queue(self, name: str) -> Queue: ...

    def close(self) -> None:  # noqa: B027
        """Give everything up."""

    def topic(self, name: str) -> Topic:
        raise NotImplementedError

    @classmethod
    def version(cls) -> str:
        """The version of the measured peer."""
        return metadata.version(cls.distribution)

    @classmethod
    def server(cls, directory: Path) -> AbstractContextManager[str]:
        """Start the peer's server for a whole run and yield its address. Most peers need no server."""
        return nullcontext("")

    @classmethod
    def pid(cls, server: str) -> int | None:
        """The process whose memory counts; ``None``: the one that uses it."""
        return None

    @classmethod
    def promise_for(cls, wanted: Promise) -> Promise | None:
        """What it promises in a work for which this is wanted: never more; ``None``: it is left out.

        Beside what is written stands what is gone in a kill, to show what a promise costs.
        """
        fitting = (wanted, Promise.VOLATILE) if wanted is Promise.WRITTEN else (wanted,)
        return next((one for one in fitting if one in cls.promises), None)
