"""The setup of a container: variables, files and mounts from the pod, ConfigMaps and Secrets, as in Kubernetes."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from tests.kit.agent import pod_view

from kedge.agent.core.config import CONFIG_ERROR, Surroundings, container_setup, expanded
from kedge.agent.core.driver import (
    CannotStart,
    ContainerSetup,
    EmptyVolume,
    FileVolume,
    HostVolume,
)
from kedge.api.pod_references import references
from kedge.api.quantity import parse_quantity
from kedge.keys import Key

SETTINGS, TOKEN = Key("ConfigMap", "default", "settings"), Key("Secret", "default", "token")
OBJECTS: dict[Key, dict[str, Any] | None] = {
    SETTINGS: {"data": {"color": "blue", "size": "big", "not valid": "x"}, "binaryData": {"raw": "/w=="}},
    TOKEN: {"data": {"key": base64.b64encode(b"s3cret").decode()}},
}


def setup(
    spec: dict[str, Any] | None = None, objects: dict[Key, dict[str, Any] | None] = OBJECTS, **container: Any
) -> ContainerSetup:
    made = {"name": "main", "image": "x", "command": ["run"], **container}
    metadata = {"labels": {"app": "web"}, "annotations": {"note": 'a "b"'}}
    pod = pod_view(metadata=metadata, containers=[made], **(spec or {}))
    allocatable = {"cpu": parse_quantity("4"), "memory": parse_quantity("8Gi")}
    around = Surroundings(address="127.0.0.9", node_ip="10.1.1.1", allocatable=allocatable, objects=objects)
    return container_setup(pod, pod.spec.containers[0], around)


def from_(**source: Any) -> list[dict[str, Any]]:
    return [{"name": "V", "valueFrom": source}]


def refused(text: str, **parts: Any) -> None:
    with pytest.raises(CannotStart, match=text) as raised:
        setup(**parts)
    assert raised.value.waiting == CONFIG_ERROR


def test_references_are_expanded_as_kubernetes_does() -> None:
    env = {"A": "1", "B": "$(A)"}
    assert expanded("$(A) $(B) $(NONE) $$(A) $$ $A $(A", env) == "1 $(A) $(NONE) $(A) $ $A $(A"


def test_addresses_of_services_are_known_to_variables_and_arguments_and_give_way_to_own_variables() -> None:
    pod = pod_view(
        containers=[
            {
                "name": "main",
                "image": "x",
                "command": ["run", "$(FEATURES_SERVICE_HOST):$(FEATURES_SERVICE_PORT)"],
                "env": [{"name": "URL", "value": "http://$(FEATURES_SERVICE_HOST)"}, {"name": "OWN", "value": "mine"}],
            }
        ]
    )
    services = {"FEATURES_SERVICE_HOST": "127.200.0.1", "FEATURES_SERVICE_PORT": "80", "OWN": "no", "POD_NAME": "no"}
    found = container_setup(pod, pod.spec.containers[0], Surroundings(services=services))
    assert found.argv == ("run", "127.200.0.1:80")
    assert (found.env["URL"], found.env["OWN"], found.env["POD_NAME"]) == ("http://127.200.0.1", "mine", "web-0")


def test_variables_see_the_ones_before_them_and_so_do_the_arguments() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)-$(C)"}, {"name": "C", "value": "3"}]
    found = setup(env=env, command=["run", "$(B)"], args=["--pod=$(POD_NAME)", "$$(A)"])
    assert found.env["B"] == "1-$(C)"
    assert found.argv == ("run", "1-$(C)", "--pod=web-0", "$(A)")


def test_a_container_without_a_command_has_nothing_to_run_even_with_arguments() -> None:
    assert setup(command=[], args=["x"]).argv == ()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "web-0"),
        ("metadata.uid", "u1"),
        ("metadata.labels['app']", "web"),
        ("metadata.annotations['none']", ""),
        ("spec.nodeName", "node-a"),
        ("status.podIP", "127.0.0.9"),
        ("status.hostIP", "10.1.1.1"),
    ],
)
def test_a_field_of_the_pod_is_a_variable(path: str, value: str) -> None:
    assert setup(env=from_(fieldRef={"fieldPath": path})).env["V"] == value


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("limits.memory", "1Mi", "64"),
        ("limits.memory", "0", str(64 * 1024 * 1024)),
        ("requests.cpu", "1m", "250"),
        ("requests.cpu", "1", "1"),
        ("limits.cpu", "1", "4"),
    ],
)
def test_a_resource_is_a_variable_in_units_of_its_divisor_rounded_up(resource: str, divisor: str, value: str) -> None:
    resources = {"limits": {"memory": "64Mi"}, "requests": {"cpu": "250m"}}
    source = {"resource": resource, "divisor": divisor}
    assert setup(env=from_(resourceFieldRef=source), resources=resources).env["V"] == value


def test_keys_of_config_maps_and_secrets_are_variables() -> None:
    bulk = [{"prefix": "X_", "configMapRef": {"name": "settings"}}, {"secretRef": {"name": "token"}}]
    with_raw = {**OBJECTS, SETTINGS: {"data": {"color": "blue", "size": "big"}}}
    env = setup(envFrom=bulk, env=from_(secretKeyRef={"name": "token", "key": "key"}), objects=with_raw).env
    assert (env["X_color"], env["X_size"], env["key"], env["V"]) == ("blue", "big", "s3cret", "s3cret")
    assert setup(env=from_(configMapKeyRef={"name": "settings", "key": "color"})).env["V"] == "blue"


def test_a_missing_object_or_key_is_named_unless_it_is_optional() -> None:
    gone = {"name": "gone", "key": "k"}
    refused("ConfigMap default/gone is not found", env=from_(configMapKeyRef=gone))
    refused("Secret default/gone", envFrom=[{"secretRef": {"name": "gone"}}])
    refused("no key none", env=from_(secretKeyRef={"name": "token", "key": "none"}))
    refused("not text", env=from_(configMapKeyRef={"name": "settings", "key": "raw"}))
    refused("status.phase", env=from_(fieldRef={"fieldPath": "status.phase"}))
    for source in (gone, {"name": "settings", "key": "none"}):
        assert "V" not in setup(env=from_(configMapKeyRef={**source, "optional": True})).env
    assert setup(envFrom=[{"secretRef": {"name": "gone", "optional": True}}]).argv == ("run",)


def mounted(volume: dict[str, Any], **mount: Any) -> ContainerSetup:
    mounts = [{"name": "v", "mountPath": "/data/", **mount}]
    return setup({"volumes": [{"name": "v", **volume}]}, volumeMounts=mounts)


def files(volume: dict[str, Any]) -> dict[str, tuple[bytes, int]]:
    (mount,) = mounted(volume).mounts
    assert isinstance(mount.volume, FileVolume)
    assert (mount.path, mount.read_only) == ("/data", True)
    return {each.path: (each.data, each.mode) for each in mount.volume.files}


def test_volumes_of_config_maps_and_secrets_have_a_file_for_each_key() -> None:
    found = files({"configMap": {"name": "settings"}})
    assert found["color"] == (b"blue", 0o644)
    assert found["raw"] == (b"\xff", 0o644)
    items = [{"key": "key", "path": "a/b", "mode": 0o400}]
    assert files({"secret": {"secretName": "token", "items": items}}) == {"a/b": (b"s3cret", 0o400)}
    assert files({"secret": {"secretName": "token", "defaultMode": 0o440}}) == {"key": (b"s3cret", 0o440)}
    assert files({"configMap": {"name": "gone", "optional": True}}) == {}


def test_a_projected_volume_joins_its_sources() -> None:
    downward = [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "notes", "fieldRef": {"fieldPath": "metadata.annotations"}},
    ]
    sources = [
        {"configMap": {"name": "settings", "items": [{"key": "color", "path": "color"}]}},
        {"secret": {"name": "token"}},
        {"downwardAPI": {"items": downward}},
    ]
    assert files({"projected": {"sources": sources, "defaultMode": 0o600}}) == {
        "color": (b"blue", 0o600),
        "key": (b"s3cret", 0o600),
        "labels": (b'app="web"', 0o600),
        "notes": (b'note="a \\"b\\""', 0o600),
    }
    assert files({"downwardAPI": {"items": downward[:1]}}) == {"labels": (b'app="web"', 0o644)}


def test_folders_of_the_pod_and_of_the_machine_are_volumes() -> None:
    (mount,) = mounted({"emptyDir": {"medium": "Memory"}}, subPathExpr="$(POD_NAME)/x", readOnly=True).mounts
    assert mount == (EmptyVolume("v", in_memory=True), "/data", "web-0/x", True)
    (mount,) = mounted({"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}).mounts
    assert mount.volume == EmptyVolume("v", in_memory=True, size_bytes=1 << 20)
    (mount,) = mounted({"hostPath": {"path": "/srv", "type": "Directory"}}).mounts
    assert mount == (HostVolume("v", "/srv", "Directory"), "/data", "", False)


def test_a_volume_that_cannot_be_mounted_is_named() -> None:
    for volume, text in (
        ({"persistentVolumeClaim": {"claimName": "c"}}, "volume v is of a type"),
        ({"configMap": {"name": "gone"}}, "gone is not found"),
        ({"configMap": {"name": "settings", "items": [{"key": "none", "path": "p"}]}}, "no key none"),
        ({"configMap": {"name": "settings", "items": [{"key": "color", "path": "../p"}]}}, "leaves the volume"),
    ):
        with pytest.raises(CannotStart, match=text):
            mounted(volume)
    with pytest.raises(CannotStart, match="leaves the volume"):
        mounted({"emptyDir": {}}, subPath="../../etc")
    refused("not declared", volumeMounts=[{"name": "none", "mountPath": "/x"}])


def test_only_objects_that_the_pod_refers_to_are_read() -> None:
    volumes = [
        {"name": "a", "configMap": {"name": "c1"}},
        {"name": "b", "projected": {"sources": [{"secret": {"name": "s1"}}, {"configMap": {"name": "c1"}}]}},
        {"name": "c", "secret": {"secretName": "s2"}},
    ]
    init = [{"name": "i", "image": "x", "envFrom": [{"configMapRef": {"name": "c2"}}]}]
    main = {"name": "main", "image": "x", "env": from_(secretKeyRef={"name": "s3", "key": "k"})}
    found = references(pod_view(volumes=volumes, initContainers=init, containers=[main]))
    assert [f"{each.kind}/{each.name}" for each in found] == [
        "ConfigMap/c2", "Secret/s3", "ConfigMap/c1", "Secret/s1", "Secret/s2",
    ]  # fmt: skip
    assert references(pod_view()) == ()
