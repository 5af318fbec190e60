"""Leader election under clock skew, pauses, partitions and crashes. Safety rests on the fence."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from tests.objects import CONFIG_MAP, NAMESPACE, config_map

from kedge.api.requests import WriteOptions
from kedge.errors import Fenced, OperatingError
from kedge.keys import Key, Origin, fence_key
from kedge.runtime.lease import LeaderElection, Leadership, SharedElection
from kedge.sim.cluster import Cluster, Commit
from kedge.sim.kernel import NO_FAULTS, Host, RunOutcome, Simulation, run
from kedge.store import Check, Fence, Write
from kedge.store.versions import Versions

LEASE = Key("Lease.coordination.k8s.io", "default", "scheduler")
COUNTER = Key("ConfigMap", "default", "settings")


class OneLeaderPerTerm:
    """Every write of a leader is committed in its own term: the fence has not moved since."""

    def __init__(self) -> None:
        self.tokens: dict[str, int] = {}

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        entries = {
            entry.key: entry for entry in commit.store.entries() if entry.key.kind in ("ConfigMap", "Fence.kedge.dev")
        }
        counter = entries.get(COUNTER)
        if counter is None or counter.modified != commit.revision or not counter.origin.decision:
            return
        identity, _, token = counter.origin.decision.partition("@")
        fence = entries[fence_key(LEASE)]
        if fence.modified != int(token):
            yield "two leaders", f"{identity} wrote with token {token}, the fence is at {fence.modified}"


class Candidate:
    """A component that counts while it leads."""

    def __init__(self, sim: Simulation, cluster: Cluster, believing_leaders: set[str]) -> None:
        self._sim = sim
        self._cluster = cluster
        self._believers = believing_leaders
        self.written = 0

    async def start(self, host: Host) -> None:
        identity = f"{host.name}#{host.env().new_uid()[:8]}"
        client = self._cluster.client(host, server=int(host.name[-1]) % 2)
        election = LeaderElection(client, host.env(), LEASE, identity=identity)

        async def lead(term: Leadership) -> None:
            self._believers.add(identity)
            self._sim.sometimes("two believe that they lead", len(self._believers) > 1)
            try:
                while True:
                    await asyncio.sleep(0.5)
                    origin = Origin(decision=f"{identity}@{term.fence.revision}")
                    options = WriteOptions(fence=term.fence, origin=origin)
                    try:
                        await client.patch(COUNTER, {"data": {"n": str(self.written)}}, options=options)
                        self.written += 1
                    except Fenced:
                        self._sim.sometimes("a deposed leader was fenced off")
                    except OperatingError:
                        continue
            finally:
                self._believers.discard(identity)

        await election.run(lead)


async def rivals(sim: Simulation) -> None:
    cluster = Cluster(sim, servers=2)
    sim.check_always(OneLeaderPerTerm())
    await cluster.authority.create(NAMESPACE, {"metadata": {"name": "default"}})
    await cluster.authority.create(CONFIG_MAP, config_map())
    believing_leaders: set[str] = set()
    candidates = []
    for n in range(3):
        host = sim.host(f"rival-{n}")
        host.skew(rate=sim.choose("clock rate", (1.0, 0.7, 1.4)))
        candidate = Candidate(sim, cluster, believing_leaders)
        candidates.append(candidate)
        host.boot(candidate.start)
    await asyncio.sleep(120)
    sim.heal()
    before = sum(each.written for each in candidates)

    def one_leads() -> bool:
        return sum(each.written for each in candidates) > before + 3

    sim.check_eventually(one_leads)
    await sim.converge(within_s=300)


def test_only_writes_of_the_holder_are_committed_and_finally_one_candidate_leads() -> None:
    reached: dict[str, int] = {}
    for seed in range(120):
        outcome = run(rivals, seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        for mark, times in outcome.marks.items():
            reached[mark] = reached.get(mark, 0) + times
    assert reached.get("two believe that they lead"), (
        "no seed ever had two believing_leaders: the fence was never needed"
    )


def test_without_the_fence_two_leaders_write_in_one_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The election alone is not enough, whatever the clocks: the fence is needed."""

    every_check = Versions.prove

    def unfenced(self: Versions, checks: Sequence[Check], writes: Sequence[Write], _fence: Fence | None) -> None:
        every_check(self, checks, writes, None)

    monkeypatch.setattr(Versions, "prove", unfenced)
    assert any(_broken(seed) for seed in range(300)), "the world is too polite"


