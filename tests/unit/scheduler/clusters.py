"""Random clusters and pods, small enough for the plain scheduler and dense enough that rules meet."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from tests.unit.scheduler.plain import REGION, ZONE, Cluster, Placed, Question

from kedge.api.views import NodeView, PodView, decode_as
from kedge.scheduler import DEFAULT_WEIGHTS, Settings

NODE_NAMES = ("n1", "n2", "n3", "n4", "n5")
NAMESPACES = ("team-a", "team-b")
Draw = Any


def maybe(strategy: st.SearchStrategy[Any], *, often: bool = False) -> st.SearchStrategy[Any]:
    return st.one_of(strategy, strategy, st.none()) if often else st.one_of(st.none(), st.none(), strategy)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object of those fields that were drawn at all."""
    return st.fixed_dictionaries(fields).map(lambda made: {k: v for k, v in made.items() if v is not None})


# -- nodes

NODE_LABELS = some(
    **{
        ZONE: maybe(st.sampled_from(["za", "zb"]), often=True),
        REGION: maybe(st.sampled_from(["ra", "rb"])),
        "host": maybe(st.sampled_from(["h1", "h2", "h3", "h4"]), often=True),
        "rack": maybe(st.sampled_from(["r1", "r2"])),
        "size": maybe(st.sampled_from(["1", "5", "-3", "big"])),
    }
)
TAINTS = st.lists(
    some(
        key=st.sampled_from(["a", "b"]),
        value=maybe(st.sampled_from(["x", "y"])),
        effect=st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule", "PreferNoSchedule"]),
        timeAdded=maybe(st.just("2030-01-01T00:00:00Z")),
    ),
    max_size=2,
)
OFFERED = some(
    cpu=maybe(st.sampled_from(["1", "2", "500m", "4"]), often=True),
    memory=maybe(st.sampled_from(["1Gi", "4Gi", "300Mi"]), often=True),
    pods=st.sampled_from(["1", "3", "10", "10"]),
    **{"example.com/gpu": maybe(st.sampled_from(["1", "2"]))},
)


