"""Workers on asyncio: jobs from a durable queue, some at a time, and a dead-letter queue for those that fail.

python examples/asyncio_worker.py [DIRECTORY]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile

import warren.aio

JOBS = 100
WORKERS = 4


async def do(job: bytes) -> None:
    """The work itself; every tenth job cannot be done."""
    await asyncio.sleep(0)
    if job.endswith(b"0"):
        raise ValueError(f"{job.decode()} cannot be done")


async def work(jobs: warren.aio.Queue) -> None:
    """Do jobs until none has come for a while. One that a cancelled worker had goes back to the queue."""
    async for delivery in jobs.consume(prefetch=10, timeout=0.5):
        try:
            await do(delivery.body)
        except ValueError:
            await delivery.reject()  # to the dead letters
        else:
            await delivery.ack()


async def run(directory: str) -> None:
    """Publish, work, and look at what is left in ``directory``."""
    async with warren.aio.open(directory) as node:
        failed = await node.queue("failed")
        jobs = await node.queue(
            "jobs", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": failed.name}
        )
        async with asyncio.TaskGroup() as group:
            for n in range(JOBS):
                group.create_task(jobs.publish(b"job %d" % n))  # done when it is safe
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(work(jobs))
        print("left:", await jobs.length())

    async with warren.aio.open(directory) as node:  # the next start
        failed = await node.queue("failed", passive=True)
        print("failed:", await failed.length())
        async for message in failed.browse(limit=1):
            print("first:", message.body.decode())


def main(directory: str) -> None:
    """Do it all in ``directory``, which is created if it is missing."""
    asyncio.run(run(directory))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
