"""warren beside other embedded queues: the figures of the README's comparison table.

``python -m benchmarks.comparison``. Every contestant runs in a process of its own on an empty directory: publish a
backlog of 128-byte messages, note the memory it grew by, take and ack all of them, check the order. Nobody fsyncs:
what is measured is what survives the process. Each is used the fastest way that its documentation offers: in batches
of 1000 where it has batches, in one transaction per 1000 where it has transactions, else one by one.

persist-queue and litequeue come with the extra ``dev``.
"""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

BATCH = 1000
SIZE = 128


@attrs.define
class Contestant:
    """How a queue is used: publish one batch, take and ack one batch (fewer at the end)."""

    publish: Callable[[list[bytes]], None]
    take: Callable[[], list[bytes]]


def warren(directory: Path) -> Contestant:
    from warren.engine import open_vhost

    vhost = open_vhost(directory, sync=False)
    queue, envelope = vhost.queue(b"q"), vhost.envelope(b"q")
    rates = queue.state.rates
    rates.ingress = 1.0
    queue.set_ram_duration_target(10_000 / rates.total)

    def publish(bodies: list[bytes]) -> None:
        queue.publish_many(envelope, vhost.msg_ids.many(len(bodies)), bodies)
        queue.write_out()

    def take() -> list[bytes]:
        parts = queue.fetch_many(BATCH)
        bodies = [body for part in parts for body in part.bodies()]
        queue.ack([part.seq_ids for part in parts])
        queue.write_out()
        return bodies

    return Contestant(publish, take)


def sqlite_table(directory: Path) -> Contestant:
    """The queue that everybody writes once: a table, a rowid, a transaction for each batch."""
    connection = sqlite3.connect(directory / "queue.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("CREATE TABLE queue (id INTEGER PRIMARY KEY AUTOINCREMENT, body BLOB NOT NULL)")

    def publish(bodies: list[bytes]) -> None:
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO queue (body) VALUES (?)", ((body,) for body in bodies))
        connection.execute("COMMIT")

    def take() -> list[bytes]:
        rows = connection.execute("SELECT id, body FROM queue ORDER BY id LIMIT ?", (BATCH,)).fetchall()
        if rows:
            connection.execute("DELETE FROM queue WHERE id <= ?", (rows[-1][0],))
        return [row[1] for row in rows]

    return Contestant(publish, take)


def litequeue(directory: Path) -> Contestant:
    from litequeue import LiteQueue

    queue = LiteQueue(str(directory / "queue.db"))
    queue.conn.execute("PRAGMA synchronous = OFF")

    def publish(bodies: list[bytes]) -> None:
        with queue.transaction():
            for body in bodies:
                queue.put(body.decode("latin-1"))

    def take() -> list[bytes]:
        taken = []
        for _ in range(BATCH):
            message = queue.pop()
            if message is None:
                break
            taken.append(message.data.encode("latin-1"))
            queue.done(message.message_id)
        return taken

    return Contestant(publish, take)


def persist_queue(directory: Path) -> Contestant:
    from persistqueue import Empty, SQLiteAckQueue

    queue = SQLiteAckQueue(str(directory), auto_commit=True)

    def publish(bodies: list[bytes]) -> None:
        for body in bodies:
            queue.put(body)

    def take() -> list[bytes]:
        taken = []
        for _ in range(BATCH):
            try:
                body = queue.get(block=False)
            except Empty:
                break
            taken.append(body)
            queue.ack(body)
        return taken

    return Contestant(publish, take)


CONTESTANTS: dict[str, tuple[Callable[[Path], Contestant], int]] = {
    # name: how to make it, and how many messages it gets (the slow ones fewer: rates are per second)
    "warren": (warren, 1_000_000),
    "SQLite table": (sqlite_table, 1_000_000),
    "litequeue": (litequeue, 10_000),
    "persist-queue (SQLiteAckQueue)": (persist_queue, 5_000),
}


def bodies(first: int, count: int) -> list[bytes]:
    return [(b"%016d" % n) * (SIZE // 16) for n in range(first, first + count)]


def resident_bytes() -> int:
    """Resident memory now; the peak counts too, but a peak before the backlog must not."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def run(name: str) -> dict[str, float]:
    """Run one contestant in this process."""
    make, total = CONTESTANTS[name]
    with tempfile.TemporaryDirectory(prefix="warren-comparison-") as scratch:
        contestant = make(Path(scratch))
        before, publish_s, take_s = resident_bytes(), 0.0, 0.0
        for first in range(0, total, BATCH):
            batch = bodies(first, BATCH)
            start = time.perf_counter()
            contestant.publish(batch)
            publish_s += time.perf_counter() - start
        grown = resident_bytes() - before
        on_disk = sum(path.stat().st_size for path in Path(scratch).rglob("*") if path.is_file())
        taken = 0
        while True:
            start = time.perf_counter()
            batch = contestant.take()
            take_s += time.perf_counter() - start
            if not batch:
                break
            if batch != bodies(taken, len(batch)):
                raise RuntimeError(f"{name}: messages came out of order after {taken}")
            taken += len(batch)
        if taken != total:
            raise RuntimeError(f"{name}: {taken} of {total} messages came out")
    return {
        "messages": total,
        "publish_per_s": total / publish_s,
        "take_per_s": total / take_s,
        "rss_growth_bytes": grown,
        "disk_bytes_per_message": on_disk / total,
    }


def rounds(repeats: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Every contestant in a process of its own, round by round, so that a drift of the machine hits all."""
    for _ in range(repeats):
        for name in CONTESTANTS:
            command = [sys.executable, "-m", "benchmarks.comparison", name]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
            yield name, json.loads(done.stdout)


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(run(sys.argv[1])))
        return
    results: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
    for name, result in rounds(3):
        results[name].append(result)
        print(f"{name}: {json.dumps(result)}", file=sys.stderr)
    medians = {
        name: {key: sorted(result[key] for result in found)[len(found) // 2] for key in found[0]}
        for name, found in results.items()
    }
    target = Path(__file__).parent / "results" / "comparison.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(medians, indent=1) + "\n")
    table = markdown(medians)
    print(table)
    write_into(Path(__file__).parent.parent / "README.md", table)


def markdown(medians: dict[str, dict[str, float]]) -> str:
    """The table of the README."""
    lines = [
        "| | publish, messages/s | take and ack, messages/s | memory grown by, MB | disk, bytes a message | backlog |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, result in medians.items():
        memory, disk = result["rss_growth_bytes"] / 1e6, result["disk_bytes_per_message"]
        lines.append(
            f"| {name} | {result['publish_per_s']:,.0f} | {result['take_per_s']:,.0f} | {memory:.1f} | {disk:.0f} "
            f"| {result['messages']:,.0f} |"
        )
    return "\n".join(lines)


def write_into(readme: Path, table: str) -> None:
    """Put the table between its markers."""
    before, _, rest = readme.read_text().partition("<!-- comparison -->\n")
    _, _, after = rest.partition("<!-- /comparison -->")
    readme.write_text(f"{before}<!-- comparison -->\n{table}\n<!-- /comparison -->{after}")


if __name__ == "__main__":
    main()
