"""The CommitLog against a list, whatever happens in whatever order: appends, roll-overs, kills, power losses."""

from __future__ import annotations

import random

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.effort import times
from warren.msg_store.commit_log.commit_log import Batch, Blank, CommitLog, Failure, Record
from warren.msg_store.commit_log.commit_log_format import Host, decode, encode, header_bytes
from warren.msg_store.commit_log.record_columns import RecordColumns
from warren.storage.errors import StorageError
from warren.storage.faults import SimulatedCrash
from warren.storage.memory import MemoryFileSystem
from warren.storage.topic_settings import TopicSettings

DIRECTORY = "/commitlog"
FILE_SIZE = 1024
SETTINGS = TopicSettings(mapped_file_size_commit_log=FILE_SIZE, max_message_size=4000)
HOSTS = (Host.parse("10.0.0.1:1"), Host.parse("[2001:db8:0:0:0:0:0:1]:2"))
HOUR_MS = 3_600_000

lengths = st.one_of(
    st.sampled_from([[20], [20], [20, 20], [20] * 5]),  # what was cut off can only come back after its equals
    st.lists(st.integers(min_value=0, max_value=300), min_size=1, max_size=5),
    st.integers(min_value=5, max_value=40).map(lambda size: [size] * 7),
    st.just([FILE_SIZE]),
)


@attrs.frozen
class Ghost:
    """Records of a write that failed: if it was not overwritten, some may be there after a crash."""

    after: int
    """How many messages were there before it."""
    records: list[Record]


