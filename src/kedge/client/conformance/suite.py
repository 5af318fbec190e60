"""The suite: the list of checks, and `check_client`, which runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType

from kedge.client.conformance import calls, outcomes, streams
from kedge.client.conformance.subject import ClientSubject, MakeSubject

CLIENT_CHECK_S = 120.0
"""No check takes longer on a sound transport; one that does is stuck."""

ClientCheck = Callable[[ClientSubject], Awaitable[None]]

_CHECKS: tuple[ClientCheck, ...] = (
    calls.check_every_request_is_carried_out,
    calls.check_objects_come_back_unchanged,
    calls.check_errors_keep_their_facts,
    calls.check_claims_are_refused_with_a_reason,
    calls.check_lists_come_in_pages,
    calls.check_dry_runs_and_warnings,
    calls.check_deletions_wait_for_finalizers,
    outcomes.check_a_repeat_gets_the_first_outcome,
    outcomes.check_one_operation_of_two_clients_is_made_once,
    outcomes.check_a_lost_reply_is_read_back,
    outcomes.check_a_write_stays_unknown_where_repeats_are_unsafe,
    outcomes.check_retries_are_bounded,
    outcomes.check_fences_stop_a_former_leader,
    outcomes.check_cancelled_requests_do_no_harm,
    streams.check_initial_events_end_with_a_bookmark,
    streams.check_a_watch_resumes_without_gap_or_repeat,
    streams.check_a_compacted_start_is_compacted,
    streams.check_bookmarks_report_progress,
    streams.check_selectors_turn_changes_into_additions_and_deletions,
    streams.check_watches_end,
)
CLIENT_CHECKS: Mapping[str, ClientCheck] = MappingProxyType(
    {getattr(run, "__name__", "").removeprefix("check_"): run for run in _CHECKS}
)
"""Every check by name."""


def client_check_names() -> list[str]:
    """For `pytest.mark.parametrize`."""
    return list(CLIENT_CHECKS)


async def check_client(make_subject: MakeSubject, *, only: Iterable[str] = ()) -> None:
    """Run the checks, each on a service of its own.

    Raises:
        AssertionError: the transport breaks the contract; the message explains how.
    """
    for name in only or CLIENT_CHECKS:
        async with make_subject() as subject, asyncio.timeout(CLIENT_CHECK_S):
            await subject.prepare()
            await CLIENT_CHECKS[name](subject)
