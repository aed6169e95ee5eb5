"""Which bodies of a store anybody needs: the reference counts, which are not on disk, as far as they are above 0."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import attrs
import numpy as np
import numpy.typing as npt

from msg_store.rdq_format import Record
from warren.salvage.queue_directory import MSG_IDS, MsgIds
from warren.salvage.vhost import PERSISTENT_STORE, Vhost

_BATCH = 8192


@attrs.frozen(eq=False)
class NeededBodies:
    """A set of msg_ids: 16 bytes each, sorted."""

    _ids: MsgIds

    @classmethod
    def of(cls, vhost: Vhost, store: str) -> NeededBodies:
        """The bodies in that store of the vhost that unacked messages of its queues refer to."""
        parts = [ids for queue in vhost.queues for ids in queue.references(persistent=store == PERSISTENT_STORE)]
        return cls(np.unique(np.concatenate([np.empty(0, MSG_IDS), *parts])))

    def __len__(self) -> int:
        return len(self._ids)

    def mark(self, records: Iterable[tuple[str, Record]]) -> Iterator[tuple[str, Record, bool]]:
        """Every record of a store (file name, record), and whether its message is needed."""
        pending = iter(records)
        while batch := list(islice(pending, _BATCH)):
            ids = np.frombuffer(b"".join(record.msg_id for _, record in batch), MSG_IDS)
            for (name, record), is_needed in zip(batch, self._has(ids).tolist(), strict=True):
                yield name, record, is_needed

    def _has(self, ids: MsgIds) -> npt.NDArray[np.bool_]:
        if not len(self._ids):
            return np.zeros(len(ids), np.bool_)
        places = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        found: npt.NDArray[np.bool_] = self._ids[places] == ids
        return found
