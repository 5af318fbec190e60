"""Which reservations, claims and bindings are orphans; which are freed, and which are only reported."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.pod_views import NOW, a_pod, ago, ready_pod

from kedge.api.views import (
    AllocationEntry,
    FrozenMap,
    NodeAllocationView,
    NodeView,
    ObjectMeta,
    PodView,
    ReservationSpec,
    ReservationView,
)
from kedge.api.views.kedge_dev import (
    GangMember,
    NodeAllocationSpec,
    NodeAllocationStatus,
    ReservationStatus,
    ReservedPod,
)
from kedge.controllers.repair.plan import due_at, has_lost_node, orphan_reason, plan_ledger


def reserved(uid: str = "u", *, late: bool = False, pod_uid: str = "uid-of-web-0") -> ReservationView:
    spec = ReservationSpec(pod=ReservedPod(name="web-0", uid=pod_uid), deadline=ago(1 if late else -60))
    return ReservationView(metadata=ObjectMeta(uid=uid), spec=spec)


def ledger(node_uid: str = "n1", **states: str) -> NodeAllocationView:
    entries = {uid: AllocationEntry(state=state) for uid, state in states.items()}
    return NodeAllocationView(
        spec=NodeAllocationSpec(node_uid=node_uid), status=NodeAllocationStatus(entries=FrozenMap(entries))
    )


def test_a_reservation_stays_while_its_pod_waits() -> None:
    waiting = a_pod("web-0")
    assert orphan_reason(reserved(), waiting, NOW) == ""
    assert orphan_reason(reserved(), None, NOW) == "its pod is gone"
    assert orphan_reason(reserved(pod_uid="another"), waiting, NOW) == "its pod is gone"
    assert orphan_reason(reserved(), a_pod("web-0", phase="Failed"), NOW) == "its pod has ended"
    assert orphan_reason(reserved(), ready_pod("web-0"), NOW) == "its pod is bound"
    assert orphan_reason(reserved(late=True), waiting, NOW) == "its deadline has passed"


def test_a_deadline_that_was_past_when_it_was_set_takes_effect_later() -> None:
    """Its scheduler may have a clock that is behind, and be about to use the reservation."""
    waiting = a_pod("web-0")

    def made(since_s: float) -> ReservationView:
        return msgspec.structs.replace(
            reserved(late=True), metadata=ObjectMeta(uid="u", creation_timestamp=ago(since_s))
        )

    assert orphan_reason(made(39), waiting, NOW, grace_s=40) == ""
    assert due_at(made(39), NOW, 40) == ago(-1)
    assert orphan_reason(made(40), waiting, NOW, grace_s=40) == "its deadline has passed"
    assert orphan_reason(made(-5), waiting, NOW, grace_s=40) == "its deadline has passed", "a server's clock is ahead"
    assert orphan_reason(made(39), None, NOW, grace_s=40) == "its pod is gone", "that is no matter of time"


def test_the_later_of_two_reservations_for_one_intent_is_an_orphan() -> None:
    assert orphan_reason(reserved("b"), a_pod("web-0"), NOW, older=[reserved("a")])
    assert not orphan_reason(reserved("a"), a_pod("web-0"), NOW, older=[])


def test_a_gang_record_stays_while_a_member_has_a_reservation() -> None:
    over = ReservationView(spec=ReservationSpec(gang_size=2, deadline=ago(1)))
    assert orphan_reason(over, None, NOW) == "the gang is over"
    members = ReservationStatus(members=FrozenMap({"u": GangMember(name="web-0")}))
    held = ReservationView(spec=over.spec, status=members)
    assert orphan_reason(held, None, NOW, held=lambda uid: uid == "u") == ""
    assert orphan_reason(held, None, NOW, held=lambda _: False) == "the gang is over"
    early = ReservationView(spec=ReservationSpec(gang_size=2, deadline=ago(-60)), status=members)
    assert orphan_reason(early, None, NOW, held=lambda _: False) == ""


@given(st.sampled_from(["Reserved", "Bound"]), st.sampled_from(["", "Running", "Failed"]), st.booleans(), st.booleans())
def test_a_claim_of_a_pod_that_may_run_is_freed_only_by_the_out_of_service_taint(
    state: str, phase: str, is_reserved: bool, out: bool
) -> None:
    pods: dict[str, PodView] = {"u": a_pod("web-0", phase=phase)} if phase else {}
    plan = plan_ledger(ledger(u=state), pods, ["u"] if is_reserved else [], out_of_service=out)
    if "u" in plan.free:
        assert phase != "Running"
        assert out or state == "Reserved"
        assert not (state == "Reserved" and is_reserved)
    if state == "Bound" and phase != "Running" and not out:
        assert plan.leaked == ("u",)


def test_a_bound_pod_has_its_node_while_the_ledger_has_its_claim() -> None:
    home = NodeView(metadata=ObjectMeta(uid="n1"))
    pod = ready_pod("web-0", uid="u")
    assert not has_lost_node(pod, home, ledger(u="Bound"))
    assert has_lost_node(pod, None, ledger(u="Bound"))
    assert has_lost_node(pod, home, ledger())  # the node returned as a new incarnation, without the old claims
    assert not has_lost_node(pod, home, ledger("n0"))  # its ledger is still being taken over
    assert not has_lost_node(a_pod("web-0"), None, None)
    assert not has_lost_node(a_pod("web-0", node="node-a", phase="Failed"), None, None)


def test_a_pod_created_with_a_node_waits_for_it_unless_it_is_being_deleted() -> None:
    pod = ready_pod("web-0", uid="u")
    assert not has_lost_node(pod, None, ledger("", u="Unadmitted"))
    going = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, deletion_timestamp=NOW))
    assert has_lost_node(going, None, ledger("", u="Unadmitted"))


def test_an_unadmitted_claim_without_its_pod_is_freed() -> None:
    assert plan_ledger(ledger(u="Unadmitted"), {}, (), out_of_service=False).free == ("u",)
