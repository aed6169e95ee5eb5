"""The facts about each position of a segment, and how the journal and the segment file add up.

An *entry* is a set of three facts, as bits: PUBLISHED, DELIVERED, ACKED. The segment file knows some of them, the
journal the others; a position is *unacked* if it is published and not acked. Three tables hold all possible pairs; a
pair that is not in its table cannot come about, and is reported rather than guessed at.

* :data:`ADD`: an action meets what the journal knows (in memory). Published, delivered and acked within one journal
  leaves nothing.
* :data:`PLUS`: the segment file plus the journal, for reading.
* :data:`MINUS`: the journal less what the segment file says already, after a crash between the two steps of a flush.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from warren.queue_index.index.record_format import Octets

NOTHING: Final = 0
PUBLISHED: Final = 1
DELIVERED: Final = 2
ACKED: Final = 4
_P, _D, _A = PUBLISHED, DELIVERED, ACKED
IMPOSSIBLE: Final = 255


class Table:
    """The result for each pair of sets of facts; also for two columns of them."""

    def __init__(self, cases: Mapping[tuple[int, int], int]) -> None:
        self._cases = cases

    def __getitem__(self, pair: tuple[Any, Any]) -> Any:
        return self._array[pair]

    @cached_property
    def _array(self) -> Octets:
        import numpy as np

        return np.frombuffer(b"".join(map(self.by_left, range(8))), np.uint8).reshape(8, 8).T

    def of(self, left: int, right: int) -> int:
        """The result for one pair."""
        return self._cases.get((left, right), IMPOSSIBLE)

    def by_left(self, right: int) -> bytes:
        """Return the result of each set of facts with ``right``."""
        return bytes([self.of(left, right) for left in range(8)])


ADD: Final = Table(
    {
        # (in the journal, action): in the journal from now on
        (NOTHING, _P): _P,
        (NOTHING, _D): _D,
        (NOTHING, _A): _A,
        (_P, _D): _P | _D,
        (_D, _A): _D | _A,
        (_P | _D, _A): NOTHING,
    }
)

PLUS: Final = Table(
    {
        # (in the segment, in the journal): together
        **{(segment, NOTHING): segment for segment in (NOTHING, _P, _P | _D, _P | _D | _A)},
        (NOTHING, _P): _P,
        (NOTHING, _P | _D): _P | _D,
        (_P, _D): _P | _D,
        (_P, _D | _A): _P | _D | _A,
        (_P | _D, _A): _P | _D | _A,
    }
)

MINUS: Final = Table(
    {
        # (in the journal, in the segment): left in the journal
        **{(NOTHING, segment): NOTHING for segment in (NOTHING, _P, _P | _D, _P | _D | _A)},
        # the segment file has no record of it
        (_P, NOTHING): _P,
        (_P | _D, NOTHING): _P | _D,
        # the flush that crashed had written it
        (_P, _P): NOTHING,
        (_P | _D, _P | _D): NOTHING,
        (_P, _P | _D): NOTHING,  # the deliver was not in the journal's file yet: it lags
        (_P | _D, _P): _D,
        # so had a recovery's flush, which crashed after it: messages that do not survive were acked there
        (_P, _P | _D | _A): NOTHING,
        (_P | _D, _P | _D | _A): NOTHING,
        # delivered or acked since
        (_D, _P): _D,
        (_D, _P | _D): NOTHING,
        (_D | _A, _P): _D | _A,
        (_D | _A, _P | _D): _A,
        (_D | _A, _P | _D | _A): NOTHING,
        (_A, _P | _D): _A,
        (_A, _P | _D | _A): NOTHING,
        # published nowhere: its segment was deleted by the flush that crashed
        (_D, NOTHING): NOTHING,
        (_A, NOTHING): NOTHING,
        (_D | _A, NOTHING): NOTHING,
        (_D, _P | _D | _A): NOTHING,
    }
)
