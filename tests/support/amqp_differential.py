"""Random AMQP programs run on two servers, and what comes compared frame by frame, reply codes and texts included.

    python -m tests.support.amqp_differential [--seeds 0:1000] [--shorten] [--both-real]

starts a RabbitMQ and a warren, runs the programs of the seeds on both and prints those that differ, with ``--shorten``
as short as they get. ``--both-real`` runs them on RabbitMQ twice: what differs there is not a fault of warren's.

In some programs messages and queues expire. In some, connections are several users' in several vhosts, and an
operator interferes: beside the steps of :mod:`tests.support.amqp_program` these have ``login`` (the user and the
vhost of a connection) and ``administer`` (a request to the management API: users, permissions, policies, limits).

A difference is one that shows whenever it is tried: a real broker does what it does in processes of its own, and some
of what a program sees depends on their order.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import attrs

from tests.support import amqp_driver
from tests.support.amqp_driver import Driver, Transcript
from tests.support.amqp_program import FAR_MS, Arguments, Author, Program, Step, TimedAuthor, shortened
from tests.support.broker import Broker
from tests.support.management_tools import Api
from tests.support.server_tools import served
from warren.management import ManagementSettings
from warren.server import ServerSettings

VHOSTS: Final = ("/", "@shop")
"""Those that are there."""
PASSWORD: Final = "secret"
USERS: Final = ("@alice", "@bob")
TAGS: Final = ("", "", "administrator", "monitoring", "impersonator", "management,policymaker")
PERMISSIONS: Final = (
    ".*",
    ".*",
    ".*",
    "",
    "^@",
    "^@[qx][01]$",
    "^@q|^amq[.]",
    "^amq[.]default$|^@x",
    "0$",
    "^(?!@q1)",
    "^(@q0|@x0|amq[.]gen-.*)$",
)
TOPIC_PERMISSIONS: Final = (".*", "^a", "", "b$", "^{username}", "^[^.]*$", "c|d")
LIMITS: Final = {"vhost": ("max-queues", "max-connections"), "user": ("max-channels", "max-connections")}


class AdministeringAuthor(Author):
    """Writes one program."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = self.rng
        self.users: dict[int, str] = {}
        """By connection; the others are guest's."""
        self.vhosts = {number: "@shop" for number in range(self.connections) if rng.random() < 0.2}
        for number in range(self.connections):
            if rng.random() < 0.6:
                self.users[number] = rng.choice(USERS)
        self.prioritizes = self.lazy = False

    def write_first(self) -> None:
        rng = self.rng
        for user in dict.fromkeys(self.users.values()):
            self._administer("PUT", f"/users/{user}", {"password": PASSWORD, "tags": rng.choice(TAGS)})
            for vhost in VHOSTS:
                if rng.random() < 0.97:
                    self._permit(user, vhost)
        for number in range(self.connections):
            password = PASSWORD if rng.random() < 0.98 else "wrong"
            user, vhost = self.users.get(number, "guest"), self.vhosts.get(number, "/")
            if rng.random() < 0.02:
                vhost = "@nowhere"
            self._add("login", connection=number, user=user, password=password, vhost=vhost)
        for _ in range(rng.choice((0, 0, 1, 2))):
            self._set_policy()
        if self.users and rng.random() < 0.4:
            self._permit_topics()

    def _writers(self) -> Mapping[Callable[[], None], float]:
        more: dict[Callable[[], None], float] = {
            self._set_policy: 2.5,
            self._drop_policy: 1,
            self._permit_anew: 0.7,
            self._limit: 0.8,
        }
        return {**super()._writers(), **more}

    def _administer(self, method: str, path: str, body: Any = None) -> None:
        self._add("administer", method=method, path=path, body=body)

    def _message(self, number: int) -> Arguments:
        message = super()._message(number)
        if self.users and self.rng.random() < 0.08:
            message["properties"] = {**message["properties"], "user_id": self.rng.choice((*USERS, "guest"))}
        return message

    def _pipeline(self) -> None:
        """Not where a user may be refused something, which closes the channel."""
        if not self.users:
            super()._pipeline()

    # ── users ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _permit(self, user: str, vhost: str) -> None:
        rights = {right: self.rng.choice(PERMISSIONS) for right in ("configure", "write", "read")}
        self._administer("PUT", f"/permissions/{_in_path(vhost)}/{user}", rights)

    def _permit_topics(self) -> None:
        rng = self.rng
        user = rng.choice(tuple(self.users.values()))
        exchange = rng.choice((*self.exchanges, "amq.topic", ""))
        rights = {"exchange": exchange} | {right: rng.choice(TOPIC_PERMISSIONS) for right in ("write", "read")}
        self._administer("PUT", f"/topic-permissions/%2F/{user}", rights)

    def _permit_anew(self) -> None:
        """While none of the user's connections is open: RabbitMQ's channels remember what they have looked up."""
        if not self.users:
            return
        chosen = self.rng.choice(tuple(self.users.values()))
        for number, user in self.users.items():
            if user == chosen:
                self._add("connection.close", connection=number)
        if self.rng.random() < 0.6:
            self._permit(chosen, self.rng.choice(VHOSTS))
        else:
            self._permit_topics_of(chosen)

    def _permit_topics_of(self, user: str) -> None:
        if self.rng.random() < 0.3:
            self._administer("DELETE", f"/topic-permissions/%2F/{user}")
        else:
            self._permit_topics()

    # ── policies and limits ─────────────────────────────────────────────────────────────────────────────────────

    def _set_policy(self) -> None:
        rng = self.rng
        kind = rng.choice(("policies", "policies", "operator-policies"))
        definition = self._definition(of_operator=kind == "operator-policies")
        number = rng.randrange(3)
        policy = {
            "pattern": rng.choice((".*", "^@q", "^@q0$", "1$", "^amq[.]gen", "^@x")),
            "definition": definition,
            "priority": 3 * rng.randrange(3) + number,  # which of equal ones RabbitMQ takes is a matter of luck
            "apply-to": rng.choice(("all", "queues", "queues", "exchanges")) if kind == "policies" else "queues",
        }
        self._administer("PUT", f"/{kind}/{_in_path(self._any_vhost())}/@p{number}", policy)

    def _definition(self, *, of_operator: bool) -> dict[str, Any]:
        rng = self.rng
        chances: list[tuple[float, str, Callable[[], Any]]] = [
            (0.15, "message-ttl", lambda: rng.choice((0, FAR_MS))),
            (0.1, "expires", lambda: FAR_MS),
            (0.5, "max-length", lambda: rng.randrange(5)),
            (0.15, "max-length-bytes", lambda: rng.choice((0, 2, 5, 20))),
        ]
        if not of_operator:
            chances += [
                (0.3, "overflow", lambda: rng.choice(("drop-head", "reject-publish", "reject-publish-dlx"))),
                (0.3, "dead-letter-exchange", self._any_exchange),
                (0.2, "dead-letter-routing-key", lambda: self._key("")),
                (0.3, "alternate-exchange", self._any_exchange),
            ]
        return {name: value() for chance, name, value in chances if rng.random() < chance} or {"max-length": 2}

    def _drop_policy(self) -> None:
        put = [step for step in self.steps if "policies" in step.arguments.get("path", "") and _is_put(step)]
        if put:
            self._administer("DELETE", self.rng.choice(put).arguments["path"])

    def _limit(self) -> None:
        rng = self.rng
        of_user = bool(self.users) and rng.random() < 0.5
        name = rng.choice(LIMITS["user" if of_user else "vhost"])
        whose = rng.choice(tuple(self.users.values())) if of_user else _in_path(self._any_vhost())
        path = f"/{'user' if of_user else 'vhost'}-limits/{whose}/{name}"
        if rng.random() < 0.3:
            self._administer("DELETE", path)
        else:
            self._administer("PUT", path, {"value": rng.choice((2, 3, 4) if of_user else (1, 2, 3, 4))})

    def _any_vhost(self) -> str:
        return "@shop" if self.vhosts and self.rng.random() < 0.3 else "/"


