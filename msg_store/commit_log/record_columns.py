"""From spans to fields, by columns: what dispatch, recovery, rebuild and scans ask of millions of records.

A field is read from all records at once, and only when it is asked for. What a ConsumeQueue and the index keep of a
message (tags codes and key hashes) is made from the properties: of many records by columns
(:mod:`warren.msg_store.commit_log.property_columns`); of a few one by one, as a message that is dispatched alone need
not pay for arrays.
"""

from __future__ import annotations

import functools
from typing import Final, Self

import attrs
import numpy as np
import numpy.typing as npt

from warren.msg_store.commit_log.body_crcs import crcs_of_column, crcs_within
from warren.msg_store.commit_log.commit_log_format import (
    BORN_HOST_V6,
    HEAD_BYTES,
    HOST_BYTES,
    IPV6_EXTRA_BYTES,
    PREPARED,
    ROLLBACK,
    SCHEDULE_TOPIC,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    Located,
    RecordError,
    body_crc,
    decode_properties,
    decode_store_timestamp,
    head_type,
    locate,
    topic_text,
)
from warren.msg_store.commit_log.property_columns import PropertyCodes, read_properties
from warren.msg_store.commit_log.property_entries import KEY_SEPARATOR, KEYS, TAGS, UNIQUE_KEY
from warren.msg_store.commit_log.record_check import delivery_time
from warren.msg_store.commit_log.record_spans import RecordSpans
from warren.storage.columns import Bytes, Ints, Longs, Mask, by_value, gather, gather_rows
from warren.storage.java_hash import index_hash, java_hash, java_text

MOST_FEW_RECORDS: Final = 16
"""Each costs about 15 µs on its own; all at once cost 380 µs, and next to nothing each."""

_HEAD: Final = np.dtype(head_type(0)[:9])
_TAIL: Final = np.dtype(head_type(0)[-3:])
_TAGS, _KEYS, _UNIQUE_KEY, _KEY_SEPARATOR = (name.decode() for name in (TAGS, KEYS, UNIQUE_KEY, KEY_SEPARATOR))

if _HEAD.itemsize != HEAD_BYTES:
    raise RuntimeError("the record's columns do not add up")

Hosts = list[tuple[Bytes, Longs]]
"""Hosts of one width as the rows of a matrix, and whose each is; a width each."""


@attrs.frozen(kw_only=True)
class ColumnRequest:
    """What counts as a good record, and what its codes depend on."""

    check_crc: bool = False
    delay_levels_ms: tuple[int, ...] = ()
    with_keys: bool = True
    with_codes: bool = True
    """Whether to compute tags codes and keys; without it those columns are meaningless."""


