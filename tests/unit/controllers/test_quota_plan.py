"""When a quota needs a recount, and when it has more room than before."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.kit.pod_views import a_pod
from tests.objects import RESOURCE_QUOTA, ZONE_QUOTA

from kedge.api.codec import encode_json
from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.controllers.quota.plan import needs_count, zones_need_count
from kedge.controllers.shared.quota_room import has_freed
from kedge.keys import Key


def made(kind: Kind, spec: dict[str, Any], status: dict[str, Any]) -> Object:
    body = {"metadata": {"name": "q", "namespace": "default"}, "spec": spec, "status": status}
    return Object(kind, Key(kind.key_kind, "default", "q"), encode_json(body), revision=1)


def quota(hard: dict[str, str], used: dict[str, str]) -> Object:
    return made(RESOURCE_QUOTA, {"hard": hard}, {"used": used})


def zones(hard: str, used: str) -> Object:
    spec = {"zones": {"zone-a": {"hard": {"cpu": hard}}}}
    return made(ZONE_QUOTA, spec, {"zones": {"zone-a": {"used": {"cpu": used}}}})


def test_a_quota_is_recounted_when_it_is_uncounted_or_wrong() -> None:
    pods = [a_pod("a"), a_pod("b"), a_pod("c", phase="Failed")]
    assert needs_count(quota({"pods": "5"}, {}).view, pods)
    assert needs_count(quota({"pods": "5"}, {"pods": "3"}).view, pods)
    assert not needs_count(quota({"pods": "5"}, {"pods": "2"}).view, pods)
    assert not needs_count(quota({"count/configmaps": "5"}, {"count/configmaps": "4"}).view, pods)


def test_a_zone_quota_is_counted_from_claims_and_zero_equals_missing() -> None:
    assert not zones_need_count(zones("4", "0").view, "default", [])
    assert zones_need_count(zones("4", "1").view, "default", [])
    bare = made(ZONE_QUOTA, {"zones": {"zone-a": {"hard": {"cpu": "4"}}}}, {})
    assert zones_need_count(bare.view, "default", [])


@given(*(st.integers(0, 9) for _ in range(4)))
def test_more_room_wakes_blocked_workloads(hard: int, used: int, hard_now: int, used_now: int) -> None:
    freed = hard_now - used_now > hard - used
    before, after = (quota({"pods": str(h)}, {"pods": str(u)}) for h, u in ((hard, used), (hard_now, used_now)))
    assert has_freed(before, after) == freed
    assert has_freed(zones(f"{hard}", f"{used}"), zones(f"{hard_now}", f"{used_now}")) == freed


def test_a_deleted_or_looser_quota_frees_room_and_a_new_one_does_not() -> None:
    some = quota({"pods": "5", "cpu": "1"}, {"pods": "5", "cpu": "1"})
    assert has_freed(some, None)
    assert not has_freed(None, some)
    assert has_freed(some, quota({"pods": "5"}, {"pods": "5"}))
