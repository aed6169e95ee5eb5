"""Operations: what can be asked of a node, a vhost, a queue or a topic, as values.

An operation is defined once, as a verb marked with :func:`operation`: its signature gives the arguments, its body says
what the process that hosts the node does. Calling the verb makes an :class:`Operation` and passes it to the object's
``perform``. In the host's process that runs the body. In a guest's process it sends the operation's name and its
arguments, and decodes the answer; so a new operation needs no code for guests.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Final, Generic, Literal, ParamSpec, Protocol, TypeVar

import attrs

from warren.storage.errors import WarrenError
from warren.verbs.steps import Steps

P = ParamSpec("P")
S = TypeVar("S", bound="Performer")
T = TypeVar("T")
H = TypeVar("H")

Target = Literal["node", "users", "vhost", "queue", "topic"]


@attrs.frozen
class Definition:
    """What all operations of one name have in common."""

    target: Target
    """What is asked."""
    name: str
    body: Callable[..., Steps[Any]]
    encode: Callable[[Any], Any]
    """Makes plain values of the answer: numbers, texts, bytes, lists and mappings."""
    decode: Callable[[Any], Any]
    """Makes the answer of plain values."""
    flushes: bool
    """Whether a guest's earlier publishes are confirmed first."""


DEFINITIONS: Final[dict[str, Definition]] = {}
"""All definitions, by name."""


@attrs.frozen
class Operation(Generic[T]):
    """What is asked: which operation, with which arguments, by name. Iterables are lists."""

    definition: Definition
    arguments: Mapping[str, Any]

    def performed_by(self, verbs: object) -> Steps[T]:
        """Perform it in this process, which hosts the node; return the answer."""
        steps: Steps[T] = self.definition.body(verbs, **self.arguments)
        return steps


class NotFromOutsideError(WarrenError):
    """Only the process that hosts the node of a shared directory can do this."""


def local(host: object, kind: type[H]) -> H:
    """Return a host if it is one of this process, of this ``kind``. Raises :class:`NotFromOutsideError`."""
    if not isinstance(host, kind):
        raise NotFromOutsideError("another process hosts the node, and this cannot be asked from here")
    return host


class Host(Protocol):
    """What hosts a vhost, as its handles see it: a node in this process, or a link to the process that has it."""

    @property
    def path(self) -> str:
        """The data directory."""

    @property
    def identity(self) -> object:
        """An object that is equal for all handles on the node."""

    @property
    def closed(self) -> bool:
        """Whether the handle on the node was closed."""

    @property
    def gate(self) -> Limited:
        """What a publish looks at before it joins those that wait."""

    def check_process(self) -> None:
        """Raise why the node cannot be used."""

    def within(self, timeout: float | None, steps: Steps[T]) -> Steps[T]:
        """Run ``steps``; end them after ``timeout`` seconds if another process hosts the node and is silent."""

    def move_at_fork(self, verbs: Any, new_host: Callable[[], Any]) -> None:
        """Give these verbs the host that ``new_host`` makes in a forked child, if that can use the directory."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""

    def new_message_id(self) -> str:
        """Return a unique message id."""


class Limited(Protocol):
    """Something with a limit."""

    @property
    def limit(self) -> int: ...


class Performer:
    """Performs operations: here, as the process that hosts the node."""

    def perform(self, operation: Operation[T]) -> Steps[T]:
        """Perform an operation; return its answer."""
        return operation.performed_by(self)


def _as_it_is(value: Any) -> Any:
    return value


def operation(
    target: Target,
    *,
    encode: Callable[[Any], Any] = _as_it_is,
    decode: Callable[[Any], Any] = _as_it_is,
    flushes: bool = False,
) -> Callable[[Callable[Concatenate[S, P], Steps[T]]], Callable[Concatenate[S, P], Steps[T]]]:
    """Define an operation by a verb. ``encode`` and ``decode`` are needed if the answer is not made of plain values.

    ``flushes``: a guest's earlier publishes are confirmed before it is performed.
    """

    def define(verb: Callable[Concatenate[S, P], Steps[T]]) -> Callable[Concatenate[S, P], Steps[T]]:
        definition = Definition(target, f"{target}.{verb.__name__}", verb, encode, decode, flushes)
        DEFINITIONS[definition.name] = definition
        if verb.__code__.co_flags & inspect.CO_VARARGS:
            raise TypeError(f"{definition.name}: the arguments of an operation have names")
        names = verb.__code__.co_varnames[1 : verb.__code__.co_argcount]
        iterables = [name for name, hint in verb.__annotations__.items() if str(hint).startswith("Iterable[")]

        @functools.wraps(verb)
        def method(self: S, /, *positional: P.args, **keywords: P.kwargs) -> Steps[T]:
            if len(positional) > len(names):
                raise TypeError(f"{definition.name} takes {len(names)} positional arguments, not {len(positional)}")
            arguments: dict[str, Any] = dict(zip(names, positional, strict=False), **keywords)
            for name in iterables:
                if arguments.get(name) is not None:
                    arguments[name] = list(arguments[name])
            return self.perform(Operation[T](definition, arguments))

        return method

    return define
