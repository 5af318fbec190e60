"""An operator on kopf that marks each ConfigMap as handled: one patch an object, which kopf adds its own notes to."""

from __future__ import annotations

from typing import Any

import kopf


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.posting.enabled = False  # no events: kedge's runtime writes none either


@kopf.on.create("configmaps")
@kopf.on.update("configmaps", field="data")
async def marked(body: kopf.Body, patch: kopf.Patch, **_: Any) -> None:
    patch.metadata.annotations["example/handled"] = body["data"]["turn"]
