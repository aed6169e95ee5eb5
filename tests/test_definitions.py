"""What is declared: what refuses it, what goes with what, how it lies on the disk, and RabbitMQ's JSON both ways."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.crash_points.losses import ChosenSurvivors, power_losses
from tests.support.broker import Broker, Message
from tests.support.effort import every, times
from tests.support.runtime_tools import hand_node
from warren import Node
from warren.actors.engines.declared import definitions_file
from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.definitions import SLICE, Definitions
from warren.actors.engines.declared.definitions_json import DefinitionsError
from warren.actors.engines.declared.exchanges import BUILTIN_EXCHANGES, Binding, ExchangeDeclaration
from warren.actors.engines.declared.permissions import Permissions, TopicPermissions
from warren.actors.engines.declared.policies import Policy, PolicyKind
from warren.actors.engines.declared.vhost_definitions import Removed
from warren.actors.engines.declared.vhost_metadata import VhostMetadata
from warren.actors.engines.errors import (
    AccessRefusedError,
    ArgumentsError,
    NotFoundError,
    PreconditionFailedError,
    RefusedError,
    ResourceLockedError,
)
from warren.storage.errors import DataError, DiskFullError, StorageError
from warren.storage.faults import FaultRules, SimulatedCrash
from warren.storage.filesystem import RealFileSystem
from warren.storage.memory import MemoryFileSystem
from warren.storage.own_files import DEFINITIONS_FILE, DEFINITIONS_LOG
from warren.verbs.steps import Steps
from warren.verbs.vhost_host import LocalVhost
from warren.verbs.vhost_verbs import NodeVerbs

T = TypeVar("T")

DIRECTORY = "/data/node"
FILE, LOG = f"{DIRECTORY}/{DEFINITIONS_FILE}", f"{DIRECTORY}/{DEFINITIONS_LOG}"
EXPORTED = Path(__file__).parent / "data" / "broker-definitions.json"
"""What ``rabbitmqctl export_definitions`` of RabbitMQ 3.10.8 wrote."""


def queue(name: str, vhost: str = "/", **kind: Any) -> QueueDeclaration:
    return QueueDeclaration(vhost=vhost, name=name, **kind)


def exchange(name: str, kind: Any = "direct", vhost: str = "/", **more: Any) -> ExchangeDeclaration:
    return ExchangeDeclaration(vhost=vhost, name=name, type=kind, **more)


def binding(source: str, destination: str, key: str = "", arguments: Any = None, vhost: str = "/") -> Binding:
    """``destination`` with a > in front is an exchange."""
    return Binding(
        vhost=vhost,
        source=source,
        destination=destination.removeprefix(">"),
        destination_type="exchange" if destination.startswith(">") else "queue",
        routing_key=key,
        arguments=arguments or {},
    )


def policy(name: str, definition: dict[str, Any], operator: bool = False) -> Policy:
    kind: PolicyKind = "operator_policy" if operator else "policy"
    return Policy(kind=kind, vhost="/", name=name, pattern="^q", definition=definition)


def kept(definitions: Definitions) -> list[str]:
    """All that is durable, in no order."""
    return sorted(json.dumps([part, item]) for part, items in definitions._snapshot().items() for item in items)


# ── declaring ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_declaring_again_is_fine_unless_it_is_something_else() -> None:
    definitions = Definitions()
    first = exchange("x", "topic", arguments={"alternate-exchange": "y", "other": 1})
    assert definitions.declare_exchange(first)
    assert not definitions.declare_exchange(exchange("x", "topic", arguments={"alternate-exchange": "y"}))
    for other, text in (
        (exchange("x", "direct", arguments={"alternate-exchange": "y"}), "'type' .* received 'direct' .* is 'topic'"),
        (
            exchange("x", "topic"),
            "'alternate-exchange' .* received none but current is the value 'y' of",
        ),
        (exchange("x", "topic", durable=False), "'durable' .* received 'false' but current is 'true'"),
        (exchange("x", "topic", auto_delete=True), "'auto_delete'"),
        (exchange("x", "topic", internal=True), "'internal'"),
    ):
        with pytest.raises(PreconditionFailedError, match=f"inequivalent arg {text}"):
            definitions.declare_exchange(other)
    assert definitions.declare_queue(queue("q"))
    assert not definitions.declare_queue(queue("q"))
    with pytest.raises(PreconditionFailedError, match="x-max-length"):
        definitions.declare_queue(queue("q", arguments={"x-max-length": 1}))
    with pytest.raises(ResourceLockedError):
        definitions.declare_queue(queue("q", exclusive=True))
    assert definitions.vhost("/").exchange("x") == first


def test_names_of_the_nodes_own_are_refused() -> None:
    definitions = Definitions()
    for declare in (
        lambda: definitions.declare_exchange(exchange("amq.mine")),
        lambda: definitions.declare_queue(queue("amq.mine")),
        lambda: definitions.declare_exchange(exchange("")),
        lambda: definitions.vhost("/").delete_exchange(""),
        lambda: definitions.vhost("/").delete_exchange("amq.direct"),
    ):
        with pytest.raises(AccessRefusedError):
            declare()
    assert definitions.declare_queue(queue("amq.gen-1"), named_by_node=True)
    assert not definitions.declare_queue(queue("amq.gen-1"))
    assert not definitions.declare_exchange(exchange("amq.topic", "topic"))
    with pytest.raises(PreconditionFailedError, match="'type'"):
        definitions.declare_exchange(exchange("amq.topic", "direct"))


def test_the_default_exchange_can_neither_be_bound_nor_unbound() -> None:
    definitions = Definitions()
    definitions.declare_queue(queue("q"))
    for forbidden in (binding("", "q", "k"), binding("amq.direct", ">")):
        for change in (definitions.bind, definitions.unbind):
            with pytest.raises(AccessRefusedError, match="default exchange"):
                change(forbidden)
    implicit = binding("", "q", "q")
    assert definitions.vhost("/").bindings_from("") == [implicit] == definitions.vhost("/").bindings_to("queue", "q")
    assert definitions.vhost("/").bindings() == []


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: exchange("x", "x-delayed-message"),
        lambda: exchange("x" * 256),
        lambda: exchange("é" * 128),
        lambda: exchange("\ud800"),
        lambda: exchange("\udcc3\udca9"),  # the bytes of another text
        lambda: exchange(7),  # type: ignore[arg-type]
        lambda: exchange("x", durable=1),
        lambda: exchange("x", arguments={"alternate-exchange": 7}),
        lambda: exchange("x", arguments={"alternate-exchange": None}),
        lambda: exchange("x", arguments={7: 7}),
        lambda: binding("x", "q", "k" * 256),
        lambda: binding("x", "q", "k", {"a": object()}),
        lambda: binding("x", "q", "k", {"a": float("nan")}),
        lambda: Binding(vhost="/", source="x", destination="q", destination_type="topic"),  # type: ignore[arg-type]
        lambda: Definitions().declare_vhost(""),
        lambda: Definitions().declare_queue(queue("")),
        lambda: Definitions().declare_queue(queue("q", arguments={"mine": object()})),
    ],
)
def test_what_cannot_be_is_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ArgumentsError):
        wrong()


def test_arguments_nested_without_end_are_refused() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(ArgumentsError, match="nested deeper"):
        binding("x", "q", "", {"a": nested})


def test_a_refused_queue_leaves_nothing_behind() -> None:
    definitions = Definitions()
    with pytest.raises(ArgumentsError):
        definitions.declare_queue(queue("q", arguments={"mine": object()}))
    assert definitions.vhost("/").queues() == []
    assert definitions.vhost("/").routing.route("", "q") == ()


def test_what_is_not_there_is_not_found() -> None:
    definitions = Definitions()
    definitions.declare_queue(queue("q"))
    for look in (
        lambda: definitions.vhost("elsewhere"),
        lambda: definitions.declare_queue(queue("q", "elsewhere")),
        lambda: definitions.vhost("/").queue("none"),
        lambda: definitions.vhost("/").exchange("none"),
        lambda: definitions.bind(binding("none", "q")),
        lambda: definitions.bind(binding("amq.direct", "none")),
        lambda: definitions.bind(binding("amq.direct", ">none")),
    ):
        with pytest.raises(NotFoundError):
            look()
    for gone in (
        definitions.vhost("/").delete_queue("none"),
        definitions.vhost("/").delete_exchange("none"),
        definitions.delete_vhost("none"),
        definitions.unbind(binding("none", "q")),
        definitions.unbind(binding("amq.direct", "q")),
    ):
        assert gone == Removed()


# ── deleting ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_queue_takes_its_bindings_and_the_exchanges_that_waited_for_them() -> None:
    definitions = Definitions()
    definitions.declare_queue(queue("q"))
    for name in ("first", "second", "third"):
        definitions.declare_exchange(exchange(name, "fanout", auto_delete=True))
    definitions.declare_exchange(exchange("stays", "fanout"))
    for source, destination in (("first", ">second"), ("second", "q"), ("stays", ">first"), ("stays", "q")):
        definitions.bind(binding(source, destination))
    assert definitions.vhost("/").delete_queue("q") == Removed(("q",), ("second", "first"), 4)
    assert [x.name for x in definitions.vhost("/").exchanges()] == ["", *BUILTIN_EXCHANGES, "third", "stays"]
    definitions.check_invariants()


def test_an_auto_delete_exchange_waits_for_its_first_binding() -> None:
    definitions = Definitions()
    definitions.declare_queue(queue("q"))
    definitions.declare_exchange(exchange("x", auto_delete=True))
    definitions.bind(binding("amq.direct", ">x"))
    definitions.unbind(binding("amq.direct", ">x"))
    assert definitions.vhost("/").exchange("x")  # what leads to it does not count
    definitions.bind(binding("x", "q", "1"))
    definitions.bind(binding("x", "q", "2"))
    assert definitions.unbind(binding("x", "q", "1")) == Removed(bindings=1)
    assert definitions.unbind(binding("x", "q", "2")) == Removed(exchanges=("x",), bindings=1)
    with pytest.raises(NotFoundError):
        definitions.vhost("/").routing.route("x", "1")


def test_a_chain_of_thousands_of_auto_delete_exchanges_goes_at_once() -> None:
    definitions = Definitions()
    definitions.declare_queue(queue("q"))
    names = [f"x{number}" for number in range(3000)]
    for name in names:
        definitions.declare_exchange(exchange(name, auto_delete=True))
    for source, destination in zip(names, [f">{name}" for name in names[1:]] + ["q"], strict=True):
        definitions.bind(binding(source, destination))
    assert definitions.vhost("/").delete_queue("q").exchanges == tuple(names[::-1])
    definitions.check_invariants()


def test_an_exchange_in_use_is_kept_if_asked() -> None:
    definitions = Definitions()
    definitions.declare_queue(queue("q"))
    definitions.declare_exchange(exchange("x"))
    definitions.bind(binding("x", "q"))
    definitions.bind(binding("amq.fanout", ">x"))
    with pytest.raises(PreconditionFailedError, match="in use"):
        definitions.vhost("/").delete_exchange("x", if_unused=True)
    definitions.unbind(binding("x", "q"))
    assert definitions.vhost("/").delete_exchange("x", if_unused=True) == Removed(exchanges=("x",), bindings=1)
    assert definitions.vhost("/").bindings() == []


def test_an_exchange_bound_to_itself_goes_once() -> None:
    definitions = Definitions()
    definitions.declare_exchange(exchange("x", auto_delete=True))
    definitions.bind(binding("x", ">x"))
    assert definitions.vhost("/").delete_exchange("x") == Removed(exchanges=("x",), bindings=1)
    definitions.check_invariants()


def test_a_vhost_goes_with_all_that_is_in_it() -> None:
    definitions = Definitions()
    definitions.declare_vhost("shop")
    definitions.declare_queue(queue("q", "shop"))
    definitions.declare_exchange(exchange("x", vhost="shop"))
    definitions.bind(binding("x", "q", vhost="shop"))
    table = definitions.vhost("shop").routing
    assert table.route("x", "") == table.route("", "q") == ("q",)
    assert definitions.delete_vhost("shop") == Removed(("q",), ("x",), 1)
    assert definitions.vhosts() == ["/"]
    assert table.route("", "q") == ()
    with pytest.raises(NotFoundError):
        table.route("x", "")


def test_vhosts_know_nothing_of_each_other() -> None:
    definitions = Definitions()
    definitions.declare_vhost("shop")
    definitions.declare_queue(queue("q", "shop"))
    with pytest.raises(NotFoundError):
        definitions.bind(binding("amq.direct", "q"))
    assert definitions.vhost("/").routing.route("", "q") == ()


# ── on the disk ───────────────────────────────────────────────────────────────────────────────────────────────────────


def declare_much(definitions: Definitions) -> None:
    """Something of everything, half of it not to be kept."""
    definitions.declare_vhost("shop")
    definitions.declare_queue(queue("kept", arguments={"x-max-length": 5, "mine": [None, {"a": 1.5}]}))
    definitions.declare_queue(queue("amq.gen-kept"), named_by_node=True)
    definitions.declare_queue(queue("passing", durable=False))
    definitions.declare_queue(queue("own", exclusive=True))
    definitions.declare_queue(queue("naïve \udc80", "shop"))
    definitions.declare_exchange(exchange("x", "headers", internal=True, arguments={"alternate-exchange": "y"}))
    definitions.declare_exchange(exchange("passing", durable=False))
    for source, destination in (
        ("x", "kept"),
        ("x", "passing"),
        ("x", "own"),
        ("x", ">passing"),
        ("passing", "kept"),
        ("passing", ">x"),
        ("amq.topic", ">x"),
    ):
        definitions.bind(binding(source, destination, "k", {"x-match": "any", "n": 1, "void": None}))


def test_what_is_durable_comes_back_and_nothing_else() -> None:
    files = MemoryFileSystem()
    definitions = Definitions.open(files, DIRECTORY, bytes)
    declare_much(definitions)
    definitions.save()
    assert definitions.is_saved
    again = Definitions.open(files, DIRECTORY, bytes)
    again.check_invariants()
    assert kept(again) == kept(definitions)
    assert [q.name for q in again.vhost("/").queues()] == ["kept", "amq.gen-kept"]
    assert again.vhost("/").queue("kept") == definitions.vhost("/").queue("kept")
    assert again.vhost("/").exchange("x") == definitions.vhost("/").exchange("x")
    assert sorted((b.source, b.destination) for b in again.vhost("/").bindings()) == [("amq.topic", "x"), ("x", "kept")]
    assert again.vhost("/").bindings()[0].arguments == {"x-match": "any", "n": 1, "void": None}


def test_real_files_keep_definitions_too(tmp_path: Path) -> None:
    definitions = Definitions.open(RealFileSystem(), str(tmp_path / "new" / "node"), bytes)
    declare_much(definitions)
    definitions.save()
    definitions.declare_queue(queue("late"))
    definitions.save()
    assert kept(Definitions.open(RealFileSystem(), str(tmp_path / "new" / "node"), bytes)) == kept(definitions)


def test_opening_and_saving_nothing_durable_writes_nothing() -> None:
    files = MemoryFileSystem()
    definitions = Definitions.open(files, DIRECTORY, bytes)
    assert files.operations == 0
    definitions.save()
    again = Definitions.open(files, DIRECTORY, bytes)
    again.save()
    before = files.contents(), files.operations
    again.declare_queue(queue("passing", durable=False))
    again.declare_exchange(exchange("passing", durable=False))
    assert again.is_saved
    again.save()
    assert (files.contents(), files.operations) == before


def test_what_a_killed_process_left_in_the_log_is_on_the_disk_before_anything_behind_it() -> None:
    """Else a power loss could take it and leave what came later: a broken record followed by whole ones."""
    for cuts in itertools.product((3, 4), repeat=3):
        files = MemoryFileSystem(random.Random(sum(cuts)))
        definitions = Definitions.open(files, DIRECTORY, bytes)
        definitions.declare_queue(queue("q"))
        definitions.save()
        for number, cut in enumerate(cuts):  # three processes are killed as they declare another one
            definitions.declare_queue(queue(f"killed-{number}"))
            files.crash_at(cut)
            with contextlib.suppress(SimulatedCrash):
                definitions.save()
            files = files.after_process_crash()
            definitions = Definitions.open(files, DIRECTORY, bytes)
        asked = ChosenSurvivors()
        files.after_power_loss(asked)
        for point in power_losses(0, asked.made)[0]:
            found = Definitions.open(files.after_power_loss(ChosenSurvivors(point.choices)), DIRECTORY, bytes)
            assert found.vhost("/").queue("q")


def test_what_a_killed_process_left_is_made_safe_before_anybody_is_told_of_it() -> None:
    """Killed before it synced, its declaration is there; declared again, and saved, it must outlive a power loss."""
    for cut in range(1, 12):
        files = MemoryFileSystem(random.Random(cut))
        definitions = Definitions.open(files, DIRECTORY, bytes)
        definitions.save()
        definitions.declare_queue(queue("q"))
        files.crash_at(cut)
        try:
            definitions.save()
        except SimulatedCrash:
            heir = files.after_process_crash()
        else:
            break
        again = Definitions.open(heir, DIRECTORY, bytes)
        again.declare_queue(queue("q"))
        again.save()
        assert again.is_saved
        for seed in range(5):
            assert Definitions.open(heir.after_power_loss(random.Random(seed)), DIRECTORY, bytes).vhost("/").queue("q")
    assert cut > 3


def test_without_syncs_a_declaration_outlives_the_process_and_a_power_loss_takes_only_the_latest() -> None:
    files = MemoryFileSystem(random.Random(1))
    synced = Definitions.open(files, DIRECTORY, bytes)
    for name in ("first", "second"):
        synced.declare_queue(queue(name))
        synced.save()
    definitions = Definitions.open(files, DIRECTORY, bytes, sync=False)
    names = [f"queue-{number}" for number in range(50)]
    files.fail("sync", times=99)
    for name in names:
        definitions.declare_queue(queue(name))
        definitions.save()
        assert definitions.is_saved
    after_a_kill = Definitions.open(files.after_process_crash(), DIRECTORY, bytes, sync=False)
    assert [q.name for q in after_a_kill.vhost("/").queues()] == ["first", "second", *names]
    counts = set()
    for seed in range(times(50)):
        after_a_loss = Definitions.open(files.after_power_loss(random.Random(seed)), DIRECTORY, bytes)
        left = [q.name for q in after_a_loss.vhost("/").queues()]
        assert left == ["first", "second", *names[: len(left) - 2]]
        counts.add(len(left))
    assert len(counts) > 1


def test_one_more_queue_costs_its_own_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand queues declared and saved one by one must not write the ten thousand each time."""
    monkeypatch.setattr(definitions_file, "MIN_LOG_BYTES", 1000)
    files = MemoryFileSystem()
    definitions = Definitions.open(files, DIRECTORY, bytes)
    written = 0
    for number in range(1000):
        before = {path: len(data) for path, data in files.contents().items()}
        definitions.declare_queue(queue(f"q{number}"))
        definitions.save()
        after = {path: len(data) for path, data in files.contents().items()}
        written += after[FILE] if after[FILE] != before.get(FILE) else after[LOG] - before.get(LOG, 0)
    assert written < 6 * (len(files.read(FILE)) + files.size(LOG))
    assert kept(Definitions.open(files, DIRECTORY, bytes)) == kept(definitions)