def _broken(seed: int) -> bool:
    violation = run(rivals, seed).violation
    return violation is not None and violation.cause == "two leaders"


# -- one thing at a time ---------------------------------------------------------------------------


def without_faults(program: object) -> RunOutcome:
    outcome = run(program, 1, faults=NO_FAULTS)  # type: ignore[arg-type]
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.timeline()[-2500:]}"
    return outcome


async def new_candidates(sim: Simulation, count: int = 2) -> tuple[Cluster, list[Host], list[str]]:
    """Competing hosts, and the names of the leaders in order."""
    cluster = Cluster(sim)
    await cluster.authority.create(NAMESPACE, {"metadata": {"name": "default"}})
    hosts, led = [], []
    for n in range(count):
        host = sim.host(f"rival-{n}")

        async def start(host: Host) -> None:
            async def lead(_: Leadership) -> None:
                led.append(host.name)
                await asyncio.get_running_loop().create_future()

            await LeaderElection(cluster.client(host), host.env(), LEASE, identity=host.name).run(lead)

        host.boot(start)
        hosts.append(host)
        await asyncio.sleep(1)
    return cluster, hosts, led


def test_a_holder_that_renews_is_never_replaced() -> None:
    async def program(sim: Simulation) -> None:
        _, _, led = await new_candidates(sim)
        await asyncio.sleep(600)
        assert led == ["rival-0"]

    without_faults(program)


def test_a_holder_that_died_is_replaced_after_its_lease() -> None:
    async def program(sim: Simulation) -> None:
        _, hosts, led = await new_candidates(sim)
        await asyncio.sleep(30)
        hosts[0].crash()
        await asyncio.sleep(12)
        assert led == ["rival-0"]  # the lease has not expired
        await asyncio.sleep(15)
        assert led == ["rival-0", "rival-1"]

    without_faults(program)


def test_an_idle_holder_notices_its_loss() -> None:
    async def program(sim: Simulation) -> None:
        cluster, _, led = await new_candidates(sim, count=1)
        await asyncio.sleep(5)
        await cluster.authority.patch(LEASE, {"spec": {"holderIdentity": "usurper"}})
        await asyncio.sleep(4)
        assert led == ["rival-0"]
        await asyncio.sleep(40)  # the other holder never renews
        assert led == ["rival-0", "rival-0"]

    without_faults(program)


def test_a_holder_that_cannot_renew_stops_before_it_may_be_replaced() -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.authority.create(NAMESPACE, {"metadata": {"name": "default"}})
        host = sim.host("rival-0")
        stopped: list[float] = []

        async def start(host: Host) -> None:
            async def lead(_: Leadership) -> None:
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    stopped.append(sim.now_s)

            await LeaderElection(cluster.client(host), host.env(), LEASE, identity="a").run(lead)

        host.boot(start)
        await asyncio.sleep(10)
        cut_at = sim.now_s
        sim.network.partition([host], [cluster.servers[0]])
        await asyncio.sleep(30)
        assert stopped
        assert stopped[0] - cut_at < host.env().limits.lease_s

    without_faults(program)


def test_a_candidate_that_stops_releases_the_lease_so_that_the_next_need_not_wait() -> None:
    async def program(sim: Simulation) -> None:
        cluster, _, led = await new_candidates(sim, count=0)
        first, second = sim.host("first"), sim.host("second")

        async def lead_as(name: str) -> None:
            led.append(name)
            await asyncio.get_running_loop().create_future()

        def election(host: Host) -> LeaderElection:
            return LeaderElection(cluster.client(host), host.env(), LEASE, identity=host.name)

        one = first.spawn(election(first).run(lambda _: lead_as("first")), name="first")
        await asyncio.sleep(3)
        second.spawn(election(second).run(lambda _: lead_as("second")), name="second")
        await asyncio.sleep(3)
        one.cancel()
        await asyncio.sleep(5)
        assert led == ["first", "second"]

    without_faults(program)


