"""Messages with keys on their way to the host: calls, for their answer says which of them were duplicates.

What is not answered is sent again over the next socket, as all that is confirmed; the keys see to it that nothing is
stored twice. A message that a host had stored before it died is then called a duplicate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from warren.actors.engines.byte_budget import MESSAGE_BYTES
from warren.actors.runtime.future import Confirm, UniqueConfirm
from warren.client.appending import ConfirmedCall, ConfirmedCalls
from warren.client.calls import check_fits, packed
from warren.client.remote import RemoteVhost
from warren.verbs.steps import Steps


def publish_unique(
    remote: RemoteVhost,
    name: str,
    bodies: Sequence[bytes],
    properties: Mapping[str, Any],
    *,
    several: bool,
    block: bool,
    timeout: float | None,
) -> Steps[Confirm]:
    """Publish messages into a queue of the host's."""
    check_fits({"properties": properties})
    arguments = {"name": name, "bodies": packed(bodies), "properties": dict(properties), "several": several}
    size = sum(map(len, bodies)) + len(bodies) * MESSAGE_BYTES

    def give(calls: ConfirmedCalls) -> Any:
        return calls.hand_over(
            lambda: ConfirmedCall(calls, "queue.publish_unique", arguments, UniqueConfirm(calls.link), size)
        )

    return remote.hand_over(give, block=block, timeout=timeout)
