"""Declared reads, watches and writes of kedge's components, for `kedge coupling`: no record is needed for them.

Writes follow from rights: `writes` of a controller's spec, the role of the scheduler, the role and the node authorizer
of an agent. A right is an upper bound: a component may have one that it never uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from kedge.api.access import Attributes
from kedge.api.field_notes import WHOLE
from kedge.api.kinds import KINDS, Kind
from kedge.api.wellknown import EVENT_KIND, NODE_LEASE_NAMESPACE
from kedge.cli.controller_identities import controller_specs
from kedge.observe.readers.coupling import EXISTENCE, DeclaredComponent
from kedge.observe.readers.recording import Recording
from kedge.runtime import ControllerSpec, WriteRight
from kedge.scheduler import DEFAULT_NAME
from kedge.scheduler.report.declared_reads import READ_FIELDS
from kedge.server.service.access import node_access
from kedge.server.service.access.role_table import DEFAULT_ROLES
from kedge.server.service.access.rules import allows_kind_of

SCHEDULER_ROLE: Final = "kedge:scheduler"
NODE_ROLE: Final = "system:node"
_READS: Final = ("get", "list", "watch")
_FIELD_OF_VERB: Final = {"create": EXISTENCE, "delete": EXISTENCE, "deletecollection": EXISTENCE}
_FIELD_OF_PART: Final = {
    "status": "status", "binding": "spec.nodeName", "eviction": EXISTENCE, "resize": "spec", "scale": "spec",
    "finalize": "spec", "ended": "status", "gang": EXISTENCE,
}  # fmt: skip
"""The field that a write of a subresource changes. Others, such as `token`, change no input of a controller."""
_ANY_NODE: Final = "any-node"
_May: TypeAlias = Callable[[str, Kind, str], bool]
"""Whether a component may do this: verb, kind, subresource."""


def declared_fields(recording: Recording) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """The fields of each scheduler in the records: its snapshot is columnar, so its reads are declared, not noted."""
    names = {each.controller for each in recording.decisions if each.scheduling is not None}
    return dict.fromkeys(sorted(names), READ_FIELDS)


def declared_components() -> list[DeclaredComponent]:
    """Every controller by its spec, the scheduler and the agents by their roles."""
    kinds = frozenset(READ_FIELDS)
    scheduler = DeclaredComponent(DEFAULT_NAME, kinds, kinds, _written(_rights(_scheduler_may)))
    agents = DeclaredComponent(
        "agents", _kinds_read(_agent_may, ("watch",)), _kinds_read(_agent_may, _READS), _written(_rights(_agent_may))
    )
    return [*map(of_spec, controller_specs()), scheduler, agents]


def of_spec(spec: ControllerSpec) -> DeclaredComponent:
    """A controller writes what its role allows. Events are no input of a controller."""
    watches = spec.all_watches()
    return DeclaredComponent(
        spec.name,
        frozenset(each.kind.key_kind for each in watches if each.keys_of is not None),
        frozenset(each.kind.key_kind for each in watches),
        _written(spec.writes or ()),
    )


def _written(rights: Iterable[WriteRight]) -> frozenset[tuple[str, str]]:
    """Kinds and fields of rights. A write of a whole object can change all of it besides its status."""
    found: set[tuple[str, str]] = set()
    for verb, kind, part in rights:
        field = _FIELD_OF_PART.get(part, "") if part else _FIELD_OF_VERB.get(verb, WHOLE)
        if field:
            found.update((each.key_kind, field) for each in (KINDS if kind is None else (kind,)))
    return frozenset(place for place in found if place[0] != EVENT_KIND)


def _rights(may: _May) -> Iterator[WriteRight]:
    for kind in KINDS:
        for part in ("", *_FIELD_OF_PART):
            for verb in ("create", "delete", "patch", "update"):
                if may(verb, kind, part):
                    yield WriteRight(verb, kind, part)


def _kinds_read(may: _May, verbs: Iterable[str]) -> frozenset[str]:
    return frozenset(kind.key_kind for kind in KINDS for verb in verbs if may(verb, kind, ""))


def _scheduler_may(verb: str, kind: Kind, part: str) -> bool:
    return _role_allows(SCHEDULER_ROLE, _wanted(verb, kind, part))


def _agent_may(verb: str, kind: Kind, part: str) -> bool:
    """By its role, or by its name, of which a right to some objects is enough."""
    wanted = _wanted(verb, kind, part)
    return _role_allows(NODE_ROLE, wanted) or node_access.allows_nowait(_ANY_NODE, wanted) is not False


def _wanted(verb: str, kind: Kind, part: str) -> Attributes:
    """The request of an agent about its own objects, and of any other component about some."""
    namespace = NODE_LEASE_NAMESPACE if kind.namespaced else ""
    return Attributes(verb, kind.group, kind.plural, part, namespace, _ANY_NODE, f"spec.nodeName={_ANY_NODE}")


def _role_allows(name: str, wanted: Attributes) -> bool:
    rules = next(each.rules for each in DEFAULT_ROLES if each.name == name)
    return any(allows_kind_of(rule, wanted) for rule in rules)
