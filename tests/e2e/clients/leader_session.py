"""Two candidates of the `kubernetes` package's leader election on one Lease: one leads, then the other."""

from __future__ import annotations

import os
import threading

from kubernetes import client, config
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock


class Candidate:
    """One candidate in a thread of its own. The library has no stop, so the threads are daemons."""

    def __init__(self, name: str) -> None:
        self.leads = threading.Event()
        self.lost = threading.Event()
        settings = electionconfig.Config(
            LeaseLock("elected", "default", name),
            lease_duration=4,
            renew_deadline=3,
            retry_period=1,
            onstarted_leading=self.leads.set,
            onstopped_leading=self.lost.set,
        )
        self._elector = leaderelection.LeaderElection(settings)
        self._thread = threading.Thread(target=self._elector.run, daemon=True)

    def start(self) -> None:
        self._thread.start()


def main() -> None:
    config.load_kube_config()
    leases = client.CoordinationV1Api()
    first, second = Candidate("first"), Candidate("second")
    first.start()
    assert first.leads.wait(20), "the first candidate never led"
    second.start()
    assert not second.leads.wait(3), "two leaders"
    held = leases.read_namespaced_lease("elected", "default")
    assert held.spec.holder_identity == "first"
    assert held.spec.renew_time is not None
    # Another holder takes the lease: the first stops, and the second wins once the thief's lease ends.
    leases.patch_namespaced_lease("elected", "default", {"spec": {"holderIdentity": "thief"}})
    assert first.lost.wait(20), "the first candidate never noticed the loss"
    assert second.leads.wait(20), "the second candidate never led"
    assert leases.read_namespaced_lease("elected", "default").spec.holder_identity == "second"
    print("done", flush=True)
    os._exit(0)  # the threads print, which aborts an interpreter that shuts down


if __name__ == "__main__":
    main()
