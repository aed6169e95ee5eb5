"""Read the messages in a dead broker's directory with the library; nothing there is changed.

    python examples/salvage.py PATH [QUEUE]

PATH is what ``warren inspect`` takes: a node's data directory, one vhost's or one queue's folder, or a .tar.gz of one.
"""

from __future__ import annotations

import sys

from warren.queue_index.message.message_format import decode_message
from warren.salvage.names import shown, to_text
from warren.salvage.queue_directory import Finding
from warren.salvage.source import open_source
from warren.storage.errors import WarrenError


def main(path: str, wanted: str | None = None) -> int:
    """Print every message, or those of the queue ``wanted``; returns how many could not be read."""
    unreadable = 0
    with open_source(path) as source:
        for vhost in source.vhosts:
            for queue in vhost.queues:
                if wanted not in (None, to_text(queue.name)):
                    continue
                for found in queue.messages():
                    if isinstance(found, Finding):  # it says which file, where, and what is wrong
                        unreadable += 1
                        print(found, file=sys.stderr)
                        continue
                    message = decode_message(found.encoded)
                    again = " redelivered" if found.redelivered else ""
                    print(f"{shown(queue.name)} {found.seq_id}: {len(message.body)} bytes{again}")
    return unreadable


if __name__ == "__main__":
    try:
        sys.exit(1 if main(*sys.argv[1:3]) else 0)
    except WarrenError as error:
        sys.exit(f"{error}")
