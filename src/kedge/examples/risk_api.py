"""A small HTTP service: answers `/healthz`, and scores every other path. The demo runs three of it and kills one.

If there is a Service `features` when it starts (`features.yaml`), a score comes with the features of the path: it calls
the Service by its name, or by its address where names of Services cannot be mounted.
"""

from __future__ import annotations

import json
import os
import zlib
from contextlib import suppress
from typing import Any
from urllib.request import urlopen

from kedge.examples.json_server import serve

PORT = 8080


def features_of(path: str) -> Any:
    """The features of a path, from the Service; None if it does not answer."""
    for host in ("features", os.environ["FEATURES_SERVICE_HOST"]):
        url = f"http://{host}:{os.environ['FEATURES_SERVICE_PORT']}{path}"
        with suppress(OSError, ValueError), urlopen(url, timeout=5) as reply:
            return {**json.load(reply), "host": host}
    return None


def risk(path: str) -> dict[str, Any]:
    """A score of a path between 0 and 99, always the same."""
    if path == "/healthz":
        return {"ok": True}
    scored: dict[str, Any] = {"path": path, "risk": zlib.crc32(path.encode()) % 100}
    scored["pod"] = os.environ.get("POD_NAME", "")
    if "FEATURES_SERVICE_PORT" in os.environ:
        scored["features"] = features_of(path)
    return scored


if __name__ == "__main__":
    serve(PORT, risk)
