"""Requests for the paths that no Kubernetes API has: the page, incidents, origins, backups, debug pages."""

from __future__ import annotations

import random
from typing import Final
from urllib.parse import quote

SESSION: Final = "SESSION-OF-THE-PAGE".ljust(64, "-")
"""Stands for the session that a peer has with the page of its server, and is as long. The peer fills it in."""
FIXED: Final = (
    "/kedge/authority", "/kedge/backup", "/kedge/batch", "/kedge/rotate-encryption-keys", "/kedge/debug/queues",
    "/kedge/debug/caches", "/kedge/debug/x", "/kedge/debug/", "/kedge/incidents", "/kedge/origins", "/kedge/", "/ui",
    "/ui/", "/ui/link", "/ui/login", "/ui/index.html", "/ui/page.js", "/ui/../secrets", "/ui/%2e%2e/x", "/healthz",
    "/readyz", "/livez", "/healthz/x", "/livez/ping", "/readyz/store", "/version", "/metrics",
)  # fmt: skip
DOCUMENTS: Final = (
    "history", "story", "place", "belief", "decisions", "decision", "object", "why", "difference", "coupling",
    "queues", "caches", "nothing",
)  # fmt: skip
ACTIONS: Final = ("recheck", "what-if", "nothing")
_NUMBERS: Final = ("0", "1", "2", "7", "-1", "x", "9" * 18, "9" * 30, "9" * 5_000, "²", "１", "1.5", "")
_INCIDENT_NAMES: Final = ("a", "b", "server", "a.b", "x" * 300, "..", "UPPER", "é", "-", "a\x00b", ".done", "decisions")
_PARAMETERS: Final = {
    "revision": _NUMBERS,
    "revision2": _NUMBERS,
    "t": _NUMBERS,
    "t2": _NUMBERS,
    "at": _NUMBERS,
    "after": _NUMBERS,
    "limit": _NUMBERS,
    "condition": ("Ready", "", "é", "x" * 300),
    "done": ("true", "x"),
    "key": (
        "ConfigMap/default/a",
        "Pod/default/a",
        "Node/node-1",
        "Deployment.apps/default/a",
        "/",
        "x",
        "",
        "a/b/c/d",
    ),
    "decision": ("a:1", "server:0000", "é", ""),
    "id": ("a:1", "", "é"),
    "component": ("server", "x", ""),
    "token": ("x", "", "é"),
    "verbose": ("", "1"),
}


def own_target(source: random.Random, object_target: str) -> str:
    """A path of kedge's own; `object_target` is that of an object, whose origin may be asked for."""
    match source.randrange(5):
        case 0:
            path = "/kedge/origins" + object_target.partition("?")[0]
        case 1:
            names = [quote(source.choice(_INCIDENT_NAMES), safe="") for _ in range(source.randrange(5))]
            path = "/".join(["/kedge/incidents", *names])
        case 2:
            path = f"/ui/data/{source.choice(DOCUMENTS)}"
        case 3:
            path = f"/ui/actions/{source.choice(ACTIONS)}"
        case _:
            path = source.choice(FIXED)
    query = []
    while source.random() < 0.5:
        name = source.choice(tuple(_PARAMETERS))
        query.append(f"{name}={quote(source.choice(_PARAMETERS[name]), safe='')}")
    return path + ("?" + "&".join(query) if query else "")


def page_headers(source: random.Random, target: str) -> dict[str, str]:
    """Most requests for data of the page belong to its session."""
    if not target.startswith("/ui/") or source.random() < 0.1:
        return {}
    found = {"Cookie": f"kedge-ui={SESSION}"}
    return found if source.random() < 0.1 else {**found, "X-Kedge-Page": "1"}
