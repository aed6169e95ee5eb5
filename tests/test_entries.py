"""What journal and segment say of a position, and what they say together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.index_tools import (
    JOURNAL_PUBLISH_BYTES,
    SEGMENT_PUBLISH_BYTES,
    TERM_BYTES,
    journal_ack,
    journal_deliver,
    journal_publish,
    segment_publish,
    segment_short,
)
from warren.queue_index.index.entries import Finding, SegmentEntries, journal_entries, segment_entries
from warren.queue_index.index.facts import ACKED, ADD, DELIVERED, IMPOSSIBLE, MINUS, NOTHING, PLUS, PUBLISHED
from warren.queue_index.index.record_format import JOURNAL, SEGMENT, parse

P, D, A = PUBLISHED, DELIVERED, ACKED
ACTIONS = (P, D, A)
LIFE = (NOTHING, P, P | D, P | D | A)
"""How far a message can have come."""
EVERY_PAIR = [(left, right) for left in range(8) for right in range(8)]


def named(facts: int) -> str:
    return "".join(letter for letter, fact in zip("PDA", ACTIONS, strict=True) if facts & fact) or "nothing"


# The tables, by what they mean


@pytest.mark.parametrize(("known", "action"), EVERY_PAIR, ids=named)
def test_an_action_follows_what_the_journal_knows_or_is_impossible(known: int, action: int) -> None:
    """Publish comes first, deliver once, ack last; what came before may be in the segment, but not with a gap."""
    follows = {P: [NOTHING], D: [NOTHING, P], A: [NOTHING, D, P | D]}
    expected = known | action if known in follows.get(action, []) else IMPOSSIBLE
    assert ADD[known, action] == (NOTHING if expected == P | D | A else expected)


@pytest.mark.parametrize(("in_segment", "in_journal"), EVERY_PAIR, ids=named)
def test_a_journal_goes_on_where_its_segment_stops(in_segment: int, in_journal: int) -> None:
    together = in_segment | in_journal
    goes_on = in_segment in LIFE and together in LIFE and not in_segment & in_journal
    if in_journal == P | D | A:
        goes_on = False  # the journal does not hold a whole life
    assert PLUS[in_segment, in_journal] == (together if goes_on else IMPOSSIBLE)


def crashes_in_a_flush() -> Iterator[tuple[int, int]]:
    """(in the journal's file, in the segment's file), wherever a flush can die."""
    for before in LIFE:
        for after in LIFE[LIFE.index(before) :]:
            written = [action for action in ACTIONS if action & after and not action & before]
            journal = [sum(written[:count]) for count in range(len(written) + 1)]  # the file lags
            segment = [before]
            if (before, after) != (NOTHING, P | D | A):
                segment += [before | sum(written[:count]) for count in range(len(written) + 1)]  # its end may be torn
            if after == P | D | A:
                segment.append(NOTHING)  # deleted
            yield from ((said, known) for said in journal if said != P | D | A for known in segment)


def crashes_in_a_recovery() -> Iterator[tuple[int, int]]:
    """The same where the flush of a recovery dies too: it has acked what does not come back."""
    for said, known in crashes_in_a_flush():
        yield said, known
        if known & P and not (said | known) & A:
            yield said, known | D
            yield said, known | D | A


CRASHES = frozenset(crashes_in_a_recovery())


@pytest.mark.parametrize(("in_journal", "in_segment"), EVERY_PAIR, ids=named)
def test_a_crash_in_a_flush_leaves_what_the_table_expects_and_nothing_else(in_journal: int, in_segment: int) -> None:
    left = int(MINUS[in_journal, in_segment])
    if (in_journal, in_segment) not in CRASHES:
        assert left == IMPOSSIBLE
        return
    both = in_journal | in_segment
    assert left == (in_journal & ~in_segment if both & P else NOTHING)
    assert PLUS[in_segment, left] == (both if both & P else NOTHING)


def test_what_is_published_delivered_and_acked_in_one_journal_is_forgotten() -> None:
    assert ADD[ADD[ADD[NOTHING, P], D], A] == NOTHING


def test_a_segment_can_know_of_a_deliver_that_the_journals_file_lags_behind_with() -> None:
    assert MINUS[P, P | D] == NOTHING


# Records put in their places


def of_segment(*records: bytes, size: int = 8) -> tuple[SegmentEntries, list[Finding]]:
    return segment_entries(parse(SEGMENT, b"".join(records)), size)


def of_journal(*records: bytes, size: int = 8) -> tuple[dict[int, SegmentEntries], list[Finding]]:
    return journal_entries(parse(JOURNAL, b"".join(records)), size)


def facts(entries: SegmentEntries) -> list[int]:
    known: list[int] = entries.facts.tolist()
    return known


def test_the_second_short_record_is_an_ack() -> None:
    entries, findings = of_segment(
        segment_publish(4), segment_publish(2, persistent=False), segment_short(4, 2, 4), segment_publish(1)
    )
    assert facts(entries) == [0, P, P | D, 0, P | D | A, 0, 0, 0]
    assert entries.unacked == 2
    assert entries.persistent[[1, 2, 4]].tolist() == [True, False, True]
    assert findings == []


def test_entries_say_where_bodies_stand_and_how_much_is_embedded() -> None:
    first = segment_publish(4, embedded=b"") + segment_short(4)
    entries, _ = of_segment(first, segment_publish(1))
    assert entries.body_at[[4, 1]].tolist() == [2, len(first) + 2]
    assert entries.embedded[[4, 1]].tolist() == [0, TERM_BYTES]


def test_of_two_publishes_of_one_position_the_first_holds() -> None:
    first = segment_publish(3)
    entries, findings = of_segment(first, segment_publish(3, persistent=False, embedded=b""))
    assert findings == [Finding("double publish", len(first), "rel_seq 3")]
    assert (entries.persistent[3], entries.embedded[3]) == (True, TERM_BYTES)


def test_the_first_publish_holds_where_a_long_stretch_publishes_again() -> None:
    entries, findings = of_segment(
        segment_publish(3, embedded=b"first"), *(segment_publish(3, embedded=b"") for _ in range(40))
    )
    assert entries.embedded[3] == 5
    assert len(findings) == 40


TORN = Finding("torn record", SEGMENT_PUBLISH_BYTES, "the file goes on with something that is")


@pytest.mark.parametrize(
    ("records", "finding", "known"),
    [
        ([segment_short(5)], Finding("entry without publish", None, "1 short records of rel_seq 5"), NOTHING),
        (
            [segment_publish(5), segment_short(5, 5, 5)],
            Finding("too many records", None, "3 short records of rel_seq 5"),
            P | D | A,
        ),
        ([segment_publish(5), bytes(9)], TORN, P),
        ([segment_publish(5), b"\xc0"], TORN, P),
    ],
    ids=["no publish", "three short records", "zeros", "torn"],
)
def test_what_a_sound_segment_does_not_hold_is_reported(records: list[bytes], finding: Finding, known: int) -> None:
    entries, findings = of_segment(*records)
    assert len(findings) == 1
    assert (findings[0].kind, findings[0].offset) == (finding.kind, finding.offset)
    assert findings[0].detail.startswith(finding.detail)
    assert facts(entries)[5] == known


def test_positions_that_a_segment_cannot_have_are_reported() -> None:
    entries, findings = of_segment(segment_publish(1), segment_publish(5), segment_short(7), size=4)
    assert facts(entries) == [0, P, 0, 0]
    assert [(finding.kind, finding.offset) for finding in findings] == [
        ("position out of range", SEGMENT_PUBLISH_BYTES),
        ("position out of range", None),
    ]


def test_a_journal_speaks_of_several_segments() -> None:
    segments, findings = of_journal(
        journal_publish(7),
        journal_publish(8, persistent=False),
        journal_publish(30, embedded=b""),
        journal_deliver(7, 30, 3),
        journal_ack(3, 17),
    )
    assert sorted(segments) == [0, 1, 2, 3]
    assert facts(segments[0]) == [0, 0, 0, D | A, 0, 0, 0, P | D]
    assert facts(segments[1]) == [P] + [0] * 7
    assert facts(segments[2]) == [0, A] + [0] * 6
    assert facts(segments[3])[6] == P | D
    assert (segments[1].persistent[0], segments[3].embedded[6]) == (False, 0)
    assert segments[1].body_at[0] == JOURNAL_PUBLISH_BYTES + 8
    assert findings == []


def test_a_whole_life_within_a_journal_is_gone() -> None:
    segments, _ = of_journal(journal_publish(1), journal_deliver(1), journal_publish(2), journal_ack(1))
    assert facts(segments[0])[:3] == [0, 0, P]


def test_a_journal_that_publishes_twice_or_is_torn_is_reported() -> None:
    segments, findings = of_journal(journal_publish(9), journal_publish(9, embedded=b""), b"\0" * 7)
    assert [(finding.kind, finding.offset) for finding in findings] == [
        ("double publish", JOURNAL_PUBLISH_BYTES),
        ("torn record", JOURNAL_PUBLISH_BYTES + 40),
    ]
    assert segments[1].embedded[1] == TERM_BYTES


def test_zeros_at_a_journals_end_are_no_damage() -> None:
    assert of_journal(journal_publish(9), bytes(100))[1] == []
