"""The node authorizer: an agent touches its own node, its lease, its pods and what they refer to, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.kit.access import agent_of, guarded_world, wants, written_by
from tests.objects import NODE, POD, World, asynchronous, node, pod, pod_key

from kedge.api.access import Caller
from kedge.api.kinds import KINDS
from kedge.api.requests import Binding, BoundObject, DeleteOptions, GetOptions, RequestToken
from kedge.api.wellknown import LEASE_KIND
from kedge.errors import Conflict, Forbidden, NotFound
from kedge.keys import Key, Origin
from kedge.server.http.token_keys import SigningKeys

A, B = agent_of("node-a"), agent_of("node-b")
KEYS = SigningKeys([ec.generate_private_key(ec.SECP256R1())])


async def bound_world(**spec: Any) -> World:
    """The pod web-0 runs on node-a; node-b is empty."""
    world = await guarded_world(token_keys=KEYS)
    for name in ("node-a", "node-b"):
        await world.service.create(NODE, node(name))
    body = pod()
    body["spec"].update(spec)
    made = await world.create(body)
    await world.service.bind(Binding(pod=made.key, pod_uid=made.uid, node="node-a"))
    return world


@asynchronous
async def test_an_agent_reads_what_its_pods_refer_to_while_they_are_bound() -> None:
    volumes = [{"name": "v", "secret": {"secretName": "key"}}, {"name": "w", "configMap": {"name": "settings"}}]
    world = await bound_world(volumes=volumes, serviceAccountName="robot")
    allows = world.service.access.allows
    wanted = [
        wants("get", "secrets", "default", "key"),
        wants("get", "configmaps", "default", "settings"),
        wants("get", "serviceaccounts", "default", "robot"),
        wants("create", "serviceaccounts/token", "default", "robot"),
    ]
    for each in wanted:
        assert await allows(A, each), each
        assert not await allows(B, each), each
        assert not await allows(A, each._replace(name="other")), each
        assert not await allows(A, each._replace(namespace="kube-system")), each
        assert not await allows(A, each._replace(verb="list", name="")), each
        assert not await allows(A, each._replace(verb="update")), each
    await world.record_end(pod_key())
    assert not await allows(A, wanted[0])


@asynchronous
async def test_an_agent_reads_its_pods_and_no_others() -> None:
    world = await bound_world()
    await world.create(pod("unbound"))
    access = world.service.access
    await access.check(A, wants("get", "pods", "default", "web-0"))
    for caller, name in ((B, "web-0"), (A, "unbound")):
        with pytest.raises(NotFound):  # a pod of the same name that was here is gone
            await access.check(caller, wants("get", "pods", "default", name))
    own = wants("list", "pods")._replace(field_selector="spec.nodeName=node-a")
    assert await access.allows(A, own)
    assert await access.allows(A, own._replace(verb="watch", namespace="default"))
    for selector in ("", "spec.nodeName=node-b", "spec.nodeName!=node-a", "spec.nodeName=node-ab"):
        assert not await access.allows(A, own._replace(field_selector=selector))


@asynchronous
async def test_an_agent_writes_the_status_of_its_pods_alone_and_its_commit_proves_that() -> None:
    world = await bound_world()
    ready, failed = {"status": {"phase": "Running"}}, {"status": {"phase": "Failed"}}
    await world.service.patch(pod_key(), ready, subresource="status", options=written_by(A))
    with pytest.raises(Forbidden, match="bound to this node alone"):
        await world.service.patch(pod_key(), failed, subresource="status", options=written_by(B))
    options = DeleteOptions(caller=B.user, origin=Origin(caller=B.user, groups=B.recorded_groups), grace_s=0)
    with pytest.raises(Forbidden, match="bound to this node alone"):
        await world.service.delete(pod_key(), options)
    with pytest.raises(Conflict):  # its own pod of that name is gone, and it learns that first
        await world.service.delete(pod_key(), DeleteOptions(caller=B.user, origin=options.origin, uid="older"))
    with pytest.raises(Forbidden):
        await world.service.create(POD, pod("mine"), options=written_by(A))
    own = DeleteOptions(caller=A.user, origin=Origin(caller=A.user, groups=A.recorded_groups), grace_s=0)
    await world.service.delete(pod_key(), own)


@asynchronous
async def test_an_agent_writes_its_own_node_and_lease_alone() -> None:
    world = await bound_world()
    allows = world.service.access.allows
    lease = wants("update", "leases", "kube-node-lease", "node-a", group="coordination.k8s.io")
    for each in (wants("patch", "nodes/status", "", "node-a"), wants("update", "nodes", "", "node-a"), lease):
        assert await allows(A, each)
        assert not await allows(B, each)
        assert not await allows(A, each._replace(verb="delete"))
    assert not await allows(A, lease._replace(namespace="kube-system"))
    with pytest.raises(Forbidden, match="this node alone"):
        await world.service.create(NODE, node("node-c"), options=written_by(A))
    leases = KINDS.of_key_kind(LEASE_KIND)
    body = {"metadata": {"name": "node-b", "namespace": "kube-node-lease"}, "spec": {}}
    with pytest.raises(Forbidden, match="lease of this node alone"):
        await world.service.create(leases, body, options=written_by(A))
    await world.service.create(leases, body, options=written_by(B))
    await world.service.create(NODE, node("node-c"), options=written_by(agent_of("node-c")))


@asynchronous
async def test_an_agent_gets_tokens_for_pods_of_its_node_alone() -> None:
    world = await bound_world()
    account = Key("ServiceAccount", "default", "default")

    async def token(caller: Caller, bound: BoundObject | None) -> str:
        options = GetOptions(caller=caller.user, origin=Origin(caller=caller.user, groups=caller.recorded_groups))
        return (await world.service.send(RequestToken(key=account, bound=bound, options=options))).token

    its_pod = BoundObject(kind="Pod", name="web-0")
    assert await token(A, its_pod)
    for caller, bound in ((B, its_pod), (A, None), (A, BoundObject(kind="Node", name="node-a"))):
        with pytest.raises(Forbidden, match="tokens for pods on this node alone"):
            await token(caller, bound)


@asynchronous
async def test_the_group_or_the_name_alone_make_no_agent() -> None:
    world = await bound_world()
    own = wants("patch", "nodes/status", "", "node-a")
    assert not await world.service.access.allows(Caller(A.user, ()), own)
    assert not await world.service.access.allows(Caller("node-a", A.groups), own)
    assert not await world.service.access.allows(Caller("system:node:", A.groups), own._replace(name=""))


@asynchronous
async def test_every_agent_reads_what_proxies_need_and_no_more() -> None:
    world = await bound_world()
    allows = world.service.access.allows
    for resource, group in (("nodes", ""), ("services", ""), ("endpointslices", "discovery.k8s.io")):
        assert await allows(A, wants("watch", resource, group=group))
    for each in (
        wants("list", "secrets"), wants("list", "configmaps"), wants("get", "jobs", "default", "d", group="batch"),
        wants("create", "pods", "default"), wants("create", "pods/exec", "default", "web-0"),
        wants("create", "pods/binding", "default", "web-0"), wants("update", "pods", "default", "web-0"),
        wants("get", "nodeallocations", "", "node-b", group="kedge.dev"), wants("delete", "nodes", "", "node-a"),
        wants("create", "nodeallocations/ended", "", "node-b", group="kedge.dev"),
        wants("delete", "events", "default", "e"),
    ):  # fmt: skip
        assert not await allows(A, each), each
    assert await allows(A, wants("create", "nodeallocations/ended", "", "node-a", group="kedge.dev"))
