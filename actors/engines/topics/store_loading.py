"""Loading a topic store: its ConsumeQueues, its index, and files that must not be among its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from warren.actors.engines.topics.checkpoint_format import Checkpoint
from warren.actors.engines.topics.store_files import CONSUME_QUEUES, Cut
from warren.queue_index.topics.consume_queue import ConsumeQueue
from warren.queue_index.topics.index_file_format import Layout, is_file_name
from warren.queue_index.topics.key_index import KeyIndex
from warren.storage.errors import DataError
from warren.storage.filesystem import FileSystem
from warren.storage.mapped_files import parse_file_name
from warren.storage.topic_settings import TopicSettings


def load_index(
    files: FileSystem,
    directory: str,
    settings: TopicSettings,
    checkpoint: Checkpoint,
    new_name: Callable[[], str],
    *,
    was_clean: bool,
    writable: bool,
) -> tuple[KeyIndex, list[Cut]]:
    """Load the index in ``directory``; return it, and the files that were deleted because they may not be whole."""
    before = set(files.list(directory))
    if settings.rebuild_after_crash:
        _check_index_sizes(files, directory, settings, may_be_short=not was_clean)
    index = KeyIndex.load(
        files,
        directory,
        max_hash_slot_num=settings.max_hash_slot_num,
        max_index_num=settings.max_index_num,
        new_name=new_name,
        is_clean=was_clean or settings.rebuild_after_crash,
        index_msg_timestamp=checkpoint.index_msg_timestamp,
        writable=writable,
    )
    deleted = sorted(before - set(files.list(directory)))
    return index, [Cut(f"{directory}/{name}", None, "index file unused: not known to be whole") for name in deleted]


def _check_index_sizes(files: FileSystem, directory: str, settings: TopicSettings, *, may_be_short: bool) -> None:
    """Raise :class:`DataError` if an index file has an unexpected size; RocketMQ would misread and lengthen it."""
    expected = Layout(settings.max_hash_slot_num, settings.max_index_num).file_size
    for name in filter(is_file_name, files.list(directory)):
        size = files.size(f"{directory}/{name}")
        if size > expected or (size < expected and not may_be_short):
            reason = f"is {size} bytes long, and not {expected} as max_hash_slot_num and max_index_num say"
            raise DataError(f"{directory}/{name}", None, reason)


def strangers(files: FileSystem, directory: str) -> Iterator[Cut]:
    """Yield files among the mapped files that are not mapped files. RocketMQ would not load the store."""
    for name in files.list(directory):
        if parse_file_name(name) is None:
            yield Cut(f"{directory}/{name}", None, "no file of the store's; RocketMQ would refuse to start; left out")


def queue_place(directory: str, key: tuple[str, int]) -> str:
    """The directory of the ConsumeQueue of a topic and queue_id."""
    topic, queue_id = key
    return f"{directory}/{CONSUME_QUEUES}/{topic}/{queue_id}"


def load_queue(
    files: FileSystem,
    directory: str,
    key: tuple[str, int],
    settings: TopicSettings,
    *,
    writable: bool,
    lengthen: bool = False,
) -> ConsumeQueue:
    """Load the ConsumeQueue of a topic and queue_id; it has no files if none exist."""
    topic, queue_id = key
    return ConsumeQueue.load(
        files,
        queue_place(directory, key),
        topic=topic,
        queue_id=queue_id,
        file_size=settings.mapped_file_size_consume_queue,
        writable=writable,
        lengthen=lengthen,
    )
