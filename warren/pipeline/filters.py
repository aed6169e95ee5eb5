"""The filters that Spark pushes down, as bounds of single columns. Spark itself evaluates every filter again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from warren.tables.filters import Bounds


def bounds_of(filters: Iterable[Filter]) -> Iterator[tuple[str, Bounds]]:
    """Yield the bounds of single columns that follow from filters which must all hold."""
    for predicate in filters:
        path: tuple[str, ...] = getattr(predicate, "attribute", ())
        bounds = _bounds(predicate)
        if len(path) == 1 and bounds is not None:
            yield path[0], bounds


def _bounds(predicate: Filter) -> Bounds | None:
    match predicate:
        case EqualTo(value=value) | EqualNullSafe(value=value) if value is not None:
            return Bounds(choice=frozenset((value,)))
        case In(value=values):
            return Bounds(choice=frozenset(value for value in values if value is not None))
        case GreaterThan(value=value) | GreaterThanOrEqual(value=value):
            return Bounds(low=value)
        case LessThan(value=value) | LessThanOrEqual(value=value):
            return Bounds(high=value)
        case _:
            return None
