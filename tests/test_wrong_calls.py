"""Calls with wrong arguments: each public callable refuses them with one kind of error, before it does anything."""

from __future__ import annotations

import functools
import inspect
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import warren
import warren.aio
import warren.engine
from tests.support.both_ways import both_ways, done
from warren.errors import (
    ArgumentsError,
    DirectoryLockedError,
    InvalidValueError,
    MessageError,
    SettingsError,
    StorageError,
    WhereError,
)
from warren.storage.call_arguments import COUNTS, MAX_INTEGER

NOT_A_NUMBER = float("nan")
WRONG: dict[str, tuple[Any, ...]] = {
    "bool": ("yes", 1, None),
    "bytes": ("text", 5, None),
    "float": ("5", NOT_A_NUMBER, float("inf"), 1e300, -1.0, True, []),
    "int": ("5", 1.5, -1, True, NOT_A_NUMBER, MAX_INTEGER + 1),
    "str": (5, b"bytes", object(), ["list"]),
    "Iterable[str]": ("jobs", b"jobs", 5, [5]),
    "Iterable[bytes]": (b"body", "text", 5, [5]),
    "Iterable[Delivery]": (5, [5], "text"),
    "Mapping": (5, "text", ["list"]),
    "Retry": (5, "text"),
    "Literal": (5, "nonsense"),
    "ApplyTo": (5, "nonsense"),
    "Moment": ("now", NOT_A_NUMBER, []),
    "StartOffset": ("frist", object(), -1),
    "Where": (5, "size >", "headers" + "['a']" * 1500 + " = 1"),
    "Ids": (5, [5]),
    "path": ("", 5, b"bytes", "a\0b"),
    "QueueHandle": (5, b"bytes"),
    "ExchangeHandle": (5, b"bytes"),
    "Config": (5, ""),
    "ServerSettings": (5, "text"),
}
"""By parts of an annotation: values that it does not allow."""
RIGHT: dict[str, Any] = {
    "bool": True,
    "bytes": b"x",
    "float": 0.0,
    "int": 1,
    "str": "x",
    "Iterable[str]": ["x"],
    "Iterable[bytes]": [b"x"],
    "Mapping[str, Any]": {"max-length": 1},
    "Mapping[str, int]": {},
    "Moment": 0.0,
    "StartOffset | Moment | Mapping[int, StartOffset]": "first",
    "Iterable[Delivery]": [],
    "Literal['default', 'lazy']": "lazy",
    "QueueHandle | ExchangeHandle | str": "q",
    "ExchangeHandle | str": "amq.fanout",
    "str | bytes": "x",
    "str | bytes | None": "x",
}
"""By annotations: a value for the arguments that are not being tried."""
PLUMBING = {
    "Consumer": {"on_ready"},
    "Confirm": {"answer_with", "fail", "follow", "forget", "get", "helped_by", "on_done", "offer", "set", "settled"}
    | {"hurry", "set_exception", "filter", "join", "map", "reduce", "set_get_hook"},
}
"""Callables of public classes that are for warren itself, or are Pykka's."""


def parts_of(annotation: str) -> list[str]:
    """The members of a union that :data:`WRONG` has values for."""
    if "os.PathLike[str]" in annotation:
        annotation = annotation.replace("str | os.PathLike[str]", "path")
    return [name for name in re.findall(r"[A-Za-z]+(?:\[(?:str|bytes|Delivery)\])?", annotation) if name in WRONG]


def is_wrong(value: Any, annotation: str) -> bool:
    """Whether no part of a union allows a value that one part does not."""
    parts = parts_of(annotation)
    union = annotation.split(" | ")
    if (value is None and "None" in union) or (isinstance(value, bool) and "bool" in union):
        return False
    return all(any(value is one for one in WRONG[part]) for part in parts)


@attrs.frozen
class Trial:
    """A callable, and the name and value of an argument that it must refuse."""

    label: str
    arguments: dict[str, Any]
    call: Callable[..., Any]

    async def outcome(self) -> BaseException | None:
        """What it raises."""
        try:
            result = self.call(**self.arguments)
            if hasattr(result, "__anext__"):
                await anext(result)
            elif isinstance(result, Iterator):
                next(result)
            elif hasattr(result, "__aenter__") and not inspect.isawaitable(result):
                await result.begin()
            else:
                await done(result)
        except BaseException as error:
            return error
        return None


PROPERTY = "property: "
"""Before the annotation of a message's property."""


