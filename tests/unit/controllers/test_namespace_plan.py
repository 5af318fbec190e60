"""A namespace is emptied stage by stage, and is empty only when no object is left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.kit.pod_views import ago

from kedge.api.views import NamespaceView, ObjectMeta
from kedge.controllers.namespace.plan import NamespacePlan, plan_namespace
from kedge.controllers.namespace.status import CONTENT, namespace_conditions
from kedge.keys import Key


def there(kind: str, *going: int, finalizers: tuple[str, ...] = ()) -> list[tuple[Key, ObjectMeta]]:
    return [
        (
            Key(kind, "shop", f"{kind.lower()}-{n}"),
            ObjectMeta(finalizers=finalizers, deletion_timestamp=ago(1) if each else None),
        )
        for n, each in enumerate(going)
    ]


def test_owners_and_pods_are_deleted_before_other_kinds() -> None:
    found = {"ConfigMap": there("ConfigMap", 0), "Pod": there("Pod", 0, 1)}
    plan = plan_namespace(found, burst=10)
    assert [key.kind for key in plan.delete] == ["Pod"]
    assert plan.remaining == {"ConfigMap": 1, "Pod": 2}
    assert [key.kind for key in plan_namespace({"ConfigMap": there("ConfigMap", 0), "Pod": []}, burst=10).delete] == [
        "ConfigMap"
    ]


def test_held_objects_stay_and_do_not_count_towards_the_burst() -> None:
    found = {"Pod": there("Pod", 0, 0, 0)}
    held = [found["Pod"][0][0], found["Pod"][1][0]]
    plan = plan_namespace(found, burst=2, held=held)
    assert [key.name for key in plan.delete] == ["pod-2"]
    assert plan.remaining == {"Pod": 3}


def test_remaining_objects_and_finalizers_are_reported() -> None:
    plan = plan_namespace({"Pod": there("Pod", 1, finalizers=("a.example/b",))}, burst=10)
    assert not plan.delete
    condition_of = {
        each["type"]: (each["status"], each["message"]) for each in namespace_conditions(NamespaceView(), plan, "")
    }
    assert condition_of == {CONTENT: ("True", "Pod: 1"), "NamespaceFinalizersRemaining": ("True", "a.example/b: 1")}
    assert namespace_conditions(NamespaceView(), NamespacePlan(), "") == []


@given(st.dictionaries(st.sampled_from(["Pod", "ConfigMap", "Deployment.apps"]), st.lists(st.booleans(), max_size=5)))
def test_emptying_ends_and_deletes_each_object_once(counts: dict[str, list[bool]]) -> None:
    objects = {kind: there(kind, *going) for kind, going in counts.items()}
    deleted: list[Key] = []
    for _ in range(40):
        plan = plan_namespace(objects, burst=2)
        if plan.empty:
            break
        assert len(plan.delete) <= 2
        deleted += plan.delete
        objects = {
            kind: [
                (key, ObjectMeta(deletion_timestamp=ago(0))) if key in plan.delete else (key, meta)
                for key, meta in each
            ]
            for kind, each in objects.items()
        }
        leaving = [(k, key) for k, each in objects.items() for key, meta in each if meta.deletion_timestamp]
        if leaving:
            kind, gone = leaving[0]
            objects[kind] = [each for each in objects[kind] if each[0] != gone]
    assert plan_namespace(objects, burst=2).empty
    assert len(deleted) == len(set(deleted)) == sum(not each for going in counts.values() for each in going)
