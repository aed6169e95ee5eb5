"""``warren replay``: run a recorded trace of operations on a fresh queue and return the state after each.

A trace (made by driving a real broker's queue, one call at a time) holds ``params``, ``steps`` with an ``op`` each, and
what the real one answered. The answers are ignored, and a file without them runs as well. The trace controls time,
rates and store credit: the clock stands still unless an operation says otherwise, and credit is granted between
calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import attrs

from warren.queue_index.message.message_format import Envelope
from warren.queue_index.queue.body_store import CreditFlow, StoreClient
from warren.queue_index.queue.fetching import MessageProperties
from warren.queue_index.queue.variable_queue import QueueFiles, VariableQueue
from warren.storage.errors import WarrenError, shortly
from warren.storage.memory import MemoryFileSystem
from warren.storage.pieces import Whole
from warren.storage.settings import RABBITMQ_3_10, Settings
from warren.traces.queue_state import shown_terms, state_of

Answer = dict[str, Any]
_QUEUE = b"q"
_PATH = "queue"
_PERSISTENT, _TRANSIENT = b"\x10\x00\x02", b"\x10\x00\x01"
_REFERENCE = b"replay's own ref"
_WITHOUT_ANSWER = {name: name for name in ("resume", "bump", "purge_acks", "flush")} | {"sync": "sync_index"}
"""Operations that are a call without arguments, and the queue's method."""


class TraceError(WarrenError):
    """A trace that cannot be run."""


@attrs.define
class _Bodies:
    """A message store in memory. It keeps running when the queue restarts, as the trace's stores did."""

    references: dict[bytes, int] = attrs.Factory(dict)
    bodies: dict[bytes, bytes] = attrs.Factory(dict)
    written_ticket: int = 0

    @property
    def synced_ticket(self) -> int:
        return self.written_ticket

    def write_many(self, msg_ids: Iterable[bytes], messages: Iterable[Whole]) -> None:
        for msg_id, message in zip(msg_ids, messages, strict=True):
            self.bodies[msg_id] = bytes(message)
            self.references[msg_id] = self.references.get(msg_id, 0) + 1
            self.written_ticket += 1

    def remove_many(self, msg_ids: Iterable[bytes]) -> None:
        for msg_id in msg_ids:
            self.references[msg_id] -= 1
            if not self.references[msg_id]:
                del self.references[msg_id], self.bodies[msg_id]

    def read_many(self, msg_ids: Iterable[bytes]) -> list[bytes]:
        return [self.bodies[msg_id] for msg_id in msg_ids]

    def contains(self, msg_id: bytes) -> bool:
        return msg_id in self.bodies

    def sync(self) -> None:
        pass


def _number(msg_id: bytes) -> int:
    return int.from_bytes(msg_id[8:], "big")


def to_ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Numbers as [first, last] of each ascending run, in the order seen."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] + 1 == number:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


def _tags(op: dict[str, Any]) -> list[range]:
    return [range(tag[0], tag[1] + 1, tag[2] if len(tag) > 2 else 1) for tag in op["tags"]]