def _is_put(step: Step) -> bool:
    return bool(step.arguments.get("method") == "PUT")


def _in_path(vhost: str) -> str:
    return vhost.replace("/", "%2F")


TRIES: Final = 4
"""So often a difference has to show."""


@attrs.frozen
class Difference:
    """The first step after which two transcripts are not the same."""

    step: Step
    what: str
    here: Any
    there: Any

    def __str__(self) -> str:
        return f"{self.what} after step {self.step}\n   here:  {self.here}\n   there: {self.there}"


@attrs.frozen
class Side:
    """One of the two servers."""

    port: int
    api: Api


def program_of(seed: int) -> Program:
    """The program of a seed: every other one has several users, and an operator; in every fourth time passes."""
    authors = (Author, AdministeringAuthor, TimedAuthor, AdministeringAuthor)
    return authors[seed % len(authors)](seed).write()


def transcript(side: Side, program: Program) -> Transcript | str:
    """The transcript of a program, or why it is missing."""
    try:
        return Driver(side.port, side.api).run(program)
    except (AssertionError, TimeoutError, OSError) as error:
        return f"{type(error).__name__}: {error}"


def first_difference(program: Program, here: Transcript | str, there: Transcript | str) -> Difference | None:
    """Where the two part."""
    if isinstance(here, str) or isinstance(there, str):
        return None if here == there else Difference(program[-1], "the run", _run(here), _run(there))
    for step, ours, theirs in zip(program, here, there, strict=True):
        for what in sorted(ours.keys() | theirs.keys()):
            if ours.get(what) != theirs.get(what):
                return Difference(step, what, ours.get(what), theirs.get(what))
    return None


