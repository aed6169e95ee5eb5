"""A real broker goes on from whatever warren wrote, three turns each.

A hundred of them, in batches that share a broker's starts: ``WARREN_EFFORT=nightly pytest tests/test_broker_lives.py``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, cast

import attrs
import pika
import pytest

import warren
from tests.support.broker import Broker, BrokerError
from tests.support.effort import times
from warren.actors.vhost import Vhost
from warren.engine import vhost_path
from warren.handles.node import Node
from warren.queue_index.message.message_format import decode_message
from warren.queue_index.queue.variable_queue import VariableQueue
from warren.salvage.queue_directory import MISSING_BODY, Finding
from warren.salvage.source import open_source
from warren.storage.faults import SimulatedCrash
from warren.storage.filesystem import RealFileSystem
from warren.storage.real_file import RealFile
from warren.storage.settings import PROFILES, Settings

TURNS = 3
MADE_AT_ONCE = 10
QUEUES = ("a", "b")
SEGMENT_ENTRY_COUNTS = (8, 64, 2048, 16384)
BROKER_SETTINGS = {"queue_index_max_journal_entries": 60}
"""So that the broker flushes as it works, too."""


class Said(NamedTuple):
    """A message: its body, and whether it is redelivered."""

    body: bytes
    redelivered: bool


class MortalFiles(RealFileSystem):
    """Real files whose process dies before its n-th change of them; ``None``: never."""

    def __init__(self, dies_at: int | None) -> None:
        super().__init__()
        self._left = dies_at

    def step(self) -> None:
        """One change; from the last one on nothing gets through."""
        if self._left is not None:
            if self._left <= 0:
                raise SimulatedCrash
            self._left -= 1

    def open_append(self, path: str) -> RealFile:
        return cast(RealFile, _MortalFile(super().open_append(path), self.step))

    def rename(self, source: str, target: str) -> None:
        self.step()
        super().rename(source, target)

    def delete(self, path: str) -> None:
        self.step()
        super().delete(path)

    def delete_tree(self, path: str) -> None:
        self.step()
        super().delete_tree(path)


class _MortalFile:
    def __init__(self, file: RealFile, step: Callable[[], None]) -> None:
        self._file = file
        self._step = step

    def __getattr__(self, name: str) -> Any:
        if name in ("append", "pwrite", "truncate"):
            self._step()
        return getattr(self._file, name)


@attrs.define
class Life:
    """One seed's virtual host."""

    seed: int
    rng: random.Random
    settings: Settings
    segment_entry_count: int
    sent: int = 0

    @classmethod
    def of(cls, seed: int) -> Life:
        rng = random.Random(seed)
        profile = PROFILES[rng.choice(["default", "rabbitmq-3.10"])]
        settings = attrs.evolve(
            profile,
            queue_index_max_journal_entries=rng.choice([5, 70, profile.queue_index_max_journal_entries]),
            msg_store_io_batch_size=rng.choice([3, profile.msg_store_io_batch_size]),
        )
        return cls(seed, rng, settings, rng.choice(SEGMENT_ENTRY_COUNTS))

    @property
    def vhost(self) -> str:
        return f"life-{self.seed}"

    def body(self) -> bytes:
        """The next message: mostly small, some of them empty or for the store, few of 100 kB."""
        self.sent += 1
        size = self.rng.choices([self.rng.randrange(60), 5000, self.rng.randrange(100_000)], [40, 3, 1])[0]
        return b"%d;" % self.sent + bytes(size) if self.rng.random() < 0.95 else b""

    # ── warren's turn ───────────────────────────────────────────────────────────────────────────────────────────

    def live(self, broker: Broker) -> None:
        """Open the stopped broker's directory, work in it, and close it or be killed."""
        files = MortalFiles(self.rng.randrange(1, 60) if self.rng.random() < 0.4 else None)
        path = str(vhost_path(broker.node_directory, self.vhost))
        ids = random.Random(self.rng.random()).randbytes
        try:
            vhost = Vhost.open(
                files, path, self.vhost.encode(), settings=self.settings, clock=lambda: 0, random=ids, sync=False
            )
        except SimulatedCrash:
            return
        try:
            self._work(vhost)
            if self.rng.random() < 0.7:
                vhost.close()
        except SimulatedCrash:
            pass
        vhost.abandon()

    def _work(self, vhost: Vhost) -> None:
        pending: dict[str, list[int]] = {name: [] for name in QUEUES}
        for _ in range(self.rng.randrange(1, 40)):
            name = self.rng.choice(QUEUES)
            self._act(vhost, vhost.queue(name.encode()), name.encode(), pending[name])
        vhost.check_invariants()

    def _act(self, vhost: Vhost, queue: VariableQueue, name: bytes, pending: list[int]) -> None:
        rng = self.rng
        persistent = rng.random() < 0.8
        envelope = vhost.envelope(name, persistent=persistent)
        match rng.choice(
            ["one", "one", "many", "fetch", "fetch", "ack", "ack", "back", "flush", "sync", "page", "all"]
        ):
            case "one":
                for _ in range(rng.randrange(1, 6)):
                    queue.publish(envelope, vhost.msg_ids.one(), self.body())
            case "many":
                bodies = [self.body() for _ in range(rng.randrange(1, 40))]
                queue.publish_many(envelope, vhost.msg_ids.many(len(bodies)), bodies)
            case "fetch":
                for part in queue.fetch_many(rng.randrange(1, 30)):
                    pending += part.seq_ids
            case "ack":
                chosen = [tag for tag in pending if rng.random() < 0.7]
                queue.ack(chosen)
                pending[:] = [tag for tag in pending if tag not in chosen]
            case "back":
                queue.requeue(pending)
                pending.clear()
            case "flush":
                queue.flush()
            case "sync":
                vhost.sync()
            case "page":
                queue.state.rates.ingress = 1.0
                queue.set_ram_duration_target(rng.choice([0.0, 3.5, None]))
            case "all" if rng.random() < 0.3:
                queue.purge()

    def live_in(self, node: Node) -> None:
        """The same as a user of a node does it."""
        rng = self.rng
        for name in QUEUES:
            queue = node.vhost(self.vhost).queue(name)
            for _ in range(rng.randrange(4)):
                queue.publish(self.body(), persistent=rng.random() < 0.8)
            queue.publish_many([self.body() for _ in range(rng.randrange(20))]).wait()
            deliveries = queue.get_many(rng.randrange(30))
            queue.ack([delivery for delivery in deliveries if rng.random() < 0.7])

    # ── the broker's turn ───────────────────────────────────────────────────────────────────────────────────────

    def deliver(self, broker: Broker, said: dict[tuple[str, str], list[Said]]) -> None:
        """Have the broker deliver everything, compare, ack and publish some."""
        connection = broker.connect(self.vhost)
        try:
            for name in QUEUES:
                channel = connection.channel()
                tags = self._compare(channel, name, said.get((self.vhost, name), []))
                if self.rng.random() < 0.3 and tags:
                    channel.basic_ack(tags[self.rng.randrange(len(tags))], multiple=True)
                else:
                    for tag in tags:
                        if self.rng.random() < 0.5:
                            channel.basic_ack(tag)
                channel.confirm_delivery()  # the queue's journal is synced by it, and the acks before it are in there
                for _ in range(self.rng.randrange(1, 4)):
                    properties = pika.BasicProperties(delivery_mode=2)
                    channel.basic_publish("", name, self.body(), properties, mandatory=True)
        finally:
            connection.close()

    def _compare(self, channel: pika.channel.Channel, name: str, said: list[Said]) -> list[int]:
        ready = channel.queue_declare(name, passive=True).method.message_count
        delivered, tags = [], []
        for method, _, body in channel.consume(name, inactivity_timeout=10.0) if ready else ():
            if method is None:
                break
            delivered.append(Said(body, method.redelivered))
            tags.append(method.delivery_tag)
            if len(tags) == ready:
                break
        if delivered != said:
            first = next((i for i, pair in enumerate(zip(delivered, said, strict=False)) if pair[0] != pair[1]), None)
            raise AssertionError(
                f"seed {self.seed}, queue {name}: {len(delivered)} delivered, {len(said)} were said to be there; "
                f"the first that differs: {first}"
            )
        return tags


