"""Every request of the union is carried out, objects come back unchanged, and errors keep their type and facts."""

from __future__ import annotations

from datetime import timedelta
from typing import get_args

from kedge.api.requests import (
    AnyRequest,
    Binding,
    BoundObject,
    DeleteOptions,
    Evict,
    GangChunk,
    GangPlace,
    ListOptions,
    PatchType,
    WriteOptions,
)
from kedge.api.wellknown import (
    DEFAULT_ACCOUNT,
    DEPLOYMENT_KIND,
    DISRUPTION_BUDGET_KIND,
    GANG_LABEL,
    GANG_SIZE,
    POD_KIND,
    SERVICE_ACCOUNT_KIND,
)
from kedge.client.conformance.subject import (
    CONFIG_MAP,
    DEPLOYMENT,
    NAMESPACE,
    POD,
    ClientSubject,
    InterposedTransport,
    by,
    config_map,
    key,
)
from kedge.client.contract import Client
from kedge.errors import (
    AlreadyExists,
    BadRequest,
    Compacted,
    Conflict,
    Invalid,
    MethodNotAllowed,
    NotFound,
    Refused,
    TooManyRequests,
)
from kedge.expectations import expect, raises, same
from kedge.keys import Key, Origin


async def check_every_request_is_carried_out(subject: ClientSubject) -> None:
    """Each member of the union has its effect and its reply."""
    recorded = InterposedTransport(subject.transport)
    client = Client(recorded, subject.env, component="conformance")
    await client.create(CONFIG_MAP, config_map("a", x="1"), namespace=NAMESPACE)
    await client.update(key("a"), config_map("a", x="2"))
    for patch, patch_type in (
        ({"data": {"merged": "1"}}, PatchType.MERGE),
        ([{"op": "add", "path": "/data/json", "value": "1"}], PatchType.JSON),
        ({"data": {"strategic": "1"}}, PatchType.STRATEGIC),
    ):
        await client.patch(key("a"), patch, patch_type=patch_type)
    found = await client.get(key("a"))
    same(found.edit()["data"], {"x": "2", "merged": "1", "json": "1", "strategic": "1"}, "the object after its patches")
    same([each.key for each in (await client.list(CONFIG_MAP)).objects], [key("a")], "the list of one object")
    events = await client.watch(CONFIG_MAP)
    await events.aclose()
    expect((await client.delete(key("a"))).removed, "a delete without finalizers removes the object at once")
    for name in ("b", "c"):
        await client.create(CONFIG_MAP, config_map(name), namespace=NAMESPACE)
    deleted = await client.delete_collection(CONFIG_MAP, ListOptions(namespace=NAMESPACE))
    same(sorted(each.object.key.name for each in deleted), ["b", "c"], "the objects that deletecollection returns")
    await _check_scale(client)
    await _check_pod_requests(subject, client)
    same({type(each) for each in recorded.sent}, set(get_args(AnyRequest)), "the requests that this check sends")


async def _check_scale(client: Client) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}
    await client.create(DEPLOYMENT, body, namespace=NAMESPACE)
    where = Key(DEPLOYMENT_KIND, NAMESPACE, "d")
    same((await client.get_scale(where))["spec"]["replicas"], 2, "the scale of a Deployment")
    scaled = await client.patch(where, {"spec": {"replicas": 5}}, subresource="scale")
    same(scaled.object.view.spec.replicas, 5, "the Deployment in the reply to a patch of its scale")
    same((await client.get_scale(where))["spec"]["replicas"], 5, "the scale after a patch of it")


