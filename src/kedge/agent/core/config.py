"""The setup of a container: its references to ConfigMaps, Secrets and fields of the pod, resolved. Pure.

`api.pod_references` names the objects that a pod needs, and no other object is read. A reference that cannot be
resolved raises `CannotStart`: the container waits with a reason, and is tried again.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kedge.agent.core.account_tokens import (
    ACCOUNT_VOLUME,
    NO_ACCESS,
    PodAccess,
    TokenWish,
)
from kedge.agent.core.driver import (
    CannotStart,
    ContainerMount,
    ContainerSetup,
    EmptyVolume,
    FileVolume,
    HostVolume,
    PodVolume,
    VolumeFile,
)
from kedge.api.quantity import NANO, Quantity, parse_quantity
from kedge.api.views import (
    Container,
    DownwardVolume,
    EnvVarSource,
    FieldRef,
    KeyToPath,
    ObjectVolume,
    PodView,
    ResourceFieldRef,
    Volume,
    VolumeMount,
)
from kedge.api.views.accounts import account_of
from kedge.api.views.volumes import TokenProjection
from kedge.api.wellknown import ACCOUNT_FOLDER, CONFIG_MAP_KIND, SECRET_KIND
from kedge.keys import Key

CONFIG_ERROR = "CreateContainerConfigError"
_REFERENCE = re.compile(r"\$(?:\$\(([^()]*)\)|\(([^()]*)\))|\$\$")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_FILE_MODE = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The facts about a pod's node, and the objects that the pod refers to."""

    node_ip: str = ""
    address: str = ""
    """The IP address of the pod."""
    allocatable: Mapping[str, Quantity] = field(default_factory=dict)
    services: Mapping[str, str] = field(default_factory=dict)
    """Variables with the addresses of Services."""
    access: PodAccess = NO_ACCESS
    """The API as the pod reaches it, and its tokens."""
    objects: Mapping[Key, Mapping[str, Any] | None] = field(default_factory=dict)
    """The bodies of the referenced objects; None for one that does not exist."""


def container_setup(pod: PodView, container: Container, around: Surroundings) -> ContainerSetup:
    """The setup of one container.

    Raises:
        CannotStart: a reference cannot be resolved; the message names it.
    """
    env = _environment(pod, container, around)
    mounts = tuple(_mount(pod, each, env, around) for each in container.volume_mounts)
    mounts += _automatic_mount(pod, mounts, around.access)
    argv = tuple(expanded(each, env) for each in (*container.command, *container.args))
    return ContainerSetup(argv=argv if container.command else (), env=env, mounts=mounts)


