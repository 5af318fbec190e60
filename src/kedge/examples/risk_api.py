"""A small HTTP service: answers `/healthz`, and scores every other path. The demo runs three of it and kills one."""

from __future__ import annotations

import json
import os
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = 8080


class RiskHandler(BaseHTTPRequestHandler):
    """Scores a path between 0 and 99, always the same."""

    def do_GET(self) -> None:
        score = zlib.crc32(self.path.encode()) % 100
        scored = {"path": self.path, "risk": score, "pod": os.environ.get("POD_NAME", "")}
        body = {"ok": True} if self.path == "/healthz" else scored
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Probes come every second; a line for each would be noise."""


if __name__ == "__main__":
    ThreadingHTTPServer((os.environ.get("POD_IP", "127.0.0.1"), PORT), RiskHandler).serve_forever()
