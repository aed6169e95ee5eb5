"""Runs a program of AMQP 0-9-1 against a server and writes down all that comes: a *transcript*.

After each step the driver goes round until nothing more comes: it asks every channel for an answer, and every queue for
its length, each on a channel of its own. What a channel was asked to do has reached the queues when it answers, and
what a queue has sent has reached the channels when it answers; what a queue sends to another takes one more round. So
a transcript says the same each time, but for what a server may choose. That is put in one form:

- names that the server makes are those of the steps that asked for them;
- of confirms it counts which messages they cover, not how many are in one frame;
- deliveries on one channel are listed consumer by consumer: queues send independently, so their order, and with it the
  delivery tags, is not compared;
- consumers that are cancelled with their queue are listed by their tags, and times of dead lettering are left out.
"""

from __future__ import annotations

import re
import select
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import attrs
from pamqp.base import Frame as Method

from tests.support.amqp_link import KINDS, Link, LinkChannel, Record
from tests.support.amqp_program import REPLY_TO, WAIT_MS, Program, Step, named
from tests.support.management_tools import Api
from warren.amqp.methods import method_of
from warren.queue_index.properties import Properties, encode_properties

PREFIX: Final = "warren-"
INCAPABLE: Final = 2
"""The connection whose client says nothing of what it can do."""
PROBE: Final = -1
"""The driver's own connection; those of other vhosts have the numbers below it."""
PATIENCE_S: Final = 5.0
"""For what has to come."""
DROPPED_S: Final = 0.1
"""How long a server may take to notice that a client has gone."""
VHOSTS: Final = ("/", f"{PREFIX}shop")
_WITH_OTHERS: Final = ("/permissions", "/topic-permissions")
"""What goes with its user."""
_PROBE_CHANNELS: Final = 1000
_RESERVED: Final = (
    (re.compile(r"amq\.gen-[\w-]{22}"), "amq.gen-*"),
    (re.compile(r"amq\.ctag-[\w-]{22}"), "amq.ctag-*"),
    (re.compile(rf"{re.escape(REPLY_TO)}\.[-\w+/=.]+"), f"{REPLY_TO}.*"),
)
_REPLY_ADDRESS: Final = re.compile(rf"{re.escape(REPLY_TO)}\.[-\w+/=.]+".encode())
_COUNTED_ADDRESS: Final = re.compile(b".(" + _REPLY_ADDRESS.pattern + b")", re.DOTALL)
_TIME: Final = re.compile(rb"(\x04timeT).{8}", re.DOTALL)

Transcript = list[Mapping[str, Any]]
"""For each step what came, by connection and channel, and what was seen of each queue."""


class _Name(NamedTuple):
    """A queue's or an exchange's."""

    vhost: str
    name: str

    def __str__(self) -> str:
        return self.name if self.vhost == "/" else f"{self.name} in {self.vhost}"


@attrs.define
class _Channel:
    """What a program has to know of a channel, besides what came."""

    unsettled: list[tuple[int, int]] = attrs.Factory(list)
    """Delivery tags, each with the step it came after, in the transcript's order."""
    in_transaction: list[tuple[int, int]] = attrs.Factory(list)
    """The settled ones that may come back."""


@attrs.frozen
class _Client:
    """The client of a connection."""

    user: str = "guest"
    password: str = "guest"
    vhost: str = "/"


