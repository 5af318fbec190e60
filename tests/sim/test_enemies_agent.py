"""An agent that dies at every place where it could: before a word, after it, and with what it did not yet said.

Its only notes are its driver's processes; what it has said is in the API. So it goes on from what it finds, says again
what nobody heard, and nothing of that can be told from a life without deaths.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

from tests.kit.agent import CALM, bind, claims, until
from tests.objects import pod, pod_key

from kedge.api.requests import ConfirmEnded, Create, DeleteOptions, Reply, Request
from kedge.api.wellknown import SIM_EXIT_CODE_LABEL, SIM_RUN_S_LABEL
from kedge.sim.cluster import API, Cluster, Commit, RemoteTransport
from kedge.sim.judges.invariants import Judge
from kedge.sim.kernel import NO_FAULTS, Host, Simulation, run

DOWN_S = 3.0
NOTES = ("start", "stop", "forget")


class Act(NamedTuple):
    """Something that an agent did."""

    what: str
    about: str


@dataclass
class Fate:
    """What an agent did, and where it dies: before or after its n-th act, counted over all of its lives."""

    dies_at: int = -1
    before: bool = False
    acts: list[Act] = field(default_factory=list)
    deaths: int = 0

    async def undergo(self, host: Host, sim: Simulation, act: Act, work: Any) -> Any:
        number = len(self.acts)
        self.acts.append(act)
        if number == self.dies_at and self.before:
            work.close()
            await self._die(host, sim)
        reply = await work
        if number == self.dies_at:
            await self._die(host, sim)
        return reply

    async def _die(self, host: Host, sim: Simulation) -> None:
        self.deaths += 1
        world = sim.world
        world.loop.call_later(DOWN_S, host.restart, context=world.context)
        host.crash()
        await asyncio.sleep(0)  # it never gets beyond


class FatefulTransport(RemoteTransport):
    """Counts every word but those to leases, which are beats and no news."""

    def __init__(self, fate: Fate, sim: Simulation, host: Host, remote: Any) -> None:
        super().__init__(remote)
        self._fate, self._sim, self._host = fate, sim, host

    async def send(self, request: Request[Reply]) -> Reply:
        if request.reads or request.target.kind.startswith("Lease"):
            return await super().send(request)
        about = request.pod_uid if isinstance(request, ConfirmEnded) else str(request.target)
        if isinstance(request, Create):
            about = request.kind.key_kind
        act = Act(request.label, about)
        return cast("Reply", await self._fate.undergo(self._host, self._sim, act, super().send(request)))


class Heard:
    """What is said of each pod, one thing after another, and when it was said to have begun."""

    def __init__(self, sim: Simulation, cluster: Cluster) -> None:
        self._cluster = cluster
        self.words: dict[str, list[tuple[Any, ...]]] = {}
        self.begun: dict[str, set[Any]] = {}
        sim.check_always(self)

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        for key in commit.keys:
            found = self._cluster.find(key) if key.kind == "Pod" else None
            if found is None:
                continue
            status = found.view.status
            ready = any(each.type == "Ready" and each.status == "True" for each in status.conditions)
            codes = [each.state.terminated.exit_code for each in status.container_statuses if each.state.terminated]
            word = (status.phase, ready, *codes, *(each.restart_count for each in status.container_statuses))
            said = self.words.setdefault(key.name, [])
            if not said or said[-1] != word:
                said.append(word)
            if status.start_time is not None:
                self.begun.setdefault(key.name, set()).add(status.start_time)
        yield from ()


async def life(sim: Simulation, fate: Fate) -> None:
    """Pods that serve, end, fail and are removed by force, and an agent that has its fate."""
    cluster = Cluster(sim, limits=CALM)
    await cluster.set_up()
    Judge(cluster)

    def transport(host: Host, *, server: int = 0) -> RemoteTransport:
        return FatefulTransport(fate, sim, host, host.remote(cluster.servers[server], API))

    cluster.transport = transport  # type: ignore[method-assign]
    node = cluster.add_node("node-a")
    for note in NOTES:
        setattr(node.driver, note, partial(_noted, fate, sim, node.host, note, getattr(node.driver, note)))
    heard = Heard(sim, cluster)
    await until(lambda: cluster.find(node.key) is not None)
    for name, run_s, code, policy in (
        ("serves", "", "0", "Always"),
        ("ends", "6", "0", "Never"),
        ("fails", "6", "3", "Never"),
        ("forced", "", "0", "Always"),
    ):
        body = pod(name, restartPolicy=policy)
        if run_s:
            body["metadata"]["labels"] |= {SIM_RUN_S_LABEL: run_s, SIM_EXIT_CODE_LABEL: code}
        await bind(cluster, body)
    await asyncio.sleep(20)
    await cluster.authority.delete(pod_key("serves"))
    await cluster.authority.delete(pod_key("forced"), DeleteOptions(grace_s=0))
    await asyncio.sleep(40)
    check(sim, cluster, heard)
    before = cluster.versions(but=("Lease.coordination.k8s.io",))
    await asyncio.sleep(3 * CALM.agent_audit_s)
    if cluster.versions(but=("Lease.coordination.k8s.io",)) != before:
        sim.violate("then silence", "an agent that has said everything goes on writing")


async def _noted(
    fate: Fate, sim: Simulation, host: Host, what: str, note: Any, identity: Any, *args: Any, **named: Any
) -> None:
    await fate.undergo(host, sim, Act(what, identity.container), note(identity, *args, **named))


def check(sim: Simulation, cluster: Cluster, heard: Heard) -> None:
    """All that may be told afterwards: what is there, what was said, what ran."""
    started = cluster.nodes["node-a"].driver.started
    if len(set(started)) != len(started) or any(each.attempt for each in started):
        sim.violate("started once", f"{started}")
    there = {each.key.name: each.view.status.phase for each in cluster.all("Pod")}
    if there != {"ends": "Succeeded", "fails": "Failed"}:
        sim.violate("ended as they did", f"{there}")
    if claims(cluster):
        sim.violate("nothing is held", f"{claims(cluster)}")
    codes = {name: words[-1][2] for name, words in heard.words.items() if name in there}
    if codes != {"ends": 0, "fails": 3}:
        sim.violate("told how they ended", f"{codes}")
    for name, words in heard.words.items():
        if len(set(words)) != len(words):
            sim.violate("nothing is taken back", f"{name}: {words}")
        if len(heard.begun.get(name, ())) > 1:
            sim.violate("nothing is taken back", f"{name} began at {heard.begun[name]}")


def one_life(fate: Fate) -> None:
    outcome = run(lambda sim: life(sim, fate), 1, faults=NO_FAULTS)
    where = f"{fate.acts[fate.dies_at]}, {'before' if fate.before else 'after'}" if fate.deaths else "no death"
    assert outcome.violation is None, f"{where}: {outcome.violation}\n{outcome.timeline()[-3000:]}"


def test_an_agent_may_die_at_any_of_its_words_and_notes_and_nobody_can_tell() -> None:
    calm = Fate()
    one_life(calm)
    did = {act.what for act in calm.acts}
    assert did >= {"create", "patch", "delete", "confirm_ended", *NOTES}, did
    for number in range(len(calm.acts)):
        for before in (True, False):
            fate = Fate(number, before)
            one_life(fate)
            assert fate.deaths == 1