def may_be(name: str, annotation: str, value: Any) -> bool:
    """Whether the callee takes a value although no annotation says so, or has an error of another kind for it."""
    if annotation.startswith(PROPERTY):  # truth values are numbers, bytes are text there; a list has one for each
        return value in (True, b"bytes", ["list"], MAX_INTEGER + 1)
    return (value == -1 and name not in COUNTS) or (name == "tags" and value == ["list"])


def annotations_of(function: Callable[..., Any]) -> dict[str, tuple[str, bool]]:
    """By name: what each argument is annotated with, and whether it must be given."""
    found: dict[str, tuple[str, bool]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        said = str(parameter.annotation)
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            typed = inspect.unwrap(function).__globals__[said.removeprefix("Unpack[").removesuffix("]")]
            if not typed.__name__.endswith("SettingKeywords"):
                found |= {
                    one: (f"{PROPERTY if 'Publish' in typed.__name__ else ''}{value.__forward_arg__}", False)
                    for one, value in typed.__annotations__.items()
                    if one not in {"delay", "at", "unique", "headers", "persistent"}
                }
        elif parameter.kind is not inspect.Parameter.VAR_POSITIONAL and name != "self":
            found[name] = said, parameter.default is inspect.Parameter.empty
    return found


def trials(label: str, function: Callable[..., Any], call: Callable[..., Any]) -> Iterator[Trial]:
    annotations = annotations_of(function)
    required = {
        name: "elsewhere" if name == "to" else RIGHT.get(said) for name, (said, needed) in annotations.items() if needed
    }
    for name, (said, _) in annotations.items():
        for value in dict.fromkeys(map(id, (one for part in parts_of(said) for one in WRONG[part]))):
            [wrong] = [one for part in parts_of(said) for one in WRONG[part] if id(one) == value][:1]
            if is_wrong(wrong, said) and not may_be(name, said, wrong):
                yield Trial(f"{label}({name}={wrong!r:.40})", {**required, name: wrong}, call)
    yield Trial(f"{label}(colour=1)", {**required, "colour": 1}, call)
    if required:
        yield Trial(f"{label}()", {}, call)


def trials_of(handle: Any) -> Iterator[Trial]:
    kind = type(handle)
    for name in dir(kind):
        function = inspect.getattr_static(kind, name)
        if not name.startswith("_") and inspect.isfunction(function) and name not in PLUMBING.get(kind.__name__, ()):
            yield from trials(f"{kind.__name__}.{name}", function, getattr(handle, name))


UNCHECKED_NAMES = re.compile(
    r"(Queue\.(get|publish)|Delivery\.ack|Queue\.ack|.*\.wait|Topic\.(append|find))\((colour=1)?\)"
)
"""Calls that are made for each message: Python itself reports missing and unknown arguments."""


@both_ways
async def test_each_callable_refuses_wrong_arguments_and_changes_nothing(node: Any) -> None:
    queue, topic = await done(node.queue("q")), await done(node.topic("t"))
    exchange, vhost = await done(node.exchange("e", "fanout")), await done(node.vhost("v"))
    await done(queue.publish(b"x"))
    await done(topic.append(b"x"))
    delivery = await done(queue.get())
    consumer = queue.consume()
    reader = topic.reader("g")
    if hasattr(reader, "begin"):
        await reader.begin()
    [record] = await done(reader.read(timeout=10.0))
    transaction = await done(topic.prepare(b"x"))
    before = await done(node.definitions()), await done(node.topics()), await done(queue.stats())
    handles = [node, vhost, queue, exchange, topic, delivery, consumer, reader, record, transaction]
    if isinstance(node, warren.Node):
        handles += [queue.publish(b"y"), topic.append(b"y")]
        handles[-2].wait()
        before = *before[:2], await done(queue.stats())
    complaints = []
    for handle in handles:
        for trial in trials_of(handle):
            error = await trial.outcome()
            plain = isinstance(error, TypeError) and (UNCHECKED_NAMES.fullmatch(trial.label) or _takes_nothing(trial))
            if not plain and not (isinstance(error, InvalidValueError) and 10 < len(str(error)) < 400):
                complaints.append(f"{trial.label}: {error!r:.300}")
    assert complaints == []
    after = await done(node.definitions()), await done(node.topics()), await done(queue.stats())
    assert _without_times(after) == _without_times(before)


def _takes_nothing(trial: Trial) -> bool:
    """Whether the function has no parameters: Python then refuses an unknown name by itself."""
    return not inspect.signature(trial.call).parameters


def _without_times(found: tuple[Any, ...]) -> tuple[Any, ...]:
    definitions, topics, stats = found
    return definitions, topics, {name: stats[name] for name in ("messages", "messages_ready", "consumers")}


@pytest.mark.parametrize(
    "function",
    [warren.open, warren.aio.open, warren.engine.open_vhost, warren.export_messages, warren.import_messages],
    ids=lambda function: f"{function.__module__}.{function.__name__}",
)
def test_functions_refuse_wrong_arguments_and_make_no_file(
    function: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    annotations = annotations_of(function)
    required = {name: "here" for name, (_, needed) in annotations.items() if needed}
    for name, (said, _) in annotations.items():
        for part in parts_of(said):
            for wrong in WRONG[part]:
                if is_wrong(wrong, said):
                    with pytest.raises(InvalidValueError):
                        function(**{**required, name: wrong})
    if function is not warren.aio.open:  # which says so when it is awaited
        with pytest.raises(InvalidValueError, match="colour"):
            function(**required, colour=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["Queue", "Vhost", "Exchange", "Topic", "Consumer", "Reader", "Transaction", "Node"])
@pytest.mark.parametrize("module", [warren, warren.aio])
def test_a_handle_made_by_hand_says_what_makes_it(module: Any, name: str) -> None:
    with pytest.raises(InvalidValueError, match=rf"an? {name} is not made from 'x': call "):
        getattr(module, name)("x")


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"multiplier": 1.5}, "multiplier"),
        ({"multiplier": 0}, "multiplier"),
        ({"limit": -1}, "limit"),
        ({"limit": True}, "limit"),
        ({"delay": NOT_A_NUMBER}, "delay"),
        ({"delay": 0}, "delay"),
        ({"max_delay": "1"}, "max_delay"),
        ({"max_delay": 1e12}, "max_delay"),
        ({"jitter": -0.1}, "jitter"),
        ({"jitter": 1.1}, "jitter"),
        ({"dead_letters": 5}, "dead_letters"),
    ],
)
def test_a_retry_that_cannot_be_is_refused_when_it_is_made(values: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValueError, match=f"a retry's {name} is"):
        warren.Retry(**values)


