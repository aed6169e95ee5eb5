"""A node's tables: ``names.dets``, which queues it knows, and ``meta.dets``, how far it had come with each of them.

DETS files (:mod:`warren.queue_index.index.dets_format`) beside the queues' directories, with an object for each queue::

    names.dets   {ServerName, UId}                        its process's name, and its directory's
    meta.dets    {UId, Term, VotedFor, LastApplied}       entries up to this index had been applied

Both are written up to 3 seconds late, and LastApplied is updated every few seconds only. A node that was killed leaves
them open; its next start repairs them, and so does a reader: what is in them counts.
"""

from __future__ import annotations

from warren.queue_index.index.dets_format import surviving_terms
from warren.storage.erlang_terms import Atom, Term, decode
from warren.storage.errors import TermError


def read_uids(data: bytes, path: str) -> frozenset[bytes]:
    """The directories' names in the ``names.dets`` whose bytes are ``data``; :class:`DataError` for no DETS file."""
    return frozenset(uid for name, uid in _tuples(data, path, 2) if isinstance(name, Atom) and isinstance(uid, bytes))


def read_applied(data: bytes, path: str) -> dict[bytes, int]:
    """UId → LastApplied in the ``meta.dets`` whose bytes are ``data``; :class:`DataError` for no DETS file."""
    applied: dict[bytes, int] = {}
    for uid, _, _, index in _tuples(data, path, 4):
        if isinstance(uid, bytes) and type(index) is int:
            applied[uid] = max(index, applied.get(uid, 0))  # of two the older is a block that was never given back
    return applied


def _tuples(data: bytes, path: str, size: int) -> list[tuple[Term, ...]]:
    """The objects that are tuples of ``size`` elements; all others are damage."""
    terms = []
    for encoded in surviving_terms(data, path):
        try:
            term = decode(encoded, max_inflated_bytes=0)
        except TermError:
            continue
        if isinstance(term, tuple) and len(term) == size:
            terms.append(term)
    return terms
