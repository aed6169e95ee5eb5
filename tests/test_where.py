"""Conditions on messages: what each word means, what is refused and where, and drawn ones against a plain evaluator."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.queue_index.message.amqp_tables import LongInteger, LongString, Timestamp
from warren.queue_index.properties import Properties
from warren.where import MAX_CHARACTERS, MAX_DEPTH, MAX_FIELDS, RECORD_FIELDS, Moment, WhereError, compile_where


@attrs.frozen
class Message:
    body: bytes = b"hello"
    properties: Properties = attrs.field(factory=Properties)
    exchange: str = "shop"
    routing_key: str = "order.eu.created"
    persistent: bool = True


NOON = 1_767_268_800  # 2026-01-01T12:00:00Z
HEADERS: Mapping[str, Any] = {
    "retries": 3,
    "text": "abc",
    "number as text": "42",
    "ratio": 1.5,
    "price": Decimal("9.99"),
    "flag": True,
    "nothing": None,
    "when": Timestamp(NOON),
    "datetime": datetime(2026, 1, 1, 12, tzinfo=UTC),
    "long": LongInteger(1 << 40),
    "bytes": LongString(b"\xff\x00"),
    "x-death": [{"queue": "jobs", "count": 2, "time": Timestamp(NOON)}],
    "it's": "quoted",
}
FULL = Message(
    properties=Properties(
        content_type="text/plain", priority=5, timestamp=NOON, headers=HEADERS, expiration="60000", delivery_mode=2
    )
)


def holds(condition: str, message: Message = FULL) -> bool:
    return compile_where(condition)(message)


@pytest.mark.parametrize(
    "condition",
    [
        "routing_key = 'order.eu.created'",
        "Routing_Key == 'order.eu.created'",
        "exchange <> 'bank' AND exchange != 'bank'",
        "routing_key LIKE 'order.%'",
        "routing_key LIKE '%.eu.%'",
        "routing_key LIKE 'order.__.created'",
        "routing_key ILIKE 'ORDER.%' AND NOT routing_key LIKE 'ORDER.%'",
        "routing_key NOT LIKE 'order.us.%'",
        "content_type LIKE 'text/plain'",
        "'50%' LIKE '50!%' ESCAPE '!' AND NOT '505' LIKE '50!%' ESCAPE '!'",
        "headers['retries'] >= 3",
        "headers['retries'] BETWEEN 1 AND 3",
        "headers['retries'] NOT BETWEEN 4 AND 5",
        "headers['retries'] IN (1, 2, 3)",
        "headers['retries'] NOT IN (4, 5)",
        "headers['retries'] = '3'",
        "headers['number as text'] > 41.5",
        "headers['number as text'] LIKE '4_'",
        "headers['retries'] LIKE '3'",
        "headers['ratio'] = 1.5 AND headers['price'] < 10",
        "headers['flag'] AND headers['flag'] = TRUE",
        "headers['nothing'] IS NULL AND headers['missing'] IS NULL",
        "headers['text'] IS NOT NULL",
        "headers['when'] = '2026-01-01T12:00:00Z'",
        "headers['when'] = '2026-01-01 13:00:00+01:00'",
        "headers['datetime'] >= '2026-01-01'",
        f"headers['datetime'] = {NOON}",
        "headers['long'] = 1099511627776",
        "headers['bytes'] IS NOT NULL",
        "headers['x-death'][0]['queue'] = 'jobs' AND headers['x-death'][0]['time'] < '2027-01-01'",
        "headers['x-death'][1] IS NULL AND headers['x-death']['queue'] IS NULL AND headers['text'][0] IS NULL",
        "headers['it''s'] = 'quoted'",
        "properties['priority'] = 5 AND priority = '5'",
        "expiration = 60000",
        "timestamp >= '2026-01-01' AND timestamp < '2026-01-02'",
        f"timestamp = {NOON} AND timestamp = '{NOON}'",
        "'2026-01-01T12:00:00' = timestamp",
        "size = 5 AND size > 1e0 AND size < .6e1",
        "body = 'hello' AND body LIKE '%ell%'",
        "persistent",
        "NOT NOT persistent = TRUE",
        "(exchange = 'bank' OR priority > 4) AND NOT (size > 100)",
        "exchange = 'bank' OR exchange = 'x' AND size = 0 OR TRUE",
        "correlation_id IS NULL AND NOT correlation_id IS NOT NULL",
        "\"routing_key\" = 'order.eu.created'",
        "-1 < +1",
    ],
)
def test_conditions_that_hold(condition: str) -> None:
    assert holds(condition)
    assert not holds(f"NOT ({condition})")


@pytest.mark.parametrize(
    "condition",
    [
        "headers['missing'] = 1",
        "headers['missing'] <> 1",
        "headers['missing'] LIKE '%'",
        "headers['missing'] IN (1, NULL)",
        "headers['retries'] NOT IN (1, NULL)",
        "headers['missing'] BETWEEN 1 AND 2",
        "NULL = NULL",
        "headers['text'] > 1",
        "headers['flag'] = 1",
        "headers['flag'] = 'true'",
        "headers['x-death'] = 'jobs'",
        "headers['text']",
        "headers['when'] > 'abc'",
        "headers['missing'] AND TRUE",
        "headers['missing'] OR FALSE",
    ],
)
def test_what_is_null_is_neither_true_nor_false(condition: str) -> None:
    assert not holds(condition)
    assert not holds(f"NOT ({condition})")


def test_what_decides_outweighs_what_is_null() -> None:
    assert holds("headers['missing'] = 1 OR persistent")
    assert holds("NOT (headers['missing'] = 1 AND NOT persistent)")
    assert holds("headers['retries'] IN (NULL, 3)")
    assert holds("headers['retries'] NOT BETWEEN NULL AND 2")


def test_a_body_that_is_no_text_is_null() -> None:
    binary = Message(body=b"\xff\xfe")
    assert holds("body IS NULL AND size = 2", binary)
    assert not holds("body LIKE '%'", binary)
    assert holds("body LIKE 'a%b'", Message(body=b"a\nb"))
    assert holds("body = '\N{SNOWMAN}'", Message(body="\N{SNOWMAN}".encode()))


def test_a_message_without_headers_has_none() -> None:
    assert holds("headers IS NULL AND headers['x'] IS NULL AND timestamp IS NULL", Message())


def test_the_fields_that_are_asked_for_are_known() -> None:
    where = compile_where("SIZE > 3 AND headers['size'] IS NULL OR FALSE")
    assert where.fields == {"size", "headers"}
    assert where.text.startswith("SIZE")


def test_records_of_topics() -> None:
    record = SimpleNamespace(
        topic="orders",
        queue_id=2,
        queue_offset=17,
        properties={"KEYS": "k1 k2", "TAGS": "a", "region": "eu"},
        stored_at=NOON + 0.25,
        born_at=NOON,
        body=b"hi",
    )
    for condition in (
        "topic = 'orders' AND queue_id = 2 AND queue_offset >= 17",
        "key = 'k1' AND keys LIKE '%k2%' AND tag IN ('a', 'b')",
        "properties['region'] = 'eu' AND properties['x'] IS NULL",
        "stored_at > '2026-01-01T12:00:00Z' AND stored_at <= '2026-01-01T12:00:00.250Z'",
        "born_at = '2026-01-01 12:00'",
        "size = 2 AND body = 'hi'",
    ):
        assert compile_where(condition, RECORD_FIELDS)(record)


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("", "at its end: expected a field or a value"),
        ("  ", "at its end"),
        ("size >", "at its end: expected a field or a value"),
        ("size > 3 exchange", "at 'exchange' (character 10): expected AND, OR or the end"),
        ("colour = 'red'", "at \"colour = 'red'\" (character 1): no field 'colour'; there are app_id, "),
        ("(size > 3", "at its end: expected )"),
        ("size > 3)", "at ')' (character 9)"),
        ("size IN 3", "expected ("),
        ("size IN (1, 2", "at its end: expected )"),
        ("size NOT 3", "expected LIKE, IN or BETWEEN"),
        ("size IS 3", "expected NULL"),
        ("size BETWEEN 1 OR 2", "expected AND"),
        ("exchange LIKE 3", "expected a text in quotation marks"),
        ("exchange LIKE 'a' ESCAPE 'ab'", "ESCAPE wants one character"),
        ("headers[x] = 1", "expected 'a name', or a number, in brackets"),
        ("headers['x' = 1", "expected ]"),
        ("headers[1.5] = 1", "in brackets"),
        ("exchange = 'open", 'at "\'open" (character 12): a quotation mark that is not closed'),
        ("size > 3;", "at ';' (character 9): what is this?"),
        ("size > 3x", "at '3x' (character 8)"),
        ("timestamp > 'yesterday'", "(character 13): no time: a date as in"),
        ("'never' < timestamp", "(character 1): no time"),
        ("AND", "at 'AND' (character 1)"),
        ("size = = 3", "at '= 3'"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(condition: str, said: str) -> None:
    with pytest.raises(WhereError, match=re.escape(said)):
        compile_where(condition)


@pytest.mark.parametrize(("before", "behind"), [("(", ")"), ("NOT ", "")])
def test_too_deep_is_refused_and_not_a_recursion_error(before: str, behind: str) -> None:
    assert compile_where(before * MAX_DEPTH + "persistent" + behind * MAX_DEPTH)(FULL)
    with pytest.raises(WhereError, match="levels deep"):
        compile_where(before * 1000 + "persistent" + behind * 1000)


def test_as_many_conditions_as_are_allowed_are_not_deep() -> None:
    assert holds(" AND ".join(["persistent"] * (MAX_FIELDS // 2)) + " OR size = 0" * (MAX_FIELDS // 2))


@pytest.mark.parametrize(
    ("allowed", "more", "said"),
    [
        ("size > 0" + " " * (MAX_CHARACTERS - 8), " ", "has 10,001 characters; at most 10,000 are allowed"),
        ("size > 0" + " OR persistent" * (MAX_FIELDS - 1), " OR body = 'x'", "at \"body = 'x'\" (character"),
        (
            "size IN (size" + ", 17" * 2000 + ", persistent" * (MAX_FIELDS - 2),
            ", body",
            "more than 100 fields; IN compares",
        ),
        (f"body LIKE '%' OR body LIKE '{'%a' * 900}'", f" OR body LIKE '{'b' * 500}'", "or all patterns together"),
    ],
)
def test_a_condition_has_a_limited_size(allowed: str, more: str, said: str) -> None:
    end = ")" if " IN " in allowed else ""
    assert compile_where(allowed + end)(FULL)
    with pytest.raises(WhereError, match=re.escape(said)):
        compile_where(allowed + more + end)


def test_no_pattern_takes_long() -> None:
    begun = time.process_time()
    assert not holds("body LIKE '" + "%a" * 50 + "%b'", Message(body=b"a" * 20_000))
    assert time.process_time() - begun < 5


# ── against a plain evaluator ────────────────────────────────────────────────────────────────────────────────────────

FIELDS = {name: itemgetter(name) for name in ("a", "b", "c")}
VALUES = st.one_of(st.none(), st.integers(-3, 3), st.sampled_from(["", "a", "ab", "b%", "A", "1", "-2", "1.0"]))
ROWS = st.fixed_dictionaries(dict.fromkeys(FIELDS, VALUES))
OPERANDS = st.one_of(st.sampled_from([*FIELDS]).map(lambda name: ("field", name)), VALUES.map(lambda v: ("value", v)))
PATTERNS = st.text("ab%_1A", max_size=4)


def _trees() -> st.SearchStrategy[Any]:
    leaves = st.one_of(
        st.tuples(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), OPERANDS, OPERANDS),
        st.tuples(st.just("IN"), OPERANDS, st.lists(OPERANDS, min_size=1, max_size=3)),
        st.tuples(st.just("BETWEEN"), OPERANDS, OPERANDS, OPERANDS),
        st.tuples(st.just("NULL"), OPERANDS),
        st.tuples(st.just("LIKE"), OPERANDS, PATTERNS),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.just("NOT"), inner), st.tuples(st.sampled_from(["AND", "OR"]), inner, inner)
        ),
        max_leaves=8,
    )


def _said(tree: Any) -> str:
    kind, *parts = tree
    if kind in ("field", "value"):
        (value,) = parts
        text = value if kind == "field" else "NULL" if value is None else repr(value)
        return str(text)
    if kind in ("AND", "OR"):
        return f"({_said(parts[0])}) {kind} ({_said(parts[1])})"
    if kind == "NOT":
        return f"NOT ({_said(parts[0])})"
    operand = _said(parts[0])
    match kind:
        case "IN":
            return f"{operand} IN ({', '.join(map(_said, parts[1]))})"
        case "BETWEEN":
            return f"{operand} BETWEEN {_said(parts[1])} AND {_said(parts[2])}"
        case "NULL":
            return f"{operand} IS NULL"
        case "LIKE":
            return f"{operand} LIKE '{parts[1]}'"
        case _:
            return f"{operand} {kind} {_said(parts[1])}"


def _less_or_equal(left: Any, right: Any) -> tuple[bool, bool] | None:
    """Whether it is less, and whether it is equal."""
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        return left < right, left == right
    try:
        left, right = float(left), float(right)
    except ValueError:
        return None
    return left < right, left == right


def _like(text: str, pattern: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(_like(text[at:], pattern[1:]) for at in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and _like(text[1:], pattern[1:])


def _truth(tree: Any, row: Mapping[str, Any]) -> bool | None:
    """As the SQL standard has it: true is 1, false 0, unknown a half; AND the least, OR the greatest."""

    def value(operand: Any) -> Any:
        return row[operand[1]] if operand[0] == "field" else operand[1]

    def compared(kind: str, left: Any, right: Any) -> float:
        found = _less_or_equal(value(left), value(right))
        if found is None:
            return 0.5
        less, equal = found
        return float(
            {"=": equal, "<>": not equal, "<": less, "<=": less or equal, ">": not (less or equal), ">=": not less}[
                kind
            ]
        )

    def degree(tree: Any) -> float:
        kind, *parts = tree
        match kind:
            case "AND":
                return min(map(degree, parts))
            case "OR":
                return max(map(degree, parts))
            case "NOT":
                return 1 - degree(parts[0])
            case "IN":
                return max(compared("=", parts[0], each) for each in parts[1])
            case "BETWEEN":
                return min(compared(">=", parts[0], parts[1]), compared("<=", parts[0], parts[2]))
            case "NULL":
                return float(value(parts[0]) is None)
            case "LIKE":
                text = value(parts[0])
                return 0.5 if text is None else float(_like(str(text), parts[1]))
            case _:
                return compared(kind, *parts)

    return {0: False, 0.5: None, 1: True}[degree(tree)]


@given(_trees(), ROWS)
def test_drawn_conditions_are_what_a_plain_evaluator_says(tree: Any, row: Mapping[str, Any]) -> None:
    where = compile_where(_said(tree), FIELDS)
    assert where._test(row) is _truth(tree, row)
    assert where(row) is (_truth(tree, row) is True)


@given(st.text("aszeNOTINLIKE=<>()[]'\",.1% \n\\", max_size=40))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    try:
        where = compile_where(text)
    except WhereError as error:
        refused = str(error)
    else:
        refused = ""
        assert where(FULL) in (True, False)
    assert "\n" not in refused


@given(st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)), st.integers(-12, 12))
def test_dates_of_any_zone(moment: datetime, hours: int) -> None:
    moment = moment.replace(microsecond=0, tzinfo=timezone(timedelta(hours=hours)))
    where = compile_where(f"at = '{moment.isoformat()}'", {"at": lambda row: row})
    assert where(Moment(moment.timestamp()))
    assert not where(Moment(moment.timestamp() + 1))


def test_a_pattern_that_is_compared_with_each_byte_too_often_is_refused() -> None:
    with pytest.raises(WhereError, match=r"character 11\): the pattern is too large"):
        compile_where(f"body LIKE '{'_' * 300}'")
    assert compile_where("body LIKE '" + "%a" * 900 + "%'")(attrs.evolve(FULL, body=b"a" * 900))
