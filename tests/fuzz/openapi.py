"""Requests that schemathesis makes from the server's own OpenAPI documents, sent over HTTPS."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.fuzz.peer import Tally


def documents(session: Any, url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every OpenAPI v3 document that the server lists."""
    for path, entry in sorted(session.get(f"{url}/openapi/v3", timeout=60).json()["paths"].items()):
        yield path, session.get(url + entry["serverRelativeURL"], timeout=60).json()


def fuzz_openapi(
    url: str, authority: str, certificate: str, *, seed_number: int, operations_max: int, examples: int
) -> Tally:
    """Send `examples` requests to each of so many operations, drawn from all. Watches are left out: they stay open."""
    import requests
    import schemathesis

    tally = Tally()
    session = requests.Session()
    session.trust_env = False  # a bundle of authorities in the environment would replace the cluster's
    session.verify, session.cert = authority, certificate
    every = []
    for _, document in documents(session, url):
        schema = schemathesis.openapi.from_dict(document)
        every += [found.ok() for found in schema.get_all_operations() if hasattr(found, "ok")]
    source = random.Random(seed_number)
    chosen = every if len(every) <= operations_max else source.sample(every, operations_max)
    for operation in chosen:
        _fuzz_operation(operation, session, url, tally, seed_number, examples)
        if len(tally.faults) >= 20:
            break
    return tally


def _fuzz_operation(operation: Any, session: Any, url: str, tally: Tally, seed_number: int, examples: int) -> None:
    @seed(seed_number)
    @settings(
        max_examples=examples, database=None, deadline=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )  # fmt: skip
    @given(case=operation.as_strategy())
    def send(case: Any) -> None:
        if "watch" in (case.query or {}):
            case.query.pop("watch")
        tally.cases += 1
        reply = case.call(base_url=url, session=session, verify=session.verify, cert=session.cert, timeout=20)
        tally.count(reply.status_code, f"{case.method} {case.path}", repr(case).encode())

    send()
