"""Calls with wrong arguments: each public callable refuses them with one kind of error, before it does anything."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

import warren
import warren.aio
import warren.engine
import warren.sql
from tests.support.both_ways import both_ways, done, listed
from tests.support.sharing_tools import Member
from warren.errors import (
    ArgumentsError,
    DirectoryLockedError,
    InvalidValueError,
    MessageError,
    SettingsError,
    StorageError,
    TopicError,
    WhereError,
)
from warren.management import ManagementSettings
from warren.server import ServerSettings
from warren.server.settings import TlsSettings
from warren.simulation import NodeSpec, Scenario, simulate
from warren.storage.call_arguments import COUNTS, MAX_INTEGER
from warren.testing import TestNode

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
    "Moment": ("now", NOT_A_NUMBER, [], 1e300),
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


@pytest.mark.slow
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
        ({"delay": 10.0, "max_delay": 1.0}, "max_delay"),
        ({"jitter": -0.1}, "jitter"),
        ({"jitter": 1.1}, "jitter"),
        ({"dead_letters": 5}, "dead_letters"),
    ],
)
def test_a_retry_that_cannot_be_is_refused_when_it_is_made(values: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValueError, match=rf"\b{name}\b"):
        warren.Retry(**values)


@pytest.mark.parametrize(
    "kind", [warren.Retry, warren.Config, ServerSettings, TlsSettings, ManagementSettings, NodeSpec, Scenario]
)
def test_a_value_is_not_made_of_unknown_arguments(kind: Callable[..., Any]) -> None:
    with pytest.raises(InvalidValueError, match=r"colour"):
        kind(colour=1)
    with pytest.raises(InvalidValueError, match=r"at most 0 positional arguments"):
        kind(1)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ServerSettings(port="5672"),  # type: ignore[arg-type]
        lambda: ServerSettings(host=5),  # type: ignore[arg-type]
        lambda: ServerSettings(handshake_timeout="10"),  # type: ignore[arg-type]
        lambda: ServerSettings(loopback_users="guest"),  # type: ignore[arg-type]
        lambda: TlsSettings(certfile=5, keyfile="key"),  # type: ignore[arg-type]
        lambda: ManagementSettings(management_tcp_port="15672"),  # type: ignore[arg-type]
        lambda: warren.Config(node="fast"),  # type: ignore[arg-type]
        lambda: simulate("consumer-outage"),  # type: ignore[arg-type]
        lambda: warren.sql.connect(None),  # type: ignore[arg-type]
        lambda: warren.sql.connect(""),
        lambda: warren.sql.connect("here", colour=1),  # type: ignore[call-arg]
    ],
)
def test_a_value_of_the_wrong_type_is_refused_at_once(wrong: Callable[[], object]) -> None:
    with pytest.raises(InvalidValueError):
        wrong()


def test_each_other_error_about_a_value_is_of_the_same_kind() -> None:
    for kind in (ArgumentsError, MessageError, SettingsError, WhereError):
        assert issubclass(kind, InvalidValueError)
    assert issubclass(InvalidValueError, TypeError)
    assert issubclass(InvalidValueError, ValueError)
    assert issubclass(InvalidValueError, warren.WarrenError)


def test_a_mistyped_argument_of_open_is_not_taken_for_a_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no setting 'shared'; (is|did you mean) 'share'"):
        warren.open(tmp_path / "data", shared=True)  # type: ignore[call-arg]


@pytest.mark.slow
def test_opening_a_directory_twice_in_one_process_says_so(tmp_path: Path) -> None:
    with warren.open(tmp_path):
        for share in (False, True):
            with pytest.raises(DirectoryLockedError, match=r"in use by process .*that is this process.*share=True"):
                warren.open(tmp_path, share=share)


@pytest.mark.slow
def test_another_process_that_hosts_the_directory_is_not_taken_for_this_one(tmp_path: Path) -> None:
    with Member(tmp_path, "hold") as member:
        member.hear("ready")
        with warren.open(tmp_path, share=True), pytest.raises(DirectoryLockedError) as caught:
            warren.open(tmp_path)
    assert "this process" not in str(caught.value)


@pytest.mark.parametrize("below", ["", "data", "data/node"])
@pytest.mark.parametrize("opened", [warren.open, TestNode])
def test_a_file_in_place_of_a_directory_is_called_a_file(
    opened: Callable[[Path], object], below: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="/file: is a file, not a directory"):
        opened(tmp_path / "file" / below)


@pytest.mark.parametrize("module", [warren, warren.aio])
def test_a_name_that_is_not_there_comes_with_the_one_that_was_meant(module: Any) -> None:
    with pytest.raises(AttributeError, match="no attribute 'opne'; did you mean 'open'"):
        module.opne  # noqa: B018


@pytest.mark.slow
@pytest.mark.parametrize("role", ["host", "guest"])
def test_an_unknown_argument_is_logged_with_the_one_that_was_meant(
    role: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.ExitStack() as opened, caplog.at_level(logging.WARNING, "warren.node"):
        if role == "guest":  # of another process, which has a log of its own
            opened.enter_context(Member(tmp_path, "hold")).hear("ready")
        node = opened.enter_context(warren.open(tmp_path, share=True))
        for _ in range(2):
            node.queue("q", arguments={"x-max-lenght": 5, "x-max-priority": 3})
            node.exchange("e", "fanout", arguments={"alternate-exchnage": "x"})
    queue, exchange = [record for record in caplog.records if getattr(record, "event", "") == "argument_unknown"]
    assert re.search(r"queue 'q' .* knows the argument 'x-max-lenght'.*'x-max-length'", queue.getMessage())
    assert re.search(r"exchange 'e' .* the argument 'alternate-exchnage'.*'alternate-exchange'", exchange.getMessage())
    assert (queue.queue, exchange.exchange) == ("q", "e")  # type: ignore[attr-defined]


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
            topic.append(b"x", colour=1)  # type: ignore[call-arg]


class Level(IntEnum):
    LOW = 1


class Retry:
    """A stranger's class with a name that an argument's class has."""

    arguments: ClassVar[dict[str, Any]] = {"x-max-length": 1}


@pytest.mark.slow
@both_ways
async def test_what_an_iterator_yields_is_checked_too_and_counts_once(node: Any) -> None:
    queue, topic = await done(node.queue("q")), await done(node.topic("t"))
    await done(node.publish_to(iter(["q", "q"]), b"x"))
    await done(node.publish_to(["q", "q"], b"x"))
    await done(node.add_user("bob", "secret", (tag for tag in ["monitoring"])))
    await done(topic.append(b"x", key=iter(["k", "l"]), tag="a"))
    await done(topic.append_many([b"x"], keys=iter(["k"]), tags=iter(["b"])))
    assert len(await listed(queue.browse())) == 2
    assert [user["tags"] for user in await done(node.users()) if user["name"] == "bob"] == [["monitoring"]]
    assert [record.keys for record in await done(topic.find("k"))] == [["k"], ["k", "l"]]
    assert [record.tag for record in await listed(topic.read("g", tags=iter(["b"]), max_records=1))] == ["b"]
    [found, _] = [message.id for message in await listed(queue.browse())]
    assert await done(queue.remove(ids=iter([found]))) == 1
    for wrong in (
        lambda: node.publish_to(iter([b"q"]), b"x"),
        lambda: node.add_user("eve", "secret", iter([5])),
        lambda: topic.append(b"x", key=iter([5])),
        lambda: topic.append_many([b"x"], keys=iter([5])),
        lambda: topic.append_many([b"x"], keys={"k": 1}),
        lambda: topic.reader("g", tags=iter([5])),
        lambda: queue.remove(ids=iter([5])),
        lambda: queue.move("r", ids=iter([b"1"])),
    ):
        with pytest.raises(InvalidValueError):
            await done(wrong())


@both_ways
async def test_properties_of_a_message_are_of_their_types(node: Any) -> None:
    deep: list[Any] = []
    for _ in range(3000):
        deep = [deep]
    queue = await done(node.queue("q"))
    wrong: list[dict[str, Any]] = [
        *({"persistent": value} for value in (None, "False", 1, 0)),
        *({"priority": value} for value in (True, "9" * 5000, deep)),
        *({name: deep} for name in ("expiration", "content_type", "timestamp", "delay", "at", "unique", "headers")),
        *({name: "9" * 5000} for name in ("expiration", "content_type", "timestamp", "delay", "at", "unique_for")),
        {"headers": {"x": {1}}},
    ]
    for properties in wrong:
        with pytest.raises(InvalidValueError) as caught:
            await done(queue.publish(b"x", **properties))
        assert len(str(caught.value)) < 400
    await done(queue.publish(b"x", priority=Level.LOW))
    [message] = await listed(queue.browse())
    assert (message.properties.priority, message.persistent) == (1, True)


@both_ways
async def test_a_class_is_not_recognized_by_its_name_alone(node: Any) -> None:
    with pytest.raises(InvalidValueError, match="retry must be a Retry or None"):
        await done(node.queue("q", retry=Retry()))


@both_ways
async def test_a_queues_argument_is_json_with_names_and_changes_nothing_otherwise(node: Any) -> None:
    for wrong in ({1: 2}, {"x": {1: 2}}, {"x": {1}}, {"x": [{1}]}, {"x": range(3)}, {"x": object()}):
        with pytest.raises(InvalidValueError):
            await done(node.queue("q", arguments=wrong))
    assert (await done(node.definitions()))["queues"] == []
    assert await done(node.queue("q", arguments={"x": [1, "2", None, {"y": 3}]}))


@pytest.mark.slow
@both_ways
async def test_no_place_of_another_type_stops_the_groups(node: Any) -> None:
    topic = await done(node.topic("t", queues=2))
    await done(topic.append_many([b"x"] * 8, queue=0))
    wrong: list[Any] = [{0.0: 0}, {0: 1.5}, {"x": 1}, {0: None}, {True: 0}, {0: 10**30}]
    wrong += [{0: datetime.min}, 10**400, 1e300]
    for place in wrong:
        with pytest.raises(InvalidValueError):
            await done(topic.seek("g", place))
        with pytest.raises(InvalidValueError):
            topic.reader("g", consume_from=place)
        with pytest.raises(InvalidValueError):
            topic.reader("g", broadcast=True, positions=place)
    with pytest.raises(TopicError, match="only broadcast readers have positions"):
        topic.reader("g", positions={0: 1})
    for moment in (datetime.min, datetime.max.replace(tzinfo=UTC), -1e11):
        await done(topic.seek("other", moment))
        await done(topic.find("k", begin=moment, end=moment))
    assert await done(topic.seek("g", {0: 5, 1: "last"})) == {0: 5, 1: 0}
    assert len(await listed(topic.read("g", max_records=3))) == 3


def test_a_consumers_callback_is_a_function_and_may_fail(tmp_path: Path) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError

    with warren.open(tmp_path) as node:
        queue = node.queue("q")
        consumer, confirm = queue.consume(), queue.publish(b"x")
        for call in (consumer.on_ready, confirm.on_done):
            with pytest.raises(InvalidValueError, match="callback must be a function"):
                call(5)  # type: ignore[arg-type]
            call(broken)
        delivery = consumer.receive(60.0)
        assert delivery is not None
        delivery.ack()
        queue.publish(b"y").wait()
