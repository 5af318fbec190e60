"""Declared reads, watches and writes of kedge's components, for `kedge coupling`: no record is needed for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kedge.api.wellknown import LEASE_KIND, NODE_KIND, POD_KIND
from kedge.cli.kept_decisions import idle_runtime
from kedge.controllers import all_controllers
from kedge.env import system_env
from kedge.observe.readers.coupling import EXISTENCE, DeclaredComponent
from kedge.observe.readers.recording import Recording
from kedge.runtime import ControllerSpec, WatchSpec
from kedge.scheduler import DEFAULT_NAME
from kedge.scheduler.report.declared_reads import READ_FIELDS

_AGENT_WRITES: Final = ((NODE_KIND, "status"), (NODE_KIND, EXISTENCE), (POD_KIND, "status"), (LEASE_KIND, "spec"))
_SCHEDULER_WRITES: Final = ((POD_KIND, "spec"), (POD_KIND, "status"))


def declared_fields(recording: Recording) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """The fields of each scheduler in the records: its snapshot is columnar, so its reads are declared, not noted."""
    names = {each.controller for each in recording.decisions if each.scheduling is not None}
    return dict.fromkeys(sorted(names), READ_FIELDS)


def declared_components() -> list[DeclaredComponent]:
    """Every controller by its spec, the scheduler and the agents by their fixed roles."""
    controllers = all_controllers(idle_runtime(system_env()), leases=False)
    scheduler = DeclaredComponent(
        DEFAULT_NAME, frozenset(READ_FIELDS), frozenset(READ_FIELDS), frozenset(_SCHEDULER_WRITES)
    )
    agents = DeclaredComponent(
        "agents", frozenset({POD_KIND, NODE_KIND}), frozenset({POD_KIND, NODE_KIND}), frozenset(_AGENT_WRITES)
    )
    return [*(of_spec(each.spec) for each in controllers), scheduler, agents]


def of_spec(spec: ControllerSpec) -> DeclaredComponent:
    """A controller writes the status of its own kind, and creates and deletes what it owns."""
    watches = spec.all_watches()
    owned = [each.kind if isinstance(each, WatchSpec) else each for each in spec.owns]
    return DeclaredComponent(
        spec.name,
        frozenset(each.kind.key_kind for each in watches if each.keys_of is not None),
        frozenset(each.kind.key_kind for each in watches),
        frozenset(((spec.kind.key_kind, "status"), *((each.key_kind, EXISTENCE) for each in owned))),
    )
