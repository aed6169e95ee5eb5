"""The actor of a store and a queue's way to it: credit, tickets, grouped syncs, compaction on the side, failure."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pykka import ActorRef

from tests.support.runtime_tools import actor_behind, forget_actors
from warren.actors import messages as m
from warren.actors.clock import HandClock
from warren.actors.engines.credit import GrantedCredit
from warren.actors.engines.node_settings import NodeSettings
from warren.actors.node.gate import Gate
from warren.actors.node.node_context import NodeContext
from warren.actors.node.store_actor import MessageStoreActor, RemoteStore
from warren.actors.runtime.inbox import Call
from warren.actors.runtime.pool import HandPool, Pool
from warren.actors.runtime.pooled_actor import ActorStoppedError, PooledActor
from warren.msg_store.rdq.message_store import MessageStore, StoreStatus
from warren.queue_index.queue.body_store import StoreClient
from warren.storage.errors import StorageError
from warren.storage.memory import MemoryFileSystem
from warren.storage.settings import Settings

SETTINGS = Settings(msg_store_file_size_limit=1000)


class Listener(PooledActor):
    """Stands for a queue or for the node: records its messages."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self.heard: list[Any] = []
        self.remote: RemoteStore | None = None

    def on_receive(self, message: object) -> None:
        self.heard.append(message)
        if isinstance(message, m.StoreProgress) and self.remote is not None:
            self.remote.progress(message.taken_ticket, message.safe_ticket)


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def body(number: int) -> bytes:
    return f"body {number} ".encode() * 8


class Scene:
    """A store with its actor, a disk in memory, and a clock that stands still."""

    def __init__(
        self,
        sync: Literal["os", "group", "always"] = "group",
        *,
        counted: bool = True,
        credit: tuple[int, int] = (400, 80),
    ) -> None:
        self.files = MemoryFileSystem(random.Random(0))
        self.files.make_directories("/store")
        self.pool, self.clock = HandPool(), HandClock()
        self.gate = Gate(400, self.clock)
        self.credit = credit
        self.node = self.listener()
        self.context = NodeContext(
            files=self.files,
            pool=self.pool,
            clock=self.clock,
            random=random.Random(0).randbytes,
            settings=NodeSettings(sync=sync),
            engine=SETTINGS,
        )
        self.context.node, self.context.monitor = self.node.actor_ref, self.listener().actor_ref
        self.clients = 0
        self.open(counted=counted)

    def open(self, *, counted: bool = True) -> None:
        self.store = MessageStore.open(self.files, "/store", SETTINGS)
        if counted:
            self.store.set_references([])
        self.actor: ActorRef[Any] = MessageStoreActor.start(self.context, self.store, "the store")

    def listener(self) -> Listener:
        return actor_behind(Listener.start(self.pool))

    def queue(self) -> tuple[RemoteStore, Listener]:
        listener = self.listener()
        self.clients += 1
        credit = GrantedCredit(*self.credit)
        listener.remote = RemoteStore(
            self.actor, listener.actor_ref, self.store, self.clients, credit=credit, gate=self.gate
        )
        return listener.remote, listener

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds, self.pool.run)

    def syncs(self) -> int:
        return sum(kind == "sync" for kind, _ in self.files.plan.log)

    def status(self) -> StoreStatus:
        found = self.actor.ask(Call(self.store.status))
        assert isinstance(found, StoreStatus)
        return found


@pytest.fixture
def scenes(caplog: pytest.LogCaptureFixture) -> Iterator[list[Scene]]:
    caplog.set_level(logging.CRITICAL, "warren")
    made: list[Scene] = []
    yield made
    for scene in made:
        forget_actors(scene.pool)


@pytest.fixture
def scene(scenes: list[Scene]) -> Scene:
    scenes.append(Scene())
    return scenes[0]


# ── credit ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_credit_is_blocked_when_it_is_used_up_and_comes_back_in_portions() -> None:
    credit = GrantedCredit(4000, 800)
    credit.spend(3999)
    assert not credit.blocked
    credit.spend(1)
    assert credit.blocked
    credit.take_back(799)
    assert (credit.credit, credit.blocked) == (0, True)
    credit.take_back(1)
    assert (credit.credit, credit.blocked) == (800, False)


def test_a_batch_may_overdraw_the_credit_and_is_paid_back_before_more_goes() -> None:
    credit = GrantedCredit(100, 50)
    credit.spend(180)
    assert (credit.credit, credit.blocked) == (-80, True)
    credit.take_back(50)
    assert credit.blocked
    credit.take_back(50)
    assert (credit.credit, credit.blocked) == (20, False)
    credit.take_back(80)
    assert credit.credit == 100


@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=60),
)
def test_credit_is_never_lost_and_never_more_than_it_was(one: int, two: int, steps: list[tuple[bool, int]]) -> None:
    initial, more_after = max(one, two), min(one, two)
    credit, out = GrantedCredit(initial, more_after), 0
    for spends, count in steps:
        if spends:
            if not credit.blocked:
                credit.spend(count)
                out += count
        elif out:
            taken = min(count, out)
            credit.take_back(taken)
            out -= taken
        assert initial - out - more_after < credit.credit <= initial - out
        assert not credit.blocked or credit.credit <= 0 or out
    if out:
        credit.take_back(out)
    assert (credit.credit, credit.blocked) == (initial, False)


