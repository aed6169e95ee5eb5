"""The columns of neighbouring good records of the CommitLog, and what can be asked of them."""

from __future__ import annotations

import attrs

from msg_store.gathering import Ints, Longs


@attrs.frozen(kw_only=True, eq=False)
class RecordColumns:
    """``n`` ≥ 1 good records that lie one behind the other, by columns of ``n`` numbers. Times in milliseconds."""

    start: int
    """The physical offset of the first."""
    stop: int
    """The physical offset behind the last."""
    positions: Longs
    """Physical offsets where each lies."""
    physical_offsets: Longs
    """As the records say; that is what is dispatched."""
    sizes: Ints
    queue_ids: Ints
    queue_offsets: Longs
    sys_flags: Ints
    store_timestamps: Longs
    born_timestamps: Longs
    reconsume_times: Ints
    prepared_transaction_offsets: Longs
    body_starts: Longs
    """Physical offsets of the bodies, seen from :attr:`positions`."""
    body_sizes: Ints
    topics: tuple[str, ...]
    """Distinct."""
    topic_of: Ints
    """Where in :attr:`topics` each one's topic stands."""
    tags_codes: Longs
    """What a ConsumeQueue entry keeps: the hash of the tags, 0 without; of a scheduled message when it is due."""
    key_counts: Ints
    """Keys that each puts into the index; none for a rollback, and none without ``with_keys``."""
    key_hashes: Ints
    """The index hashes of all these keys, in the order of putting."""

    def __len__(self) -> int:
        return len(self.positions)


@attrs.frozen(kw_only=True)
class ColumnRequest:
    """What is asked of every window of the CommitLog."""

    check_crc: bool
    delay_levels_ms: tuple[int, ...]
    with_keys: bool
