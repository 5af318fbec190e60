"""Seeds on the workers of a Dask cluster that runs already; the workers have this build of kedge and of the target.

`hunt` sees an ordinary `concurrent.futures.Executor`. A worker that dies breaks it, as one of a process pool does, so
the hunt finds the seed that kills workers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

from kedge.errors import KedgeError
from kedge.sim.kernel.artefacts import fingerprint
from kedge.sim.kernel.hunt import DASK
from kedge.sim.kernel.targets import SimulationTarget, find_target

CONNECT_S = 20.0


class DaskUnusable(KedgeError):
    """The Dask cluster cannot run this hunt. The message has the reason and the next step."""


class DaskExecutor(Executor):
    """Sends calls to a Dask scheduler. The cluster itself is neither started nor stopped."""

    def __init__(self, name: str, target: SimulationTarget) -> None:
        """`name` is `dask://HOST:PORT`."""
        try:
            import distributed
        except ModuleNotFoundError as error:
            raise DaskUnusable("--executor dask://... needs distributed: pip install 'kedge[dask]'") from error
        self._killed = distributed.KilledWorker
        address = f"tcp://{name.removeprefix(DASK)}"
        try:
            self._client: Any = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise DaskUnusable(f"no Dask scheduler answers at {address}: start one with `dask scheduler`") from error
        try:
            self._check_builds(target)
        except BaseException:
            self._client.close()
            raise

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        result: Future[Any] = Future()
        result.set_running_or_notify_cancel()
        sent = self._client.submit(fn, *args, **kwargs, pure=False)

        def done(finished: Any) -> None:
            if finished.status == "finished":
                result.set_result(finished.result())
                return
            error = finished.exception() if finished.status == "error" else None
            if error is None or isinstance(error, self._killed):
                error = BrokenExecutor("the Dask workers that had it died")
            result.set_exception(error)

        sent.add_done_callback(done)
        return result

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        del wait, cancel_futures  # the hunt has taken every result by then, or gives them up
        self._client.close()

    def _check_builds(self, target: SimulationTarget) -> None:
        """A failure found by another build could not be replayed here."""
        ours = fingerprint(target)
        builds: dict[str, str] = self._client.run(build_of, target.reference)
        if not builds:
            raise DaskUnusable("the Dask cluster has no workers: start some with `dask worker`")
        others = sorted(worker for worker, build in builds.items() if build != ours)
        if others:
            why = builds[others[0]]
            shown = why if " " in why else "another build"
            raise DaskUnusable(
                f"{len(others)} of {len(builds)} Dask workers have not this build, {others[0]} among them ({shown}):"
                " install the same kedge, Python and target on every worker, and restart it"
            )


_loaded_builds: dict[str, str] = {}
"""By target: the build when this worker loaded it. One entry for each module that stays loaded."""


def build_of(reference: str) -> str:
    """Runs on a worker: its fingerprint of the target, or why it has none."""
    try:
        target = find_target(reference)
        # A worker keeps what it has loaded, whatever is on its disk by now.
        return _loaded_builds.setdefault(reference, fingerprint(target))
    except Exception as error:  # noqa: BLE001  # any failure to load it is the answer
        return f"cannot load {reference}: {error}"
