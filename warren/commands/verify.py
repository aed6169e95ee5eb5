"""The command ``warren verify``: what in a broker's directory is damaged, and what is only left over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import chain

import typer

from warren.commands.nodes import NodeOption, opened_nodes
from warren.commands.options import EXIT_DAMAGE, AnyPath, JsonOption, SetOption, parse_settings
from warren.commands.output import opened, print_text, report_error
from warren.salvage.names import to_json
from warren.salvage.queue_directory import Finding
from warren.salvage.rocketmq.inference import infer
from warren.salvage.rocketmq.store_inspection import KIND
from warren.salvage.rocketmq.verify_store import verify_store
from warren.salvage.source import MIXED_KIND, Place, Source
from warren.salvage.verify import Account, to_report, verify_source


def verify(path: AnyPath, *, node: NodeOption = None, setting: SetOption = None, as_json: JsonOption = False) -> None:
    """Report damage in a broker's directory, and harmless leftovers.

    Exit code 0: no damage, 1: damage, 2: nothing that can be read, or several nodes and no --node.
    """
    account = Account()
    changes = parse_settings(setting)
    with opened_nodes(path, node) as nodes:
        contents = [(place, *place.both()) for place in nodes.require_chosen().values()]
        findings = chain.from_iterable(_findings(*content, changes) for content in contents)
        if as_json:
            with opened(None, path) as write:
                kinds = {KIND if source is None else source.kind for _, source, _ in contents}
                write(b'{"kind": %b, "findings": [' % to_json(kinds.pop() if len(kinds) == 1 else MIXED_KIND))
                for finding in findings:
                    write((b", " if account.total else b"") + to_json(to_report(finding)))
                    account.count(finding)
                write(b'], "damage": %d, "leftover": %d}\n' % (account.damage, account.leftovers))
        else:
            for finding in findings:
                account.add(finding)
            print_text(account.printable())
    if account.damage:
        raise typer.Exit(EXIT_DAMAGE)


def _findings(place: Place, source: Source | None, store: str | None, changes: dict[str, str]) -> Iterator[Finding]:
    """The findings of a broker's queues, of its topics, or of both."""
    topics: Iterator[Finding] = iter(())
    if store is not None:
        settings, _, guesses = infer(place.files, store, changes)
        for guess in guesses:
            report_error(guess)
        topics = verify_store(place.files, store, settings)
    findings = topics if source is None else chain(_queue_findings(source), topics)
    if (own := place.own_files()) is not None:
        from warren.salvage.verify_own_files import verify_own_files

        findings = chain(findings, verify_own_files(place.files, own))
    return findings


def _queue_findings(source: Source) -> Iterator[Finding]:
    with closing(source):
        yield from verify_source(source)
