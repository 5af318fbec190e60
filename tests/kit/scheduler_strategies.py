"""Random clusters and pods, small enough for the model and dense enough that rules interact."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from tests.kit.scheduler_model import REGION, ZONE, Cluster, Placed, PlacementCase

from kedge.api.views import NodeView, PodView, decode_as
from kedge.scheduler import Settings, default_weights

NODE_NAMES = ("n1", "n2", "n3", "n4", "n5")
NAMESPACES = ("team-a", "team-b")
MOSTLY_ONE = ("team-a", "team-a", "team-a", "team-b")
Draw = Any


def maybe(strategy: st.SearchStrategy[Any], *, often: bool = False) -> st.SearchStrategy[Any]:
    """Five times in six if `often`, else once in three."""
    return st.integers(0, 5).flatmap(lambda die: strategy if die < (5 if often else 2) else st.none())


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with the fields that were drawn."""
    return st.fixed_dictionaries(fields).map(lambda made: {k: v for k, v in made.items() if v is not None})


# -- nodes

NODE_LABELS = some(
    **{
        ZONE: maybe(st.sampled_from(["za", "zb"]), often=True),
        REGION: maybe(st.sampled_from(["ra", "rb"])),
        "host": maybe(st.sampled_from(["h1", "h2", "h3", "h4"]), often=True),
        "rack": maybe(st.sampled_from(["r1", "r2"])),
        "size": maybe(st.sampled_from(["1", "5", "-3", "big", "+7", "05", str(2**63 - 1), str(2**63)])),
    }
)
TAINTS = maybe(
    st.lists(
        some(
            key=st.sampled_from(["a", "b"]),
            value=maybe(st.sampled_from(["x", "y"])),
            effect=st.sampled_from(["NoSchedule", "NoExecute", *["PreferNoSchedule"] * 4]),
            timeAdded=maybe(st.just("2030-01-01T00:00:00Z")),
        ),
        max_size=2,
    )
)
OFFERED = some(
    cpu=st.sampled_from(["4", "8", "500m", "6", "4", "8", None]),
    memory=st.sampled_from(["8Gi", "4Gi", "300Mi", "16Gi", "4Gi", "8Gi", None]),
    pods=st.sampled_from(["1", *["10"] * 5]),
    **{"example.com/gpu": maybe(st.sampled_from(["1", "2"]))},
)


IMAGES = st.sampled_from(
    [
        [],
        [{"names": ["app:latest", "app:v1"], "sizeBytes": 60 << 20}],
        [{"names": ["app:latest"], "sizeBytes": 1100 << 20}, {"names": ["hub:5000/x:latest"], "sizeBytes": 1}],
        [{"names": ["hub/x:latest", "app:v1"], "sizeBytes": 5 << 30}],
    ]
)


