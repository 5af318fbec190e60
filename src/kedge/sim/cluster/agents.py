"""Simulated machines and their container processes: slow pulls and starts, crashes, zombies, power cuts, reboots.

`SimulatedDriver` implements the driver of the agent. It is not on the agent's host: an agent that crashes leaves its
processes running, as a real one does. Invariants read `live`, which no component sees.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from kedge.agent.core import Consumption, ContainerProcess, ContainerSetup, Identity, KeptPod, PullFailed
from kedge.agent.core.driver import FileVolume
from kedge.agent.core.plan import is_sidecar
from kedge.api.views import Container, LifecycleHook, NodeSystemInfo, PodView, Probe
from kedge.api.wellknown import SIM_EXIT_CODE_LABEL, SIM_IGNORES_SIGTERM_LABEL, SIM_RUN_S_LABEL
from kedge.sim.cluster.fault_points import PROBE, PULL, RUN, START, STOP
from kedge.sim.kernel import FAULTS, Host, Simulation

PULLS_S = (0.2, 2.0, 20.0)
STARTS_S = (0.05, 1.0, 8.0)
RUNS_S = (0.5, 5.0, 40.0)
INIT_S = 1.0
"""How long an init container runs; it succeeds."""
HOOK_S = 0.5
NOT_RUNNING = "the process does not run"
SYSTEM = NodeSystemInfo(
    machine_id="simulated",
    system_uuid="simulated",
    kernel_version="0",
    os_image="simulated",
    container_runtime_version="kedge-sim://0",
    operating_system="linux",
    architecture="amd64",
)
"""Every simulated machine is the same."""
LINGERS_S = (1.0, 15.0)
"""How long a zombie survives a kill."""

PULL_FAULTS, START_FAULTS, RUN_FAULTS = (FAULTS.kinds_at(point) for point in (PULL, START, RUN))
STOP_FAULTS, PROBE_FAULTS = (FAULTS.kinds_at(point) for point in (STOP, PROBE))

LoadOf = Callable[[str], float]
"""The cores that all processes of a pod keep busy together, by pod uid."""


@dataclass(frozen=True, slots=True)
class MachineFault:
    """A fault that is placed on a machine for a while: it strikes each time its point is passed."""

    point: str
    kind: str
    about: str
    """A pattern of the image, or of the pod's `namespace/name`."""
    until_s: float
    """In virtual time of the run."""
    strike: Callable[[str], None]
    """Records a strike."""
    lasts_s: float = 0.0
    """How long one strike lasts."""


@dataclass(slots=True)
class _Entry:
    process: ContainerProcess
    kill_at_s: float = float("inf")
    keep_until_s: float = float("inf")
    cpu_s: float = 0.0
    """CPU seconds used until the last measurement."""
    measured_s: float = 0.0
    ignores: bool = False
    """Whether only SIGKILL ends it."""


OnStart = Callable[["SimulatedDriver", ContainerProcess], None]
"""Called with each process that a machine starts."""


