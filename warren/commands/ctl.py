"""The command ``warren ctl``: rabbitmqctl's verbs, on a node that runs in another process, or on a directory."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Annotated, Any

import attrs
import typer

from warren.commands.opening import looking_at
from warren.commands.options import JsonOption, NodePath, UsageError
from warren.commands.output import print_json, report_error
from warren.ctl.listing import plain, shown
from warren.ctl.verb import DEFAULT_VHOST, Verb
from warren.ctl.verbs import EX_DATAERR, EX_UNAVAILABLE, EX_USAGE, VERBS
from warren.salvage.names import printable
from warren.storage.errors import WarrenError, did_you_mean
from warren.top.attached import Attached, NotAttachedError, attached

_PATIENCE_S = 60.0
"""The longest wait for a node in another process that is not stopped: an import may take long."""

_AWAIT_INTERVAL_S = 0.1


@attrs.frozen(kw_only=True)
class VerbOptions:
    """Options that apply to some verbs."""

    user: Annotated[str | None, typer.Option(help="list_user_limits: whose; default: guest.")] = None
    of_all: Annotated[bool, typer.Option("--global", help="list_user_limits, list_vhost_limits: all.")] = False
    priority: Annotated[int | None, typer.Option(help="set_policy, set_operator_policy; default: 0.")] = None
    apply_to: Annotated[str | None, typer.Option(help="set_policy: queues, exchanges or all.")] = None
    description: Annotated[str | None, typer.Option(help="add_vhost.")] = None
    tags: Annotated[str | None, typer.Option(help="add_vhost: separated by commas.")] = None
    default_queue_type: Annotated[str | None, typer.Option(help="add_vhost: stored, without effect.")] = None
    if_empty: Annotated[bool, typer.Option("--if-empty", help="delete_queue.")] = False
    if_unused: Annotated[bool, typer.Option("--if-unused", help="delete_queue.")] = False
    timeout: Annotated[
        float | None, typer.Option(min=0, help="await_startup: seconds; default: 300.", metavar="SECONDS")
    ] = None
    limit: Annotated[int | None, typer.Option(min=0, help="close_all_connections: at most N; 0: all.")] = None

    def given(self) -> dict[str, Any]:
        """The options by their names; ``None``: not given."""
        return {
            "global" if name == "of_all" else name: None if value is False else value
            for name, value in attrs.asdict(self).items()
        }


def ctl(
    path: NodePath,
    verb: Annotated[str, typer.Argument(metavar="VERB", help="A verb, such as list_queues; ctl.md lists them all.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGUMENT …]", show_default=False)] = None,
    *,
    vhost: Annotated[str | None, typer.Option("--vhost", "-p", help="The vhost; default: /.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress messages.")] = False,
    no_table_headers: Annotated[
        bool, typer.Option("--no-table-headers", help="Print no line with column names.")
    ] = False,
    options: VerbOptions,
    as_json: JsonOption = False,
) -> None:
    """Do what rabbitmqctl does: users, permissions, vhosts, policies, lists, connections, definitions, status.

    A node that runs on the directory in another process is asked; otherwise the directory is opened for the moment.
    Exits with rabbitmqctl's codes: 64 for wrong usage, 65 for wrong data, 67 for a user that does not exist, 69 for
    what cannot be done, 70 for a user that exists already.
    """
    with _exits():
        _do(
            path,
            verb,
            arguments or [],
            {"vhost": vhost, **options.given()},
            quiet=quiet,
            as_json=as_json,
            headers=not no_table_headers,
        )


@contextlib.contextmanager
def _exits() -> Iterator[None]:
    """Report what is wrong, and exit as rabbitmqctl does."""
    try:
        yield
    except WarrenError as error:
        report_error(error)
        if isinstance(error, _RefusedError):
            raise typer.Exit(error.exit_code) from error
        raise typer.Exit(EX_USAGE if isinstance(error, UsageError) else EX_UNAVAILABLE) from error


class _RefusedError(WarrenError):
    """A verb that was not done, and the exit code for it."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def _do(
    path: str, name: str, words: list[str], options: dict[str, Any], *, quiet: bool, as_json: bool, headers: bool
) -> None:
    verb = VERBS.get(name)
    if verb is None:
        raise UsageError(f"no verb {name!r}{did_you_mean(name, VERBS)}")
    arguments = _arguments(name, verb, words, options)
    if (sentence := _sentence(verb, arguments)) and not (quiet or as_json or arguments.get("file") == "-"):
        print(printable(sentence), flush=True)
    with _with_file(name, arguments) as sent, _node(path, verb, arguments) as node:
        reply = node.ask(want="ctl", patience_s=_PATIENCE_S, verb=name, arguments=sent)
    if "refused" in reply:
        raise _RefusedError(reply["refused"], reply["exit_code"])
    if "warning" in reply:
        report_error(reply["warning"])
    _show(verb, arguments, reply["answer"], headers=headers, as_json=as_json)


