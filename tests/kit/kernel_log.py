"""Small programs whose calls can be counted, and a run that must have no violation."""

from __future__ import annotations

from collections import Counter

from kedge.errors import OutcomeUnknown, Unavailable
from kedge.sim.kernel import Program, RunOutcome, Simulation


def passes(outcome: RunOutcome) -> RunOutcome:
    assert outcome.violation is None, outcome.violation.detail or outcome.violation
    return outcome


class Log:
    """A service that records the lines it receives."""

    def __init__(self) -> None:
        self.lines: list[int] = []

    async def add(self, line: int) -> int:
        self.lines.append(line)
        return len(self.lines)


def calls(count: int, log: Log) -> Program:
    async def program(sim: Simulation) -> Counter[str]:
        server, client = sim.host("server"), sim.host("client")
        server.serve("log", log)
        remote = client.remote(server, "log", timeout_s=1.0)
        seen: Counter[str] = Counter()

        async def work() -> None:
            for line in range(count):
                try:
                    await remote.add(line)
                    seen["done"] += 1
                except (OutcomeUnknown, Unavailable) as error:
                    seen[type(error).__name__] += 1

        await client.run(work())
        return seen

    return program