def test_an_error_of_a_leader_is_not_treated_as_a_lost_lease() -> None:
    async def program(sim: Simulation) -> None:
        cluster, _, _ = await new_candidates(sim, count=0)
        host = sim.host("rival")

        async def fail(_: Leadership) -> None:
            raise ValueError("a bug in the leader's own work")

        election = LeaderElection(cluster.client(host), host.env(), LEASE, identity="a")
        with pytest.raises(ValueError, match="own work"):
            await host.run(election.run(fail))
        holder = (await cluster.authority.get(LEASE)).view.spec.holder_identity
        assert holder == ""

    without_faults(program)


# -- one lease for a whole process ------------------------------------------------------------------


class SharedMembers:
    """Components of one process that lead together."""

    def __init__(self, cluster: Cluster, host: Host, lease: Key = LEASE) -> None:
        self.election = SharedElection(cluster.client(host), host.env(), lease, identity=host.name)
        self.at_work: dict[str, int] = {}
        """The fence token of the term of each component."""
        self.done = {name: asyncio.Event() for name in ("a", "b")}
        self.end: Exception | None = None

    async def run(self, name: str) -> None:
        async def lead(term: Leadership) -> None:
            self.at_work[name] = term.fence.revision
            try:
                await self.done[name].wait()
                if self.end is not None:
                    raise self.end
            finally:
                del self.at_work[name]

        await self.election.run(lead)


async def new_members(sim: Simulation) -> tuple[Cluster, dict[str, SharedMembers], dict[str, Host]]:
    cluster, _, _ = await new_candidates(sim, count=0)
    hosts = {name: sim.host(name) for name in ("first", "second")}
    made = {name: SharedMembers(cluster, host) for name, host in hosts.items()}
    for name, members in made.items():
        for member in ("a", "b"):
            hosts[name].spawn(members.run(member), name=member)
        await asyncio.sleep(1)
    return cluster, made, hosts


def test_all_components_of_one_process_lead_in_one_term_and_none_of_another() -> None:
    async def program(sim: Simulation) -> None:
        cluster, made, _ = await new_members(sim)
        await asyncio.sleep(60)
        token = cluster.store.newest(fence_key(LEASE)).modified  # type: ignore[union-attr]
        assert made["first"].at_work == {"a": token, "b": token}
        assert made["second"].at_work == {}
        await cluster.authority.patch(LEASE, {"spec": {"holderIdentity": "usurper"}})
        await asyncio.sleep(4)
        assert made["first"].at_work == made["second"].at_work == {}
        await asyncio.sleep(30)  # the other holder never renews
        assert sorted([*made["first"].at_work, *made["second"].at_work]) == ["a", "b"]

    without_faults(program)


def test_a_member_that_is_done_leaves_and_the_last_releases_the_lease() -> None:
    async def program(sim: Simulation) -> None:
        _, made, _ = await new_members(sim)
        first = made["first"]
        first.done["a"].set()
        await asyncio.sleep(20)
        assert list(first.at_work) == ["b"]
        assert made["second"].at_work == {}
        first.done["b"].set()
        await asyncio.sleep(4)
        assert not first.election.holding
        assert list(made["second"].at_work) == ["a", "b"]  # it need not wait for the lease to expire

    without_faults(program)


def test_a_fenced_member_ends_the_term_for_all() -> None:
    """Its process has lost the lease, so the other members have too."""

    async def program(sim: Simulation) -> None:
        _, made, _ = await new_members(sim)
        first = made["first"]
        before = first.at_work["b"]
        first.end = Fenced("another leads")
        first.done["a"].set()
        await asyncio.sleep(0.001)
        assert first.at_work == {}
        first.done["a"].clear()
        first.end = None
        await asyncio.sleep(30)
        working = first.at_work or made["second"].at_work
        assert list(working) == ["a", "b"]
        assert working["b"] > before

    without_faults(program)