async def _check_pod_requests(subject: ClientSubject, client: Client) -> None:
    node = await subject.node()
    pod = await subject.pod("bound")
    bound = await client.bind(Binding(pod=pod.key, pod_uid=pod.uid, node="n1", node_uid=node.uid))
    same(bound.object.view.spec.node_name, "n1", "the node of a bound pod")
    account = Key(SERVICE_ACCOUNT_KIND, NAMESPACE, DEFAULT_ACCOUNT)
    try:
        issued = await client.request_token(account, bound=BoundObject(kind=POD_KIND, name="bound", uid=pod.uid))
        expect(issued.token and issued.expires > subject.env.now(), "a token is not empty and has not expired")
    except MethodNotAllowed:
        pass  # a server without a key for tokens
    await client.evict(pod.key, DeleteOptions(grace_s=0))
    await client.confirm_ended(node="n1", node_uid=node.uid, pod_uid=pod.uid)
    metadata = {"name": "member", "labels": {GANG_LABEL: "g"}, "annotations": {GANG_SIZE: "1"}}
    body = {"metadata": metadata, "spec": {"containers": [{"name": "main", "image": "x"}]}}
    member = (await client.create(POD, body, namespace=NAMESPACE)).object
    place = GangPlace(pod="member", pod_uid=member.uid, node="n1")
    deadline = subject.env.now() + timedelta(minutes=5)
    chunk = GangChunk(namespace=NAMESPACE, gang="g", size=1, deadline=deadline, places=(place,))
    reserved = await client.reserve(chunk)
    expect(b"member" in reserved.object.value, "the record of a gang names its member")


async def check_objects_come_back_unchanged(subject: ClientSubject) -> None:
    """Value, revisions, operation id and decision id are the same in the write's reply, in a get and in a list."""
    client = subject.client
    made = await subject.config_map("a", options=by("op-1", "controller:7"), text="höchst \u2028 unchanged")
    found = await client.get(key("a"))
    (listed,) = (await client.list(CONFIG_MAP, ListOptions(namespace=NAMESPACE))).objects
    for each, where in ((found, "get"), (listed, "list")):
        same(each.value, made.value, f"the value in a {where}")
        same((each.revision, each.created), (made.revision, made.revision), f"the revisions in a {where}")
        wanted = Origin("op-1", "controller:7", subject.caller, subject.groups)
        same(each.origin, wanted, f"the origin in a {where}")
    changed = (await client.patch(key("a"), {"data": {"b": "2"}}, options=by("op-2"))).object
    same((changed.created, changed.origin.operation), (made.revision, "op-2"), "creation and origin after a patch")
    gone = await client.delete(key("a"), DeleteOptions(origin=Origin("op-3")))
    same((gone.removed, gone.object.uid), (True, made.uid), "the reply to a delete")


async def check_errors_keep_their_facts(subject: ClientSubject) -> None:
    """An error has the type, the key, the fields and the revision that the service gave it."""
    client = subject.client
    made = await subject.config_map("a", x="1")
    missing = await raises(NotFound, client.get(key("none")), "a get of nothing")
    same(missing.key, key("none"), "the key of a NotFound")
    await raises(AlreadyExists, subject.config_map("a"), "a second create")
    invalid = await raises(Invalid, subject.config_map("Bad Name"), "a create with a bad name")
    same(invalid.errors[0].path, "metadata.name", "the field of an Invalid")
    await raises(BadRequest, client.list(CONFIG_MAP, ListOptions(label_selector="a in")), "a malformed selector")
    stale = {**config_map("a", x="2"), "metadata": {"name": "a", "resourceVersion": str(made.revision)}}
    newer = (await client.patch(key("a"), {"data": {"y": "1"}})).object
    lost = await raises(Conflict, client.update(key("a"), stale), "an update of an old version")
    same((lost.key, lost.revision), (key("a"), newer.revision), "the object that a Conflict names")
    await raises(Conflict, client.delete(key("a"), DeleteOptions(uid="another")), "a delete of another uid")