class CommitLogMachine(RuleBasedStateMachine):
    """``records``: what must be there; the first ``flushed`` survive even a power loss."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.files = MemoryFileSystem(now_ms=lambda: self.now_ms)
        self.records: list[Record] = []
        self.flushed = 0
        self.ghosts: list[Ghost] = []
        self.number = 0
        self.log = CommitLog.load(self.files, DIRECTORY, SETTINGS)

    # Messages

    def batch(self, sizes: list[int], as_one: bool, host: int) -> Batch:
        first = self.number
        self.number += len(sizes)
        return Batch(
            topic=f"topic-{first % 3}",
            queue_id=first % 2,
            bodies=[random.Random(first + number).randbytes(size) for number, size in enumerate(sizes)],
            properties=b"KEYS\x01key-%06d" % first,
            born_timestamp=first,
            born_host=HOSTS[host],
            store_host=HOSTS[0],
            as_one=as_one or sizes == [FILE_SIZE],
        )

    def expected(self, batch: Batch, queue_offset: int, begin: int) -> list[Record]:
        """The batch's records; where each lies is for the log to say, so it is looked up in what was written."""
        assert isinstance(batch.properties, bytes)
        made = []
        for number, body in enumerate(batch.bodies):
            size = header_bytes(batch.stored_sys_flag) + 3 + len(batch.topic) + len(body) + len(str(batch.properties))
            made.append(
                Record(
                    topic=batch.topic,
                    queue_id=batch.queue_id,
                    queue_offset=queue_offset + number,
                    physical_offset=begin,
                    size=size,
                    store_timestamp=self.now_ms,
                    born_timestamp=batch.born_timestamp,
                    born_host=batch.born_host,
                    store_host=batch.store_host,
                    sys_flag=batch.stored_sys_flag,
                    flag=0,
                    reconsume_times=0,
                    prepared_transaction_offset=0,
                    body_crc=0,
                    body=body,
                    properties=batch.properties,
                )
            )
        return made

    @rule(sizes=lengths, as_one=st.booleans(), host=st.integers(0, 1))
    def append(self, sizes: list[int], as_one: bool, host: int) -> None:
        batch = self.batch(sizes, as_one, host)
        done = self.log.append(batch, self.number, self.now_ms)
        if done.status == "END_OF_FILE":
            assert sum(sizes) + 8 > FILE_SIZE - len(sizes) * 150
            return
        made = self.expected(batch, self.number, 0)
        offsets = done.physical_offsets.tolist()
        self.records += [
            decode(encode(attrs.evolve(record, physical_offset=offset)))
            for record, offset in zip(made, offsets, strict=True)
        ]

    @rule(sizes=lengths, as_one=st.booleans(), skip=st.integers(0, 1))
    def append_on_a_disk_that_refuses(self, sizes: list[int], as_one: bool, skip: int) -> None:
        batch, before, end = self.batch(sizes, as_one, 0), len(self.records), self.log.end
        ghost = Ghost(before, self.expected(batch, self.number, 0))
        self.files.fail("pwrite", skip=skip)
        try:
            self.log.append(batch, self.number, self.now_ms)
        except StorageError:
            self.ghosts.append(ghost)
        self.files.plan.failures.clear()
        # A run of single puts may have got some through: those stay.
        self.records += [item for item in self.log.items(end) if isinstance(item, Record)]

    @rule()
    def flush(self) -> None:
        assert self.log.flush() == self.log.end
        self.ghosts = [ghost for ghost in self.ghosts if ghost.after == len(self.records)]  # others are written over
        self.flushed = len(self.records)

    @rule(hours=st.integers(min_value=0, max_value=100))
    def time_goes_by(self, hours: int) -> None:
        self.now_ms += hours * HOUR_MS

    @rule(percent=st.sampled_from([0.0, 90.0]))
    def expire(self, percent: float) -> None:
        self.log.expire(self.now_ms, 4, percent)
        gone = sum(record.physical_offset < self.log.min_offset for record in self.records)
        self.records = self.records[gone:]
        self.flushed = max(self.flushed - gone, 0)
        self.ghosts = [Ghost(max(ghost.after - gone, 0), ghost.records) for ghost in self.ghosts]

    # Stops

    @rule()
    def kill_and_reopen(self) -> None:
        self.reopen(self.files.after_process_crash(), at_least=len(self.records))

    @rule(seed=st.integers(0, 1 << 20))
    def lose_power_and_reopen(self, seed: int) -> None:
        self.reopen(self.files.after_power_loss(random.Random(seed)), at_least=self.flushed)

    @rule(sizes=lengths, as_one=st.booleans(), operation=st.integers(1, 8), torn=st.booleans(), seed=st.integers(0, 99))
    def die_while_appending(self, sizes: list[int], as_one: bool, operation: int, torn: bool, seed: int) -> None:
        batch = self.batch(sizes, as_one, 0)
        self.ghosts.append(Ghost(len(self.records), self.expected(batch, self.number, 0)))
        self.files.crash_at(operation, torn=torn)
        try:
            self.log.append(batch, self.number, self.now_ms)
            self.log.flush()
        except SimulatedCrash:
            pass
        if seed % 2:
            self.reopen(self.files.after_process_crash(), at_least=len(self.records))
        else:
            self.reopen(self.files.after_power_loss(random.Random(seed)), at_least=self.flushed)

    def reopen(self, files: MemoryFileSystem, at_least: int) -> None:
        """What is there now: what had to be, and then nothing, or the beginning of what failed just there."""
        self.files = files
        self.log = CommitLog.load(files, DIRECTORY, SETTINGS, lengthen=True)
        found = recover(self.log)
        same = 0
        while same < min(len(found), len(self.records)) and found[same] == self.records[same]:
            same += 1
        assert same >= at_least
        rest = [bare(record) for record in found[same:]]
        assert not rest or any(
            ghost.after <= same
            and [bare(each) for each in found[ghost.after :]]
            == [bare(each) for each in ghost.records[: len(found) - ghost.after]]
            for ghost in self.ghosts
        )
        self.log.clear_behind_end()
        self.log.flush()
        self.records, self.flushed, self.ghosts = found, len(found), []

    # What holds at any time

    @invariant()
    def it_holds_what_the_list_holds(self) -> None:
        self.log.check_invariants()
        assert [item for item in self.log.items(self.log.min_offset) if isinstance(item, Record)] == self.records
        for record in self.records[-3:]:
            assert self.log.record(record.physical_offset, record.size) == record
            assert self.log.store_timestamp_of(record.physical_offset, record.size) == record.store_timestamp

    @invariant()
    def columns_agree(self) -> None:
        found = list(self.log.columns(self.log.min_offset, check_crc=True))
        assert not any(isinstance(part, Failure) for part in found)
        positions = [at for part in found if isinstance(part, RecordColumns) for at in part.positions.tolist()]
        assert positions == [record.physical_offset for record in self.records]

    @precondition(lambda self: self.log.mapped.bases)
    @invariant()
    def no_file_is_missing(self) -> None:
        bases = self.log.mapped.bases
        assert bases == list(range(bases[0], bases[-1] + 1, FILE_SIZE))


def bare(record: Record) -> tuple[bytes, int]:
    return record.body, record.born_timestamp


def recover(log: CommitLog) -> list[Record]:
    """Find the end: at the first failure, or before a blank without a next file; a torn record is one.

    The CRC covers the body only: of a record that ends in zeros the topic or the properties may be missing.
    """
    found: list[Record] = []
    end = log.min_offset
    for item in log.items(end):
        if isinstance(item, Failure):
            break
        if isinstance(item, Blank):
            after = log.mapped.after(item.physical_offset)
            end = item.physical_offset if after is None else after
        elif not item.crc_ok or b"\0" in item.properties or "\0" in item.topic:
            break
        else:
            found.append(item)
            end = item.physical_offset + item.size
    log.set_end(end)
    return found


CommitLogMachine.TestCase.settings = settings(max_examples=times(60), stateful_step_count=30)
TestCommitLogAgainstAList = CommitLogMachine.TestCase
