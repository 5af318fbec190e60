"""Events that agents write: as themselves, and about their own node or a pod that is bound to it.

`write_checks` has the other kinds. Events of users and other components are not checked here: their roles decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kedge.api.access import MASTERS, node_of
from kedge.api.objects import Object
from kedge.api.requests import RequestOptions
from kedge.api.views import PodView
from kedge.api.wellknown import NODE_KIND, POD_KIND
from kedge.errors import Forbidden
from kedge.keys import AGENT_PREFIX, Key

if TYPE_CHECKING:
    from kedge.server.service.core import Core


async def check_event(core: Core, options: RequestOptions, old: Object | None, new: Object) -> None:
    """Check a create or an update of an Event.

    Raises:
        Forbidden: an agent writes an Event of another component, or about an object that is not of its node.
    """
    node = node_of(options.caller, options.origin.groups)
    if not core.access.started or not node or MASTERS in options.origin.groups:
        return
    for each in (old, new):
        if each is not None and not _is_from(node, each.edit()):
            raise _refused(node, new, f"the source of such an Event is {AGENT_PREFIX}{node}, and its host this node")
    if not await _is_about_own(core, node, new):
        raise _refused(node, new, "such an Event is about this node, or about a pod that is bound to it")


def _refused(node: str, new: Object, rule: str) -> Forbidden:
    return Forbidden(
        f'events "{new.key.name}" is forbidden: the agent of node {node} may write its own Events alone: {rule}',
        key=new.key,
    )


def _is_from(node: str, event: Mapping[str, Any]) -> bool:
    """Whether every field of an Event that names its source names the agent of this node. `source` is not validated,
    so it may be of any type."""
    source = event.get("source") or {}
    if not isinstance(source, Mapping):
        return False
    components = set(_named(source.get("component"), event.get("reportingComponent")))
    hosts = set(_named(source.get("host")))
    return components == {f"{AGENT_PREFIX}{node}"} and hosts <= {node}


def _named(*values: Any) -> Iterator[str]:
    for value in values:
        if value:
            yield str(value)


async def _is_about_own(core: Core, node: str, event: Object) -> bool:
    about = event.edit().get("involvedObject") or {}
    kind, name, uid = about.get("kind"), str(about.get("name") or ""), about.get("uid")
    if kind != POD_KIND:
        return kind == NODE_KIND and name == node
    if not uid:
        return False  # such an Event would be shown with every pod of this name
    key = Key(POD_KIND, event.key.namespace, name)  # validation: an Event is in the namespace of its object
    # Not a proof: Events of a busy pod would lose races, and the pod's node does not change.
    (found,) = (await core.store.get([key])).entries
    # An agent deletes a pod before it writes the last Event about it, and another pod may have its name by then.
    if found is None or core.object_of(found).uid != uid:
        return True
    return core.object_of(found).as_view(PodView).spec.node_name == node
