"""A small data directory with everything in it, as the warren that runs this writes it, and what is inside.

``python -m tests.support.release_directory`` makes ``tests/data/releases/<version>.tar.xz`` of it, which is kept for
good when that version is released: every later warren opens it (``tests/test_upgrades.py``). In the archive are the
directory as a clean stop leaves it (``closed/…``) and as a kill does (``killed/…``), and a manifest, ``manifest.json``:
what a node of that warren says of each (:func:`looked_at`), and at what time.

The directory is made by hand-driven actors over files in memory, with a seed and a clock that stands still: the same
code makes the same bytes. *Steps* are its parts; a directory of a warren that lacks something has been made without
those steps, and its manifest says which it has.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import warren
from tests.support.runtime_tools import DATA, HandNode, hand_node
from warren.actors.clock import HandClock
from warren.storage.data_version import WARREN_VERSION
from warren.storage.filesystem import write_file
from warren.storage.lock_file import LOCK_FILE
from warren.storage.memory import MemoryFileSystem

RELEASES = Path(__file__).parent.parent / "data" / "releases"
MANIFEST = "manifest.json"
SUFFIX = ".tar.xz"
SEED = 7
SETTINGS: dict[str, Any] = {
    "queue_index_max_journal_entries": 40,
    "segment_entry_count": 32,
    "mapped_file_size_commit_log": 1 << 16,
    "mapped_file_size_consume_queue": 4000,
    "max_hash_slot_num": 50,
    "max_index_num": 200,
}
"""Small files, and several segments of few messages."""
PROBE = "manifest-probe"
"""The group that reads the topics for the manifest, in a copy."""
UNIQUE_KEY = "order-7"
"""The key of a message that waits."""

BIG = bytes(range(256)) * 20
"""A body that goes to the shared store."""


def _taken(queue: warren.Queue) -> warren.Delivery:
    """What waits longest."""
    delivery = queue.get()
    assert delivery is not None
    return delivery


def _queue(node: warren.Node) -> None:
    """Durable, with bodies in the index and in the store, with properties, one transient, some acked, one unacked."""
    queue = node.queue("plain")
    queue.publish_many([b"%d" % number for number in range(10)]).wait()
    queue.publish(BIG, headers={"n": 1, "text": "ü", "deep": {"list": [1, "two", None]}}, priority=1).wait()
    queue.publish(
        b"typed", content_type="text/plain", correlation_id="c", message_id="m", timestamp=1_600_000_000
    ).wait()
    queue.publish(b"transient", persistent=False).wait()
    held = [_taken(queue) for _ in range(5)]
    held[0].ack()
    held[2].ack()


def _segments(node: warren.Node) -> None:
    """More than two segments, the first acked, the second in part."""
    queue = node.queue("segments")
    queue.publish_many(
        [b"s%03d" % number if number % 7 else BIG[:4500] + b"%d" % number for number in range(90)]
    ).wait()
    for number in range(60):
        delivery = _taken(queue)
        if number < 32 or number % 3:
            delivery.ack()


def _priorities(node: warren.Node) -> None:
    queue = node.queue("priorities", arguments={"x-max-priority": 3})
    for number in range(8):
        queue.publish(b"p%d" % number, priority=number % 4).wait()


def _dead_letters(node: warren.Node) -> None:
    node.exchange("dead", "fanout")
    node.bind(node.queue("graveyard"), "dead")
    queue = node.queue("mortal", arguments={"x-dead-letter-exchange": "dead", "x-max-length": 4})
    queue.publish_many([b"d%d" % number for number in range(6)]).wait()
    _taken(queue).reject()


def _fanout(node: warren.Node) -> None:
    """One body of two queues, and exchanges bound to each other."""
    node.exchange("all", "fanout")
    node.exchange("by word", "topic")
    for name in ("first", "second"):
        node.bind(node.queue(name), "all")
    node.bind("first", "by word", "a.*.#")
    node.exchange("all").publish(BIG + b"shared").wait()
    node.exchange("by word").publish(b"routed", "a.b.c").wait()
    _taken(node.queue("second")).ack()


def _vhosts(node: warren.Node) -> None:
    """With names that are no ASCII."""
    shop = node.vhost("the shop ☃")
    shop.queue("bücher").publish_many([b"in another vhost", BIG]).wait()


def _policies(node: warren.Node) -> None:
    node.set_policy("short", "^first$", {"max-length": 1000}, priority=3, apply_to="queues")


def _users(node: warren.Node) -> None:
    node.add_user("bob", "secret", tags=["management"])
    node.set_permissions("bob", "^bob-", ".*", "", vhost="/")


def _limits(node: warren.Node) -> None:
    node.set_operator_policy("cap", ".*", {"max-length": 100_000})
    node.set_topic_permissions("bob", "by word", "^a", "^b")
    node.set_user_limits("bob", {"max-connections": 5})
    node.set_vhost_limits({"max-queues": 500})
    node.set_global_parameter("cluster", {"name": "of tests"})
    node.set_vhost_metadata("/", description="the first", tags=["a"])


def _topics(node: warren.Node) -> None:
    """With keys, tags, properties, large bodies and two groups, one of them not at the end."""
    topic = node.topic("events", queues=2)
    for number in range(12):
        topic.append(b"e%d" % number, key=f"order-{number}", tag="new" if number % 2 else "old").wait()
    topic.append(BIG, properties={"currency": "EUR"}, queue=1).wait()
    topic.append_many([b"batch %d" % number for number in range(5)]).wait()
    list(topic.read("audit"))
    list(topic.read("billing", max_records=7))


def _topic_delays(node: warren.Node) -> None:
    """A delay, of two hours."""
    topic = node.topic("events")
    topic.append(b"later", delay_level=18).wait()


def _delayed(node: warren.Node) -> None:
    queue = node.queue("reminders")
    queue.publish(b"in a minute", delay=40, message_id="one").wait()
    queue.publish(BIG, delay=60.5, message_id="two").wait()
    queue.publish(b"called back", delay=50, message_id="three").wait()
    queue.cancel_delayed("three")
    queue.publish(b"now").wait()


def _retries(node: warren.Node) -> None:
    """One that came back once and waits, one that came back twice and is ready, one that died."""
    queue = node.queue("jobs", retry=warren.Retry(limit=2, delay=30, multiplier=1, dead_letters="gave up"))
    node.queue("gave up")
    for body, times in ((b"dies", 3), (b"waits", 0), (b"fails", 2)):
        queue.publish(body).wait()
        for _ in range(times):
            _taken(queue).retry(0)
        if not times:
            _taken(queue).retry()


def _unique(node: warren.Node) -> None:
    queue = node.queue("once")
    queue.publish(b"waits", unique=UNIQUE_KEY).wait()
    queue.publish(b"waits too", unique=7, unique_for=100_000).wait()
    queue.publish(b"done", unique="done").wait()
    assert queue.publish(b"again", unique=UNIQUE_KEY).wait() is None
    [_taken(queue) for _ in range(3)][2].ack()


def _streams(node: warren.Node) -> None:
    arguments = {"x-queue-type": "stream", "x-max-age": "9000D"}
    stream = {"vhost": "/", "name": "stream", "durable": True, "auto_delete": False, "arguments": arguments}
    node.import_definitions({"queues": [stream]})
    node.exchange("").publish_many([b"streamed", BIG], "stream").wait()


STEPS: dict[str, Callable[[warren.Node], None]] = {
    "queue": _queue,
    "segments": _segments,
    "priorities": _priorities,
    "dead letters": _dead_letters,
    "fanout": _fanout,
    "vhosts": _vhosts,
    "policies": _policies,
    "users": _users,
    "limits": _limits,
    "topics": _topics,
    "topic delays": _topic_delays,
    "delayed": _delayed,
    "retries": _retries,
    "unique": _unique,
    "streams": _streams,
}


# ── what is inside ──────────────────────────────────────────────────────────────────────────────────────────────────


def _text(body: bytes) -> str:
    return body.decode("latin-1") if len(body) < 40 else f"{len(body)} bytes, {hashlib.sha256(body).hexdigest()[:16]}"


def _properties(message: Any) -> dict[str, Any]:
    names = ("content_type", "delivery_mode", "priority", "correlation_id", "expiration", "message_id", "timestamp")
    found = {name: getattr(message.properties, name) for name in names}
    said = {name: value for name, value in found.items() if value is not None}
    return {**said, "headers": repr(dict(message.headers)), "exchange": message.exchange, "key": message.routing_key}


def _queue_now(queue: Any) -> list[Any]:
    return [[message.seq_id, _text(message.body), _properties(message)] for message in queue.browse()]


def _waiting(node: Any, vhost: str) -> list[Any]:
    return [[message.due_ms, _text(message.body)] for message in node.vhost(vhost).delayed(100)]


def _stream_now(node: Any) -> list[str]:
    (stream,) = node._running.streams("/", ["stream"])
    return [_text(message.body) for message in stream.read(0, 100)]


def _topic_now(node: Any, name: str, groups: Mapping[str, Any]) -> dict[str, Any]:
    topic = node.topic(name)
    lags = {group: {str(queue): lag for queue, lag in topic.lag(group).items()} for group in groups}
    records = [
        [record.queue_id, record.queue_offset, _text(record.body), record.keys, record.tag, dict(record.properties)]
        for record in topic.read(PROBE)
    ]
    return {"lags": lags, "records": sorted(records, key=lambda record: record[:2])}


def looked_at(node: Any, steps: Mapping[str, Any]) -> dict[str, Any]:
    """What is inside, in JSON's types; moves a group of its own along the topics."""
    definitions = node.definitions()
    kinds = ("users", "permissions", "topic_permissions", "policies", "parameters", "exchanges", "queues", "bindings")
    found: dict[str, Any] = {
        "definitions": {
            kind: sorted((json.dumps(one, sort_keys=True) for one in definitions.get(kind, [])), key=str)
            for kind in kinds
        },
        "failed": {vhost: dict(getattr(node.vhost(vhost), "failed_queues", {})) for vhost in node.vhosts()},
        "queues": {
            vhost: {queue.name: _queue_now(queue) for queue in node.vhost(vhost).queues() if queue.name != "stream"}
            for vhost in sorted(node.vhosts())
        },
    }
    if "topics" in steps:
        found["topic"] = _topic_now(node, "events", dict.fromkeys(("audit", "billing")))
    if "delayed" in steps:
        found["delayed"] = _waiting(node, "/")
    if "streams" in steps:
        found["stream"] = _stream_now(node)
    return dict(json.loads(json.dumps(found)))


