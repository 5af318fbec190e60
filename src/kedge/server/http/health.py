"""`/livez`, `/readyz` and `/healthz`: whether the loop turns, requests are served, and the store answers.

`api` decides when a check begins. The store is asked once for all checks that come at about the same time, because
anyone may send them.
"""

from __future__ import annotations

import asyncio

from kedge.api.requests import List, ListOptions
from kedge.env import Env
from kedge.errors import OperatingError
from kedge.logs import DECISION
from kedge.server.http.exchange import Exchange, HttpRequest
from kedge.server.http.parameters import parse_query
from kedge.server.service import Service

_ANSWER_S = 2.0
"""A store that needs longer is not ready."""


class HealthChecks:
    """The checks of one server."""

    def __init__(self, service: Service, env: Env) -> None:
        self._service = service
        self._env = env
        self._asked_s = 0.0
        self._answer: asyncio.Task[str] | None = None
        """The problem of the store, or empty; it is kept for `http_store_check_s`."""

    async def serve(self, request: HttpRequest, exchange: Exchange, *, ready: bool) -> None:
        checks: dict[str, str] = {"ping": ""}
        if not request.path.startswith(b"/livez"):
            checks["serving"] = "" if ready else "not started yet, or stopping"
            checks["store"] = await self._store_problem()
        failed = {name: why for name, why in checks.items() if why}
        lines = [f"[-]{name} failed: {why}" if why else f"[+]{name} ok" for name, why in checks.items()]
        verdict = f"{request.path.decode('latin-1').strip('/')} check {'failed' if failed else 'passed'}"
        verbose = failed or "verbose" in parse_query(request.query)
        text = "\n".join([*lines, verdict, ""]) if verbose else "ok"
        exchange.respond(500 if failed else 200, text.encode(), content_type=b"text/plain; charset=utf-8")

    async def _store_problem(self) -> str:
        answer, now_s = self._answer, self._env.monotonic()
        if answer is None or (answer.done() and now_s - self._asked_s >= self._env.limits.http_store_check_s):
            self._asked_s = now_s
            self._answer = answer = self._env.spawn(self._ask_store(), name="health of the store")
        return await asyncio.shield(answer)

    async def _ask_store(self) -> str:
        DECISION.set("")  # several requests share the answer
        kind = next(iter(self._service.kinds))
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._service.send(List(kind, ListOptions(limit=1)))
        except (OperatingError, TimeoutError) as error:
            return str(error) or "no answer in two seconds"
        return ""
