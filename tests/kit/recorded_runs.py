"""Small recorded runs of simulated clusters, for tests that rebuild and search around them."""

from __future__ import annotations

from functools import cache

from kedge.sim.scenario import ScenarioRun, parse_scenario, run_scenario

SMALL = """\
scenario: small
story: One replica on each of two nodes, and a few failures.
seed: 3
world:
  servers: 2
  nodes:
    - {name: node-a, zone: zone-a, resources: {cpu: 2}}
    - {name: node-b, zone: zone-b, resources: {cpu: 2}}
  controllers: [replicaset, node-lifecycle, garbage]
steps:
  - lose reply: {to: bind, on: Pod/api-*, by: default-scheduler, after: commit, timeout: 2s}
  - at: 2s
    admit: &set
      apiVersion: apps/v1
      kind: ReplicaSet
      metadata: {name: web}
      spec:
        replicas: 1
        selector: {matchLabels: {app: web}}
        template:
          metadata: {labels: {app: web}}
          spec:
            nodeSelector: {topology.kubernetes.io/zone: zone-a}
            containers: [{name: main, image: "web:1", resources: {requests: {cpu: 500m}}}]
  - admit:
      apiVersion: apps/v1
      kind: ReplicaSet
      metadata: {name: api}
      spec:
        replicas: 1
        selector: {matchLabels: {app: api}}
        template:
          metadata: {labels: {app: api}}
          spec:
            nodeSelector: {topology.kubernetes.io/zone: zone-b}
            containers: [{name: main, image: "web:1", resources: {requests: {cpu: 500m}}}]
  - expect: {object: ReplicaSet/api, field: status.readyReplicas, is: 1, within: 30s}
  - expect: {object: ReplicaSet/web, field: status.readyReplicas, is: 1, within: 30s}
  - at: 15s
    end process: {of: Pod/web-0, code: 3}
  - at: 20s
    delay watch: {of: Pod, by: 12s, to: default-scheduler}
  - scale: {workload: ReplicaSet/web, to: 2}
  - scale: {workload: ReplicaSet/web, to: 3}
    at: 25s
  - change: {object: ReplicaSet/web, patch: {metadata: {labels: {touched: "yes"}}}}
    at: 40s
  - partition node: {node: node-b, lasting: 45s}
  - delete: Pod/web-2
    at: 60s
  - note: the end
    at: 110s
settles within: 0s
""".replace("&set", "")


@cache
def small_run() -> ScenarioRun:
    """A run of it, once a process."""
    run = run_scenario(parse_scenario(SMALL), keep=True)
    assert run.passed, run.violation
    return run


TIED = """\
scenario: tied
story: Pods that fit equally well on several nodes.
world:
  nodes:
    - {name: node-a}
    - {name: node-b}
    - {name: node-c}
    - {name: node-d}
  controllers: [replicaset, node-lifecycle, garbage]
steps:
  - at: 1s
    admit:
      apiVersion: apps/v1
      kind: ReplicaSet
      metadata: {name: web}
      spec:
        replicas: 6
        selector: {matchLabels: {app: web}}
        template:
          metadata: {labels: {app: web}}
          spec: {containers: [{name: main, image: "web:1", resources: {requests: {cpu: 500m}}}]}
  - expect: {object: ReplicaSet/web, field: status.readyReplicas, is: 6, within: 30s}
  - note: the end
    at: 20s
settles within: 0s
"""


@cache
def tied_run(seed: int) -> ScenarioRun:
    """A run of it with that seed."""
    run = run_scenario(parse_scenario(TIED), keep=True, seed=seed)
    assert run.passed, run.violation
    return run
