"""What a suite that starts its server in Docker asks of Docker, answered for the server that runs already.

``python docker_api.py 2375``: pulling and starting do nothing; a container is the server on this machine, its ports are
the standard ones. The suite finds it by its own setting, ``DOCKER_HOST=tcp://localhost:2375``.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORTS = {f"{port}/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(port)}] for port in (5672, 5671)}
CONTAINER = {"Id": "server", "NetworkSettings": {"Ports": PORTS}}


class Docker(BaseHTTPRequestHandler):
    """Every request is answered with the one container there is."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        body = json.dumps(CONTAINER).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_DELETE = answer


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Docker).serve_forever()
