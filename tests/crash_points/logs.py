"""Logs of a node's own: delayed messages, definitions, and records as such; with processes that die on the way, so that
what the next one syncs was partly written by another."""

from __future__ import annotations

import json
import random
from typing import Any, Final

import attrs

from tests.crash_points.recording import Record, recording
from tests.support.promises import Fates
from warren.actors.engines.declared import definitions_file
from warren.actors.engines.declared.changes import Change
from warren.actors.engines.declared.definitions_file import DefinitionsFile
from warren.actors.engines.delays.delay_format import digest_of_id, target_of_queue
from warren.actors.engines.delays.delay_log import DelayLog, NewMessage
from warren.queue_index.message.message_format import Envelope, decode_message, encode_message
from warren.queue_index.properties import encode_values
from warren.storage.memory import MemoryFileSystem
from warren.storage.record_log import RecordLog

DIRECTORY = "/data/warren.delayed/x"
TARGETS = [target_of_queue(b"q%d" % which) for which in range(3)]


def message(number: int, due_ms: int, size: int = 20) -> NewMessage:
    """One for the queue ``q0``, ``q1`` or ``q2``, whose number is in its id and its body."""
    message_id = b"id %d" % number
    properties = encode_values({"message_id": message_id.decode(), "delivery_mode": 2})
    envelope = Envelope(b"/", b"", (b"q%d" % (number % 3),), properties, True)
    body = (b"%d " % number).ljust(size + number % 17, b".")
    return NewMessage(due_ms, digest_of_id(message_id), TARGETS[number % 3], encode_message(envelope, bytes(16), body))


def number_in(term: bytes) -> int:
    return int(decode_message(term).body.split()[0])


@attrs.define
class LogPromises:
    """What was promised to a process, and how much of it a power loss leaves: ``safe``, as of the last sync."""

    now: Fates[int] = attrs.Factory(Fates)
    safe: Fates[int] = attrs.Factory(Fates)

    def copy(self) -> LogPromises:
        return LogPromises(self.now.copy(), self.safe.copy())

    def after(self, *, power: bool) -> Fates[int]:
        """What holds after a power loss, or after the death of the process alone."""
        return attrs.evolve(self.now, made=self.safe.made, ended=self.safe.ended) if power else self.now

    def take_up(self, found: set[int]) -> None:
        """The next process goes on from there."""
        self.now.made = found
        self.now.ended -= found
        self.now.ending -= found
        self.safe.made &= found


# ── delayed messages ─────────────────────────────────────────────────────────────────────────────────────────────────

NOW_MS: Final = 9
FAR_MS: Final = 1 << 40


def _opened(files: MemoryFileSystem) -> DelayLog:
    log = DelayLog.open(files, DIRECTORY, file_size_limit_bytes=900, file_entries=5)
    log.check_invariants()
    return log


def run_delays(seed: int) -> Record:
    """Messages are added, come, are postponed and called back; files fill up and are written again."""
    return delays_go_on(MemoryFileSystem(0), LogPromises(), seed)


def delays_go_on(base: MemoryFileSystem, promises: LogPromises, seed: int, *, power: bool = False) -> Record:
    """The same on what a crash left."""
    rng, said = random.Random(seed), promises.copy()
    now = said.now = said.after(power=power).copy()
    files: MemoryFileSystem = recording(base, said.copy)
    record = files.record  # type: ignore[attr-defined]
    log = _opened(files)
    said.take_up({number_in(term) for _, term in log.waiting()})
    number = max(now.begun, default=-1) + 1
    for _ in range(rng.randrange(8, 20)):
        match rng.choice(["add", "add", "add", "due", "due", "cancel", "postpone", "sync", "reclaim", "die", "stop"]):
            case "add":
                numbers = range(number, number + rng.randrange(1, 6))
                number += len(numbers)
                now.begun.update(numbers)
                log.add([message(n, n * 7 % 11 if n % 3 else 10_000) for n in numbers])
                now.made.update(numbers)
            case "due":
                taken = log.take_due(NOW_MS, rng.randrange(1, 6), 1 << 20)
                now.ending |= {number_in(one.term) for one in taken}
                log.settle(taken)
                now.ended |= now.ending
            case "postpone":
                if taken := log.take_due(NOW_MS, 1, 1 << 20):
                    log.postpone(taken, NOW_MS)
            case "cancel" if now.made - now.ending:
                wanted = rng.choice(sorted(now.made - now.ending))
                now.ending |= {wanted}
                assert len(log.cancel(b"id %d" % wanted)) == 1
                now.ended |= now.ending
            case "sync":
                log.sync()
                said.safe = now.copy()
            case "reclaim":
                while log.reclaim():
                    pass
            case "die":
                files = files.after_process_crash()
                log = _opened(files)
            case "stop":
                log.close()
                said.safe = now.copy()
                log = _opened(files)
    record.end()
    return record


