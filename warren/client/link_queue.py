"""LinkQueue: a queue that another process hosts."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pamqp import commands as c

from warren.actors.engines.byte_budget import MESSAGE_BYTES
from warren.actors.engines.queue.consumers import Consumer as ConsumerDeclaration
from warren.actors.engines.queue.effects import Delivered
from warren.actors.node.node_errors import ClosedError
from warren.actors.queue.intake import PublishKey, QueueGoneError
from warren.actors.queue.queue_entry import QueueEntry
from warren.actors.runtime.future import Confirm, Future, UniqueConfirm
from warren.amqp.methods import method_of
from warren.amqp.own_methods import DUE, Call
from warren.client.appending import ConfirmedCall, ConfirmedCalls
from warren.client.calls import call, check_fits, packed
from warren.client.channels import DeliveryChannel, DeliverySlot
from warren.client.errors import LinkLostError
from warren.client.link_consumer import LinkConsumerVerbs, while_there
from warren.client.received import got_of
from warren.client.remote import Publishing, RemoteVhost
from warren.handles.channel import SettlingChannel
from warren.queue_index.message.amqp_tables import LongInteger
from warren.storage.errors import WarrenError
from warren.values.messages import columns_of
from warren.verbs.consumer_verbs import ConsumerVerbs
from warren.verbs.operation import DEFINITIONS, Operation
from warren.verbs.publishing import AsTheyWere
from warren.verbs.queue_host import Got
from warren.verbs.queue_keys import QueueKeys
from warren.verbs.selecting import Done, Target
from warren.verbs.steps import Steps
from warren.verbs.unique_publishing import UniqueMessages

if TYPE_CHECKING:
    from warren.client.link_tail import LinkTail
    from warren.values.scheduling import Schedule

T = TypeVar("T")

GETS_AT_ONCE: Final = 10_000
"""More messages than this are got in several calls; large messages in even more."""
_numbers: Final = itertools.count(1)


class _LinkIntake:
    """What a handle's publish tries first: joining the run that waits to be sent."""

    __slots__ = ("_vhost", "inbox", "weight")

    def __init__(self, vhost: RemoteVhost) -> None:
        self._vhost = vhost
        self.weight = 0
        self.inbox = self

    def join(self, key: PublishKey, body: bytes) -> Confirm | None:
        channel = self._vhost.publisher_now()
        return None if channel is None else channel.join(key, body)


