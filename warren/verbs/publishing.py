"""Publishing: how messages get from a handle to queues.

It looks for the queues' intakes, waits until they have room, and gives each of them the messages; several queues get
them under the same ids, so that a large body is stored once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from warren.actors.node.admission import Admission
from warren.actors.node.node_context import BlockedError
from warren.actors.queue.intake import PublishKey, PublishRefusedError
from warren.actors.queue.queue_intake import QueueIntake
from warren.actors.runtime.future import Confirm, CountDown, Future
from warren.hosting.running_node import RunningNode
from warren.queue_index.message.message_format import Envelope
from warren.queue_index.properties import decode_properties
from warren.storage.errors import MessageError, WarrenError
from warren.values.messages import check_routing_keys
from warren.verbs.steps import Steps

if TYPE_CHECKING:
    from warren.actors.delays.vhost_delays import Appointment
    from warren.actors.topics.streams import Stream

PATIENCE_S: Final = 60.0
"""A store that accepts nothing for this time, for want of memory or disk, is an error for commands."""

Receiver: TypeAlias = "QueueIntake | Stream | Appointment"
"""What takes messages."""


class AsTheyWere(NamedTuple):
    """Messages that are published again as they were; only their bodies differ."""

    exchange: bytes
    routing_keys: tuple[bytes, ...]
    """The messages' own first, then those of CC and BCC."""
    properties: bytes
    """AMQP's properties, encoded; they stay as they are."""
    bodies: list[bytes]

    def key(self, vhost: str) -> PublishKey:
        """Return the publish key. Raises :class:`MessageError` if the properties cannot be read."""
        check_routing_keys(self.routing_keys)
        properties = decode_properties(self.properties)
        expiration = properties.expiration
        is_time = isinstance(expiration, str) and expiration.isascii() and expiration.isdigit()
        encoded_vhost = vhost.encode("utf-8", "surrogateescape")
        return PublishKey(
            Envelope(encoded_vhost, self.exchange, self.routing_keys, self.properties, True),
            int(expiration) if is_time and expiration else None,
            properties.priority or 0,
        )


def publishing(
    node: RunningNode,
    find: Callable[[], Sequence[Receiver]],
    key: PublishKey,
    bodies: list[bytes],
    *,
    block: bool = True,
    timeout: float | None = None,
    ahead: bool = False,
    passes_alarms: bool | None = None,
) -> Admission:
    """Give messages to the queues of ``find``. The answer is their confirm, or ``None`` if there is no queue."""

    def size_of(receivers: Sequence[Receiver]) -> int:
        return len(receivers) * key.size_bytes(bodies)  # each encodes them for itself

    def give(receivers: Sequence[Receiver], reserved_bytes: int, here: bool) -> Confirm | None:
        if len(receivers) == 1:
            return _give_one(receivers[0], key, bodies, reserved_bytes, here=here)
        return _give_all(node, receivers, key, bodies, reserved_bytes, here=here) if receivers else None

    return Admission(find, size_of, give, block, timeout, ahead, passes_alarms)


def remember(node: RunningNode, key: PublishKey, given: Sequence[bytes]) -> None:
    """Add published messages to the recent histories of the exchanges that they reach."""
    if not key.envelope.exchange:
        return
    routing = node.vhost(key.envelope.vhost.decode("utf-8", "surrogateescape")).definitions.routing
    if routing.histories:
        routing.remember(key.envelope, key.expiration_ms, key.priority, given)


def _give_one(receiver: Receiver, key: PublishKey, bodies: list[bytes], reserved_bytes: int, *, here: bool) -> Confirm:
    if len(bodies) == 1:
        return receiver.publish(key, bodies[0], reserved_bytes, here=here)
    return receiver.publish_many(key, bodies, reserved_bytes, here=here)


def _give_all(
    node: RunningNode,
    receivers: Sequence[Receiver],
    key: PublishKey,
    bodies: list[bytes],
    reserved_bytes: int,
    *,
    here: bool,
) -> Confirm:
    """Give all of them the messages before the first processes any: a dead letter must come later."""
    msg_ids = node.new_msg_ids(len(bodies))
    parts: list[Future] = []
    each_bytes = reserved_bytes // len(receivers)
    try:
        for receiver in receivers:
            reserved_bytes -= each_bytes
            parts.append(receiver.publish_many(key, bodies, each_bytes, msg_ids=msg_ids, here=False))
    except BaseException:
        node.gate.leave(reserved_bytes, unused_bytes=reserved_bytes)
        raise
    if here:
        for receiver in receivers:
            if isinstance(receiver, QueueIntake) and receiver.deliveries:
                receiver.wake_consumer()
    return CountDown(parts)


def room(find: Callable[[], Sequence[Any]], timeout: float | None) -> Admission:
    """Wait until all queues (or logs of topics) have room. Raises :class:`BlockedError` after ``timeout`` seconds."""

    def give_back(intakes: Sequence[Any], reserved_bytes: int, _: bool) -> None:
        for intake in intakes[:1]:
            intake.gate.leave(reserved_bytes, unused_bytes=reserved_bytes)

    return Admission(find, lambda _: 1, give_back, timeout=timeout)


def publish_groups(
    groups: Sequence[AsTheyWere], publish: Callable[[AsTheyWere], Steps[Confirm | WarrenError]]
) -> Steps[list[str | None]]:
    """Publish groups with ``publish``, which returns a confirm or the error; wait until they are safe. Return for each
    why it was refused, or ``None``. After one that had no room, no other is tried: each would wait as long."""
    confirms: list[Confirm | WarrenError] = []
    for group in groups:
        try:
            confirms.append((yield from publish(group)))
        except (MessageError, PublishRefusedError) as error:
            confirms.append(error)
        except BlockedError as error:
            confirms += [error] * (len(groups) - len(confirms))
            break
    outcomes: list[str | None] = []
    for confirm in confirms:
        if isinstance(confirm, WarrenError):
            outcomes.append(str(confirm))
            continue
        try:
            yield confirm
            outcomes.append(None)
        except WarrenError as error:
            outcomes.append(str(error))
    return outcomes


def settled_confirm(error: BaseException | None = None) -> Confirm:
    """Return a confirm for messages without a queue."""
    confirm = Confirm()
    if error is None:
        confirm.set()
    else:
        confirm.fail(error)
    return confirm
