"""Which messages a client gets confirmed, and with which frames."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warren.server.channels.confirms import Confirms, Settled


def test_what_is_settled_in_order_is_told_at_once() -> None:
    confirms = Confirms()
    first, second = confirms.publish(3), confirms.publish(2)
    confirms.settle(first, ack=True)
    confirms.settle(second, ack=True)
    assert confirms.take() == [Settled(True, 5, True)]
    assert confirms.open == 0


def test_an_ack_of_many_ends_with_a_message_that_was_not_told_before() -> None:
    confirms = Confirms()
    slow, quick = confirms.publish(1), confirms.publish(1)
    confirms.settle(quick, ack=True)
    assert confirms.take() == [Settled(True, 2, False)]
    confirms.settle(slow, ack=True)
    assert confirms.take() == [Settled(True, 1, False)], "one message is no many"


@given(st.data())
def test_each_message_is_told_once_as_what_it_is_by_a_tag_that_is_still_open(data: st.DataObject) -> None:
    """As a client counts: a tag is open until its confirm, with ``multiple`` together with all below it."""
    counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=8))
    confirms = Confirms()
    firsts = [confirms.publish(count) for count in counts]
    acked = {first: data.draw(st.booleans()) for first in firsts}
    open_tags = set(range(1, sum(counts) + 1))
    expected = {
        first + index: acked[first] for first, count in zip(firsts, counts, strict=True) for index in range(count)
    }
    waiting = data.draw(st.permutations(firsts))
    while waiting:
        for _ in range(data.draw(st.integers(1, len(waiting)))):
            first = waiting.pop()
            confirms.settle(first, ack=acked[first])
        for ack, tag, multiple in confirms.take():
            assert tag in open_tags
            told = {one for one in open_tags if one <= tag} if multiple else {tag}
            assert {expected[one] for one in told} == {ack}
            open_tags -= told
    assert not open_tags
    assert confirms.open == 0