# ── making and reading archives ─────────────────────────────────────────────────────────────────────────────────────


Contents = dict[str, dict[str, bytes]]
"""By state (:data:`STATES`) and path."""
STATES = ("closed", "killed")


def made() -> tuple[Contents, dict[str, Any]]:
    """The directories as this code writes them, and their manifest."""
    scenes = [hand_node(seed=SEED, **SETTINGS) for _ in STATES]
    for scene in scenes:
        for step in STEPS.values():
            step(scene.node)
            scene.advance(1)  # everything is safe where it goes
    closed, killed = scenes
    closed.node.close()
    contents = {"closed": _kept(closed.files), "killed": _kept(killed.kill())}
    manifest: dict[str, Any] = {"made_by": WARREN_VERSION, "now_us": closed.clock.wall_us(), "steps": list(STEPS)}
    manifest["inside"] = {}
    for state, found in contents.items():
        again = opened(files_of(found), manifest)
        again.run()
        manifest["inside"][state] = looked_at(again.node, STEPS)
        again.node.close()
    return contents, manifest


def _kept(files: MemoryFileSystem) -> dict[str, bytes]:
    """Without the lock files of the process that was killed."""
    return {path: data for path, data in files.contents().items() if not path.endswith(f"/{LOCK_FILE}")}


