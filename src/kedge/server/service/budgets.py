"""The disruption budgets of a namespace, as a set that an eviction can prove.

A namespace may have more budgets than one commit can check. So one internal key is written when a budget is created,
deleted or selects other pods. An eviction proves that key, and may then trust a list that it read afterwards.
"""

from __future__ import annotations

from kedge.api.objects import Object
from kedge.api.selectors import label_selector
from kedge.api.views import PodDisruptionBudgetView
from kedge.api.wellknown import DISRUPTION_BUDGET_KIND, DISRUPTION_BUDGETS_KIND
from kedge.errors import OperatingError
from kedge.keys import Key
from kedge.server.service.core import Core, Proof


def set_key(namespace: str) -> Key:
    return Key(DISRUPTION_BUDGETS_KIND, namespace, "all")


async def follow_budget(proof: Proof, key: Key, old: Object | None, new: Object | None) -> None:
    """Stage a change of the namespace's set of budgets, or of the pods that they cover."""
    before = old.as_view(PodDisruptionBudgetView).spec.selector if old is not None else None
    after = new.as_view(PodDisruptionBudgetView).spec.selector if new is not None else None
    if old is None or new is None or before != after:
        await proof.entries(set_key(key.namespace))
        proof.put(set_key(key.namespace), b"{}")


async def forget_budgets(proof: Proof, namespace: str) -> None:
    """Stage the removal of a namespace's key: no pod is left in it that could be evicted."""
    (found,) = await proof.entries(set_key(namespace))
    if found is not None:
        proof.delete(set_key(namespace))


async def budget_of(core: Core, proof: Proof, pod: Object) -> Object | None:
    """The budget that covers the pod. The commit proves that no other budget covers it by then."""
    await proof.entries(set_key(pod.key.namespace))  # before the list, so that the commit notices later changes
    labels = pod.metadata.labels
    listing = await core.store.list(DISRUPTION_BUDGET_KIND, namespace=pod.key.namespace)
    covering = [
        entry.key
        for entry in listing.entries
        if label_selector(core.object_of(entry).as_view(PodDisruptionBudgetView).spec.selector).matches(labels)
    ]
    if len(covering) > 1:
        names = ", ".join(key.name for key in covering)
        raise OperatingError(
            f"cannot evict {pod.key}: it is covered by more than one disruption budget ({names}); keep one",
            key=pod.key,
        )
    return await proof.object(covering[0]) if covering else None