def test_each_other_error_about_a_value_is_of_the_same_kind() -> None:
    for kind in (ArgumentsError, MessageError, SettingsError, WhereError):
        assert issubclass(kind, InvalidValueError)
    assert issubclass(InvalidValueError, TypeError)
    assert issubclass(InvalidValueError, ValueError)
    assert issubclass(InvalidValueError, warren.WarrenError)


def test_a_mistyped_argument_of_open_is_not_taken_for_a_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no setting 'shared'; (is|did you mean) 'share'"):
        warren.open(tmp_path / "data", shared=True)  # type: ignore[call-arg]


def test_opening_a_directory_twice_in_one_process_says_so(tmp_path: Path) -> None:
    with (
        warren.open(tmp_path),
        pytest.raises(DirectoryLockedError, match=r"in use by process .*that is this process.*share=True"),
    ):
        warren.open(tmp_path)


def test_a_file_in_place_of_a_directory_is_called_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="file: no directory but a file"):
        warren.open(tmp_path / "file")


def test_an_argument_that_no_queue_knows_is_logged_with_the_one_that_was_meant(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with warren.open(tmp_path) as node, caplog.at_level(logging.WARNING, "warren.handles.node"):
        for _ in range(2):
            node.queue("q", arguments={"x-max-lenght": 5, "x-max-priority": 3})
    [record] = [record for record in caplog.records if getattr(record, "event", "") == "argument_unknown"]
    assert re.search(r"queue 'q' .* knows the argument 'x-max-lenght'.*'x-max-length'", record.getMessage())


def test_a_wrong_password_argument_does_not_stand_in_the_error(tmp_path: Path) -> None:
    with warren.open(tmp_path) as node, pytest.raises(InvalidValueError) as caught:
        node.add_user("bob", ["secret"])  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


def test_nothing_is_settled_if_one_of_many_is_no_delivery(tmp_path: Path) -> None:
    with warren.open(tmp_path) as node:
        queue = node.queue("q")
        queue.publish(b"x").wait()
        delivery = queue.get()
        with pytest.raises(InvalidValueError, match="deliveries must be"):
            queue.ack([delivery, 5])  # type: ignore[list-item]
        assert delivery is not None
        assert not delivery.settled


def test_a_call_that_is_wrapped_is_checked_by_what_it_wraps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = warren.Topic.append

    @functools.wraps(original)
    def traced(self: warren.Topic, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs)

    monkeypatch.setattr(warren.Topic, "append", traced)
    with warren.open(tmp_path) as node:
        topic = node.topic("t")
        topic.append(b"x", key="k", properties={"p": "v"}).wait()
        with pytest.raises(InvalidValueError, match="colour"):
            topic.append(b"x", colour=1)