@attrs.frozen(kw_only=True, eq=False, repr=False, slots=False)
class RecordColumns:
    """``n`` ≥ 1 good records, by columns of ``n`` numbers. Times in milliseconds.

    They are consecutive, unless they were taken out of others by :meth:`take`.
    """

    spans: RecordSpans
    topics: tuple[str, ...]
    """All topics, without duplicates."""
    topic_of: Ints
    """The index in :attr:`topics` of each record's topic."""
    tags_codes: Longs
    """What a ConsumeQueue entry keeps: the hash of the tags, 0 without; for a scheduled message, when it is due."""
    key_counts: Ints
    """How many keys each record puts into the index; 0 for a rollback, and 0 without ``with_keys``."""
    key_hashes: Ints
    """The index hashes of all these keys, in the order of putting."""
    _heads: npt.NDArray[np.void] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_heads", self.spans.read(self.spans.starts, _HEAD))

    def __len__(self) -> int:
        return len(self.spans)

    def take(self, rows: slice | Longs) -> Self:
        """Some of them."""
        firsts = np.cumsum(self.key_counts) - self.key_counts
        counts = self.key_counts[rows]
        key_rows = np.repeat(firsts[rows] - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
        return type(self)(
            spans=self.spans.take(rows),
            topics=self.topics,
            topic_of=self.topic_of[rows],
            tags_codes=self.tags_codes[rows],
            key_counts=counts,
            key_hashes=self.key_hashes[key_rows],
        )

    # ── where they lie ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def start(self) -> int:
        """The physical offset of the first."""
        return self.spans.base + int(self.spans.starts[0])

    @property
    def stop(self) -> int:
        """The physical offset after the last record."""
        return self.spans.stop

    @functools.cached_property
    def positions(self) -> Longs:
        """Physical offsets where each lies."""
        return self.spans.base + self.spans.starts

    @property
    def sizes(self) -> Ints:
        return self.spans.sizes.astype(np.int32)

    # ── fields ──────────────────────────────────────────────────────────────────────────────────────────────────

    @functools.cached_property
    def _tails(self) -> npt.NDArray[np.void]:
        return self.spans.read(self.spans.body_starts - _TAIL.itemsize, _TAIL)

    @functools.cached_property
    def physical_offsets(self) -> Longs:
        """According to the records; these are dispatched."""
        return self._heads["physical_offset"].astype(np.int64)

    @property
    def queue_ids(self) -> Ints:
        return self._heads["queue_id"].astype(np.int32)

    @property
    def queue_offsets(self) -> Longs:
        return self._heads["queue_offset"].astype(np.int64)

    @property
    def sys_flags(self) -> Ints:
        return self.spans.sys_flags

    @property
    def are_queued(self) -> Mask:
        """Whether each has an entry in its ConsumeQueue: neither prepared nor rolled back, whose flags share a bit."""
        queued: Mask = self.sys_flags & PREPARED == 0
        return queued

    @property
    def flags(self) -> Ints:
        """The user's."""
        return self._heads["flag"].astype(np.int32)

    @property
    def born_timestamps(self) -> Longs:
        return self._heads["born_timestamp"].astype(np.int64)

    @functools.cached_property
    def store_timestamps(self) -> Longs:
        return self.spans.store_timestamps()

    @property
    def reconsume_times(self) -> Ints:
        return self._tails["reconsume_times"].astype(np.int32)

    @property
    def prepared_transaction_offsets(self) -> Longs:
        return self._tails["prepared_transaction_offset"].astype(np.int64)

    @property
    def body_crcs(self) -> npt.NDArray[np.uint32]:
        """The bodies' sums, as the records say."""
        return self._heads["crc"].astype(np.uint32)

    def crcs_match(self) -> Mask:
        """Whether each body is what it was when it was stored; one of no bytes always is."""
        return _crcs_match(self.spans, self.body_crcs)

    def born_hosts(self) -> Hosts:
        """Where the messages came from."""
        return self._hosts(self.spans.starts + HEAD_BYTES, BORN_HOST_V6)

    def store_hosts(self) -> Hosts:
        """The brokers that stored the messages."""
        widths = HOST_BYTES + IPV6_EXTRA_BYTES * (self.sys_flags & STORE_HOST_V6 != 0)
        return self._hosts(self.spans.body_starts - _TAIL.itemsize - widths, STORE_HOST_V6)

    def _hosts(self, starts: Longs, flag: int) -> Hosts:
        return [
            (gather_rows(self.spans.data, starts[rows], HOST_BYTES + IPV6_EXTRA_BYTES * is_v6), rows)
            for is_v6, rows in by_value((self.sys_flags & flag != 0).astype(np.int32))
        ]


def columns_of(data: bytes, base: int, starts: Longs, stop: int, request: ColumnRequest) -> RecordColumns | None:
    """Return the columns of the records at ``starts`` in ``data``, which are consecutive and end at ``stop``.

    Only those before the first that is not good; ``None`` without any. ``data`` begins at the physical offset ``base``.
    """
    if len(starts) <= MOST_FEW_RECORDS:
        return _columns_of_few(data, base, starts.tolist(), request)
    spans = RecordSpans.locate(data, base, starts, stop)
    if request.check_crc and len(spans):
        crcs = spans.read(spans.starts, _HEAD)["crc"]
        match = _crcs_match(spans, crcs)
        spans = spans if match.all() else spans.take(slice(int(match.argmin())))
    while len(spans):
        topics, topic_of = _topics(spans)
        if request.with_codes or SCHEDULE_TOPIC in topics:  # one without a good delay level is no good record
            codes = read_properties(
                spans, topics, topic_of, delay_levels_ms=request.delay_levels_ms, with_keys=request.with_keys
            )
        else:
            codes = PropertyCodes.none(len(spans))
        if codes.bad_row is None:
            return RecordColumns(
                spans=spans,
                topics=topics,
                topic_of=topic_of,
                tags_codes=codes.tags_codes,
                key_counts=codes.key_counts,
                key_hashes=codes.key_hashes,
            )
        spans = spans.take(slice(codes.bad_row))
    return None


def _crcs_match(spans: RecordSpans, crcs: npt.NDArray[np.uint32]) -> Mask:
    starts, size = spans.body_starts, int(spans.body_sizes[0])
    if spans.is_uniform and size:
        actual = crcs_of_column(spans.read(starts, np.dtype(f"V{size}")))
    else:
        actual = crcs_within(spans.data, starts.tolist(), (starts + spans.body_sizes).tolist())
    matches: Mask = (actual == crcs) | (spans.body_sizes == 0)
    return matches


def _topics(spans: RecordSpans) -> tuple[tuple[str, ...], Ints]:
    """Return the distinct topics, and the number of each record's topic."""
    numbers: dict[str, int] = {}
    topic_of = np.zeros(len(spans), np.int32)
    starts = spans.topic_starts
    for size, positions in by_value(spans.topic_sizes):
        if not size:
            topic_of[positions] = numbers.setdefault("", len(numbers))
            continue
        whole = len(positions) == len(spans)
        kind = np.dtype(f"S{size}")
        rows = spans.read(starts, kind) if whole else gather(spans.data, starts[positions], kind)
        if (rows == rows[0]).all():
            rows = rows[:1]
        listed = rows.tolist()
        distinct = {row: java_text(row.ljust(size, b"\0")) for row in set(listed)}
        of_row = {row: numbers.setdefault(topic, len(numbers)) for row, topic in distinct.items()}
        topic_of[positions] = [of_row[row] for row in listed]
    return tuple(numbers), topic_of


# ── a few records ────────────────────────────────────────────────────────────────────────────────────────────────────


def _columns_of_few(data: bytes, base: int, starts: list[int], request: ColumnRequest) -> RecordColumns | None:
    records: list[Located] = []
    codes: list[int] = []
    counts: list[int] = []
    hashes: list[int] = []
    topics: dict[str, int] = {}
    topic_of: list[int] = []
    for start in starts:
        try:
            located = size, crc, _, _, sys_flag, body_start, body_size, _, properties_start = locate(data, start)
            if request.check_crc and body_size and body_crc(data[body_start : body_start + body_size]) != crc:
                break
            topic = topic_text(data, located[-2], properties_start - 2)
            properties = data[properties_start : start + size]
            code = None
            if topic == SCHEDULE_TOPIC:
                code = delivery_time(properties, decode_store_timestamp(data, start), request.delay_levels_ms)
        except RecordError:
            break
        with_keys = request.with_keys and sys_flag & TRANSACTION_MASK != ROLLBACK
        tags_code, keys = _codes(topic, properties, with_keys=with_keys)
        records.append(located)
        codes.append(tags_code if code is None else code)
        counts.append(len(keys))
        hashes += keys
        topic_of.append(topics.setdefault(topic, len(topics)))
    if not records:
        return None
    return RecordColumns(
        spans=RecordSpans.of(data, base, starts[: len(records)], records),
        topics=tuple(topics),
        topic_of=np.array(topic_of, np.int32),
        tags_codes=np.array(codes, np.int64),
        key_counts=np.array(counts, np.int32),
        key_hashes=np.array(hashes, np.int32),
    )


def _codes(topic: str, stored: bytes, *, with_keys: bool) -> tuple[int, list[int]]:
    """The tags code and the key hashes of a record with these properties."""
    properties = decode_properties(stored)
    code = java_hash(properties.get(_TAGS, ""))
    if not with_keys:
        return code, []
    keys = [properties.get(_UNIQUE_KEY, ""), *properties.get(_KEYS, "").split(_KEY_SEPARATOR)]
    return code, [index_hash(f"{topic}#{key}") for key in keys if key]
