"""What RocketMQ dispatches when it starts, reproduced exactly, damaged records included; warren's own stores do better.

It has two positions. The *buffer* moves over what it reads, record by record. The *mark* is RocketMQ's progress, and
the start of the next pass; a pass reads the rest of one file from the mark on. They move together, except for:

* a record whose fields do not add up to its size: the buffer continues after the fields, the mark moves by the size
  that the record claims;
* another failure, or the buffer's end before the pass has counted as many bytes as it began with: the mark moves by the
  bytes that are not counted, and the pass is over;
* a blank record: the mark moves to the file after the one in which *it* lies, and the pass is over.

So after a wrong size the mark can be in the middle of a record, and a whole file gets no entries.
"""

from __future__ import annotations

from collections.abc import Iterator

from warren.msg_store.commit_log.commit_log import CommitLog
from warren.msg_store.commit_log.commit_log_format import BLANK_HEADER_BYTES, Blank, peek
from warren.msg_store.commit_log.record_check import Failure
from warren.msg_store.commit_log.record_columns import RecordColumns


def reput(log: CommitLog, mark: int, delay_levels_ms: tuple[int, ...]) -> Iterator[RecordColumns]:
    """Yield the records that are dispatched from ``mark`` to the log's end."""
    while mark < log.end and (base := log.mapped.holding(mark)) is not None:
        limit = min(log.end, base + log.mapped.file_size)
        size, counted, is_blank = limit - mark, 0, False
        for item in log.columns(mark, limit, delay_levels_ms=delay_levels_ms):
            match item:
                case RecordColumns():
                    yield item
                    counted += item.stop - item.start
                    mark += item.stop - item.start
                case Failure(resume_at=int()):
                    mark += _claimed_size(log, item.physical_offset)
                case Failure():
                    break
                case Blank():
                    is_blank = True
                    break
            if counted >= size:
                break
        if is_blank:
            mark += log.mapped.file_size - mark % log.mapped.file_size
        else:
            mark += max(size - counted, 0)


def _claimed_size(log: CommitLog, physical_offset: int) -> int:
    return peek(log.mapped.read(physical_offset, BLANK_HEADER_BYTES), 0)[0]
