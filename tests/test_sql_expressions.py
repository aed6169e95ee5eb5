"""What is understood of filters that DuckDB hands down: bounds that leave out no row for which the filter is true."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.sql.expressions import Call, Field, Literal, bounds_of, columns_of, taken_apart
from warren.tables.filters import Bounds, Pushdown

QUEUE, SEQ_ID = pc.field("queue"), pc.field("seq_id")


def wanted(expression: pc.Expression) -> dict[str, Bounds]:
    return dict(Pushdown.of(bounds_of(expression)).bounds)


@pytest.mark.parametrize(
    ("expression", "bounds"),
    [
        (QUEUE == "a", {"queue": Bounds(choice=frozenset("a"))}),
        (SEQ_ID >= 5, {"seq_id": Bounds(low=5)}),
        ((SEQ_ID > 5) & (SEQ_ID < 9), {"seq_id": Bounds(low=5, high=9)}),
        ((QUEUE == "a") & (SEQ_ID <= 9), {"queue": Bounds(choice=frozenset("a")), "seq_id": Bounds(high=9)}),
        ((QUEUE == "a") | (QUEUE == "b"), {"queue": Bounds(choice=frozenset("ab"))}),
        (QUEUE.isin(["a", "b"]), {"queue": Bounds(choice=frozenset("ab"))}),
        (
            pc.if_else(QUEUE.is_valid(), QUEUE.isin(["a"]), pa.scalar(None, pa.bool_())),  # as DuckDB writes IN
            {"queue": Bounds(choice=frozenset("a"))},
        ),
        (QUEUE == "it's: 'x'\nend: 'equal'", {"queue": Bounds(choice=frozenset(["it's: 'x'\nend: 'equal'"]))}),
        (QUEUE.is_valid(), {}),
        (QUEUE != "a", {}),
        (~(QUEUE == "a"), {}),
        ((QUEUE == "a") | (SEQ_ID == 1), {}),
        ((QUEUE == "a") | (SEQ_ID > 1), {}),
        (QUEUE.isin(["a", None]), {}),  # null is one of them
        (pc.if_else(SEQ_ID > 3, QUEUE == "a", QUEUE == "b"), {}),
    ],
    ids=lambda value: str(value) if isinstance(value, pc.Expression) else "",
)
def test_bounds_of_a_filter(expression: pc.Expression, bounds: dict[str, Bounds]) -> None:
    assert wanted(expression) == bounds


def test_a_filter_taken_apart() -> None:
    assert taken_apart(pc.greater(pc.add(SEQ_ID, 1), 5)) == Call(
        "greater", (Call("add", (Field("seq_id"), Literal(1)), None), Literal(5)), None
    )


def test_the_columns_of_a_filter() -> None:
    assert columns_of((QUEUE == "a") & SEQ_ID.is_valid()) == {"queue", "seq_id"}


def test_a_filter_that_is_not_understood_bounds_nothing() -> None:
    nested = pc.field(("deep", "inside")) == 1
    assert wanted(nested) == {}
    assert columns_of(nested) is None


NUMBERS = st.one_of(st.none(), st.integers(-3, 3))
TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "ab"]))


def comparisons(name: str, values: st.SearchStrategy[Any], kind: pa.DataType) -> st.SearchStrategy[pc.Expression]:
    field = pc.field(name)
    literals = values.map(lambda value: pa.scalar(value, kind))
    return st.one_of(
        st.builds(
            lambda compare, literal: compare(field, literal),
            st.sampled_from([pc.equal, pc.not_equal, pc.less, pc.less_equal, pc.greater, pc.greater_equal]),
            literals,
        ),
        st.lists(values, max_size=3).map(lambda some: field.isin(pa.array(some, kind))),
        st.sampled_from([field.is_valid(), field.is_null()]),
    )


EXPRESSIONS = st.recursive(
    st.one_of(comparisons("n", NUMBERS, pa.int64()), comparisons("t", TEXTS, pa.string())),
    lambda inner: st.one_of(
        st.builds(lambda left, right: left & right, inner, inner),
        st.builds(lambda left, right: left | right, inner, inner),
        inner.map(lambda one: ~one),
        st.builds(lambda test, one: pc.if_else(test, one, pa.scalar(None, pa.bool_())), inner, inner),
    ),
    max_leaves=6,
)
ROWS = pa.table(
    {
        "n": pa.array([number for number in (None, *range(-3, 4)) for _ in range(5)], pa.int64()),
        "t": pa.array([None, "", "a", "b", "ab"] * 8, pa.string()),
    }
)


@given(EXPRESSIONS)
def test_no_row_for_which_a_filter_is_true_is_out_of_its_bounds(expression: pc.Expression) -> None:
    found = Pushdown.of(bounds_of(expression))
    for row in ROWS.filter(expression).to_pylist():
        assert all(found.allows(name, value) for name, value in row.items()), (str(expression), found, row)
    assert columns_of(expression) is not None
