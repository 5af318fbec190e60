"""The rules of Kubernetes, clause by clause, by example: the feasible nodes of each are written by hand.

The property tests compare the vectorised scheduler with the model. These tests compare both with the documented rules,
so that both cannot misread a rule in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.json import encode
from tests.kit import scheduler_model as model
from tests.kit.scheduler_model import ZONE, Cluster, Placed, PlacementCase

from kedge.api.views import NodeView, PodView, decode_as
from kedge.scheduler import decide, explain, snapshot_of

ROOM = {"cpu": "4", "memory": "8Gi", "pods": "10"}


@dataclass
class Layout:
    """A short notation for nodes and pods."""

    nodes: dict[str, NodeView] = field(default_factory=dict)
    pods: dict[str, Placed] = field(default_factory=dict)
    namespaces: dict[str, dict[str, str]] = field(default_factory=dict)

    def node(self, name: str, offers: dict[str, str] | None = None, **more: Any) -> Layout:
        """`labels` are the node's; all other arguments are its spec."""
        body = {
            "metadata": {"name": name, "uid": f"uid-{name}", "labels": more.pop("labels", {})},
            "spec": more,
            "status": {"allocatable": {**ROOM, **(offers or {})}},
        }
        self.nodes[name] = decode_as(NodeView, encode(body))
        return self

    def zones(self, **zones: str) -> Layout:
        """Nodes by name, each in its zone and a host of its own."""
        for name, zone in zones.items():
            self.node(name, labels={ZONE: zone, "host": name})
        return self

    def pod(self, on: str, app: str = "web", **more: Any) -> Layout:
        uid = f"uid-{len(self.pods)}"
        self.pods[uid] = Placed(uid, on, pod(app, **more))
        return self

    def namespace(self, name: str, **labels: str) -> Layout:
        self.namespaces[name] = labels
        return self

    def open_to(self, asked: PodView) -> set[str]:
        """The nodes that are feasible for the scheduler and for the model."""
        cluster, question = Cluster(self.nodes, self.pods, dict(self.namespaces)), PlacementCase(asked)
        by_model = {name for name, each in self.nodes.items() if not model.failing(cluster, question, each)}
        claims = ((placed.uid, placed.node, placed.pod) for placed in self.pods.values())
        snapshot = snapshot_of(self.nodes.values(), claims, self.namespaces)
        explanation = explain(snapshot, decide(snapshot, asked, 0))
        by_masks = {n for n, code in zip(explanation.names, explanation.first_failing, strict=True) if not code}
        assert by_masks == by_model
        return by_masks


def pod(app: str = "web", *, cpu: str = "100m", **more: Any) -> PodView:
    """`labels`, `namespace` and `gone` are the pod's metadata; all other arguments are its spec."""
    metadata = {
        "name": "p",
        "namespace": more.pop("namespace", "ours"),
        "labels": {"app": app} | more.pop("labels", {}),
    }
    if more.pop("gone", False):
        metadata["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    main = {"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}, "ports": more.pop("ports", [])}
    return decode_as(PodView, encode({"metadata": metadata, "spec": {"containers": [main], **more}}))


def spread(skew: int = 1, key: str = ZONE, **more: Any) -> dict[str, Any]:
    return {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
        **more,
    }


def spreading(*constraints: dict[str, Any], **more: Any) -> PodView:
    return pod(topologySpreadConstraints=list(constraints), **more)


def term(app: str = "db", key: str = ZONE, **more: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **more}


