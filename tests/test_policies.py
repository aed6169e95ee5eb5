"""Policies: which one a queue or an exchange has, what it makes of its arguments, and when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import warren
from tests.support.both_ways import both_ways, done
from tests.support.process_tools import Bench, flat
from tests.support.runtime_tools import HandNode, actor_of, bodies, hand_node
from warren.actors.engines.declared.arguments import QueueDeclaration
from warren.actors.engines.declared.definitions import SLICE, Definitions
from warren.actors.engines.declared.exchanges import Binding, ExchangeDeclaration
from warren.actors.engines.declared.policies import AppliedPolicies, Policy
from warren.actors.engines.declared.queue_arguments import effective
from warren.actors.engines.declared.vhost_definitions import VhostDefinitions
from warren.actors.engines.errors import ArgumentsError, NotFoundError
from warren.actors.node.node_registry import NodeRegistry
from warren.errors import UnsavedError
from warren.verbs.steps import call


def policy(definition: Mapping[str, Any], **more: Any) -> Policy:
    return Policy(**{"vhost": "/", "name": "p", "pattern": "", "definition": definition, **more})


# ── which one ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def name_of(vhost: VhostDefinitions, target: Any, name: str) -> str | None:
    return vhost.policies.of(target, name).to_json()["policy"]


def test_the_policy_with_the_highest_priority_whose_pattern_is_found_in_the_name() -> None:
    vhost = Definitions().vhost("/")
    assert name_of(vhost, "queue", "orders") is None
    for name, pattern, priority, apply_to in (
        ("any", "", 0, "all"),
        ("orders", "^orders", 5, "queues"),
        ("late", "late$", 7, "queues"),
        ("exchanges", "orders", 9, "exchanges"),
        ("b", "^same$", 3, "all"),
        ("a", "^same$", 3, "all"),
    ):
        vhost.policies.put(policy({"max-length": 1}, name=name, pattern=pattern, priority=priority, apply_to=apply_to))
    assert {name: name_of(vhost, "queue", name) for name in ("x", "orders", "late orders", "orders late", "same")} == {
        "x": "any",
        "orders": "orders",
        "late orders": "any",
        "orders late": "late",
        "same": "a",
    }
    assert name_of(vhost, "exchange", "my orders") == "exchanges"
    assert name_of(vhost, "exchange", "late") == "any"
    vhost.policies.clear("policy", "late")
    assert name_of(vhost, "queue", "orders late") == "orders"
    assert [one.name for one in vhost.policies.all("policy")] == ["any", "b", "a", "orders", "exchanges"]
    with pytest.raises(NotFoundError, match="Parameter does not exist"):
        vhost.policies.clear("operator_policy", "any")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: policy({"max-length": 1}, name="n" * 256),
        lambda: policy({"max-length": 1}, name="\ud800"),
        lambda: policy({"max-length": 1}, vhost=7),
        lambda: policy({"max-length": 1}, pattern=7),
        lambda: policy({"max-length": 1}, priority="high"),
        lambda: policy({"max-length": 1}, priority=True),
        lambda: policy([("max-length", 1)]),  # type: ignore[arg-type]
        lambda: policy({7: 1}),  # type: ignore[dict-item]
        lambda: policy({"dead-letter-exchange": "\ud800"}),
        lambda: policy({"max-length": object()}),
        lambda: Policy.from_json("policy", []),
        lambda: Policy.from_json("policy", {"vhost": "/", "name": "p", "definition": {"max-length": 1}}),
        lambda: Policy.from_parameter({"vhost": "/", "name": "p", "component": "operator_policy", "value": 7}),
    ],
)
def test_what_is_no_policy_is_refused(wrong: Any) -> None:
    with pytest.raises(ArgumentsError):
        wrong()


NUMBERS = st.sampled_from(["max-length", "max-length-bytes", "message-ttl", "expires"])
TEXTS = st.sampled_from(["dead-letter-exchange", "dead-letter-routing-key"])
VALUES = st.one_of(
    st.tuples(NUMBERS, st.integers(1, 9)),
    st.tuples(TEXTS, st.sampled_from(["a", "b"])),
    st.tuples(st.just("overflow"), st.sampled_from(["drop-head", "reject-publish"])),
)
SETTINGS = st.lists(VALUES, max_size=4).map(dict)


@given(declared=SETTINGS, ours=SETTINGS, theirs=st.lists(st.tuples(NUMBERS, st.integers(1, 9))).map(dict))
def test_of_numbers_and_times_the_least_holds_and_of_the_rest_the_argument(
    declared: dict[str, Any], ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    if "dead-letter-routing-key" in declared:
        declared.setdefault("dead-letter-exchange", "")
    queue = QueueDeclaration("/", "q", arguments={f"x-{name}": value for name, value in declared.items()})
    applied = AppliedPolicies(
        policy(ours) if ours else None, policy(theirs, kind="operator_policy") if theirs else None
    )
    found = effective(queue, applied.definition).arguments
    assert found.keys() == {f"x-{name}" for name in (*declared, *ours, *theirs)}
    for name, value in found.items():
        said = [one[name[2:]] for one in (declared, ours, theirs) if name[2:] in one]
        assert value == (min(said) if isinstance(said[0], int) else said[0])


def test_what_a_policy_says_of_nothing_that_a_queue_has_leaves_the_declaration_itself() -> None:
    queue = QueueDeclaration("/", "q", arguments={"x-max-length": 1})
    assert effective(queue, {"ha-mode": "all", "max-in-memory-length": 3}) is queue
    assert effective(queue, {"message-ttl": 10**30}).message_ttl_ms == 315_360_000_000


# ── the engine ────────────────────────────────────────────────────────────────────────────────────────────────────────


def apply(bench: Bench, definition: Mapping[str, Any]) -> None:
    bench.queue.set_policies(AppliedPolicies(policy(definition)) if definition else AppliedPolicies())
    bench.queue.check_invariants()


def test_dead_letters_on_their_way_are_safe_although_the_exchange_was_taken_away_meanwhile() -> None:
    bench = Bench()
    apply(bench, {"dead-letter-exchange": "x", "max-length": 1})
    bench.publish(b"1", b"2")
    (batch,) = bench.queue.context.drain_effects().dead_letters
    apply(bench, {"max-length": 1})
    bench.publish(b"3")
    assert not bench.queue.context.drain_effects().dead_letters
    assert bench.queue.backing.depth == 2
    bench.queue.expiry.safe(batch.number)
    assert (bench.queue.backing.depth, bench.got()) == (1, [b"3"])
    apply(bench, {"dead-letter-exchange": "y", "dead-letter-routing-key": "k", "max-length": 0})
    bench.publish(b"4")
    (batch,) = bench.queue.context.drain_effects().dead_letters
    assert (batch.exchange, batch.publications[0].routing_keys) == ("y", ("k",))


def test_what_waits_keeps_the_expiry_that_it_came_with() -> None:
    bench = Bench()
    bench.publish(b"for ever")
    apply(bench, {"message-ttl": 10})
    bench.publish(b"10 ms")
    assert bench.queue.next_deadline_us() is None  # not at the head
    apply(bench, {"message-ttl": 20})
    bench.publish(b"20 ms")
    assert bench.got(1) == [b"for ever"]
    bench.later(11)
    apply(bench, {})
    bench.publish(b"for ever too")
    assert len(bench.queue.backing) == 2
    bench.later(1000)
    assert bench.got() == [b"for ever too"]


def test_what_may_not_wait_at_all_is_gone_at_once_wherever_it_would_stand() -> None:
    bench = Bench()
    bench.publish(b"waits")
    apply(bench, {"message-ttl": 0})
    bench.publish(b"1", b"2", token="t")
    assert bench.queue.context.drain_effects().confirmed == ["t"]
    assert len(bench.queue.backing) == 1
    apply(bench, {"message-ttl": 0, "dead-letter-exchange": "x"})
    bench.publish(b"3")
    assert len(bench.queue.backing) == 2  # it is not at the head yet, and expires when it gets there
    assert bench.got(1) == [b"waits"]
    assert bench.dead() == [("expired", b"3")]


def test_messages_with_consumers_count_for_no_limit_that_comes() -> None:
    bench = Bench()
    bench.publish(*[b"%d" % number for number in range(6)])
    held = flat(bench.queue.deliveries.get_many("c", 3, ack_required=True))
    apply(bench, {"max-length": 2})
    assert len(bench.queue.backing) == 2
    bench.queue.settlements.nack("c", [range(held[0][1], held[-1][1] + 1)], requeue=True)
    assert bench.got() == [b"4", b"5"]


@pytest.mark.parametrize("priorities", [False, True])
def test_a_sleeping_queue_has_a_policy_too(priorities: bool) -> None:
    bench = Bench({"x-max-priority": 2} if priorities else {})
    bench.publish(*[b"%d" % number for number in range(9)])
    bench.sync()
    bench.sleep()
    apply(bench, {"max-length": 2, "queue-mode": "lazy"})
    assert (len(bench.queue.backing), bench.queue.backing.mode) == (2, "lazy")
    bench.sleep()
    apply(bench, {"queue-mode": "default"})
    assert bench.got() == [b"7", b"8"]


# ── the node ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_policy_comes_changes_and_goes_while_a_queue_runs() -> None:
    scene = hand_node()
    node = scene.node
    queue = node.queue("q")
    queue.publish_many([b"%d" % number for number in range(9)]).wait()
    assert policies_of(queue) == (None, None, {})
    node.set_policy("short", "^q$", {"max-length": 5}, apply_to="queues")
    assert bodies(queue) == [b"4", b"5", b"6", b"7", b"8"]
    node.set_operator_policy("shorter", ".*", {"max-length": 3, "message-ttl": 1000})
    assert bodies(queue) == [b"6", b"7", b"8"]
    assert policies_of(queue) == ("short", "shorter", {"max-length": 3, "message-ttl": 1000})
    queue.publish(b"9").wait()
    assert bodies(queue) == [b"7", b"8", b"9"]
    scene.advance(2)
    assert bodies(queue) == [b"7", b"8", b"9"]  # 9 has expired, but two are before it
    node.set_policy("shortest", "q", {"max-length": 1}, priority=1)
    assert bodies(queue) == []
    node.clear_policy("shortest")
    node.clear_operator_policy("shorter")
    queue.publish_many([b"%d" % number for number in range(9)]).wait()
    assert len(bodies(queue)) == 5
    node.clear_policy("short")
    queue.publish(b"9").wait()
    assert len(bodies(queue)) == 6
    assert node.queue("q") is not None  # the same arguments still
    assert policies_of(queue) == (None, None, {})
    with pytest.raises(NotFoundError):
        node.clear_policy("short")
    node.close()


def policies_of(queue: warren.Queue) -> tuple[Any, Any, Any]:
    stats = queue.stats()
    return stats["policy"], stats["operator_policy"], stats["effective_policy_definition"]


@pytest.mark.slow
@pytest.mark.parametrize("end", ["done", "closed"])
@pytest.mark.parametrize("change", ["set", "clear", "import"])
def test_others_have_their_turns_between_slices_of_queues_that_get_other_policies(change: str, end: str) -> None:
    scene = hand_node()
    queues = [scene.node.queue(f"q{number}") for number in range(3 * SLICE)]
    if change == "clear":
        scene.node.set_policy("p", "", {"max-length": 1})
    scene.run()
    node, queue = scene.node._running.actor, actor_of(queues[0])
    registry = node.registry
    document = {"policies": [policy({"max-length": 1}).to_json()]}
    work: dict[str, Callable[[NodeRegistry], object]] = {
        "set": lambda _: registry.set_policy(policy({"max-length": 1})),
        "clear": lambda _: registry.clear_policy("policy", "/", "p"),
        "import": lambda _: registry.import_slice(registry.definitions.importing(document)),
    }
    changed = call(node, lambda: registry.change(work[change]))
    others = [call(node, lambda: None), call(queue, queue.stats)]
    while not all(other.done for other in others):
        assert scene.pool.run_one()
    assert not changed.done
    if end == "done":
        scene.run()
        changed.get()
        name = None if change == "clear" else "p"
        assert {policies_of(queue)[0] for queue in queues} == {name}
    scene.node.close()
    assert changed.done
    assert (changed.error is None) == (end == "done")


def test_a_policy_wakes_no_queue_that_is_asleep_and_empty() -> None:
    scene = hand_node()
    empty, full, unused = (scene.node.queue(name) for name in ("empty", "full", "unused"))
    for queue in (empty, full):
        queue.publish_many([b"1", b"2"]).wait()
    assert empty.purge() == 2
    scene.advance(30)
    turns = [actor_of(queue).turn_count for queue in (empty, full, unused)]
    rest_number = actor_of(empty).rest_number
    scene.node.set_policy("p", "", {"max-length": 1, "expires": 10_000})
    assert [policies_of(queue)[0] for queue in (empty, full, unused)] == ["p"] * 3
    assert [actor_of(queue).turn_count for queue in (empty, full, unused)] == [turns[0], turns[1] + 1, turns[2]]
    assert 0 < rest_number < actor_of(empty).rest_number, "or lists would show the queue as it was"
    assert [queue.stats()["state"] for queue in (empty, unused)] == ["hibernated"] * 2
    assert bodies(full) == [b"2"]
    scene.advance(9)
    assert len(scene.node.queues()) == 3
    scene.advance(2)
    assert scene.node.queues() == []
    scene.node.close()


def test_queues_of_a_policy_expire_and_begin_anew_when_it_changes() -> None:
    scene = hand_node()
    node = scene.node
    node.queue("mortal")
    node.set_policy("p", "", {"expires": 10_000})
    scene.advance(9)
    node.set_policy("p", "", {"expires": 10_000, "max-length": 5})
    scene.advance(9)
    assert [queue.name for queue in node.queues()] == ["mortal"]
    node.queue("born later")
    scene.advance(2)
    assert [queue.name for queue in node.queues()] == ["born later"]
    node.clear_policy("p")
    scene.advance(100)
    assert [queue.name for queue in node.queues()] == ["born later"]
    node.close()


@pytest.mark.parametrize("crash", [False, True])
def test_policies_outlive_the_node_and_hold_in_the_next_one(crash: bool) -> None:
    scene = hand_node()
    node = scene.node
    shop = node.vhost("shop")
    shop.queue("q").publish_many([b"1", b"2", b"3"]).wait()
    shop.set_policy("p", "q", {"max-length": 2, "queue-mode": "lazy"}, priority=-1, apply_to="queues")
    shop.set_operator_policy("o", "q", {"max-length": 7})
    node.set_policy("gone", "q", {"max-length": 1})
    node.clear_policy("gone")
    scene.run()
    assert mode_of(shop.queue("q")) == "lazy"
    if not crash:
        node.close()
    again = hand_node(scene.kill() if crash else scene.files)
    shop = again.node.vhost("shop")
    again.run()
    assert shop.policies() == [
        {
            "vhost": "shop",
            "name": "p",
            "pattern": "q",
            "apply-to": "queues",
            "definition": {"max-length": 2, "queue-mode": "lazy"},
            "priority": -1,
        }
    ]
    assert [one["name"] for one in shop.operator_policies()] == ["o"]
    assert again.node.policies() == again.node.operator_policies() == []
    queue = shop.queue("q")
    queue.publish(b"4").wait()
    assert (bodies(queue), mode_of(queue)) == ([b"3", b"4"], "lazy")
    shop.clear_policy("p")
    assert mode_of(queue) == "lazy"  # until it is started again
    again.node.close()
    last = hand_node(again.files)
    assert mode_of(last.node.vhost("shop").queue("q")) == "default"
    last.node.delete_vhost("shop")
    assert last.node.vhost("shop").policies() == []
    last.node.close()


def mode_of(queue: warren.Queue) -> str:
    mode: str = queue.stats()["backing_queue_status"]["mode"]
    return mode


def test_an_exchange_gets_an_alternate_exchange_from_a_policy_unless_it_has_its_own() -> None:
    scene = hand_node()
    node = scene.node
    lost, other = node.queue("lost"), node.queue("other")
    node.exchange("alternate", "fanout")
    node.bind("lost", "alternate")
    node.exchange("own", "fanout")
    node.bind("other", "own")
    plain = node.exchange("plain", "direct")
    with_own = node.exchange("with own", "direct", arguments={"alternate-exchange": "own"})

    def publish() -> tuple[int, int]:
        for exchange in (plain, with_own, node.exchange("amq.direct")):
            exchange.publish(b"", "nowhere").wait()
        return lost.purge(), other.purge()

    assert publish() == (0, 1)
    node.set_policy("ae", ".", {"alternate-exchange": "alternate"}, apply_to="exchanges")
    assert publish() == (2, 1)
    node.exchange("later", "direct").publish(b"", "nowhere").wait()
    assert lost.purge() == 1
    node.set_policy("ae", "^amq", {"alternate-exchange": "alternate"})
    assert publish() == (1, 1)
    node.clear_policy("ae")
    assert publish() == (0, 1)
    node.close()


def test_a_policy_that_cannot_be_written_down_is_not_there() -> None:
    scene = hand_node()
    node = scene.node
    queue = node.queue("q")
    queue.publish_many([b"1", b"2"]).wait()
    scene.run()
    scene.files.fail("append")
    with pytest.raises(UnsavedError):
        node.set_policy("p", "", {"max-length": 1})
    assert (node.policies(), bodies(queue), policies_of(queue)) == ([], [b"1", b"2"], (None, None, {}))
    node.set_policy("p", "", {"max-length": 1})
    scene.files.fail("append")
    with pytest.raises(UnsavedError):
        node.clear_policy("p")
    queue.publish(b"3").wait()
    assert (len(node.policies()), bodies(queue)) == (1, [b"3"])
    node.close()


def test_what_is_taken_back_takes_its_alternate_exchange_back() -> None:
    definitions = Definitions()
    definitions.declare_exchange(ExchangeDeclaration(vhost="/", name="x"))
    definitions.declare_exchange(ExchangeDeclaration(vhost="/", name="y", type="fanout"))
    definitions.declare_queue(QueueDeclaration("/", "q"))
    definitions.bind(binding("y", "q"))
    definitions.begin()
    definitions.set_policy(policy({"alternate-exchange": "y"}, pattern="^x$"))
    assert definitions.vhost("/").routing.route("x", "k") == ("q",)
    definitions.undo()
    assert definitions.vhost("/").routing.route("x", "k") == ()
    assert definitions.export_definitions()["policies"] == []


def binding(source: str, destination: str) -> Any:
    return Binding(vhost="/", source=source, destination=destination)


def test_an_import_that_is_refused_leaves_policies_as_they_were() -> None:
    definitions = Definitions()
    wrong = {
        "policies": [
            policy({"max-length": 1}).to_json(),
            policy({"max-length": 1}).to_json() | {"vhost": "nowhere"},
            policy({"max-length": 1}).to_json() | {"definition": {"length": 1}},
        ],
        "parameters": [{"component": "operator_policy", "vhost": "/", "name": "o", "value": {"pattern": ""}}],
    }
    with pytest.raises(warren.errors.DefinitionsError) as raised:
        definitions.import_definitions(wrong)
    assert raised.value.problems == (
        "policy 'p' in vhost 'nowhere': there is no such vhost",
        '[{<<"length">>,1}] are not recognised policy settings',
        'Key "definition" not found in o',
    )
    assert definitions.export_definitions()["policies"] == []


def test_one_vhosts_policies_go_into_another_one() -> None:
    definitions = Definitions()
    definitions.set_policy(policy({"max-length": 1}))
    definitions.set_policy(policy({"expires": 1}, kind="operator_policy", name="o"))
    definitions.declare_vhost("copy")
    done = definitions.import_definitions(definitions.export_definitions("/"), "copy")
    assert {(one.vhost, one.kind, one.name) for one in done.policies} == {
        ("copy", "policy", "p"),
        ("copy", "operator_policy", "o"),
    }
    assert definitions.export_definitions("copy") == definitions.export_definitions("/")


def test_a_queue_that_is_started_anew_has_its_policies() -> None:
    scene = hand_node()
    queue = scene.node.queue("q")
    scene.node.set_policy("p", "", {"max-length": 2})
    queue.publish_many([b"1", b"2", b"3"]).wait()
    fail_once(scene)
    queue = scene.node.queue("q", passive=True)
    queue.publish_many([b"4", b"5", b"6"]).wait()
    assert (bodies(queue), policies_of(queue)[0]) == ([b"5", b"6"], "p")
    scene.node.close()


def test_what_dies_while_a_vhost_is_being_opened_waits_for_the_queue_that_it_goes_to() -> None:
    scene = hand_node()
    queue = scene.node.queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    dead = scene.node.queue("dead")
    scene.node._running.vhost("/").opening = True
    queue.publish(b"1", expiration=0).wait()
    scene.advance(1)
    assert (queue.stats()["messages_dead_lettering"], len(dead)) == (1, 0)
    scene.node._running.vhost("/").opening = False
    scene.advance(1)
    assert (queue.stats()["messages_dead_lettering"], bodies(dead)) == (0, [b"1"])
    scene.node.close()


def fail_once(scene: HandNode) -> None:
    """Its actor ends by an error, and the node starts another one."""
    entry = scene.node._running.vhost("/").queues["q"]
    before = entry.running
    assert before is not None
    before.call_soon(lambda: 1 // 0)
    scene.run()
    assert entry.running is not before


@both_ways
async def test_policies_are_set_and_listed_both_ways(node: Any) -> None:
    await done(node.set_policy("p", "^q", {"max-length": 2}, priority=3, apply_to="queues"))
    await done(node.set_operator_policy("o", "", {"max-length": 1}))
    queue = await done(node.queue("q"))
    stats = await done(queue.stats())
    assert (stats["policy"], stats["operator_policy"]) == ("p", "o")
    assert stats["effective_policy_definition"] == {"max-length": 1}
    assert [one["name"] for one in await done(node.policies())] == ["p"]
    await done(node.clear_operator_policy("o"))
    await done(node.clear_policy("p"))
    assert await done(node.policies()) == await done(node.operator_policies()) == []