def _run(told: Transcript | str) -> str:
    return told if isinstance(told, str) else "to its end"


def differs(here: Side, there: Side, program: Program, tries: int = TRIES) -> Difference | None:
    """A difference between the servers at two ports that shows each time, whatever each of them chose."""
    ours: list[Transcript | str] = []
    theirs: list[Transcript | str] = []
    found: Difference | None = None
    for _ in range(tries):
        ours.append(transcript(here, program))
        theirs.append(transcript(there, program))
        if any(one in theirs for one in ours):
            return None
        found = found or first_difference(program, ours[0], theirs[0])
    return found


def report(here: Side, there: Side, seed: int, shorten: bool = False) -> str:
    """How the servers differ in the program of a seed; empty if they do not."""
    program = program_of(seed)
    found = differs(here, there, program)
    if found is None:
        return ""
    lines = [f"seed {seed}: {found}"]
    if shorten:

        def fails(part: Program) -> bool:
            other = differs(here, there, part, 2)
            return other is not None and other.what.split()[-1] == found.what.split()[-1]

        program = shortened(program, fails)
        lines += [f"shortened: {differs(here, there, program)}", *(f"   {step}" for step in program)]
    return "\n".join(lines)


@contextmanager
def real_server(directory: Path) -> Iterator[Side]:
    """A RabbitMQ."""
    with Broker(directory, management=True) as broker:
        broker.start()
        with _prepared(broker.amqp_port, f"http://127.0.0.1:{broker.management_port}") as side:
            yield side


@contextmanager
def own_server(directory: Path) -> Iterator[Side]:
    """A warren's server."""
    with served(directory, ServerSettings(management=ManagementSettings(management_tcp_port=0))) as found:
        assert found.server.management is not None
        with _prepared(found.port, found.server.management.url) as side:
            yield side


@contextmanager
def _prepared(port: int, url: str) -> Iterator[Side]:
    """With the vhosts that programs use."""
    with Api(url) as api:
        for vhost in amqp_driver.VHOSTS[1:]:
            api.ask("PUT", f"/vhosts/{vhost}")
            api.ask("PUT", f"/permissions/{vhost}/guest", {"configure": ".*", "write": ".*", "read": ".*"})
        yield Side(port, api)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:100", metavar="FIRST:END")
    parser.add_argument("--shorten", action="store_true")
    parser.add_argument("--both-real", action="store_true")
    options = parser.parse_args(arguments)
    first, end = map(int, options.seeds.split(":"))
    different = 0
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        there = stack.enter_context(real_server(Path(directory) / "real"))
        here = there if options.both_real else stack.enter_context(own_server(Path(directory) / "own"))
        for seed in range(first, end):
            text = report(here, there, seed, options.shorten)
            if text:
                different += 1
                print(text, flush=True)
    print(f"{end - first} programs: {different} differ; {time.monotonic() - began_s:.0f} s")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
