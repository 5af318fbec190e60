"""A small HTTP service that `risk_api` calls by name: answers every path with features of it, always the same."""

from __future__ import annotations

import os
import zlib
from typing import Any

from kedge.examples.json_server import serve

PORT = 8090


def features(path: str) -> dict[str, Any]:
    """Two numbers of a path."""
    data = path.encode()
    return {"length": len(data), "digest": zlib.crc32(data) % 1000, "pod": os.environ.get("POD_NAME", "")}


if __name__ == "__main__":
    serve(PORT, features)
