"""A cluster that `kedge up` runs, as another command sees it: its API and decision log, by the state folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import ListOptions
from kedge.api.wellknown import (
    AUTOSCALER_KIND,
    DEPLOYMENT_KIND,
    ENDPOINT_SLICE_KIND,
    GANG_LABEL,
    JOB_KIND,
    NODE_ALLOCATION_KIND,
    NODE_KIND,
    POD_KIND,
    REPLICA_SET_KIND,
)
from kedge.cli.audit_evidence import audit_evidence
from kedge.cli.progress import ProgressBar
from kedge.cli.server import KUBECONFIG
from kedge.cli.state_folder import DECISIONS
from kedge.cli.up import no_cluster
from kedge.client.contract import Client
from kedge.client.http import HttpTransport, read_kubeconfig
from kedge.client.http.rest import RestClient
from kedge.client.http.wire import object_path
from kedge.env import system_env
from kedge.errors import Compacted, NotFound, Terminal, Unavailable
from kedge.keys import Key, Origin, Revision
from kedge.observe.readers.logged_part import answer_part, history_part
from kedge.observe.readers.object_history import versions_in, with_dependents
from kedge.observe.readers.recording import Recording
from kedge.observe.readers.why import ClusterEvidence, ConditionWrite, RecordedWrite, write_in_decisions, writes_of
from kedge.observe.readers.why.condition_writes import ConditionLookup
from kedge.observe.recording.log_search import LogSearch
from kedge.observe.recording.segments import log_folders, read_log
from kedge.observe.records import Decision
from kedge.scheduler.state.cache_follower import FOLLOWED

LOOKUPS_MAX: Final = 100
"""Conditions whose write an answer asks the server for at the most."""
OBJECTS_MAX: Final = 5_000
"""Objects of one kind that an answer reads at the most."""
_READ: Final = (*FOLLOWED, DEPLOYMENT_KIND, JOB_KIND, AUTOSCALER_KIND, ENDPOINT_SLICE_KIND)
"""The kinds whose objects an answer reads: the inputs of an attempt, workloads, and the pods that receive work."""


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """The API and the records of a cluster on this machine."""

    client: Client
    state: Path
    rest: RestClient

    async def evidence(
        self, keys: Collection[Key], namespace: str, kinds: Iterable[Kind] = (), *, versions_of: Collection[str] = ()
    ) -> tuple[ClusterEvidence, Recording]:
        """The objects of a namespace and of the cluster that explain one of `keys`, and the decisions about them.

        `versions_of` are kinds of which every recorded version is wanted.
        """
        found = await evidence_from(self.client, Recording(), namespace, kinds)
        missing: list[str] = []
        search = search_logs(self.state, missing)
        wanted = [key for key in found.objects if key.kind in versions_of]
        related = related_keys(keys, found)
        logged = answer_part(search, keys, related, owners=owner_uids(related, found), versions_of=wanted)
        logged.undecoded[:0] = missing
        logged.audited, logged.audit_coverage = audit_evidence(
            self.state, {*keys, *related}, changed=inputs_of_attempts(found)
        )
        return with_logged(found, logged, search), logged

    async def condition_writes(
        self, asked: Iterable[tuple[Key, str]], decisions: Sequence[Decision]
    ) -> ConditionLookup:
        """The writes behind conditions: from the server's history, else from kept decisions, whose answer may be late.

        At most `LOOKUPS_MAX` are asked for.
        """
        wanted = list(dict.fromkeys(asked))[:LOOKUPS_MAX]
        answers = await asyncio.gather(*(self._condition_write(key, name) for key, name in wanted))
        known = {place: write for place, write in zip(wanted, answers, strict=True) if write is not None}

        def lookup(found: Object, name: str) -> ConditionWrite | None:
            return known.get((found.key, name)) or write_in_decisions(found, name, decisions)

        return lookup

    async def _condition_write(self, key: Key, condition: str) -> ConditionWrite | None:
        path = f"/kedge/origins{object_path(self.client.kinds, key)}"
        try:
            found = await self.rest.call("GET", path, query={"condition": condition})
        except (NotFound, Compacted):
            return None  # it has changed since, or its write is no longer in the history of the server
        origin = Origin(found["operation"], found["decision"], found["caller"], tuple(found["groups"]))
        return ConditionWrite(found["revision"], origin)

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
    every_node: frozenset[str] | None = None
    for name in dict.fromkeys((*_READ, *(each.key_kind for each in kinds))):
        kind = client.kinds.of_key_kind(name)
        options = ListOptions(namespace=namespace if kind.namespaced else "", limit=OBJECTS_MAX)
        listed = await client.list(kind, options)
        objects.update((each.key, each) for each in listed.objects)
        if listed.continue_token:
            lacks.append(f"only the first {OBJECTS_MAX} objects of {name} were read")
        elif name == NODE_KIND:
            every_node = frozenset(each.key.name for each in listed.objects)
    return ClusterEvidence(
        objects,
        logged.decisions,
        datetime.now(UTC),
        writes_of(logged.decisions),
        tuple(lacks),
        logged.coverages,
        node_names=every_node,
    )


def inputs_of_attempts(evidence: ClusterEvidence) -> set[Key]:
    """The objects that a scheduler reads, without those that only components write."""
    kinds = set(FOLLOWED) - {POD_KIND, REPLICA_SET_KIND, NODE_ALLOCATION_KIND}
    return {key for key in evidence.objects if key.kind in kinds}


def decision_folders(state: Path) -> list[Path]:
    """The folders of decision logs: of the state folder itself, and of agents whose own are below `nodes`."""
    return [each for each in (state / DECISIONS, *sorted(state.glob(f"nodes/*/{DECISIONS}"))) if each.is_dir()]


def with_logged(evidence: ClusterEvidence, logged: Recording, search: LogSearch) -> ClusterEvidence:
    """The same objects with a part of the decisions in the logs; `search` has all of them."""

    def newest_write(kind: str | None, after: Revision, until: datetime) -> RecordedWrite | None:
        found = search.newest_write(kind, after, until)
        if found is None:
            return None
        return RecordedWrite(found.call.reply[0].key, found.call.revision, found.at, found.call.reply[0].origin)

    @cache
    def has_record(decision_id: str) -> bool:
        return search.decision(decision_id) is not None

    return replace(
        evidence,
        decisions=logged.decisions,
        writes=writes_of(logged.decisions),
        missing=(*evidence.missing, *logged.undecoded),
        coverages=logged.coverages,
        totals=logged.totals,
        audited=logged.audited,
        audit_coverage=logged.audit_coverage,
        newest_write=newest_write,
        has_record=has_record,
    )


def related_keys(keys: Collection[Key], evidence: ClusterEvidence) -> set[Key]:
    """The objects that an answer about one of `keys` also explains: what it owns, its gang and the autoscalers."""
    objects = evidence.objects
    found = set(keys)
    if any(key in objects and key.kind != POD_KIND for key in keys):  # a pod owns nothing
        owners = [objects[key].uid for key in keys if key in objects]
        while owners:
            for each in evidence.dependents(owners.pop()):
                if each.key not in found:
                    found.add(each.key)
                    owners.append(each.uid)
    gangs = {objects[key].metadata.labels.get(GANG_LABEL, "") for key in found if key in objects} - {""}
    if gangs:
        found |= {each.key for each in objects.values() if each.metadata.labels.get(GANG_LABEL) in gangs}
    return found | {key for key in objects if key.kind == AUTOSCALER_KIND}


def owner_uids(keys: Iterable[Key], evidence: ClusterEvidence) -> set[str]:
    """The uids of these objects, without pods, which own nothing."""
    return {evidence.objects[key].uid for key in keys if key in evidence.objects and key.kind != POD_KIND}


def search_logs(state: Path, missing: list[str]) -> LogSearch:
    """The decision logs below a state folder, by their indexes. A part that cannot be read is added to `missing`."""
    folders = [folder for parent in decision_folders(state) for folder in log_folders(parent)]
    return LogSearch(folders, report=lambda each: missing.append(str(each)), progress=ProgressBar("reading records"))


def logged_history(state: Path, keys: Collection[Key]) -> Recording:
    """The records in the logs that a timeline of one of `keys` needs, with the requests of the audit log."""
    missing: list[str] = []
    found = history_part(search_logs(state, missing), keys)
    found.undecoded[:0] = missing
    versions = [each for decision in found.decisions for each in versions_in(decision)]
    found.audited, found.audit_coverage = audit_evidence(state, with_dependents(set(keys), versions))
    return found


def logged_records(state: Path) -> Recording:
    """The records in the logs below a state folder, decisions in the order in which they began.

    A part that cannot be read is a sentence in `undecoded`.
    """
    found = Recording()
    for parent in decision_folders(state):
        for folder in log_folders(parent):
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
        raise NotFound(no_cluster(state))
    address = read_kubeconfig(kubeconfig)
    transport, rest = HttpTransport(address), RestClient(address, on_warning=lambda _: None)
    try:
        yield LiveCluster(Client(transport, system_env(), component="kedge"), state, rest)
    except Unavailable as error:
        raise Unavailable(
            f"the cluster of {state} does not answer ({error}): start it with `kedge up --state {state}`"
        ) from error
    finally:
        await rest.close()
        await transport.close()
