"""Recorder of a paging queue: a workload run against a real broker, which is looked at several times a second.

``node_sampler.erl`` looks, inside the node that a :class:`~tests.support.broker.Broker` runs. Publisher and consumer
are ordinary AMQP clients here; both keep to a rate by the clock, so that a busy machine makes them lumpy and not slow.

The limit on memory is given in bytes above what the node takes with nothing in its queue (:attr:`Workload.room_bytes`):
what a node takes for itself differs by machine, and only what the queue adds is to be compared.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import attrs
import pika

from tests.support.broker import Broker
from tests.support.recorder.recorder import load

_SOURCE = Path(__file__).with_name("node_sampler.erl")
_MODULE = _SOURCE.stem
TICK_S = 0.01
WARM_UP_S = 2.0
REST_S = 2.0
NO_LIMIT = 8_000_000_000
Sample = dict[str, Any]


@attrs.frozen(kw_only=True)
class Workload:
    """One queue, a publisher, a slower consumer, and a limit of memory."""

    name: str
    length_s: float
    calibration_s: float
    """How long it runs before that without a limit, to see what memory does."""
    publish_rate: int
    """Messages a second."""
    consume_rate: int
    body_bytes: int
    persistent: bool
    prefetch: int = 100
    room_bytes: int
    """What may be used beyond the empty node before queues page."""
    paging_ratio: float = 0.5
    sample_ms: int = 100


@attrs.frozen(kw_only=True)
class Recording:
    """What came of a workload. ``samples``: ``time_s`` counts from the first message."""

    workload: Workload
    base_bytes: int
    """What the node uses with nothing in the queue and clients at work, as its monitor sees it."""
    message_bytes: int
    """What a message adds, its body included; live memory, with and without a backlog."""
    noise_bytes: int
    """How far memory is from these two, at most times (the 95th percentile); mostly garbage not yet collected."""
    limit_bytes: int
    first_round_s: float
    """The memory monitor's first round after the first message."""
    samples: list[Sample]


def settings(strategy: str = "erlang", paging_ratio: float = 0.5) -> dict[str, int | bool | str]:
    """Settings of a broker whose memory is observed: no limit yet, and memory counted by ``strategy``."""
    return {
        "vm_memory_high_watermark": f"{{absolute, {NO_LIMIT}}}",
        "vm_memory_high_watermark_paging_ratio": str(paging_ratio),
        "vm_memory_calculation_strategy": strategy,
    }