async def check_claims_are_refused_with_a_reason(subject: ClientSubject) -> None:
    """A bind that does not fit is Refused with its reason, and an eviction beyond its budget has to wait."""
    client = subject.client
    node = await subject.node(cpu="1")
    large = await subject.pod("large", cpu="3")
    refused = await raises(
        Refused, client.bind(Binding(pod=large.key, pod_uid=large.uid, node="n1", node_uid=node.uid)), "a bind"
    )
    expect(refused.refusal and refused.key is not None, "a Refused has a reason code and an object")
    expect(refused.revision > 0, "a Refused has the revision that the scheduler must have seen")
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}
    budget = {"metadata": {"name": "b"}, "spec": spec}
    await client.create(client.kinds.of_key_kind(DISRUPTION_BUDGET_KIND), budget, namespace=NAMESPACE)
    kept = await subject.pod("kept", app="kept")
    await client.bind(Binding(pod=kept.key, pod_uid=kept.uid, node="n1", node_uid=node.uid))
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    await client.patch(kept.key, ready, subresource="status")
    eviction = subject.transport.send(Evict(kept.key))  # the client would wait and try again
    waits = await raises(TooManyRequests, eviction, "an eviction beyond its budget")
    expect(waits.retry_after_s > 0, "a refused eviction has the time to wait")


async def check_lists_come_in_pages(subject: ClientSubject) -> None:
    """Pages of one list are of one revision and count the rest; a token of a compacted past is Compacted."""
    client = subject.client
    for number in range(5):
        await subject.config_map(f"c{number}", n=str(number))
    first = await client.list(CONFIG_MAP, ListOptions(namespace=NAMESPACE, limit=2))
    same((len(first.objects), first.remaining), (2, 3), "the first page and the rest")
    await subject.config_map("late")
    rest = await client.list(
        CONFIG_MAP, ListOptions(namespace=NAMESPACE, limit=10, continue_token=first.continue_token)
    )
    same([each.key.name for each in rest.objects], ["c2", "c3", "c4"], "the next page, of the same revision")
    same((rest.revision, rest.continue_token), (first.revision, ""), "revision and token of the last page")
    await subject.compact()
    again = ListOptions(namespace=NAMESPACE, limit=2, continue_token=first.continue_token)
    await raises(Compacted, client.list(CONFIG_MAP, again), "a page of a compacted revision")


async def check_dry_runs_and_warnings(subject: ClientSubject) -> None:
    """A dry run stores nothing; warnings of the service reach the caller."""
    client = subject.client
    dry = await subject.config_map("dry", options=WriteOptions(dry_run=True), x="1")
    same(dry.key, key("dry"), "the key in the reply to a dry run")
    await raises(NotFound, client.get(key("dry")), "a get after a dry run")
    spec = {"containers": [{"name": "main", "image": "x"}], "shinyNewField": True}
    written = await client.create(POD, {"metadata": {"name": "warned"}, "spec": spec}, namespace=NAMESPACE)
    expect(any("shinyNewField" in each for each in written.warnings), f"a warning names it: {written.warnings}")


async def check_deletions_wait_for_finalizers(subject: ClientSubject) -> None:
    """An object with a finalizer is not removed by a delete, nor by deletecollection, and the replies show that."""
    client = subject.client
    for name in ("one", "many"):
        body = {**config_map(name), "metadata": {"name": name, "finalizers": ["example.com/f"]}}
        await client.create(CONFIG_MAP, body, namespace=NAMESPACE)
    ending = await client.delete(key("one"))
    expect(not ending.removed, "a delete of an object with a finalizer does not remove it")
    expect(ending.object.metadata.deletion_timestamp is not None, "it has a deletionTimestamp")
    selection = ListOptions(namespace=NAMESPACE, field_selector="metadata.name=many")
    (many,) = await client.delete_collection(CONFIG_MAP, selection)
    expect(not many.removed, "nor does deletecollection")
    last = await client.patch(key("one"), {"metadata": {"finalizers": None}})
    expect(last.removed, "the write that drops the last finalizer removes the object")
    await raises(NotFound, client.get(key("one")), "a get after that")
