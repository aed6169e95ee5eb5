"""A segment file's records read without their messages: the same columns as those of the parser, from fewer bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.queue_index.index.record_format import BODY, SEGMENT, Columns, parse, segment_publish_head
from warren.salvage.classic.queue_file import BODIES, RecordHeads
from warren.storage.counted import CountedFileSystem, DiskAccount
from warren.storage.memory import MemoryFileSystem


def publish(rel_seq: int, embedded: int) -> bytes:
    head = segment_publish_head(rel_seq, persistent=rel_seq % 3 != 0)
    return head + BODY.pack(rel_seq.to_bytes(16, "big"), rel_seq * 7, embedded, embedded) + bytes([255]) * embedded


def short(rel_seq: int) -> bytes:
    return (1 << 14 | rel_seq).to_bytes(2, "big")


def heads_of(content: bytes) -> RecordHeads | None:
    file = MemoryFileSystem().open_append("/0.idx")
    file.append(content)
    return RecordHeads.read(file, len(content))


def equal(left: Columns, right: Columns) -> bool:
    names = ("publish_numbers", "publish_persistent", "body_at", "embedded_sizes")
    same = all((getattr(left, name) == getattr(right, name)).all() for name in names)
    return same and sorted(left.delivers) == sorted(right.delivers) and not len(left.acks) and left.end == right.end


records = st.one_of(
    st.builds(publish, st.integers(0, 16_383), st.sampled_from([0, 5, 700, 4_000])),
    st.integers(0, 16_383).map(short),
)


@given(st.lists(records, max_size=60), st.integers(0, 40), st.data())
def test_heads_are_the_columns_of_the_parser_or_nothing(parts: list[bytes], cut: int, data: st.DataObject) -> None:
    content = b"".join(parts)[: -cut or None]
    if content and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(content) - 1))
        content = content[:at] + data.draw(st.binary(min_size=1, max_size=1)) + content[at + 1 :]
    heads, columns = heads_of(content), parse(SEGMENT, content)
    if heads is None:
        return
    assert equal(heads.columns, columns)
    assert columns.reason == "complete"
    bodies = heads.bodies(columns.body_at).view(BODIES)
    assert [bytes(body) for body in bodies] == [content[at : at + BODY.size] for at in columns.body_at.tolist()]


@pytest.mark.parametrize("embedded", [1_000, 4_000])
def test_long_messages_are_not_read(embedded: int) -> None:
    files, count, reads = CountedFileSystem(), 5_000, DiskAccount()
    content = b"".join(publish(number, embedded) for number in range(count)) + b"".join(map(short, range(count)))
    file = files.open_append("/0.idx")
    file.append(content)
    with files.charging(reads):
        heads = RecordHeads.read(file, len(content))
    assert heads is not None
    assert reads.read_bytes < len(content) / 20
    assert equal(heads.columns, parse(SEGMENT, content))
    assert (np.diff(heads.columns.body_at) == embedded + 34).all()


@pytest.mark.parametrize("content", [b"".join(publish(number, 5) for number in range(5_000)), b"\0" * 90_000])
def test_short_messages_and_other_bytes_are_for_the_parser(content: bytes) -> None:
    assert heads_of(content) is None