def test_an_error_of_a_member_goes_to_its_caller_and_the_others_continue() -> None:
    async def program(sim: Simulation) -> None:
        cluster, _, _ = await new_candidates(sim, count=0)
        host = sim.host("first")
        members = SharedMembers(cluster, host)
        members.end = ValueError("a bug in the leader's own work")
        host.spawn(members.run("b"), name="b")
        failing = asyncio.ensure_future(host.run(members.run("a")))
        await asyncio.sleep(5)
        members.done["a"].set()
        with pytest.raises(ValueError, match="own work"):
            await failing
        await asyncio.sleep(30)
        assert list(members.at_work) == ["b"]
        assert members.election.leadership is not None

    without_faults(program)


def test_a_cancelled_member_has_ended_before_its_caller_continues() -> None:
    async def program(sim: Simulation) -> None:
        cluster, _, _ = await new_candidates(sim, count=0)
        host = sim.host("first")
        members = SharedMembers(cluster, host)
        tasks = {name: host.spawn(members.run(name), name=name) for name in ("a", "b")}
        await asyncio.sleep(5)
        for name in ("a", "b"):
            tasks[name].cancel()
            await asyncio.wait((tasks[name],))
            assert name not in members.at_work
        assert (await cluster.authority.get(LEASE)).view.spec.holder_identity == ""

    without_faults(program)


def test_two_leases_in_one_process_are_independent() -> None:
    """Each has its members, its term and its fence: losing one does not affect the other."""

    async def program(sim: Simulation) -> None:
        cluster, _, _ = await new_candidates(sim, count=0)
        host, other = sim.host("first"), LEASE._replace(name="controllers")
        by_lease = {lease: SharedMembers(cluster, host, lease) for lease in (LEASE, other)}
        for members in by_lease.values():
            for member in ("a", "b"):
                host.spawn(members.run(member), name=member)
        await asyncio.sleep(5)
        tokens = {lease: cluster.store.newest(fence_key(lease)).modified for lease in by_lease}  # type: ignore[union-attr]
        assert len({*tokens.values()}) == 2
        for lease, members in by_lease.items():
            assert members.at_work == {"a": tokens[lease], "b": tokens[lease]}
        await cluster.authority.patch(other, {"spec": {"holderIdentity": "usurper"}})
        await asyncio.sleep(4)
        assert (by_lease[other].at_work, list(by_lease[LEASE].at_work)) == ({}, ["a", "b"])
        over = WriteOptions(fence=Fence(fence_key(other), tokens[other]))
        with pytest.raises(Fenced):
            await cluster.authority.create(CONFIG_MAP, config_map(), options=over)
        standing = WriteOptions(fence=Fence(fence_key(LEASE), tokens[LEASE]))
        await cluster.authority.create(CONFIG_MAP, config_map(), options=standing)
        for name in ("a", "b"):
            by_lease[LEASE].done[name].set()
        await asyncio.sleep(30)  # the other holder never renews
        assert (by_lease[LEASE].at_work, list(by_lease[other].at_work)) == ({}, ["a", "b"])
        assert by_lease[other].at_work["a"] > tokens[other]
        assert (await cluster.authority.get(LEASE)).view.spec.holder_identity == ""

    without_faults(program)


def test_a_renewal_is_one_request_while_the_lease_has_one_writer() -> None:
    async def program(sim: Simulation) -> None:
        _, _, led = await new_candidates(sim, count=1)
        await asyncio.sleep(10)
        asked = [
            each.text.split()[0] for each in sim.world.trace.events if each.kind == "call" and "rival-0" in each.text
        ]
        before = len(asked)
        await asyncio.sleep(60)
        asked = [
            each.text.split()[0] for each in sim.world.trace.events if each.kind == "call" and "rival-0" in each.text
        ]
        assert set(asked[before:]) == {"api.update"}
        assert led == ["rival-0"]

    without_faults(program)
