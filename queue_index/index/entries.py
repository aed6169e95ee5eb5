"""A segment's positions according to the files of an index, in columns.

:class:`SegmentEntries` holds for each position, as one file has it: its facts (:mod:`warren.queue_index.index.facts`),
and where its message is. Contents that a sound file cannot have are a :class:`Finding`.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np

from warren.queue_index.index.facts import ACKED, DELIVERED, IMPOSSIBLE, NOTHING, PLUS, PUBLISHED
from warren.queue_index.index.record_format import Bools, Columns, Ints, Octets
from warren.storage.columns import distinct, is_rising, joined

_BOTH: Final = PLUS[:, :].tobytes().ljust(256, bytes([IMPOSSIBLE]))


def both(in_segment: Octets, in_journal: Octets) -> Octets:
    """:data:`PLUS` for columns of octets: with a lookup table, a whole segment is one step."""
    codes: Octets = in_segment * np.uint8(8) + in_journal
    return np.frombuffer(codes.tobytes().translate(_BOTH), np.uint8)


@attrs.frozen
class Finding:
    """Something in an index file that a sound one does not have. ``offset`` is the file's; ``None``: not one place."""

    kind: str
    offset: int | None
    detail: str


@attrs.define(eq=False, repr=False)
class SegmentEntries:
    """One file's entries of a segment, by rel_seq, as far as it speaks of any: a short queue needs no long columns.

    ``body_at`` and ``embedded`` are valid only for published positions.
    """

    facts: Octets
    persistent: Bools
    body_at: Ints
    embedded: Ints

    @property
    def unacked(self) -> int:
        return int(((self.facts & (PUBLISHED | ACKED)) == PUBLISHED).sum())

    def __len__(self) -> int:
        return len(self.facts)

    def reach(self, count: int) -> None:
        """Add empty entries for the missing positions up to ``count``."""
        if len(self) < count:
            more = no_entries(count - len(self))
            self.facts = joined(self.facts, more.facts)
            self.persistent = joined(self.persistent, more.persistent)
            self.body_at = joined(self.body_at, more.body_at)
            self.embedded = joined(self.embedded, more.embedded)


def no_entries(count: int) -> SegmentEntries:
    """Of ``count`` positions nothing is known."""
    return SegmentEntries(
        facts=np.zeros(count, np.uint8),
        persistent=np.zeros(count, np.bool_),
        body_at=np.zeros(count, np.int64),
        embedded=np.zeros(count, np.int64),
    )


def entry_count(columns: Columns, segment_entry_count: int) -> int:
    """How many positions from the segment's first on a file speaks of; no more than the segment has."""
    highest = max(int(numbers.max(initial=-1)) for numbers in (columns.publish_numbers, columns.delivers))
    return min(segment_entry_count, highest + 1)


def segment_entries(columns: Columns, segment_entry_count: int) -> tuple[SegmentEntries, list[Finding]]:
    """Put a segment file's records in place, and report those without a place.

    Of two publishes of one position the first counts; of its short records the first two; without a publish, no record.
    """
    entries = no_entries(segment_entry_count)
    findings: list[Finding] = []
    numbers, shorts = columns.publish_numbers, columns.delivers
    for number, at in zip(
        numbers[numbers >= segment_entry_count], columns.body_at[numbers >= segment_entry_count], strict=True
    ):
        findings.append(
            Finding("position out of range", int(at) - 2, f"publish of rel_seq {number} of {segment_entry_count}")
        )
    firsts = _first_of_each(numbers)
    if len(firsts) != len(numbers):
        for index in np.setdiff1d(np.arange(len(numbers)), firsts):
            findings.append(Finding("double publish", int(columns.body_at[index]) - 2, f"rel_seq {numbers[index]}"))
    firsts = firsts[numbers[firsts] < segment_entry_count]
    places = numbers[firsts]
    entries.facts[places] = PUBLISHED
    entries.persistent[places] = columns.publish_persistent[firsts]
    entries.body_at[places] = columns.body_at[firsts]
    entries.embedded[places] = columns.embedded_sizes[firsts]
    counts = np.bincount(shorts, minlength=segment_entry_count)
    for number in np.flatnonzero(counts[segment_entry_count:]) + segment_entry_count:
        findings.append(
            Finding("position out of range", None, f"short record of rel_seq {number} of {segment_entry_count}")
        )
    counts = counts[:segment_entry_count]
    published = entries.facts == PUBLISHED
    for number in np.flatnonzero(counts.astype(np.bool_) & ~published):
        findings.append(Finding("entry without publish", None, f"{counts[number]} short records of rel_seq {number}"))
    for number in np.flatnonzero(published & (counts > 2)):
        findings.append(Finding("too many records", None, f"{counts[number]} short records of rel_seq {number}"))
    entries.facts[published & (counts >= 1)] |= DELIVERED
    entries.facts[published & (counts >= 2)] |= ACKED
    if columns.reason != "complete":
        findings.append(
            Finding("torn record", columns.end, f"the file goes on with something that is {_REASONS[columns.reason]}")
        )
    return entries, findings


