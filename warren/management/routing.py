"""Which handler a path of the API belongs to. Paths are split before they are decoded: a vhost's name may be ``/``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import unquote

import attrs

if TYPE_CHECKING:
    from warren.management.call import Call

Handler = Callable[["Call"], Awaitable[Any]]
"""Gives the JSON to answer with, or an answer of :mod:`warren.management.http`."""

Access = Literal["any", "vhost", "vhost-visible", "monitor", "policies", "global", "admin"]
"""The users with a tag of the API's that may use a path: all; those that may use its vhost; those that may see it;
``monitoring`` and administrators; policymakers that may use the vhost; policymakers; administrators."""

_ANY: Final = ":"


@attrs.frozen
class Route:
    """One path, and what can be done with it."""

    path: str
    """``/queues/:vhost/:queue``: a part that begins with a colon is any."""
    access: Access
    methods: Mapping[str, Handler]

    @property
    def allowed(self) -> str:
        """The methods, as the header ``allow`` has them."""
        return ", ".join([*(["HEAD"] if "GET" in self.methods else []), *self.methods, "OPTIONS"])

    def __getitem__(self, method: str) -> Handler | None:
        return self.methods.get("GET" if method == "HEAD" else method)


@attrs.define
class Router:
    """The routes as a tree of the parts of their paths. If two match, the one that names the part wins."""

    _root: dict[str, Any] = attrs.Factory(dict)

    @classmethod
    def of(cls, routes: Iterable[Route]) -> Router:
        """A router of the given routes."""
        router = cls()
        for route in routes:
            node, names = router._root, []
            for part in parts_of(route.path):
                if part.startswith(_ANY):
                    names.append(part[1:])
                node = node.setdefault(_ANY if part.startswith(_ANY) else part, {})
            node[""] = route, names
        return router

    def find(self, raw_path: str) -> tuple[Route, dict[str, str]] | None:
        """The route of a path, and its parts, decoded, by their names."""
        match = _find(self._root, parts_of(raw_path), [])
        if match is None:
            return None
        (route, names), values = match
        return route, {
            name: unquote(value, errors="surrogateescape") for name, value in zip(names, values, strict=True)
        }


def _find(
    node: dict[str, Any], parts: Sequence[str], values: list[str]
) -> tuple[tuple[Route, list[str]], list[str]] | None:
    if not parts:
        return (node[""], values) if "" in node else None
    part, rest = parts[0], parts[1:]
    if part not in ("", _ANY) and part in node and (match := _find(node[part], rest, values)) is not None:
        return match
    return _find(node[_ANY], rest, [*values, part]) if _ANY in node else None


def parts_of(path: str) -> list[str]:
    """The parts of a path; a slash at its end means nothing."""
    parts = path.split("/")[1:]
    return parts[:-1] if parts and not parts[-1] else parts
