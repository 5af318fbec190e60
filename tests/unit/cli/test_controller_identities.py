"""Each controller writes as a user of its own, with a role that has its declared writes and nothing else."""

from __future__ import annotations

import pytest
from tests.kit.access import ADMIN, guarded_world
from tests.objects import World, asynchronous

from kedge.api.access import CONTROLLERS, Caller
from kedge.api.kinds import KINDS
from kedge.api.requests import Delete, DeleteOptions, Get, Patch, WriteOptions
from kedge.cli.controller_identities import USER_PREFIX, ControllerIdentities, controller_roles, controller_specs
from kedge.client.direct import DirectTransport
from kedge.errors import Forbidden
from kedge.keys import Key, Origin
from kedge.server.service.access.write_checks import impersonation_of_user

PROCESS = Caller("controllers", (CONTROLLERS,))
SECRET = Key("Secret", "default", "one")


async def world_with_controllers() -> tuple[World, ControllerIdentities]:
    world = await guarded_world()
    await world.service.ensure_default_roles(controller_roles())
    await world.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "one", "namespace": "default"}})
    inner = DirectTransport(world.service, caller=PROCESS.user, groups=PROCESS.groups, authorized=True)
    return world, ControllerIdentities(inner)


def decided_by(name: str) -> WriteOptions:
    return WriteOptions(origin=Origin("", f"{name}:abc:1"))


def deletion_by(name: str) -> DeleteOptions:
    return DeleteOptions(origin=Origin("", f"{name}:abc:1"))


@asynchronous
async def test_a_controller_makes_its_own_writes_and_no_others() -> None:
    world, transport = await world_with_controllers()
    for name in ("deployment", "endpoints", "quota"):
        with pytest.raises(Forbidden, match=f'User "{USER_PREFIX}{name}" cannot delete resource "secrets"'):
            await transport.send(Delete(SECRET, deletion_by(name)))
    await transport.send(Delete(SECRET, deletion_by("garbage")))
    assert (await world.store.get([SECRET])).entries == (None,)


@asynchronous
async def test_the_process_reads_for_its_controllers_and_writes_nothing_itself() -> None:
    _, transport = await world_with_controllers()
    assert (await transport.send(Get(SECRET))).key == SECRET
    with pytest.raises(Forbidden, match='User "controllers" cannot delete'):
        await transport.send(Delete(SECRET))
    with pytest.raises(Forbidden, match='User "controllers" cannot delete'):
        await transport.send(Delete(SECRET, deletion_by("default-scheduler")))


@asynchronous
async def test_a_version_names_the_controller_that_wrote_it() -> None:
    world, transport = await world_with_controllers()
    await transport.send(Patch(SECRET, {"metadata": {"labels": {"a": "b"}}}, options=decided_by("garbage")))
    (entry,) = (await world.store.get([SECRET])).entries
    assert entry is not None
    assert (entry.origin.caller, entry.origin.groups) == (f"{USER_PREFIX}garbage", ())


@asynchronous
async def test_the_process_may_act_as_its_controllers_and_as_no_other_user() -> None:
    world, _ = await world_with_controllers()
    access = world.service.access
    for spec in controller_specs():
        assert access.allows_nowait(PROCESS, impersonation_of_user(f"{USER_PREFIX}{spec.name}"))
    assert not access.allows_nowait(PROCESS, impersonation_of_user("kedge-admin"))
    assert access.allows_nowait(ADMIN, impersonation_of_user("kedge-admin"))


def test_only_garbage_collection_and_namespaces_are_about_every_kind() -> None:
    wide = {spec.name for spec in controller_specs() for each in spec.writes or () if each.kind is None}
    assert wide == {"garbage", "namespace"}
    named = {each.kind.key_kind for spec in controller_specs() for each in spec.writes or () if each.kind is not None}
    assert "Secret" not in named
    assert named <= {kind.key_kind for kind in KINDS}


@asynchronous
async def test_roles_of_controllers_are_ensured_once() -> None:
    world, _ = await world_with_controllers()
    assert await world.service.ensure_default_roles(controller_roles()) == 0
