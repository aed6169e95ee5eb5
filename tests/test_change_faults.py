"""A change of what is declared meets a disk that fails, or is full, at each of its operations: it is answered, the node
goes on, and the change is there or not, now and after the next start."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import warren
from tests.support.disk_fault_tools import CHANGES, looked_at, prepare
from tests.support.runtime_tools import BIG, DATA, HandNode, bodies, hand_node
from warren.actors.engines.declared.changes import Change
from warren.actors.engines.declared.definitions import Definitions
from warren.actors.engines.errors import ArgumentsError
from warren.storage.errors import DiskFullError, StorageError, WarrenError
from warren.storage.memory import MemoryFileSystem
from warren.verbs.steps import run

DOCUMENT = {
    "vhosts": [{"name": "imported"}],
    "queues": [
        {"name": name, "vhost": vhost, "durable": True, "auto_delete": False, "arguments": {}}
        for vhost, name in (("imported", "one"), ("imported", "two"), ("/", "three"))
    ],
    "exchanges": [{"name": "x", "vhost": "imported", "type": "fanout", "durable": True, "arguments": {}}],
    "bindings": [
        {
            "source": "x",
            "vhost": "imported",
            "destination": "one",
            "destination_type": "queue",
            "routing_key": "",
            "arguments": {},
        }
    ],
}

MORE_CHANGES: dict[str, Callable[[warren.Node], Any]] = {
    "import definitions": lambda node: node.import_definitions(DOCUMENT),
    "declare the first topic": lambda node: node.topic("news"),
    "declare another topic": lambda node: node.topic("news"),
    "let a topic have more queues": lambda node: node.topic("old", queues=9),
    "read as a new group": lambda node: list(node.topic("old").read("newcomers")),
}
WITH_A_TOPIC = frozenset({"declare another topic", "let a topic have more queues", "read as a new group"})
ALL_CHANGES = {**CHANGES, **MORE_CHANGES}


SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 15,
    "mapped_file_size_consume_queue": 20 * 50,
    "max_hash_slot_num": 64,
    "max_index_num": 256,
}


def scene_for(change: str, seed: int) -> HandNode:
    scene = hand_node(MemoryFileSystem(random.Random(seed)), seed=seed, **SMALL)
    prepare(scene)
    if change in WITH_A_TOPIC:
        scene.node.topic("old").append(b"t").wait()
    scene.run()
    return scene


def seen(scene: HandNode) -> dict[str, Any]:
    scene.run()
    return looked_at(scene) | {"topics": scene.node.topics()}


def serves(scene: HandNode) -> None:
    """The node does what it is asked for, old things and new ones."""
    queue = scene.node.queue("old")
    queue.publish(b"after").wait()
    assert bodies(queue)[-1] == b"after"
    scene.node.queue("another").publish(BIG).wait()
    scene.node.bind("another", "old exchange", "another key")
    if scene.node.topics():
        scene.node.topic("another").append(b"a").wait()


@pytest.mark.slow
@pytest.mark.parametrize("change", ALL_CHANGES)
def test_a_change_that_fails_at_any_operation_is_taken_back(change: str) -> None:
    """Of a queue that is to be deleted, though, what could not be deleted is what is left."""
    work = ALL_CHANGES[change]
    scene = scene_for(change, 0)
    before = seen(scene)
    operations = scene.files.operations
    work(scene.node)
    total = scene.files.operations - operations
    after = seen(scene)
    scene.kill()
    assert total > 0
    for operation in range(1, total + 1):
        scene = scene_for(change, operation)
        scene.files.fail_at(operation, error=(StorageError, DiskFullError)[operation % 2])
        where = f"{change}: operation {operation} of {total}: "
        try:
            work(scene.node)
        except WarrenError as refusal:
            where += str(refusal)
        scene.run()
        found = seen(scene)
        for part in ("vhosts", "exchanges", "bindings", "users", "permissions", "topics"):
            assert found[part] in (before[part], after[part]), where
        assert found["queues"].keys() in (before["queues"].keys(), after["queues"].keys()), where
        for key, messages in found["queues"].items():
            if key in before["queues"].keys() - after["queues"].keys():
                assert set(messages) <= set(before["queues"][key]), f"{where}: {key}"
            else:
                assert messages in (before["queues"].get(key), after["queues"].get(key), []), f"{where}: {key}"
        serves(scene)
        now = seen(scene)
        scene.node.close()
        again = hand_node(scene.files, seed=operation + 1, **SMALL)
        assert seen(again) == now, where
        again.node.close()


@pytest.mark.slow
@pytest.mark.parametrize("change", ALL_CHANGES)
def test_a_change_on_a_full_disk_is_answered_and_can_be_made_when_there_is_room(change: str) -> None:
    work = ALL_CHANGES[change]
    scene = scene_for(change, 0)
    before = seen(scene)
    scene.files.capacity_bytes = scene.files.used_bytes
    try:
        work(scene.node)
    except WarrenError:
        refused = True
    else:
        refused = False
    assert not refused or seen(scene)["topics"] == before["topics"]
    scene.files.capacity_bytes = None
    scene.advance(5)
    if refused:
        work(scene.node)
    serves(scene)
    now = seen(scene)
    scene.node.close()
    again = hand_node(scene.files, **SMALL)
    assert seen(again) == now
    again.node.close()


@pytest.mark.parametrize("error", [ZeroDivisionError, UnicodeEncodeError("utf-8", "x", 0, 1, "x"), RuntimeError])
def test_an_error_that_is_not_ours_takes_the_change_back_and_reaches_who_asked(error: Any) -> None:
    scene = scene_for("bind", 0)
    before = seen(scene)

    def work(actor: Any) -> None:
        for name in ("old exchange", "doomed exchange"):
            actor.definitions.vhost("/").delete_exchange(name)
        actor.definitions.vhost("/").delete_queue("old")
        actor.definitions.delete_vhost("doomed vhost")
        raise error

    with pytest.raises(error if isinstance(error, type) else type(error)):
        run(scene.node._running.change(work))
    assert seen(scene) == before
    scene.node.exchange("old exchange").publish(b"by its binding", routing_key="old key").wait()
    assert bodies(scene.node.queue("old"))[-1] == b"by its binding"
    serves(scene)
    scene.node.close()


LONE = "\ud800"
"""Half of a surrogate pair, which stands for no bytes."""

NO_TEXTS: dict[str, Callable[[warren.Node], Any]] = {
    "a vhost": lambda node: node.vhost(LONE),
    "a vhost of bytes that are no UTF-8": lambda node: node.vhost("\udc80"),
    "a queue": lambda node: node.queue(LONE),
    "an argument's name": lambda node: node.queue("q", arguments={LONE: 1}),
    "an argument": lambda node: node.queue("q", arguments={"x": [{"y": LONE}]}),
    "a dead-letter exchange": lambda node: node.queue("q", arguments={"x-dead-letter-exchange": LONE}),
    "an exchange": lambda node: node.exchange(LONE, "direct"),
    "an exchange's argument": lambda node: node.exchange("x", "direct", arguments={"x": LONE}),
    "a routing key": lambda node: node.bind("old", "amq.direct", LONE),
    "a binding's argument": lambda node: node.bind("old", "amq.headers", "", {"x": LONE}),
    "an imported vhost": lambda node: node.import_definitions({"vhosts": [{"name": "fine"}, {"name": LONE}]}),
    "an imported vhost of bytes": lambda node: node.import_definitions({"vhosts": [{"name": "\udc80"}]}),
    "an imported queue": lambda node: node.import_definitions(
        {"queues": [{"name": LONE, "vhost": "/", "durable": True, "arguments": {}}]}
    ),
    "an imported argument": lambda node: node.import_definitions(
        {"queues": [{"name": "q", "vhost": "/", "durable": True, "arguments": {LONE: 1}}]}
    ),
    "a topic": lambda node: node.topic(LONE),
}


@pytest.mark.parametrize("what", NO_TEXTS)
def test_what_is_no_text_is_refused_before_anything_is_written(what: str) -> None:
    scene = hand_node()
    scene.node.queue("old").publish(b"o").wait()
    operations = scene.files.operations
    with pytest.raises(WarrenError, match=r"surrogate|letters, digits"):
        NO_TEXTS[what](scene.node)
    assert scene.files.operations == operations
    scene.node.queue("old").publish(b"after").wait()
    scene.node.close()
    again = hand_node(scene.files, seed=1)
    assert bodies(again.node.queue("old")) == [b"o", b"after"]
    again.node.close()


def test_definitions_with_what_is_no_text_open_and_keep_it() -> None:
    """As an earlier warren wrote them; a vhost named by bytes that are no UTF-8 can be had."""
    files = MemoryFileSystem(random.Random(1))
    scene = hand_node(files)
    scene.node.queue("old").publish(b"o").wait()
    scene.node.close()
    definitions = Definitions.open(files, DATA, bytes)
    for kind, definition in (
        ("vhost", '{"name": "\\udc80"}'),
        ("vhost", '{"name": "\\ud800"}'),
        ("queue", '{"name": "q", "vhost": "\\ud800", "durable": true, "auto_delete": false, "arguments": {}}'),
        ("queue", '{"name": "k", "vhost": "/", "durable": true, "auto_delete": false, "arguments": {"\\ud800": 1}}'),
        ("binding", '{"source": "amq.direct", "vhost": "/", "destination": "k", "destination_type": "queue", '
                    '"routing_key": "k", "arguments": {}}'),
    ):  # fmt: skip
        definitions._notes.changes.append(Change("put", kind, definition))  # type: ignore[arg-type]
    definitions.save()
    for _ in range(2):
        scene = hand_node(files)
        assert len(scene.node._running.registry.definitions.passed_over) == 4
        assert scene.node.vhosts() == ["/", "\udc80"]
        assert [queue.name for queue in scene.node.queues()] == ["old"]
        vhost = scene.node.vhost("\udc80")
        vhost.queue("in it").publish(b"1").wait()
        scene.node._running.registry.definitions._file._log_bytes = None  # type: ignore[union-attr] # a new file has them, too
        scene.node.queue("new")
        scene.node.delete_queue("new")
        scene.node.close()
    assert bodies(hand_node(files).node.vhost("\udc80").queue("in it")) == [b"1", b"1"]
    with pytest.raises(ArgumentsError):
        scene.node._running.registry.definitions.declare_vhost("\udc81")
