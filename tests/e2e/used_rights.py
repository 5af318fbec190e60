"""Rights of the components that a run uses: the rules of their roles, compared with the audit log of all requests.

`tests/sim/test_declared_writes.py` does the same for the roles of single controllers, which are made from declarations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from kedge.api.access import CONTROLLERS, NODES, SCHEDULERS, Attributes
from kedge.api.views import PolicyRule
from kedge.api.wellknown import AUTHORIZATION_DECISION
from kedge.cli.controller_identities import IDENTITIES_ROLE, controller_roles
from kedge.server.audit import AuditEvent
from kedge.server.service.access.role_table import DEFAULT_ROLES, DefaultRole
from kedge.server.service.access.rules import allows_kind_of, allows_path

COMPONENTS: Final = frozenset({SCHEDULERS, CONTROLLERS, NODES})
"""Groups of components. Roles that are bound to them are compared."""


class Right(NamedTuple):
    """One verb of one resource or path, of one role."""

    role: str
    verb: str
    what: str
    """`RESOURCE.GROUP/SUBRESOURCE`, or a path."""


class Need(NamedTuple):
    """A right that the run does not use."""

    role: str
    verbs: str
    what: str
    why: str
    test: str
    """The file below `tests` and the test that fails without the right."""


def component_roles() -> list[DefaultRole]:
    """The roles of components, and that by which a process of controllers acts as them."""
    roles = (*DEFAULT_ROLES, *(each for each in controller_roles() if each.name == IDENTITIES_ROLE))
    return [role for role in roles if COMPONENTS & {*role.groups}]


def rights(role: DefaultRole) -> Iterator[tuple[Right, PolicyRule]]:
    """Each right of a role, and the rule that has it alone."""
    for rule in role.rules:
        for verb in rule.verbs:
            for url in rule.non_resource_urls:
                yield Right(role.name, verb, url), PolicyRule(verbs=(verb,), non_resource_urls=(url,))
            for group in rule.api_groups:
                for resource in rule.resources:
                    name, slash, part = resource.partition("/")
                    what = (f"{name}.{group}" if group else name) + slash + part
                    yield (
                        Right(role.name, verb, what),
                        PolicyRule(verbs=(verb,), api_groups=(group,), resources=(resource,)),
                    )


def unused_rights(events: Sequence[AuditEvent]) -> set[Right]:
    """The rights of components that no request in the log used."""
    unused = set()
    for role in component_roles():
        used = [each for each in events if {*each.user.groups} & {*role.groups} & COMPONENTS]
        wanted = {each for event in used for each in _wanted(event, role)}
        paths = {(event.verb, event.request_uri.partition("?")[0]) for event in used if event.object_ref is None}
        for right, rule in rights(role):
            by_path = any(allows_path((rule,), *each) for each in paths)
            if not by_path and not any(allows_kind_of(rule, each) for each in wanted):
                unused.add(right)
    return unused


def _wanted(event: AuditEvent, role: DefaultRole) -> Iterator[Attributes]:
    """The requests for resources behind an entry, as the authorizer saw those that this role allowed."""
    if event.annotations.get(AUTHORIZATION_DECISION) != "allow":
        return
    if event.impersonated_user is not None:
        yield Attributes("impersonate", "", "users", "", "", event.impersonated_user.username)
        return
    ref = event.object_ref
    if ref is not None and role.namespace in ("", ref.namespace):
        yield Attributes(event.verb, ref.api_group, ref.resource, ref.subresource, ref.namespace, ref.name)


def listed(needs: Iterable[Need]) -> set[Right]:
    return {Right(each.role, verb, each.what) for each in needs for verb in each.verbs.split()}


_CSR: Final = "certificatesigningrequests.certificates.k8s.io"
_INCIDENT: Final = "e2e/test_incident.py::test_an_incident_of_separate_processes_is_replayed_from_its_file"
_JOIN: Final = "e2e/test_joining.py::test_agent_scheduler_and_controllers_join_run_a_pod_and_renew"
_GANG: Final = "unit/scheduler/test_gangs.py::test_a_gang_evicts_pods_of_lower_priority_and_is_bound_whole"
_REPORT: Final = (
    "unit/scheduler/test_reports.py::test_the_condition_and_the_event_of_an_attempt_carry_its_id_and_are_recorded"
)
_LOST: Final = "unit/client/test_outcomes.py::test_a_write_with_a_lost_reply_is_made_once_and_reported_as_made"
_POLICY: Final = (
    "sim/test_policy_status.py::test_the_leading_scheduler_writes_the_generation_and_versions_that_it_applies"
)
_UNBOUND: Final = "unit/scheduler/test_scheduler.py::test_a_bind_that_no_cache_shows_is_read_from_the_server"

NEEDS: Final = (
    Need("system:node", "post", "/kedge/incidents/*", "it sends its records while an incident is recorded", _INCIDENT),
    Need("system:node", "get create", _CSR, "a certificate is requested, and read once it is signed", _JOIN),
    Need("system:node", "create", f"{_CSR}/selfnodeclient", "its client certificate is renewed by rule", _JOIN),
    Need("system:node", "create", f"{_CSR}/selfnodeserver", "its serving certificate is approved by rule", _JOIN),
    Need("system:node", "get create patch", "events", "Events of pods, which are read before they count up", _LOST),
    Need("kedge:scheduler", "post", "/kedge/incidents/*", "as for an agent", _INCIDENT),
    Need("kedge:scheduler", "get create", _CSR, "a certificate is requested, and read once it is signed", _JOIN),
    Need("kedge:scheduler", "create", f"{_CSR}/selfclient", "its certificate is renewed by rule", _JOIN),
    Need("kedge:scheduler", "create", "pods/eviction", "preemption", _GANG),
    Need("kedge:scheduler", "create", "reservations.kedge.dev/gang", "a gang is reserved whole", _GANG),
    Need("kedge:scheduler", "get delete", "reservations.kedge.dev", "the record of a gang that is bound", _GANG),
    Need("kedge:scheduler", "get create patch", "events", "Events about pods without a node", _REPORT),
    Need("kedge:scheduler", "patch", "pods/status", "the condition of a pod without a node", _REPORT),
    Need("kedge:scheduler", "get", "pods", "the pod of a bind without a reply", _UNBOUND),
    Need("kedge:scheduler", "patch", "schedulingpolicies.kedge.dev/status", "the policy that is applied", _POLICY),
    Need("kedge:scheduler", "get", "schedulingpolicies.kedge.dev", "a policy whose status had no reply", _LOST),
    Need("kedge:controllers", "post", "/kedge/incidents/*", "as for an agent", _INCIDENT),
    Need("kedge:controllers", "get create", _CSR, "a certificate is requested, and read once it is signed", _JOIN),
    Need("kedge:controllers", "create", f"{_CSR}/selfclient", "its certificate is renewed by rule", _JOIN),
)
"""Rights that the run need not use, each with the test that makes such a request."""
FOUND_UNNEEDED: Final = frozenset(
    {
        Right("kedge:controllers", "create", "namespaces"),
        Right("system:node", "get", "endpointslices.discovery.k8s.io"),
        Right("system:node", "get", "recordingwindows.kedge.dev"),
        Right("system:node", "get", "services"),
    }
)
"""Rights that no request was seen to need. The list may only become shorter."""
