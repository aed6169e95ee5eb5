"""Address: the node that a URL and the transport options of a Kombu connection name.

``warren:///var/lib/app`` is an absolute path, ``warren://var/app`` a relative one, ``warren://`` leaves it to the
option ``path``. A query may name the vhost: ``warren:///var/lib/app?vhost=orders``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, unquote

import attrs

from warren.config import Config
from warren.handles.node import Node
from warren.handles.shared_node import NodeLease, borrow_node, lease_node
from warren.storage.errors import SettingsError

_QUERY = frozenset({"vhost"})


@attrs.frozen(kw_only=True)
class Address:
    """Where a connection leads."""

    path: str | None
    """The directory; ``None``: a node was handed over."""
    vhost: str = "/"
    node: Node | None = None
    config: Config | str | os.PathLike[str] | None = None
    settings: Mapping[str, Any] = attrs.Factory(dict)
    confirm_publish: bool = False
    """A publish comes back only when its message is safe."""
    delay_eta: bool = False
    """A task of Celery's with an ETA comes when it is time, and waits on disk until then."""
    visibility_timeout: float | None = None
    """Seconds that a message may be unacked before it goes back to its queue; ``None``: as its queue says."""

    def lease(self) -> NodeLease:
        """The node; raises what :func:`warren.open` does."""
        if self.node is not None:
            return borrow_node(self.node)
        if self.path is None:
            raise RuntimeError("an address without path and node")
        return lease_node(self.path, self.config, self.settings)


def address_of(url: str | None, virtual_host: str | None, options: Mapping[str, Any]) -> Address:
    """Return the address in the arguments of a Kombu connection. Raises :class:`SettingsError` if it is invalid.

    ``url``: as it was given; where Kombu took it apart (a second URL, after the first one failed) ``None``, and the
    path is in ``virtual_host``.
    """
    node = options.get("node")
    if node is not None and not isinstance(node, Node):
        raise SettingsError(f"the option 'node' is a warren.Node, not {node!r}")
    vhost = "/"
    if url is not None and "://" in url:
        path, query = _split(url)
        vhost = query.get("vhost") or (virtual_host if virtual_host not in (None, "") else "/")
    else:
        path = "" if virtual_host in (None, "", "/") else "/" + str(virtual_host).lstrip("/")
    path = path or os.fspath(options.get("path") or "")
    if not path and node is None:
        raise SettingsError("a warren URL names a directory: warren:///path/to/it, or transport_options={'path': …}")
    return Address(
        path=None if node is not None else path,
        vhost=options.get("vhost") or vhost,
        node=node,
        config=options.get("config"),
        settings=dict(options.get("settings") or {}),
        confirm_publish=bool(options.get("confirm_publish", False)),
        delay_eta=bool(options.get("delay_eta", False)),
        visibility_timeout=options.get("visibility_timeout"),
    )


def _split(url: str) -> tuple[str, dict[str, str]]:
    location, _, query_text = url.partition("://")[2].partition("?")
    query = {name: values[-1] for name, values in parse_qs(query_text).items()}
    if unknown := query.keys() - _QUERY:
        raise SettingsError(f"a warren URL knows no {', '.join(sorted(unknown))}: {url}")
    return unquote(location), query
