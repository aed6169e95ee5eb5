"""A shovel's run: opens the two places, moves queue by queue, and reports the outcome."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import attrs

from warren.commands.opening import definitions_at, opened_node
from warren.handles.node import Node
from warren.hosting.data_directory import Kind, kind_of
from warren.salvage.formats import Format
from warren.salvage.metadata.broker_definitions import definitions_in
from warren.salvage.names import from_text, to_text
from warren.salvage.queue_directory import Finding
from warren.salvage.source import STDIN, Place, is_stream, open_place
from warren.shovel.address import Address, is_broker
from warren.shovel.broker_destination import BrokerDestination
from warren.shovel.broker_source import BrokerSource
from warren.shovel.connection import Connection, Loop
from warren.shovel.copying import CopySource
from warren.shovel.errors import ShovelError
from warren.shovel.exported_files import format_of_file, open_export
from warren.shovel.file_source import Chosen, FileSource
from warren.shovel.node_destination import NodeDestination
from warren.shovel.places import Destination, Source, SourceQueue
from warren.shovel.progress import Progress, default_path
from warren.shovel.pump import Moved, Pump
from warren.shovel.writing import DirectoryDestination, MoveSource
from warren.storage.errors import StorageError
from warren.storage.filesystem import RealFileSystem

Connect = Callable[[str], Connection]
"""Opens a connection that lasts as long as the run."""


@attrs.frozen(kw_only=True)
class Orders:
    """The options of a run. Names are in their text form."""

    source: str
    destination: str
    source_name: str | None = None
    """The source's name, if it is not its path."""
    queues: Sequence[str] = ()
    vhost: str | None = None
    rename: Mapping[str, str] = attrs.field(factory=dict)
    move: bool = False
    limit: int | None = None
    as_published: bool = False
    stand_ins: bool = True
    definitions: bool = False
    """For a directory: restore its definitions first."""
    management: str | None = None
    """With ``definitions``: the URL of the destination's HTTP API."""
    window: int = 1000
    state: str | None = None
    format: Format | None = None
    """Format of a file; ``None``: by its name."""
    where: str | None = None
    """For a file: copy only messages for which this is true."""
    into: str | None = None
    """For a file: put all messages into this queue."""
    into_vhost: str | None = None
    """For a file: and into this vhost."""
    publish: bool = False
    """For a directory: publish through its node, wherever that runs."""
    node: Node | None = None
    """With ``publish``: the node, if it is open."""
    adopt: bool = False
    """With ``publish``: take over the directory of a stopped RabbitMQ."""

    @property
    def is_of_file(self) -> bool:
        """Whether the source is a file of exported messages."""
        if is_broker(self.source):
            return False
        if self.publish or self.format is not None:
            return True
        return format_of_file(self.source) is not None and not os.path.isdir(self.source)


@attrs.define
class Account:
    """The outcome so far."""

    source: str
    destination: str
    kind: str = "move"
    """``move``, or ``copy``: the source is not changed."""
    state: str | None = None
    """Path of a copy's progress."""
    problems: int = 0
    """Number of unreadable messages and other damage at the source."""
    definitions: Mapping[str, int] = attrs.field(factory=dict)
    """Numbers of restored definitions."""
    queues: list[Moved] = attrs.field(factory=list)

    @property
    def messages(self) -> int:
        return sum(moved.messages for moved in self.queues)


@attrs.frozen
class Watcher:
    """Callbacks for what happens."""

    begin: Callable[[Moved, int], None]
    """A queue begins, with about this many messages."""
    progress: Callable[[Moved], None]
    report: Callable[[Finding], None]
    notify: Callable[[str], None]


def shovel(orders: Orders, account: Account, watcher: Watcher) -> None:
    """Run the shovel and update ``account``. Raises :class:`warren.storage.errors.WarrenError` if it fails."""

    def report(finding: Finding) -> None:
        account.problems += finding.severity == "damage"
        watcher.report(finding)

    with ExitStack() as places:
        loop = Loop()

        def connect(url: str) -> Connection:
            return places.enter_context(Connection.open(Address.of(url), loop, watcher.notify))

        def restore(place: Place) -> None:
            if orders.definitions:
                account.definitions = _restore(orders, place, connect, watcher.notify, report)

        source = _open_source(orders, account, places, report, connect=connect, restore=restore)
        destination = _open_destination(orders, account, connect, places)
        queues = source.queues([from_text(name) for name in orders.queues])
        _check(orders, queues)
        remaining = sys.maxsize if orders.limit is None else orders.limit
        for queue in queues:
            if not remaining:
                break
            moved = Moved(to_text(queue.vhost), to_text(queue.name), _target(orders, to_text(queue.name)))
            moved.already = queue.already
            account.queues.append(moved)
            watcher.begin(moved, min(queue.count(), remaining))
            intake = destination.intake(queue.vhost, queue.name, from_text(moved.to))
            Pump(queue, intake, moved, orders.window, _now_us, watcher.progress).run(remaining)
            remaining -= moved.messages


def start(orders: Orders) -> Account:
    """An account with nothing in it; passwords are left out of names."""
    return Account(orders.source_name or _shown(orders.source), _shown(orders.destination))


def _shown(place: str) -> str:
    if is_broker(place):
        return str(Address.of(place))
    return place if is_stream(place) else os.path.realpath(place)


def _target(orders: Orders, name: str) -> str:
    return orders.rename.get(name, name)


