"""``recovery.dets``: what a clean stop records about every queue directory, for the next start.

One object for each directory, in a DETS file (:mod:`warren.queue_index.index.dets_format`)::

    {"<directory>", [{segments, [{Number, Unacked}]}, {next_seq_id, N}, {next_deliver_seq_id, N},
                     {persistent_ref, Binary | undefined}, {persistent_count, N}, {persistent_bytes, N}]}

A queue whose index is of version 2 has ``{v2_index_state, {2, #{Number => Live}}}`` in place of its segments.

Invariants. The key is the directory's name; each name stands once, in the slot of its hash. Numbers are not negative.
Unknown properties are kept as they are, and so is the state of a v2 index.

After a crash the file is there, closed properly and empty: a start reads it, then empties it. A queue without terms
was not stopped cleanly. A file that cannot be read is damage for the caller to weigh: every queue of it can be
recovered by scanning, which loses which messages were redelivered, and numbers above the last message left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeGuard

import attrs

from warren.queue_index.index.dets_format import StoredObject, TableObject, encode_table, read_table, slot_of
from warren.queue_index.index.erlang_hash import phash2_characters
from warren.storage.erlang_terms import Atom, Term, decode, encode
from warren.storage.errors import DataError, TermError, shortly

_NUMBERS: Final = ("next_seq_id", "next_deliver_seq_id", "persistent_count", "persistent_bytes")
V2_INDEX_STATE: Final = "v2_index_state"
V2_VERSION: Final = 2
_UNDEFINED = Atom("undefined")


@attrs.frozen
class RecoveryTerms:
    """The terms of one queue directory; ``None``: missing."""

    segments: tuple[tuple[int, int], ...]
    """Number of a segment, and how many of its messages are unacked, transient ones and the journal's included."""
    next_seq_id: int | None
    next_deliver_seq_id: int | None
    """A message below this has been delivered: it comes back redelivered."""
    persistent_ref: bytes | None
    """The id under which the store knows the queue: 16 bytes."""
    persistent_count: int | None
    """Persistent messages, ready and pending."""
    persistent_bytes: int | None
    """Bytes of their payloads."""
    others: tuple[tuple[str, Term], ...] = ()
    """Properties that are not ours, by name, as terms."""

    @property
    def is_blank(self) -> bool:
        """Whether they are complete and the queue is empty."""
        is_whole = self.persistent_ref is not None and self.persistent_count == 0
        return is_whole and not any(unacked for _, unacked in self.segments)


def read_recovery_terms(data: bytes, path: str) -> dict[str, RecoveryTerms]:
    """The terms in the file whose bytes are ``data``, by directory name.

    Names are what the file says, latin-1: compare them with the directories there are, never open them. Raises
    :class:`DataError`, with ``path``, for a file that is damaged, was not closed properly or holds anything else.
    """
    table = read_table(data, path)
    terms_by_name: dict[str, RecoveryTerms] = {}
    for stored in table.objects:
        try:
            characters, terms = _decode_object(stored)
        except TermError as error:
            raise DataError(path, stored.file_offset, str(error)) from error
        name = characters.decode("latin-1")
        if slot_of(phash2_characters(characters), table.slots) != stored.slot:
            raise DataError(
                path, stored.file_offset, f"'{shortly(name)}' stands in slot {stored.slot}, where none looks for it"
            )
        if name in terms_by_name:
            raise DataError(path, stored.file_offset, f"'{shortly(name)}' stands there twice")
        terms_by_name[name] = terms
    return terms_by_name


def v2_index_state(terms: RecoveryTerms, path: str) -> dict[int, int] | None:
    """How many entries of each segment of an index of version 2 are live; ``None`` if the terms are not of one.

    Raises :class:`DataError`, with ``path``, for a state of another form.
    """
    state = dict(terms.others).get(V2_INDEX_STATE)
    match state:
        case None:
            return None
        case (version, dict(segments)) if type(version) is int and version == V2_VERSION:
            if all(_is_number(number) and _is_number(unacked) for number, unacked in segments.items()):
                return {_number(number): _number(unacked) for number, unacked in segments.items()}
    raise DataError(path, None, f"a {V2_INDEX_STATE} that is not {{{V2_VERSION}, #{{Segment => Live}}}}")


def encode_recovery_terms(queues: Mapping[str, RecoveryTerms]) -> bytes:
    """A whole file that holds ``queues``, closed properly, as a broker opens it.

    Raises ``ValueError`` for a name that is not latin-1, for a property of ours among the others, and for more than
    DETS can hold.
    """
    return encode_table(_encode_object(name.encode("latin-1"), terms) for name, terms in queues.items())


def _encode_object(characters: bytes, terms: RecoveryTerms) -> TableObject:
    reference = _UNDEFINED if terms.persistent_ref is None else terms.persistent_ref
    properties: dict[str, Term | None] = {
        "segments": list(terms.segments),
        "next_seq_id": terms.next_seq_id,
        "next_deliver_seq_id": terms.next_deliver_seq_id,
        "persistent_ref": reference,
        "persistent_count": terms.persistent_count,
        "persistent_bytes": terms.persistent_bytes,
    }
    pairs: list[Term] = [(Atom(name), value) for name, value in properties.items() if value is not None]
    for name, value in terms.others:
        if name in properties:
            raise ValueError(f"{name} among the properties that are not ours")
        pairs.append((Atom(name), value))
    return TableObject(characters, phash2_characters(characters), encode((list(characters), pairs)))


def _decode_object(stored: StoredObject) -> tuple[bytes, RecoveryTerms]:
    """The directory's name and terms; raises :class:`TermError` if the object holds anything else."""
    name, properties = _pair(decode(stored.term, max_inflated_bytes=0))  # DETS compresses nothing
    if not isinstance(name, list) or not name or not all(_is_number(code) and code < 256 for code in name):
        raise TermError("a key that is no directory's name")
    return bytes(name), _decode_properties(_list(properties))


def _decode_properties(pairs: list[Term]) -> RecoveryTerms:
    properties: dict[str, Term] = {}
    for name, value in map(_pair, pairs):
        if not isinstance(name, Atom):
            raise TermError("a property whose name is no atom")
        if name in properties:
            raise TermError(f"{name} stands there twice")
        properties[str(name)] = value
    reference = properties.pop("persistent_ref", _UNDEFINED)
    if not isinstance(reference, bytes) and reference != _UNDEFINED:
        raise TermError("persistent_ref is neither a binary nor undefined")
    segments = [_pair(pair) for pair in _list(properties.pop("segments", []))]
    numbers = {name: _number(properties.pop(name)) if name in properties else None for name in _NUMBERS}
    return RecoveryTerms(
        segments=tuple((_number(number), _number(unacked)) for number, unacked in segments),
        next_seq_id=numbers["next_seq_id"],
        next_deliver_seq_id=numbers["next_deliver_seq_id"],
        persistent_ref=reference if isinstance(reference, bytes) else None,
        persistent_count=numbers["persistent_count"],
        persistent_bytes=numbers["persistent_bytes"],
        others=tuple(properties.items()),
    )


def _pair(term: Term) -> tuple[Term, Term]:
    if isinstance(term, tuple) and len(term) == 2:
        return term
    raise TermError("a pair is missing")


def _list(term: Term) -> list[Term]:
    if isinstance(term, list):
        return term
    raise TermError("a list is missing")


def _number(term: Term) -> int:
    if _is_number(term):
        return term
    raise TermError("a number is missing, or negative")


def _is_number(term: Term) -> TypeGuard[int]:
    """Whether it is a non-negative integer; the atom ``true`` is not."""
    return type(term) is int and term >= 0
