"""Messages as Celery sends its tasks: no two the same, the same ones in every run.

Headers, properties and their types are those of a task of Celery 5 (protocol 2) sent with a broker's defaults.
"""

from __future__ import annotations

import random
import uuid
from typing import Final, NamedTuple

from benchmarks.bodies import log_normal_sizes
from warren.queue_index.properties import Properties, encode_properties

ROUTING_KEYS: Final = 10
_MEDIAN_LOG: Final = 6.4
"""Natural logarithm of the median size of a body: about 600 bytes."""
_MAX_BODY_BYTES: Final = 1 << 16
_NAMES: Final = ("shop.tasks.charge", "shop.tasks.refund", "mail.tasks.send_receipt", "reports.tasks.refresh_daily")


class TaskMessage(NamedTuple):
    """A message, and the number of its routing key."""

    number: int
    properties: bytes
    body: bytes


def body_sizes(count: int, seed: int = 1) -> list[int]:
    """Sizes from a log-normal distribution: half of them up to about 600 bytes, the largest 64 KiB."""
    return log_normal_sizes(count, median_log=_MEDIAN_LOG, largest=_MAX_BODY_BYTES, seed=seed)


def task_messages(count: int, seed: int = 1, *, transient: float = 0.0) -> list[TaskMessage]:
    """Return messages. ``transient``: the share that is."""
    generator = random.Random(seed)
    reply_to = str(uuid.UUID(int=generator.getrandbits(128)))
    messages = []
    for size in body_sizes(count, seed):
        task_id = str(uuid.UUID(int=generator.getrandbits(128)))
        root_id = task_id if generator.random() < 0.7 else str(uuid.UUID(int=generator.getrandbits(128)))
        argument = generator.randrange(1_000_000)
        properties = Properties(
            content_type="application/json",
            content_encoding="utf-8",
            headers={
                "lang": "py",
                "task": generator.choice(_NAMES),
                "id": task_id,
                "shadow": None,
                "eta": None,
                "expires": None,
                "group": None,
                "group_index": None,
                "retries": 0,
                "timelimit": [None, None],
                "root_id": root_id,
                "parent_id": None if root_id == task_id else root_id,
                "argsrepr": f"({argument}, {argument / 8})",
                "kwargsrepr": "{'currency': 'EUR'}",
                "origin": f"gen{generator.randrange(40_000)}@worker",
                "ignore_result": False,
                "replaced_task_nesting": 0,
                "stamped_headers": None,
                "stamps": {},
            },
            delivery_mode=1 if generator.random() < transient else 2,
            priority=0,
            correlation_id=task_id,
            reply_to=reply_to,
        )
        body = b'[[%d], {"text": "%s"}, {}]' % (argument, generator.randbytes(size // 2).hex().encode())
        messages.append(TaskMessage(generator.randrange(ROUTING_KEYS), encode_properties(properties), body[:size]))
    return messages
