"""The process driver: runs containers as plain processes of this machine, through the keeper of the node.

There are no images and no pod network: an image is only a label, and each pod gets a loopback address of its own. The
keeper's records are the truth about what runs, so an agent that starts again finds everything there.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kedge.agent.core.driver import CannotStart, Consumption, ContainerProcess, Identity
from kedge.agent.process.channel import KeeperChannel, may_hold_processes
from kedge.agent.process.keeper_client import clock_s
from kedge.api.views import Container, PodView, Probe
from kedge.errors import OutcomeUnknown, Unavailable

_REFERENCE = re.compile(r"\$(\$)?\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_SHUTDOWN_S = 10.0
"""A killed process is gone in milliseconds; a machine may be busy."""
_SHUTDOWNS = 3
"""A keeper that is killed while it shuts down leaves processes to the next one."""
_TRIES = 3
_TRY_AGAIN_S = 0.02
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ")


class ProcessDriver:
    """Implements `agent.core.Driver` with real processes."""

    def __init__(self, folder: Path, *, environment: Mapping[str, str]) -> None:
        """`environment` is the agent's own, of which a few variables are passed on."""
        self._folder = folder = folder.absolute()  # the keeper has another working directory
        self._base = {name: environment[name] for name in _PASSED_ON if name in environment}
        self._subnet = loopback_subnet(folder)
        self._addresses: dict[str, str] = {}
        self._on_change: Callable[[str], None] = lambda _: None
        self._channel = KeeperChannel(folder, self._changed)

    async def pull(self, image: str) -> None:
        """Nothing is fetched: the program is on this machine, or the start fails."""

    async def start(self, identity: Identity, pod: PodView, container: Container, *, keep_s: float | None) -> None:
        if not container.command:
            raise CannotStart(
                f"container {container.name} has no command: kedge runs processes, not images",
                "CreateContainerConfigError",
            )
        address = await self._address_for(identity.pod_uid)
        env = _environment(self._base, pod, container, address)
        argv = [_expanded(each, env) for each in (*container.command, *container.args)]
        folder = self._folder / "pods" / f"{pod.namespace}_{pod.name}_{identity.pod_uid}"
        record = {
            "id": record_id(identity),
            "identity": list(identity),
            "namespace": pod.namespace,
            "pod": pod.name,
            "address": address,
            "ports": {port.name: port.container_port for port in container.ports if port.name},
            "argv": argv,
            "env": env,
            "cwd": container.working_dir or str(_made(folder)),
            "log": str(_made(folder / container.name) / f"{identity.attempt}.log"),
        }
        await self._call_again("start", record=record, keep_until_s=None if keep_s is None else clock_s() + keep_s)

    async def keep(self, identity: Identity, for_s: float) -> None:
        await self._call_again("keep", process=record_id(identity), until_s=clock_s() + for_s)

    async def stop(self, identity: Identity, *, grace_s: float) -> None:
        await self._call_again("stop", process=record_id(identity), grace_s=grace_s)

    async def processes(self) -> Sequence[ContainerProcess]:
        return tuple(_process(each) for each in await self._records())

    async def forget(self, identity: Identity) -> None:
        await self._call_again("forget", process=record_id(identity))

    async def consumption(self) -> Mapping[Identity, Consumption]:
        used = await self._call_again("consumption")
        every = {each["id"]: Identity(*each["identity"]) for each in await self._records() if not each["ended"]}
        return {
            every[process]: Consumption(cpu_s=found["cpu_s"], memory_bytes=found["bytes"])
            for process, found in used.items()
            if process in every
        }

    def address(self, pod_uid: str) -> str:
        return self._addresses.get(pod_uid, "")

    def listen(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change

    async def pid_of(self, pod_uid: str) -> int:
        """The process that runs for a pod, for people and demonstrations; 0 if none does."""
        running = [each for each in await self._records() if each["identity"][0] == pod_uid and not each["ended"]]
        return int(running[0]["pid"]) if running else 0

    async def shutdown(self, *, grace_s: float) -> None:
        """Stop every process of the node and its keeper. Returns when nothing of it runs.

        Raises:
            Unavailable: something still runs after the grace and a while: look at the keeper's log.
        """
        for _ in range(_SHUTDOWNS):
            with suppress(OutcomeUnknown):  # the keeper may end before its reply is read
                await self._channel.call("shutdown", grace_s=grace_s)
            await self._channel.wait_ended(within_s=grace_s + _SHUTDOWN_S)
            if not may_hold_processes(self._folder):
                return
        raise Unavailable(f"processes of {self._folder} may still run: see {self._folder / 'keeper.log'}")

    async def close(self) -> None:
        """Disconnect from the keeper; its processes keep running."""
        await self._channel.close()

    # -- probes ------------------------------------------------------------------------------------

    async def probe(self, identity: Identity, probe: Probe) -> bool:
        if probe.exec is not None:
            timeout_s = float(max(1, probe.timeout_seconds))
            argv = list(probe.exec.command)
            code = await self._channel.call("run", process=record_id(identity), argv=argv, timeout_s=timeout_s)
            return bool(code == 0)
        record = await self._record(identity)
        if record is None:
            return False
        try:
            if probe.http_get is not None:
                host = probe.http_get.host or record["address"]
                return await _answers_http(host, _port(probe.http_get.port, record), probe.http_get.path or "/")
            if probe.tcp_socket is not None:
                host = probe.tcp_socket.host or record["address"]
                _, writer = await asyncio.open_connection(host, _port(probe.tcp_socket.port, record))
                writer.close()
                return True
        except (OSError, ValueError):
            return False
        return True

    # -- the keeper --------------------------------------------------------------------------------

    async def _call_again(self, op: str, **parts: Any) -> Any:
        """Send a request, and repeat it after a broken connection: every request may be repeated.

        A keeper that is being killed still accepts connections for a moment, so one more try is not enough.
        """
        for _ in range(_TRIES):
            with suppress(OutcomeUnknown):
                return await self._channel.call(op, **parts)
            await asyncio.sleep(_TRY_AGAIN_S)
        return await self._channel.call(op, **parts)

    async def _records(self) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = await self._call_again("list")
        for each in records:
            self._addresses[each["identity"][0]] = each["address"]
        return records

    async def _record(self, identity: Identity) -> dict[str, Any] | None:
        wanted = record_id(identity)
        return next((each for each in await self._records() if each["id"] == wanted), None)

    async def _address_for(self, pod_uid: str) -> str:
        """The pod's address: the one its processes have, or the first of this node that no pod has."""
        records = await self._records()
        known = self._addresses.get(pod_uid)
        if known is not None:
            return known
        held = {each["identity"][0] for each in records}
        for uid in [uid for uid in self._addresses if uid not in held]:
            del self._addresses[uid]
        taken = set(self._addresses.values())
        free = (f"{self._subnet}.{low}" for low in range(1, 255))
        found = next((each for each in free if each not in taken), "")
        if not found:
            raise Unavailable(f"every address of {self._subnet} is taken by a pod: wait until one has ended")
        self._addresses[pod_uid] = found
        return found

    def _changed(self, pod_uid: str) -> None:
        self._on_change(pod_uid)


def loopback_subnet(folder: Path) -> str:
    """The first three numbers of a node's pod addresses: its own on this machine, and the same after every restart."""
    digest = hashlib.sha256(str(folder.resolve()).encode()).digest()
    return f"127.{64 + digest[0] % 128}.{digest[1]}"


def record_id(identity: Identity) -> str:
    """A file name that is the same for the same identity, and for no other."""
    digest = hashlib.sha256("\0".join(str(part) for part in identity).encode()).hexdigest()[:16]
    return f"{identity.pod_uid[:8]}-{identity.attempt}-{digest}"


def _process(record: Mapping[str, Any]) -> ContainerProcess:
    return ContainerProcess(
        identity=Identity(*record["identity"]),
        namespace=record["namespace"],
        pod=record["pod"],
        running=not record["ended"],
        started_at=_moment(record["started"]),
        ended_at=_moment(record["ended"]) if record["ended"] else None,
        exit_code=record["exit_code"],
        reason=record["reason"],
        since_s=record["since_s"],
    )


def _moment(text: str) -> datetime:
    return datetime.fromtimestamp(float(text), UTC)


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Unavailable(f"{folder} cannot be made: {error}: free the disk, or make it writable") from error
    return folder


def _environment(base: Mapping[str, str], pod: PodView, container: Container, address: str) -> dict[str, str]:
    env = {**base, "HOSTNAME": pod.name, "POD_NAME": pod.name, "POD_NAMESPACE": pod.namespace, "POD_IP": address}
    for each in container.env:
        reference = each.value_from.field_ref if each.value_from is not None else None
        value = _field(pod, reference.field_path, address) if reference is not None else each.value
        env[each.name] = _expanded(value, env)
    return env


def _field(pod: PodView, path: str, address: str) -> str:
    """The value of a `fieldRef`."""
    fields = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "spec.nodeName": pod.spec.node_name,
        "status.podIP": address,
        "status.hostIP": "127.0.0.1",
    }
    if path not in fields:
        raise CannotStart(f"fieldRef {path} is not one of {', '.join(fields)}", "CreateContainerConfigError")
    return fields[path]


def _expanded(text: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` replaced where NAME is known, `$$(NAME)` as `$(NAME)`, as Kubernetes does."""

    def value(found: re.Match[str]) -> str:
        if found[1]:
            return f"$({found[2]})"
        return env.get(found[2], found[0])

    return _REFERENCE.sub(value, text)


def _port(port: int | str, record: Mapping[str, Any]) -> int:
    if isinstance(port, int) or port.isdigit():
        return int(port)
    found = record["ports"].get(port)
    if found is None:
        raise ValueError(f"the container has no port named {port}: name one of its ports, or give a number")
    return int(found)


async def _answers_http(host: str, port: int, path: str) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: kube-probe\r\nConnection: close\r\n\r\n".encode()
        )
        words = (await reader.readline()).split()
        return len(words) >= 2 and words[1].isdigit() and 200 <= int(words[1]) < 400
    finally:
        writer.close()
