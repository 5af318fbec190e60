"""One write of a component that is no controller, sent and recorded as a step of its decision.

Controllers write through `context`. Reports of the scheduler and pod workers of an agent have no context: they send
themselves, and record with this.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

from kedge.api.requests import Written
from kedge.env import Env
from kedge.errors import OperatingError, to_status
from kedge.keys import NO_REVISION, Key
from kedge.observe.records import Call, Decision, encode_intent


async def recorded_call(
    record: Decision, env: Env, verb: str, key: Key, intent: Mapping[str, Any], sent: Awaitable[Written]
) -> Written:
    """Await a request, and append the call with its outcome to the record. Errors are raised as they are."""
    began_s = env.monotonic()
    reply: Written | None = None
    outcome, status = "cancelled", None
    try:
        reply = await sent
        outcome = "removed" if reply.removed else "done"
    except OperatingError as error:
        outcome, status = type(error).__name__, to_status(error)
        raise
    finally:
        took_s = env.monotonic() - began_s
        record.steps.append(
            Call(
                verb=verb,
                key=key,
                intent_json=encode_intent(intent),
                check="",
                operation="" if reply is None else reply.object.origin.operation,
                began_s=max(0.0, (env.now() - record.began).total_seconds() - took_s),
                took_s=took_s,
                outcome=outcome,
                revision=NO_REVISION if reply is None else reply.object.revision,
                error=status,
                reply=() if reply is None else (reply.object,),
                unanswered_s=0.0 if reply is None else reply.unanswered_s,
            )
        )
    return reply