_REASONS: Final = {"torn": "not a whole record", "zeros": "all zeros", "not a record": "not a record"}


def _first_of_each(numbers: Ints) -> Ints:
    """Where each number stands first, in the order of the numbers."""
    if is_rising(numbers):
        return np.arange(len(numbers))
    if is_rising(numbers[::-1]):  # as a flush writes many
        return np.arange(len(numbers) - 1, -1, -1)
    firsts: Ints = np.unique(numbers, return_index=True)[1]
    return firsts


def journal_entries(columns: Columns, segment_entry_count: int) -> tuple[dict[int, SegmentEntries], list[Finding]]:
    """Group a journal file's records by segment; positions published, delivered and acked within it are dropped."""
    segments: dict[int, SegmentEntries] = {}
    columns_of_seq_ids = (columns.publish_numbers, columns.delivers, columns.acks)
    end = max(int(seq_ids.max(initial=-1)) for seq_ids in columns_of_seq_ids) + 1
    findings: list[Finding] = []

    def places(seq_ids: Ints) -> list[tuple[SegmentEntries, Ints, Ints]]:
        numbers = seq_ids // segment_entry_count
        result = []
        for number in distinct(numbers):
            if int(number) not in segments:
                first = int(number) * segment_entry_count
                segments[int(number)] = no_entries(min(segment_entry_count, end - first))
            chosen = np.flatnonzero(numbers == number)
            result.append((segments[int(number)], chosen, seq_ids[chosen] % segment_entry_count))
        return result

    for entries, chosen, rel_seqs in places(columns.publish_numbers):
        firsts = _first_of_each(rel_seqs)
        if len(firsts) != len(rel_seqs):
            for index in np.setdiff1d(np.arange(len(rel_seqs)), firsts):
                at = int(columns.body_at[chosen[index]]) - 8
                findings.append(Finding("double publish", at, f"seq_id {columns.publish_numbers[chosen[index]]}"))
        spots, origin = rel_seqs[firsts], chosen[firsts]
        entries.facts[spots] = PUBLISHED
        entries.persistent[spots] = columns.publish_persistent[origin]
        entries.body_at[spots] = columns.body_at[origin]
        entries.embedded[spots] = columns.embedded_sizes[origin]
    for bit, seq_ids in ((DELIVERED, columns.delivers), (ACKED, columns.acks)):
        for entries, _, rel_seqs in places(seq_ids):
            entries.facts[rel_seqs] |= bit
    for entries in segments.values():
        entries.facts[entries.facts == (PUBLISHED | DELIVERED | ACKED)] = NOTHING
    if columns.reason in ("torn", "not a record"):
        findings.append(
            Finding(
                "torn record", columns.end, f"the journal goes on with something that is {_REASONS[columns.reason]}"
            )
        )
    return segments, findings
