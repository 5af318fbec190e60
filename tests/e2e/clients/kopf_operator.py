"""An operator on kopf, on built-in kinds: handlers, a retried error, a timer, a daemon, an event handler.

`kopf run` loads it. Every call is one line on stdout, `NOTE {json}`, which the test reads.
"""

from __future__ import annotations

import json
import os
from typing import Any

import kopf

SESSION = {"session": "kopf"}


def note(handler: str, name: str, **more: Any) -> None:
    # One system call: handlers run in threads, and `print` writes a text and its line end separately.
    os.write(1, f"NOTE {json.dumps({'handler': handler, 'name': name, **more})}\n".encode())


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.posting.enabled = True
    settings.watching.server_timeout = 5
    settings.watching.initial_streaming = "INITIAL_STREAMING" in os.environ
    settings.peering.standalone = True


@kopf.on.create("configmaps", labels=SESSION)
def created(name: str, retry: int, patch: kopf.Patch, **_: Any) -> dict[str, Any]:
    if retry == 0:
        raise kopf.TemporaryError("the first attempt fails", delay=0.2)
    patch.metadata.labels["seen"] = "yes"
    note("create", name, retry=retry)
    return {"attempts": retry + 1}


@kopf.on.update("configmaps", labels=SESSION, field="data")
def updated(name: str, old: Any, new: Any, **_: Any) -> None:
    note("update", name, old=dict(old or {}), new=dict(new or {}))


@kopf.on.delete("configmaps", labels=SESSION)
def deleted(name: str, meta: kopf.Meta, **_: Any) -> None:
    note("delete", name, finalizers=list(meta.get("finalizers", ())))


@kopf.timer("configmaps", labels=SESSION, interval=0.3)
def ticked(name: str, **_: Any) -> None:
    note("timer", name)


@kopf.daemon("configmaps", labels=SESSION, cancellation_backoff=2, cancellation_timeout=5)
async def watched(name: str, stopped: kopf.DaemonStopped, **_: Any) -> None:
    note("daemon-started", name)
    await stopped.wait()
    note("daemon-stopped", name)


@kopf.on.create("apps", "v1", "deployments", labels=SESSION)
def deployed(name: str, body: kopf.Body, spec: kopf.Spec, **_: Any) -> dict[str, Any]:
    kopf.info(body, reason="Deployed", message="the operator saw it")
    note("deployed", name, replicas=spec["replicas"])
    return {"replicas": spec["replicas"]}


@kopf.on.event("apps", "v1", "deployments", labels=SESSION)
def changed(name: str, type: str | None, **_: Any) -> None:  # noqa: A002  # kopf passes it by this name
    note("event", name, type=type)