class Replay:
    """One trace being run."""

    def __init__(self, trace: dict[str, Any]) -> None:
        params = trace["params"]
        initial, more_after = params["credit_disc_bound"]
        self.settings: Settings = attrs.evolve(
            RABBITMQ_3_10,
            segment_entry_count=params["segment_entry_count"],
            msg_store_io_batch_size=params["io_batch_size"],
            msg_store_credit_disc_bound=(initial, more_after),
            queue_explicit_gc_run_operation_threshold=params["reduce_every"],
            queue_index_max_journal_entries=params["max_journal_entries"],
        )
        self._files = MemoryFileSystem()
        self._now_ns = 0
        self._published = 0
        self._number_of: dict[int, int] = {}
        """What was published, by seq_id."""
        self._vhost = str(trace.get("vhost", "")).encode()
        transient = StoreClient(_Bodies(), CreditFlow(initial, more_after))
        persistent = StoreClient(_Bodies(), CreditFlow(initial, more_after)) if params["durable"] else None
        self._flows = [c.credit for c in (persistent, transient) if c is not None and isinstance(c.credit, CreditFlow)]
        self._parts = QueueFiles(
            files=self._files,
            path=_PATH,
            vhost=self._vhost,
            queue=_QUEUE,
            settings=self.settings,
            persistent_store=persistent,
            transient_store=transient,
            clock=lambda: self._now_ns,
            wait_for_grant=self._grant_one,
        )
        self.queue = VariableQueue.create(self._parts)
        self._store_recovered = False
        self._stray_references = False
        """Whether the persistent store knows a reference that a crashed queue left."""
        self._force_rates(1.0, 0.0, 0.0, 0.0)

    # ── what the trace holds in its hand ────────────────────────────────────────────────────────────────────────

    def _grant_one(self) -> None:
        blocked = [flow for flow in self._flows if flow.blocked]
        granted = [flow.receive_grant() for flow in blocked]
        if not any(granted):
            raise TraceError("blocked, and the stores owe no credit")

    def _settle_credit(self) -> None:
        for flow in self._flows:
            flow.settle()

    def _force_rates(self, ingress: float, egress: float, ack_ingress: float, ack_egress: float) -> None:
        rates = self.queue.state.rates
        rates.ingress, rates.egress = float(ingress), float(egress)
        rates.ack_ingress, rates.ack_egress = float(ack_ingress), float(ack_egress)

    def _next_messages(self, op: dict[str, Any]) -> tuple[Envelope, list[tuple[bytes, bytes, int]]]:
        """The next messages to publish: (id, body, expiry); a list of sizes or expiries starts over at its end."""
        count, persistent = op.get("n", 1), op["persistent"]
        sizes, expiries = _repeated(op["size"], count), _repeated(op.get("expiry", 0), count)
        envelope = Envelope(self._vhost, b"", (_QUEUE,), _PERSISTENT if persistent else _TRANSIENT, persistent)
        messages = []
        for n, size, expiry_us in zip(range(self._published, self._published + count), sizes, expiries, strict=True):
            text = b"%d:" % n
            messages.append((b"msgtrace" + n.to_bytes(8, "big"), (text * (size // len(text) + 1))[:size], expiry_us))
        self._published += count
        return envelope, messages

    # ── operations ──────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, op: dict[str, Any]) -> Answer | None:
        """Run one operation; what it answers, if it answers anything."""
        name = op["op"]
        if name in _WITHOUT_ANSWER:
            answer = None
            getattr(self.queue, _WITHOUT_ANSWER[name])()
        elif (operation := getattr(self, f"_op_{name}", None)) is not None:
            answer = operation(op)
        else:
            raise TraceError(f"unknown operation {name!r}")
        self._settle_credit()
        return answer

    def _op_publish(self, op: dict[str, Any]) -> None:
        envelope, messages = self._next_messages(op)
        delivered, confirm = bool(op.get("delivered", False)), bool(op.get("confirm", False))
        for msg_id, body, expiry_us in messages:
            seq_id = self.queue.publish(
                envelope, msg_id, body, expiry_us=expiry_us, delivered=delivered, confirm=confirm
            )
            self._number_of[seq_id] = _number(msg_id)
            self._settle_credit()

    def _op_batch_publish(self, op: dict[str, Any]) -> None:
        envelope, messages = self._next_messages(op)
        ids, expiry = b"".join(msg_id for msg_id, _, _ in messages), op.get("expiry", 0)
        expiries = [expiry_us for _, _, expiry_us in messages] if isinstance(expiry, list) else expiry
        bodies = [body for _, body, _ in messages]
        seq_ids = self.queue.publish_many(
            envelope, ids, bodies, expiries_us=expiries, confirm=bool(op.get("confirm", False))
        )
        self._number_of.update(zip(seq_ids, (_number(msg_id) for msg_id, _, _ in messages), strict=True))

    def _op_drain_confirmed(self, _: dict[str, Any]) -> Answer:
        confirmed = [self._number_of[seq_id] for part in self.queue.drain_confirmed() for seq_id in part]
        return {"messages": to_ranges(sorted(confirmed))}

    def _op_publish_delivered(self, op: dict[str, Any]) -> Answer:
        envelope, messages = self._next_messages(op)
        tags = []
        for msg_id, body, expiry_us in messages:
            tags.append(self.queue.publish_delivered(envelope, msg_id, body, expiry_us=expiry_us))
            self._settle_credit()
        return {"ack_tags": to_ranges(tags)}

    def _op_fetch(self, op: dict[str, Any]) -> Answer:
        fetched = list(islice(iter(partial(self.queue.fetch, ack_required=op["ack_required"]), None), op["n"]))
        return {
            "messages": to_ranges(_number(msg_id) for batch in fetched for msg_id in batch.msg_ids),
            "redelivered": to_ranges(
                _number(msg_id) for batch in fetched if batch.redelivered for msg_id in batch.msg_ids
            ),
            "ack_tags": to_ranges(tag for batch in fetched for tag in batch.seq_ids) if op["ack_required"] else [],
            "empty": op["n"] - len(fetched),
        }

    def _op_drop(self, op: dict[str, Any]) -> Answer:
        dropped = list(islice(iter(partial(self.queue.drop, ack_required=op["ack_required"]), None), op["n"]))
        return {
            "messages": to_ranges(_number(msg_id) for _, msg_id in dropped),
            "ack_tags": to_ranges(tag for tag, _ in dropped) if op["ack_required"] else [],
            "empty": op["n"] - len(dropped),
        }

    def _op_ack(self, op: dict[str, Any]) -> Answer:
        return {"messages": to_ranges(map(_number, self.queue.ack(_tags(op), with_ids=True)))}

    def _op_ack_each(self, op: dict[str, Any]) -> None:
        for part in _tags(op):
            for tag in part:
                self.queue.ack([tag])

    def _op_requeue(self, op: dict[str, Any]) -> Answer:
        return {"messages_returned_order": to_ranges(map(_number, self.queue.requeue(_tags(op), with_ids=True)))}

    def _op_requeue_each(self, op: dict[str, Any]) -> None:
        for part in _tags(op):
            for tag in part:
                self.queue.requeue([tag])
                self._settle_credit()

    def _op_set_duration(self, op: dict[str, Any]) -> None:
        duration = op["duration"]
        self.queue.set_ram_duration_target(None if duration == "infinity" else float(duration))

    def _op_set_rates(self, op: dict[str, Any]) -> None:
        self._force_rates(op["in"], op["out"], op["ack_in"], op["ack_out"])

    def _op_ram_duration(self, op: dict[str, Any]) -> Answer:
        rates, state = self.queue.state.rates, self.queue.state
        rates.in_count, rates.out_count = op["in"], op["out"]
        rates.ack_in_count, rates.ack_out_count = op["ack_in"], op["ack_out"]
        elapsed_us = op.get("measured_elapsed_us", op["elapsed_us"])
        self._now_ns = rates.timestamp_ns + round(elapsed_us * 1000)
        duration = self.queue.ram_duration()
        return {
            "measured_elapsed_us": elapsed_us,
            "duration": "infinity" if duration is None else duration,
            "rates": [rates.ingress, rates.egress, rates.ack_ingress, rates.ack_egress],
            "ram_msg_count_prev": state.ram_msg_count_prev,
            "ram_ack_count_prev": state.ram_ack_count_prev,
        }

    def _op_settle(self, op: dict[str, Any]) -> Answer:
        resumes = 0
        while True:
            self.queue.bump()
            resumes += 1
            blocked = self.queue.state.blocked
            self._settle_credit()
            if not self.queue.state.waiting_bump and not blocked:
                return {"resumes": resumes}

    def _op_purge(self, op: dict[str, Any]) -> Answer:
        return {"purged": self.queue.purge()}

    def _op_set_mode(self, op: dict[str, Any]) -> None:
        self.queue.set_mode(op["mode"])

    def _op_ackfold(self, op: dict[str, Any]) -> Answer:
        messages = self.queue.read_pending(_tags(op))
        return {"messages": to_ranges(self._numbers_of(seq_id for seq_id, _ in messages))}

    def _numbers_of(self, seq_ids: Iterable[int]) -> list[int]:
        state = self.queue.state
        windows = [
            run
            for seq_id in seq_ids
            for pending in (state.ram_pending, state.disk_pending, state.index_pending)
            if (run := pending.find(seq_id)) is not None
        ]
        return [_number(run.msg_ids()[0]) for run in windows]

    def _op_fold(self, op: dict[str, Any]) -> Answer:
        messages = list(self.queue.browse())
        return {
            "messages": to_ranges(_number(message.msg_id) for message in messages),
            "unacked": to_ranges(_number(message.msg_id) for message in messages if message.unacked),
        }

    def _op_dropwhile(self, op: dict[str, Any]) -> Answer:
        stopper = self.queue.drop_while(_expires_below(op["expiry_below"]))
        return {"stopped_at_expiry": (stopper.expiry_us or None) if stopper else None}

    def _op_fetchwhile(self, op: dict[str, Any]) -> Answer:
        fetched, _ = self.queue.fetch_while(_expires_below(op["expiry_below"]))
        return {
            "messages": to_ranges(_number(msg_id) for batch in fetched for msg_id in batch.msg_ids),
            "ack_tags": to_ranges(tag for batch in fetched for tag in batch.seq_ids),
        }

    def _op_index_files(self, op: dict[str, Any]) -> Answer:
        return {"files": self._index_files()}

    def _index_files(self) -> list[dict[str, Any]]:
        files = []
        for name in self._files.list(_PATH):
            if name.endswith((".idx", ".jif")):
                data = self._files.read(f"{_PATH}/{name}")
                files.append({"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()})
        return files

    def _op_restart(self, op: dict[str, Any]) -> Answer:
        clean = op["kind"] == "clean"
        terms = self.queue.close(_REFERENCE)
        answer: Answer = {"files": self._index_files()}
        answer["recovery_terms"] = shown_terms(terms) if clean else None
        if op.get("stores") == "restarted":
            self._restart_stores(clean=clean)
        elif not clean:
            self._stray_references = True
        for flow in self._flows:
            flow.restart()
        self.queue = VariableQueue.recover(self._parts, terms if clean else None, store_recovered=self._store_recovered)
        self._force_rates(1.0, 0.0, 0.0, 0.0)
        return answer

    def _restart_stores(self, *, clean: bool) -> None:
        """Restart both stores: the transient one comes back empty, and they count grants from the beginning.

        The persistent one counts as recovered if all queues that it knew stopped cleanly, until it is restarted
        again.
        """
        self._store_recovered, self._stray_references = clean and not self._stray_references, False
        clients = [c for c in (self._parts.persistent_store, self._parts.transient_store) if c is not None]
        for client in clients:
            client.credit = CreditFlow(*self.settings.msg_store_credit_disc_bound)
        self._flows = [client.credit for client in clients if isinstance(client.credit, CreditFlow)]
        self._parts.transient_store.store = _Bodies()


def _repeated(values: int | list[int], count: int) -> list[int]:
    """One value for each message."""
    return [values] * count if isinstance(values, int) else [values[index % len(values)] for index in range(count)]


def _expires_below(limit_us: int) -> Any:
    def expires(properties: MessageProperties) -> bool:
        return 0 < properties.expiry_us < limit_us

    return expires


def with_measured_time(step: dict[str, Any]) -> dict[str, Any]:
    """An operation that lets time pass, with the time that really passed when it was recorded.

    The recorder notes it beside its answers, but it is an input: the time of the clock.
    """
    measured = (step.get("result") or {}).get("measured_elapsed_us")
    return step["op"] if measured is None else {**step["op"], "measured_elapsed_us": measured}


def replay(trace: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run a trace, step by step: ``{"op", "state", "result"}``, ``result`` null if the operation answers nothing.

    Raises :class:`TraceError` for an invalid trace; for an invalid step, with its number.
    """
    try:
        running = Replay(trace)
        steps = list(trace["steps"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TraceError(f"not a trace: {shortly(error)}") from error
    for number, step in enumerate(steps):
        try:
            result = running.run(with_measured_time(step))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise TraceError(f"step {number}: {shortly(error)}") from error
        running.queue.check_invariants()
        yield {"op": step["op"], "state": state_of(running.queue), "result": result}