class Driver:
    """Runs one program.

    ``api``: runs the operator's steps; a program without them needs no API.
    """

    def __init__(self, port: int, api: Api | None = None) -> None:
        self._port = port
        self._api = api
        self._administered: dict[str, None] = {}
        """What was put, by its path."""
        self._clients: dict[int, _Client] = defaultdict(_Client)
        self._links: dict[int, Link] = {PROBE: Link(port)}
        self._probes = {"/": PROBE}
        self._notes: dict[tuple[int, int], _Channel] = defaultdict(_Channel)
        self._number = 0
        self._status: int | None = None
        """What the operator was answered."""
        self._resolved: dict[str, str] = {}
        """What stands in braces, and what it is."""
        self._canonical: dict[str, str] = {}
        self._queues: dict[_Name, int] = {}
        """Queues that may be there, and a connection that may see them."""
        self._seen: dict[str, Any] = {}
        self._declared: dict[str, set[_Name]] = {"queue": set(), "exchange": set()}

    def run(self, program: Program) -> Transcript:
        """Run all steps; clean up the server afterwards."""
        try:
            return [self._told(step) for step in program]
        finally:
            self._forget_rules()
            self._clean_up()

    # ── a step ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _told(self, step: Step) -> Mapping[str, Any]:
        self._number = step.number
        self._do(step)
        late = self._settle()
        found: dict[str, Any] = {}
        for number, link in sorted(self._links.items()):
            if number <= PROBE:
                continue
            if link.came:
                found[f"{number}"], link.came = link.came, []
            for channel in link.channels.values():
                if channel.number < _PROBE_CHANNELS:
                    self._take(found, number, channel, step)
        if late:
            found["late"] = late
        if self._status is not None:
            found["status"], self._status = self._status, None
        found["queues"] = dict(sorted(self._seen.items()))
        return self._in_one_form(found)

    def _do(self, step: Step) -> None:
        arguments = self._with_names(dict(step.arguments))
        number, at = self._place(arguments)
        if step.verb == "administer":
            self._administer(**arguments)
            return
        if step.verb == "login":
            self._clients[number] = _Client(**arguments)
            return
        if step.verb == "wait":
            time.sleep(WAIT_MS / 1000)
            return
        link = self._links.get(number)
        if link is None or not link.is_open:
            client = self._clients[number]
            login = f"\0{client.user}\0{client.password}"
            link = Link(self._port, capable=number != INCAPABLE, login=login, vhost=client.vhost)
            self._links[number] = link
            for which in [which for which in self._notes if which[0] == number]:
                del self._notes[which]
        if not link.is_open:  # it was not let in
            return
        if step.verb == "drop":
            link.close()
            time.sleep(DROPPED_S)
            return
        if step.verb.startswith("connection."):
            link.ask_to_close()
            return
        if at not in link.channels or not link.channels[at].is_open:
            self._notes.pop((number, at), None)
        channel = link.open_channel(at)
        inner = arguments["steps"] if step.verb == "pipeline" else [{"verb": step.verb, **arguments}]
        data = [self._encoded(number, link, channel, dict(one)) for one in inner]
        link.write(b"".join(data))

    def _administer(self, method: str, path: str, body: Any = None) -> None:
        assert self._api is not None
        self._status = self._api.ask(method, path, body).status
        if method == "PUT" and not path.startswith(_WITH_OTHERS):
            self._administered.setdefault(path)

    def _forget_rules(self) -> None:
        for path in self._administered:
            assert self._api is not None
            self._api.ask("DELETE", path)

    def _place(self, arguments: dict[str, Any]) -> tuple[int, int]:
        """Where a step is sent. What settles goes where something is to be settled."""
        place = arguments.pop("connection"), arguments.pop("channel")
        if "delivery" in arguments and not self._notes[place].unsettled:
            return next((other for other, notes in sorted(self._notes.items()) if notes.unsettled), place)
        return place

    def _encoded(self, number: int, link: Link, channel: LinkChannel, arguments: dict[str, Any]) -> bytes:
        verb = arguments.pop("verb")
        arguments.pop("connection", None)
        arguments.pop("channel", None)
        content = None
        if verb == "basic.publish":
            properties, body = arguments.pop("properties"), arguments.pop("body").encode()
            content = encode_properties(Properties(**properties)), [body] * arguments.pop("count")
        if "delivery" in arguments:
            tag = self._tag(number, channel, arguments.pop("delivery"), arguments.get("multiple", False))
            if tag is None:
                return b""
            arguments["delivery_tag"] = tag
        method: Method = method_of(KINDS[verb], **arguments)
        if verb == "queue.declare" and not arguments.get("passive"):
            self._queue_declared(number, arguments["queue"])
        elif verb == "exchange.declare":
            self._declared["exchange"].add(_Name(self._clients[number].vhost, arguments["exchange"]))
        return link.encoded(channel, method, content)

    def _queue_declared(self, number: int, queue: str) -> None:
        name = _Name(self._clients[number].vhost, queue)
        self._declared["queue"].add(name)
        self._queues.setdefault(name, number)

    def _tag(self, number: int, channel: LinkChannel, index: int, multiple: bool) -> int | None:
        """The delivery tag to settle, which is noted as settled. Up to and with several: all of a step at once."""
        notes = self._notes[number, channel.number]
        if not notes.unsettled:
            return None
        chosen = notes.unsettled[min(index, len(notes.unsettled) - 1)]
        settled = [chosen]
        if multiple:
            last = max(tag for tag, step in notes.unsettled if step == chosen[1])
            settled = [one for one in notes.unsettled if one[0] <= last]
            chosen = last, chosen[1]
        notes.unsettled = [one for one in notes.unsettled if one not in settled]
        notes.in_transaction += settled
        return chosen[0]

    def _with_names(self, value: Any) -> Any:
        def put(value: Any) -> Any:
            match value:
                case str():
                    for symbol, name in self._resolved.items():
                        value = value.replace(symbol, name)
                    return value
                case dict():
                    return {name: put(one) for name, one in value.items()}
                case list():
                    return [put(one) for one in value]
                case _:
                    return value

        return put(named(value, PREFIX))

    # ── until nothing more comes ────────────────────────────────────────────────────────────────────────────────

    def _settle(self) -> str:
        """Go round until two rounds brought nothing new; gives what did not come in time."""
        deadline_s = time.monotonic() + PATIENCE_S
        quiet = 0
        while quiet < 2:
            before = self._size(), dict(self._seen)
            lost = self._round()
            waiting = lost or self._unconfirmed()
            same = before == (self._size(), self._seen)
            quiet = quiet + 1 if same and not waiting else 0
            if time.monotonic() > deadline_s:
                return f"waited in vain for {waiting or 'silence'}"
            if same and waiting:
                time.sleep(0.002)
        return ""

    def _size(self) -> int:
        """How much has come."""
        program = [link for number, link in self._links.items() if number > PROBE]
        return sum(
            len(link.came) + sum(len(one.came) for at, one in link.channels.items() if at < _PROBE_CHANNELS)
            for link in program
        )

    def _unconfirmed(self) -> str:
        for number, link in self._links.items():
            for channel in link.channels.values():
                if link.is_open and channel.is_open and channel.unconfirmed:
                    return f"confirms of {sorted(channel.unconfirmed)} on {number}.{channel.number}"
        return ""

    def _round(self) -> str:
        """Ask every channel, then every queue. Name the queues that could not be asked."""
        for number, link in self._links.items():
            if link.is_open and not link.is_closing and number > PROBE:
                for channel in list(link.channels.values()):
                    if channel.is_open and channel.number < _PROBE_CHANNELS and not channel.is_closing:
                        link.probe(channel)
        self._wait(lambda channel: bool(channel.flows) or channel.is_closing)
        asked = {name: self._ask(name, at) for at, name in enumerate(self._queues)}
        self._wait(lambda channel: channel.number >= _PROBE_CHANNELS and not channel.came)
        hidden = [str(name) for name, (number, channel) in asked.items() if self._answered(name, number, channel)]
        return f"{hidden} to be gone" if hidden else ""

    def _probe(self, vhost: str) -> int:
        """The number of the vhost's own connection."""
        number = self._probes.setdefault(vhost, PROBE - len(self._probes))
        if number not in self._links:
            self._links[number] = Link(self._port, vhost=vhost)
        return number

    def _ask(self, queue: _Name, at: int) -> tuple[int, LinkChannel]:
        number = self._queues[queue]
        link = self._links.get(number)
        if link is None or not link.is_open or link.is_closing:
            number = self._probe(queue.vhost)
            link = self._links[number]
        channel = link.open_channel(_PROBE_CHANNELS + at)
        channel.came.clear()
        declare = method_of(KINDS["queue.declare"], queue=queue.name, passive=True)
        link.write(link.encoded(channel, declare, None))
        return number, channel

    def _answered(self, queue: _Name, number: int, channel: LinkChannel) -> bool:
        """Record what a queue's answer shows. Return whether its connection is gone or may not use it."""
        if not channel.came:  # the connection is gone
            return True
        [(name, found)] = channel.came[:1]
        if name == "queue.declare_ok":
            self._seen[str(queue)] = found["message_count"], found["consumer_count"]
            self._queues[queue] = number
            return False
        if found["reply_code"] == 404:
            self._seen.pop(str(queue), None)
            self._queues.pop(queue, None)
            return False
        self._seen[str(queue)] = found["reply_text"]
        if found["reply_code"] != 405:
            return False
        probe = self._probe(queue.vhost)
        links = [
            one
            for one, link in sorted(self._links.items())
            if link.is_open and (one == probe or (one > PROBE and self._clients[one].vhost == queue.vhost))
        ]
        self._queues[queue] = links[(links.index(number) + 1) % len(links)] if number in links else probe
        return True

    def _wait(self, missing: Any) -> None:
        """Read until ``missing`` holds for no open channel, and no connection is half closed."""
        deadline_s = time.monotonic() + PATIENCE_S

        def waits(link: Link) -> bool:
            return link.is_open and (
                link.is_closing or any(one.is_open and missing(one) for one in link.channels.values())
            )

        while waiting := [link for link in self._links.values() if waits(link)]:
            ready, _, _ = select.select([link.socket for link in waiting], [], [], 0.5)
            for link in waiting:
                if link.socket in ready:
                    link.read()
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"no answer after step {self._number}")

    # ── in one form ─────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, found: dict[str, Any], number: int, channel: LinkChannel, step: Step) -> None:
        """Record what came on a channel, in a form that is the same each time."""
        if not channel.came:
            return
        came, channel.came = channel.came, []
        where = f"{number}.{channel.number}"
        answers: list[Record] = []
        given: dict[str, list[Record]] = defaultdict(list)
        to_settle: dict[str, list[int]] = defaultdict(list)
        tags: list[int] = []
        confirmed: list[tuple[str, int]] = []
        for name, arguments in came:
            if name in ("basic.ack", "basic.nack"):
                confirmed.append((name, arguments["delivery_tag"]))
                continue
            told = dict(arguments)
            consumer = told.pop("consumer_tag", "") if name == "basic.deliver" else ""
            if name == "basic.get_empty":
                channel.gets.popleft()
            tag = told.pop("delivery_tag", None)
            if tag is not None:
                tags.append(tag)
                if not (channel.gets.popleft() if name == "basic.get_ok" else consumer in channel.needs_no_ack):
                    to_settle[self._symbolic(consumer)].append(tag)
            if name == "basic.deliver":
                given[self._symbolic(consumer)].append((name, told))
            else:
                answers.append((name, told))
            self._note(number, channel, step, name, arguments)
        cancelled = [one for one in answers if one[0] == "basic.cancel"]
        others = [one for one in answers if one[0] != "basic.cancel"]
        found[where] = others + sorted(cancelled, key=lambda one: self._symbolic(one[1]["consumer_tag"]))
        for consumer, deliveries in sorted(given.items()):
            found[f"{where} to {consumer}"] = deliveries
        if tags:
            notes = self._notes[number, channel.number]
            notes.unsettled += [(tag, step.number) for _, some in sorted(to_settle.items()) for tag in some]
            found[f"{where} delivery tags"] = sorted(tags)
        if confirmed:
            found[f"{where} confirms"] = sorted(confirmed, key=lambda one: one[1])

    def _note(self, number: int, channel: LinkChannel, step: Step, name: str, arguments: Mapping[str, Any]) -> None:
        """What follows for the next steps."""
        notes = self._notes[number, channel.number]
        match name:
            case "queue.declare_ok" if step.verb == "queue.declare" and not step.arguments["queue"]:
                self._name("queue", step, arguments["queue"])
                if not step.arguments.get("passive"):
                    self._queue_declared(number, arguments["queue"])
            case "basic.consume_ok" if not step.arguments.get("consumer_tag", "-"):
                self._name("tag", step, arguments["consumer_tag"])
                if step.arguments["no_ack"]:
                    channel.needs_no_ack.add(arguments["consumer_tag"])
            case "tx.commit_ok" | "tx.select_ok":
                notes.in_transaction.clear()
            case "tx.rollback_ok":
                notes.unsettled = sorted({*notes.unsettled, *notes.in_transaction})
                notes.in_transaction.clear()
            case "basic.recover_ok" | "channel.close" | "channel.close_ok":
                notes.unsettled.clear()
        if found := _REPLY_ADDRESS.search(arguments.get("properties", b"")):
            self._resolved["{reply}"] = found[0].decode()

    def _name(self, what: str, step: Step, name: str) -> None:
        symbol = f"{{{what} {step.number}}}"
        self._resolved[symbol] = name
        self._canonical.setdefault(name, symbol)

    def _symbolic(self, text: str) -> str:
        for name, symbol in self._canonical.items():
            text = text.replace(name, symbol)
        text = text.replace(PREFIX, "@")
        for pattern, symbol in _RESERVED:
            text = pattern.sub(symbol, text)
        return text

    def _in_one_form(self, value: Any) -> Any:
        match value:
            case str():
                return self._symbolic(value)
            case bytes():
                value = _COUNTED_ADDRESS.sub(rb"\1", _TIME.sub(rb"\1" + bytes(8), value))
                text = self._symbolic(value.decode("latin-1"))
                return text if len(text) < 500 else f"{text[:30]} … {len(text)}"
            case dict():
                return {self._in_one_form(name): self._in_one_form(one) for name, one in value.items()}
            case list() | tuple():
                return [self._in_one_form(one) for one in value]
            case _:
                return value

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _clean_up(self) -> None:
        for number, link in self._links.items():
            if number > PROBE and link.is_open:
                if not link.is_closing:
                    link.ask_to_close()
                link.socket.settimeout(PATIENCE_S)
                while link.is_open:
                    link.read()
        for verb, names in self._declared.items():
            for name in sorted(names):
                plain = name.name.replace("\n", "")
                if not plain or name.vhost not in VHOSTS:
                    continue
                probe = self._links[self._probe(name.vhost)]
                channel = probe.open_channel(1)
                channel.came.clear()
                delete = method_of(KINDS[f"{verb}.delete"], **{verb: plain})
                probe.write(probe.encoded(channel, delete, None))
                while not channel.came and probe.is_open:
                    probe.read()
        for number in self._probes.values():
            self._links[number].close()
