"""The commands ``warren browse``, ``take``, ``move``, ``remove`` and ``requeue``: looking at a queue's messages, and
mending.

``browse`` shows the *id* of a message, which names it. ``move``, ``remove`` and ``requeue`` walk through the queue page
by page (:mod:`warren.verbs.selecting`), and report how far they came if they are interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, Final

import attrs
import typer

from warren.commands.message_lines import FormatOption, chosen_format, queue_lines
from warren.commands.message_output import opened_output
from warren.commands.opening import VhostOptions
from warren.commands.options import (
    JsonLinesOption,
    JsonOption,
    LimitOption,
    NodePath,
    QueueArgument,
    UsageError,
    WhereOption,
    YesOption,
    distinct,
)
from warren.commands.output import print_json, report_error
from warren.handles.queue import Queue
from warren.salvage.names import printable
from warren.salvage.progress_bars import counting_bar
from warren.verbs.mending_verbs import MendingVerbs
from warren.verbs.selecting import Walk, target_of
from warren.verbs.steps import run

_BROWSED: Final = r"%i\t%k\t%s\n"


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def browse(
    path: NodePath,
    queue: QueueArgument,
    *,
    where: WhereOption = None,
    limit: LimitOption = None,
    format: FormatOption = None,
    options: VhostOptions,
    as_json: JsonLinesOption = False,
) -> None:
    """Write the messages of a queue to stdout, each with its id, key and body on a line, without consuming them.

    Those that consumers have are shown, too.
    """
    line_format = chosen_format(format, as_json=as_json)
    lines = queue_lines(_BROWSED if format is None and not as_json else line_format, options.vhost, queue)
    with options.opened_queue(path, queue) as handle, opened_output(lines) as output:
        output.write_all(handle.browse(limit, where))


def take(
    path: NodePath,
    queue: QueueArgument,
    ids: Annotated[list[str], typer.Argument(metavar="ID…", help="Message ids, as browse shows them.")],
    *,
    format: FormatOption = None,
    options: VhostOptions,
    as_json: JsonLinesOption = False,
) -> None:
    """Write messages of a queue to stdout, chosen by id, and remove them, from anywhere in the queue.

    Exit code 1 if one is missing, or a consumer has it.
    """
    lines = queue_lines(chosen_format(format, as_json=as_json), options.vhost, queue)
    with options.opened_queue(path, queue) as handle, opened_output(lines) as output:
        for browse_id in distinct(ids):
            if output.stop:
                break
            delivery = handle.take(browse_id)
            if delivery is None:
                output.is_incomplete = True
                report_error(f"no message {browse_id} in {queue}, or a consumer has it")
            elif output.write([delivery]).taken:
                delivery.ack()
            else:
                delivery.nack()
        handle.sync()


# ── mending ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True)
class ChoiceOptions:
    """Which messages of a queue to change, and whether only to count them."""

    where: WhereOption = None
    id: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="ID", help="A message's id, as browse shows it. Can be repeated."),
    ] = None
    limit: LimitOption = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the number of messages.")] = False

    def carry_out(
        self, handle: Queue, action: str, begin: Callable[..., Walk], count: Callable[..., Walk], *, as_json: bool
    ) -> None:
        """Walk through the queue, changing the chosen messages or only counting them, and say what was done."""
        walk = (count if self.dry_run else begin)(self.where, self.id or None, self.limit)
        _walk(handle, walk, action)
        if not self.dry_run:
            run(walk.sync())
        _say(action, walk, dry_run=self.dry_run, as_json=as_json)


def move(
    path: NodePath,
    queue: QueueArgument,
    to: Annotated[str | None, typer.Argument(metavar="TO", help="The target queue.", show_default=False)] = None,
    *,
    exchange: Annotated[str | None, typer.Option(help="The target exchange, instead of a queue.")] = None,
    routing_key: Annotated[str, typer.Option("--routing-key", help="With --exchange: the routing key.")] = "",
    choice: ChoiceOptions,
    options: VhostOptions,
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
    with options.opened_queue(path, queue) as handle:
        verbs = MendingVerbs(handle._verbs)
        run(handle._verbs.host.move([], target))  # raises what is wrong with it, for a dry run too
        choice.carry_out(handle, "moved", partial(verbs.moving, target), verbs.counting, as_json=as_json)


def remove(
    path: NodePath,
    queue: QueueArgument,
    *,
    choice: ChoiceOptions,
    yes: YesOption = False,
    options: VhostOptions,
    as_json: JsonOption = False,
) -> None:
    """Delete messages from anywhere in a queue, permanently. Messages that consumers have stay."""
    if choice.where is None and not choice.id:
        raise UsageError("which messages: --where or --id; purge deletes all")
    if not (yes or choice.dry_run or sys.stdin.isatty()):
        raise UsageError("this deletes messages permanently: confirm with --yes, or look with --dry-run")
    with options.opened_queue(path, queue) as handle:
        verbs = MendingVerbs(handle._verbs)
        if not (yes or choice.dry_run):
            matching = verbs.counting(choice.where, choice.id or None, choice.limit)
            _walk(handle, matching, "found")
            typer.confirm(f"Delete {_messages(matching.done)} of {printable(queue)}?", abort=True, err=True)
        choice.carry_out(handle, "deleted", verbs.removing, verbs.counting, as_json=as_json)


def requeue(
    path: NodePath, queue: QueueArgument, *, choice: ChoiceOptions, options: VhostOptions, as_json: JsonOption = False
) -> None:
    """Move the dead letters of a queue back to the queues that they died in, as they were there.

    Messages whose queue is gone go through the exchange that they came by; if that leads nowhere, they stay.
    """
    with options.opened_queue(path, queue) as handle:
        verbs = MendingVerbs(handle._verbs)
        choice.carry_out(handle, "requeued", verbs.requeueing, verbs.counting_dead, as_json=as_json)


def _walk(handle: Queue, walk: Walk, action: str) -> None:
    """Walk to the end; after an interrupt, report how far it came."""
    with counting_bar(printable(handle.name), lambda: handle.stats()["messages_ready"]) as advance_to:
        try:
            while run(walk.step()):
                advance_to(walk.looked)
        except KeyboardInterrupt:
            report_error(f"interrupted; {_messages(walk.done)} {action} before that")
            raise


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
