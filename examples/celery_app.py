"""Celery without a server: an application and its worker in one process, their queues in a directory.

python examples/celery_app.py [DIRECTORY]
"""

from __future__ import annotations

import sys
import tempfile
import threading

from celery import Celery
from celery.result import allow_join_result

import warren.kombu  # noqa: F401 - from here on there are URLs that begin with warren://


def main(directory: str) -> None:
    """Send tasks, do them in a worker, and collect what they return."""
    app = Celery("example", broker=f"warren://{directory}", backend="cache+memory://")
    app.conf.update(worker_hijack_root_logger=False, task_acks_late=True)
    app.set_default()  # the worker's threads ask for it

    @app.task(name="example.square")
    def square(number: int) -> int:
        return number * number

    @app.task(name="example.flaky", bind=True, max_retries=3)
    def flaky(task) -> str:
        if task.request.retries < 2:
            raise task.retry(countdown=0.1)
        return f"done after {task.request.retries} retries"

    squares = [square.delay(number) for number in range(10)]  # they wait on disk
    again = flaky.delay()

    worker = app.WorkController(pool_cls="threads", concurrency=4)
    thread = threading.Thread(target=worker.start)
    thread.start()
    try:
        with allow_join_result():  # the worker has forbidden it for the whole process, which its tasks are in too
            print("squares:", [result.get(timeout=30) for result in squares])
            print("flaky:", again.get(timeout=30))
    finally:
        worker.stop()
        thread.join()
        app.pool.force_close_all()  # the last connection closes the directory
        app.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
