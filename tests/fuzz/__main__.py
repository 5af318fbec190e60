"""`python -m tests.fuzz --requests N [--seed S]`: fuzz a `kedge server` over HTTPS, and print counts by status; then
`kedge.client`, in process and over HTTP, with counts by error.

Inputs that break something are written to the corpus, where the tests find them.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import importlib.util
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.fuzz.client_runs import TRANSPORTS, fuzz_client, keep
from tests.fuzz.identities import tls_contexts
from tests.fuzz.openapi import fuzz_openapi
from tests.fuzz.peer import Peer, Tally
from tests.fuzz.runs import (
    CORPUS,
    check_nothing_half_written,
    delete_created,
    fuzz_raw,
    fuzz_requests,
    open_page,
    prepare,
)
from tests.kit.api_server import ServerProcess, running_server
from tests.kit.audit import EVERYTHING
from tests.kit.encryption import write_keys

from kedge.api.access import MASTERS
from kedge.client.http import read_kubeconfig
from kedge.server.http.certificates import Authority

MEMORY_MB_MAX = 2_048
"""The server keeps every object in memory, and fuzzing creates some; far more means that a bound is missing."""
MEMORY_GROWTH_MAX = 1.2
"""The memory at the end, relative to that after `WARM_REPLIES`. Each round deletes the objects that it has created."""
WARM_REPLIES = 10_000
_ROUND = 5_000


def memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@dataclass
class MemoryGrowth:
    """The memory of a server over a run of the fuzzer."""

    warm_mb: float = 0.0
    last_mb: float = 0.0

    def note(self, replies: int, used_mb: float) -> None:
        """The memory after a round, with so many replies since the start."""
        if replies >= WARM_REPLIES and not self.warm_mb:
            self.warm_mb = used_mb
        self.last_mb = used_mb

    @property
    def problem(self) -> str:
        """Empty if the memory has not grown by more than the bound."""
        if not self.warm_mb or self.last_mb <= MEMORY_GROWTH_MAX * self.warm_mb:
            return ""
        return f"the server grew from {self.warm_mb:,.0f} to {self.last_mb:,.0f} MB: find the memory that requests fill"


def peer_of(server: ServerProcess) -> Peer:
    address = read_kubeconfig(server.kubeconfig)
    return Peer(address.host, address.port, tls_contexts(server.state))


def server_options(folder: Path) -> tuple[str, ...]:
    """An audit of all bodies, and encrypted Secrets: both see what requests hold."""
    policy = folder / "policy.yaml"
    policy.write_text(EVERYTHING)
    return "--audit-policy", str(policy), "--encryption-keys", str(write_keys(folder / "keys.yaml", "key-1"))


def admin_certificate(state: Path) -> Path:
    now, path = datetime.now(UTC), state / "fuzz.pem"
    Authority.ensure(state, now).ensure_client(path, "fuzz", (MASTERS,), now)
    return path


async def fuzz(server: ServerProcess, wanted: int, seed: int) -> Tally:
    peer = peer_of(server)
    await prepare(peer)
    memory = MemoryGrowth()
    while peer.tally.replies < wanted and not peer.tally.faults:
        await fuzz_raw(peer, seed, _ROUND // 5)
        await fuzz_requests(peer, seed, _ROUND)
        await check_nothing_half_written(peer)
        await delete_created(peer)
        await prepare(peer)
        seed += 1
        used_mb = memory_mb(server.pid)
        memory.note(peer.tally.replies, used_mb)
        print(f"{peer.tally.replies:,} replies, server {used_mb:,.0f} MB, next seed {seed}", flush=True)
    if memory.warm_mb:
        grown = memory.last_mb / memory.warm_mb - 1
        print(f"memory: {memory.warm_mb:,.0f} after {WARM_REPLIES:,} replies, then {memory.last_mb:,.0f}, {grown:+.0%}")
    if memory.problem:
        peer.tally.fault(memory.problem, b"")
    await open_page(peer)  # last, because its server then keeps the commits since
    await fuzz_requests(peer, seed, _ROUND)
    return peer.tally


def fuzz_clients(examples: int, seed: int) -> bool:
    """Fuzz `kedge.client` on every transport. Returns whether something broke."""
    broken = False
    for kind in TRANSPORTS:
        tally = fuzz_client(kind, examples, seed)
        counts = ", ".join(f"{name} {count:,}" for name, count in sorted(tally.outcomes.items()))
        print(f"client, {kind}: {sum(tally.outcomes.values()):,} calls: {counts}")
        for text, call in zip(tally.faults, tally.broken, strict=True):
            print(f"{keep(call).name}: {text}", file=sys.stderr)
        broken = broken or bool(tally.faults)
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    codes: Counter[int] = Counter()
    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder,
        running_server(Path(folder) / "state", *server_options(Path(folder))) as server,
    ):
        tallies = [asyncio.run(fuzz(server, asked.requests, asked.seed))]
        if importlib.util.find_spec("schemathesis") is not None:
            files = (str(server.state / "ca.crt"), str(admin_certificate(server.state)))
            examples = max(1, min(20, asked.requests // 20_000))
            tallies.append(
                fuzz_openapi(server.url, *files, seed_number=asked.seed, operations_max=10_000, examples=examples)
            )
        used_mb = memory_mb(server.pid)
        log = server.log
    for tally in tallies:
        codes.update(tally.codes)
        for text, sent in zip(tally.faults, tally.broken, strict=True):
            print(text, file=sys.stderr)
            if sent:
                (CORPUS / f"{hashlib.sha256(sent).hexdigest()[:12]}.http").write_bytes(sent)
    for code, count in sorted(codes.items()):
        print(f"{code} {count:>10,}")
    print(f"all {sum(codes.values()):>10,} replies in {time.monotonic() - began_s:,.0f} s; server: {used_mb:,.0f} MB")
    tracebacks = log.count("Traceback")
    if tracebacks:
        print(f"the server logged {tracebacks} tracebacks:\n{log[-5_000:]}", file=sys.stderr)
    clients_broken = fuzz_clients(max(100, asked.requests // 10), asked.seed)
    return int(bool(clients_broken or tracebacks or used_mb > MEMORY_MB_MAX or any(tally.faults for tally in tallies)))


if __name__ == "__main__":
    sys.exit(main())
