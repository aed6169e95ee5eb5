"""The commands ``warren browse``, ``take``, ``move``, ``remove`` and ``requeue``: looking at a queue's messages, and
mending.

``browse`` shows the *id* of a message, which names it. ``move``, ``remove`` and ``requeue`` walk through the queue page
by page (:mod:`warren.verbs.selecting`), and report how far they came if they are interrupted.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer

from warren.commands.message_lines import FormatOption, chosen_format, queue_lines
from warren.commands.message_output import MANY, MessageOutput, Stop
from warren.commands.opening import opened_node, vhost_of
from warren.commands.options import (
    AdoptOption,
    JsonOption,
    LimitOption,
    NodePath,
    UsageError,
    VhostOption,
    WhereOption,
    distinct,
)
from warren.commands.output import print_json, report_error
from warren.handles.queue import Queue
from warren.salvage.names import printable
from warren.salvage.rocketmq.progress import counting_bar
from warren.verbs.selecting import Walk, target_of
from warren.verbs.steps import run

QueueName = Annotated[str, typer.Argument(metavar="QUEUE")]
IdOption = Annotated[
    list[str] | None, typer.Option("--id", metavar="ID", help="A message's id, as browse shows it. Can be repeated.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only print the number of messages.")]
_BROWSED: Final = r"%i\t%k\t%s\n"


def browse(
    path: NodePath,
    queue: QueueName,
    *,
    where: WhereOption = None,
    limit: LimitOption = None,
    format: FormatOption = None,
    vhost: VhostOption = "/",
    adopt: AdoptOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Write the messages of a queue to stdout, each with its id, key and body on a line, without consuming them.

    Those that consumers have are shown, too.
    """
    line_format = chosen_format(format, as_json=as_json)
    lines = queue_lines(_BROWSED if format is None and not as_json else line_format, vhost, queue)
    with opened_node(path, adopt=adopt) as node, Stop(watches=False) as stop:
        output = MessageOutput(lines, stop)
        batch: list[Any] = []
        for message in vhost_of(node, vhost).queue(queue, passive=True).browse(limit, where):
            batch.append(message)
            if len(batch) == MANY and not _written(output, batch):
                break
        _written(output, batch)
        stop.end(has_unreadable=output.has_unreadable)


def _written(output: MessageOutput, batch: list[Any]) -> bool:
    """Whether the reader may want more."""
    if output.stop:
        return False
    goes_on = output.write(batch).goes_on
    batch.clear()
    return goes_on


