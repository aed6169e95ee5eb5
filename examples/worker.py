"""A worker that is killed in the middle of its work, and the next one, which goes on from there.

python examples/worker.py [DIRECTORY]
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

import warren

JOBS = 100


def work(directory: str, kill_after: int | None = None) -> None:
    """Work on the jobs in ``directory``; be killed, without any warning, after ``kill_after`` jobs."""
    with warren.open(directory) as node:
        jobs = node.queue("jobs")
        done = again = 0
        with jobs.consume(prefetch=10, timeout=0.5) as consumer:
            for job in consumer:
                with job:  # acks when it is done; gives the job back if an error gets out
                    done += 1
                    again += job.redelivered
                if done == kill_after:
                    jobs.sync()  # acks are safe now, not just soon
                    print(f"killed after {done} jobs", flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)
        print(f"did {done} jobs, {again} of them may have been begun before; {len(jobs)} left", flush=True)


def main(directory: str) -> None:
    """Publish, and start two workers one after the other; the first one is killed."""
    with warren.open(directory) as node:
        confirm = node.queue("jobs").publish_many([b"job %d" % number for number in range(JOBS)])
        confirm.wait()
        print(f"published {JOBS} jobs, safe on the disk", flush=True)
    for kill_after in ("30", ""):
        command = [sys.executable, __file__, directory, "--work", kill_after]
        print(subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True).stdout, end="")


if __name__ == "__main__":
    if "--work" in sys.argv:
        work(sys.argv[1], int(sys.argv[3]) if sys.argv[3] else None)
    elif len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