STEPS: list[Callable[[Definitions], object]] = [
    declare_much,
    lambda d: d.declare_queue(queue("late", arguments={"x-message-ttl": 1})),
    lambda d: d.bind(binding("amq.fanout", "late")),
    lambda d: [d.declare_queue(queue(f"q{number}")) for number in range(10)],
    lambda d: d.vhost("/").delete_queue("kept"),
    lambda d: d.vhost("/").delete_exchange("x"),
    lambda d: d.declare_exchange(exchange("x", "topic")),
    lambda d: d.delete_vhost("shop"),
    lambda d: [d.vhost("/").delete_queue(f"q{number}") for number in range(10)],
    lambda d: (d.declare_vhost("shop"), d.declare_queue(queue("q", "shop"))),
    lambda d: d.vhost("/").delete_exchange("x"),
    lambda d: (d.users.add("bob", b"b", ["management"]), d.grant("bob", "shop", Permissions("", "^b", ".*"))),
    lambda d: d.grant_topics("bob", "shop", "amq.topic", TopicPermissions("^b", ".*")),
    lambda d: (d.users.change_password("bob", b"c"), d.users.set_permissions("guest", "/", "", "", "")),
    lambda d: (
        d.set_parameter("shop", "vhost-limits", "limits", {"max-queues": 9}),
        d.parameters.set_global("g", None),
    ),
    lambda d: (d.describe_vhost("shop", VhostMetadata(tags=("a",))), d.parameters.set_global("g", [1, {"a": "b"}])),
    lambda d: (d.users.delete("bob"), d.parameters.clear_global("g")),
    lambda d: d.set_policy(policy("p", {"max-length": 1})),
    lambda d: (d.set_policy(policy("p", {"max-length": 2})), d.set_policy(policy("o", {"expires": 1}, True))),
    lambda d: d.vhost("/").policies.clear("policy", "p"),
]
STEPS *= 2
"""Changes, each followed by a save."""


