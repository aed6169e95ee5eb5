"""Login: the handshake of one client: who it is, and which vhost it may open.

Clients authenticate by SASL: RFC 4616 (PLAIN), RFC 4422 (EXTERNAL), and AMQP's own AMQPLAIN.
"""

from __future__ import annotations

from typing import Any, Final

import attrs
from pamqp import commands as c

from warren.actors.engines.errors import AccessRefusedError, NotFoundError
from warren.actors.log_events import log_event, logger
from warren.amqp.errors import INTERNAL_ERROR
from warren.amqp.methods import method_of
from warren.amqp.own_methods import COMMANDS_PROPERTY, PROTOCOL, PROTOCOL_PROPERTY, VERSION_PROPERTY
from warren.queue_index.message.amqp_tables import read_table
from warren.server.client_link import ClientLink
from warren.server.replies import NOT_ALLOWED
from warren.server.settings import ServerSettings
from warren.storage.data_version import WARREN_VERSION
from warren.storage.errors import MessageError, WarrenError


class SaslError(WarrenError):
    """A response that is invalid for the mechanism."""


@attrs.frozen
class Credentials:
    """The user that a client claims to be. ``password`` is ``None`` if something else vouches for the name."""

    user: str
    password: bytes | None


def mechanisms(peer_name: str | None) -> tuple[str, ...]:
    """Return the mechanisms for a client; ``peer_name``: the name in its certificate, if it has shown one."""
    return ("PLAIN", "AMQPLAIN") if peer_name is None else ("PLAIN", "AMQPLAIN", "EXTERNAL")


def credentials(mechanism: str, response: bytes, peer_name: str | None) -> Credentials:
    """Parse the response of one of the :func:`mechanisms`. Raises :class:`SaslError`."""
    match mechanism:
        case "PLAIN":
            parts = response.split(b"\0")
            if len(parts) != 3 or parts[0]:  # no other identity is supported
                raise SaslError("a response of PLAIN is NUL, the user, NUL, the password")
            return Credentials(parts[1].decode(errors="surrogateescape"), parts[2])
        case "AMQPLAIN":
            return _amqplain(response)
        case "EXTERNAL" if peer_name is not None:
            return Credentials(peer_name, None)
        case _:
            raise SaslError(f"no mechanism {mechanism}")


def _amqplain(response: bytes) -> Credentials:
    """Parse a table without its length prefix."""
    try:
        table, _ = read_table(len(response).to_bytes(4, "big") + response, 0, len(response) + 4)
    except MessageError as error:
        raise SaslError(str(error)) from error
    login, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(login, str) or not isinstance(password, str | bytes):
        raise SaslError("a response of AMQPLAIN has LOGIN and PASSWORD")
    return Credentials(login, password.encode(errors="surrogateescape") if isinstance(password, str) else password)


_LOG = logger("server")

_PRODUCT: Final = "RabbitMQ"
_PLATFORM: Final = "Erlang/OTP 25.2.3"
"""The broker whose behaviour this is, and what it runs on: clients ask for it by name, version and platform."""

_CAPABILITIES: Final = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}


class Login:
    """The login of one connection."""

    def __init__(self, link: ClientLink, settings: ServerSettings) -> None:
        self._link = link
        self._settings = settings
        self.mechanism = ""
        self.client_properties: dict[str, Any] = {}

    def start(self) -> None:
        """Answer the protocol header."""
        link = self._link
        properties = _server_properties(link.node.cluster_name, self._settings.announced_version)
        if link.is_owner:
            properties |= {PROTOCOL_PROPERTY: PROTOCOL, VERSION_PROPERTY: WARREN_VERSION}
        offered = " ".join(mechanisms(link.peer.certificate_name if link.peer else None))
        start = method_of(c.Connection.Start, server_properties=properties, mechanisms=offered, locales="en_US")
        link.engine.send(0, start)

    def check(self, method: c.Connection.StartOk) -> bool:
        """Check the credentials, and tune the connection if they are right. Return whether they are.

        Raises :class:`SaslError` for a malformed response.
        """
        link, peer, mechanism = self._link, self._link.peer, method.mechanism
        self.client_properties = dict(method.client_properties or {})
        capabilities = self.client_properties.get("capabilities")
        link.capabilities = dict(capabilities) if isinstance(capabilities, dict) else {}
        link.is_commands = link.is_owner and self.client_properties.get(COMMANDS_PROPERTY) is True
        try:
            response = method.response.encode(errors="surrogateescape")
            login = credentials(mechanism, response, peer.certificate_name if peer else None)
            link.user = login.user if link.is_owner else self._authenticated(login)
        except (AccessRefusedError, NotFoundError, SaslError) as error:
            _LOG.warning(
                "%s: %s login refused: %s",
                link.name,
                mechanism,
                error,
                extra=log_event("login_refused", error, connection=link.name, mechanism=mechanism),
            )
            if isinstance(error, SaslError):
                raise
            return False
        self.mechanism = mechanism
        settings = self._settings
        link.engine.send(0, c.Connection.Tune(settings.channel_max, settings.frame_max, settings.heartbeat))
        return True

    def _authenticated(self, login: Credentials) -> str:
        """Return the user's name; raise if the credentials are wrong."""
        users, peer = self._link.node.registry.users, self._link.peer
        user = users[login.user] if login.password is None else users.authenticate(login.user, login.password)
        if peer is not None and not peer.is_loopback and user.name in self._settings.loopback_users:
            raise AccessRefusedError(f"user '{user.name}' can only connect via localhost")
        return user.name

    def refusal(self, vhost: str, limit: str | None) -> tuple[int, str] | None:
        """Return the reply code and text if the user may not open that vhost; ``None``: it may.

        ``limit``: the limit that it would exceed, if any.
        """
        link, node = self._link, self._link.node
        if link.is_commands:  # it asks about the node, which may have no vhost of that name
            return None
        is_down = vhost in node.registry.down or node.actor.actor_stopped.is_set()
        if vhost not in node.registry.vhosts and not is_down:
            return NOT_ALLOWED, f"NOT_ALLOWED - vhost {vhost} not found"
        if link.is_owner:  # if the vhost is down, each of its verbs says why
            return None
        access = f"access to vhost '{vhost}' refused for user '{link.user}'"
        if is_down:
            return INTERNAL_ERROR, f"INTERNAL_ERROR - {access}: vhost '{vhost}' is down"
        if limit is not None:
            return NOT_ALLOWED, f"NOT_ALLOWED - {limit}"
        return None if node.registry.users.may_use(link.user, vhost) else (NOT_ALLOWED, f"NOT_ALLOWED - {access}")


def _server_properties(cluster_name: str, version: str) -> dict[str, Any]:
    """Return what clients adapt to: so it names the broker that it imitates."""
    return {
        "capabilities": _CAPABILITIES,
        "cluster_name": cluster_name,
        "copyright": "the developers of warren",
        "information": "warren: RabbitMQ's classic queues, embedded",
        "platform": _PLATFORM,
        "product": _PRODUCT,
        "version": version,
    }