def test_a_queue_gets_its_credit_back_as_the_store_takes_its_bodies(scenes: list[Scene]) -> None:
    scene = Scene(credit=(10, 5))
    scenes.append(scene)
    remote, _ = scene.queue()
    client = StoreClient(remote, remote.credit)
    client.write([key(n) for n in range(10)], [body(n) for n in range(10)])
    assert remote.credit.blocked
    scene.pool.run()
    assert not remote.credit.blocked
    assert remote.credit.credit == 10


# ── tickets and syncs ───────────────────────────────────────────────────────────────────────────────────────────────


def test_bodies_are_taken_at_once_and_safe_within_25_ms(scene: Scene) -> None:
    remote, listener = scene.queue()
    remote.write_many([key(1), key(2)], [body(1), body(2)])
    assert (remote.written_ticket, remote.taken_ticket, remote.synced_ticket) == (2, 0, 0)
    scene.pool.run()
    assert (remote.taken_ticket, remote.synced_ticket) == (2, 0)
    scene.advance(0.024)
    assert remote.synced_ticket == 0
    scene.advance(0.001)
    assert remote.synced_ticket == 2
    assert [one.safe_ticket for one in listener.heard] == [0, 2]


def test_syncs_of_several_queues_are_one(scene: Scene) -> None:
    first, second = scene.queue()[0], scene.queue()[0]
    scene.pool.run()
    before = scene.syncs()
    for number in range(8):
        (first, second)[number % 2].write_many([key(number)], [body(number)])
        scene.advance(0.003)
    assert first.synced_ticket == 0
    scene.advance(0.001)  # 25 ms after the first
    assert (first.synced_ticket, second.synced_ticket) == (4, 4)
    assert scene.syncs() == before + 1


def test_somebody_who_waits_gets_a_sync_at_once_and_the_timer_then_finds_nothing(scene: Scene) -> None:
    remote, _ = scene.queue()
    remote.write_many([key(1)], [body(1)])
    remote.sync()
    scene.pool.run()
    assert remote.synced_ticket == 1
    after = scene.syncs()
    scene.advance(1)
    assert scene.syncs() == after
    remote.sync()
    scene.pool.run()
    assert scene.syncs() == after, "nothing is left to sync"


@pytest.mark.parametrize("sync", ["os", "always"])
def test_without_grouping_a_turn_makes_safe_what_it_took(scenes: list[Scene], sync: Literal["os", "always"]) -> None:
    scene = Scene(sync)
    scenes.append(scene)
    remote, _ = scene.queue()
    remote.write_many([key(1)], [body(1)])
    scene.pool.run()
    assert remote.synced_ticket == 1


def test_a_client_that_has_left_is_told_nothing_and_its_bodies_stay(scene: Scene) -> None:
    remote, listener = scene.queue()
    remote.write_many([key(1)], [body(1)])
    remote.leave()
    scene.advance(1)
    assert [one.safe_ticket for one in listener.heard] == []
    assert scene.store.read_many([key(1)]) == [body(1)]
    assert scene.store.status().synced_ticket == 1


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_body_can_be_read_wherever_it_is_on_its_way(scene: Scene) -> None:
    remote, _ = scene.queue()
    remote.write_many([key(1)], [body(1)])
    assert remote.contains(key(1))
    assert remote.read_many([key(1)]) == [body(1)]
    scene.pool.run()
    remote.write_many([key(2)], [body(2)])
    assert remote.read_many([key(2), key(1)]) == [body(2), body(1)]
    scene.advance(1)
    assert remote._in_flight is None
    assert remote.read_many([key(1), key(2)]) == [body(1), body(2)]
    assert not remote.contains(key(3))


def test_a_body_written_twice_stays_readable_while_the_second_is_on_its_way(scene: Scene) -> None:
    remote, listener = scene.queue()
    remote.write_many([key(1), key(2)], [body(1), body(2)])
    remote.write_many([key(1)], [body(1)])
    remote.progress(2, 0)
    assert remote._in_flight is not None
    assert list(remote._in_flight) == [key(1)]
    assert remote.contains(key(1))
    listener.remote = None


# ── compaction ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_writes_go_on_while_files_are_combined_never_more_than_a_step_behind(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, _ = scene.queue()
    count = 200
    remote.write_many([key(n) for n in range(count)], [body(n) for n in range(count)])
    scene.advance(1)
    steps: list[int] = []
    compact = MessageStore.compact

    def counted(store: MessageStore, max_steps: int | None = None, *, until_idle: bool = True) -> bool:
        assert max_steps == 1
        steps.append(1)
        return compact(store, max_steps, until_idle=until_idle)

    monkeypatch.setattr(MessageStore, "compact", counted)
    kept = set(range(0, count, 7))
    remote.remove_many([key(n) for n in range(count) if n not in kept])
    assert scene.pool.run_one()
    written, most, went_on = count, 0, 0
    while scene.store.needs_compaction():
        before = len(steps)
        remote.write_many([key(written)], [body(written)])
        kept.add(written)
        written += 1
        while remote.taken_ticket < remote.written_ticket and scene.pool.run_one():
            pass
        most, went_on = max(most, len(steps) - before), went_on + 1
    assert most == 1
    assert went_on > 20, "it was no compaction of many steps"
    assert scene.store.read_many([key(n) for n in sorted(kept)]) == [body(n) for n in sorted(kept)]
    scene.store.check_invariants()
    scene.pool.run()
    assert scene.status().garbage_fraction <= 0.5


