"""The command ``warren export``: the messages of a broker's queues, written out."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import Annotated

import attrs
import typer

from warren.commands.exporting import Output, opened_writer
from warren.commands.nodes import NodeOption, opened_nodes
from warren.commands.options import (
    EXIT_DAMAGE,
    LimitOption,
    MessageFormatOption,
    OnlyVhostOption,
    OutFileOption,
    QueueOption,
    SourcePath,
    TextOption,
    UsageError,
    WhereOption,
    distinct,
)
from warren.commands.output import FindingReporter, print_json
from warren.salvage.export import Exported, Selection, by_node, count_chosen, export_to
from warren.salvage.formats import Format
from warren.salvage.names import from_text, printable
from warren.salvage.progress_bars import counting_bar
from warren.salvage.source import Source


@attrs.frozen(kw_only=True)
class SelectionOptions:
    """Which messages to export."""

    vhost: OnlyVhostOption = None
    queue: QueueOption = None
    where: WhereOption = None
    limit: LimitOption = None
    include_acked: Annotated[
        bool, typer.Option("--include-acked", help='Also acked messages that are still there, marked "acked": true.')
    ] = False
    orphans: Annotated[
        bool, typer.Option("--orphans", help='Also stored messages that no queue needs, marked "orphan": true.')
    ] = False

    def selection(self) -> Selection:
        """Return the selection. Raises :class:`warren.where.WhereError`."""
        selection = Selection(
            vhost=self.vhost,
            queues=distinct(self.queue),
            include_acked=self.include_acked,
            orphans=self.orphans,
            where=self.where,
            limit=self.limit,
        )
        selection.condition()
        return selection


def export(
    path: SourcePath,
    *,
    node: NodeOption = None,
    options: SelectionOptions,
    out: OutFileOption = None,
    output_format: MessageFormatOption = None,
    with_text: TextOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --out: print the counts as JSON.")] = False,
) -> None:
    """Write out the messages that a restarted broker would deliver, queue by queue, in order.

    Exported are the messages that are ready, and those that were delivered but not acked; of classic queues persistent
    ones alone, of streams all. Expired messages are among them, with the time in expiry_us: a broker drops one when it
    reaches the head of its queue. Acked messages (--include-acked) are not.

    If PATH holds the directories of several nodes, --node says which to export. Lines of several nodes begin with the
    node's name; --format can only be jsonl then.

    Exit code 1: some could not be read, or something is damaged so that messages may be missing; stderr says what and
    why, and all the others are there. `warren import` and `warren shovel` publish what was written.
    """
    selection = options.selection()  # raises what is wrong with it before anything is opened
    queue_names = () if selection.orphans else tuple(map(from_text, selection.queues))
    findings = FindingReporter()
    with ExitStack() as opened:
        nodes = opened.enter_context(opened_nodes(path, node)).require_chosen()
        sources = {name: opened.enter_context(closing(place.queues(queue_names))) for name, place in nodes.items()}
        parts = by_node(path, sources, selection)
        output = opened.enter_context(
            opened_writer(
                out,
                path,
                output_format,
                with_text=with_text,
                include_acked=selection.include_acked,
                orphans=selection.orphans,
            )
        )
        exported = _write_nodes(sources, parts, output, findings)
    findings.rest()
    if output.out is not None and as_json:
        counts = {"messages": exported.messages, "bytes": exported.payload_bytes, "problems": exported.problems}
        print_json({"out": output.out, "format": str(output.format), **counts})
    elif output.out is not None:
        print(
            f"{exported.messages:,} messages, {exported.payload_bytes:,} bytes of payload, in {printable(output.out)}"
        )
    if exported.problems:
        raise typer.Exit(EXIT_DAMAGE)


def _write_nodes(
    sources: Mapping[str, Source], parts: Mapping[str, Selection], output: Output, findings: FindingReporter
) -> Exported:
    """Write what is selected of each node; ``parts``: the selections, each with the limit of all nodes together."""
    if len(sources) > 1 and output.format is not Format.JSONL:
        raise UsageError(f"--format {output.format}: holds one node's messages; choose it with --node NAME")
    exported = Exported()
    with counting_bar(
        "Exporting",
        lambda: sum(count_chosen(sources[name], part) for name, part in parts.items()),
        is_shown=output.may_show,
    ) as advance_to:
        for name, part in parts.items():
            writer = output.writer if len(sources) == 1 else output.of_node(name)
            remaining = None if part.limit is None else part.limit - exported.messages
            exported.add(export_to(sources[name], attrs.evolve(part, limit=remaining), writer, findings, advance_to))
    return exported