def check_delays(files: MemoryFileSystem, promises: LogPromises, *, power: bool, deep: bool) -> None:
    """What was promised waits, once; what is gone for sure does not; nothing looks damaged; twice the same."""
    log = _opened(files)
    found = [number_in(term) for _, term in log.waiting()]
    promises.after(power=power).check("delayed messages", found)
    assert not log.damage, f"what a crash left is called damage: {log.damage}"
    log.abandon()
    log = _opened(files)
    assert sorted(number_in(term) for _, term in log.waiting()) == sorted(found), "another opening finds others"
    if deep:
        log.add([message(100_000, 1)])
        log.sync()
        log = _opened(files.after_power_loss(None))
        assert sorted(number_in(term) for _, term in log.waiting()) == sorted([*found, 100_000])
        log.settle(log.take_due(FAR_MS, 1000, 1 << 20))
        log.close()
        log = _opened(log._files)  # type: ignore[arg-type]
        assert not len(log), "what was settled waits again"
        assert not log._files.contents(), "files stay of what was settled"  # type: ignore[attr-defined]


# ── definitions ──────────────────────────────────────────────────────────────────────────────────────────────────────

NODE: Final = "/data/node"
Definitions = dict[str, int]


@attrs.define
class DefinitionPromises:
    """What the disk may hold: what was confirmed last, and what the later changes have made of it."""

    possible: list[Definitions] = attrs.Factory(list)
    """Empty: nothing was ever begun."""
    is_saved: bool = False


def run_definitions(seed: int) -> Record:
    """Queues are declared, changed and deleted; the log becomes a file now and then."""
    return definitions_go_on(MemoryFileSystem(0), DefinitionPromises(), seed)


def definitions_go_on(
    base: MemoryFileSystem, promises: DefinitionPromises, seed: int, *, power: bool = False
) -> Record:
    """The same on what a crash left."""
    rng, said = random.Random(seed), DefinitionPromises(list(promises.possible), promises.is_saved)
    files: MemoryFileSystem = recording(base, lambda: DefinitionPromises(list(said.possible), said.is_saved))
    record = files.record  # type: ignore[attr-defined]
    file, now = _taken_up_definitions(files)
    for _ in range(rng.randrange(4, 14)):
        match rng.choice(["put", "put", "put", "drop", "both", "die", "rewrite"]):
            case "die":
                files = files.after_process_crash()
                file, now = _taken_up_definitions(files)
            case what:
                names = {f"q{rng.randrange(5)}" for _ in range(2 if what == "both" else 1)}
                changes = {name: None if what == "drop" else rng.randrange(100) for name in sorted(names)}
                if what == "rewrite":
                    file._log_bytes = None
                now = _save(file, said, now, changes)
    record.end()
    return record


def _taken_up_definitions(files: MemoryFileSystem) -> tuple[DefinitionsFile, Definitions]:
    file = DefinitionsFile(files, NODE)
    found = _loaded(file)
    if found is None:
        file._log_bytes = None  # the first save writes the file
    return file, found or {}


def _save(
    file: DefinitionsFile, said: DefinitionPromises, now: Definitions, changes: dict[str, int | None]
) -> Definitions:
    """What is declared then. What is not there is not dropped."""
    coming = {**now}
    written: list[Change] = []
    for name, value in changes.items():
        old = coming.pop(name, None)
        if value is not None:
            coming[name] = value
            written.append(Change("put", "queue", json.dumps(_definition(name, value))))
        elif old is not None:
            written.append(Change("drop", "queue", json.dumps(_definition(name, old))))
    said.possible.append(coming)
    file.save(written, lambda: _snapshot(coming))
    said.possible, said.is_saved = [coming], True
    return coming