@contextlib.contextmanager
def _node(path: str, verb: Verb, arguments: dict[str, Any]) -> Iterator[Attached]:
    """The node that a verb is for."""
    deadline_s = time.monotonic() + arguments["timeout"] if verb.awaits_node else 0.0
    with contextlib.ExitStack() as opened:
        while verb.awaits_node:
            try:
                node = opened.enter_context(attached(path))
                break
            except NotAttachedError:
                if time.monotonic() >= deadline_s:
                    raise
            time.sleep(_AWAIT_INTERVAL_S)
        else:
            node = opened.enter_context(looking_at(path))
        yield node


# ── values given ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _arguments(name: str, verb: Verb, words: list[str], options: dict[str, Any]) -> dict[str, Any]:
    """By name, options that mean something to the verb included. Raises :class:`UsageError`."""
    usage = f"usage: warren ctl PATH {name} {verb.usage}".rstrip()
    arguments = _positional(verb, words, usage)
    for option, value in options.items():
        if option in verb.options:
            default = verb.defaults.get(option, DEFAULT_VHOST if option == "vhost" else None)
            arguments[option] = default if value is None else value
        elif value is not None:
            raise UsageError(f"--{option.replace('_', '-')} does not apply to {name}; {usage}")
    if "columns" in arguments:
        arguments["columns"] = arguments["columns"] or list(verb.columns)
        if unknown := [column for column in arguments["columns"] if column not in verb.all_columns]:
            raise UsageError(f"columns of {name} are {', '.join(verb.all_columns)}; not {', '.join(unknown)}")
    if arguments.get("password", "") is None:
        arguments["password"] = sys.stdin.readline().removesuffix("\n")
    return arguments


def _positional(verb: Verb, words: list[str], usage: str) -> dict[str, Any]:
    waiting = list(words)
    arguments: dict[str, Any] = {}
    for mark, parameter in zip(verb.takes, verb.names, strict=True):
        if mark.endswith("*"):
            arguments[parameter], waiting = waiting, []
        elif waiting:
            arguments[parameter] = waiting.pop(0)
        elif mark.endswith("?"):
            arguments[parameter] = None
        else:
            raise UsageError(f"not enough arguments; {usage}")
    if waiting:
        raise UsageError(f"too many arguments; {usage}")
    return arguments | {name: _parsed(arguments[name]) for name in verb.json_names}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _RefusedError(f"not JSON: {text:.100}: {error}", EX_UNAVAILABLE) from error


def _sentence(verb: Verb, arguments: dict[str, Any]) -> str:
    if not isinstance(verb.says, str):
        return verb.says(arguments)
    words = dict(arguments)
    for name, value in arguments.items():
        if name in verb.json_names:
            words[name] = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        elif isinstance(value, list):
            words[name] = ", ".join(value)
    return verb.says.format_map(words)


@contextlib.contextmanager
def _with_file(name: str, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments as the node gets them: a file by its whole path, stdin as a file."""
    if name != "import_definitions":
        yield arguments
    elif arguments["file"] != "-":
        yield arguments | {"file": os.path.abspath(arguments["file"])}
    else:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            file.write(sys.stdin.buffer.read())
            file.flush()
            yield arguments | {"file": file.name}


# ── what was answered ────────────────────────────────────────────────────────────────────────────────────────────────


def _show(verb: Verb, arguments: dict[str, Any], answer: Any, *, headers: bool, as_json: bool) -> None:
    if "file" in arguments and verb is VERBS["export_definitions"]:
        _write(arguments["file"], answer)
    elif verb.shown == "rows" and isinstance(answer, list):
        columns = tuple(arguments.get("columns") or verb.columns)
        rows = [{name: row.get(name) for name in columns} for row in answer]
        if as_json:
            print_json([{name: "" if value is None else value for name, value in row.items()} for row in rows])
        else:
            _print_table(columns, rows, headers=headers)
    elif as_json:
        print_json({"result": "ok"} if answer is None else answer)
    elif verb.shown == "json":
        _print_tree(answer)
    elif verb.text is not None:
        print(printable(verb.text(answer)))


def _print_table(columns: tuple[str, ...], rows: list[dict[str, Any]], *, headers: bool) -> None:
    if rows and headers:
        print("\t".join(columns))
    for row in rows:
        print("\t".join(shown(name, value) for name, value in row.items()))


def _print_tree(document: dict[str, Any], indent: str = "") -> None:
    for name, value in document.items():
        if isinstance(value, dict) and value:
            print(f"{indent}{printable(name)}:")
            _print_tree(value, indent + "  ")
        elif isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
            print(f"{indent}{printable(name)}:")
            for entry in value:
                print(
                    f"{indent}  "
                    + ", ".join(f"{printable(key)} {printable(plain(field))}" for key, field in entry.items())
                )
        else:
            print(f"{indent}{printable(name)}: {printable(plain(value))}")


def _write(file: str, document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=2) + "\n"
    if file == "-":
        sys.stdout.write(text)
        return
    try:
        with open(file, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as opened:
            opened.write(text)
    except OSError as error:
        raise _RefusedError(f"{file}: {error.strerror or error}", EX_DATAERR) from error