# ── after a dirty start ─────────────────────────────────────────────────────────────────────────────────────────────


def dirty(scenes: list[Scene]) -> Scene:
    """A store that was killed with the bodies 0 … 9 in it."""
    scene = Scene()
    scenes.append(scene)
    remote, _ = scene.queue()
    remote.write_many([key(n) for n in range(40)], [body(n) for n in range(40)])
    scene.advance(1)
    scene.files = scene.files.after_process_crash()
    scene.open(counted=False)
    return scene


def test_nothing_is_deleted_before_the_last_queue_has_counted(scenes: list[Scene]) -> None:
    scene = dirty(scenes)
    files = scene.status().files
    scene.actor.tell(m.ExpectReferences(frozenset({"A", "B"})))
    scene.actor.tell(m.CountReferences("A", Counter({key(1): 1})))
    scene.pool.run()
    assert not scene.status().counted
    assert scene.status().messages == 40
    assert scene.status().files == files
    scene.actor.tell(m.CountReferences("B", Counter({key(1): 1, key(39): 2})))
    scene.pool.run()
    status = scene.status()
    assert (status.counted, status.messages) == (True, 2)
    assert status.files < files
    assert [scene.store.reference_count(key(n)) for n in (1, 39, 2)] == [2, 2, 0]


def test_counts_may_come_before_it_is_said_whose_are_expected(scenes: list[Scene]) -> None:
    scene = dirty(scenes)
    scene.actor.tell(m.CountReferences("A", Counter({key(1): 1})))
    scene.pool.run()
    assert not scene.status().counted
    scene.actor.tell(m.ExpectReferences(frozenset({"A"})))
    scene.pool.run()
    assert scene.status().counted


def test_where_no_queue_is_expected_everything_goes(scenes: list[Scene]) -> None:
    scene = dirty(scenes)
    scene.actor.tell(m.ExpectReferences(frozenset()))
    scene.pool.run()
    assert scene.status().messages == 0


def test_a_queue_that_counts_a_second_time_loses_no_body(scenes: list[Scene]) -> None:
    """Its actor failed before the others were through; what it had removed since may be in its index again."""
    scene = dirty(scenes)
    remote, _ = scene.queue()
    scene.actor.tell(m.ExpectReferences(frozenset({"A", "B"})))
    scene.actor.tell(m.CountReferences("A", Counter({key(1): 1})))
    remote.remove_many([key(1)])
    scene.actor.tell(m.CountReferences("A", Counter({key(1): 1})))
    scene.actor.tell(m.CountReferences("B", Counter()))
    scene.pool.run()
    scene.actor.tell(m.CountReferences("B", Counter({key(1): 1})))  # the store is counted: too late to matter
    scene.pool.run()
    assert scene.store.read_many([key(1)]) == [body(1)]
    assert scene.status().messages == 1


# ── failure and the end ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["append", "sync"])
def test_a_store_that_fails_tells_the_node_and_confirms_nothing(scene: Scene, kind: str) -> None:
    remote, listener = scene.queue()
    scene.pool.run()
    scene.files.fail(kind, "/store/*")
    remote.write_many([key(1)], [body(1)])
    scene.advance(1)
    (failed,) = scene.node.heard
    assert isinstance(failed, m.StoreFailed)
    assert failed.store == scene.actor
    assert isinstance(failed.error, StorageError)
    assert [one.safe_ticket for one in listener.heard] == [0]
    with pytest.raises(ActorStoppedError):
        remote.write_many([key(2)], [body(2)])
    remote.leave()


def test_what_was_told_before_the_close_is_handled_before_it(scene: Scene) -> None:
    remote, _ = scene.queue()
    remote.write_many([key(1), key(2)], [body(1), body(2)])
    remote.remove_many([key(2)])
    closed = scene.actor.ask(m.CloseStore(b"t" * 32), block=False)
    remote_behind = scene.actor.ask(Call(scene.store.status), block=False)
    scene.pool.run()
    closed.get()
    with pytest.raises(ActorStoppedError):
        remote_behind.get()
    assert scene.node.heard == []
    again = MessageStore.open(scene.files, "/store", SETTINGS, token=b"t" * 32)
    assert again.clean
    assert again.read_many([key(1)]) == [body(1)]
    assert not again.contains(key(2))


def test_a_timer_that_rings_after_the_close_finds_nobody(scene: Scene) -> None:
    remote, _ = scene.queue()
    remote.write_many([key(1)], [body(1)])
    scene.pool.run()
    scene.actor.ask(m.CloseStore(None))
    scene.advance(1)
    assert scene.node.heard == []