@st.composite
def node_views(draw: Draw, name: str) -> NodeView:
    seldom = st.sampled_from([False] * 19 + [True])
    metadata = {"name": name, "uid": draw(st.sampled_from(["u1", "u2"])), "labels": draw(NODE_LABELS)}
    if draw(seldom):
        metadata["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    conditions = [{"type": "Suspect", "status": "True"}] if draw(seldom) else []
    return decode_as(
        NodeView,
        msgspec.json.encode(
            {
                "metadata": metadata,
                "spec": {"unschedulable": draw(seldom), "taints": draw(TAINTS) or []},
                "status": {"allocatable": draw(OFFERED), "conditions": conditions, "images": draw(IMAGES)},
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
    preferredDuringSchedulingIgnoredDuringExecution=maybe(st.lists(WEIGHTED, min_size=1, max_size=2), often=True),
)
NODE_REQUIREMENTS = st.one_of(
    some(
        key=st.sampled_from([ZONE, "host", "size"]),
        operator=st.sampled_from(["In", "NotIn"]),
        values=st.lists(st.sampled_from(["za", "zb", "h1", "h2", "5"]), min_size=1, max_size=2),
    ),
    some(key=st.sampled_from([ZONE, "rack", "none"]), operator=st.sampled_from(["Exists", "DoesNotExist"])),
    some(
        key=st.just("size"),
        operator=st.sampled_from(["Gt", "Lt"]),
        values=st.sampled_from(["0", "5", "-4", "+4", "0x5", "5.0", "1_0", " 5", str(2**63), str(-(2**63))]).map(
            lambda operand: [operand]
        ),
    ),
)
NODE_TERMS = some(
    matchExpressions=maybe(st.lists(NODE_REQUIREMENTS, min_size=1, max_size=2), often=True),
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
        st.lists(some(weight=st.sampled_from([1, 10, 33]), preference=NODE_TERMS), min_size=1, max_size=2), often=True
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
    cpu=maybe(st.sampled_from(["100m", "500m", "1", "0", "0.1m", "100.4m", "1.0005"]), often=True),
    memory=maybe(st.sampled_from(["100Mi", "1Gi", "100.3Mi", "0.7", "1.5Gi", "1000m"]), often=True),
    **{
        "example.com/gpu": st.sampled_from([None] * 6 + ["1", "0"]),
        "example.com/none": st.sampled_from([None] * 19 + ["1"]),
    },
)
PORTS = st.lists(
    some(
        hostPort=st.sampled_from([80, 80, 81]),
        hostIP=maybe(st.sampled_from(["0.0.0.0", "10.0.0.1", "10.0.0.2"])),
        protocol=st.sampled_from(["TCP", "TCP", "UDP"]),
    ),
    min_size=1,
    max_size=2,
)


@st.composite
def containers(draw: Draw, *, init: bool = False) -> dict[str, Any]:
    image = draw(st.sampled_from(["app", "app:v1", "hub/x", "hub:5000/x"]))
    made = {"name": "c", "image": image, "resources": {"requests": draw(REQUESTS)}}
    return {**made, "restartPolicy": "Always"} if init and draw(st.booleans()) else made


IMAGE_VOLUMES = st.sampled_from(["app", "hub/x", "hub:5000/x"]).map(lambda r: {"name": "v", "image": {"reference": r}})
FEATURES = {
    "nodeSelector": st.sampled_from([{"host": "h1"}, {ZONE: "za"}]),
    "nodeAffinity": NODE_AFFINITY,
    "nodePreference": st.lists(
        some(
            weight=st.sampled_from([1, 10, 33]),
            preference=some(matchExpressions=st.lists(NODE_REQUIREMENTS, min_size=1, max_size=1)),
        ),
        min_size=1,
        max_size=3,
    ),
    "podAffinity": BETWEEN_PODS,
    "podAntiAffinity": BETWEEN_PODS,
    "topologySpreadConstraints": st.lists(SPREAD, min_size=1, max_size=2),
    "tolerations": TOLERATIONS,
    "ports": PORTS,
    "init": st.lists(containers(init=True), min_size=1, max_size=2),
    "nodeName": st.just("n1"),
    "resources": st.sampled_from([{"cpu": "3"}, {"memory": "3Gi"}, {"cpu": "2", "memory": "2Gi"}]),
    "gone": st.just("2030-01-01T00:00:00Z"),
    "resized": st.tuples(REQUESTS, REQUESTS, st.sampled_from(["", "Deferred", "Infeasible"])),
}
"""Features of a pod. Few at once: with all of them no node would be feasible, and no score would matter."""


@st.composite
def pod_views(draw: Draw, focus: str = "", *, placed: bool = True) -> PodView:
    """A pod; with a `focus` it has that feature, and few others. One that is not `placed` was never resized."""
    names = draw(st.lists(st.sampled_from(sorted(FEATURES)), max_size=1 if focus else 3, unique=True))
    drawn = {name: draw(FEATURES[name]) for name in dict.fromkeys([*names, *([focus] if focus in FEATURES else [])])}
    made = draw(st.lists(containers(), min_size=1, max_size=2))
    spec: dict[str, Any] = {"containers": [{**each, "name": f"c{n}"} for n, each in enumerate(made)]}
    if "ports" in drawn:
        spec["containers"][0]["ports"] = drawn["ports"]
    if "init" in drawn:
        spec |= {"initContainers": drawn["init"], "overhead": draw(some(cpu=maybe(st.just("50m"))))}
        spec["volumes"] = draw(st.lists(IMAGE_VOLUMES, max_size=1))
    spec["affinity"] = {name: drawn[name] for name in drawn if name.endswith("ffinity")}
    if "nodePreference" in drawn:
        preferred = {"preferredDuringSchedulingIgnoredDuringExecution": drawn["nodePreference"]}
        spec["affinity"]["nodeAffinity"] = {**spec["affinity"].get("nodeAffinity", {}), **preferred}
    for name in ("nodeSelector", "topologySpreadConstraints", "tolerations", "nodeName"):
        if name in drawn:
            spec[name] = drawn[name]
    if "resources" in drawn:
        spec["resources"] = {"requests": drawn["resources"]}
    metadata: dict[str, Any] = {"name": "p", "namespace": draw(st.sampled_from(MOSTLY_ONE)), "labels": draw(LABELS)}
    if focus == "policy" or draw(st.booleans()):
        metadata["ownerReferences"] = [{"uid": draw(st.sampled_from(["w1", "w1", "w2"])), "controller": True}]
    if "gone" in drawn:
        metadata["deletionTimestamp"] = drawn["gone"]
    status = _resized_status(spec["containers"], *drawn["resized"]) if placed and "resized" in drawn else {}
    return decode_as(PodView, msgspec.json.encode({"metadata": metadata, "spec": spec, "status": status}))


def _resized_status(
    containers: list[dict[str, Any]], applied: dict[str, Any], allocated: dict[str, Any], reason: str
) -> dict[str, Any]:
    """The status of a pod whose node has allocated and applied other resources to its first container."""
    first = {"name": containers[0]["name"], "resources": {"requests": applied}, "allocatedResources": allocated}
    pending = {"type": "PodResizePending", "status": "True", "reason": reason}
    return {"containerStatuses": [first], "conditions": [pending] if reason else []}


# -- the whole

SETTINGS = st.builds(
    Settings,
    policy=st.just("p"),
    version=st.just("v5"),
    zone_skew_max=st.sampled_from([None, 1, 2]),
    zones=st.sampled_from([frozenset(), frozenset(), frozenset({"za"})]),
    regions=st.sampled_from([frozenset(), frozenset(), frozenset({"ra"})]),
    weights=st.one_of(
        st.just(tuple(default_weights().items())),
        st.tuples(*(st.tuples(st.just(score), st.sampled_from([0, 1, 3])) for score in default_weights())),
    ),
)
ROOM = st.dictionaries(
    st.sampled_from(["za", "zb", "zz"]),
    st.dictionaries(st.sampled_from(["cpu", "pods", "example.com/gpu"]), st.sampled_from([-1, 0, 1, 600]), max_size=2),
    max_size=2,
)


@st.composite
def clusters(draw: Draw, focus: str = "") -> Cluster:
    fewest = 3 if focus else draw(st.sampled_from([0, 3]))
    names = draw(st.lists(st.sampled_from(NODE_NAMES), unique=True, min_size=fewest, max_size=5))
    nodes = {name: draw(node_views(name)) for name in names}
    focused = st.tuples(st.sampled_from(names or NODE_NAMES), pod_views(focus))
    others = st.tuples(st.sampled_from(NODE_NAMES), pod_views())
    placed = draw(st.lists(focused, min_size=1, max_size=5)) + draw(st.lists(others, max_size=2))
    pods = {f"uid-{i}": Placed(f"uid-{i}", node, pod) for i, (node, pod) in enumerate(placed)}
    namespaces = draw(st.dictionaries(st.sampled_from(NAMESPACES), st.sampled_from([{}, {"tier": "gold"}])))
    return Cluster(nodes, pods, namespaces)


@st.composite
def questions(draw: Draw, focus: str = "") -> PlacementCase:
    excluded = draw(st.sampled_from([*[()] * 8, ("n1",), ("n2", "n9")]))
    room = draw(ROOM) if draw(st.integers(0, 3)) == 0 else {}
    return PlacementCase(
        draw(pod_views(focus, placed=False)), draw(st.integers(0, 2**32)), draw(SETTINGS), room, excluded
    )


FOCI = (*sorted(FEATURES), "policy", "policy", "")
"""The features to focus on; the last is none."""


def cases() -> st.SearchStrategy[tuple[Cluster, PlacementCase]]:
    """A cluster and a question with the same focus."""
    return st.sampled_from(FOCI).flatmap(lambda focus: st.tuples(clusters(focus), questions(focus)))
