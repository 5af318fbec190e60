"""The part that the example services share: JSON over HTTP on the pod's address."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def serve(port: int, answer: Callable[[str], Any]) -> None:
    """Answer every GET with what `answer` has for its path, until the process is killed."""

    class JsonHandler(BaseHTTPRequestHandler):
        """Sends an answer as JSON."""

        def do_GET(self) -> None:
            data = json.dumps(answer(self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Probes come every second; a line for each would be noise."""

    host = os.environ.get("POD_IP", "127.0.0.1")
    with ThreadingHTTPServer((host, port), JsonHandler) as server:
        print(f"listening on {host}:{port}, process {os.getpid()}", flush=True)
        server.serve_forever()
