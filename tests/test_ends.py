"""Ends of an interpreter: each ends as the table says, in time, with nothing lost that was promised.

The table is :data:`tests.support.ends.ENDS`; docs/failures.md has it, too. Another seed: ``WARREN_SEED=7``.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

import pytest

import warren
from tests.support.effort import new_seed, times
from tests.support.ends import End, all_ends, check_node, report_of
from tests.support.ends_nursery import Ended, end_all
from tests.support.tried import Count, Tried

ENDS = all_ends()
QUICK = [id_ for id_, one in ENDS.items() if one.quick]
SLOW = [id_ for id_, one in ENDS.items() if not one.quick]
DRAWN = [id_ for id_, one in ENDS.items() if one.draws]
ROUNDS = times(1, nightly=8)
"""How often those are tried that have another course each time."""
PAGE = Path(__file__).parent.parent / "docs" / "failures.md"


def check(one: End, ended: Ended) -> None:
    assert ended.code == one.code, ended.err
    assert re.fullmatch(one.says, ended.err, re.DOTALL), ended.err
    assert not ended.out
    if one.leaves_lock is not None:
        assert (ended.path / "warren.lock").exists() == one.leaves_lock
    report = report_of(ended.path)
    lines = report.read_text().splitlines() if report.exists() else ()
    with warren.open(ended.path) as node:
        check_node(node, lines, one.kept, twice=one.twice, races=one.races)


@pytest.fixture(scope="module")
def quickly(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    return dict(end_all(tmp_path_factory.mktemp("quick"), QUICK, new_seed()))


@pytest.fixture(scope="module")
def slowly(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    return dict(end_all(tmp_path_factory.mktemp("slow"), SLOW, new_seed()))


@pytest.mark.slow
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

LOCKS = {True: "left", False: "gone", None: "gone or left"}


def table() -> str:
    """The list as docs/failures.md has it: an item for each result, with all ends that have it."""
    results: dict[str, list[str]] = {}
    for end in ENDS.values():
        result = f"{end.kept.value}, exit code {end.code}, lock file {LOCKS[end.leaves_lock]}"
        results.setdefault(result, []).append(end.what)
    return "".join(f"- **{result}**\n{ends_of(whats)}" for result, whats in results.items())


def ends_of(whats: list[str]) -> str:
    """An item for each of them; * stands for one that has the same result in a guest. If they are many, one for all."""
    guests = {what.replace(", of a guest", "") for what in whats if ", of a guest" in what}
    items = [f"    - {what}*\n" if what in guests else f"    - {what}\n" for what in dict.fromkeys(whats)
             if ", of a guest" not in what or what.replace(", of a guest", "") not in whats]  # fmt: skip
    return "".join(items) if len(items) <= MANY else f"    - {len(items)} others: {OTHERS}\n"


MANY: Final = 20
OTHERS: Final = "the last line, handlers of `atexit`, destructors, forked children, pools, threads, event loops"


def test_the_page_has_the_table() -> None:
    """`python -m tests.test_ends` rewrites it."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition("<!-- table -->\n")[2].partition("<!-- /table -->")[0] == table()


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- table -->\n")
    PAGE.write_text(f"{before}<!-- table -->\n{table()}<!-- /table -->{rest.partition('<!-- /table -->')[2]}")
