"""Khepri's tree: nodes with payloads at paths, and the patterns by which commands mean them.

A node is created with its parents, and goes with its children; a parent without payload goes with the last of them. A
*path* is a tuple of components, atoms and binaries. In a *pattern* a component may be a condition in its place::

    {if_name_matches, any, _}            ``*``, every child
    {if_path_matches, any, _}            ``**``, everything below
    {if_node_exists, Bool}  {if_has_payload, Bool}  {if_has_data, Bool}
    {if_payload_version, Version}        the payload was written ``Version`` times
    {if_data_matches, Pattern, [], _}    a term with ``'_'`` in it
    {if_all, [C]}  {if_any, [C]}

These are all that RabbitMQ's commands have; :class:`MessageError` is raised for any other. A snapshot has the tree as
``{tree, Root, _, _}`` of ``{node, #{payload_version => N, …}, Payload, #{Name => Node}}``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from warren.storage.erlang_terms import Atom, Term, encode
from warren.storage.errors import MessageError

Path: TypeAlias = "tuple[Term, ...]"

ANY_CHILD: Final = (Atom("if_name_matches"), Atom("any"), Atom("undefined"))
HAS_DATA: Final = (Atom("if_has_data"), True)
_MAX_COMPONENTS: Final = 32
"""Of a path; RabbitMQ's have up to nine. Each is a level of recursion."""
_NO_PAYLOAD: Final = "$__NO_PAYLOAD__"


@attrs.define(eq=False)
class TreeNode:
    """A node of the tree."""

    payload: Any = None
    """``{p_data, Term}``, or another kind of payload; ``None``: it only has children."""
    version: int | None = 1
    """Of the payload; ``None``: it was changed in a way that is not known."""
    children: dict[Term, TreeNode] = attrs.field(factory=dict)

    @classmethod
    def from_term(cls, term: Term) -> TreeNode:
        """The root of a snapshot's tree, or another node. Raises :class:`MessageError` for any other term."""
        match term:
            case ("tree", root, _, _):
                return cls.from_term(root)
            case ("node", Mapping() as properties, payload, Mapping() as children):
                version = properties.get(Atom("payload_version"))
                nodes = {name: cls.from_term(child) for name, child in children.items()}
                has_payload = payload != _NO_PAYLOAD
                return cls(payload if has_payload else None, version if isinstance(version, int) else None, nodes)
            case _:
                raise MessageError(f"{term!r:.100} in place of a node")

    @property
    def data(self) -> Any:
        """The term in the payload; ``None`` without one."""
        return self.payload[1] if isinstance(self.payload, tuple) and self.payload[0] == "p_data" else None

    def get(self, path: Path) -> TreeNode | None:
        """The node at a path."""
        return next((node for _, node in self.find(path)), None)

    def find(self, pattern: Sequence[Term]) -> list[tuple[Path, TreeNode]]:
        """The nodes that a pattern means, with their paths."""
        if len(pattern) > _MAX_COMPONENTS:
            raise MessageError(f"a path of {len(pattern)} components")
        return list(self._matching(pattern, ()))

    def put(self, pattern: Sequence[Term], payload: Term) -> None:
        """Write a payload to the nodes that a pattern means, or create one; nothing if a condition is not met."""
        targets = [node for _, node in self.find(pattern)]
        if not targets and (created := self._create(pattern)):
            created.payload = payload
        for node in targets:
            is_new = node.payload is None or encode(node.payload) != encode(payload)
            if is_new and node.version is not None:
                node.version += 1
            node.payload = payload

    def take(self, path: Path) -> None:
        """Take the node at a path out of the tree, and parents that have become empty."""
        child = self.children.get(path[0])
        if child is None:
            return
        if len(path) > 1:
            child.take(path[1:])
        if len(path) == 1 or (not child.children and child.payload is None):
            del self.children[path[0]]

    def _create(self, pattern: Sequence[Term]) -> TreeNode | None:
        """The node that a pattern without a target means, if it may be created."""
        name = _name_of(pattern[0]) if pattern else None
        if name is None:
            return None
        child = self.children.get(name)
        if not _is_met(pattern[0], name, child):
            return None
        node = TreeNode() if child is None else child
        created = node if len(pattern) == 1 else node._create(pattern[1:])
        if created is not None:
            self.children[name] = node
        return created

    def _matching(self, pattern: Sequence[Term], path: Path) -> Iterator[tuple[Path, TreeNode]]:
        if not pattern:
            yield path, self
            return
        component = pattern[0]
        name = _name_of(component)
        names = list(self.children) if name is None else [name] if name in self.children else []
        for inner in names:
            child, place = self.children[inner], (*path, inner)
            if _is_met(component, inner, child):
                yield from child._matching(pattern[1:], place)
            if isinstance(component, tuple) and component[:1] == ("if_path_matches",):
                yield from child._matching(pattern, place)


def _name_of(component: Term) -> Term | None:
    """The only name that a pattern's component can mean; ``None``: it may mean several."""
    match component:
        case Atom() | bytes():
            return component
        case ("if_all", [*conditions]):
            return next((name for name in map(_name_of, conditions) if name is not None), None)
        case _:
            return None


def _is_met(condition: Term, name: Term, node: TreeNode | None) -> bool:
    """Whether a node meets a condition; one that is missing: whether it may be created."""
    match condition:
        case Atom() | bytes():
            return node is None or condition == name
        case ("if_name_matches" | "if_path_matches", "any", _):
            return node is not None
        case ("if_node_exists", bool(value)):
            return (node is not None) is value
        case ("if_has_payload", bool(value)):
            return node is not None and (node.payload is not None) is value
        case ("if_has_data", bool(value)):
            return node is not None and (node.data is not None) is value
        case ("if_payload_version", int(version)):
            return node is not None and node.version in (None, version)
        case ("if_data_matches", pattern, [], _):
            return node is not None and node.data is not None and _matches(pattern, node.data)
        case ("if_all", [*conditions]):
            return all(_is_met(inner, name, node) for inner in conditions)
        case ("if_any", [*conditions]):
            return any(_is_met(inner, name, node) for inner in conditions)
        case _:
            raise MessageError(f"an unknown condition {condition!r:.100}")


def _matches(pattern: Any, term: Any) -> bool:
    if pattern == "_":
        return True
    if isinstance(pattern, (tuple, list)) and type(pattern) is type(term):
        return len(pattern) == len(term) and all(map(_matches, pattern, term))
    return bool(pattern == term)