def _check(orders: Orders, queues: list[SourceQueue]) -> None:
    """Raise :class:`ShovelError` if the orders do not fit the queues of the source."""
    names = {to_text(queue.name) for queue in queues}
    for old in orders.rename:
        if old not in names:
            raise ShovelError(f"--rename {old}=…: no such queue is shovelled")
    targets = [(queue.vhost, _target(orders, to_text(queue.name))) for queue in queues]
    if is_broker(orders.destination):
        if len(vhosts := sorted({to_text(vhost) for vhost, _ in targets})) > 1:
            raise ShovelError(f"queues of several vhosts, {', '.join(vhosts)}: choose one with --vhost")
        targets = [(b"", target) for _, target in targets]
    for target in targets:
        if targets.count(target) > 1:
            raise ShovelError(f"two queues would become {target[1]!r}")
    if is_broker(orders.source) and is_broker(orders.destination):
        source, destination = Address.of(orders.source), Address.of(orders.destination)
        if source.place == destination.place and any(_target(orders, name) == name for name in names):
            raise ShovelError("a queue would be shovelled into itself; use --rename")


def _open_source(
    orders: Orders,
    account: Account,
    places: ExitStack,
    report: Callable[[Finding], None],
    *,
    connect: Connect,
    restore: Callable[[Place], None],
) -> Source:
    """``restore`` is called with the place of a directory."""
    _check_options(orders)
    if is_broker(orders.source):
        return BrokerSource(connect(orders.source), orders.window, _now_us)
    if orders.move:
        if orders.definitions:
            with open_place(orders.source) as place:
                restore(place)
        names = [from_text(name) for name in orders.queues]
        return places.enter_context(MoveSource.open(orders.source, orders.vhost, names, report))
    if not is_stream(orders.source) and not os.path.exists(orders.source):
        raise StorageError(f"{orders.source}: no such file or directory")
    beside = None if is_broker(orders.destination) else account.destination
    path = orders.state or default_path(account.source, account.destination, beside=beside)
    if not orders.is_of_file and (orders.where or orders.into):
        raise ShovelError("--where and --into are for files of exported messages; export the directory first")
    account.kind, account.state = "copy", os.path.abspath(path)
    if _is_inside(account.state, os.path.realpath(orders.source)):
        raise ShovelError(f"{path}: is inside of {orders.source}, which must not change; use another --state")
    progress = Progress.open(RealFileSystem(), account.state, source=account.source, destination=account.destination)

    def rename(name: bytes) -> bytes:
        return from_text(_target(orders, to_text(name)))

    if orders.is_of_file:
        chosen = Chosen(
            where=orders.where,
            vhost=_name(orders.vhost),
            into=_name(orders.into),
            into_vhost=_name(orders.into_vhost),
            as_published=orders.as_published,
        )
        file = open_export(orders.source, orders.format)
        return FileSource(file, chosen, progress, rename, report)
    place = places.enter_context(open_place(orders.source))
    restore(place)
    return places.enter_context(CopySource.open(place, orders.vhost, progress, rename, report))


def _check_options(orders: Orders) -> None:
    """Raise :class:`ShovelError` if the source lacks what an option is about, or two options exclude each other."""
    if orders.definitions and (is_broker(orders.source) or orders.is_of_file):
        raise ShovelError(f"--definitions: {_shown(orders.source)} has none; a data directory or an archive of one has")
    if orders.definitions and orders.rename:
        raise ShovelError("--definitions restores queues under their own names; leave out --rename")
    if orders.management is not None and not (orders.definitions and is_broker(orders.destination)):
        raise ShovelError("--management is for --definitions into a broker")
    if is_broker(orders.source):
        if orders.vhost is not None:
            raise ShovelError("--vhost is for directories; a broker's vhost is part of its URL")
        if orders.state is not None:
            raise ShovelError("--state is for copies; a broker's messages are moved")
    elif orders.move:
        if orders.state is not None:
            raise ShovelError("--state is for copies, not for --move")
        if orders.is_of_file:
            raise ShovelError(f"{orders.source}: is a file, which can only be copied; leave out --move")
    elif orders.source == STDIN and orders.state is None and not orders.is_of_file:
        raise ShovelError("-: archives from stdin cannot be told apart; give --state FILE")


def _restore(
    orders: Orders,
    place: Place,
    connect: Connect,
    notify: Callable[[str], None],
    report: Callable[[Finding], None],
) -> Mapping[str, int]:
    """Restore the definitions of the source; return how many there are of each kind."""
    from warren.shovel import restoring

    if place.may_run and kind_of(place.directory) is Kind.NODES:
        document = definitions_at(place.directory, report)
    else:
        document = definitions_in(place, report, for_import=True)
    if not is_broker(orders.destination):
        return restoring.into_directory(orders.destination, document, orders.vhost, notify)
    if orders.management is None:
        return restoring.by_amqp(connect(orders.destination), document, orders.vhost)
    target = Address.of(orders.destination).login.vhost
    only = None if orders.vhost == target else orders.vhost
    return restoring.by_management(orders.management, document, only, target)


def _name(name: str | None) -> bytes | None:
    return None if name is None else from_text(name)


def _open_destination(orders: Orders, account: Account, connect: Connect, places: ExitStack) -> Destination:
    if is_broker(orders.destination):
        return BrokerDestination(
            connect(orders.destination), as_published=orders.as_published, stand_ins=orders.stand_ins
        )
    if not is_broker(orders.source) and _is_inside(account.destination, os.path.realpath(orders.source)):
        raise ShovelError(f"{orders.destination} is inside of {orders.source}, from which messages are moved")
    if orders.publish:
        node = orders.node
        if node is None:
            node = places.enter_context(opened_node(orders.destination, adopt=orders.adopt, make=True))
        return NodeDestination(node, as_published=orders.as_published)
    return places.enter_context(DirectoryDestination.open(orders.destination, declares=True))


def _is_inside(path: str, directory: str) -> bool:
    return os.path.commonpath([os.path.realpath(path), directory]) == directory


def _now_us() -> int:
    return time.time_ns() // 1000
