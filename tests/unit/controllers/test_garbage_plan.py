"""Which objects are garbage, and which finalizers an override may remove."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.pod_views import NOW, ago

from kedge.api.views import ObjectMeta, OwnerReference
from kedge.api.views.base import Annotations
from kedge.api.wellknown import REMOVE_FINALIZERS
from kedge.controllers.garbage.overrides import parse_override
from kedge.controllers.garbage.plan import GarbagePlan, OwnerState, plan_finalizers, plan_garbage


def owned_by(
    *uids: str, finalizers: tuple[str, ...] = (), deleted_s: float | None = None, override: str = ""
) -> ObjectMeta:
    return ObjectMeta(
        name="child",
        owner_references=tuple(OwnerReference(kind="ReplicaSet", name=uid, uid=uid) for uid in uids),
        finalizers=finalizers,
        deletion_timestamp=None if deleted_s is None else ago(deleted_s),
        annotations=Annotations({REMOVE_FINALIZERS: override} if override else {}),
    )


@given(st.dictionaries(st.sampled_from("abcd"), st.sampled_from(OwnerState)), st.booleans())
def test_an_object_is_deleted_only_when_none_of_its_owners_is_left(
    owners: dict[str, OwnerState], has_dependents: bool
) -> None:
    plan = plan_garbage(owned_by(*owners), owners, has_dependents=has_dependents)
    alive = [each for each in owners.values() if each in (OwnerState.ALIVE, OwnerState.UNKNOWN)]
    assert bool(plan.delete) == (bool(owners) and not alive)
    assert not (plan.delete and plan.drop)
    assert all(owners[uid] in (OwnerState.GONE, OwnerState.WAITING) for uid in plan.drop)


def test_an_owner_that_was_not_read_counts_as_alive() -> None:
    assert plan_garbage(owned_by("a"), {}, has_dependents=False) == GarbagePlan()


def test_an_object_that_is_being_deleted_is_not_deleted_again() -> None:
    assert plan_garbage(owned_by("a", deleted_s=1), {"a": OwnerState.GONE}, has_dependents=False) == GarbagePlan()


def test_the_propagation_depends_on_waiting_owners_and_dependents() -> None:
    waiting, gone = {"a": OwnerState.WAITING}, {"a": OwnerState.GONE}
    assert plan_garbage(owned_by("a"), waiting, has_dependents=True).delete == "Foreground"
    assert plan_garbage(owned_by("a"), waiting, has_dependents=False).delete == "Background"
    assert plan_garbage(owned_by("a"), gone, has_dependents=True).delete == "Background"
    assert plan_garbage(owned_by("a", finalizers=("orphan",)), gone, has_dependents=True).delete == "Orphan"


WORD = "finalizers=a.example/b,c owner=ada until=2030-01-01T01:00:00Z reason=its controller is gone"


def test_other_finalizers_are_reported_and_kept() -> None:
    young = plan_finalizers(owned_by(finalizers=("a.example/b",), deleted_s=10), NOW, stuck_s=300)
    assert not young.stuck
    assert young.requeue_at == NOW + timedelta(seconds=290)
    old = plan_finalizers(owned_by(finalizers=("a.example/b", "foregroundDeletion"), deleted_s=301), NOW, stuck_s=300)
    assert old.stuck == ("a.example/b",)
    assert not old.remove


def test_an_override_removes_the_named_finalizers_until_it_expires() -> None:
    stuck = owned_by(finalizers=("a.example/b", "other"), deleted_s=301, override=WORD)
    plan = plan_finalizers(stuck, NOW, stuck_s=300)
    assert (plan.remove, plan.stuck) == (("a.example/b",), ("other",))
    late = plan_finalizers(stuck, NOW + timedelta(hours=2), stuck_s=300)
    assert late.remove == ()
    living = owned_by(finalizers=("a.example/b",), override=WORD)
    assert plan_finalizers(living, NOW, stuck_s=300).remove == ()


@pytest.mark.parametrize("text", ["", "finalizers=a", "owner=ada until=2030-01-01T01:00:00Z reason=x", WORD[:-24]])
def test_an_override_without_expiry_owner_or_reason_has_no_effect(text: str) -> None:
    with pytest.raises(ValueError, match="must read like"):
        parse_override(text)
    plan = plan_finalizers(owned_by(finalizers=("a",), deleted_s=301, override=text), NOW, stuck_s=300)
    assert plan.remove == ()
