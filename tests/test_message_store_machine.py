"""The message store against a dict, whatever happens in whatever order."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.effort import times
from warren.msg_store.rdq.message_store import MessageStore
from warren.msg_store.rdq.store_reader import StoreReader
from warren.storage.memory import MemoryFileSystem
from warren.storage.pieces import Pieces, Whole
from warren.storage.settings import Settings

DIRECTORY = "/vhost/msg_store_persistent"
SETTINGS = Settings(msg_store_file_size_limit=400)

ids = st.integers(min_value=0, max_value=60)
batches = st.lists(ids, max_size=8)


def key(n: int) -> bytes:
    return n.to_bytes(16, "big")


def body(n: int) -> bytes:
    return f"<{n}>".encode().ljust(20 + n * 13 % 60, b".")


def message(n: int) -> Whole:
    """Every third comes in pieces."""
    whole = body(n)
    return whole if n % 3 else Pieces((whole[:9], memoryview(whole)[9:12], whole[12:]), len(whole))


class StoreMachine(RuleBasedStateMachine):
    """``counts``: what each message's count must be; ``unsaid``: references that the store was not told yet."""

    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFileSystem()
        self.counts: Counter[int] = Counter()
        self.unsaid: Counter[int] | None = None
        self.store = self.open()
        self.store.set_references([])

    def open(self, token: bytes | None = None) -> MessageStore:
        return MessageStore.open(self.files, DIRECTORY, SETTINGS, token=token, buffer_bytes=300)

    @property
    def there(self) -> list[int]:
        return [n for n, count in self.counts.items() if count > 0]

    # Messages

    @rule(numbers=batches)
    def write(self, numbers: list[int]) -> None:
        self.store.write_many([key(n) for n in numbers], [message(n) for n in numbers])
        self.counts.update(numbers)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.there:
            numbers = data.draw(st.lists(st.sampled_from(sorted(self.there)), max_size=8, unique=True))
            self.store.remove_many([key(n) for n in numbers])
            self.counts.subtract(numbers)

    @rule(share=st.integers(min_value=2, max_value=4))
    def remove_most(self, share: int) -> None:
        numbers = [n for n in sorted(self.there) if n % share]
        self.store.remove_many([key(n) for n in numbers])
        self.counts.subtract(numbers)

    @rule()
    def flush(self) -> None:
        self.store.flush()
        assert self.store.status().buffered_messages == 0

    @rule()
    def sync(self) -> None:
        self.store.sync()
        assert self.store.synced_ticket == self.store.written_ticket

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        if self.there:
            numbers = data.draw(st.lists(st.sampled_from(sorted(self.there)), max_size=8))
            assert self.store.read_many([key(n) for n in numbers]) == [body(n) for n in numbers]

    @rule(steps=st.integers(min_value=0, max_value=20))
    def compact(self, steps: int) -> None:
        assert self.store.compact(max_steps=steps) == self.store.needs_compaction()

    # Stops

    @precondition(lambda self: self.unsaid is None)
    @rule()
    def stop_and_start(self) -> None:
        self.store.close(b"token")
        self.store = self.open(b"token")
        assert self.store.clean

    @precondition(lambda self: self.unsaid is None)
    @rule()
    def crash_and_start(self) -> None:
        self.store.flush()
        self.files = self.files.after_process_crash()
        self.store = self.open(b"token")
        assert not self.store.clean
        self.unsaid = +self.counts

    @precondition(lambda self: self.unsaid is not None)
    @rule()
    def tell_references(self) -> None:
        assert self.unsaid is not None
        assert self.store.set_references((key(n), count) for n, count in self.unsaid.items()) == []
        self.unsaid = None

    # What holds at any time

    @invariant()
    def it_holds_what_the_dict_holds(self) -> None:
        self.store.check_invariants()
        for n in range(61):
            if self.unsaid is None:
                assert self.store.reference_count(key(n)) == self.counts[n]
                assert self.store.contains(key(n)) == (self.counts[n] > 0)
            elif self.counts[n]:
                assert self.store.read(key(n)) == body(n)

    @invariant()
    def a_reader_of_the_files_agrees(self) -> None:
        reader = StoreReader.open(self.files, DIRECTORY)
        for n in self.there:
            if reader.contains(key(n)):
                assert reader.read(key(n)) == body(n)


StoreMachine.TestCase.settings = settings(max_examples=times(60), stateful_step_count=40)
TestMessageStoreAgainstADict = StoreMachine.TestCase
