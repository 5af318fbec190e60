"""A cluster that `kedge up` runs, as another command sees it: its API and decision log, by the state folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import ListOptions
from kedge.api.wellknown import (
    AUTOSCALER_KIND,
    DEPLOYMENT_KIND,
    JOB_KIND,
    NODE_KIND,
    POD_KIND,
    REPLICA_SET_KIND,
    SCHEDULING_POLICY_KIND,
    ZONE_QUOTA_KIND,
)
from kedge.cli.server import KUBECONFIG
from kedge.cli.state_folder import DECISIONS
from kedge.client.contract import Client
from kedge.client.http import HttpTransport, read_kubeconfig
from kedge.env import system_env
from kedge.errors import NotFound, Terminal, Unavailable
from kedge.keys import Key
from kedge.observe.readers.recording import Recording
from kedge.observe.readers.why import ClusterEvidence, writes_of
from kedge.observe.recording.segments import log_folders, read_log
from kedge.scheduler.state.cache_follower import FOLLOWED

OBJECTS_MAX: Final = 5_000
"""Objects of one kind that an answer reads at the most."""
_OF_NAMESPACE: Final = (POD_KIND, REPLICA_SET_KIND, DEPLOYMENT_KIND, JOB_KIND, AUTOSCALER_KIND)
_OF_CLUSTER: Final = (NODE_KIND, ZONE_QUOTA_KIND, SCHEDULING_POLICY_KIND)


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """The API and the records of a cluster on this machine."""

    client: Client
    state: Path

    async def evidence(self, namespace: str, kinds: Iterable[Kind] = ()) -> ClusterEvidence:
        """The objects of a namespace and of the cluster that explain a pod or a workload, and every kept decision."""
        return await evidence_from(self.client, logged_records(self.state), namespace, kinds)

    async def scheduled_objects(self) -> dict[str, dict[Key, Object]]:
        """Everything that a scheduler decides on, by kind, as it is now.

        Raises:
            Terminal: there is more than this command reads.
        """
        found: dict[str, dict[Key, Object]] = {}
        for name in FOLLOWED:
            listed = await self.client.list(self.client.kinds.of_key_kind(name), ListOptions(limit=OBJECTS_MAX))
            if listed.continue_token:
                raise Terminal(f"there are more than {OBJECTS_MAX} objects of {name}: ask a recording instead")
            found[name] = {each.key: each for each in listed.objects}
        return found


async def evidence_from(
    client: Client, logged: Recording, namespace: str, kinds: Iterable[Kind] = ()
) -> ClusterEvidence:
    """The evidence of a running cluster, with what its decision logs have."""
    objects: dict[Key, Object] = {}
    lacks = list(logged.undecoded)
    for name in dict.fromkeys((*_OF_NAMESPACE, *_OF_CLUSTER, *(each.key_kind for each in kinds))):
        kind = client.kinds.of_key_kind(name)
        options = ListOptions(namespace=namespace if kind.namespaced else "", limit=OBJECTS_MAX)
        listed = await client.list(kind, options)
        objects.update((each.key, each) for each in listed.objects)
        if listed.continue_token:
            lacks.append(f"only the first {OBJECTS_MAX} objects of {name} were read")
    writes = writes_of(logged.decisions)
    return ClusterEvidence(objects, logged.decisions, datetime.now(UTC), writes, tuple(lacks), logged.coverages)


def logged_records(state: Path) -> Recording:
    """The records in the logs below a state folder, decisions in the order in which they began.

    A part that cannot be read is a sentence in `undecoded`.
    """
    found = Recording()
    if (state / DECISIONS).is_dir():
        for folder in log_folders(state / DECISIONS):
            for record in read_log(folder, report=lambda each: found.undecoded.append(str(each))):
                found.add(record)
    found.decisions.sort(key=lambda each: each.began)
    return found


@asynccontextmanager
async def live_cluster(state: Path) -> AsyncIterator[LiveCluster]:
    """Connect to the cluster of a state folder.

    Raises:
        NotFound: no cluster ever ran there.
        Unavailable: it does not run now.
    """
    kubeconfig = state / KUBECONFIG
    if not kubeconfig.is_file():
        raise NotFound(f"no cluster has run in {state}: start one with `kedge up`, or give --state")
    address = read_kubeconfig(kubeconfig)
    transport = HttpTransport(address)
    try:
        yield LiveCluster(Client(transport, system_env(), component="kedge"), state)
    except Unavailable as error:
        raise Unavailable(
            f"the cluster of {state} does not answer ({error}): start it with `kedge up --state {state}`"
        ) from error
    finally:
        await transport.close()