def near(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def apart(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def on_nodes(*terms: Any, fields: Any = ()) -> dict[str, Any]:
    """Required node affinity; each term a list of (key, operator, values)."""
    selector = [{"matchExpressions": [{"key": k, "operator": o, "values": v} for k, o, v in each]} for each in terms]
    selector += [{"matchFields": [{"key": "metadata.name", "operator": o, "values": [v]}]} for o, v in fields]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": selector}}}


def zones() -> Layout:
    """Two nodes in zone a, one in zone b, one in none."""
    return Layout().zones(a1="a", a2="a", b1="b").node("x", labels={"host": "x"})


# -- topology spread -------------------------------------------------------------------------------

SPREAD = {
    "a domain may be ahead of the emptiest by the skew, the pod itself included": (
        zones().pod("a1"), spreading(spread()), {"b1"},
    ),
    "a larger skew allows more": (zones().pod("a1"), spreading(spread(2)), {"a1", "a2", "b1"}),
    "a node without the key is never open": (zones(), spreading(spread()), {"a1", "a2", "b1"}),
    "a pod that its own selector does not mean adds nothing to the count": (
        zones().pod("a1"), spreading(spread(), app="db"), {"a1", "a2", "b1"},
    ),
    "pods of other namespaces do not count": (
        zones().pod("a1", namespace="theirs"), spreading(spread()), {"a1", "a2", "b1"},
    ),
    "pods on their way out do not count": (zones().pod("a1", gone=True), spreading(spread()), {"a1", "a2", "b1"}),
    "pods on nodes that lack a key of any constraint do not count, nor do their domains": (
        zones().node("c", labels={ZONE: "c"}).pod("a1"),
        spreading(spread(), spread(9, "host")),
        {"b1"},
    ),
    "every constraint must hold": (
        zones().pod("a1").pod("b1"), spreading(spread(), spread(1, "host")), {"a2"},
    ),
    "a missing selector counts no pod": (
        zones().pod("a1").pod("a1"), spreading(spread(labelSelector=None)), {"a1", "a2", "b1"},
    ),
    "an empty selector counts every pod of the namespace": (
        zones().pod("a1", "web").pod("a2", "db"), spreading(spread(labelSelector={})), {"b1"},
    ),
    "with fewer domains than minDomains the emptiest counts as empty": (
        zones().pod("a1").pod("b1"), spreading(spread(minDomains=3)), set(),
    ),
    "with as many domains as minDomains it does not": (
        zones().pod("a1").pod("b1"), spreading(spread(minDomains=2)), {"a1", "a2", "b1"},
    ),
    "below minDomains empty domains are still open": (
        zones().pod("a1"), spreading(spread(minDomains=3)), {"b1"},
    ),
    "nodes that the pod's selector rules out are no domains": (
        zones().pod("a1"), spreading(spread(), nodeSelector={ZONE: "a"}), {"a1", "a2"},
    ),
    "unless affinity is to be ignored": (
        zones().pod("a1"), spreading(spread(nodeAffinityPolicy="Ignore"), nodeSelector={ZONE: "a"}), set(),
    ),
    "pods on nodes that are ruled out do not count": (
        zones().pod("a1"), spreading(spread(), affinity=on_nodes([("host", "NotIn", ["a1"])])), {"a2", "b1"},
    ),
    "tainted nodes are domains": (
        Layout().zones(a="a").node("b", labels={ZONE: "b"}, taints=[{"key": "k", "effect": "NoSchedule"}]).pod("a"),
        spreading(spread()), set(),
    ),
    "unless taints are to be honoured": (
        Layout().zones(a="a").node("b", labels={ZONE: "b"}, taints=[{"key": "k", "effect": "NoSchedule"}]).pod("a"),
        spreading(spread(nodeTaintsPolicy="Honor")), {"a"},
    ),
    "a PreferNoSchedule taint does not exclude a domain": (
        Layout().zones(a="a").pod("a")
        .node("b", labels={ZONE: "b"}, taints=[{"key": "k", "effect": "PreferNoSchedule"}]),
        spreading(spread(nodeTaintsPolicy="Honor")), {"b"},
    ),
    "a cordoned node is a domain": (
        Layout().zones(a="a").node("b", labels={ZONE: "b"}, unschedulable=True).pod("a"), spreading(spread()), set(),
    ),
    "matchLabelKeys counts only pods with the pod's own value": (
        zones().pod("a1", labels={"rev": "1"}),
        spreading(spread(matchLabelKeys=["rev"]), labels={"rev": "2"}), {"a1", "a2", "b1"},
    ),
    "and pods with the same value": (
        zones().pod("a1", labels={"rev": "1"}),
        spreading(spread(matchLabelKeys=["rev"]), labels={"rev": "1"}), {"b1"},
    ),
    "a key that the pod lacks is ignored": (
        zones().pod("a1", labels={"rev": "1"}), spreading(spread(matchLabelKeys=["rev"])), {"b1"},
    ),
    "ScheduleAnyway rejects no node": (
        zones().pod("a1").pod("a1"), spreading(spread(whenUnsatisfiable="ScheduleAnyway")), {"a1", "a2", "b1", "x"},
    ),
}  # fmt: skip

# -- between pods ----------------------------------------------------------------------------------

BETWEEN_PODS = {
    "near means in the same domain": (zones().pod("a1", "db"), pod(affinity=near(term())), {"a1", "a2"}),
    "without a matching pod no node is feasible": (zones(), pod(affinity=near(term())), set()),
    "the first pod of its kind may go to any node with the key": (
        zones(), pod(affinity=near(term("web"))), {"a1", "a2", "b1"},
    ),
    "but not once a matching pod exists": (zones().pod("b1"), pod(affinity=near(term("web"))), {"b1"}),
    "a pod in another namespace does not match": (
        zones().pod("b1", namespace="theirs"), pod(affinity=near(term("web"))), {"a1", "a2", "b1"},
    ),
    "a matching pod on a node without the key is in no domain": (
        zones().pod("x", "db"), pod(affinity=near(term())), set(),
    ),
    "every term must be met, by pods that match all terms": (
        zones().pod("a1", "db").pod("a2", "db"), pod(affinity=near(term(), term(key="host"))), {"a1", "a2"},
    ),
    "two terms are not met by two pods that each meet one": (
        zones().pod("a1", "db").pod("a1", "cache"), pod(affinity=near(term("db"), term("cache"))), set(),
    ),
    "a terminating pod still counts": (
        zones().pod("a1", "db", gone=True), pod(affinity=near(term())), {"a1", "a2"},
    ),
    "anti-affinity means not in the same domain; a node without the key passes": (
        zones().pod("a1", "db"), pod(affinity=apart(term())), {"b1", "x"},
    ),
    "each term of anti-affinity forbids by itself": (
        zones().pod("a1", "db").pod("b1", "cache"), pod(affinity=apart(term("db", "host"), term("cache"))), {"a2", "x"},
    ),
    "the anti-affinity of placed pods is symmetric": (
        zones().pod("a1", "db", affinity=apart(term("web"))), pod(), {"b1", "x"},
    ),
    "their affinity is not": (zones().pod("a1", "db", affinity=near(term("web"))), pod(), {"a1", "a2", "b1", "x"}),
    "no namespaces and no selector mean the pod's own": (
        zones().pod("a1", "db", namespace="theirs"), pod(affinity=apart(term())), {"a1", "a2", "b1", "x"},
    ),
    "listed namespaces match, and the own one only if listed": (
        zones().pod("a1", "db", namespace="theirs").pod("b1", "db"),
        pod(affinity=apart(term(namespaces=["theirs"]))), {"b1", "x"},
    ),
    "an empty selector of namespaces means all": (
        zones().pod("a1", "db", namespace="theirs").pod("b1", "db"),
        pod(affinity=apart(term(namespaceSelector={}))), {"x"},
    ),
    "a selector means namespaces by their labels": (
        zones().namespace("theirs", tier="gold").namespace("others", tier="tin")
        .pod("a1", "db", namespace="theirs").pod("b1", "db", namespace="others"),
        pod(affinity=apart(term(namespaceSelector={"matchLabels": {"tier": "gold"}}))), {"b1", "x"},
    ),
    "names and selector together mean both": (
        zones().namespace("theirs", tier="gold")
        .pod("a1", "db", namespace="theirs").pod("b1", "db", namespace="others"),
        pod(affinity=apart(term(namespaces=["others"], namespaceSelector={"matchLabels": {"tier": "gold"}}))), {"x"},
    ),
    "a missing label selector matches no pod": (
        zones().pod("a1", "db"), pod(affinity=apart(term(labelSelector=None))), {"a1", "a2", "b1", "x"},
    ),
    "an empty label selector matches every pod": (
        zones().pod("a1", "db"), pod(affinity=apart(term(labelSelector={}))), {"b1", "x"},
    ),
    "matchLabelKeys means those of the pod's own value": (
        zones().pod("a1", "db", labels={"rev": "1"}).pod("b1", "db", labels={"rev": "2"}),
        pod(labels={"rev": "2"}, affinity=apart(term(matchLabelKeys=["rev"]))), {"a1", "a2", "x"},
    ),
    "mismatchLabelKeys means all others, those without the label too": (
        zones().pod("a1", "db", labels={"tenant": "t"}).pod("b1", "db"),
        pod(labels={"tenant": "t"}, affinity=apart(term(mismatchLabelKeys=["tenant"]))), {"a1", "a2", "x"},
    ),
    "matchLabelKeys of placed pods use their own labels": (
        zones().pod("a1", "db", labels={"rev": "1"}, affinity=apart(term("web", matchLabelKeys=["rev"]))),
        pod(labels={"rev": "2"}), {"a1", "a2", "b1", "x"},
    ),
}  # fmt: skip

# -- one node at a time ----------------------------------------------------------------------------


def labelled(**values: str) -> Layout:
    small = Layout()
    for name, value in values.items():
        small.node(name, labels={"size": value})
    return small.node("none")


def tainted(**taint: str) -> Layout:
    return Layout().node("n", taints=[{"key": "k", "effect": "NoSchedule", **taint}])


def tolerating(**toleration: Any) -> PodView:
    return pod(tolerations=[toleration])


def port(**more: Any) -> list[dict[str, Any]]:
    return [{"containerPort": 1, "hostPort": 80, **more}]


def init(cpu: str, *, sidecar: bool = False) -> dict[str, Any]:
    made: dict[str, Any] = {"name": "i", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    return {**made, "restartPolicy": "Always"} if sidecar else made


SIZES = labelled(five="5", six="6", big="big", negative="-7", under="1_0")
ONE_NODE = {
    "In": (SIZES, pod(affinity=on_nodes([("size", "In", ["5", "big"])])), {"five", "big"}),
    "NotIn also means those without the label": (
        SIZES, pod(affinity=on_nodes([("size", "NotIn", ["5", "big"])])), {"six", "negative", "under", "none"},
    ),
    "Exists": (SIZES, pod(affinity=on_nodes([("size", "Exists", [])])), {"five", "six", "big", "negative", "under"}),
    "DoesNotExist": (SIZES, pod(affinity=on_nodes([("size", "DoesNotExist", [])])), {"none"}),
    "Gt is more, of whole numbers only": (SIZES, pod(affinity=on_nodes([("size", "Gt", ["5"])])), {"six"}),
    "Lt is less": (SIZES, pod(affinity=on_nodes([("size", "Lt", ["6"])])), {"five", "negative"}),
    "all of a term must hold": (
        SIZES, pod(affinity=on_nodes([("size", "Gt", ["4"]), ("size", "Lt", ["6"])])), {"five"},
    ),
    "any of several terms is enough": (
        SIZES, pod(affinity=on_nodes([("size", "In", ["5"])], [("size", "In", ["6"])])), {"five", "six"},
    ),
    "a term without requirements is met by no node": (SIZES, pod(affinity=on_nodes([])), set()),
    "fields mean the node's name": (SIZES, pod(affinity=on_nodes(fields=[("In", "six")])), {"six"}),
    "and all other names": (
        SIZES, pod(affinity=on_nodes(fields=[("NotIn", "six")])), {"five", "big", "negative", "under", "none"},
    ),
    "selector and affinity must both hold": (
        SIZES, pod(nodeSelector={"size": "5"}, affinity=on_nodes([("size", "In", ["6"])])), set(),
    ),
    "Equal compares key and value": (tainted(value="v"), tolerating(key="k", value="v"), {"n"}),
    "another value is not tolerated": (tainted(value="v"), tolerating(key="k", value="w"), set()),
    "Exists compares the key alone": (tainted(value="v"), tolerating(key="k", operator="Exists"), {"n"}),
    "Exists without a key tolerates all": (tainted(value="v"), tolerating(operator="Exists"), {"n"}),
    "an effect narrows": (tainted(), tolerating(key="k", operator="Exists", effect="NoExecute"), set()),
    "NoExecute keeps out too": (tainted(effect="NoExecute"), pod(), set()),
    "tolerated for a while is tolerated": (
        tainted(effect="NoExecute"),
        tolerating(key="k", operator="Exists", effect="NoExecute", tolerationSeconds=0), {"n"},
    ),
    "PreferNoSchedule rejects no pod": (tainted(effect="PreferNoSchedule"), pod(), {"n"}),
    "every taint must be tolerated": (
        Layout().node("n", taints=[{"key": k, "effect": "NoSchedule"} for k in ("k", "l")]),
        tolerating(key="k", operator="Exists"), set(),
    ),
    "a cordon is tolerated as its taint": (
        Layout().node("n", unschedulable=True),
        tolerating(key="node.kubernetes.io/unschedulable", operator="Exists", effect="NoSchedule"), {"n"},
    ),
    "a host port is taken once": (zones().pod("a1", ports=port()), pod(ports=port()), {"a2", "b1", "x"}),
    "another protocol is another port": (
        Layout().node("n").pod("n", ports=port(protocol="UDP")), pod(ports=port(protocol="TCP")), {"n"},
    ),
    "two addresses have each their own": (
        Layout().node("n").pod("n", ports=port(hostIP="10.0.0.1")), pod(ports=port(hostIP="10.0.0.2")), {"n"},
    ),
    "every address takes each": (
        Layout().node("n").pod("n", ports=port(hostIP="10.0.0.1")), pod(ports=port(hostIP="0.0.0.0")), set(),
    ),
    "and no address is every address": (
        Layout().node("n").pod("n", ports=port()), pod(ports=port(hostIP="10.0.0.1")), set(),
    ),
    "containers add up": (Layout().node("n").pod("n", cpu="3"), pod(cpu="1001m"), set()),
    "to the last thousandth": (Layout().node("n").pod("n", cpu="3"), pod(cpu="1"), {"n"}),
    "an init container runs before them": (Layout().node("n"), pod(cpu="3", initContainers=[init("4")]), {"n"}),
    "and must fit by itself": (Layout().node("n"), pod(cpu="3", initContainers=[init("4001m")]), set()),
    "a sidecar stays beside them": (
        Layout().node("n"), pod(cpu="3", initContainers=[init("1001m", sidecar=True)]), set(),
    ),
    "and beside the init containers after it": (
        Layout().node("n"), pod(cpu="1", initContainers=[init("2", sidecar=True), init("3")]), set(),
    ),
    "not beside those before it": (
        Layout().node("n"), pod(cpu="1", initContainers=[init("4"), init("2", sidecar=True)]), {"n"},
    ),
    "a request of the pod replaces its containers'": (
        Layout().node("n"), pod(cpu="1", resources={"requests": {"cpu": "4001m"}}), set(),
    ),
    "and counts on the node": (
        Layout().node("n").pod("n", cpu="0", resources={"requests": {"cpu": "3"}}), pod(cpu="1001m"), set(),
    ),
    "other resources are still its containers'": (
        Layout().node("n"), pod(cpu="4001m", resources={"requests": {"memory": "1Gi"}}), set(),
    ),
    "overhead comes on top": (Layout().node("n"), pod(cpu="4", overhead={"cpu": "1m"}), set()),
    "a resource that a node does not have is none": (
        Layout().node("n").node("gpu", {"example.com/gpu": "1"}),
        pod(initContainers=[{"name": "i", "image": "x", "resources": {"requests": {"example.com/gpu": "1"}}}]), {"gpu"},
    ),
    "nothing asked is never short, on a node that is over full": (
        Layout().node("n", {"cpu": "1"}).pod("n", cpu="2"), pod(cpu="0"), {"n"},
    ),
    "so many pods and no more": (Layout().node("n", {"pods": "1"}).pod("n"), pod(cpu="0"), set()),
}  # fmt: skip


@pytest.mark.parametrize("clause", SPREAD)
def test_topology_spread_follows_kubernetes(clause: str) -> None:
    small, asked, expected = SPREAD[clause]
    assert small.open_to(asked) == expected


@pytest.mark.parametrize("clause", BETWEEN_PODS)
def test_pod_affinity_follows_kubernetes(clause: str) -> None:
    small, asked, expected = BETWEEN_PODS[clause]
    assert small.open_to(asked) == expected


@pytest.mark.parametrize("clause", ONE_NODE)
def test_node_filters_follow_kubernetes(clause: str) -> None:
    small, asked, expected = ONE_NODE[clause]
    assert small.open_to(asked) == expected
