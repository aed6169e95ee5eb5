"""Random traces: wild, but such as the broker itself could have brought about.

:func:`generate` makes a trace from a seed. Which tags are pending and whether the queue is empty decides what may come
next, so the trace is run on our own queue while it grows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from warren.traces.replay import Replay

Op = dict[str, Any]
Trace = dict[str, Any]
_SIZES = (0, 1, 10, 200, 4092, 4093, 4095, 4096, 5000)
_RATES = ((1, 0, 0, 0), (4, 0, 0, 4), (0, 4, 4, 0), (1, 1, 1, 1), (0, 0, 0, 0), (0.5, 0, 0.25, 0))
_EXPIRIES = (0, 0, 0, 100, 200, 300)


_CREDITS = ((1, 1), (2, 1), (4, 2), (5, 3), (10, 10), (20, 4), (40, 8), (4000, 800))


def _params(rng: random.Random) -> dict[str, Any]:
    """Mostly tiny limits, so that short traces meet them; one trace in eight has the broker's own, or nearly so."""
    durable = rng.random() < 0.85
    if rng.random() < 0.125:
        return {
            "segment_entry_count": rng.choice((2048, 2048, 4096, 16384)),
            "io_batch_size": rng.choice((4096, 4096, 500)),
            "credit_disc_bound": [4000, 800],
            "reduce_every": rng.choice((1000, 1000, 50)),
            "max_journal_entries": rng.choice((32768, 32768, 3000)),
            "durable": durable,
        }
    return {
        "segment_entry_count": rng.choice((1, 2, 3, 4, 8, 8, 16, 16, 32, 64)),
        "io_batch_size": rng.choice((1, 1, 2, 4, 4, 16, 64)),
        "credit_disc_bound": list(rng.choice(_CREDITS)),
        "reduce_every": rng.choice((1, 1, 2, 3, 10, 10, 1000)),
        "max_journal_entries": rng.choice((1, 2, 7, 20, 50, 200, 200, 32768)),
        "durable": durable,
    }


class _Growing:
    """A trace that is being made, and what its next operations may refer to."""

    def __init__(self, rng: random.Random, trace: Trace) -> None:
        self.rng = rng
        self.trace = trace
        self.replay = Replay(trace)
        self.pending: list[int] = []
        self.miscounted = False
        self.unscanned = False
        large = trace["params"]["segment_entry_count"] >= 2048
        self.few = 2048 if large else max(4, min(30, trace["params"]["segment_entry_count"]))
        self.sizes = (10, 10, 10, 4096) if large else _SIZES

    def add(self, op: Op) -> None:
        self.trace["steps"].append({"op": op})
        answer = self.replay.run(op) or {}
        for first, last in answer.get("ack_tags", ()):
            self.pending += range(first, last + 1)
        if op["op"] in ("ack", "ack_each", "requeue", "requeue_each"):
            gone = {tag for part in op["tags"] for tag in range(part[0], part[1] + 1)}
            self.pending = [tag for tag in self.pending if tag not in gone]
        if op["op"] == "purge_acks":
            # All counters keep what it forgets; a clean stop would write them down, and the broker fail on them later.
            self.miscounted |= bool(self.pending)
        if op["op"] == "restart":
            self.miscounted = False
            self.unscanned |= op["kind"] == "clean" and "stores" in op
        if op["op"] in ("purge_acks", "restart"):
            self.pending = []

    @property
    def length(self) -> int:
        length: int = self.replay.queue.state.length
        return length

    def count(self) -> int:
        """How many messages an operation is about: mostly few, at times more than two segments."""
        return self.rng.choice((1, 1, 2, 3, self.few, self.few, self.few + 1, 2 * self.few, 3 * self.few + 1))

    def message(self) -> Op:
        rng = self.rng
        op: Op = {"persistent": rng.random() < 0.55, "size": rng.choice(self.sizes)}
        if expiry := rng.choice(_EXPIRIES):
            op["expiry"] = expiry
        if rng.random() < 0.15:
            op["size"] = rng.choices(self.sizes, k=rng.choice((2, 3, 12)))
        if rng.random() < 0.1:
            op["expiry"] = rng.choices(_EXPIRIES, k=rng.choice((2, 7)))
        return op

    def tags(self, *, unknown: bool) -> list[list[int]]:
        """Some pending tags as ranges, now and then out of order, doubled, or with unknown tags."""
        rng = self.rng
        pending = sorted(self.pending)
        if pending and rng.random() < 0.4:
            low = rng.randrange(len(pending))
            chosen = pending[low : low + self.count()]
        else:
            share = rng.choice((0.1, 0.5, 0.9, 1.0))
            chosen = [tag for tag in pending if rng.random() < share]
        parts: list[list[int]] = []
        for tag in chosen:
            if parts and parts[-1][1] + 1 == tag:
                parts[-1][1] = tag
            else:
                parts.append([tag, tag])
        if rng.random() < 0.15:
            rng.shuffle(parts)
        if unknown and rng.random() < 0.15:
            tag = rng.randrange(self.replay.queue.state.next_seq_id + 3)
            parts.insert(rng.randrange(len(parts) + 1), [tag, tag + rng.choice((0, 0, 3))])
        return parts


