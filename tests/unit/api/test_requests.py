"""Requests as data: every member of the union is handled, labelled, sendable by a typed method and describable."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, get_args

import msgspec
import pytest
from tests.objects import asynchronous, config_map, make_world, pod, pod_key

from kedge.api.intents import Intent, intent_of
from kedge.api.kinds import KINDS
from kedge.api.requests import (
    AnyRequest,
    Bind,
    Binding,
    BoundObject,
    ConfirmEnded,
    Create,
    Delete,
    DeleteCollection,
    DeleteOptions,
    Evict,
    GangChunk,
    Get,
    GetOptions,
    GetScale,
    List,
    ListOptions,
    OpenWatch,
    Patch,
    Request,
    RequestToken,
    Reserve,
    Update,
    WatchOptions,
    WriteOptions,
)
from kedge.api.verbs import Verbs
from kedge.client.contract import Client
from kedge.keys import NO_ORIGIN, Key, Origin
from kedge.server.service.core import Core
from kedge.server.service.service import HANDLERS
from kedge.sim.cluster import Cluster
from kedge.sim.kernel import NO_FAULTS, Simulation, run

MEMBERS: tuple[type[Any], ...] = get_args(AnyRequest)
POD, MAP = KINDS.of_key_kind("Pod"), KINDS.of_key_kind("ConfigMap")
WEB = Key("Deployment.apps", "default", "web")
CHUNK = GangChunk(namespace="default", gang="ring", size=2, deadline=datetime(2030, 1, 1, tzinfo=UTC))
NAMED, OF_UID = {"metadata": {"name": "a"}}, {"metadata": {"uid": "u"}}
EXAMPLES: tuple[AnyRequest, ...] = (
    Get(pod_key("a"), GetOptions(resource_version="4")),
    GetScale(WEB),
    List(POD, ListOptions(namespace="default", label_selector="app=web")),
    OpenWatch(POD, WatchOptions(namespace="default")),
    Create(MAP, config_map("a")),
    Update(Key("ConfigMap", "default", "a"), config_map("a"), "status"),
    Patch(pod_key("a"), {"metadata": {"resourceVersion": "7"}}),
    Delete(pod_key("a"), DeleteOptions(uid="u", revision=3, grace_s=0)),
    DeleteCollection(POD, ListOptions(namespace="default")),
    Bind(Binding(pod=pod_key("a"), pod_uid="u", node="node-a")),
    Reserve(CHUNK),
    Evict(pod_key("a"), DeleteOptions(uid="u")),
    ConfirmEnded("node-a", "n", "u"),
    RequestToken(
        key=Key("ServiceAccount", "default", "default"),
        bound=BoundObject(kind="Pod", name="a", uid="u"),
        expiration_s=900,
    ),
)


def test_the_examples_cover_the_union() -> None:
    assert {type(each) for each in EXAMPLES} == set(MEMBERS)


@pytest.mark.parametrize("request_type", MEMBERS)
def test_every_request_has_a_handler_a_method_and_a_label(request_type: type[Request[Any]]) -> None:
    """`OpenWatch` alone goes through `open_watch`: its reply is a stream."""
    assert (request_type in HANDLERS) is (request_type is not OpenWatch)
    assert callable(getattr(Verbs, request_type.label)), "the typed method has the name of the label"
    assert request_type.verb in ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
    assert isinstance(request_type.reads, bool)
    assert not (request_type.reads and request_type.once)


def test_labels_are_unique() -> None:
    assert len({each.label for each in MEMBERS}) == len(MEMBERS)


def test_the_service_handles_only_requests_of_the_union() -> None:
    assert set(HANDLERS) < set(MEMBERS)


@pytest.mark.parametrize("request_", EXAMPLES, ids=lambda each: each.label)
def test_a_request_names_its_target_and_a_read_writes_nothing(request_: AnyRequest) -> None:
    assert KINDS.of_key_kind(request_.target.kind)
    assert request_.written_key in (request_.target, None)
    assert isinstance(request_.options, WriteOptions) is not request_.reads
    assert request_.options.caller == ""
    assert request_.options.origin == NO_ORIGIN
    with pytest.raises(AttributeError):
        request_.options = DeleteOptions()  # type: ignore[misc]


@pytest.mark.parametrize("request_", EXAMPLES, ids=lambda each: each.label)
def test_every_request_has_an_intent_that_can_be_recorded(request_: AnyRequest) -> None:
    intent = intent_of(request_)
    assert intent.verb
    assert msgspec.json.decode(msgspec.json.encode(intent.body)) is not None or intent.body is None


@pytest.mark.parametrize(
    ("request_", "subresource"),
    [
        (GetScale(WEB), "scale"),
        (Bind(Binding(pod=pod_key("a"), node="n")), "binding"),
        (Evict(pod_key("a")), "eviction"),
        (RequestToken(key=Key("ServiceAccount", "default", "a")), "token"),
    ],
    ids=["scale", "binding", "eviction", "token"],
)
def test_a_verb_on_a_subresource_names_it_for_authorization(request_: AnyRequest, subresource: str) -> None:
    assert request_.subresource == subresource
    assert subresource in KINDS.of_key_kind(request_.target.kind).subresources


def test_a_create_without_a_name_has_no_key_yet() -> None:
    generated = Create(POD, {"metadata": {"generateName": "web-"}}, "default")
    assert generated.target == Key("Pod", "default", "")
    assert generated.written_key is None
    assert Create(POD, b'{"metadata":{"name":"a","namespace":"b"}}').target == Key("Pod", "b", "a")
    assert Create(KINDS.of_key_kind("Node"), {"metadata": {"name": "a", "namespace": "b"}}).target == Key(
        "Node", "", "a"
    )
    assert Create(POD, {"metadata": None}).target == Key("Pod", "", "")


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (Get(pod_key("a")), Intent("get", pod_key("a"))),
        (Create(POD, NAMED, "default"), ("create", pod_key("a"), NAMED, "absent")),
        (Patch(WEB, OF_UID, subresource="status"), ("patch status", WEB, OF_UID, "uid u")),
        (EXAMPLES[6], ("patch", pod_key("a"), {"metadata": {"resourceVersion": "7"}}, "revision 7")),
        (EXAMPLES[7], ("delete", pod_key("a"), {"graceS": 0}, "uid u, revision 3")),
        (EXAMPLES[11], ("evict", pod_key("a"), {}, "uid u")),
        (EXAMPLES[12], ("confirm ended", Key("NodeAllocation.kedge.dev", "", "node-a"), {"podUid": "u"}, "node n")),
    ],
    ids=["get", "create", "patch-status", "patch", "delete", "evict", "confirm-ended"],
)
def test_an_intent_names_the_condition_of_a_write(request_: AnyRequest, expected: tuple[Any, ...]) -> None:
    assert intent_of(request_) == expected


def test_an_ensured_create_is_recorded_as_such() -> None:
    made = Create(POD, {"metadata": {"name": "a"}}, "default")
    assert intent_of(made, ensures=True)[::3] == ("ensure", "absent or ours")


class SentRequests:
    """A transport that keeps the requests and carries none of them out."""

    kinds, repeats_safely, one_history = KINDS, True, True

    def __init__(self) -> None:
        self.sent: list[Any] = []

    async def send(self, request: Request[Any]) -> Any:
        self.sent.append(request)

    async def open_watch(self, request: OpenWatch) -> Any:
        self.sent.append(request)


@asynchronous
async def test_each_typed_method_sends_its_request() -> None:
    world, transport = await make_world(), SentRequests()
    client = Client(transport, world.env, component="test")
    options = WriteOptions(origin=Origin("op", ""))
    deletion = DeleteOptions(origin=Origin("op", ""))
    binding = Binding(pod=pod_key("a"), node="n")
    await client.get(WEB)
    await client.get(WEB, resource_version="4")
    await client.get_scale(WEB)
    await client.list(POD)
    await client.watch(POD)
    await client.create(POD, pod("a"), options=options)
    await client.update(WEB, {}, subresource="scale", options=options)
    await client.patch(WEB, {}, options=options)
    await client.delete(WEB, deletion)
    await client.delete_collection(POD, None, deletion)
    await client.bind(binding, options=options)
    await client.reserve(CHUNK, options=options)
    await client.evict(WEB, deletion)
    await client.confirm_ended(node="n", node_uid="nu", pod_uid="pu", options=options)
    await client.request_token(WEB, audiences=["vault"])
    assert transport.sent == [
        Get(WEB),
        Get(WEB, GetOptions(resource_version="4")),
        GetScale(WEB),
        List(POD),
        OpenWatch(POD),
        Create(POD, pod("a"), options=options),
        Update(WEB, {}, "scale", options),
        Patch(WEB, {}, options=options),
        Delete(WEB, deletion),
        DeleteCollection(POD, options=deletion),
        Bind(binding, options),
        Reserve(CHUNK, options),
        Evict(WEB, deletion),
        ConfirmEnded("n", "nu", "pu", options),
        RequestToken(key=WEB, audiences=("vault",)),
    ]
    assert {type(each) for each in transport.sent} == set(MEMBERS)


@asynchronous
async def test_a_write_without_an_operation_id_gets_one() -> None:
    world, transport = await make_world(), SentRequests()
    await Client(transport, world.env, component="test").delete_collection(POD)
    assert transport.sent[0].options.origin.operation


class Ping(Request[str], frozen=True):
    """A verb that exists in this test alone."""

    label, verb = "ping", "create"

    word: str
    options: WriteOptions = WriteOptions()

    @property
    def target(self) -> Key:
        return pod_key("a")


async def ping(core: Core, request: Ping) -> str:
    return f"{request.word} {len(list(core.kinds)) > 0}"


def test_a_new_verb_needs_a_request_and_a_handler_and_no_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a simulated link with faults it also has its fault points and its name in the trace."""
    handlers: dict[Any, Any] = HANDLERS
    monkeypatch.setitem(handlers, Ping, ping)

    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim, hostile=True)
        client = cluster.client(sim.host("alice"))
        assert await client.send(Ping("remote")) == "remote True"
        assert await cluster.authority.send(Ping("direct")) == "direct True"

    outcome = run(program, 1, faults=NO_FAULTS)
    assert outcome.violation is None
    assert "api.ping alice>api-0" in outcome.timeline()
    assert intent_of(Ping("x")) == Intent("ping", pod_key("a"))
