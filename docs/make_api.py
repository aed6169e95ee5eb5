"""Make ``docs/api.md`` from the docstrings: ``python docs/make_api.py``. tests/test_docs.py holds that it was run."""

from __future__ import annotations

import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import warren
from warren.actors.runtime.future import Confirm
from warren.engine import open_vhost
from warren.testing import QueueMessages, SeenMessage, TestNode
from warren.values.messages import PublishArguments

PAGE: Final = Path(__file__).with_name("api.md")

HEAD: Final = """# All names

Every public name of `warren`, with what it takes, does and raises; `docs/make_api.py` makes this page from the
docstrings.

A wrong argument raises `InvalidValueError`, which is also a `TypeError` and a `ValueError`, before the call does
anything; `MessageError`, `SettingsError`, `ArgumentsError` and `WhereError` are of that kind. Only where a call is made
for each message (`Queue.get`, `Delivery.ack`, `Topic.find`), a missing or unknown argument is Python's own `TypeError`.
Seconds are `float`s, 0 to 315,360,000 (ten years), and `None` waits without end; sizes are bytes, names are `str`,
bodies are `bytes`. Every verb also raises `ClosedError` and `WrongProcessError` where the node cannot be used, those of
a queue `QueueDownError`, and those of a topic `TopicsDownError`.

PROPERTIES

The handles of [`warren.aio`](asyncio.md) have the same verbs, as coroutines. Elsewhere: `warren.kombu`
([Celery and Kombu](celery.md)), `warren.durable_queue` ([durable queue](coming-from.md#queuequeue)), `warren.metrics`,
`warren.opentelemetry` and `warren.logs` ([monitoring](monitoring.md)), `warren.sql` ([SQL](sql.md)). `warren.testing`
([testing](testing.md)) stands at the end.
"""

ERRORS: Final = """
## Errors

All stand in `warren.errors`. `WarrenError`, and the four that have others below them, stand at the top, too. What to do
about each: [runtime](runtime.md#errors-and-what-to-do).

"""

FIRST: Final = ("Config", "Node", "Vhost", "Queue", "Exchange", "Consumer", "Delivery", "Confirm", "Topic", "Reader")
"""The order of the page; the others come behind."""
_ROLE: Final = re.compile(r":\w+:`~?([^`<]+)`")
_LITERAL: Final = re.compile(r"``([^`]+)``")


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole of it."""
    names = ", ".join(f"`{name}`" for name in PublishArguments.__annotations__)
    properties = textwrap.fill(f"`**properties` of a publish are {names}.", 120)
    parts = [
        HEAD.replace("PROPERTIES", properties),
        "\n## Opening\n",
        entry("open", warren.open),
        entry("warren.engine.open_vhost", open_vhost),
    ]
    parts.append("\n## Files\n\n[Export and import](export-import.md).\n")
    parts += [entry(one.__name__, one) for one in (warren.export_messages, warren.import_messages)]
    described: dict[Any, str] = {}
    for owner in (*classes(), TestNode, QueueMessages, SeenMessage):
        name = owner.__name__ if owner in classes() else f"warren.testing.{owner.__name__}"
        parts.append(f"\n## {name}\n\n{markdown(inspect.getdoc(owner))}\n")
        parts += entries(owner, described)
    parts.append(ERRORS)
    parts += [error_row(name, getattr(warren.errors, name)) for name in warren.errors.__all__]
    return "".join(parts)


def classes() -> list[type]:
    """Every class of the top that is no error, in the page's order."""
    found = [getattr(warren, name) for name in warren.__all__]
    kept = [one for one in found if inspect.isclass(one) and not issubclass(one, Exception)]
    return sorted(kept, key=lambda one: FIRST.index(one.__name__) if one.__name__ in FIRST else len(FIRST))


def public_names(owner: type) -> Iterator[tuple[str, Any]]:
    """What a class has itself or from a class with no section of its own; a confirm: what is not a pykka's future's."""
    seen: set[str] = set()
    elsewhere = {base for documented in owner.__mro__[1:] if documented in classes() for base in documented.__mro__}
    for base in owner.__mro__:
        if base.__module__.partition(".")[0] != "warren" or base in elsewhere:
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in seen or (owner is Confirm and name not in CONFIRM):
                continue
            seen.add(name)
            function = member.__func__ if isinstance(member, classmethod) else member
            if (getattr(function, "__doc__", None) and callable(function)) or isinstance(function, property):
                yield name, function


CONFIRM: Final = ("wait", "done", "error", "on_done")


def entries(owner: type, described: dict[Any, str]) -> Iterator[str]:
    """All names of a class; in one line those that need no explanation, or have it with another class."""
    names = [*public_names(owner)]
    lines: dict[str, list[str]] = {}
    for name, member in names:
        if member in described:
            lines.setdefault(f"As for `{described[member]}`: ", []).append(name)
        elif isinstance(member, property) and not inspect.getdoc(member):
            lines.setdefault("", []).append(name)
        else:
            yield entry(name, member)
        described.setdefault(member, owner.__name__)
    for beginning, plain in lines.items():
        yield f"\n{beginning}**{', '.join(f'`{name}`' for name in plain)}**\n"


def entry(name: str, member: Any) -> str:
    """One name: a line with its arguments, and what its docstring says."""
    said = markdown(inspect.getdoc(member) or "")
    shown = name if isinstance(member, property) else f"{name}{signature_of(member)}"
    return f"\n**`{shown}`**\n" + (f"\n{textwrap.indent(said, '')}\n" if said else "")


def signature_of(function: Callable[..., object]) -> str:
    """Without types. What ``**name`` stands for is named one by one."""
    parameters: list[inspect.Parameter] = []
    for one in inspect.signature(function).parameters.values():
        if one.name in {"self", "cls"}:
            continue
        if one.kind is one.VAR_KEYWORD and (names := _keywords(function, one.name)):
            own = [name for name in names if not OF_A_MESSAGE.issubset(names) or name not in OF_A_MESSAGE]
            parameters += [inspect.Parameter(name, one.KEYWORD_ONLY, default=_Any()) for name in own]
            parameters += [one.replace(name="properties", annotation=one.empty)] * (own != names)
        else:
            parameters.append(one.replace(annotation=one.empty))
    return str(inspect.Signature(sorted(parameters, key=lambda one: one.kind)))


class _Any:
    def __repr__(self) -> str:
        return "…"


def _keywords(function: Callable[..., object], name: str) -> list[str]:
    hint = typing.get_type_hints(inspect.unwrap(function), include_extras=True)[name]
    found = [*typing.get_args(hint)[0].__annotations__]
    return found if len(found) <= MANY_SETTINGS else []


OF_A_MESSAGE: Final = {*PublishArguments.__annotations__}
"""What a publish says of its message; the head of the page names them once."""
MANY_SETTINGS: Final = 20
"""The settings of ``open`` have a page of their own."""


def error_row(name: str, error: type) -> str:
    code = getattr(error, "reply_code", None)
    base = f"`{error.__mro__[1].__name__}`{'' if code is None else f', {code}'}"
    said = markdown(inspect.getdoc(error) or "").partition("\n\n")[0].replace("\n", " ")
    return f"- `{name}` ({base}): {said}\n"


def markdown(text: str | None) -> str:
    """A docstring as Markdown."""
    plain = _ROLE.sub(lambda found: f"`{found[1].rpartition('.')[2] if '~' in found[0] else found[1]}`", text or "")
    return _LITERAL.sub(r"`\1`", plain)


if __name__ == "__main__":
    main()