def expanded(text: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` replaced where NAME is known, `$$` as `$`, as Kubernetes does."""

    def value(found: re.Match[str]) -> str:
        if found[2] is not None:
            return env.get(found[2], found[0])
        return f"$({found[1]})" if found[1] is not None else "$"

    return _REFERENCE.sub(value, text)


# -- environment -------------------------------------------------------------------------------------


def _environment(pod: PodView, container: Container, around: Surroundings) -> dict[str, str]:
    own = {"HOSTNAME": pod.name, "POD_NAME": pod.name, "POD_NAMESPACE": pod.namespace, "POD_IP": around.address}
    api = around.access.api
    env = {**(api.variables if api is not None else {}), **around.services, **own}
    for bulk in container.env_from:
        for kind, reference in ((CONFIG_MAP_KIND, bulk.config_map_ref), (SECRET_KIND, bulk.secret_ref)):
            if reference is None:
                continue
            data = _data(pod, kind, reference.name, around, optional=reference.optional)
            for name, value in sorted((data or {}).items()):
                if _VARIABLE.fullmatch(bulk.prefix + name):  # Kubernetes skips other keys too
                    env[bulk.prefix + name] = _text(value, kind, reference.name, name)
    for variable in container.env:
        if variable.value_from is None:
            env[variable.name] = expanded(variable.value, env)
            continue
        found = _value(pod, container, variable.value_from, around)
        if found is not None:
            env[variable.name] = found
    return env


def _value(pod: PodView, container: Container, source: EnvVarSource, around: Surroundings) -> str | None:
    """The value of a variable; None if it is optional and missing."""
    if source.field_ref is not None:
        return _field(pod, source.field_ref, around)
    if source.resource_field_ref is not None:
        return _resource(pod, container, source.resource_field_ref, around)
    for kind, selector in ((CONFIG_MAP_KIND, source.config_map_key_ref), (SECRET_KIND, source.secret_key_ref)):
        if selector is None:
            continue
        data = _data(pod, kind, selector.name, around, optional=selector.optional)
        if data is not None and selector.key in data:
            return _text(data[selector.key], kind, selector.name, selector.key)
        if selector.optional:
            return None
        raise CannotStart(
            f"{kind} {pod.namespace}/{selector.name} has no key {selector.key}: add it, or make it optional",
            CONFIG_ERROR,
        )
    raise CannotStart("an env variable has a valueFrom of a kind that kedge does not know", CONFIG_ERROR)


def _data(pod: PodView, kind: str, name: str, around: Surroundings, *, optional: bool) -> Mapping[str, bytes] | None:
    """The data of a ConfigMap or Secret; None if it is optional and missing."""
    found = around.objects.get(Key(kind, pod.namespace, name))
    if found is None:
        if optional:
            return None
        raise CannotStart(
            f"{kind} {pod.namespace}/{name} is not found: create it, or make the reference optional", CONFIG_ERROR
        )
    data: dict[str, bytes] = {}
    encoded = found.get("data" if kind == SECRET_KIND else "binaryData") or {}
    if kind == CONFIG_MAP_KIND:
        data |= {key: str(value).encode() for key, value in (found.get("data") or {}).items()}
    for key, value in encoded.items():
        try:
            data[key] = base64.b64decode(value or "", validate=True)
        except (binascii.Error, ValueError) as error:
            raise CannotStart(f"key {key} of {kind} {name} is not base64: write it again", CONFIG_ERROR) from error
    return data


def _text(value: bytes, kind: str, name: str, key: str) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise CannotStart(f"key {key} of {kind} {name} is not text: mount it as a file", CONFIG_ERROR) from error
    if "\0" in text:
        raise CannotStart(f"key {key} of {kind} {name} contains a NUL: mount it as a file", CONFIG_ERROR)
    return text


def _field(pod: PodView, reference: FieldRef, around: Surroundings) -> str:
    path = reference.field_path
    fields = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": account_of(pod.spec),
        "status.podIP": around.address,
        "status.podIPs": around.address,
        "status.hostIP": around.node_ip or "127.0.0.1",
        "status.hostIPs": around.node_ip or "127.0.0.1",
    }
    if path in fields:
        return fields[path]
    maps: dict[str, Mapping[str, str]] = {"labels": pod.labels, "annotations": pod.metadata.annotations}
    if subscript := _SUBSCRIPT.fullmatch(path):
        return maps[subscript[1]].get(subscript[2], "")
    if path in ("metadata.labels", "metadata.annotations"):
        rows = maps[path.partition(".")[2]]
        return "\n".join(f'{key}="{_quoted(value)}"' for key, value in sorted(rows.items()))
    raise CannotStart(f"fieldRef {path} is not one of {', '.join(fields)}, labels or annotations", CONFIG_ERROR)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _resource(pod: PodView, container: Container, reference: ResourceFieldRef, around: Surroundings) -> str:
    """The value of a `resourceFieldRef`, in units of its divisor, rounded up."""
    kind, _, resource = reference.resource.partition(".")
    every = (*pod.spec.init_containers, *pod.spec.containers)
    name = reference.container_name or container.name
    target = next((each for each in every if each.name == name), None)
    if target is None or kind not in ("limits", "requests"):
        raise CannotStart(f"resourceFieldRef {reference.resource} of container {name} does not exist", CONFIG_ERROR)
    declared: Mapping[str, Quantity] = target.resources.limits if kind == "limits" else target.resources.requests
    amount = declared.get(resource)
    if amount is None and kind == "limits":  # without a limit, the container may use all of the node
        amount = around.allocatable.get(resource)
    divisor = parse_quantity(reference.divisor)
    nano = divisor.nano or NANO
    return str(-(-(amount.nano if amount is not None else 0) // nano))


# -- volumes -----------------------------------------------------------------------------------------


def _mount(pod: PodView, mount: VolumeMount, env: Mapping[str, str], around: Surroundings) -> ContainerMount:
    volume = next((each for each in pod.spec.volumes if each.name == mount.name), None)
    if volume is None:
        raise CannotStart(f"volume {mount.name} is mounted and not declared: add it to spec.volumes", CONFIG_ERROR)
    sub_path = expanded(mount.sub_path_expr, env) if mount.sub_path_expr else mount.sub_path
    if sub_path and (sub_path.startswith("/") or ".." in sub_path.split("/")):
        raise CannotStart(f"subPath {sub_path} of volume {mount.name} leaves the volume", CONFIG_ERROR)
    if not mount.mount_path.startswith("/"):
        raise CannotStart(f"mountPath {mount.mount_path} of volume {mount.name} is not absolute", CONFIG_ERROR)
    source = _volume(pod, volume, around)
    read_only = mount.read_only or isinstance(source, FileVolume)
    return ContainerMount(
        source, posixpath.normpath(mount.mount_path), posixpath.normpath(sub_path) if sub_path else "", read_only
    )


def _volume(pod: PodView, volume: Volume, around: Surroundings) -> PodVolume:
    if volume.empty_dir is not None:
        size = volume.empty_dir.size_limit
        return EmptyVolume(volume.name, volume.empty_dir.medium == "Memory", size.value if size else None)
    if volume.host_path is not None:
        return HostVolume(volume.name, volume.host_path.path, volume.host_path.type)
    files: list[VolumeFile] = []
    if volume.config_map is not None:
        files += _object_files(pod, CONFIG_MAP_KIND, volume.config_map, around, None)
    elif volume.secret is not None:
        files += _object_files(pod, SECRET_KIND, volume.secret, around, None)
    elif volume.downward_api is not None:
        files += _downward_files(pod, volume.downward_api, around, None)
    elif volume.projected is not None:
        mode = volume.projected.default_mode
        for source in volume.projected.sources:
            if source.config_map is not None:
                files += _object_files(pod, CONFIG_MAP_KIND, source.config_map, around, mode)
            if source.secret is not None:
                files += _object_files(pod, SECRET_KIND, source.secret, around, mode)
            if source.downward_api is not None:
                files += _downward_files(pod, source.downward_api, around, mode)
            if source.service_account_token is not None:
                files.append(_token_file(source.service_account_token, around, mode))
    else:
        raise CannotStart(
            f"volume {volume.name} is of a type that kedge cannot mount: use configMap, secret, emptyDir, hostPath,"
            " projected or downwardAPI",
            CONFIG_ERROR,
        )
    for file in files:
        if file.path.startswith("/") or ".." in file.path.split("/") or not file.path:
            raise CannotStart(f"path {file.path!r} in volume {volume.name} leaves the volume", CONFIG_ERROR)
    return FileVolume(volume.name, tuple(files))


def _token_file(source: TokenProjection, around: Surroundings, mode: int | None) -> VolumeFile:
    token = around.access.tokens[TokenWish(source.audience, source.expiration_seconds)]
    return VolumeFile(source.path, token.encode(), _mode(None, mode))


def _automatic_mount(
    pod: PodView, declared: tuple[ContainerMount, ...], access: PodAccess
) -> tuple[ContainerMount, ...]:
    """The volume with token, authority and namespace, unless the container mounts another one there."""
    taken = any(each.path == ACCOUNT_FOLDER for each in declared)
    if not access.automatic or access.api is None or taken or any(v.name == ACCOUNT_VOLUME for v in pod.spec.volumes):
        return ()
    contents = {"token": access.tokens[TokenWish()], "ca.crt": access.api.authority_pem, "namespace": pod.namespace}
    files = tuple(VolumeFile(name, text.encode(), _FILE_MODE) for name, text in contents.items())
    return (ContainerMount(FileVolume(ACCOUNT_VOLUME, files), ACCOUNT_FOLDER, "", read_only=True),)


def _object_files(
    pod: PodView, kind: str, source: ObjectVolume, around: Surroundings, mode: int | None
) -> Iterator[VolumeFile]:
    name = source.secret_name or source.name
    data = _data(pod, kind, name, around, optional=source.optional)
    if data is None:
        return
    default = _mode(source.default_mode, mode)
    for item in source.items or [KeyToPath(key=key, path=key) for key in sorted(data)]:
        if item.key in data:
            yield VolumeFile(item.path, data[item.key], _mode(item.mode, default))
        elif not source.optional:
            raise CannotStart(f"{kind} {pod.namespace}/{name} has no key {item.key}: add it", CONFIG_ERROR)


def _downward_files(
    pod: PodView, source: DownwardVolume, around: Surroundings, mode: int | None
) -> Iterator[VolumeFile]:
    default = _mode(source.default_mode, mode)
    for item in source.items:
        if item.field_ref is not None:
            text = _field(pod, item.field_ref, around)
        elif item.resource_field_ref is not None:
            text = _resource(pod, pod.spec.containers[0], item.resource_field_ref, around)
        else:
            raise CannotStart(f"file {item.path} of a downwardAPI volume has no source", CONFIG_ERROR)
        yield VolumeFile(item.path, text.encode(), _mode(item.mode, default))


def _mode(own: int | None, default: int | None) -> int:
    if own is not None:
        return own
    return _FILE_MODE if default is None else default