def run(files: MemoryFileSystem, states: list[list[str]]) -> None:
    """All steps on a disk; ``states`` gets what is kept before each save, whether it returns or not."""
    definitions = Definitions.open(files, DIRECTORY, bytes)
    for step in STEPS:
        step(definitions)
        states.append(kept(definitions))
        definitions.save()
    states.append(states[-1])


@pytest.mark.slow
@pytest.mark.parametrize("torn", [False, True])
def test_cut_off_at_every_operation(torn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process finds what the last save that returned left, or what the one that did not was to leave."""
    monkeypatch.setattr(definitions_file, "MIN_LOG_BYTES", 300)
    whole = MemoryFileSystem()
    run(whole, [])
    kinds = [kind for kind, _ in whole.plan.log]
    assert min(kinds.count("rename"), kinds.count("append"), kinds.count("delete")) >= 2
    for seed in range(times(2, quick=1)):
        for cut in range(1 + torn % every(3), whole.operations + 1, every(3)):
            files = MemoryFileSystem(random.Random(seed * 1000 + cut))
            states = [kept(Definitions())]
            files.crash_at(cut, torn=torn)
            with pytest.raises(SimulatedCrash):
                run(files, states)
            heirs = [files.after_process_crash()]
            heirs += [files.after_power_loss(random.Random(power)) for power in range(3)]
            for heir in heirs:
                found = Definitions.open(heir, DIRECTORY, bytes)
                found.check_invariants()
                assert kept(found) in states[-2:], f"seed {seed}, operation {cut}"
                found.declare_queue(queue("after the crash"))
                found.save()
                after = kept(found)
                assert kept(Definitions.open(heir.after_power_loss(random.Random(9)), DIRECTORY, bytes)) == after


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["append", "sync", "rename", "sync_directory", "create", "delete", "make_directory"])
def test_a_save_that_failed_is_made_up_for_by_the_next_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions_file, "MIN_LOG_BYTES", 300)
    failures = 0
    for skip in range(0, 30, every(3)):
        files = MemoryFileSystem(random.Random(skip))
        files.fail(kind, skip=skip)
        definitions = Definitions.open(files, DIRECTORY, bytes)
        saved = kept(definitions)
        for step in STEPS:
            step(definitions)
            try:
                definitions.save()
            except StorageError:
                failures += 1
                assert not definitions.is_saved
                survivor = Definitions.open(files, DIRECTORY, bytes)
                assert kept(survivor) in (saved, kept(definitions))
                definitions.save()
            saved = kept(definitions)
            assert kept(Definitions.open(files, DIRECTORY, bytes)) == saved
        assert kept(Definitions.open(files.after_power_loss(random.Random(1)), DIRECTORY, bytes)) == saved
    assert failures


def test_a_full_disk_loses_nothing_that_was_saved() -> None:
    files = MemoryFileSystem()
    definitions = Definitions.open(files, DIRECTORY, bytes)
    declare_much(definitions)
    definitions.save()
    saved = kept(definitions)
    files.capacity_bytes = files.used_bytes + 100
    definitions.declare_queue(queue("q" * 200))
    for _ in range(2):  # as a record of the log, then as a new file
        with pytest.raises(DiskFullError):
            definitions.save()
        assert kept(Definitions.open(files, DIRECTORY, bytes)) == saved
    files.capacity_bytes = None
    definitions.save()
    assert kept(Definitions.open(files, DIRECTORY, bytes)) == kept(definitions)


def without_users(files: MemoryFileSystem) -> None:
    """Let the file be of a warren that knew of no users."""
    document = json.loads(files.read(FILE))
    for part in document["definitions"].keys() - definitions_file.FIRST_PARTS:
        del document["definitions"][part]
    document["checksum"] = definitions_file._checksum(document["generation"], document["definitions"])
    replace(files, FILE, json.dumps(document).encode())


@pytest.mark.parametrize("is_new", [True, False])
def test_there_is_a_first_user_until_somebody_deletes_it(is_new: bool) -> None:
    files = MemoryFileSystem()
    if not is_new:
        earlier = Definitions.open(files, DIRECTORY, bytes)
        earlier.declare_queue(queue("q"))
        earlier.save()
        without_users(files)
        again = Definitions.open(files, DIRECTORY, bytes)
        again.declare_queue(queue("of then"))
        again._notes.changes = again._notes.changes[-1:]  # as an earlier warren would have gone on
        again.save()
    definitions = Definitions.open(files, DIRECTORY, bytes)
    assert definitions.users.authenticate("guest", b"guest").tags == ("administrator",)
    assert definitions.users.permissions("guest") == {"/": Permissions(".*", ".*", ".*")}
    definitions.save()
    definitions = Definitions.open(files, DIRECTORY, bytes)
    definitions.users.change_password("guest", b"mine")
    definitions.save()
    definitions = Definitions.open(files, DIRECTORY, bytes)
    assert definitions.users.authenticate("guest", b"mine")
    definitions.users.delete("guest")
    definitions.save()
    for _ in range(2):
        definitions = Definitions.open(files, DIRECTORY, bytes)
        assert definitions.users.to_json() == {"users": [], "permissions": [], "topic_permissions": []}
        definitions.declare_queue(queue("more"))
        definitions.save()
    assert definitions.vhost("/").queue("more")


def test_a_change_of_users_is_taken_back_with_all_that_goes_with_it() -> None:
    definitions = Definitions.open(MemoryFileSystem(), DIRECTORY, bytes)
    definitions.declare_vhost("shop")
    definitions.users.add("bob", b"b")
    definitions.grant("bob", "shop", Permissions("", "^b", ".*"))
    definitions.grant_topics("bob", "shop", "amq.topic", TopicPermissions("^b", ".*"))
    definitions.save()
    before = kept(definitions)
    definitions.users.change_password("bob", b"c")
    definitions.users.add("eve", b"e")
    definitions.grant("bob", "shop", Permissions("", "", ""))
    definitions.delete_vhost("shop")
    assert definitions.users.to_json()["topic_permissions"] == []
    assert not definitions.users.may_use("bob", "shop")
    definitions.users.delete("bob")
    definitions.check_invariants()
    definitions.undo()
    assert kept(definitions) == before
    definitions.check_invariants()
    assert definitions.is_saved


def test_permissions_are_of_somebody_who_is_there_somewhere_that_is_there() -> None:
    definitions = Definitions()
    for user, vhost in (("bob", "/"), ("guest", "shop")):
        with pytest.raises(NotFoundError, match=r"no (user 'bob'|vhost 'shop')"):
            definitions.grant(user, vhost, Permissions("", "", ""))
        with pytest.raises(NotFoundError, match=r"no (user 'bob'|vhost 'shop')"):
            definitions.grant_topics(user, vhost, "amq.topic", TopicPermissions("", ""))


def damaged_disk() -> tuple[MemoryFileSystem, list[list[str]]]:
    files = MemoryFileSystem(rules=FaultRules(damage=True))
    states: list[list[str]] = []
    definitions = Definitions.open(files, DIRECTORY, bytes)
    for step in STEPS[:4]:
        step(definitions)
        definitions.save()
        states.append(kept(definitions))
    return files, states


def opening(files: MemoryFileSystem) -> list[str] | DataError:
    try:
        return kept(Definitions.open(files, DIRECTORY, bytes))
    except DataError as error:
        return error


def test_a_flipped_bit_anywhere_in_the_file_is_said_and_left_as_it_is() -> None:
    files, _ = damaged_disk()
    whole = files.contents()
    saved = kept(Definitions.open(files, DIRECTORY, bytes))
    unnoticed = 0
    for offset in range(len(whole[FILE])):
        files.flip_bit(FILE, offset, offset % 8)
        damaged = files.contents()
        said = opening(files)
        if isinstance(said, DataError):
            assert said.path == FILE
        else:  # white space turned into other white space: what it says is the same
            assert said == saved, offset
            unnoticed += 1
        assert files.contents() == damaged
        files.flip_bit(FILE, offset, offset % 8)
    assert unnoticed < len(whole[FILE]) // 10
    assert files.contents() == whole


def test_a_flipped_bit_in_the_log_is_said_unless_it_may_be_a_torn_end() -> None:
    files, states = damaged_disk()
    log = files.read(LOG)
    last = log.rstrip(b"\n").rindex(b"\n") + 1
    for offset in range(0, len(log), every(3)):
        files.flip_bit(LOG, offset, offset % 8)
        if offset < last - 1:
            with pytest.raises(DataError) as raised:
                Definitions.open(files, DIRECTORY, bytes)
            assert raised.value.path == LOG
            assert raised.value.offset is not None
            assert raised.value.offset <= offset
        elif offset >= last:
            assert kept(Definitions.open(files, DIRECTORY, bytes)) == states[-2]
        files.flip_bit(LOG, offset, offset % 8)
    assert kept(Definitions.open(files, DIRECTORY, bytes)) == states[-1]


@pytest.mark.slow
def test_a_log_cut_anywhere_holds_the_whole_records_before_the_cut() -> None:
    files, states = damaged_disk()
    log = files.read(LOG)
    for size in range(len(log), -1, -every(3)):
        files.cut(LOG, size)
        whole_saves = max(log[:size].count(b"\n") - 1, 0)
        found = Definitions.open(files, DIRECTORY, bytes)
        assert kept(found) == states[whole_saves]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda files: files.delete(FILE), "missing, although its log"),
        (lambda files: replace(files, FILE, b""), "not JSON"),
        (lambda files: replace(files, FILE, b"\xff\xfe{"), "not JSON"),
        (lambda files: replace(files, FILE, b"[" * 100_000), "not JSON"),
        (lambda files: replace(files, FILE, b"[]"), "not of the format"),
        (lambda files: edit(files, version=2), "of version 2"),
        (lambda files: edit(files, checksum="00000000"), "the checksum is wrong"),
        (lambda files: edit(files, definitions={}), "the checksum is wrong"),
        (lambda files: edit(files, generation=True), "the checksum is wrong"),
        (lambda files: edit_sound(files, permissions=None), "permissions is not a list of definitions"),
        (lambda files: edit_sound(files, bindings={"a": 1}), "bindings is not a list of definitions"),
        (lambda files: edit_sound(files, queues=["q"]), "queues is not a list of definitions"),
        (lambda files: edit_sound(files, queues=[{"vhost": "/"}]), "a definition without its 'name'"),
        (lambda files: edit_sound(files, parameters=[{"vhost": []}]), "a definition without its 'component'"),
        (lambda files: edit_sound(files, users=[{"name": []}]), "definitions that contradict each other"),
    ],
)
def test_files_that_cannot_be_are_said_and_left_as_they_are(
    change: Callable[[MemoryFileSystem], None], reason: str
) -> None:
    files, _ = damaged_disk()
    change(files)
    before = files.contents()
    with pytest.raises(DataError, match=reason) as raised:
        Definitions.open(files, DIRECTORY, bytes)
    assert raised.value.path == FILE
    assert files.contents() == before


def replace(files: MemoryFileSystem, path: str, data: bytes) -> None:
    files.delete(path)
    files.open_append(path).append(data)


def edit(files: MemoryFileSystem, **changes: Any) -> None:
    replace(files, FILE, json.dumps(json.loads(files.read(FILE)) | changes).encode())


def edit_sound(files: MemoryFileSystem, **parts: Any) -> None:
    """Let the file say something else, and its checksum be right."""
    document = json.loads(files.read(FILE))
    snapshot = document["definitions"] | parts
    edit(files, definitions=snapshot, checksum=definitions_file._checksum(document["generation"], snapshot))


def test_a_log_of_a_later_generation_than_its_file_is_damage() -> None:
    files, _ = damaged_disk()
    document = json.loads(files.read(FILE))
    edit(files, generation=0, checksum=definitions_file._checksum(0, document["definitions"]))
    with pytest.raises(DataError, match="begins with"):
        Definitions.open(files, DIRECTORY, bytes)


NAMES = st.sampled_from("abc")
DURABLE = st.booleans()
CHANGES = st.one_of(
    st.tuples(st.just("queue"), NAMES, DURABLE, st.booleans()),
    st.tuples(st.just("exchange"), NAMES, DURABLE, st.booleans()),
    st.tuples(st.sampled_from(["drop queue", "drop exchange"]), NAMES),
    st.tuples(
        st.sampled_from(["bind", "unbind"]), NAMES, st.sampled_from(["a", "b", ">a", ">b"]), st.sampled_from("xy")
    ),
    st.tuples(st.just("save")),
)


@given(changes=st.lists(CHANGES, max_size=40))
def test_the_disk_agrees_with_memory_after_each_save(changes: list[tuple[Any, ...]]) -> None:
    files = MemoryFileSystem()
    definitions = Definitions.open(files, DIRECTORY, bytes)
    definitions.save()
    saved = kept(definitions)
    for change in changes:
        try:
            match change:
                case ("queue", name, durable, exclusive):
                    definitions.declare_queue(queue(name, durable=durable, exclusive=exclusive))
                case ("exchange", name, durable, auto_delete):
                    definitions.declare_exchange(exchange(name, durable=durable, auto_delete=auto_delete))
                case ("drop queue", name):
                    definitions.vhost("/").delete_queue(name)
                case ("drop exchange", name):
                    definitions.vhost("/").delete_exchange(name)
                case ("bind", source, destination, key):
                    definitions.bind(binding(source, destination, key))
                case ("unbind", source, destination, key):
                    definitions.unbind(binding(source, destination, key))
                case _:
                    definitions.save()
                    saved = kept(definitions)
        except RefusedError:
            pass
        assert kept(Definitions.open(files, DIRECTORY, bytes)) == saved
    definitions.check_invariants()
    again = Definitions()
    again.import_definitions(json.loads(json.dumps(definitions.export_definitions())))
    assert again.export_definitions()["queues"] == definitions.export_definitions()["queues"]


# ── RabbitMQ's JSON ───────────────────────────────────────────────────────────────────────────────────────────────────


def exported() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(EXPORTED.read_text(encoding="utf-8"))
    return document


def test_a_brokers_export_is_imported_and_routes() -> None:
    definitions = Definitions()
    done = definitions.import_definitions(exported())
    assert done.vhosts == ("shop",)
    assert {q.name for q in done.queues} == {"errors", "all", "passing", "orders"}
    assert {x.name for x in done.exchanges} == {"logs", "unrouted", "by-headers", "orders"}
    assert len(done.bindings) == 5
    assert done.ignored == {}
    assert (done.users, done.permissions) == (("guest",), (("guest", "shop"),))
    assert definitions.users.may_use("guest", "shop")
    assert [policy.name for policy in done.policies] == [one["name"] for one in exported()["policies"]] != []
    assert [text for text in done.skipped if "'inner'" in text] == list(done.skipped) != []  # the broker left it out
    route = definitions.vhost("/").routing.route
    assert route("logs", "db.error.disk") == ("errors",)
    assert route("logs", "db.info") == ("all",)  # the alternate
    assert route("by-headers", "", {"pages": 3}) == ("passing",)
    assert route("by-headers", "", {"pages": 4, "urgent": False}) == ()
    assert route("amq.topic", "anything") == ("all",)
    assert definitions.vhost("shop").routing.route("orders", "new") == ("orders",)
    assert definitions.vhost("/").queue("errors").dead_letter_exchange == "unrouted"
    definitions.check_invariants()


def test_importing_again_adds_nothing() -> None:
    definitions = Definitions()
    definitions.import_definitions(exported())
    before = definitions.export_definitions()
    done = definitions.import_definitions(exported())
    assert (done.vhosts, done.queues, done.exchanges, done.bindings) == ((), (), (), ())
    assert (done.users, done.permissions, done.parameters) == ((), (), ())
    assert definitions.export_definitions() == before


def test_an_export_is_the_same_after_an_import() -> None:
    definitions = Definitions()
    declare_much(definitions)
    document = json.loads(json.dumps(definitions.export_definitions()))
    items = [item for part in ("queues", "exchanges", "bindings") for item in document[part]]
    assert "null" not in json.dumps([item["arguments"] for item in items])  # a broker refuses it
    assert {item["name"] for item in document["queues"]} == {"kept", "passing", "naïve \udc80", "amq.gen-kept"}
    again = Definitions()
    skipped = again.import_definitions(document).skipped
    assert len(skipped) == 1
    assert "'amq.gen-kept'" in skipped[0]
    document["queues"] = [item for item in document["queues"] if item["name"] != "amq.gen-kept"]
    assert again.export_definitions() == document


def backed_up(change: Callable[[dict[str, Any]], None] = lambda binding: None) -> Definitions:
    """Definitions with a binding for messages that have a header, whatever it says, exported and imported."""
    definitions = Definitions()
    definitions.declare_queue(queue("q", arguments={"mine": [None, "undefined"]}))
    definitions.bind(binding("amq.headers", "q", "", {"v": None}))
    document = json.loads(json.dumps(definitions.export_definitions()))
    assert document["bindings"][0]["arguments"] == {"v": "undefined"}, "as a broker says it"
    change(document["bindings"][0])
    again = Definitions()
    again.import_definitions(document)
    return again


def test_arguments_without_a_value_survive_an_export() -> None:
    again = backed_up()
    assert again.vhost("/").queue("q").arguments == {"mine": [None, "undefined"]}
    assert again.vhost("/").routing.route("amq.headers", "", {"v": 1}) == ("q",)
    assert again.vhost("/").routing.route("amq.headers", "", {"w": 1}) == ()


@pytest.mark.parametrize("said", ["undefined", "edited"])
def test_the_arguments_that_a_broker_or_an_editor_left_are_taken_as_they_are(said: str) -> None:
    def change(binding: dict[str, Any]) -> None:
        if said == "undefined":
            del binding["exact_arguments"]  # unknown to a broker
        binding["arguments"] = {"v": said}

    route = backed_up(change).vhost("/").routing.route
    assert (route("amq.headers", "", {"v": 1}), route("amq.headers", "", {"v": said})) == ((), ("q",))


def test_one_vhosts_definitions_say_no_vhost_and_go_into_any() -> None:
    definitions = Definitions()
    definitions.import_definitions(exported())
    document = definitions.export_definitions("/")
    assert "vhost" not in json.dumps(document)
    with pytest.raises(DefinitionsError, match="says no vhost"):
        definitions.import_definitions(document)
    with pytest.raises(DefinitionsError, match="no vhost 'copy'"):
        definitions.import_definitions(document, "copy")
    definitions.declare_vhost("copy")
    done = definitions.import_definitions(document, "copy")
    assert {q.vhost for q in done.queues} == {"copy"}
    assert definitions.export_definitions("copy") == document


@pytest.mark.parametrize("how", [{"type": "mirrored"}, {"arguments": {"x-queue-type": "mirrored"}}])
def test_queues_of_an_unknown_type_are_refused(how: dict[str, Any]) -> None:
    item = {"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}} | how
    with pytest.raises(DefinitionsError, match="'q' in vhost '/' is of type 'mirrored'; a queue is classic"):
        Definitions().import_definitions({"queues": [item]})


@pytest.mark.parametrize("how", [{"type": "quorum"}, {"arguments": {"x-queue-type": "quorum"}}])
def test_quorum_queues_are_imported_and_exported_as_such(how: dict[str, Any]) -> None:
    item = {"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}} | how
    definitions = Definitions()
    definitions.import_definitions({"queues": [item]})
    (exported,) = definitions.export_definitions()["queues"]
    assert exported == item | {"type": "quorum", "arguments": {"x-queue-type": "quorum"}}


def test_an_import_is_all_or_nothing_and_lists_what_is_in_the_way() -> None:
    definitions = Definitions()
    definitions.declare_queue(queue("orders", durable=False))
    definitions.declare_exchange(exchange("logs", "fanout"))
    before = definitions.export_definitions()
    plain = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    document = {
        "vhosts": [{"name": "new"}, {"name": ""}, 7],
        "queues": [
            plain | {"name": "fine"},
            plain | {"name": "orders"},
            plain | {"name": "twice"},
            plain | {"name": "twice", "arguments": {"x-max-length": 1}},
            plain | {"name": "q", "type": "mirrored"},
            plain | {"name": "short", "arguments": {"x-max-length": "short"}},
            plain | {"name": "lost", "vhost": "nowhere"},
            plain | {"name": ""},
        ],
        "exchanges": [
            plain | {"name": "logs", "type": "topic"},
            plain | {"name": "odd", "type": "x-no-such"},
            plain | {"type": "topic"},
        ],
        "bindings": {},
    }
    with pytest.raises(DefinitionsError) as raised:
        definitions.import_definitions(document)
    problems = raised.value.problems
    for text in (
        "a vhost needs a name",
        "a JSON object, not 7",
        "'durable' for queue 'orders'",
        "'x-max-length' for queue 'twice'",
        "'q' in vhost '/' is of type 'mirrored'",
        "queue 'short'",
        "queue 'lost' in vhost 'nowhere': there is no such vhost",
        "a queue needs a name",
        "'type' for exchange 'logs'",
        "unknown exchange type 'x-no-such'",
        "whose name is None",
        "bindings are a list",
    ):
        assert [problem for problem in problems if text in problem], text
    assert len(problems) == 12
    assert definitions.export_definitions() == before
    assert definitions.vhosts() == ["/"]


@pytest.mark.parametrize("document", [[], "text", None, {"queues": 7}, {"queues": [{"name": object()}]}])
def test_what_is_no_definitions_is_refused(document: Any) -> None:
    with pytest.raises(DefinitionsError):
        Definitions().import_definitions(document)


JSON_WORDS = ["", "/", "q", "direct", "queue", "classic", "guest", "vhost-limits", "limits"]
JSON_NAMES = [
    "name", "vhost", "type", "durable", "arguments", "source", "destination_type", "x-match", "metadata", "tags",
    "limits", "password_hash", "hashing_algorithm", "user", "configure", "write", "read", "component", "value",
    "max-queues",
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(JSON_WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(JSON_NAMES), inner, max_size=6),
    max_leaves=12,
)


@pytest.mark.slow
@given(document=st.dictionaries(st.sampled_from([*definitions_file.KINDS, "policies"]), JSON | st.lists(JSON)))
def test_an_import_of_anything_works_or_is_refused(document: dict[str, Any]) -> None:
    definitions = Definitions()
    try:
        definitions.import_definitions(document)
    except DefinitionsError:
        assert definitions.export_definitions() == Definitions().export_definitions()
    definitions.check_invariants()


ACCESS: dict[str, Any] = {
    "vhosts": [
        {"name": "shop", "metadata": {"description": "sells", "tags": ["a", "b"], "default_queue_type": "classic"}},
        {"name": "old", "tags": "x, y"},
        {"name": "plain", "metadata": {"description": "", "tags": ""}},
    ],
    "users": [{"name": "bob", "password": "secret", "tags": ["management"], "limits": {"max-channels": 5}}],
    "permissions": [{"user": "bob", "vhost": "shop", "configure": "^bob", "write": ".*", "read": ""}],
    "topic_permissions": [{"user": "bob", "vhost": "shop", "exchange": "amq.topic", "write": "^b", "read": ".*"}],
    "parameters": [
        {"vhost": "shop", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 7}},
        {"vhost": "/", "component": "shovel", "name": "s", "value": {"src-uri": "amqp://", "prefetch": 5}},
    ],
    "global_parameters": [{"name": "cluster_name", "value": "rabbit"}, {"name": "pairs", "value": [["a", 1]]}],
}


def test_users_permissions_and_parameters_go_in_and_out() -> None:
    definitions = Definitions()
    done = definitions.import_definitions(ACCESS)
    assert done.users == ("bob",)
    assert done.permissions == (("bob", "shop"),)
    assert done.topic_permissions == (("bob", "shop", "amq.topic"),)
    assert done.parameters == (("shop", "vhost-limits", "limits"), ("/", "shovel", "s"))
    assert done.global_parameters == ("cluster_name", "pairs")
    assert (done.kept, done.ignored) == ({"parameters": 1, "global_parameters": 2}, {})
    out = definitions.export_definitions()
    assert {one["name"]: (one["limits"], one["metadata"]) for one in out["vhosts"]} == {
        "/": ([], {"description": "Default virtual host", "tags": []}),
        "shop": (
            [["max-queues", 7]],
            {"description": "sells", "tags": ["a", "b"], "default_queue_type": "classic"},
        ),
        "old": ([], {"description": "", "tags": ["x", "y"]}),
        "plain": ([], {"description": "", "tags": []}),
    }
    for part in ("permissions", "topic_permissions", "parameters", "global_parameters"):
        assert all(item in out[part] for item in ACCESS[part]), part
    assert definitions.users.authenticate("bob", b"secret").limits == {"max-channels": 5}
    again = Definitions()
    again.import_definitions(json.loads(json.dumps(out)))
    assert again.export_definitions() == out


def test_a_single_vhosts_import_has_parameters_and_nothing_of_the_node() -> None:
    definitions = Definitions()
    definitions.import_definitions(ACCESS)
    document = definitions.export_definitions("shop")
    assert document["parameters"] == [{"component": "vhost-limits", "name": "limits", "value": {"max-queues": 7}}]
    other = Definitions()
    done = other.import_definitions(ACCESS | document, "/")
    assert done.ignored == {"users": 1, "permissions": 1, "topic_permissions": 1, "global_parameters": 2}
    assert other.parameters.vhost_limits("/") == {"max-queues": 7}
    assert "bob" not in other.users


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"permissions": ACCESS["permissions"]}, "permissions of 'bob', who is no user"),
        (
            {"users": ACCESS["users"], "permissions": ACCESS["permissions"]},
            "in vhost 'shop': there is no such",
        ),
        (
            {"parameters": ACCESS["parameters"][:1]},
            "parameter 'vhost-limits' 'limits' in vhost 'shop'",
        ),
        ({"parameters": [ACCESS["parameters"][1] | {"component": "vhost-limits"}]}, "has one parameter, limits"),
        (
            {"parameters": [{"vhost": "/", "component": "vhost-limits", "name": "limits", "value": {"max-size": 1}}]},
            "limit 'max-size' is not one of max-connections, max-queues",
        ),
        ({"global_parameters": [{"value": 1}]}, "a parameter's name cannot be None"),
        ({"vhosts": [{"name": "v", "metadata": [1]}]}, "metadata are an object"),
        ({"vhosts": [{"name": "v", "tags": [1]}]}, "a vhost's tags cannot be"),
        ({"users": [{"name": "b", "password_hash": "?"}]}, "not base64"),
    ],
)
def test_users_that_cannot_be_are_in_the_way_of_an_import(document: dict[str, Any], problem: str) -> None:
    definitions = Definitions()
    before = definitions.export_definitions()
    with pytest.raises(DefinitionsError, match=problem):
        definitions.import_definitions({"users": [{"name": "new", "password": "x"}]} | document)
    assert definitions.export_definitions() == before


def unordered(items: Any) -> Any:
    """A part of an export, with what a broker keeps of it: the arguments as it says them."""
    if not isinstance(items, list):
        return items
    kept = [{name: value for name, value in item.items() if name != "exact_arguments"} for item in items]
    return sorted(json.dumps(item, sort_keys=True) for item in kept)


@pytest.mark.broker
def test_a_broker_imports_what_warren_exports_and_gives_it_back(broker: Broker, tmp_path: Path) -> None:
    definitions = Definitions()
    definitions.import_definitions(exported())
    definitions.bind(binding("by-headers", "passing", "void", {"nothing": None, "list": [1, "a", None], "half": 0.5}))
    document = tmp_path / "warren.json"
    document.write_text(json.dumps(definitions.export_definitions()))
    returned = tmp_path / "broker.json"
    broker.start()
    broker.ctl("import_definitions", str(document))
    broker.ctl("export_definitions", str(returned))
    again = Definitions()
    again.import_definitions(json.loads(returned.read_text()))
    given_back = again.export_definitions()
    assert {part: unordered(items) for part, items in given_back.items()} == {
        part: unordered(items) for part, items in definitions.export_definitions().items()
    }
    keys = ("db.error", "db.info")
    broker.publish([Message(b"", key, "logs") for key in keys])
    route = definitions.vhost("/").routing.route
    for name in ("errors", "all"):
        expected = [key for key in keys if name in route("logs", key)]
        assert [delivery.routing_key for delivery in broker.drain(name)] == expected != []


LONG: dict[str, Any] = {
    "queues": [{"vhost": "/", "name": f"q{number}", "durable": True, "arguments": {}} for number in range(3 * SLICE)],
    "bindings": [
        {
            "vhost": "/", "source": "amq.direct", "destination": f"q{number}", "destination_type": "queue",
            "routing_key": f"k{number}", "arguments": {},
        }
        for number in range(SLICE)
    ],
}  # fmt: skip


def names_of(node: Node) -> set[str]:
    return {queue.name for queue in node.queues()}


def run_with_turns(steps: Steps[T], other: Callable[[], None]) -> T:
    """Run a verb, and ``other`` after each of its turns."""
    answer: Any = None
    while True:
        try:
            wait = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        answer = wait.get()
        other()


def test_a_long_import_lets_others_declare_between_its_slices() -> None:
    """40,000 queues were one turn of the node's actor, for which everybody else waited."""
    scene = hand_node()
    steps = NodeVerbs(LocalVhost(scene.node._running)).import_definitions(LONG)
    seen = list[int]()

    def look() -> None:
        scene.node.queue("other")
        seen.append(len(names_of(scene.node)) - 1)

    imported = run_with_turns(steps, look)
    declared = [there - before for before, there in itertools.pairwise(seen)]
    assert max(declared) == SLICE
    assert declared.count(0) >= 4, "the document is read in slices, too"
    assert [queue.name for queue in imported.queues] == [item["name"] for item in LONG["queues"]]
    assert len(imported.bindings) == SLICE
    again = hand_node(scene.kill())
    assert names_of(again.node) == {"other", *(item["name"] for item in LONG["queues"])}


def test_a_long_import_with_a_problem_at_its_end_declares_nothing() -> None:
    scene = hand_node()
    wrong = {"vhost": "/", "name": "wrong", "durable": True, "arguments": {}, "type": "mirrored"}
    with pytest.raises(DefinitionsError, match="'wrong'"):
        scene.node.import_definitions({"queues": [*LONG["queues"], wrong]})
    assert names_of(scene.node) == set()


def test_the_slices_before_a_full_disk_stay() -> None:
    scene = hand_node()
    scene.files.capacity_bytes = scene.files.used_bytes + 20_000
    with pytest.raises(DiskFullError):
        scene.node.import_definitions(LONG)
    there = names_of(scene.node)
    assert len(there) in {SLICE, 2 * SLICE}
    scene.files.capacity_bytes = None
    assert len(scene.node.import_definitions(LONG).queues) == 3 * SLICE - len(there)
    again = hand_node(scene.kill())
    assert names_of(again.node) == {item["name"] for item in LONG["queues"]}
