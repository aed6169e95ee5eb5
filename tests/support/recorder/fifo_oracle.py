"""Our machine of a quorum queue against the server's own, command by command, without a running server.

``fifo_oracle.erl`` does the server's part, in an Erlang of its own; many logs go there in one call, as a start takes a
second. What is compared is the whole of both states: ours as :mod:`tests.support.quorum_state` writes it, theirs as a
snapshot would have it, both read by the one reader of snapshots; and the counts that each side keeps beside them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from tests.support.quorum_commands import PREAMBLE, History
from tests.support.quorum_state import state_term
from tests.support.recorder.recorder import compiled, run
from warren.salvage.quorum.fifo import machine_state
from warren.salvage.quorum.fifo.consumers import Consumer
from warren.salvage.quorum.fifo.decoding import decode_entry
from warren.salvage.quorum.fifo.machine import QuorumMachine
from warren.storage.erlang_terms import Term, decode, encode

Described = dict[str, Any]
_SOURCE = Path(__file__).with_name("fifo_oracle.erl")
_COMMANDS_SHOWN = 6


@attrs.frozen
class Answer:
    """What the server's machine is after an entry."""

    state: Term
    """As a snapshot would have it."""
    described: Described
    """The same and its counts, as our machine is described."""


@attrs.frozen
class Difference:
    """Where the two machines first differ: ``what`` maps a part of the state to (ours, the server's)."""

    seed: int
    step: int
    commands: Sequence[str]
    """The last of them, up to the one that brought it about."""
    what: Mapping[str, tuple[Any, Any]]
    ours: Described
    theirs: Described

    def __str__(self) -> str:
        return "\n".join(
            [
                f"seed {self.seed}, step {self.step}: the machines differ in {', '.join(self.what)}",
                *(f"    {command}" for command in self.commands),
                *(f"  {name}\n    ours   {ours}\n    theirs {theirs}" for name, (ours, theirs) in self.what.items()),
                f"  our state\n    {self.ours}\n  their state\n    {self.theirs}",
            ]
        )


def answers(histories: Sequence[History], directory: Path) -> list[list[Answer]]:
    """For each history, the answers to each of its entries. ``directory``: for files; it must exist and be unshared.

    Raises :class:`BrokerError` if the server's machine fails.
    """
    compiled(_SOURCE, directory)
    asked, answered = directory / "asked", directory / "answered"
    asked.write_bytes(encode([(history.settings, list(history.entries)) for history in histories]))
    evaluated = f'{_SOURCE.stem}:main("{asked}", "{answered}").'
    run(["erl", "-noshell", "-pa", str(directory), "-eval", evaluated], directory)
    logs: Any = decode(answered.read_bytes())
    versions = [history.version for history in histories]
    return [
        [_answer(decode(state), counts, version) for state, counts in log]
        for log, version in zip(logs, versions, strict=True)
    ]


def first_difference(
    history: History, answered: Sequence[Answer], *, snapshots: Container[int] = ()
) -> Difference | None:
    """Run a history on our machine; where it first, once the log has begun, was another than the server's.

    After each step of ``snapshots`` ours is replaced by the one that is read from the server's state.
    """
    machine = QuorumMachine.new(history.settings, history.version)
    for step, ((index, data), answer) in enumerate(zip(history.entries, answered, strict=True)):
        theirs = answer.described
        try:
            if step - 1 in snapshots:
                machine = QuorumMachine.from_snapshot(answered[step - 1].state, {}, history.version)
            machine.apply(index, *decode_entry(data))
            machine.check_invariants()
            ours = _described(state_term(machine), history.version) | _our_counts(machine)
        except Exception as error:
            ours = {"failure": repr(error)}
        what = {name: (ours.get(name), theirs.get(name)) for name in {**ours, **theirs} if _unlike(ours, theirs, name)}
        if what and step >= PREAMBLE - 1:
            return Difference(history.seed, step, _shown(history, step), what, ours, theirs)
    return None


def _unlike(ours: Described, theirs: Described, name: str) -> bool:
    return bool(ours.get(name) != theirs.get(name))


def _shown(history: History, step: int) -> list[str]:
    first = max(0, step + 1 - _COMMANDS_SHOWN)
    last = enumerate(history.entries[first : step + 1], first)
    return [f"step {number}, entry {index}: {decode_entry(data)}" for number, (index, data) in last]


def _answer(state: Term, counts: Mapping[str, int], version: int) -> Answer:
    return Answer(state, _described(state, version) | _their_counts(counts))


def _described(state: Term, version: int) -> Described:
    """All that a state says about the queue, as values that can be compared."""
    parts = machine_state.parts_of(state, version)
    messages, service, letters = parts.messages, parts.service, parts.messages.dead_letters
    return {
        "settings": messages.settings,
        "single active consumer": service.single_active,
        "ready": list(messages.ready),
        "returns": list(messages.returns),
        "consumers": [_consumer(one) for one in service.consumers],
        "waiting consumers": [_consumer(one) for one in service.waiting],
        "turns": list(service.queue),
        "publishers": parts.publishers.following,
        "dead letters": list(letters.waiting),
        "dead letters at the worker": letters.held,
        "worker": (letters.worker, letters.prefetch, letters.next_msg_id),
    }


def _consumer(consumer: Consumer) -> Described:
    """A consumer's description, with the order of what it holds."""
    return attrs.asdict(consumer, recurse=False) | {"held": list(consumer.held.items())}


def _our_counts(machine: QuorumMachine) -> Described:
    return {
        "ready count": machine.ready_count,
        "outstanding count": machine.messages.out_count,
        "dead letter count": len(machine.messages.dead_letters),
        "payload bytes": machine.payload_bytes,
        "dead letter bytes": sum(letter.message.size for letter in machine.messages.dead_letters),
    }


def _their_counts(counts: Mapping[str, int]) -> Described:
    """From the overview that the server's machine gives of itself."""

    def count(*names: str) -> int:
        return sum(counts[name] for name in names)

    return {
        "ready count": count("num_ready_messages"),
        "outstanding count": count("num_checked_out"),
        "dead letter count": count("num_discarded", "num_discard_checked_out"),
        "payload bytes": count("enqueue_message_bytes", "checkout_message_bytes"),
        "dead letter bytes": count("discard_message_bytes", "discard_checkout_message_bytes"),
    }
