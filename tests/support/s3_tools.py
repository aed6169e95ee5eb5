"""An S3 server on loopback, for the tests that read from an object store."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import pyarrow.fs
from moto.server import ThreadedMotoServer

BUCKET = "warren"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "somebody",
    "AWS_SECRET_ACCESS_KEY": "a-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@attrs.frozen
class S3:
    """The server; its one bucket is :data:`BUCKET`."""

    port: int
    requests: list[str]
    """Each as its access log has it."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def query(self) -> str:
        """What of a URI's query names this server."""
        return f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"

    def system(self) -> pyarrow.fs.S3FileSystem:
        """The server for those who write."""
        return pyarrow.fs.S3FileSystem(
            access_key=ENVIRONMENT["AWS_ACCESS_KEY_ID"],
            secret_key=ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )

    def upload(self, directory: str, name: str) -> str:
        """Copy a directory; its URI."""
        target = f"{BUCKET}/{name}"
        pyarrow.fs.copy_files(directory, target, destination_filesystem=self.system())
        return f"s3://{target}"


class _Log(logging.Handler):
    def __init__(self, requests: list[str]) -> None:
        super().__init__()
        self._requests = requests

    def emit(self, record: logging.LogRecord) -> None:
        self._requests.append(record.getMessage())


@contextmanager
def s3_server() -> Iterator[S3]:
    """A server with an empty bucket."""
    requests: list[str] = []
    log = logging.getLogger("werkzeug")
    log.handlers, log.propagate = [_Log(requests)], False
    log.setLevel(logging.INFO)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        s3 = S3(port, requests)
        s3.system().create_dir(BUCKET)
        yield s3
    finally:
        server.stop()
