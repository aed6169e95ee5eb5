"""SASL: how clients authenticate. RFC 4616 (PLAIN), RFC 4422 (EXTERNAL), and AMQP's own AMQPLAIN."""

from __future__ import annotations

import attrs

from warren.queue_index.message.amqp_tables import read_table
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
