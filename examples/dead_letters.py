"""Jobs that fail: three attempts with a pause in between, then a queue for a human to look at.

python examples/dead_letters.py [DIRECTORY]

A rejected job dies, and goes to the queue ``later``. There it expires after the pause, dies again, and is back.
"""

from __future__ import annotations

import sys
import tempfile

import warren

ATTEMPTS = 3
PAUSE_MS = 50


def deaths(job: warren.Delivery, reason: str) -> int:
    """How often the job died of ``reason``."""
    return sum(death["count"] for death in job.headers.get("x-death", []) if death["reason"] == reason)


def dies_to(queue: str) -> dict[str, str]:
    """The arguments of a queue whose dead letters go to another one; the exchange "" finds it by its name."""
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


def main(directory: str) -> None:
    """Do it all in ``directory``, which is created if it is missing."""
    with warren.open(directory) as node:
        jobs = node.queue("jobs", arguments=dies_to("later"))
        node.queue("later", arguments={"x-message-ttl": PAUSE_MS, **dies_to("jobs")})
        failed = node.queue("failed")
        jobs.publish_many([b"6 / 2", b"6 / 0"]).wait()

        with jobs.consume(timeout=2) as consumer:
            for job in consumer:
                dividend, divisor = map(int, job.body.split(b" / "))
                try:
                    print(job.body.decode(), "=", dividend // divisor)
                except ZeroDivisionError:
                    attempt = deaths(job, "rejected") + 1
                    print(job.body.decode(), "failed, attempt", attempt)
                    if attempt < ATTEMPTS:
                        job.reject()
                        continue
                    failed.publish(job.body, headers={"attempts": attempt}).wait()  # safe there before it goes here
                job.ack()

        for letter in failed.browse():
            print("for a human:", letter.body.decode(), "after", letter.headers["attempts"], "attempts")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
