"""The ConfigMaps and Secrets that a pod refers to: agents read them, and the API server lets them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from kedge.api.views import EnvVarSource, PodView
from kedge.api.wellknown import CONFIG_MAP_KIND, SECRET_KIND
from kedge.keys import Key


def references(pod: PodView) -> tuple[Key, ...]:
    """The ConfigMaps and Secrets that the pod refers to, each once, in the order of the pod."""
    found: dict[Key, None] = {}
    for kind, name in _names(pod):
        found[Key(kind, pod.namespace, name)] = None
    return tuple(found)


def _names(pod: PodView) -> Iterator[tuple[str, str]]:
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        for bulk in container.env_from:
            if bulk.config_map_ref is not None:
                yield CONFIG_MAP_KIND, bulk.config_map_ref.name
            if bulk.secret_ref is not None:
                yield SECRET_KIND, bulk.secret_ref.name
        for variable in container.env:
            source = variable.value_from or EnvVarSource()
            if source.config_map_key_ref is not None:
                yield CONFIG_MAP_KIND, source.config_map_key_ref.name
            if source.secret_key_ref is not None:
                yield SECRET_KIND, source.secret_key_ref.name
    for volume in pod.spec.volumes:
        projections = volume.projected.sources if volume.projected is not None else ()
        for config_map in (volume.config_map, *(each.config_map for each in projections)):
            if config_map is not None:
                yield CONFIG_MAP_KIND, config_map.name
        for secret in (volume.secret, *(each.secret for each in projections)):
            if secret is not None:
                yield SECRET_KIND, secret.secret_name or secret.name
