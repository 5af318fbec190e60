"""The parts of every typed view: frozen structs, read-only maps, metadata and conditions.

The views of the kinds that kedge acts on (`core`, `workloads`, `kedge_dev`) build on it. A view is decoded once per
revision and shared by every reader, so it is immutable; controllers write by patch, never through a view.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec

from kedge.api.quantity import Quantity, units

_K = TypeVar("_K")
_V = TypeVar("_V")

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
IntOrString = Int32 | str
"""A count, or a percentage such as `25%`; for a port, its number or its name."""
Time = Annotated[datetime, msgspec.Meta(tz=True)]


class FrozenMap(dict[_K, _V]):
    """A mapping that cannot be changed. Hashable when its values are."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a view is shared by every reader and cannot be changed: write a patch instead")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (dict(self),))

    def __copy__(self) -> FrozenMap[_K, _V]:
        return self

    def copy(self) -> dict[_K, _V]:
        """A plain dict, to build a patch from."""
        return dict(self)


EMPTY_MAP: FrozenMap[Any, Any] = FrozenMap()


class Labels(FrozenMap[str, str]):
    """Labels, or a selector by labels. Equal maps are shared."""

    __slots__ = ()


class Annotations(FrozenMap[str, str]):
    """Annotations: long, and rarely equal, so not shared."""

    __slots__ = ()


class ResourceList(FrozenMap[str, Quantity]):
    """Amounts by resource. Pods have few sizes, so equal maps are shared."""

    __slots__ = ("_units",)
    _units: Mapping[str, int]

    @property
    def in_units(self) -> Mapping[str, int]:
        """The same as whole numbers (`api.quantity.units`), computed once. Shared: copy it to change it."""
        try:
            return self._units
        except AttributeError:
            self._units = {resource: units(resource, amount) for resource, amount in self.items()}
            return self._units


_ACRONYMS = {
    "cidr": "CIDR", "cidrs": "CIDRs", "id": "ID", "ip": "IP", "ips": "IPs", "uid": "UID", "urls": "URLs",
    "uuid": "UUID",
}  # fmt: skip


def json_name(attribute: str) -> str:
    """The JSON name of a view's attribute: `pod_ip` is `podIP`, `node_name` is `nodeName`."""
    first, *rest = attribute.split("_")
    return first + "".join(_ACRONYMS.get(part) or part.capitalize() for part in rest)


class ApiStruct(msgspec.Struct, frozen=True, kw_only=True, rename=json_name, omit_defaults=True, gc=False):
    """A JSON object of known fields. Every field has a default: `validation` checks which ones are required."""


def map_field() -> Any:
    """The default of a mapping: the shared empty map."""
    return msgspec.field(default=EMPTY_MAP)


# -- metadata --------------------------------------------------------------------------------------


class OwnerReference(ApiStruct, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(ApiStruct, frozen=True):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: Int64 = 0
    labels: Labels = map_field()
    annotations: Annotations = map_field()
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    deletion_grace_period_seconds: Int64 | None = None


class View(ApiStruct, frozen=True):
    """The fields of one object that kedge acts on."""

    metadata: ObjectMeta = ObjectMeta()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def generation(self) -> int:
        return self.metadata.generation

    @property
    def labels(self) -> FrozenMap[str, str]:
        return self.metadata.labels

    @property
    def terminating(self) -> bool:
        """Deletion was requested: the object is removed after its grace period and its finalizers."""
        return self.metadata.deletion_timestamp is not None


class Condition(ApiStruct, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: Time | None = None
    last_probe_time: Time | None = None
    last_heartbeat_time: Time | None = None
    last_update_time: Time | None = None
    observed_generation: Int64 = 0


class LabelSelectorRequirement(ApiStruct, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class LabelSelectorSpec(ApiStruct, frozen=True):
    """A `LabelSelector` as written; `selectors.label_selector` compiles it."""

    match_labels: Labels = map_field()
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()
