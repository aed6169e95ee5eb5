"""Lists as the management API answers them: sorted, filtered, in pages, and with the requested columns."""

from __future__ import annotations

import heapq
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from warren.actors.engines.declared.name_patterns import NamePattern, UnsupportedPatternError
from warren.management.http import HttpError, bad_request, with_rests

DEFAULT_PAGE_SIZE: Final = 100
_SORTED_AT_ONCE: Final = 1000
"""Items. Other threads wait while they are sorted, a millisecond or so."""
MAX_PAGE_SIZE: Final = 500
_BY_NAME: Final = ("vhost", "name")
Query = Mapping[str, str]
Item = Mapping[str, Any]
Columns = list[list[str]] | None


@attrs.frozen
class Page:
    """The number of a page, its size, and the filter of the list's items."""

    number: int
    size: int
    name: str = ""
    """What an item's name has to have in it; a regular expression, ``is_pattern``. Case does not matter."""
    is_pattern: bool = False

    @classmethod
    def of(cls, query: Query) -> Page | None:
        """Return the page that a request asks for; ``None``: the whole list. Raises :class:`HttpError`."""
        number, size = _number(query, "page"), _number(query, "page_size")
        if number is None:
            return None
        if number < 1 or (size is not None and not 1 <= size <= MAX_PAGE_SIZE):
            raise HttpError(
                400,
                "invalid_pagination_parameters",
                f"Invalid pagination parameters: page number {number}, page size "
                f"{'undefined' if size is None else size}",
            )
        is_pattern = query.get("use_regex") == "true"
        return cls(number, DEFAULT_PAGE_SIZE if size is None else size, query.get("name", ""), is_pattern)

    def matching(self, items: Sequence[Item]) -> list[Item]:
        """Return the items whose name matches."""
        if not self.name:
            return list(items)
        if not self.is_pattern:
            text = self.name.lower()
            return [item for item in items if text in str(item.get("name", "")).lower()]
        try:
            pattern = NamePattern(self.name, any_case=True, look_around=False)
        except UnsupportedPatternError as error:
            raise bad_request(str(error)) from None
        except re.error:
            raise _invalid() from None
        return [item for item in items if pattern.matches(str(item.get("name", "")))]

    def cut(self, items: Sequence[Item], total: int) -> dict[str, Any]:
        """Return the page of ``items``, of ``total`` in all. Raises :class:`HttpError` if it is after the end."""
        first = (self.number - 1) * self.size
        if first > len(items):
            raise HttpError(
                400,
                "page_out_of_range",
                f"Page out of range, page: {self.number} page size: {self.size}, len: {len(items)}",
            )
        page_items = list(items[first : first + self.size])
        return {
            "total_count": total,
            "item_count": len(page_items),
            "filtered_count": len(items),
            "page": self.number,
            "page_size": self.size,
            "page_count": (len(items) + self.size - 1) // self.size,
            "items": page_items,
        }


def _invalid() -> HttpError:
    return bad_request("Pagination parameters are invalid")


def _number(query: Query, name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise _invalid() from None


def listed(items: Iterable[Item], query: Query, order: Sequence[str] = _BY_NAME, *, pages: bool = False) -> Any:
    """Return a list as a request wants it; ``order``: columns to sort by if it names none; ``pages``: allow pages.

    Raises :class:`HttpError`.
    """
    page = Page.of(query) if pages else None
    ordered = sorted_items(items, query, order)
    columns = columns_of(query)
    if page is None:
        return [pick(item, columns) for item in ordered]
    document = page.cut(page.matching(ordered), len(ordered))
    return document | {"items": [pick(item, columns) for item in document["items"]]}


def sorted_items(items: Iterable[Item], query: Query, order: Sequence[str]) -> list[Item]:
    """Return the items in the requested order."""
    requested = query.get("sort")
    if requested == "":
        return list(items)
    columns = [column.split(".") for column in ((requested, *order) if requested else order)]
    ranked = [([_rank(_dotted(item, column)) for column in columns], item) for item in with_rests(items)]
    rank = operator.itemgetter(0)
    starts = range(0, len(ranked), _SORTED_AT_ONCE)
    parts = [sorted(ranked[start : start + _SORTED_AT_ONCE], key=rank) for start in starts]
    ordered = [item for _, item in with_rests(heapq.merge(*parts, key=rank))]
    if query.get("sort_reverse") == "true":
        ordered.reverse()
    return ordered


def _dotted(item: Any, path: Sequence[str]) -> Any:
    """Return the value at a path; 0 if it is missing."""
    for name in path:
        if not isinstance(item, Mapping) or name not in item:
            return 0
        item = item[name]
    return item


def _rank(value: Any) -> tuple[int, Any]:
    """The order of Erlang's terms: numbers, atoms, lists, strings."""
    match value:
        case None | bool():
            return 1, str(value).lower()
        case int() | float():
            return 0, value
        case str():
            return 3, value
        case _:
            return 2, str(value)


# ── columns ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def columns_of(query: Query) -> Columns:
    """The requested columns, dotted ones as a path; ``None``: all."""
    requested = query.get("columns")
    if requested is None:
        return None
    return [[part for part in column.split(".") if part] for column in requested.split(",") if column.strip(".")]


def pick(item: Any, columns: Columns) -> Any:
    """Reduce an object, or the objects of a list, to the columns."""
    if columns is None:
        return item
    if isinstance(item, list):
        return [pick(row, columns) for row in item]
    if not isinstance(item, Mapping):
        return item
    names = {column[0] for column in columns if column}
    return {name: pick(value, _below(name, columns)) for name, value in item.items() if name in names}


def _below(name: str, columns: list[list[str]]) -> Columns:
    if [name] in columns:
        return None
    return [column[1:] for column in columns if column[:1] == [name]]