@st.composite
def node_views(draw: Draw, name: str) -> NodeView:
    seldom = st.sampled_from([False] * 7 + [True])
    metadata = {"name": name, "uid": draw(st.sampled_from(["u1", "u2"])), "labels": draw(NODE_LABELS)}
    if draw(seldom):
        metadata["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    conditions = [{"type": "Suspect", "status": "True"}] if draw(seldom) else []
    return decode_as(
        NodeView,
        msgspec.json.encode(
            {
                "metadata": metadata,
                "spec": {"unschedulable": draw(seldom), "taints": draw(TAINTS)},
                "status": {"allocatable": draw(OFFERED), "conditions": conditions},
            }
        ),
    )


# -- pods

LABELS = some(app=maybe(st.sampled_from(["web", "db"]), often=True), rev=maybe(st.sampled_from(["1", "2"])))
SELECTORS = some(
    matchLabels=maybe(some(app=st.sampled_from(["web", "db"])), often=True),
    matchExpressions=maybe(
        st.lists(
            st.one_of(
                some(
                    key=st.sampled_from(["app", "rev"]),
                    operator=st.sampled_from(["In", "NotIn"]),
                    values=st.lists(st.sampled_from(["web", "1", "2"]), min_size=1, max_size=2),
                ),
                some(key=st.sampled_from(["app", "rev"]), operator=st.sampled_from(["Exists", "DoesNotExist"])),
            ),
            max_size=1,
        )
    ),
)
LABEL_KEYS = maybe(st.lists(st.sampled_from(["app", "rev"]), min_size=1, max_size=1))
TOPOLOGY_KEYS = st.sampled_from([ZONE, ZONE, "host", "host", "rack"])
TERMS = some(
    topologyKey=TOPOLOGY_KEYS,
    labelSelector=maybe(SELECTORS, often=True),
    namespaces=maybe(st.lists(st.sampled_from(NAMESPACES), max_size=2)),
    namespaceSelector=maybe(some(matchLabels=maybe(st.just({"tier": "gold"})))),
    matchLabelKeys=LABEL_KEYS,
    mismatchLabelKeys=LABEL_KEYS,
)
WEIGHTED = some(weight=st.sampled_from([1, 7, 100]), podAffinityTerm=TERMS)
BETWEEN_PODS = some(
    requiredDuringSchedulingIgnoredDuringExecution=maybe(st.lists(TERMS, min_size=1, max_size=2)),
    preferredDuringSchedulingIgnoredDuringExecution=maybe(st.lists(WEIGHTED, min_size=1, max_size=2)),
)
NODE_REQUIREMENTS = st.one_of(
    some(
        key=st.sampled_from([ZONE, "host", "size"]),
        operator=st.sampled_from(["In", "NotIn"]),
        values=st.lists(st.sampled_from(["za", "h1", "h2", "5", "zz"]), min_size=1, max_size=2),
    ),
    some(key=st.sampled_from([ZONE, "rack", "none"]), operator=st.sampled_from(["Exists", "DoesNotExist"])),
    some(key=st.just("size"), operator=st.sampled_from(["Gt", "Lt"]), values=st.sampled_from([["0"], ["5"], ["-4"]])),
)
NODE_TERMS = some(
    matchExpressions=maybe(st.lists(NODE_REQUIREMENTS, max_size=2), often=True),
    matchFields=maybe(
        st.lists(
            some(
                key=st.just("metadata.name"),
                operator=st.sampled_from(["In", "NotIn"]),
                values=st.sampled_from([[name] for name in NODE_NAMES]),
            ),
            max_size=1,
        )
    ),
)
NODE_AFFINITY = some(
    requiredDuringSchedulingIgnoredDuringExecution=maybe(
        some(nodeSelectorTerms=st.lists(NODE_TERMS, min_size=1, max_size=2))
    ),
    preferredDuringSchedulingIgnoredDuringExecution=maybe(
        st.lists(some(weight=st.sampled_from([1, 10, 33]), preference=NODE_TERMS), min_size=1, max_size=2)
    ),
)
AFFINITY = some(nodeAffinity=maybe(NODE_AFFINITY), podAffinity=maybe(BETWEEN_PODS), podAntiAffinity=maybe(BETWEEN_PODS))
SPREAD = some(
    maxSkew=st.sampled_from([1, 1, 2, 3]),
    topologyKey=TOPOLOGY_KEYS,
    whenUnsatisfiable=st.sampled_from(["DoNotSchedule", "ScheduleAnyway"]),
    labelSelector=maybe(SELECTORS, often=True),
    minDomains=maybe(st.sampled_from([1, 2, 3])),
    nodeAffinityPolicy=maybe(st.sampled_from(["Honor", "Ignore"])),
    nodeTaintsPolicy=maybe(st.sampled_from(["Honor", "Ignore"])),
    matchLabelKeys=LABEL_KEYS,
)
TOLERATIONS = st.lists(
    some(
        key=maybe(st.sampled_from(["a", "b", "node.kubernetes.io/unschedulable"]), often=True),
        operator=st.sampled_from(["Equal", "Exists"]),
        value=maybe(st.sampled_from(["x", "y"])),
        effect=maybe(st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"])),
    ),
    max_size=2,
)
REQUESTS = some(
    cpu=maybe(st.sampled_from(["100m", "500m", "1", "0"]), often=True),
    memory=maybe(st.sampled_from(["100Mi", "1Gi"]), often=True),
    **{"example.com/gpu": maybe(st.sampled_from(["1", "0"])), "example.com/none": st.sampled_from([None] * 9 + ["1"])},
)
PORTS = maybe(
    st.lists(
        some(
            hostPort=st.sampled_from([80, 81]),
            hostIP=maybe(st.sampled_from(["0.0.0.0", "10.0.0.1", "10.0.0.2"])),
            protocol=st.sampled_from(["TCP", "UDP"]),
        ),
        max_size=1,
    )
)


@st.composite
def containers(draw: Draw, *, init: bool = False) -> dict[str, Any]:
    made = {"name": "c", "image": "x", "resources": {"requests": draw(REQUESTS)}, "ports": draw(PORTS) or []}
    return {**made, "restartPolicy": "Always"} if init and draw(st.booleans()) else made


@st.composite
def pod_views(draw: Draw, *, rules: bool = True) -> PodView:
    spec: dict[str, Any] = {"containers": draw(st.lists(containers(), min_size=1, max_size=2))}
    if draw(st.integers(0, 4)) == 0:
        spec["initContainers"] = draw(st.lists(containers(init=True), max_size=2))
        spec["overhead"] = draw(some(cpu=maybe(st.just("50m"))))
    spec["tolerations"] = draw(TOLERATIONS)
    if rules:
        spec["nodeSelector"] = draw(st.sampled_from([{}, {}, {}, {"host": "h1"}, {ZONE: "za"}]))
        spec["affinity"] = draw(AFFINITY)
        spec["topologySpreadConstraints"] = draw(st.lists(SPREAD, max_size=2))
        spec["nodeName"] = draw(st.sampled_from([""] * 9 + ["n1"]))
    metadata: dict[str, Any] = {"name": "p", "namespace": draw(st.sampled_from(NAMESPACES)), "labels": draw(LABELS)}
    if draw(st.integers(0, 3)) == 0:
        metadata["ownerReferences"] = [{"uid": draw(st.sampled_from(["w1", "w2"])), "controller": True}]
    if draw(st.integers(0, 9)) == 0:
        metadata["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    return decode_as(PodView, msgspec.json.encode({"metadata": metadata, "spec": spec}))


# -- the whole

SETTINGS = st.builds(
    Settings,
    policy=st.just("p"),
    version=st.just("v5"),
    zone_skew_max=st.sampled_from([None, None, 1, 2]),
    zones=st.sampled_from([frozenset(), frozenset(), frozenset({"za"})]),
    regions=st.sampled_from([frozenset(), frozenset(), frozenset({"ra"})]),
    weights=st.one_of(
        st.just(tuple(DEFAULT_WEIGHTS.items())),
        st.tuples(*(st.tuples(st.just(score), st.sampled_from([0, 1, 3])) for score in DEFAULT_WEIGHTS)),
    ),
)
ROOM = st.dictionaries(
    st.sampled_from(["za", "zb", "zz"]),
    st.dictionaries(st.sampled_from(["cpu", "pods", "example.com/gpu"]), st.sampled_from([-1, 0, 1, 600]), max_size=2),
    max_size=2,
)


@st.composite
def clusters(draw: Draw) -> Cluster:
    names = draw(st.lists(st.sampled_from(NODE_NAMES), unique=True, max_size=5))
    nodes = {name: draw(node_views(name)) for name in names}
    placed = draw(st.lists(st.tuples(st.sampled_from(NODE_NAMES), pod_views()), max_size=6))
    pods = {f"uid-{i}": Placed(f"uid-{i}", node, pod) for i, (node, pod) in enumerate(placed)}
    namespaces = draw(st.dictionaries(st.sampled_from(NAMESPACES), st.sampled_from([{}, {"tier": "gold"}])))
    return Cluster(nodes, pods, namespaces)


@st.composite
def questions(draw: Draw) -> Question:
    excluded = draw(st.sampled_from([(), (), (), ("n1",), ("n2", "n9")]))
    return Question(draw(pod_views()), draw(st.integers(0, 2**32)), draw(SETTINGS), draw(ROOM), excluded)
