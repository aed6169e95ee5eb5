"""Mnesia's tables from dumps and logs, against a model: an independent writer spreads changes over the files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from tests.support.disk_log_tools import CLOSED, OPEN, log
from warren.queue_index.index.dets_format import TableObject, encode_table
from warren.salvage.metadata.mnesia_tables import read_tables
from warren.salvage.queue_directory import Finding
from warren.salvage.read_only import ReadOnlyFileSystem
from warren.storage.erlang_terms import Atom, Term, encode
from warren.storage.memory import MemoryFileSystem

TAB = Atom("tab")
VERSION = [52, 46, 51]

Row = tuple[Any, ...]
Change = tuple[str, int, int]
"""What, the key, the value."""

CHANGES = st.tuples(
    st.sampled_from(["write", "write", "write", "delete", "delete_object", "clear_table"]),
    st.integers(0, 5),
    st.integers(0, 3),
)
OUTCOMES = st.sampled_from(["presume_commit", "committed", "committed", "aborted", "missing"])
TRANSACTIONS = st.lists(st.tuples(OUTCOMES, st.lists(CHANGES, max_size=4)), max_size=8)


def header(kind: str) -> Term:
    return Atom("log_header"), Atom(kind), VERSION, VERSION, Atom("node@host"), (1, 2, 3)


def row(key: int, value: int) -> Row:
    return Atom("record"), [key], value


def operation(change: Change, table: Atom = TAB) -> Term:
    what, key, value = change
    return (table, [key]), row(key, value), Atom(what)


def commits(number: int, outcome: str, changes: Iterable[Change]) -> list[Term]:
    """The items of a transaction."""
    nodes = [Atom("node@host")]
    tid = Atom("tid"), number, Atom("pid")
    decision: Term = Atom(outcome)
    items: list[Term] = []
    if outcome != "presume_commit":
        decision = Atom("decision"), tid, Atom("presume_abort"), nodes, []
    if outcome in ("committed", "aborted"):
        items = [(Atom("decision"), tid, Atom(outcome), [], [])]
    operations = [operation(("write", 9, 9), Atom("another")), *map(operation, changes)]
    commit: Term = Atom("commit"), Atom("node@host"), decision, [], operations, [], [], []
    return [commit, *items]


def applied(table: dict[int, int], changes: Iterable[Change]) -> None:
    for what, key, value in changes:
        match what:
            case "write":
                table[key] = value
            case "delete":
                table.pop(key, None)
            case "clear_table":
                table.clear()
            case "delete_object" if table.get(key) == value:
                del table[key]


def read(contents: dict[str, bytes]) -> tuple[list[Row], list[Finding]]:
    files, findings = MemoryFileSystem(), list[Finding]()
    for name, data in ({"LATEST.LOG": log([])} | contents).items():
        files.make_directories("node")
        file = files.open_append(f"node/{name}")
        file.append(data)
        file.close()
    tables = read_tables(ReadOnlyFileSystem(files), "node", ["tab"], findings.append)
    return cast(list[Row], tables["tab"]), findings


def schema() -> bytes:
    return dets([(Atom("schema"), Atom(name), []) for name in ("tab", "another")])


def dets(terms: Iterable[Term]) -> bytes:
    return encode_table(TableObject(bytes([n]), n, encode(term)) for n, term in enumerate(terms))


@given(
    dumped=st.dictionaries(st.integers(0, 5), st.integers(0, 3)),
    is_on_disk_only=st.booleans(),
    changes=st.lists(CHANGES, max_size=8),
    logs=st.tuples(TRANSACTIONS, TRANSACTIONS),
    already=st.integers(0, 8),
)
def test_dumps_and_logs_are_applied_in_order(
    dumped: dict[int, int],
    is_on_disk_only: bool,
    changes: list[Change],
    logs: tuple[list[tuple[str, list[Change]]], list[tuple[str, list[Change]]]],
    already: int,
) -> None:
    previous, latest = logs
    table = dict(dumped)
    applied(table, changes)
    valid = [
        [change for outcome, group in log_ if outcome in ("presume_commit", "committed") for change in group]
        for log_ in (previous, latest)
    ]
    moved = valid[0][:already]  # of PREVIOUS.LOG, before the kill came
    for group in valid:
        applied(table, group)
    rows = [row(key, value) for key, value in dumped.items()]
    numbered = list(enumerate(previous + latest))
    logged = [
        [item for number, (outcome, group) in part for item in commits(number, outcome, group)]
        for part in (numbered[: len(previous)], numbered[len(previous) :])
    ]
    contents = {
        "schema.DAT": schema(),
        "tab.DCL": log([header("dcl_log"), *map(operation, changes + moved)], CLOSED),
        "PREVIOUS.LOG": log([header("trans_log"), *logged[0]], CLOSED),
        "LATEST.LOG": log([header("trans_log"), *logged[1]], OPEN),
        "tab.TMP": b"never read",
    }
    if is_on_disk_only:
        contents["tab.DAT"] = dets(rows)
    else:
        contents["tab.DCD"] = log([header("dcd_log"), *rows], CLOSED)
    got, findings = read(contents)
    assert sorted(got) == sorted(row(key, value) for key, value in table.items())
    assert findings == []


def test_a_decision_may_be_in_the_later_log_or_in_the_table_of_decisions() -> None:
    first, decision = commits(1, "committed", [("write", 1, 1)])
    second, other = commits(2, "committed", [("write", 2, 2)])
    contents = {
        "tab.DCD": log([]),
        "PREVIOUS.LOG": log([header("trans_log"), first, second]),
        "LATEST.LOG": log([header("trans_log"), decision]),
        "DECISION_TAB.LOG": log(
            [header("decision_tab"), (Atom("decision_list"), [(Atom("trans_tid"), Atom("serial"), 7), other])]
        ),
        "schema.DAT": schema(),
    }
    assert read(contents) == ([row(1, 1), row(2, 2)], [])


def test_changes_of_old_logs_are_in_reverse_order() -> None:
    old = Atom("log_header"), Atom("trans_log"), [52, 46, 50], VERSION, Atom("node@host"), (1, 2, 3)
    items = commits(1, "presume_commit", [("write", 1, 2), ("write", 1, 1)])
    assert read({"tab.DCD": log([]), "LATEST.LOG": log([old, *items]), "schema.DAT": schema()}) == ([row(1, 2)], [])


def test_a_table_that_was_deleted_or_rewritten_by_the_schema() -> None:
    rewritten = Atom("op"), Atom("rec"), Atom("disc_copies"), ((TAB, [1]), [row(1, 3)], Atom("write"))
    for operations, rows in (
        ([(Atom("op"), Atom("delete_table"), [(Atom("name"), TAB)])], []),
        ([(Atom("op"), Atom("clear_table"), [(Atom("name"), TAB)]), rewritten], [row(1, 3)]),
        ([(Atom("op"), Atom("create_table"), [(Atom("name"), TAB)])], [row(1, 1)]),
    ):
        commit: Term = Atom("commit"), Atom("n"), Atom("presume_commit"), [], [], [], [], operations
        contents = {"tab.DCD": log([row(1, 1)]), "LATEST.LOG": log([commit]), "schema.DAT": schema()}
        assert read(contents) == (rows, [])


def test_what_is_no_change_is_reported_and_the_rest_is_applied() -> None:
    changes: list[Term] = [((TAB, [1]), row(1, 1), Atom("explode")), 7, operation(("write", 2, 2))]
    got, findings = read({"tab.DCD": log([3]), "tab.DCL": log(changes), "schema.DAT": b"none"})
    assert got == [row(2, 2)]
    assert [(finding.kind, finding.path) for finding in findings] == [
        ("unreadable table", "node/schema.DAT"),
        ("unreadable record", "node/tab.DCD"),
        ("unreadable change", "node/tab.DCL"),
        ("unreadable change", "node/tab.DCL"),
    ]


def test_a_change_of_a_table_that_does_not_exist_is_reported() -> None:
    created: Term = Atom("op"), Atom("create_table"), [(Atom("name"), Atom("new"))]
    changes = [operation(("write", 1, 1), Atom(name)) for name in ("new", "t\0b")]
    commit: Term = Atom("commit"), Atom("n"), Atom("presume_commit"), [], changes, [], [], [created]
    got, findings = read({"tab.DCD": log([]), "LATEST.LOG": log([commit]), "schema.DAT": schema()})
    assert got == []
    assert [finding.detail for finding in findings] == ["of a table Atom('t\\x00b'), which does not exist"]


def test_a_transaction_that_other_nodes_decide_is_reported() -> None:
    commit = list(cast(Row, commits(1, "missing", [("write", 1, 1)])[0]))
    commit[2] = (*cast(Row, commit[2])[:3], [Atom("a"), Atom("b")], [])
    got, findings = read({"tab.DCD": log([]), "LATEST.LOG": log([tuple(commit)]), "schema.DAT": schema()})
    assert (got, [finding.kind for finding in findings]) == ([], ["unclear transaction"])
