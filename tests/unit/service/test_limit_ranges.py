"""Limit ranges: their own defaults, the defaults that they set in new pods, and the pods that they forbid."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kit.limit_ranges import bare_pod, for_containers, limit_range
from tests.kit.races import another_server, racing_world
from tests.objects import World, asynchronous, make_world, pod_key, resource_quota

from kedge.api.codec import decode_json
from kedge.api.kinds import KINDS
from kedge.api.requests import DeleteOptions
from kedge.errors import Forbidden, Invalid
from kedge.keys import Key
from kedge.limits import Limits
from kedge.server.service import AdmissionChain, FunctionPolicy

LIMIT_RANGE = Key("LimitRange", "default", "limits")
ANNOTATION = "kubernetes.io/limit-ranger"


async def stored(world: World, name: str = "web-0") -> Any:
    return decode_json((await world.get(pod_key(name))).value)


async def refusal(body: dict[str, Any], *limits: dict[str, Any]) -> str:
    world = await make_world()
    await world.create(limit_range(*limits))
    with pytest.raises(Forbidden) as caught:
        await world.create(body)
    return caught.value.message


@asynchronous
async def test_a_range_for_containers_gets_its_own_defaults() -> None:
    world = await make_world()
    await world.create(limit_range(for_containers(max={"cpu": "2"}, min={"cpu": "100m", "memory": "1Mi"})))
    (item,) = decode_json((await world.get(LIMIT_RANGE)).value)["spec"]["limits"]
    assert item["default"] == {"cpu": "2"}
    assert item["defaultRequest"] == {"cpu": "2", "memory": "1Mi"}


@asynchronous
async def test_containers_get_the_amounts_that_they_leave_out() -> None:
    world = await make_world()
    default = for_containers(default={"cpu": "500m", "memory": "1Gi"}, defaultRequest={"cpu": "100m", "memory": "64Mi"})
    await world.create(limit_range(default))
    body = bare_pod(requests={"cpu": "200m"})
    body["spec"]["initContainers"] = [{"name": "first", "image": "web:1"}]
    await world.create(body)
    found = await stored(world)
    assert found["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "200m", "memory": "64Mi"},
        "limits": {"cpu": "500m", "memory": "1Gi"},
    }
    assert found["spec"]["initContainers"][0]["resources"]["requests"] == {"cpu": "100m", "memory": "64Mi"}
    assert found["metadata"]["annotations"][ANNOTATION] == (
        "LimitRanger plugin set: memory request for container main; cpu, memory limit for container main;"
        " cpu, memory request for init container first; cpu, memory limit for init container first"
    )


@asynchronous
async def test_a_default_limit_below_the_request_is_invalid_as_in_kubernetes() -> None:
    world = await make_world()
    await world.create(limit_range(for_containers(default={"cpu": "500m"})))
    with pytest.raises(Invalid, match="must be less than or equal to cpu limit"):
        await world.create(bare_pod(requests={"cpu": "1"}))


MIN, MAX, RATIO = {"min": {"cpu": "200m"}}, {"max": {"cpu": "1"}}, {"maxLimitRequestRatio": {"cpu": "2"}}


@pytest.mark.parametrize(
    ("resources", "item", "why"),
    [
        ({"requests": {"cpu": "100m"}}, MIN, "minimum cpu usage per Pod is 200m, but request is 100m"),
        ({}, MIN, "minimum cpu usage per Pod is 200m.  No request is specified"),
        ({"limits": {"cpu": "2"}}, MAX, "maximum cpu usage per Pod is 1, but limit is 2"),
        ({}, MAX, "maximum cpu usage per Pod is 1.  No limit is specified"),
        (
            {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}},
            RATIO,
            "cpu max limit to request ratio per Pod is 2, but provided ratio is 10.000000",
        ),
        ({"limits": {"memory": "1"}}, RATIO, "ratio per Pod is 2, but no request is specified or request is 0"),
        ({"requests": {"cpu": "1"}}, RATIO, "ratio per Pod is 2, but no limit is specified or limit is 0"),
    ],
)
@asynchronous
async def test_a_pod_outside_its_range_is_forbidden_in_the_words_of_kubernetes(
    resources: dict[str, Any], item: dict[str, Any], why: str
) -> None:
    message = await refusal(bare_pod(**resources), {"type": "Pod", **item})
    assert message.startswith('pods "web-0" is forbidden: ')
    assert message.endswith(why)


@asynchronous
async def test_every_limit_that_containers_break_is_named_once() -> None:
    body = bare_pod(limits={"cpu": "2", "memory": "2Gi"})
    body["spec"]["containers"].append({**body["spec"]["containers"][0], "name": "second"})
    message = await refusal(body, for_containers(max={"cpu": "1", "memory": "1Gi"}))
    assert message == (
        'pods "web-0" is forbidden: [maximum cpu usage per Container is 1, but limit is 2,'
        " maximum memory usage per Container is 1Gi, but limit is 2Gi]"
    )


@asynchronous
async def test_a_range_for_pods_counts_all_containers() -> None:
    body = bare_pod(limits={"cpu": "600m"})
    body["spec"]["containers"].append({**body["spec"]["containers"][0], "name": "second"})
    message = await refusal(body, {"type": "Pod", "max": {"cpu": "1"}})
    assert message.endswith("maximum cpu usage per Pod is 1, but limit is 1200m")


@asynchronous
async def test_defaults_are_charged_to_quotas() -> None:
    world = await make_world()
    await world.create(limit_range(for_containers(defaultRequest={"cpu": "300m"})))
    quota = await world.create(resource_quota(**{"requests.cpu": "1"}))
    await world.create(bare_pod())
    assert str((await world.get(quota.key)).view.status.used["requests.cpu"]) == "300m"


@asynchronous
async def test_a_range_that_appears_counts_for_the_create_in_flight() -> None:
    """1. A create finds no range. 2. The range is made. 3. The create commits."""
    world, store = await racing_world()
    store.interfere = lambda: another_server(world).create(limit_range(for_containers(max={"cpu": "1"})))
    with pytest.raises(Forbidden):
        await world.create(bare_pod(limits={"cpu": "2"}))


@asynchronous
async def test_a_range_that_changes_counts_for_the_create_in_flight() -> None:
    world, store = await racing_world()
    await world.create(limit_range(for_containers(max={"cpu": "4"})))
    less = {"spec": {"limits": [for_containers(max={"cpu": "1"})]}}
    store.interfere = lambda: another_server(world).service.patch(LIMIT_RANGE, less)
    with pytest.raises(Forbidden):
        await world.create(bare_pod(limits={"cpu": "2"}))


@asynchronous
async def test_a_removed_range_no_longer_counts_and_no_caller_can_hide_one() -> None:
    world = await make_world()
    await world.create(limit_range(for_containers(max={"cpu": "1"})))
    namespace = Key("Namespace", "", "default")
    await world.service.patch(namespace, {"status": {"limitRanges": []}}, subresource="status")
    with pytest.raises(Forbidden):
        await world.create(bare_pod(limits={"cpu": "2"}))
    await world.service.delete(LIMIT_RANGE, DeleteOptions())
    await world.create(bare_pod(limits={"cpu": "2"}))
    assert (await world.get(namespace)).view.status.limit_ranges == ()


@asynchronous
async def test_policies_see_the_defaults_and_their_changes_are_checked() -> None:
    seen: list[Any] = []

    def raise_limit(request: Any, _inputs: Any) -> list[dict[str, Any]]:
        seen.append(request.object["spec"]["containers"][0]["resources"])
        return [{"op": "replace", "path": "/spec/containers/0/resources/limits/cpu", "value": "9"}]

    policy = FunctionPolicy("raises", kinds=["Pod"], verbs=["create"], mutate=raise_limit)
    world = await make_world(admission=AdmissionChain(mutating=[policy]))
    await world.create(limit_range(for_containers(max={"cpu": "1"})))
    with pytest.raises(Forbidden, match="but limit is 9"):
        await world.create(bare_pod())
    assert seen[0]["limits"] == {"cpu": "1"}


@asynchronous
async def test_a_namespace_has_a_bounded_number_of_ranges() -> None:
    world = await make_world(limits=Limits(namespace_quotas_max=1))
    await world.create(limit_range())
    with pytest.raises(Forbidden, match="1 such objects already"):
        await world.create(limit_range(name="more"))


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ({"type": ""}, "spec.limits[0].type: Required value"),
        ({"type": "Thing"}, "must be a standard limit type or fully qualified"),
        (
            {"type": "Pod", "default": {"cpu": "1"}},
            "spec.limits[0].default: Forbidden: may not be",
        ),
        ({"type": "PersistentVolumeClaim"}, "either minimum or maximum storage value is required"),
        ({"type": "Pod", "min": {"cpu": "2"}, "max": {"cpu": "1"}}, "min value 2 is greater than max value 1"),
        (
            for_containers(min={"cpu": "2"}, defaultRequest={"cpu": "1"}),
            "min value 2 is greater than default request",
        ),
        (for_containers(default={"cpu": "1"}, defaultRequest={"cpu": "2"}), "is greater than default limit value 1"),
        (for_containers(default={"cpu": "3"}, max={"cpu": "2"}), "default value 3 is greater than max value 2"),
        (for_containers(maxLimitRequestRatio={"cpu": "500m"}), "ratio 500m is less than 1"),
        (
            {"type": "Pod", "min": {"cpu": "1"}, "max": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "3"}},
            "ratio 3 is greater than max/min = 2.000000",
        ),
        (
            for_containers(default={"a.b/gpu": "2"}, defaultRequest={"a.b/gpu": "1"}),
            "must equal to defaultRequest",
        ),
        (for_containers(max={"cpu": "-1"}), "must be greater than or equal to 0"),
    ],
)
@asynchronous
async def test_a_range_that_contradicts_itself_is_invalid(item: dict[str, Any], why: str) -> None:
    world = await make_world()
    with pytest.raises(Invalid) as caught:
        await world.create(limit_range(item))
    assert why in caught.value.message


@asynchronous
async def test_a_type_is_limited_once() -> None:
    world = await make_world()
    with pytest.raises(Invalid, match="Duplicate value"):
        await world.create(limit_range(for_containers(), for_containers()))


def test_the_kind_is_named_as_in_kubernetes() -> None:
    kind = KINDS.resolve("limits")
    assert (kind.plural, kind.api_version, kind.namespaced) == ("limitranges", "v1", True)
