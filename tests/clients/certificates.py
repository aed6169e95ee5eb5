"""Certificates for the servers and the clients of one run, made by ``openssl``."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.clients.sources import AbsentError

DAYS = "30"


def make(directory: Path) -> None:
    """Make an authority, and what it signed for a server and a client, in ``directory``; and a client of no authority.

    ``ca_certificate.pem``, ``server_certificate.pem``, ``server_key.pem``, ``client_certificate.pem``,
    ``client_key.pem``, ``other_certificate.pem``, ``other_key.pem``. Raises :class:`AbsentError` without ``openssl``.
    """
    directory.mkdir(parents=True)
    new = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", DAYS, "-subj")
    _openssl(directory, *new, "/CN=authority", "-keyout", "ca_key.pem", "-out", "ca_certificate.pem")
    _openssl(directory, *new, "/CN=guest", "-keyout", "other_key.pem", "-out", "other_certificate.pem")
    signed = ("-CA", "ca_certificate.pem", "-CAkey", "ca_key.pem", "-addext", "basicConstraints=CA:FALSE")
    for name, subject, names in (
        ("server", "/CN=localhost/O=server", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ("client", "/CN=guest/O=client", "subjectAltName=DNS:client"),
    ):
        files = ("-keyout", f"{name}_key.pem", "-out", f"{name}_certificate.pem")
        _openssl(directory, *new, subject, *files, *signed, "-addext", names)


def _openssl(directory: Path, *arguments: str) -> None:
    try:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise AbsentError(f"openssl: {error}") from None