def make(broker: Broker, lives: Sequence[Life]) -> None:
    """The lives' virtual hosts and queues, in a broker that is stopped then."""
    broker.start()
    names = ", ".join(f'<<"{name}">>' for name in QUEUES)
    for first in range(0, len(lives), MADE_AT_ONCE):
        some = lives[first : first + MADE_AT_ONCE]
        hosts = ", ".join(f'{{<<"{life.vhost}">>, {life.segment_entry_count}}}' for life in some)
        broker.eval(
            f"[begin ok = application:set_env(rabbit, queue_index_segment_entry_count, Entries),"
            f' ok = rabbit_vhost:add(Vhost, <<"guest">>),'
            f' ok = rabbit_auth_backend_internal:set_permissions(<<"guest">>, Vhost, <<".*">>, <<".*">>, <<".*">>,'
            f' <<"guest">>),'
            f" [{{new, _}} = rabbit_amqqueue:declare(rabbit_misc:r(Vhost, queue, Name), true, false, [], none,"
            f' <<"guest">>) || Name <- [{names}]] end || {{Vhost, Entries}} <- [{hosts}]], ok'
        )
    broker.stop()


def say(broker: Broker) -> dict[tuple[str, str], list[Said]]:
    """What ``export`` says of the stopped directory: by virtual host and queue, every message in order."""
    said = {}
    with open_source(str(broker.node_directory)) as source:
        for vhost in source.vhosts:
            for queue in vhost.queues:
                found: list[Said] = []
                for message in queue.messages():
                    if isinstance(message, Finding):
                        if message.kind == MISSING_BODY:  # a kill came before the store had it: it was not confirmed
                            continue
                        raise AssertionError(f"{vhost.name!r}, {queue.name!r}: {message}")
                    found.append(Said(decode_message(message.encoded).body, message.redelivered))
                said[vhost.name.decode(), queue.name.decode()] = found
    return said


def run(broker: Broker, seeds: Iterable[int]) -> None:
    """Live them all. Raises :class:`AssertionError` with the seed where broker and warren differ."""
    lives = [Life.of(seed) for seed in seeds]
    make(broker, lives)
    for turn in range(TURNS):
        if turn == 1:
            with warren.open(broker.node_directory, adopt=True, sync="os") as node:
                for life in lives:
                    life.live_in(node)
        else:
            for life in lives:
                if turn == 0 or life.rng.random() < 0.5:
                    life.live(broker)
        said = say(broker)
        try:
            broker.start()
            for life in lives:
                life.deliver(broker, said)
        except (BrokerError, pika.exceptions.AMQPError) as error:
            raise AssertionError(f"turn {turn} of seeds {[life.seed for life in lives]}: {error!r}") from error
        broker.kill()
    said = say(broker)
    broker.start()
    for life in lives:
        life.deliver(broker, said)
    broker.stop()


pytestmark = pytest.mark.broker
SEEDS = times(10)
BATCH = 50


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_a_broker_goes_on_from_random_lives_of_warren(broker: Broker, first: int) -> None:
    broker.settings |= BROKER_SETTINGS
    run(broker, range(first, min(first + BATCH, SEEDS)))