def _publish(g: _Growing) -> Op:
    op = {"op": "publish", "n": g.count(), **g.message()}
    if g.rng.random() < 0.1:
        op["delivered"] = True
    return op


def _batch_publish(g: _Growing) -> Op:
    return {"op": "batch_publish", "n": g.rng.choice((0, *[g.count()] * 9)), **g.message()}


def _with_confirms(g: _Growing) -> Op:
    """Publish persistent messages that are kept in the index: when a store syncs is a matter of time."""
    op = g.rng.choice((_publish, _batch_publish))(g)
    return op | {"persistent": True, "size": 10, "confirm": g.trace["params"]["durable"]}


def _publish_delivered(g: _Growing) -> Op:
    if g.length:
        return _fetch(g)
    return {"op": "publish_delivered", "n": g.count(), **g.message()}


def _fetch(g: _Growing) -> Op:
    n = g.length + 1 if g.rng.random() < 0.12 else g.count()
    return {"op": "fetch", "n": n, "ack_required": g.rng.random() < 0.7}


def _drop(g: _Growing) -> Op:
    return {"op": "drop", "n": g.count(), "ack_required": g.rng.random() < 0.5}


def _set_duration(g: _Growing) -> Op:
    duration = g.rng.choice((0, 0, 1, 2, g.few / 2, g.few, 2 * g.few, 3 * g.few, "infinity"))
    return {"op": "set_duration", "duration": duration}


def _set_rates(g: _Growing) -> Op:
    return {"op": "set_rates", **dict(zip(("in", "out", "ack_in", "ack_out"), g.rng.choice(_RATES), strict=True))}


def _ram_duration(g: _Growing) -> Op:
    counts = {name: g.rng.randrange(90) for name in ("in", "out", "ack_in", "ack_out")}
    return {"op": "ram_duration", "elapsed_us": g.rng.choice((100_000, 5_000_000, 600_000_000)), **counts}


def _fold(g: _Growing) -> Op:
    """Not once an index may have been taken up unscanned: the broker's fold then fails on transients that were lost."""
    return _fetch(g) if g.unscanned else {"op": "fold"}


def _set_mode(g: _Growing) -> Op:
    return {"op": "set_mode", "mode": g.rng.choice(("lazy", "default"))}


def _restart(g: _Growing) -> Op:
    op = {"op": "restart", "kind": "dirty" if g.miscounted else g.rng.choice(("clean", "dirty"))}
    if g.trace["params"]["durable"] and g.rng.random() < 0.3:
        op["stores"] = "restarted"
    return op


def _of_tags(name: str) -> Callable[[_Growing], Op]:
    return lambda g: {"op": name, "tags": g.tags(unknown=name != "ackfold")}


def _while(name: str) -> Callable[[_Growing], Op]:
    return lambda g: {"op": name, "expiry_below": g.rng.choice((50, 150, 250, 350))}


def _plain(name: str) -> Callable[[_Growing], Op]:
    return lambda g: {"op": name}


_OPERATIONS: dict[Callable[[_Growing], Op], int] = {
    _publish: 22,
    _batch_publish: 10,
    _publish_delivered: 4,
    _with_confirms: 2,
    _fetch: 16,
    _drop: 3,
    _of_tags("ack"): 7,
    _of_tags("ack_each"): 2,
    _of_tags("requeue"): 9,
    _of_tags("requeue_each"): 2,
    _of_tags("ackfold"): 1,
    _set_duration: 14,
    _set_rates: 4,
    _ram_duration: 1,
    _set_mode: 3,
    _restart: 3,
    _while("dropwhile"): 2,
    _while("fetchwhile"): 2,
    _plain("resume"): 4,
    _plain("bump"): 2,
    _plain("settle"): 3,
    _plain("purge"): 1,
    _plain("purge_acks"): 1,
    _fold: 1,
    _plain("drain_confirmed"): 2,
    _plain("flush"): 3,
    _plain("sync"): 2,
    _plain("index_files"): 5,
}


def generate(seed: int) -> Trace:
    """The trace of a seed. Where our own queue fails on the way, it ends with the operation that it failed at."""
    rng = random.Random(seed)
    trace: Trace = {"trace": f"random-{seed}", "vhost": f"t-{seed}", "params": _params(rng), "steps": []}
    growing = _Growing(rng, trace)
    favoured = dict(_OPERATIONS)
    for operation in rng.sample(list(favoured), 4):
        favoured[operation] *= 4
    if rng.random() < 0.25:
        growing.add({"op": "set_mode", "mode": "lazy"})
    lengths = (10, 20) if growing.few > 100 else (15, 30, 50, 80)
    for _ in range(rng.choice(lengths)):
        (operation,) = rng.choices(list(favoured), list(favoured.values()))
        try:
            growing.add(operation(growing))
        except Exception:
            break
    return trace