class LinkQueue:
    """A queue whose host is another process; a :class:`~warren.verbs.queue_host.QueueHost`."""

    consumer_timeout_ms: Final = None

    def __init__(self, vhost: RemoteVhost, entry: QueueEntry, channel: SettlingChannel | None = None) -> None:
        """``channel``: in a forked child, that of the parent's gets: it says that its deliveries are the parent's."""
        self.vhost = self.host = vhost
        self.entry = entry
        self.name = entry.declaration.name
        self.keys = QueueKeys(entry.declaration, contents=False)
        self._channel = channel
        self._publish = method_of(c.Basic.Publish, routing_key=self.name, mandatory=True)
        self._get = method_of(c.Basic.Get, queue=self.name)
        self.intake = _LinkIntake(vhost)

    def perform(self, _: object, operation: Operation[T]) -> Steps[T]:
        return while_there(self.entry.declaration, self.vhost.perform(operation, self.name))

    def _deleted_error(self) -> WarrenError:
        return QueueGoneError(f"{self.entry.declaration} was deleted")

    # ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────

    def publishing(self, key: PublishKey, given: bytes, block: bool, timeout: float | None) -> Publishing:
        return Publishing(self.publish(key, [given], block, timeout))

    def publish(
        self,
        key: PublishKey,
        given: list[bytes],
        block: bool,
        timeout: float | None,
        *,
        is_delayed: bool = False,
    ) -> Steps[Confirm]:
        return self.vhost.publish(
            key, self._publish, given, self._deleted_error, block=block, timeout=timeout, is_delayed=is_delayed
        )

    def scheduled_properties(self, schedule: Schedule) -> dict[str, Any]:
        count, headers = len(schedule.due_ms), schedule.properties.get("headers")
        each = columns_of(schedule.properties, count).get("headers", [headers] * count)
        due = [{**(own or {}), DUE: LongInteger(due_ms)} for own, due_ms in zip(each, schedule.due_ms, strict=True)]
        return {**schedule.properties, "headers": due}

    def publish_later(
        self, key: PublishKey, given: list[bytes], schedule: Schedule, block: bool, timeout: float | None
    ) -> Steps[Confirm]:
        return self.publish(key, given, block, timeout, is_delayed=True)

    def publish_unique(
        self, messages: UniqueMessages, block: bool, timeout: float | None, *, passes_alarms: bool = False
    ) -> Steps[Confirm]:
        """Publish with calls, for their answer says which messages were duplicates.

        What is not answered is sent again over the next socket, as all that is confirmed; the keys see to it that
        nothing is stored twice. A message that a host had stored before it died is then called a duplicate.
        """
        bodies = messages.bodies
        for _ in self.keys.parts(bodies, messages.rest):  # raises what is wrong with the properties
            pass
        check_fits({"properties": messages.properties})
        arguments = {
            "name": self.name,
            "bodies": packed(bodies),
            "properties": dict(messages.properties),
            "several": messages.several,
        }
        size = sum(map(len, bodies)) + len(bodies) * MESSAGE_BYTES

        def give(calls: ConfirmedCalls) -> Confirm | Future:
            return calls.hand_over(
                lambda: ConfirmedCall(calls, "queue.publish_unique", arguments, UniqueConfirm(calls.link), size)
            )

        return self.vhost.hand_over(give, block=block, timeout=timeout)

    def publish_as_they_were(self, groups: Sequence[AsTheyWere]) -> Steps[list[str | None]]:
        plain_groups = [{**group._asdict(), "bodies": packed(group.bodies)} for group in groups]
        verb = "queue.publish_as_they_were"
        return while_there(self.entry.declaration, call(self.vhost, verb, name=self.name, groups=plain_groups))

    def room(self, timeout: float | None) -> Steps[None]:
        return self.vhost.room(timeout)

    # ── getting ─────────────────────────────────────────────────────────────────────────────────────────────────

    def get_early(self) -> None:
        """Return ``None``: messages are in the host."""

    def get_many(self, count: int) -> Steps[Got]:
        return while_there(self.entry.declaration, self._get_many(count))

    def _get_many(self, count: int) -> Steps[Got]:
        delivered: list[Delivered] = []
        left = count
        while left > 0:
            channel = yield from self._open_channel()
            asked = channel.slot.ask(
                self._get if left == 1 else Call("queue.get", {"name": self.name, "count": min(left, GETS_AT_ONCE)})
            )
            try:
                batches = got_of(channel, self.vhost.name, (yield asked))
            except LinkLostError:  # what came goes back with the connection
                delivered, left = [], count
                continue
            except BaseException:
                asked.on_done(channel.give_back)
                with contextlib.suppress(ClosedError):  # they have gone back
                    for batch in delivered:
                        channel.settle_all("requeue", batch.tags)
                raise
            delivered += batches
            left -= sum(batch.count for batch in batches)
            if not batches:
                break
        return (yield from self._open_channel()), delivered

    def take(self, id: str) -> Steps[Got]:
        return while_there(self.entry.declaration, self._take(id))

    def _take(self, id: str) -> Steps[Got]:
        while True:
            channel = yield from self._open_channel()
            asked = channel.slot.ask(Call("queue.take", {"name": self.name, "id": id}))
            try:
                return channel, [*got_of(channel, self.vhost.name, (yield asked))]
            except LinkLostError:  # what came goes back with the connection
                continue
            except BaseException:
                asked.on_done(channel.give_back)
                raise

    def _open_channel(self) -> Steps[DeliveryChannel]:
        """Return the channel of the gets, opening it if needed."""
        while True:
            channel = self._channel
            if not isinstance(channel, DeliveryChannel) or not channel.alive:
                slot = DeliverySlot(self.vhost.link, self.vhost.name, self.name)
                channel = self._channel = DeliveryChannel(slot, f"get-{next(_numbers)}")
            slot = channel.slot
            try:
                if slot.opened is None:
                    yield self.vhost.link.ready()
                yield slot.opened or slot.open()
            except LinkLostError as error:
                channel.error = error
                continue
            if channel.alive:
                return channel

    def channel_of_gets(self) -> Steps[SettlingChannel]:
        return self._channel or (yield from self._open_channel())

    def take_channel(self) -> SettlingChannel | None:
        channel, self._channel = self._channel, None
        return channel

    def consumer(self, declaration: ConsumerDeclaration, timeout: float | None) -> ConsumerVerbs:
        return LinkConsumerVerbs(self.vhost, self.entry.declaration, declaration, timeout)

    def tail(self) -> LinkTail:
        from warren.client.link_tail import LinkTail

        return LinkTail(self.vhost, self.name)

    # ── what the vhost does for it ──────────────────────────────────────────────────────────────────────────────

    def move(self, ids: list[str], to: Target) -> Steps[Done]:
        yield from self.vhost.flush()
        moved, why = yield from call(self.vhost, "queue.move", name=self.name, ids=ids, to=to)
        return moved, why

    def delayed(self, limit: int) -> Steps[list[tuple[int, bytes]]]:
        return self._flushed("vhost.delayed", limit=limit, queue=self.name)

    def cancel_delayed(self, message_id: str) -> Steps[int]:
        return self._flushed("vhost.cancel_delayed", message_id=message_id, queue=self.name)

    def purge_delayed(self) -> Steps[int]:
        return self._flushed("vhost.purge_delayed", queue=self.name)

    def _flushed(self, operation: str, **arguments: Any) -> Steps[Any]:
        """Perform an operation on the vhost, after flushing what was published here."""
        yield from self.vhost.flush()
        return (yield from self._of_vhost(operation, **arguments))

    def _of_vhost(self, operation: str, **arguments: Any) -> Steps[Any]:
        return self.vhost.perform(Operation(DEFINITIONS[operation], arguments), self.entry.declaration.vhost)

    def delete(self, *, if_empty: bool, if_unused: bool) -> Steps[int]:
        return self._of_vhost("vhost.delete_queue", name=self.name, if_empty=if_empty, if_unused=if_unused)
