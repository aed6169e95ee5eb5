"""A durable queue in your own process: publish, fetch, ack, crash, recover.

python examples/embedded_queue.py [DIRECTORY]
"""

from __future__ import annotations

import sys
import tempfile

import warren


def main(directory: str) -> None:
    """Do it all in ``directory``, which is created if it is missing."""
    vhost = warren.engine.open_vhost(directory)
    jobs = vhost.queue(b"jobs")
    job = vhost.envelope(b"jobs")

    bodies = [b"job %03d" % n for n in range(100)]
    jobs.publish_many(job, vhost.msg_ids.many(len(bodies)), bodies, confirm=True)
    vhost.sync()
    print("safe:", sum(map(len, jobs.drain_confirmed())))

    done = [part.seq_ids for part in jobs.fetch_many(60)]
    jobs.ack(done)
    vhost.sync()  # or acked messages may come back
    print("acked:", sum(map(len, done)))

    jobs.fetch_many(10)  # a consumer has these, and then
    vhost.abandon()  # the process is gone

    with warren.engine.open_vhost(directory) as vhost:
        jobs = vhost.queue(b"jobs")
        print("after the crash:", len(jobs))
        parts = jobs.fetch_many(100)
        print("first:", parts[0].bodies()[0].decode(), "redelivered" if parts[0].redelivered else "new")
        jobs.ack([part.seq_ids for part in parts])
        print("left:", len(jobs))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
