"""ManagementSettings: the settings of the management API, under RabbitMQ's names (dots are underscores)."""

from __future__ import annotations

import os
from typing import Final

import attrs

from warren.storage.call_arguments import checked_class
from warren.storage.errors import SettingsError

DEFAULT_PORT: Final = 15672


@checked_class
@attrs.frozen(kw_only=True)
class ManagementSettings:
    """Where the management API listens, and which users it admits. Raises :class:`SettingsError`."""

    management_tcp_ip: str = "127.0.0.1"
    """The address to listen on; by default the loopback one."""
    management_tcp_port: int = DEFAULT_PORT
    """0: a free one."""
    management_tcp_request_timeout: int = 5000
    """Milliseconds within which a client that has connected has to send a request."""
    management_ssl_certfile: str | None = None
    """With it, the API is HTTPS: the server's certificate (PEM)."""
    management_ssl_keyfile: str | None = None
    """The certificate's key (PEM)."""
    management_login_session_timeout: int = 480
    """Minutes after which a login to the page expires."""
    management_max_http_body_size: int = 10_000_000
    """Bytes; a request with more is refused."""
    loopback_users: tuple[str, ...] = ("guest",)
    """Users who may log in from this machine only."""
    cluster_name: str | None = None
    """The cluster's name if operators have not set one; ``None``: the node's name."""

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.management_tcp_port <= 65535:
            raise SettingsError(f"management_tcp_port is 0 … 65535, not {self.management_tcp_port}")
        if (self.management_ssl_certfile is None) != (self.management_ssl_keyfile is None):
            raise SettingsError("management_ssl_certfile and management_ssl_keyfile go together")
        for name in ("management_ssl_certfile", "management_ssl_keyfile"):
            path = getattr(self, name)
            if path is not None and not os.path.exists(path):
                raise SettingsError(f"{name}: no file {path}")
        for name in (
            "management_tcp_request_timeout", "management_login_session_timeout", "management_max_http_body_size",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is at least 1, not {getattr(self, name)}")

    def on_port(self, port: int) -> ManagementSettings:
        """The same, with another port."""
        return attrs.evolve(self, management_tcp_port=port)
