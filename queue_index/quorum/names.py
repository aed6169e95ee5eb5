"""A node's ``names.dets``: which of the directories beside it are queues that this node knows.

A DETS file (:mod:`queue_index.dets_format`) with an object ``{ServerName, UId}`` for each of the node's queues: the
name of its process, and of its directory. It is written up to 3 seconds late, and tells so of itself only sometimes: a
queue that it does not have may be younger than that.
"""

from __future__ import annotations

from typing import Final

from queue_index.dets_format import read_table
from storage.erlang_terms import Atom, decode
from storage.errors import DataError, TermError

NAMES_FILE: Final = "names.dets"


def read_uids(data: bytes, path: str) -> frozenset[bytes]:
    """The directories' names in the file whose bytes are ``data``.

    Raises :class:`DataError`, with ``path``, for a file that is damaged, not closed properly, or holds anything else.
    """
    uids = set()
    for stored in read_table(data, path).objects:
        try:
            term = decode(stored.term, max_inflated_bytes=0)
        except TermError as error:
            raise DataError(path, stored.file_offset, str(error)) from error
        match term:
            case (Atom(), bytes(uid)):
                uids.add(uid)
            case _:
                raise DataError(path, stored.file_offset, "an object that is not {ServerName, UId}")
    return frozenset(uids)
