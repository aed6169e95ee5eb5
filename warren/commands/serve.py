"""The command ``warren serve``: a node, and an AMQP 0-9-1 server over it, until a signal ends it."""

from __future__ import annotations

import enum
import gc
import logging
import signal
from typing import Annotated, Any

import attrs
import typer

from warren.commands.opening import check_directory
from warren.commands.options import AdoptOption, NodePath
from warren.commands.output import FindingReporter, print_json
from warren.handles.node import MEMORY
from warren.handles.node import open as open_node
from warren.management.settings import ManagementSettings
from warren.salvage.names import printable
from warren.server.settings import DEFAULT_PORT, DEFAULT_TLS_PORT, ServerSettings, TlsSettings


class LogFormat(enum.StrEnum):
    """How log records look."""

    TEXT = "text"
    JSON = "json"


@attrs.frozen(kw_only=True)
class ServerOptions:
    """Where the server listens, and what it serves."""

    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="The port; 0: a free one.")] = DEFAULT_PORT
    listener: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="Instead of --host and --port. Can be repeated.")
    ] = None
    tls_port: Annotated[int, typer.Option(help="The port for TLS; needs --certfile.")] = DEFAULT_TLS_PORT
    certfile: Annotated[str | None, typer.Option(help="The server's certificate, PEM.")] = None
    keyfile: Annotated[str | None, typer.Option(help="Its key, PEM.")] = None
    cacertfile: Annotated[str | None, typer.Option(help="The CAs of the clients' certificates, PEM.")] = None
    verify: Annotated[bool, typer.Option("--verify", help="Require a certificate from clients.")] = False
    management_port: Annotated[
        int | None, typer.Option(help="Serve the management API and its page, too (15672 is the usual port; 0: free).")
    ] = None
    management_tls: Annotated[
        bool, typer.Option(help="Serve the management API as HTTPS if there is a certificate, else as HTTP.")
    ] = True

    def settings(self) -> ServerSettings:
        """Return the server's settings. Raises :class:`~warren.storage.errors.SettingsError`."""
        tls = None
        if self.certfile is not None and self.keyfile is not None:
            tls = TlsSettings(
                certfile=self.certfile, keyfile=self.keyfile, cacertfile=self.cacertfile, verify=self.verify
            )
        return ServerSettings(
            host=self.host,
            port=self.port,
            listeners_tcp=tuple(self.listener or ()),
            tls_port=None if tls is None else self.tls_port,
            tls=tls,
            management=self._management(tls if self.management_tls else None),
        )

    def _management(self, tls: TlsSettings | None) -> ManagementSettings | None:
        if self.management_port is None:
            return None
        return ManagementSettings(
            management_tcp_ip=self.host,
            management_tcp_port=self.management_port,
            management_ssl_certfile=None if tls is None else tls.certfile,
            management_ssl_keyfile=None if tls is None else tls.keyfile,
        )


def serve(
    path: NodePath,
    *,
    options: ServerOptions,
    config: Annotated[str | None, typer.Option(help="The node's settings, a TOML file.")] = None,
    definitions: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Import RabbitMQ's definitions first: a JSON file, or a stopped RabbitMQ's directory or archive.",
        ),
    ] = None,
    adopt: AdoptOption = False,
    log_format: Annotated[
        LogFormat, typer.Option(help="The log on stderr: lines of text, or of JSON objects.")
    ] = LogFormat.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as one line of JSON.")] = False,
) -> None:
    """Serve a node's directory to AMQP 0-9-1 clients, as a RabbitMQ would. SIGINT or SIGTERM ends it.

    The directory is created if it is missing; with :memory:, all is gone at the end. Without --host only this machine
    reaches it.
    """
    settings = options.settings()
    if not (in_memory := path == MEMORY):
        check_directory(path, adopt=adopt, make=True)
    _log_to_stderr(log_format)
    ends = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # of the threads that are started from here on, too
    try:
        document = _definitions(definitions) if definitions is not None else None
        with open_node(path, config, adopt=adopt, share=not in_memory) as node:
            if document is not None:
                node.import_definitions(document)
            server = node.serve(settings)
            managed = {} if server.management is None else {"management": server.management.url}
            if as_json:
                print_json({"path": node.path, "addresses": [list(address) for address in server.addresses], **managed})
            else:
                shown = ", ".join(f"{address[0]}:{address[1]}" for address in server.addresses)
                print(f"{printable(node.path)} listens on {shown}", *managed.values(), sep=", ", flush=True)
            gc.freeze()  # collections of garbage, which hold all clients up, pass over what is there by now
            signal.sigwait(ends)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _definitions(source: str) -> dict[str, Any]:
    """The definitions to import; what of a RabbitMQ's could not be read is reported."""
    from warren.commands.definitions import document_at

    findings = FindingReporter()
    document = document_at(source, findings)
    findings.rest()
    return document


def _log_to_stderr(log_format: LogFormat) -> None:
    """Log warnings and errors of the whole process to stderr, unless logging is configured already."""
    from warren.logs import JsonFormatter, TextFormatter

    handler = logging.StreamHandler()
    if log_format is LogFormat.JSON:
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter("%(asctime)s [%(levelname)s] %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