class SimulatedDriver:
    """The container processes of one machine. A crash of the agent's host does not end them."""

    def __init__(
        self,
        sim: Simulation,
        host: Host,
        name: str,
        *,
        subnet: int = 0,
        on_start: OnStart = lambda _driver, _process: None,
    ) -> None:
        self._sim = sim
        self._host = host
        """Its clock is the clock of the machine; its crashes do not matter here."""
        self.name = name
        self._subnet = subnet
        self._addresses: dict[str, str] = {}
        self._entries: dict[Identity, _Entry] = {}
        self._kept: dict[str, KeptPod] = {}
        self._images: set[str] = set()
        self._listener: Callable[[str], None] | None = None
        self._boots = 1
        self.started: list[Identity] = []
        """Every process that was ever started, in order."""
        self.files: dict[tuple[str, str], dict[str, bytes]] = {}
        """By pod and volume: the files that a container sees."""
        self.hooks: list[tuple[Identity, LifecycleHook]] = []
        """Every hook that began, in order."""
        self.exit_codes: dict[tuple[str, str], int] = {}
        """By pod uid and container: how the last process ended. Not changed by a restart, nor when it is forgotten."""
        self._on_start = on_start
        self._load_of: LoadOf | None = None
        self._placed: list[MachineFault] = []

    def set_load(self, load_of: LoadOf | None) -> None:
        """Measure CPU use by this function from now on; None: report no usage."""
        self._load_of = load_of

    # -- the driver contract -----------------------------------------------------------------------

    async def pull(self, image: str) -> None:
        if image in self._images:
            return
        fault, lasts_s = self._fault(PULL, PULL_FAULTS, image)
        if fault == "slow":
            await asyncio.sleep(lasts_s or self._sim.faults.pick("long the pull takes", PULLS_S))
        else:
            await asyncio.sleep(0.1)
        if fault == "fail":
            raise PullFailed(f"{image}: the registry did not answer")
        self._images.add(image)

    async def prepare(self, pod: PodView) -> str:
        return self.address(pod.uid)

    async def service_variables(self, pod: PodView) -> Mapping[str, str]:
        del pod  # nothing listens
        return {}

    async def start(
        self, identity: Identity, pod: PodView, container: Container, setup: ContainerSetup, *, keep_s: float | None
    ) -> None:
        if identity in self._entries:
            return
        self._write_files(pod.uid, setup)
        self._kept[identity.pod_uid] = KeptPod(identity.pod_uid, pod.namespace, pod.name)
        now = self._host.now()
        process = ContainerProcess(
            identity=identity,
            namespace=pod.namespace,
            pod=pod.name,
            running=True,
            started_at=now,
            since_s=self._now_s(),
            resources=container.resources,
        )
        entry = self._entries[identity] = _Entry(process, ignores=pod.labels.get(SIM_IGNORES_SIGTERM_LABEL) == "true")
        self.started.append(identity)
        self._sim.note("process", f"{self.name} starts {pod.namespace}/{pod.name} {container.name} {identity.attempt}")
        self._on_start(self, process)
        if keep_s is not None:
            self._extend(entry, keep_s)
        self._schedule_end(entry, pod, container)
        fault, lasts_s = self._fault(START, START_FAULTS, f"{pod.namespace}/{pod.name}")
        if fault:
            await asyncio.sleep(lasts_s or self._sim.faults.pick("long the start takes", STARTS_S))

    async def update_volumes(self, pod: PodView, setup: ContainerSetup) -> None:
        self._write_files(pod.uid, setup)

    def _write_files(self, pod_uid: str, setup: ContainerSetup) -> None:
        for volume in (mount.volume for mount in setup.mounts):
            if isinstance(volume, FileVolume):
                self.files[pod_uid, volume.name] = {each.path: each.data for each in volume.files}

    async def resize(self, identity: Identity, container: Container) -> None:
        entry = self._entries.get(identity)
        if entry is None or not entry.process.running:
            return
        entry.process = replace(entry.process, resources=container.resources)
        self._sim.note("process", f"{self.name} resizes {entry.process.namespace}/{entry.process.pod} {container.name}")

    async def keep(self, identity: Identity, for_s: float) -> None:
        entry = self._entries.get(identity)
        if entry is not None and entry.process.running:
            self._extend(entry, for_s)

    async def stop(self, identity: Identity, *, grace_s: float, cause: str = "") -> None:
        entry = self._entries.get(identity)
        if entry is None or not entry.process.running:
            return
        deadline_s = self._now_s() + grace_s
        if deadline_s >= entry.kill_at_s:
            return
        entry.kill_at_s = deadline_s
        entry.process = replace(entry.process, stopping=True, message=entry.process.message or cause)
        fault, lasts_s = self._fault(STOP, STOP_FAULTS, f"{entry.process.namespace}/{entry.process.pod}")
        fault = fault or ("ignore" if entry.ignores else "")
        if fault == "zombie":  # even a kill does not end it at once, as with blocked I/O
            deadline_s += lasts_s or self._sim.faults.pick("long it lingers", LINGERS_S)
        elif fault != "ignore":
            deadline_s = min(deadline_s, self._now_s() + 0.1)
        self._later(deadline_s, lambda: self._end(entry, 137 if fault else 0, ""))

    async def processes(self) -> Sequence[ContainerProcess]:
        return tuple(entry.process for entry in self._entries.values())

    async def forget(self, identity: Identity) -> None:
        entry = self._entries.get(identity)
        if entry is not None and not entry.process.running:
            del self._entries[identity]

    async def probe(self, identity: Identity, probe: Probe) -> str:  # noqa: ARG002
        entry = self._entries.get(identity)
        if entry is None or not entry.process.running:
            return NOT_RUNNING
        fault, _ = self._fault(PROBE, PROBE_FAULTS, f"{entry.process.namespace}/{entry.process.pod}")
        return "no answer" if fault else ""

    async def run_hook(self, identity: Identity, hook: LifecycleHook, *, within_s: float) -> str:
        del within_s
        entry = self._entries.get(identity)
        if entry is None or not entry.process.running:
            return NOT_RUNNING
        self.hooks.append((identity, hook))
        await asyncio.sleep(HOOK_S)
        return ""

    async def remove(self, pod_uid: str) -> None:
        if all(each.pod_uid != pod_uid for each in self._entries):
            self._kept.pop(pod_uid, None)
            for name in [name for uid, name in self.files if uid == pod_uid]:
                del self.files[pod_uid, name]

    async def kept_pods(self) -> Sequence[KeptPod]:
        return tuple(self._kept.values())

    async def consumption(self) -> Mapping[Identity, Consumption]:
        load_of, now_s = self._load_of, self._now_s()
        if load_of is None:
            return {}
        running = [entry for entry in self._entries.values() if entry.process.running]
        pods = Counter(entry.process.identity.pod_uid for entry in running)
        found = {}
        for entry in running:
            identity = entry.process.identity
            since_s = max(entry.measured_s, entry.process.since_s)
            entry.cpu_s += load_of(identity.pod_uid) / pods[identity.pod_uid] * (now_s - since_s)
            entry.measured_s = now_s
            found[identity] = Consumption(entry.cpu_s)
        return found

    def address(self, pod_uid: str) -> str:
        found = self._addresses.get(pod_uid)
        if found is None:
            number = len(self._addresses) + 1
            found = self._addresses[pod_uid] = f"10.{self._subnet % 256}.{number // 256 % 256}.{number % 256}"
        return found

    def listen(self, on_change: Callable[[str], None]) -> None:
        loop = self._sim.world.loop
        life = loop.current_strand().process  # a listener whose process has ended is not called

        def notify(pod_uid: str) -> None:
            loop.call_on(life, on_change, pod_uid)

        self._listener = notify

    # -- faults of a machine -----------------------------------------------------------------------

    @property
    def boot_id(self) -> str:
        return f"{self.name}-{self._boots}"

    def live(self) -> Iterator[ContainerProcess]:
        """The running processes, zombies included."""
        return (entry.process for entry in self._entries.values() if entry.process.running)

    def power_off(self) -> None:
        """End every process and lose all state."""
        for entry in self._entries.values():
            entry.process = replace(entry.process, running=False)
        self._entries.clear()
        self._kept.clear()
        self.files.clear()
        self._images.clear()
        self._boots += 1
        self._sim.note("machine", f"{self.name} lost power")

    def crash_process(self, pod_uid: str, *, exit_code: int = 139) -> None:
        """End the running processes of a pod, as a crash would."""
        for entry in list(self._entries.values()):
            if entry.process.running and entry.process.identity.pod_uid == pod_uid:
                self._end(entry, exit_code, "Crashed")

    def place(self, fault: MachineFault) -> None:
        """Let a fault strike on this machine until its time is over, or all faults stop."""
        self._placed.append(fault)

    # -- private -----------------------------------------------------------------------------------

    def _fault(self, point: str, kinds: tuple[str, ...], about: str) -> tuple[str, float]:
        """The fault that strikes now, if any, and how long it lasts; 0.0 if that is still to be drawn."""
        faults, now_s = self._sim.faults, self._sim.now_s
        for each in self._placed if faults.active else ():
            if each.point == point and now_s < each.until_s and fnmatchcase(about, each.about):
                each.strike(f"{each.kind}: {point} {self.name} {about}")
                return each.kind, each.lasts_s
        return faults.at(point, self.name, kinds), 0.0

    def _schedule_end(self, entry: _Entry, pod: PodView, container: Container) -> None:
        """Schedule the end of a process whose pod has a run time, that initializes, or that a fault strikes."""
        if container in pod.spec.init_containers and not is_sidecar(container):
            self._later(self._now_s() + INIT_S, lambda: self._end(entry, 0, ""))
            return
        run_s = pod.labels.get(SIM_RUN_S_LABEL)
        if run_s is not None:
            code = int(pod.labels.get(SIM_EXIT_CODE_LABEL, "0"))
            self._later(self._now_s() + float(run_s), lambda: self._end(entry, code, ""))
        if self._sim.faults.at(RUN, self.name, RUN_FAULTS):
            run_for_s = self._sim.faults.pick("long it runs", RUNS_S)

            def crash() -> None:
                if self._sim.faults.active:  # no crash after faults have stopped
                    self._end(entry, 139, "Crashed")

            self._later(self._now_s() + run_for_s, crash)

    def _extend(self, entry: _Entry, for_s: float) -> None:
        entry.keep_until_s = self._now_s() + for_s

        def expire() -> None:
            if self._now_s() >= entry.keep_until_s - 1e-9:
                self._end(entry, 137, "LostContact")

        self._later(entry.keep_until_s, expire)

    def _end(self, entry: _Entry, exit_code: int, reason: str) -> None:
        process = entry.process
        if not process.running or self._entries.get(process.identity) is not entry:
            return
        entry.process = replace(
            process, running=False, ended_at=self._host.now(), exit_code=exit_code, reason=reason, since_s=self._now_s()
        )
        self.exit_codes[process.identity.pod_uid, process.identity.container] = exit_code
        self._sim.note("process", f"{self.name} ended {process.namespace}/{process.pod} with {exit_code} {reason}")
        if self._listener is not None:
            self._listener(process.identity.pod_uid)

    def _now_s(self) -> float:
        return self._host.monotonic()

    def _later(self, at_s: float, action: Callable[[], None]) -> None:
        world = self._sim.world
        delay_s = max(0.0, at_s - self._now_s()) / self._host.clock_rate
        world.loop.call_later(delay_s, action, context=world.context)
