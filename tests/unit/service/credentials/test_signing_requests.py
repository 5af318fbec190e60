"""Certificate signing requests: approved by rule or by a person, signed in the same commit, and deleted in time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from tests.kit.access import ADA, ADMIN, agent_of, binding, guarded_world, role, rule, written_by
from tests.kit.certificates import (
    SERVING,
    certificate_of,
    conditions_of,
    make_signer,
    request_pem,
    signing_request,
)
from tests.objects import NODE, World, asynchronous, node

from kedge.api.access import AUTHENTICATED, BOOTSTRAPPERS, Caller, joining_group
from kedge.api.bootstrap_tokens import bootstrap_secret
from kedge.api.kinds import KINDS
from kedge.api.wellknown import AGENT_HOST, SIGNING_REQUEST_KIND
from kedge.errors import BadRequest, Forbidden, Invalid, NotFound
from kedge.keys import Key
from kedge.limits import Limits
from kedge.server.service.credentials.expiry import sweep_credentials

REQUEST = KINDS.of_key_kind(SIGNING_REQUEST_KIND)
NODE_A = ("system:node:node-a", ["system:nodes"])


def bearer(component: str) -> Caller:
    """A caller with a bootstrap token for a component."""
    return Caller("system:bootstrap:abcdef", (BOOTSTRAPPERS, joining_group(component), AUTHENTICATED))


async def signing_world(folder: Path, limits: Limits | None = None) -> World:
    return await guarded_world(certificate_signer=partial(make_signer, folder), limits=limits)


async def sent(world: World, caller: Caller, body: dict[str, Any]) -> Any:
    return (await world.service.create(REQUEST, body, options=written_by(caller))).object.edit()


def approval(name: str, type_: str = "Approved") -> dict[str, Any]:
    condition = {"type": type_, "status": "True", "reason": "ByHand", "message": "by a person"}
    return {"metadata": {"name": name}, "status": {"conditions": [condition]}}


async def decided(world: World, caller: Caller, name: str, type_: str = "Approved") -> Any:
    key = Key(SIGNING_REQUEST_KIND, "", name)
    written = await world.service.patch(key, approval(name, type_), subresource="approval", options=written_by(caller))
    return written.object.edit()


@asynchronous
async def test_an_agent_with_a_token_gets_its_certificate_in_the_reply(tmp_path: Path) -> None:
    world = await signing_world(tmp_path)
    body = signing_request(
        "a", request_pem(*NODE_A), username="admin", groups=["system:masters"], expirationSeconds=900
    )
    document = await sent(world, bearer("agent"), body)
    assert document["spec"]["username"] == "system:bootstrap:abcdef"
    assert "system:masters" not in document["spec"]["groups"]
    found = certificate_of(document)
    assert found is not None
    assert found.subject.rfc4514_string() == "CN=system:node:node-a,O=system:nodes"
    assert found.not_valid_after_utc == world.env.now() + timedelta(seconds=900)
    usage = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    found.verify_directly_issued_by(authority)
    named = found.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    own = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    assert named.key_identifier == own.digest, "strict clients require it"


@asynchronous
async def test_a_token_does_not_become_a_node_that_exists_or_another_component(tmp_path: Path) -> None:
    world = await signing_world(tmp_path)
    await world.service.create(NODE, node("node-a"))
    for number, (caller, pem, signer) in enumerate((
        (bearer("agent"), request_pem(*NODE_A), "kube-apiserver-client-kubelet"),
        (bearer("scheduler"), request_pem("system:node:node-b", ["system:nodes"]), "kube-apiserver-client-kubelet"),
        (bearer("agent"), request_pem("system:kube-scheduler", ["kedge:schedulers"]), "kube-apiserver-client"),
        (ADA, request_pem("system:kube-scheduler", ["kedge:schedulers"]), "kube-apiserver-client"),
    )):  # fmt: skip
        document = await sent(world, caller, signing_request(f"r-{number}", pem, signer))
        assert conditions_of(document) == {}
        assert certificate_of(document) is None
    renewed = await sent(world, agent_of("node-a"), signing_request("own", request_pem(*NODE_A)))
    assert certificate_of(renewed) is not None
    pem = request_pem("system:kube-scheduler", ["kedge:schedulers"])
    joined = await sent(world, bearer("scheduler"), signing_request("s", pem, "kube-apiserver-client"))
    assert certificate_of(joined) is not None


@asynchronous
async def test_a_serving_certificate_has_the_name_of_agents_and_no_other(tmp_path: Path) -> None:
    world = await signing_world(tmp_path)
    await world.service.create(NODE, node("node-a"))
    right = signing_request("a", request_pem(*NODE_A, [AGENT_HOST]), "kubelet-serving", SERVING)
    found = certificate_of(await sent(world, agent_of("node-a"), right))
    assert found is not None
    assert found.subject.rfc4514_string() == "CN=system:node:node-a,O=system:nodes"
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [each.value for each in names] == [AGENT_HOST]
    other = signing_request("b", request_pem(*NODE_A, [AGENT_HOST]), "kubelet-serving", SERVING)
    assert conditions_of(await sent(world, agent_of("node-b"), other)) == {}


@asynchronous
async def test_an_agent_gets_no_certificate_of_an_address_that_it_wrote_to_its_node(tmp_path: Path) -> None:
    """The address may be that of an API server: clients would accept the agent in its place."""
    world = await signing_world(tmp_path)
    await world.service.create(NODE, node("node-a"))
    own = written_by(agent_of("node-a"))
    status = {"addresses": [{"type": "InternalIP", "address": each} for each in ("127.0.0.1", "kedge.example")]}
    await world.service.patch(Key("Node", "", "node-a"), {"status": status}, subresource="status", options=own)
    for number, names in enumerate((["127.0.0.1"], ["kedge.example"], ["node-a"], [AGENT_HOST, "kedge.example"])):
        body = signing_request(f"r-{number}", request_pem(*NODE_A, names), "kubelet-serving", SERVING)
        assert conditions_of(await sent(world, agent_of("node-a"), body)) == {}
        document = await decided(world, ADMIN, f"r-{number}")
        assert certificate_of(document) is None, "approved by mistake"
        assert AGENT_HOST in conditions_of(document)["Failed"]


@asynchronous
async def test_a_person_approves_or_denies_and_needs_the_right_for_the_signer(tmp_path: Path) -> None:
    world = await signing_world(tmp_path)
    for name in ("a", "b", "c"):
        pem = request_pem("ada", ["people"])
        await sent(world, ADA, signing_request(name, pem, "kube-apiserver-client"))
    with pytest.raises(Forbidden, match="cannot approve for the signer"):
        await decided(world, ADA, "a")
    with pytest.raises(Forbidden, match="cannot approve for the signer"):
        await decided(world, Caller("c", ("kedge:controllers", AUTHENTICATED)), "a")
    document = await decided(world, ADMIN, "a")
    assert conditions_of(document) == {"Approved": "by a person"}
    found = certificate_of(document)
    assert found is not None
    assert found.subject.rfc4514_string() == "CN=ada,O=people"
    assert certificate_of(await decided(world, ADMIN, "b", "Denied")) is None
    with pytest.raises(Invalid, match="mutually exclusive"):
        await world.service.patch(
            Key(SIGNING_REQUEST_KIND, "", "b"),
            {"status": {"conditions": [{"type": each, "status": "True"} for each in ("Denied", "Approved")]}},
            subresource="approval",
        )
    with pytest.raises(Invalid, match="may not remove"):
        await world.service.patch(
            Key(SIGNING_REQUEST_KIND, "", "a"), {"status": {"conditions": []}}, subresource="approval"
        )
    approver = role("approver", rule("approve", "signers", "certificates.k8s.io", resourceNames=["kubernetes.io/*"]))
    await world.create(approver)
    await world.create(binding("approver", "ClusterRole/approver", "User/ada"))
    assert certificate_of(await decided(world, ADA, "c")) is not None
    with pytest.raises(Forbidden, match="cannot sign for the signer"):
        await world.service.patch(
            Key(SIGNING_REQUEST_KIND, "", "b"),
            {"status": {"certificate": "eA=="}},
            subresource="status",
            options=written_by(ADA),
        )


@asynchronous
async def test_an_approval_of_an_administrator_group_fails_instead_of_being_signed(tmp_path: Path) -> None:
    world = await signing_world(tmp_path)
    pem = request_pem("ada", ["system:masters"])
    await sent(world, ADA, signing_request("a", pem, "kube-apiserver-client"))
    document = await decided(world, ADMIN, "a")
    assert "system:masters" in conditions_of(document)["Failed"]
    assert certificate_of(document) is None


@asynchronous
async def test_a_dry_run_gets_no_certificate(tmp_path: Path) -> None:
    world = await signing_world(tmp_path)
    options = replace_dry_run(bearer("agent"))
    body = signing_request("a", request_pem(*NODE_A))
    document = (await world.service.create(REQUEST, body, options=options)).object.edit()
    assert "Approved" in conditions_of(document)
    assert certificate_of(document) is None


def replace_dry_run(caller: Caller) -> Any:
    return msgspec.structs.replace(written_by(caller), dry_run=True)


@asynchronous
async def test_a_request_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    world = await signing_world(tmp_path)
    damaged = b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"
    with pytest.raises(BadRequest, match="cannot be read"):
        await sent(world, bearer("agent"), signing_request("a", damaged))
    with pytest.raises(Invalid, match="PEM block type"):
        await sent(world, bearer("agent"), signing_request("a", b"hello"))


@asynchronous
async def test_a_server_without_the_key_of_the_authority_only_stores_requests() -> None:
    world = await guarded_world()
    document = await sent(world, bearer("agent"), signing_request("a", request_pem(*NODE_A)))
    assert conditions_of(document) == {}


@asynchronous
async def test_requests_and_tokens_are_deleted_at_the_end_of_their_time(tmp_path: Path) -> None:
    limits = replace(Limits(), signing_request_done_s=100.0, signing_request_pending_s=1000.0)
    world = await signing_world(tmp_path, limits)
    await sent(world, bearer("agent"), signing_request("done", request_pem(*NODE_A)))
    await sent(world, ADA, signing_request("pending", request_pem("ada", []), "kube-apiserver-client"))
    expires = world.env.now() + timedelta(seconds=500)
    await world.create(bootstrap_secret("abcdef.0123456789abcdef", [], expires, ""))
    core = world.service._core
    assert await sweep_credentials(core) == 0
    world.clock.advance(101)
    assert await sweep_credentials(core) == 1
    with pytest.raises(NotFound):
        await world.get(Key(SIGNING_REQUEST_KIND, "", "done"))
    world.clock.advance(400)
    assert await sweep_credentials(core) == 1
    world.clock.advance(500)
    assert await sweep_credentials(core) == 1
