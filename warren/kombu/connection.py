"""Connection: a share in a node, which drains the messages for all of its consumers.

*Draining* hands one message to the callback of its consumer. Consumers take turns; those whose channel has no room are
passed over. If no message is ready, the consumers set the event when one comes; the thread waits for it, or leaves the
waiting to an event loop, which watches the event's file.

In a process that was forked from the one that opened it, a connection is unusable, and closing it has no effect.

A URL and the transport options name the node (:class:`Address`). ``warren:///var/lib/app`` is an absolute path,
``warren://var/app`` a relative one, ``warren://`` leaves it to the option ``path``. A query may name the vhost:
``warren:///var/lib/app?vhost=orders``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote

import attrs
from amqp import exceptions as amqp

from warren.actors.engines.errors import RefusedError
from warren.actors.runtime.pooled_actor import ActorStoppedError, WrongProcessError
from warren.actors.runtime.wake_event import WakeEvent
from warren.config import Config
from warren.handles.node import Exchange, Node
from warren.handles.shared_node import NodeLease, borrow_node, is_open, lease_node
from warren.kombu.subscription import Receiver, Subscription
from warren.storage.errors import SettingsError, WarrenError
from warren.verbs.steps import Steps, run

_QUERY = frozenset({"vhost"})


@attrs.frozen(kw_only=True)
class Address:
    """Where a connection leads."""

    path: str | None
    """The directory; ``None``: a node was handed over."""
    vhost: str = "/"
    node: Node | None = None
    config: Config | str | os.PathLike[str] | None = None
    settings: Mapping[str, Any] = attrs.Factory(dict)
    confirm_publish: bool = False
    """A publish comes back only when its message is safe."""
    delay_eta: bool = False
    """A task of Celery's with an ETA comes when it is time, and waits on disk until then."""
    visibility_timeout: float | None = None
    """Seconds that a message may be unacked before it goes back to its queue; ``None``: as its queue says."""

    def lease(self) -> NodeLease:
        """The node; raises what :func:`warren.open` does."""
        if self.node is not None:
            return borrow_node(self.node)
        if self.path is None:
            raise RuntimeError("an address without path and node")
        return lease_node(self.path, self.config, self.settings)


def address_of(url: str | None, virtual_host: str | None, options: Mapping[str, Any]) -> Address:
    """Return the address in the arguments of a Kombu connection. Raises :class:`SettingsError` if it is invalid.

    ``url``: as it was given; where Kombu took it apart (a second URL, after the first one failed) ``None``, and the
    path is in ``virtual_host``.
    """
    node = options.get("node")
    if node is not None and not isinstance(node, Node):
        raise SettingsError(f"the option 'node' is a warren.Node, not {node!r}")
    vhost = "/"
    if url is not None and "://" in url:
        path, query = _split(url)
        vhost = query.get("vhost") or (virtual_host if virtual_host not in (None, "") else "/")
    else:
        path = "" if virtual_host in (None, "", "/") else "/" + str(virtual_host).lstrip("/")
    path = path or os.fspath(options.get("path") or "")
    if not path and node is None:
        raise SettingsError("a warren URL names a directory: warren:///path/to/it, or transport_options={'path': …}")
    return Address(
        path=None if node is not None else path,
        vhost=options.get("vhost") or vhost,
        node=node,
        config=options.get("config"),
        settings=dict(options.get("settings") or {}),
        confirm_publish=bool(options.get("confirm_publish", False)),
        delay_eta=bool(options.get("delay_eta", False)),
        visibility_timeout=options.get("visibility_timeout"),
    )


def _split(url: str) -> tuple[str, dict[str, str]]:
    location, _, query_text = url.partition("://")[2].partition("?")
    query = {name: values[-1] for name, values in parse_qs(query_text).items()}
    if unknown := query.keys() - _QUERY:
        raise SettingsError(f"a warren URL knows no {', '.join(sorted(unknown))}: {url}")
    return unquote(location), query


@contextmanager
def as_amqp(method: str) -> Iterator[None]:
    """Raise the refusals of the block as channel errors of ``method``; everything else goes through."""
    try:
        yield
    except RefusedError as error:
        kind = amqp.ERROR_MAP.get(error.reply_code, amqp.ChannelError)
        raise kind(str(error), None, method, error.reply_code) from error


T = TypeVar("T")


