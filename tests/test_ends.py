"""Ends of an interpreter: each ends as the table says, in time, with nothing lost that was promised.

The table is :data:`tests.support.ends.ENDS`; docs/ends.md has it, too. Another seed: ``WARREN_SEED=7``.
"""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from pathlib import Path

import pytest

import warren
from tests.support.all_ends import ENDS
from tests.support.effort import new_seed, times
from tests.support.ends import DELAYED, LIMIT_S, QUEUE, TOPIC, End, Kept, name_of, report_of
from tests.support.ends_nursery import Ended, end_all
from tests.support.tried import Count, Tried

Name = tuple[str, int]
QUICK = [id_ for id_, one in ENDS.items() if one.quick]
SLOW = [id_ for id_, one in ENDS.items() if not one.quick]
DRAWN = [id_ for id_, one in ENDS.items() if one.draws]
ROUNDS = times(1, nightly=8)
"""How often those are tried that have another course each time."""
PAGE = Path(__file__).parent.parent / "docs" / "ends.md"


class Said:
    """What a program has said of each place."""

    def __init__(self, path: Path) -> None:
        self.begun: dict[str, set[Name]] = defaultdict(set)
        self.published: dict[str, set[Name]] = defaultdict(set)
        self.confirmed: dict[str, set[Name]] = defaultdict(set)
        self.ack_begun: dict[str, set[Name]] = defaultdict(set)
        self.acked: dict[str, set[Name]] = defaultdict(set)
        kinds = {"b": self.begun, "p": self.published, "c": self.confirmed, "a": self.ack_begun, "g": self.acked}
        report = report_of(path)
        for line in report.read_text().splitlines() if report.exists() else ():
            kind, place, stream, *numbers = line.split()
            first, last = int(numbers[0]), int(numbers[-1])
            kinds[kind][place] |= {(stream, number) for number in range(first, last + 1)}


def check(one: End, ended: Ended) -> None:
    assert ended.code == one.code, ended.err
    assert re.fullmatch(one.says, ended.err, re.DOTALL), ended.err
    assert not ended.out
    assert ended.seconds < LIMIT_S
    if one.leaves_lock is not None:
        assert (ended.path / "warren.lock").exists() == one.leaves_lock
    said = Said(ended.path)
    with warren.open(ended.path) as node:
        queue = node.queue("q")
        there = {
            QUEUE: [name_of(message.body) for message in queue.browse()],
            TOPIC: [name_of(record.body) for record in node.topic("t").read("check")] if said.begun[TOPIC] else [],
            DELAYED: [name_of(message.body) for message in queue.delayed(1_000_000)],
        }
    assert said.begun, "it did nothing"
    for place, found in there.items():
        here = set(found)
        if not one.twice:
            assert len(here) == len(found), f"{place}: a message is there twice"
        assert here <= said.begun[place]
        for stream in {stream for stream, _ in here}:
            numbers = [number for at, number in found if at == stream]
            assert numbers == sorted(numbers), f"{place}: stream {stream} is out of order"
        must = said.published[place] if one.kept is Kept.ALL else said.confirmed[place]
        assert not (lost := must - said.ack_begun[place] - here), f"{place}: {sorted(lost)[:20]} are lost"
        if one.kept is Kept.ALL and not one.races:
            assert not (back := said.acked[place] & here), f"{place}: {sorted(back)[:20]} were acked, and are there"


@pytest.fixture(scope="module")
def quickly(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    return dict(end_all(tmp_path_factory.mktemp("quick"), QUICK, new_seed()))


@pytest.fixture(scope="module")
def slowly(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    return dict(end_all(tmp_path_factory.mktemp("slow"), SLOW, new_seed()))


@pytest.mark.parametrize("id_", QUICK)
def test_an_interpreter_ends_as_the_table_says(quickly: dict[str, Ended], tried: Count, id_: str) -> None:
    check(ENDS[id_], quickly[id_])
    tried(Tried.EXITS, 1)


@pytest.mark.slow
def test_those_with_another_course_each_time_do_so_each_time(tmp_path: Path, tried: Count) -> None:
    for number in range(1, ROUNDS):
        place = tmp_path / str(number)
        place.mkdir()
        for id_, ended in end_all(place, DRAWN, new_seed()):
            check(ENDS[id_], ended)
            tried(Tried.EXITS, 1)
        shutil.rmtree(place)


@pytest.mark.slow
@pytest.mark.parametrize("id_", SLOW)
def test_and_so_do_the_others(slowly: dict[str, Ended], tried: Count, id_: str) -> None:
    check(ENDS[id_], slowly[id_])
    tried(Tried.EXITS, 1)


# ── the page ────────────────────────────────────────────────────────────────────────────────────────────────────────

LOCKS = {True: "left", False: "gone", None: "either"}


def table() -> str:
    """The table as docs/ends.md has it."""
    rows = {
        one.what: f"| {one.what} | {one.code} | {one.kept.value} | {LOCKS[one.leaves_lock]} |" for one in ENDS.values()
    }
    head = "| the program's end | exit code | what is there | lock file |\n| --- | --- | --- | --- |\n"
    return head + "\n".join(rows.values()) + "\n"


def test_the_page_has_the_table() -> None:
    """`python -m tests.test_ends` writes it anew."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition("<!-- table -->\n")[2].partition("<!-- /table -->")[0] == table()


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- table -->\n")
    PAGE.write_text(f"{before}<!-- table -->\n{table()}<!-- /table -->{rest.partition('<!-- /table -->')[2]}")