def _definition(name: str, value: int) -> dict[str, Any]:
    return {"vhost": "/", "name": name, "durable": True, "arguments": {"x-max-length": value}}


def _snapshot(declared: Definitions) -> definitions_file.Snapshot:
    queues = [_definition(name, value) for name, value in declared.items()]
    return {"vhosts": [{"name": "/"}], "exchanges": [], "bindings": [], "queues": queues}


def _loaded(file: DefinitionsFile) -> Definitions | None:
    found = file.load()
    if found is None:
        return None
    return {one["name"]: one["arguments"]["x-max-length"] for one in found["queues"]}


def check_definitions(files: MemoryFileSystem, promises: DefinitionPromises, *, power: bool, deep: bool) -> None:
    """As they were confirmed last, or with the change that was under way; and the next change holds."""
    file = DefinitionsFile(files, NODE)
    found = _loaded(file)
    if found is None:
        assert not promises.is_saved, "all definitions are gone"
        return
    assert found in promises.possible, f"{found}: none of {promises.possible}"
    now = _save(file, DefinitionPromises([found]), found, {"next": 7})
    again = files.after_power_loss(random.Random(len(found)))
    assert _loaded(DefinitionsFile(again, NODE)) == now, "a change that was confirmed is lost"


# ── records ──────────────────────────────────────────────────────────────────────────────────────────────────────────

PATH: Final = "/data/records/log"


def run_records(seed: int) -> Record:
    """Records are appended, written, synced, and replaced by the last few of them."""
    return records_go_on(MemoryFileSystem(0), LogPromises(), seed)


def records_go_on(base: MemoryFileSystem, promises: LogPromises, seed: int, *, power: bool = False) -> Record:
    """The same on what a crash left."""
    rng, said = random.Random(seed), promises.copy()
    now = said.now = said.after(power=power).copy()
    files: MemoryFileSystem = recording(base, said.copy)
    record = files.record  # type: ignore[attr-defined]
    log, pending = _taken_up(files, said), set[int]()
    for _ in range(rng.randrange(6, 25)):
        match rng.choice(["append", "append", "append", "write", "write", "sync", "replace", "die"]):
            case "append":
                first = max(now.begun, default=-1) + 1
                numbers = range(first, first + rng.randrange(1, 4))
                now.begun.update(numbers)
                for number in numbers:
                    log.append(payload_of(number))
                pending.update(numbers)
            case "write":
                log.write()
                now.made |= pending
            case "sync":
                log.sync()
                now.made |= pending
                said.safe = now.copy()
            case "replace":
                kept = set(sorted(now.made | pending)[-2:])
                now.ending |= now.begun - kept
                log.replace([payload_of(number) for number in sorted(kept)], sync=True)
                now.made, now.ended = kept, set(now.ending)
                said.safe = now.copy()
                pending = set()
            case "die":
                files = files.after_process_crash()
                log = _taken_up(files, said)
                pending = set()
    record.end()
    return record


def _taken_up(files: MemoryFileSystem, said: LogPromises) -> RecordLog:
    log = RecordLog(files, PATH, "numbers")
    said.take_up({number_of(payload) for _, payload in log.replay()})
    return log


def payload_of(number: int) -> bytes:
    return (b"%d;" % number) * (number * 37 % 90 + 1)


def number_of(payload: bytes) -> int:
    number = int(payload.partition(b";")[0])
    assert payload == payload_of(number), "a record that nobody wrote"
    return number


def check_records(files: MemoryFileSystem, promises: LogPromises, *, power: bool, deep: bool) -> None:
    """What was written, or synced, is there, in order; nothing looks damaged; what is appended next is found."""
    log = RecordLog(files, PATH, "numbers")
    found = [number_of(payload) for _, payload in log.replay()]
    promises.after(power=power).check("records", found)
    assert found == sorted(found), "out of order"
    assert log.damage is None, f"what a crash left is called damage: {log.damage}"
    log.append(payload_of(1000))
    log.sync()
    log = RecordLog(files.after_power_loss(None), PATH, "numbers")
    assert [number_of(payload) for _, payload in log.replay()] == [*found, 1000]
