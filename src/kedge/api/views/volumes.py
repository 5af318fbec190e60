"""Views of volumes and of references to ConfigMaps, Secrets and fields of the pod, which the agent resolves."""

from __future__ import annotations

import msgspec

from kedge.api.quantity import Quantity
from kedge.api.views.base import ApiStruct, Int32, Int64, IntOrString


class KeySelector(ApiStruct, frozen=True):
    name: str = ""
    key: str = ""
    optional: bool = False


class FieldRef(ApiStruct, frozen=True):
    api_version: str = "v1"
    field_path: str = ""


class ResourceFieldRef(ApiStruct, frozen=True):
    container_name: str = ""
    resource: str = ""
    divisor: IntOrString = "1"


class EnvVarSource(ApiStruct, frozen=True):
    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None
    field_ref: FieldRef | None = None
    resource_field_ref: ResourceFieldRef | None = None


class LocalObjectRef(ApiStruct, frozen=True):
    name: str = ""
    optional: bool = False


class EnvFromSource(ApiStruct, frozen=True):
    prefix: str = ""
    config_map_ref: LocalObjectRef | None = None
    secret_ref: LocalObjectRef | None = None


class KeyToPath(ApiStruct, frozen=True):
    key: str = ""
    path: str = ""
    mode: Int32 | None = None


class ObjectVolume(ApiStruct, frozen=True):
    """A ConfigMap or Secret as files. Only a Secret volume names its object `secretName`."""

    name: str = ""
    secret_name: str = ""
    items: tuple[KeyToPath, ...] = ()
    default_mode: Int32 | None = None
    optional: bool = False


class EmptyDirVolume(ApiStruct, frozen=True):
    medium: str = ""
    size_limit: Quantity | None = None


class HostPathVolume(ApiStruct, frozen=True):
    path: str = ""
    type: str = ""


class DownwardFile(ApiStruct, frozen=True):
    path: str = ""
    field_ref: FieldRef | None = None
    resource_field_ref: ResourceFieldRef | None = None
    mode: Int32 | None = None


class DownwardVolume(ApiStruct, frozen=True):
    items: tuple[DownwardFile, ...] = ()
    default_mode: Int32 | None = None


class TokenProjection(ApiStruct, frozen=True):
    path: str = ""
    audience: str = ""
    expiration_seconds: Int64 = 3600


class VolumeProjection(ApiStruct, frozen=True):
    config_map: ObjectVolume | None = None
    secret: ObjectVolume | None = None
    downward_api: DownwardVolume | None = msgspec.field(default=None, name="downwardAPI")
    service_account_token: TokenProjection | None = None


class ProjectedVolume(ApiStruct, frozen=True):
    sources: tuple[VolumeProjection, ...] = ()
    default_mode: Int32 | None = None


class ImageVolume(ApiStruct, frozen=True):
    """Only scheduling reads it: agents have no images to mount."""

    reference: str = ""


class Volume(ApiStruct, frozen=True):
    name: str = ""
    config_map: ObjectVolume | None = None
    secret: ObjectVolume | None = None
    empty_dir: EmptyDirVolume | None = None
    host_path: HostPathVolume | None = None
    projected: ProjectedVolume | None = None
    downward_api: DownwardVolume | None = msgspec.field(default=None, name="downwardAPI")
    image: ImageVolume | None = None


class VolumeMount(ApiStruct, frozen=True):
    name: str = ""
    mount_path: str = ""
    sub_path: str = ""
    sub_path_expr: str = ""
    read_only: bool = False
