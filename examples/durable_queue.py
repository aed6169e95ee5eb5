"""queue.Queue, on disk: workers in threads, a stop in the middle, and on from there.

python examples/durable_queue.py [DIRECTORY]
"""

from __future__ import annotations

import queue
import sys
import tempfile
import threading

from warren.durable_queue import DurableQueue


def main(directory: str) -> None:
    """Do it all in ``directory``, which is created if it is missing."""
    with DurableQueue(directory, "jobs", maxsize=100, serializer="json") as jobs:
        for number in range(10):
            jobs.put({"number": number})
        for _ in range(3):
            jobs.get()
            jobs.task_done()
        print("in work:", jobs.get())  # and not done: the program stops here
        print("waiting:", jobs.qsize())

    done = []
    with DurableQueue(directory, "jobs", maxsize=100, serializer="json") as jobs:
        print("after the stop:", jobs.qsize())

        def work() -> None:
            while True:
                try:
                    job = jobs.get_nowait()
                except queue.Empty:
                    return
                done.append(job["number"])
                jobs.task_done()

        workers = [threading.Thread(target=work) for _ in range(3)]
        for worker in workers:
            worker.start()
        jobs.join()
        for worker in workers:
            worker.join()
        print("done:", sorted(done))
        print("left:", jobs.unfinished_tasks)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