class Looking:
    """The sampler, loaded into a running broker. ``directory``: for its files; there before."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.broker = broker
        self._directory = directory
        load(broker, _SOURCE, directory)

    def measure(self, *, collect: bool) -> dict[str, int]:
        """Memory in use, by the way of counting; ``collect``: after all garbage was collected."""
        printed = self.broker.eval(f'io:format("~s~n", [{_MODULE}:measure({str(collect).lower()})])')
        measured: dict[str, int] = json.loads(printed.splitlines()[0])
        return measured

    def collect(self) -> None:
        """Collect all garbage."""
        self.broker.eval(f"{_MODULE}:collect()")

    def watch(self, queue: str, interval_ms: int) -> Watch:
        """Sample as long as the context lasts."""
        return Watch(self.broker, self._directory / f"{queue}.samples", queue, interval_ms)


class Watch:
    """Samples while the context lasts; :attr:`samples` after it."""

    def __init__(self, broker: Broker, path: Path, queue: str, interval_ms: int) -> None:
        self._broker = broker
        self._path = path
        self._call = f'{_MODULE}:start("{path}", <<"{queue}">>, {interval_ms})'
        self.samples: list[Sample] = []
        self.rounds_ms: list[int] = []
        """When the memory monitor made a round."""

    def __enter__(self) -> Self:
        self._broker.eval(self._call)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._broker.eval(f"{_MODULE}:stop()")
            lines = [json.loads(line) for line in self._path.read_text().splitlines()]
            self.samples = [line for line in lines if "at_ms" in line]
            self.rounds_ms = [line["round_at_ms"] for line in lines if "round_at_ms" in line]


# ── clients ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def publish(
    broker: Broker,
    queue: str,
    count: int,
    *,
    body_bytes: int,
    persistent: bool,
    rate: float,
    started: Callable[[], None] = lambda: None,
) -> None:
    """Publish ``count`` messages at a rate, and wait until the queue has them."""
    body, properties = b"x" * body_bytes, pika.BasicProperties(delivery_mode=2 if persistent else 1)
    with broker.channel() as channel:
        began, sent = time.monotonic(), 0
        started()
        while sent < count:
            due = min(count, int((time.monotonic() - began) * rate))
            for _ in range(sent, due):
                channel.basic_publish("", queue, body, properties)
            sent = due
            time.sleep(TICK_S)
        channel.queue_declare(queue, passive=True)  # answered after all that was published before


def consume(broker: Broker, queue: str, *, rate: float, prefetch: int, stop: threading.Event) -> None:
    """Take messages and ack each when it is handled, at a rate."""
    with broker.channel() as channel:
        channel.basic_qos(prefetch_count=prefetch)
        waiting: list[int] = []
        channel.basic_consume(queue, lambda _, method, *__: waiting.append(method.delivery_tag))
        began, handled = time.monotonic(), 0.0
        while not stop.is_set():
            channel.connection.process_data_events(time_limit=TICK_S)
            due = (time.monotonic() - began) * rate
            part = min(len(waiting), int(due - handled))
            if part:
                channel.basic_ack(waiting[part - 1], multiple=True)
                del waiting[:part]
            handled = handled + part if waiting else due  # time without messages is lost


# ── a workload ──────────────────────────────────────────────────────────────────────────────────────────────────────


def record(looking: Looking, workload: Workload) -> Recording:
    """Run a workload against a broker that was started with :func:`settings`: without a limit, as long as is needed to
    see what memory does, and then with one."""
    broker, queue = looking.broker, workload.name
    broker.declare(queue)
    _work(broker, workload, WARM_UP_S)
    _empty(looking, queue)
    samples, _ = _run(looking, workload, workload.calibration_s)
    full_bytes = looking.measure(collect=True)["erlang"]
    _empty(looking, queue)
    empty_bytes = looking.measure(collect=True)["erlang"]
    message_bytes = (full_bytes - empty_bytes) / _messages(samples[-1])
    base, noise = _base(samples, message_bytes)
    limit_bytes = round((base + workload.room_bytes) / workload.paging_ratio)
    broker.eval(_limiting(limit_bytes))
    samples, rounds = _run(looking, workload, workload.length_s)
    broker.eval(f"{_limiting(NO_LIMIT)}, rabbit_amqqueue:delete({_found(queue)}, false, false, <<>>)")
    return Recording(
        workload=workload,
        base_bytes=round(base),
        message_bytes=round(message_bytes),
        noise_bytes=round(noise),
        limit_bytes=limit_bytes,
        first_round_s=min(at_s for at_s in rounds if at_s >= 0.0),
        samples=[sample for sample in samples if 0.0 <= sample["time_s"] <= workload.length_s],
    )


def _run(looking: Looking, workload: Workload, length_s: float) -> tuple[list[Sample], list[float]]:
    """Publish and consume for ``length_s``. Return samples and the monitor's rounds, in seconds since the start."""
    with looking.watch(workload.name, workload.sample_ms) as watch:
        began_s = _work(looking.broker, workload, length_s)
    samples = [{"time_s": round(sample["at_ms"] / 1000 - began_s, 3)} | sample for sample in watch.samples]
    return samples, [at_ms / 1000 - began_s for at_ms in watch.rounds_ms]


def _work(broker: Broker, workload: Workload, length_s: float) -> float:
    """Publish and consume for ``length_s``. Return the start time."""
    queue, began = workload.name, list[float]()
    stop = threading.Event()
    consumer = threading.Thread(
        target=consume,
        args=(broker, queue),
        kwargs={"rate": workload.consume_rate, "prefetch": workload.prefetch, "stop": stop},
        daemon=True,
    )
    consumer.start()
    publish(
        broker,
        queue,
        round(length_s * workload.publish_rate),
        body_bytes=workload.body_bytes,
        persistent=workload.persistent,
        rate=workload.publish_rate,
        started=lambda: began.append(time.time()),
    )
    stop.set()
    consumer.join()
    return began[0]


def _empty(looking: Looking, queue: str) -> None:
    looking.broker.eval(f"{{ok, _}} = rabbit_amqqueue:purge({_found(queue)}), {_MODULE}:collect()")
    time.sleep(REST_S)


def _found(queue: str) -> str:
    return f'element(2, rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)))'


def _limiting(limit_bytes: int) -> str:
    return f"vm_memory_monitor:set_vm_memory_high_watermark({{absolute, {limit_bytes}}})"


def _messages(sample: Sample) -> int:
    return int(sample["len"] + sample["unacked"])


def _base(samples: Sequence[Sample], message_bytes: float) -> tuple[float, float]:
    """What memory is beside the messages while they come in, and how far from it at most times."""
    beside = [sample["current_bytes"] - message_bytes * _messages(sample) for sample in samples if sample["len"] > 0]
    base = statistics.median(beside)
    off = sorted(abs(one - base) for one in beside)
    return base, off[int(0.95 * len(off))]