def files_of(contents: Mapping[str, bytes]) -> MemoryFileSystem:
    """A disk with these files, all safe."""
    files = MemoryFileSystem(random.Random(0))
    for path, data in contents.items():
        files.make_directories(path.rpartition("/")[0])
        write_file(files, path, data, sync=True)
    files.sync_all()
    return files


def opened(files: MemoryFileSystem, manifest: Mapping[str, Any], seed: int = 1) -> HandNode:
    """A node in the directory, at the time of the manifest."""
    return hand_node(files, seed=seed, clock=HandClock(manifest["now_us"]), **SETTINGS)


def write_archive(target: Path, contents: Contents, manifest: Mapping[str, Any]) -> None:
    """The same bytes for the same directories."""
    members = {
        f"{state}{path.removeprefix(DATA)}": data
        for state in contents
        for path, data in sorted(contents[state].items())
    }
    members[MANIFEST] = json.dumps(manifest, indent=1, ensure_ascii=False).encode() + b"\n"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:xz") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o600
            archive.addfile(member, io.BytesIO(data))


def read_archive(source: Path) -> tuple[Contents, dict[str, Any]]:
    contents: Contents = {}
    manifest: dict[str, Any] = {}
    with tarfile.open(source) as archive:
        for member in archive:
            handle = archive.extractfile(member)
            state, _, path = member.name.partition("/")
            if handle is not None and not path:
                manifest = json.loads(handle.read())
            elif handle is not None:
                contents.setdefault(state, {})[f"{DATA}/{path}"] = handle.read()
    return contents, manifest


def main() -> None:
    target = RELEASES / f"{WARREN_VERSION}{SUFFIX}"
    write_archive(target, *made())
    sys.stdout.write(f"{target}: {target.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
