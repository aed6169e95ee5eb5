"""The columns and filters that Spark or DuckDB pushes down to a table's scan, as bounds and choices for each column.

They only leave out files and ranges that cannot match. Every row is checked again afterwards, so a bound that is too
wide costs time and is never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

import attrs
import numpy as np
import numpy.typing as npt


@attrs.frozen
class Bounds:
    """The values of a column that match: from ``low`` to ``high``, both included; ``None``: no limit."""

    low: Any = None
    high: Any = None
    choice: frozenset[Any] | None = None

    def allows(self, value: Any) -> bool:
        """Whether a row with this value matches."""
        return self.overlaps(value, value) and (self.choice is None or value in self.choice)

    def overlaps(self, low: Any, high: Any) -> bool:
        """Whether rows with values from ``low`` to ``high`` (``None``: unknown) may match."""
        if self.low is not None and high is not None and high < self.low:
            return False
        if self.high is not None and low is not None and low > self.high:
            return False
        if self.choice is None:
            return True
        return any((low is None or value >= low) and (high is None or value <= high) for value in self.choice)

    def and_(self, other: Bounds) -> Bounds:
        """Return bounds for the values that both allow."""
        lows = [bounds.low for bounds in (self, other) if bounds.low is not None]
        highs = [bounds.high for bounds in (self, other) if bounds.high is not None]
        choices = [bounds.choice for bounds in (self, other) if bounds.choice is not None]
        choice = frozenset.intersection(*choices) if choices else None
        return Bounds(max(lows, default=None), min(highs, default=None), choice)

    def within(self, column: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return a mask of the numbers that may match."""
        mask = np.ones(len(column), np.bool_)
        if self.low is not None:
            mask &= column >= self.low
        if self.high is not None:
            mask &= column <= self.high
        if self.choice is not None:
            mask &= np.isin(column.astype(np.int64), np.array(sorted(self.choice), np.int64))
        return mask

    def narrowed(self, start: int, stop: int) -> tuple[int, int]:
        """The first of the numbers ``start`` … ``stop`` - 1 that may match, and the one after the last."""
        lows, highs = [start], [stop]
        if self.low is not None:
            lows.append(int(self.low))
        if self.high is not None:
            highs.append(int(self.high) + 1)
        if self.choice is not None:
            choices = [value for value in self.choice if start <= value < stop]
            lows.append(min(choices, default=stop))
            highs.append(max(choices, default=start) + 1)
        low, high = max(lows), min(highs)
        return low, max(low, high)


EVERYTHING = Bounds()


@attrs.frozen
class Pushdown:
    """What a query pushes down to the scan of a table: bounds by column, and the columns to read."""

    bounds: Mapping[str, Bounds] = attrs.Factory(dict)
    columns: frozenset[str] | None = None
    """The columns that are asked for; ``None``: all."""

    @classmethod
    def of(cls, bounds: Iterable[tuple[str, Bounds]], columns: frozenset[str] | None = None) -> Self:
        """Combine bounds of single columns, which all must hold."""
        combined: dict[str, Bounds] = {}
        for column, limits in bounds:
            combined[column] = combined.get(column, EVERYTHING).and_(limits)
        return cls(combined, columns)

    def asks(self, column: str) -> bool:
        """Whether that column is asked for."""
        return self.columns is None or column in self.columns

    def of_column(self, column: str) -> Bounds:
        """Return the bounds of a column."""
        return self.bounds.get(column, EVERYTHING)

    def allows(self, column: str, value: Any) -> bool:
        """Whether a row with this value in that column may match."""
        return self.of_column(column).allows(value)

    def overlaps(self, column: str, low: Any, high: Any) -> bool:
        """Whether rows with values from ``low`` to ``high`` in that column may be wanted."""
        return self.of_column(column).overlaps(low, high)
