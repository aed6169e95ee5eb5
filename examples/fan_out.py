"""One message to many queues: by naming them, and by subject through a topic exchange.

python examples/fan_out.py [DIRECTORY]
"""

from __future__ import annotations

import sys
import tempfile

import warren


def main(directory: str) -> None:
    """Do it all in ``directory``, which is created if it is missing."""
    with warren.open(directory) as node:
        mail, audit = node.queue("mail"), node.queue("audit")
        node.publish_to(["mail", "audit"], b"welcome").wait()  # one body, a position in each
        print("named:", len(mail), len(audit))

        events = node.exchange("events", "topic")
        node.bind(mail, events, "order.paid")
        node.bind(audit, events, "#")
        for subject in ("order.new", "order.paid", "user.login"):
            events.publish(subject.encode(), routing_key=subject)
        try:
            node.exchange("amq.direct").publish(b"?", routing_key="nobody", mandatory=True).wait()
        except warren.errors.UnroutableError as error:
            print("returned:", error)

        for queue in (mail, audit):
            queue.sync()
            bodies = [message.body.decode() for message in queue.get_many(10, auto_ack=True)]
            print(f"{queue.name}:", ", ".join(bodies))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