class Connection:
    """The result of :meth:`warren.kombu.transport.Transport.establish_connection` for Kombu."""

    def __init__(self, client: Any, address: Address) -> None:
        self.client = client
        """Kombu's own connection object."""
        self.address = address
        self.wake = WakeEvent()
        self._lease = address.lease()
        self.node = self._lease.node
        try:
            self.vhost = self.node.vhost(address.vhost)
        except BaseException:
            self._lease.release()
            raise
        self.connected = True
        self._channels: dict[int, Receiver] = {}
        self._channel_ids = itertools.count(1)
        self._exchanges: dict[str, Exchange] = {}
        self._consumers: deque[Subscription] = deque()
        self._loop: Any = None

    @property
    def is_foreign(self) -> bool:
        """Whether the node belongs to the process that this one was forked from."""
        return self.node.is_foreign

    @property
    def is_usable(self) -> bool:
        """Whether its node is open, and belongs to this process."""
        return self.connected and is_open(self.node)

    def check(self) -> None:
        """Raise an error if the connection cannot be used any more."""
        if self.is_foreign:
            raise WrongProcessError(f"{self.node.path} was opened by the process that this one was forked from")
        self.node._opened.check_process()

    # ── channels and what they share ────────────────────────────────────────────────────────────────────────────

    def add_channel(self, channel: Receiver) -> int:
        """Register a channel until it is closed; return its number."""
        self.check()
        number = next(self._channel_ids)
        self._channels[number] = channel
        return number

    def forget_channel(self, channel: Receiver) -> None:
        """Forget a closed channel."""
        self._channels.pop(channel.channel_id, None)

    def exchange(self, name: str, timeout: float | None) -> Exchange:
        """Return a handle on an exchange; raises :class:`~warren.errors.NotFoundError`.

        ``timeout``: seconds until this ends if another process hosts the node and is silent.
        """
        exchange = self._exchanges.get(name)
        if exchange is None:
            exchange = self._exchanges[name] = Exchange(self.run(self.vhost._verbs.exchange(name), timeout))
        return exchange

    def run(self, steps: Steps[T], timeout: float | None) -> T:
        """Run a verb; ``timeout``: as for :meth:`exchange`."""
        return run(self.vhost._verbs.host.host.within(timeout, steps))

    def add(self, subscription: Subscription) -> None:
        """Start to drain a consumer's messages."""
        self._consumers.append(subscription)
        self.wake.set()

    def remove(self, subscription: Subscription) -> None:
        """Stop draining a consumer's messages."""
        self._consumers = deque(consumer for consumer in self._consumers if consumer is not subscription)

    # ── draining ────────────────────────────────────────────────────────────────────────────────────────────────

    def drain_events(self, timeout: float | None = None) -> None:
        """Hand one message to its consumer; raise ``TimeoutError`` if none has come after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self.check()
            self.wake.clear()
            if self._deliver_one():
                return
            for subscription in self._consumers:
                if subscription.has_room:
                    subscription.arm()
            remaining_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self.wake.wait(remaining_s):
                raise TimeoutError("no message")

    def _deliver_one(self) -> bool:
        for _ in range(len(self._consumers)):
            subscription = self._consumers[0]
            self._consumers.rotate(-1)
            if not subscription.has_room:
                continue
            ended = subscription.ended  # before looking: what came before the end is taken first
            error: ActorStoppedError | None = None
            delivery = None
            try:
                delivery = subscription.take()
            except ActorStoppedError as stop_error:
                ended, error = True, stop_error
            if delivery is not None:
                subscription.channel.deliver(subscription, delivery)
                return True
            if ended:
                self.check()  # if the node is closed, the connection is lost
                self.remove(subscription)
                subscription.channel.cancelled(subscription, error)
                return True
        return False

    # ── an event loop ───────────────────────────────────────────────────────────────────────────────────────────

    def watch(self, loop: Any) -> None:
        """Let an event loop of Kombu drain the connection."""
        self._loop = loop
        loop.add_reader(self.wake.fileno(), self._on_readable)
        self.wake.set()

    def unwatch(self) -> None:
        """Undo :meth:`watch`."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.remove_reader(self.wake.fileno())

    def _on_readable(self) -> None:
        """Drain one message per round of the loop, so that timers and other readers have their turns."""
        if not self.connected:
            return
        with contextlib.suppress(TimeoutError):
            try:
                self.drain_events(timeout=0)
            except TimeoutError:
                raise  # no message is left; the next one sets the event
            except BaseException:
                self.wake.set()
                raise
            self.wake.set()  # not the loop's call_soon, which would be late: the loop sleeps before it calls

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Close the channels, delete the exclusive queues, and release the node."""
        if not self.connected:
            return
        self.connected = False
        for channel in list(self._channels.values()):
            channel.close()
        if self.is_foreign:
            return
        with contextlib.suppress(Exception):
            self.unwatch()
        with contextlib.suppress(WarrenError), as_amqp("Connection.close"):
            self.vhost.release()
        self.wake.close()
        self._lease.release()
