"""``python worker.py``: as many of them as you like. SIGTERM ends one after the job that it is doing."""

import os
import signal
import threading

import warren

stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopping.set())

with warren.open(os.environ["DATA"], share=True) as node:
    mails = node.queue("mails")
    with mails.consume(prefetch=10) as consumer:
        while not stopping.is_set():
            if (mail := consumer.receive(timeout=1)) is not None:
                with mail:  # acks; after an error the mail comes again, later
                    print("sent", mail.body.decode(), flush=True)
