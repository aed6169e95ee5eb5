"""Random programs of AMQP 0-9-1 whose connections are several users' in several vhosts, and whose operator interferes.

Beside the steps of :mod:`tests.support.amqp_program` there are ``login`` (who a connection's client is, and in which
vhost) and ``administer`` (a request to the management API: users, permissions, policies, limits).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.support.amqp_program import Arguments, Author
from tests.support.differential_program import FAR_MS, Step

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