def take(
    path: NodePath,
    queue: QueueName,
    ids: Annotated[list[str], typer.Argument(metavar="ID…", help="Message ids, as browse shows them.")],
    *,
    format: FormatOption = None,
    vhost: VhostOption = "/",
    adopt: AdoptOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Write messages of a queue to stdout, chosen by id, and remove them, from anywhere in the queue.

    Exit code 1 if one is missing, or a consumer has it.
    """
    lines = queue_lines(chosen_format(format, as_json=as_json), vhost, queue)
    missing = False
    with opened_node(path, adopt=adopt) as node, Stop(watches=False) as stop:
        handle = vhost_of(node, vhost).queue(queue, passive=True)
        output = MessageOutput(lines, stop)
        for browse_id in distinct(ids):
            if stop:
                break
            delivery = handle.take(browse_id)
            if delivery is None:
                missing = True
                report_error(f"no message {browse_id} in {queue}, or a consumer has it")
                continue
            if output.write([delivery]).taken:
                delivery.ack()
            else:
                delivery.nack()
        handle.sync()
        stop.end(has_unreadable=output.has_unreadable or missing)


def move(
    path: NodePath,
    queue: QueueName,
    to: Annotated[str | None, typer.Argument(metavar="TO", help="The target queue.", show_default=False)] = None,
    *,
    exchange: Annotated[str | None, typer.Option(help="The target exchange, instead of a queue.")] = None,
    routing_key: Annotated[str, typer.Option("--routing-key", help="With --exchange: the routing key.")] = "",
    where: WhereOption = None,
    id: IdOption = None,
    limit: LimitOption = None,
    dry_run: DryRunOption = False,
    vhost: VhostOption = "/",
    adopt: AdoptOption = False,
    as_json: JsonOption = False,
) -> None:
    """Move messages from anywhere in a queue to another queue or an exchange, in order.

    Each stays until it is safe at its destination: a crash leaves it in both. Messages that consumers have stay.
    """
    if (to is None) == (exchange is None):
        raise UsageError("where to: a queue, or --exchange")
    if routing_key and exchange is None:
        raise UsageError("--routing-key needs --exchange")
    target = target_of(to if exchange is None else (exchange, routing_key))
    with opened_node(path, adopt=adopt) as node:
        handle = vhost_of(node, vhost).queue(queue, passive=True)
        run(handle._verbs.move_ids([], target))  # raises what is wrong with it, for a dry run too
        verbs, ids = handle._verbs, id or None
        walk = verbs.counting(where, ids, limit) if dry_run else verbs.moving(target, where, ids, limit)
        _walked(handle, walk, "moved", dry_run=dry_run)
    _say("moved", walk, dry_run=dry_run, as_json=as_json)


def remove(
    path: NodePath,
    queue: QueueName,
    *,
    where: WhereOption = None,
    id: IdOption = None,
    limit: LimitOption = None,
    dry_run: DryRunOption = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    vhost: VhostOption = "/",
    adopt: AdoptOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete messages from anywhere in a queue, permanently. Messages that consumers have stay."""
    if where is None and not id:
        raise UsageError("which messages: --where or --id; purge deletes all")
    if not (yes or dry_run or sys.stdin.isatty()):
        raise UsageError("this deletes messages permanently: confirm with --yes, or look with --dry-run")
    with opened_node(path, adopt=adopt) as node:
        handle = vhost_of(node, vhost).queue(queue, passive=True)
        if not (yes or dry_run):
            matching = handle._verbs.counting(where, id or None, limit)
            _walked(handle, matching, "found", dry_run=True)
            typer.confirm(f"Delete {_messages(matching.done)} of {printable(queue)}?", abort=True, err=True)
        verbs = handle._verbs
        walk = (verbs.counting if dry_run else verbs.removing)(where, id or None, limit)
        _walked(handle, walk, "deleted", dry_run=dry_run)
    _say("deleted", walk, dry_run=dry_run, as_json=as_json)


def requeue(
    path: NodePath,
    queue: QueueName,
    *,
    where: WhereOption = None,
    id: IdOption = None,
    limit: LimitOption = None,
    dry_run: DryRunOption = False,
    vhost: VhostOption = "/",
    adopt: AdoptOption = False,
    as_json: JsonOption = False,
) -> None:
    """Move the dead letters of a queue back to the queues that they died in, as they were there.

    Messages whose queue is gone go through the exchange that they came by; if that leads nowhere, they stay.
    """
    with opened_node(path, adopt=adopt) as node:
        handle = vhost_of(node, vhost).queue(queue, passive=True)
        verbs = handle._verbs
        walk = (verbs.counting_dead if dry_run else verbs.requeueing)(where, id or None, limit)
        _walked(handle, walk, "requeued", dry_run=dry_run)
    _say("requeued", walk, dry_run=dry_run, as_json=as_json)


def _walked(handle: Queue, walk: Walk, action: str, *, dry_run: bool) -> None:
    """Walk to the end, and wait until what was done is safe; after an interrupt, report how far it came."""
    with counting_bar(printable(handle.name), lambda: handle.stats()["messages_ready"]) as advance_to:
        try:
            while run(walk.step()):
                advance_to(walk.looked)
        except KeyboardInterrupt:
            report_error(f"interrupted; {_messages(walk.done)} {action} before that")
            raise
    if not dry_run:
        run(walk.sync())


def _say(action: str, walk: Walk, *, dry_run: bool, as_json: bool) -> None:
    stayed = 0 if dry_run else walk.chosen - walk.done
    if as_json:
        print_json({f"would_be_{action}": walk.done} if dry_run else {action: walk.done, "stayed": stayed})
        return
    print(
        f"{_messages(walk.done)} {'would be ' if dry_run else ''}{action}" + (f"; {stayed:,} stayed" if stayed else "")
    )


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"
