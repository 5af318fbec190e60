"""One request of each type, for tests that go through the whole union."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from kedge.api import requests
from kedge.api.kinds import KINDS
from kedge.api.requests import Binding, GangChunk, GangPlace, GetOptions, ListOptions, WatchOptions
from kedge.keys import Key

_CONFIG_MAP = KINDS.of_key_kind("ConfigMap")
_A = Key("ConfigMap", "default", "a")
_BODY = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {}}


def _samples() -> list[Any]:
    place = GangPlace(pod="p", pod_uid="u", node="n")
    chunk = GangChunk(namespace="default", gang="g", size=2, deadline=datetime(2030, 1, 1, tzinfo=UTC), places=(place,))
    pod = Key("Pod", "default", "p")
    return [
        requests.Get(_A, GetOptions(resource_version="5")),
        requests.GetScale(Key("Deployment.apps", "default", "d")),
        requests.List(_CONFIG_MAP, ListOptions(namespace="default", limit=3)),
        requests.OpenWatch(_CONFIG_MAP, WatchOptions(timeout_s=5)),
        requests.Create(_CONFIG_MAP, _BODY, "default"),
        requests.Update(_A, _BODY),
        requests.Patch(_A, {}),
        requests.Delete(_A),
        requests.DeleteCollection(_CONFIG_MAP, ListOptions(namespace="default")),
        requests.Bind(Binding(pod=pod, node="n")),
        requests.Reserve(chunk),
        requests.Evict(pod),
        requests.ConfirmEnded("n", "u", "p"),
        requests.RequestToken(key=Key("ServiceAccount", "default", "default")),
    ]


SAMPLES = _samples()
