"""Texts that no wire can carry and texts of a megabyte, in every place of every request: errors stay short and sound.

The places come from the types of the requests, so that a new member is tested without a line here.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast, get_args

import msgspec
import pytest
from tests.kit.api_server import local_api
from tests.kit.client import QUICK
from tests.kit.loops import on_loop
from tests.kit.sample_requests import SAMPLES
from tests.objects import CONFIG_MAP, NAMESPACE, make_world

from kedge.api.request_text import _members_of
from kedge.api.requests import (
    AnyRequest,
    Create,
    OpenWatch,
    Patch,
    PatchType,
    Request,
    Update,
    WriteOptions,
)
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.client.http import HttpTransport, ServerAddress
from kedge.env import system_env
from kedge.errors import BadRequest, Invalid, OperatingError, to_status
from kedge.keys import NO_ORIGIN, Key
from kedge.limits import ERROR_FIELD_CHARS_MAX, ERROR_FIELDS_MAX, ERROR_TEXT_CHARS_MAX, Limits

LONE = "x\ud800y"
LONG = "x" * 1_000_000
A = Key("ConfigMap", "default", "a")
STATUS_BYTES_MAX = ERROR_TEXT_CHARS_MAX + 2 * ERROR_FIELD_CHARS_MAX * (ERROR_FIELDS_MAX + 2)


@asynccontextmanager
async def served(over: str) -> AsyncIterator[Client]:
    """A client in the same process, or over HTTP, of a service that has one ConfigMap."""
    if over == "direct":
        world = await make_world(limits=QUICK)
        client = Client(DirectTransport(world.service), world.env, component="test")
        await client.create(CONFIG_MAP, config_map(), namespace="default")
        yield client
        return
    async with local_api() as (_, port):
        transport = HttpTransport(ServerAddress("127.0.0.1", port))
        client = Client(transport, system_env(), component="test")
        await client.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
        await client.create(CONFIG_MAP, config_map(), namespace="default")
        yield client
        await transport.close()


def config_map(**metadata: Any) -> dict[str, Any]:
    meta = {"name": "a", "namespace": "default", **metadata}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"k": "v"}}


def replaced(value: Any, path: str, text: str) -> Any:
    """`value` with the member at `path` set."""
    name, _, rest = path.partition(".")
    inner = replaced(getattr(value, name), rest, text) if rest else text
    return (
        value._replace(**{name: inner})
        if hasattr(value, "_fields")
        else msgspec.structs.replace(value, **{name: inner})
    )


def in_members(text: str) -> Iterator[tuple[Request[Any], str]]:
    """Each request with each of its members set, and the path of that member."""
    for sample in SAMPLES:
        for path in _members_of(cast("type[Request[Any]]", type(sample))).names:
            yield replaced(sample, path, text), path


def in_bodies(text: str) -> Iterator[tuple[Any, str]]:
    """Requests whose body has the text somewhere, and where."""
    places = {
        "name": config_map(name=text),
        "namespace": config_map(namespace=text),
        "generateName": config_map(name="", generateName=text),
        "label": config_map(labels={"a": text}),
        "label name": config_map(labels={text: "a"}),
        "annotation": config_map(annotations={"a": text}),
        "annotation name": config_map(annotations={text: "a"}),
        "owner": config_map(ownerReferences=[{"apiVersion": "v1", "kind": "Pod", "name": text, "uid": text}]),
        "finalizer": config_map(finalizers=[text]),
        "version": config_map(resourceVersion=text),
        "uid": config_map(uid=text),
        "kind": {**config_map(), "kind": text},
        "apiVersion": {**config_map(), "apiVersion": text},
        "data name": {**config_map(), "data": {text: "v"}},
        "data of the wrong type": {**config_map(), "data": {"a": [text]}},
        "unknown field": {**config_map(), text: {text: 1}},
    }
    for place, body in places.items():
        yield Create(CONFIG_MAP, body, "default"), f"create: {place}"
        yield Update(A, body), f"update: {place}"
        for patch_type in (PatchType.MERGE, PatchType.STRATEGIC):
            yield Patch(A, body, patch_type), f"{patch_type.name} patch: {place}"
    operations: list[dict[str, Any]] = [
        {"op": text, "path": "/data"},
        {"op": "add", "path": text, "value": 1},
        {"op": "add", "path": f"/data/{text}/x", "value": 1},
        {"op": "test", "path": "/data/k", "value": text},
        {"op": "test", "path": f"/{text}", "value": 1},
        {"op": "move", "from": f"/{text}", "path": "/data/x"},
        {"op": "add", "path": "/metadata/labels", "value": {text: text}},
        {"op": "add", "path": "/metadata/finalizers", "value": [text]},
    ]
    for operation in operations:
        yield Patch(A, [operation], PatchType.JSON), f"JSON patch: {operation['op'][:9]!r} {operation['path'][:9]!r}"
    directive = {"metadata": {"finalizers": [text], "$patch": text}}
    yield Patch(A, directive, PatchType.STRATEGIC), "directive"


async def sent(client: Client, request: Request[Any]) -> None:
    if isinstance(request, OpenWatch):
        events = await client.open_watch(request)
        await events.aclose()
    else:
        await client.send(request)


def check_error(error: OperatingError) -> bytes:
    """An error can be sent, and is not as long as the request. Returns its Status."""
    status = msgspec.json.encode(to_status(error))
    str(error).encode()
    assert len(str(error)) <= ERROR_TEXT_CHARS_MAX
    assert len(status) <= STATUS_BYTES_MAX
    return status


def test_every_request_has_a_sample() -> None:
    assert {type(each) for each in SAMPLES} == set(get_args(AnyRequest))


async def error_of(client: Client, request: Request[Any]) -> OperatingError | None:
    try:
        await sent(client, request)
    except OperatingError as error:
        return error
    return None


@pytest.mark.parametrize("over", ["direct", "http"])
@on_loop
async def test_a_lone_surrogate_in_a_member_is_refused_by_name(over: str) -> None:
    async with served(over) as client:
        for request, path in in_members(LONE):
            error = await error_of(client, request)
            assert isinstance(error, BadRequest), (request.label, path)
            assert f"{path} is not valid Unicode" in str(error)
            check_error(error)


@pytest.mark.parametrize("over", ["direct", "http"])
@pytest.mark.parametrize("form", ["mapping", "bytes"])
@on_loop
async def test_a_lone_surrogate_in_a_body_is_refused_and_its_field_named(over: str, form: str) -> None:
    async with served(over) as client:
        for request, place in in_bodies(LONE):
            if form == "bytes":
                request = msgspec.structs.replace(request, body=json.dumps(request.body).encode())
            error = await error_of(client, request)
            assert isinstance(error, BadRequest | Invalid), place
            assert re.search(r"\w.* is not valid Unicode: it has a lone surrogate", str(error)), place
            check_error(error)


@on_loop
async def test_an_error_about_a_long_text_is_short() -> None:
    world = await make_world(limits=Limits(watch_future_wait_s=0.001))
    errors = 0
    for request, _ in [*in_members(LONG), *in_bodies(LONG)]:
        # Past the client, whose retries would wait for some of the errors to end.
        try:
            if isinstance(request, OpenWatch):
                await (await world.service.open_watch(request)).aclose()
            else:
                await world.service.send(request)
        except OperatingError as error:
            check_error(error)
            errors += 1
    assert errors > 100


@on_loop
async def test_an_error_about_a_long_text_is_short_over_http() -> None:
    async with served("http") as client:
        for request, _ in in_bodies(LONG):
            if (error := await error_of(client, request)) is not None:
                check_error(error)


@on_loop
async def test_an_object_with_very_many_bad_fields_has_a_short_error() -> None:
    async with served("direct") as client:
        body = config_map(labels={f"-{n}-": "-" for n in range(20_000)})
        with pytest.raises(Invalid) as caught:
            await client.create(CONFIG_MAP, body, namespace="default")
        check_error(caught.value)
        assert len(caught.value.errors) == ERROR_FIELDS_MAX


@pytest.mark.parametrize("over", ["direct", "http"])
@pytest.mark.parametrize("member", ["operation", "decision"])
@on_loop
async def test_ids_have_a_bound(over: str, member: str) -> None:
    async with served(over) as client:
        for length, taken in ((256, True), (257, False)):
            options = WriteOptions(origin=NO_ORIGIN._replace(**cast("Any", {member: "o" * length})))
            write = client.patch(A, {"data": {"k": str(length)}}, options=options)
            if taken:
                assert getattr((await write).object.origin, member) == "o" * 256
            else:
                with pytest.raises(BadRequest, match=f"{member} has 257 characters, and an id has at most 256"):
                    await write
