"""Every bound, by name: its default, the reason for it, and the metric that shows how near it is.

Limits come with `Env`, so each host can have its own. A bound that is not here does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TypeVar

_N = TypeVar("_N", int, float)

COUNT_MIN, SECONDS_MIN = 1, 0.001
"""The least values of counts and of times unless a limit declares another: a pause of zero is a busy loop."""

ERROR_TEXT_CHARS_MAX = 4_096
"""Length of an error's message, which repeats parts of a request. Not configurable, since errors are made where no
`Env` is."""
ERROR_FIELD_CHARS_MAX = 1_024
"""Length of the path and of the message of one bad field, and of the names of an error's object."""
ERROR_FIELDS_MAX = 100
"""Bad fields that one error lists; a caller corrects them and sees the rest. Not configurable, as above."""


def bound(default: _N, reason: str, *, metric: str, least: _N | None = None, most: _N | None = None) -> _N:
    """Declare one limit. `metric` is the name of the series to watch beside it; a set value is in `least`..`most`."""
    if least is None:
        least = COUNT_MIN if isinstance(default, int) else SECONDS_MIN
    metadata = {"reason": reason, "metric": metric, "least": least, "most": most}
    value: _N = field(default=default, metadata=metadata)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Units and qualifiers come last in each name. Replace single ones with `dataclasses.replace`."""

    # -- the event loop
    step_s_max: float = bound(
        0.02,
        "all other work of the process waits for a step of the event loop, lease renewals too: workers, handlers of"
        " caches and scheduling cycles that reach a part of it go on in a later step",
        metric="kedge_runtime_steps_cut_total",
    )

    # -- store
    commit_ops_max: int = bound(
        120,
        "etcd refuses a transaction of more than 128 operations",
        metric="kedge_store_commit_ops",
        least=100,
        most=120,
    )
    commit_bytes_max: int = bound(
        1_400_000,
        "etcd refuses a request of more than 1.5 MiB",
        metric="kedge_store_commit_bytes",
        least=64 * 1024,
        most=1_400_000,
    )
    commit_queue_max: int = bound(
        10_000, "commits that wait for one sync; more are rejected", metric="kedge_store_commit_queue"
    )
    sync_ops_max: int = bound(
        500,
        "writes that share one sync, so that it does not block the event loop for long",
        metric="kedge_store_sync_ops",
    )
    sync_wait_s: float = bound(
        0.01,
        "the event loop waits this long for a sync, so that quick disks need no switch of threads; then it continues",
        metric="kedge_store_late_syncs_total",
    )
    sync_bytes_max: int = bound(
        4_000_000,
        "bytes that share one sync, for the same reason; a single commit may be as large",
        metric="kedge_store_sync_bytes",
    )
    history_commits_max: int = bound(
        100_000, "old versions are in memory beside the new ones", metric="kedge_store_history_commits"
    )
    history_s: float = bound(
        300.0,
        "a watcher that was disconnected for longer lists again, as in Kubernetes",
        metric="kedge_store_history_age_seconds",
    )
    compact_every_s: float = bound(
        5.0, "small and frequent, so that no compaction is long", metric="kedge_store_compaction_seconds"
    )
    compact_rows_max: int = bound(
        500,
        "rows that one slice of a compaction deletes before the event loop continues",
        metric="kedge_store_compaction_seconds",
    )
    wal_pages_max: int = bound(
        250, "pages in the write-ahead log before they are moved to the database", metric="kedge_store_wal_pages"
    )
    store_reserve_bytes: int = bound(
        8 << 20,
        "room beside a SQLite store that is given up when the disk is full: half to commit deletions, half to open it",
        metric="kedge_store_reserve_bytes",
        least=4096,
    )
    store_file_check_s: float = bound(
        1.0,
        "a SQLite store looks this often, before a sync, whether its file was deleted or replaced",
        metric="kedge_store_file_checks_total",
    )
    backup_rows_max: int = bound(
        500,
        "rows that one slice of a backup writes before the event loop continues",
        metric="kedge_store_backup_seconds",
    )
    alarm_s: float = bound(
        60.0,
        "a cleared alarm stays visible for this long, so that it is noticed",
        metric="kedge_store_alarms_total",
    )
    sync_hold_s_alarm: float = bound(
        0.1, "commits wait behind a slow sync, and lease renewals are commits", metric="kedge_store_sync_seconds"
    )
    watch_backlog_max: int = bound(
        10_000, "changes that a watcher may be behind before it is disconnected", metric="kedge_store_watch_backlog"
    )
    watch_batch_max: int = bound(
        1_000,
        "changes in one batch, so that one watcher does not block the event loop",
        metric="kedge_store_watch_batch",
    )
    watch_progress_s: float = bound(
        1.0, "an idle watcher gets a progress mark this often", metric="kedge_store_watch_progress_total"
    )
    watch_fence_progress_s: float = bound(
        0.05,
        "after a lease changed holders idle watchers get a progress mark this soon: a new leader waits for it",
        metric="kedge_store_watch_progress_total",
    )
    watch_future_wait_s: float = bound(
        3.0,
        "a watch or read past the newest revision waits this long, then fails",
        metric="kedge_store_future_waits_total",
    )
    store_request_s: float = bound(
        2.5,
        "a request to a remote store without a reply by then has an unknown outcome; a leader must renew after it",
        metric="kedge_store_request_seconds",
    )
    store_connect_s: float = bound(
        1.0, "an endpoint that has not accepted by then is skipped", metric="kedge_store_request_seconds"
    )
    store_reconnect_s_max: float = bound(
        2.0,
        "longest pause before a broken watch of the remote store is reopened",
        metric="kedge_store_reconnects_total",
    )
    store_silence_s: float = bound(
        1.0,
        "a remote watch idle for this long is checked against a read; behind for as long again, it is reopened",
        metric="kedge_store_reconnects_total",
    )
    store_watch_lag_max: int = bound(
        256, "revisions that a remote watch may be behind before it is reopened", metric="kedge_store_reconnects_total"
    )
    store_page_bytes_max: int = bound(
        8 << 20,
        "a large list is read from a remote store in pages of about this size",
        metric="kedge_store_request_seconds",
    )
    store_page_objects_max: int = bound(10_000, "objects in one such page", metric="kedge_store_request_seconds")

    # -- service
    proof_attempts_max: int = bound(
        16, "lost races after which a write fails with a contention error", metric="kedge_service_proof_attempts_total"
    )
    object_cache_max: int = bound(
        20_000, "decoded objects that are kept, so that a revision is decoded once", metric="kedge_service_object_cache"
    )
    object_cache_bytes_max: int = bound(
        64 * 1024 * 1024,
        "bytes of these objects as they are stored; decoded they have several times as many",
        metric="kedge_service_object_cache_bytes",
    )
    ledger_cache_max: int = bound(
        10_000,
        "ledgers that are kept decoded, so that a bind does not decode every claim",
        metric="kedge_service_ledger_cache",
    )
    operation_window_s: float = bound(
        600.0, "a repeat of an operation id inside it gets the first outcome", metric="kedge_service_operations"
    )
    operations_max: int = bound(
        100_000, "operation ids remembered; under load the window shrinks instead", metric="kedge_service_operations"
    )
    operation_id_chars_max: int = bound(
        256,
        "an operation id or decision id is stored beside each version that it writes",
        metric="kedge_service_operations",
    )
    list_page_max: int = bound(
        10_000,
        "objects that one page of a list with a selector scans before it is returned",
        metric="kedge_service_list_scanned_total",
    )
    ledger_cache_bytes_max: int = bound(
        256 * 1024 * 1024,
        "bytes of these ledgers as they are stored; a ledger of a hundred pods has about 25 KB",
        metric="kedge_service_ledger_cache_bytes",
    )
    watch_initial_page_bytes: int = bound(
        256 * 1024,
        "initial events that one watch holds; the next page is read when its client has taken this one",
        metric="kedge_service_initial_events_bytes",
        least=4_096,
    )
    watch_initial_bytes_max: int = bound(
        128 * 1024 * 1024,
        "the same of all watches; beyond it a new watch that begins with existing objects gets 429",
        metric="kedge_service_initial_events_bytes",
    )
    list_slice_max: int = bound(
        500,
        "objects that a list or a count handles before other tasks may run: about 5 ms",
        metric="kedge_service_list_scanned_total",
    )
    admission_rounds_max: int = bound(
        2,
        "passes over the mutating policies while they still change each other's output",
        metric="kedge_service_admission_rounds_total",
    )
    admission_repeat_s: float = bound(
        10.0,
        "equal refusals of admission within it are one record: a controller tries again and again",
        metric="kedge_service_admission_refusals",
    )
    admission_refusals_max: int = bound(
        1_000, "refusals whose repeats are counted, the most recent ones", metric="kedge_service_admission_refusals"
    )
    origin_versions_max: int = bound(
        50,
        "versions that one lookup of the write behind a condition reads: each read of the past scans recent history",
        metric="kedge_service_origin_versions_total",
    )
    generated_name_attempts_max: int = bound(
        8, "names drawn for one generateName before giving up", metric="kedge_service_generated_names_total"
    )
    namespace_quotas_max: int = bound(
        16,
        "quotas of one kind in a namespace: a write charges them all, in one commit",
        metric="kedge_service_namespace_quotas",
    )
    unadmitted_pods_max: int = bound(
        1_000,
        "pods created with the name of one node, which need not exist, that it has not admitted: its ledger lists each",
        metric="kedge_service_unadmitted_pods",
    )
    gang_members_max: int = bound(
        1_000, "members of one gang: its record lists each", metric="kedge_service_gang_members"
    )
    gang_chunk_max: int = bound(
        12,
        "gang members reserved in one commit: each costs six operations, plus the quotas",
        metric="kedge_service_gang_chunk",
    )

    # -- leases
    lease_s: float = bound(
        15.0, "a holder that has not renewed for this long may be replaced", metric="kedge_runtime_leading"
    )
    lease_renew_s: float = bound(
        10.0,
        "a holder that could not renew for this long stops, before it may be replaced",
        metric="kedge_runtime_renewal_seconds",
    )
    lease_retry_s: float = bound(
        2.0, "pause between renewals, and between attempts of a candidate", metric="kedge_runtime_renewal_seconds"
    )

    # -- client
    client_in_flight_max: int = bound(
        128,
        "enough writes to share exchanges and syncs; few enough that keys that fail at once cause no storm",
        metric="kedge_client_in_flight",
    )
    client_attempts_max: int = bound(
        5, "after that many attempts the caller gets the error", metric="kedge_client_attempts_total"
    )
    client_deadline_s: float = bound(
        30.0, "after it the intent is stale: the caller decides again", metric="kedge_client_request_seconds"
    )
    client_failover_s: float = bound(
        3.0,
        "a request that was given up after this long without an answer counts against its server, of several",
        metric="kedge_client_failovers_total",
    )
    client_kubeconfig_s: float = bound(
        10.0,
        "how often a component looks whether its kubeconfig was rewritten",
        metric="kedge_client_kubeconfigs_total",
    )
    client_backoff_s: float = bound(
        0.1, "the first pause between two attempts; it doubles, with jitter", metric="kedge_client_attempts_total"
    )
    client_backoff_s_max: float = bound(
        5.0, "the longest pause between two attempts", metric="kedge_client_attempts_total"
    )
    breaker_failures_max: int = bound(
        8, "failures in a row that open the breaker of a dependency", metric="kedge_client_breaker_open"
    )
    breaker_open_s: float = bound(
        2.0, "how long an open breaker rejects requests before one may probe", metric="kedge_client_breaker_open"
    )

    # -- watcher and cache
    watch_backoff_s: float = bound(
        0.2, "the first pause before a watch or list is tried again; it doubles", metric="kedge_watch_backoff_seconds"
    )
    watch_backoff_s_max: float = bound(
        30.0,
        "the longest such pause, so that many short failures do not cause a storm",
        metric="kedge_watch_backoff_seconds",
    )
    watch_healthy_s: float = bound(
        30.0,
        "a stream that lived this long is healthy: its earlier failures are forgotten",
        metric="kedge_watch_backoff_seconds",
    )
    watch_request_s: float = bound(
        60.0, "a page or a new stream that has not arrived by then is abandoned", metric="kedge_watch_list_seconds"
    )
    watch_probe_s: float = bound(
        5.0,
        "how often the newest revision is read; a stream behind it for as long again is dead",
        metric="kedge_watch_probes_total",
    )
    watch_silence_s: float = bound(
        15.0,
        "a stream that is idle and cannot be probed for this long is dead",
        metric="kedge_watch_transitions_total",
    )
    watch_slice_max: int = bound(
        256, "events taken from a stream before other tasks may run", metric="kedge_watch_events_total"
    )
    relist_page_max: int = bound(2_000, "objects requested in one page of a list", metric="kedge_watch_pages_total")
    relist_every_s: float = bound(
        900.0,
        "a stream may lose an event unnoticed: this often the cache is compared with a list",
        metric="kedge_watch_transitions_total",
    )
    tombstones_max: int = bound(10_000, "deleted objects a cache remembers", metric="kedge_cache_tombstones")
    tombstone_s: float = bound(600.0, "how long it remembers them", metric="kedge_cache_tombstones")
    received_log_max: int = bound(
        10_000,
        "inputs of a cache, kept in order so that a decision can be rerun",
        metric="kedge_cache_received_log",
    )
    received_pinned_max: int = bound(
        50_000,
        "the same, while kept records pin it; past this the oldest pins are dropped",
        metric="kedge_cache_received_log",
    )
    cache_wait_s: float = bound(10.0, "how long a reader waits for a revision by default", metric="kedge_cache_waiting")
    floor_relist_s: float = bound(
        5.0,
        "a floor unmet for this long makes the cache's watcher list again",
        metric="kedge_cache_floor_relists_total",
    )
    floor_wait_s: float = bound(
        30.0, "a floor unmet for this long fails its key, which is retried later", metric="kedge_cache_floors"
    )
    floor_objects_max: int = bound(
        64,
        "objects that a key's floors list one by one; beyond it they wait for the newest revision",
        metric="kedge_cache_floors",
    )

    # -- controllers
    resync_every_s: float = bound(
        600.0,
        "an event may be lost unnoticed: this often every key is reconciled",
        metric="kedge_runtime_resyncs_total",
    )
    stop_s: float = bound(
        15.0, "how long a stop waits for running work before it is cancelled", metric="kedge_runtime_stop_pending"
    )

    # -- queue
    queue_keys_max: int = bound(
        200_000,
        "keys queued or running; more are rejected, and a resync runs once there is room",
        metric="kedge_queue_keys",
    )
    queue_wakes_max: int = bound(
        8, "distinct triggers kept for one run; further ones are only counted", metric="kedge_queue_wakes_dropped_total"
    )
    queue_backoff_s: float = bound(
        0.1, "the first pause of a key that failed; it doubles, with jitter", metric="kedge_queue_backoff_seconds"
    )
    queue_backoff_s_max: float = bound(
        60.0, "the longest one: a key notices a recovery this late at most", metric="kedge_queue_backoff_seconds"
    )
    queue_aging_s: float = bound(
        30.0, "a key ready for longer may go before higher priorities", metric="kedge_queue_oldest_seconds"
    )
    queue_aged_every: int = bound(
        4, "at most one item in this many is chosen by its age", metric="kedge_queue_aged_total"
    )
    queue_service_s_min: float = bound(
        0.001, "the least that a run costs its tenant", metric="kedge_queue_service_seconds_total"
    )
    queue_debt_s_max: float = bound(
        10.0,
        "how far a tenant may be charged ahead of the others: one long run must not starve it",
        metric="kedge_queue_service_seconds_total",
    )
    queue_slow_s: float = bound(
        0.05,
        "a tenant whose runs are longer on average may not take every worker",
        metric="kedge_queue_service_seconds_total",
    )
    queue_slow_share_max: float = bound(
        0.75,
        "of the workers, for all such tenants together; 1 reserves none",
        metric="kedge_queue_slow_running",
        least=0.01,
        most=1.0,
    )
    queue_resync_spread_s: float = bound(
        60.0, "keys of one resync are spread over this long, to avoid a storm", metric="kedge_queue_resyncs_total"
    )
    queue_resync_burst: int = bound(
        1_000, "keys that a resync adds before the event loop continues", metric="kedge_queue_resyncs_total"
    )
    queue_loop_runs_max: int = bound(
        10, "consecutive runs without effect, caused by one trigger, that make a loop", metric="kedge_queue_loops_total"
    )
    queue_loop_echoes_max: int = bound(
        30,
        "the same for runs triggered by their own last write: legitimate steps may look like that for a while",
        metric="kedge_queue_loops_total",
    )
    queue_loop_gap_s: float = bound(
        5.0, "runs without effect that are further apart are no loop", metric="kedge_queue_looping"
    )
    queue_fight_gap_s: float = bound(
        600.0, "runs that write the same value and are further apart are no conflict", metric="kedge_queue_looping"
    )
    queue_loop_hold_s: float = bound(
        0.5, "the first pause of a looping key; it doubles, with jitter", metric="kedge_queue_holds_total"
    )
    queue_loop_hold_s_max: float = bound(60.0, "the longest one", metric="kedge_queue_holds_total")
    queue_loop_memory: int = bound(
        16, "fingerprints kept of a key's last writes and inputs", metric="kedge_queue_histories"
    )
    queue_loop_keys_max: int = bound(
        20_000, "keys whose last runs are remembered, the most recent ones", metric="kedge_queue_histories"
    )

    # -- decisions
    decisions_kept_max: int = bound(
        10_000,
        "records in memory, each with the versions it read; older ones are in the log",
        metric="kedge_decisions_held",
    )
    decisions_recent_max: int = bound(
        32,
        "versions whose writers no rule kept, held for a while: if a kept decision read one, its writer is kept too;"
        " more of them cost more than all counting, because their memory is freed late",
        metric="kedge_decisions_recent",
    )
    decision_ring_s: float = bound(
        600.0,
        "decisions that no rule kept are held for this long, so that an incident can reach back",
        metric="kedge_decisions_ring_seconds",
    )
    decision_ring_max: int = bound(
        8_192,
        "the same in decisions: a scheduler that binds a thousand pods a second holds seconds of them; 0 holds none",
        metric="kedge_decisions_ring",
        least=0,
    )
    decision_ring_bytes_max: int = bound(
        64 << 20, "the same in memory, which is estimated", metric="kedge_decisions_ring_bytes"
    )
    decisions_batch_max: int = bound(
        64,
        "ended decisions that are counted and kept together, and kept ones that are encoded together: one by one they"
        " cost more; readers and flushes do not wait for a full batch",
        metric="kedge_decisions_log_unencoded",
    )
    decisions_sample_every: int = bound(
        256,
        "of the records that no rule keeps, one in this many is sampled",
        metric="kedge_decisions_kept_total",
    )
    decisions_priority_min: int = bound(
        1_000_000_000,
        "decisions of this priority or a higher one are all kept; the default is the highest that a user may give a"
        " PriorityClass",
        metric="kedge_decisions_kept_total",
        least=-(1 << 31),
    )
    decisions_quiet_per_s: float = bound(
        5.0,
        "decisions that wrote something and that no other rule keeps are kept while there are fewer than this in a"
        " second, so that a quiet cluster has every record and a busy one pays for a sample",
        metric="kedge_decisions_kept_total",
        least=0.0,
    )
    decision_rows_max: int = bound(
        20_000,
        "rows of controller, verb, kind and field that are counted; the rest is one row, `other`",
        metric="kedge_decisions_rows",
    )
    decisions_noted_first: int = bound(
        16,
        "decisions of each controller whose fields are all noted: a short run is then known by field",
        metric="kedge_decisions_rows",
    )
    decisions_noted_every: int = bound(
        256,
        "after those, one decision in this many has its fields noted, beside those in a window: noting"
        " costs more than the rest of the record",
        metric="kedge_decisions_rows",
    )
    decision_objects_noted_max: int = bound(
        16,
        "objects of one read whose fields are noted; the fields of the others are rarely different",
        metric="kedge_decisions_rows",
    )
    decision_counts_every_s: float = bound(
        10.0,
        "a kill loses this much of the counts; each write of them has only the rows that changed",
        metric="kedge_decisions_rows",
    )
    decision_writers_max: int = bound(
        100_000, "versions whose decision can be looked up, the newest ones", metric="kedge_decisions_writers"
    )
    decision_windows_max: int = bound(
        64, "windows open at once: each is checked for every decision", metric="kedge_decisions_windows"
    )
    decision_window_s_max: float = bound(
        86_400.0, "a window that is never closed ends after this long", metric="kedge_decisions_windows"
    )
    decision_window_after_s: float = bound(
        300.0,
        "a window stays open so long after a change of a policy, after the end of a rollout, and after a fast burn",
        metric="kedge_decisions_windows",
    )
    decision_burn_window_s_max: float = bound(
        3_600.0,
        "a window for an error budget that burns past its alert's bounds ends after this long, if it still burns too",
        metric="kedge_decisions_windows",
    )
    decision_burn_check_s: float = bound(
        15.0, "pause between two looks at the burn rates that open windows", metric="kedge_decisions_windows"
    )
    decision_log_bytes_max: int = bound(
        256 << 20,
        "disk space of the log; past it the oldest segment is deleted",
        metric="kedge_decisions_log_bytes",
    )
    decision_log_segment_bytes_max: int = bound(
        16 << 20,
        "one segment: small enough to delete at once, large enough to write a version once for many records",
        metric="kedge_decisions_log_segment_bytes",
    )
    decision_log_segments_max: int = bound(
        64,
        "files of the log: each start of a process begins one, and small ones would add up; the oldest is deleted",
        metric="kedge_decisions_log_segments",
    )
    incidents_max: int = bound(
        20,
        "incidents whose records a server has: a person removes those that are no longer needed",
        metric="kedge_incidents",
    )
    incidents_bytes_max: int = bound(
        1 << 30,
        "records of all incidents at one server: an hour of a busy cluster has less",
        metric="kedge_incidents_bytes",
    )
    incident_flush_s: float = bound(
        0.1,
        "while an incident is recorded, a process that is killed loses this much of its log",
        metric="kedge_incidents_sent_bytes_total",
    )
    history_mark_s: float = bound(
        1.0,
        "a server notes its revision this often, for incidents that reach back: times of commits before their begin are"
        " known to this",
        metric="kedge_incidents",
    )
    incident_live_s: float = bound(
        1.0,
        "while a page is open, a process sends its records this often: the page is so much behind",
        metric="kedge_incidents_sent_bytes_total",
    )
    page_records_bytes_max: int = bound(
        64 << 20,
        "records of other processes that the page of a server holds; past it the page begins again",
        metric="kedge_incidents_bytes",
    )
    incident_reply_s: float = bound(
        10.0,
        "the wait for a server that takes records of an incident; then the next server gets them",
        metric="kedge_incidents_failures_total",
    )
    incident_retry_s: float = bound(
        0.5, "pause before records of an incident are sent again", metric="kedge_incidents_failures_total"
    )
    incident_send_s_max: float = bound(
        600.0,
        "a process that starts later than this after the end of an incident sends nothing for it",
        metric="kedge_incidents_failures_total",
    )
    incident_slice_bytes: int = bound(
        1 << 20, "records that one request sends or reads", metric="kedge_incidents_bytes"
    )
    decision_log_inputs_bytes_max: int = bound(
        8 << 20,
        "cache contents in one segment, so that its scheduling attempts can be run again; past it they are left out",
        metric="kedge_decisions_log_inputs_bytes",
    )
    decision_index_part_max: int = bound(
        1_024,
        "decisions in one part of the log's index: a reader scans those after the last part, and looks into every part",
        metric="kedge_decisions_log_unindexed",
    )
    decision_log_record_bytes_max: int = bound(
        2 << 20,
        "size of one record; a larger one is kept without the objects it read, and is marked so",
        metric="kedge_decisions_log_stripped_total",
    )
    decision_log_pending_bytes_max: int = bound(
        1 << 20,
        "bytes not yet written; past it the caller that adds a record writes it",
        metric="kedge_decisions_log_pending_bytes",
    )
    decision_log_sync_s: float = bound(
        1.0, "a power failure may lose this much of the log", metric="kedge_decisions_log_sync_seconds"
    )
    log_lines_max: int = bound(
        500,
        "log lines of one process in a second, and five times as many at once; more are dropped and counted",
        metric="kedge_log_lines_dropped_total",
    )
    otlp_queue_max: int = bound(
        4_096,
        "kept decisions whose spans wait for an OTLP endpoint; more are dropped, so that none waits for it",
        metric="kedge_otlp_waiting",
    )
    otlp_batch_max: int = bound(
        64, "decisions in one export request: endpoints bound its size", metric="kedge_otlp_sent_total"
    )
    otlp_every_s: float = bound(1.0, "pause between two exports of spans", metric="kedge_otlp_waiting")
    otlp_request_s: float = bound(10.0, "timeout of one export request", metric="kedge_otlp_failures_total")
    otlp_retry_s_max: float = bound(
        60.0, "a batch that the endpoint has not taken by then is dropped", metric="kedge_otlp_dropped_total"
    )
    otlp_stop_s: float = bound(
        2.0, "a process that ends sends its last spans for at most this long", metric="kedge_otlp_dropped_total"
    )

    # -- metrics
    metric_series_max: int = bound(
        1_000,
        "combinations of label values of one metric; the rest is counted under the value `other`",
        metric="kedge_metrics_other_total",
    )
    slo_time_to_bound_s: float = bound(
        30.0, "a pod that has no node by then counts against the objective", metric="kedge_slo_burn_ratio"
    )
    slo_time_to_ready_s: float = bound(
        120.0, "a pod that is not ready by then counts against the objective", metric="kedge_slo_burn_ratio"
    )
    slo_pods_good_share: float = bound(
        0.99,
        "the share of pods that are bound and ready in time",
        metric="kedge_slo_objective_ratio",
        least=0.5,
        most=0.9999,
    )
    slo_api_good_share: float = bound(
        0.999,
        "the share of requests that are answered without a fault of the server",
        metric="kedge_slo_objective_ratio",
        least=0.5,
        most=0.99999,
    )

    # -- workloads
    pod_burst: int = bound(
        100,
        "pods that one reconcile creates or deletes, so that other workloads get their turn",
        metric="kedge_workload_acts_total",
    )
    drain_s: float = bound(
        10.0,
        "a surplus replica without a confirmed drain is deleted after this long",
        metric="kedge_workload_acts_total",
    )
    ghost_look_s: float = bound(
        5.0,
        "how often to check that a force-deleted at-most-one pod has ended",
        metric="kedge_workload_ghosts_total",
    )
    job_backoff_s: float = bound(
        10.0, "the pause of a Job after its first failed pod in a row; it doubles", metric="kedge_workload_acts_total"
    )
    job_backoff_s_max: float = bound(600.0, "the longest such pause", metric="kedge_workload_acts_total")
    job_uncounted_max: int = bound(
        500,
        "ended pods that a Job's status lists while they are being counted",
        metric="kedge_workload_uncounted_total",
    )

    # -- autoscaler and rollouts
    autoscaler_look_s: float = bound(
        15.0, "pause between two reconciles of an autoscaler, as in Kubernetes", metric="kedge_autoscaler_plans_total"
    )
    autoscaler_unserved_max: int = bound(
        10,
        "replicas requested beyond those that are ready: if pods do not start, more are not added",
        metric="kedge_autoscaler_plans_total",
    )
    autoscaler_cooldown_s: float = bound(
        15.0, "pause after a change of size before more replicas are requested", metric="kedge_autoscaler_plans_total"
    )
    autoscaler_tolerance_milli: int = bound(
        100,
        "a tenth off the target is on target, as in Kubernetes",
        metric="kedge_autoscaler_plans_total",
        least=0,
        most=1_000,
    )
    autoscaler_sample_s: float = bound(
        60.0, "usage measured longer ago counts as missing", metric="kedge_autoscaler_plans_total"
    )
    autoscaler_start_s: float = bound(
        300.0,
        "in its first minutes a pod's usage counts only if it was measured while the pod was ready",
        metric="kedge_autoscaler_plans_total",
    )
    autoscaler_history_max: int = bound(
        32,
        "intervals of history in an autoscaler's status; older ones are merged",
        metric="kedge_autoscaler_plans_total",
    )
    autoscaler_cache_age_s: float = bound(
        45.0, "no scale-up is based on caches older than this", metric="kedge_autoscaler_plans_total"
    )
    rollout_look_s: float = bound(
        5.0, "pause between two reconciles of a rollout in progress", metric="kedge_rollout_plans_total"
    )
    rollout_regress_s: float = bound(
        30.0,
        "a regression counts once it lasts this long: rollouts delay pods briefly",
        metric="kedge_rollout_plans_total",
    )

    # -- scheduler
    scheduler_shapes_max: int = bound(
        256,
        "equivalence classes whose masks and scores are kept; each holds a few bytes a node",
        metric="kedge_scheduler_shapes",
    )
    scheduler_label_keys_max: int = bound(
        1_024,
        "label keys of pods with a column in the table of nodes; past it all columns and shapes are made again",
        metric="kedge_scheduler_label_keys",
    )
    scheduler_changes_max: int = bound(
        4_096,
        "changed rows remembered for idle equivalence classes; one further behind is recomputed",
        metric="kedge_scheduler_changes_total",
    )
    scheduler_repair_max: int = bound(
        32, "rows repaired one by one; with more, all are computed at once", metric="kedge_scheduler_repairs_total"
    )
    scheduler_assumption_changes_max: int = bound(
        16_384,
        "changes of assumptions that can be undone, for the record of an attempt that is made after it",
        metric="kedge_scheduler_assumption_changes",
    )
    scheduler_top_max: int = bound(
        5, "nodes whose scores an explanation lists with their parts", metric="kedge_scheduler_explanations_total"
    )
    scheduler_backoff_s: float = bound(
        0.5, "the first pause of a pod whose attempt failed; it doubles, with jitter", metric="kedge_scheduler_pending"
    )
    scheduler_backoff_s_max: float = bound(10.0, "the longest one", metric="kedge_scheduler_pending")
    scheduler_flush_s: float = bound(
        300.0,
        "a pod that waited this long for an event is tried anyway: a queueing hint may be wrong",
        metric="kedge_scheduler_flush_age_seconds",
    )
    scheduler_binds_max: int = bound(
        256, "binds in flight: enough to share syncs, few enough to undo", metric="kedge_scheduler_binds_in_flight"
    )
    scheduler_burst_max: int = bound(
        128,
        "attempts in a row before other tasks may run; a failed attempt counts for eight:"
        " with fewer, a burst of pods outruns the scheduler",
        metric="kedge_scheduler_attempt_seconds",
    )
    scheduler_assumed_s: float = bound(
        30.0,
        "a bind that is not in the cache by then is checked with a fresh read",
        metric="kedge_scheduler_assumed",
    )
    scheduler_refusals_max: int = bound(
        5, "refusals of one pod by one node before the pair is quarantined", metric="kedge_scheduler_quarantined"
    )
    scheduler_quarantine_s: float = bound(
        300.0, "how long such a pair is not retried", metric="kedge_scheduler_quarantined"
    )
    scheduler_explained_s: float = bound(
        10.0,
        "a pod's condition and Event are rewritten no sooner: their counts change with every node",
        metric="kedge_scheduler_reports_total",
    )
    scheduler_preempt_max: int = bound(
        100,
        "candidate nodes compared for a preemption: more are seldom better",
        metric="kedge_scheduler_preempted_total",
    )
    gang_wait_s: float = bound(
        60.0, "a gang that is not complete by then releases its reservations", metric="kedge_scheduler_gangs_total"
    )

    # -- nodes
    node_suspect_s: float = bound(
        20.0,
        "a node without renewals for this long gets no new pods: two were missed, which proves nothing",
        metric="kedge_nodes",
    )
    node_unknown_s: float = bound(
        40.0, "without renewals for this long, its pods' state is unknown and they get no work", metric="kedge_nodes"
    )
    node_lost_s: float = bound(
        120.0,
        "without renewals for this long it may be declared lost: its agent stopped at-most-one pods long before",
        metric="kedge_nodes",
    )
    node_blind_s: float = bound(
        45.0,
        "after a longer gap in its own observation, a controller restarts the count; above node_suspect_s",
        metric="kedge_nodes_blind_total",
    )
    zone_blind_min: int = bound(
        3, "nodes of a zone that must be unreachable at once before the zone itself is suspected", metric="kedge_nodes"
    )
    zone_blind_share: float = bound(
        0.55,
        "share of a zone's nodes that must be unreachable at once, for the same",
        metric="kedge_nodes",
        least=0.01,
        most=1.0,
    )
    node_loss_every_s: float = bound(
        10.0, "pause between two nodes of one zone that are declared lost", metric="kedge_nodes_lost_total"
    )
    node_drain_retry_s: float = bound(
        5.0, "pause before a drain retries an eviction that a budget rejected", metric="kedge_node_acts_total"
    )

    # -- upkeep
    event_burst: int = bound(
        25,
        "Events of one component about one object at once; as in client-go, a loop must not fill the store",
        metric="kedge_events_dropped_total",
    )
    event_refill_s: float = bound(
        300.0, "after that burst, one more Event about the object per this long", metric="kedge_events_dropped_total"
    )
    events_pending_max: int = bound(
        1_000, "Events of one controller that wait to be written; more are dropped", metric="kedge_events_dropped_total"
    )
    event_ttl_s: float = bound(
        3_600.0, "an Event that has not occurred for this long is deleted", metric="kedge_events_expired_total"
    )
    orphan_s: float = bound(
        40.0,
        "a claim must look orphaned for this long before it is checked: another actor may still release it",
        metric="kedge_repairs_total",
    )
    repair_every_s: float = bound(
        60.0, "how often ledgers and quotas are compared with the pods they count", metric="kedge_repairs_total"
    )
    finalizer_stuck_s: float = bound(
        300.0,
        "a deletion blocked by a finalizer for longer is reported: its controller may be gone",
        metric="kedge_finalizers_stuck",
    )
    namespace_retry_s: float = bound(
        5.0, "pause before a namespace that is not empty yet is checked again", metric="kedge_namespace_deletions_total"
    )
    budget_again_s: float = bound(
        1.0, "pause before a budget checks again whether its disrupted pods are gone", metric="kedge_budgets_allowed"
    )
    slice_endpoints_max: int = bound(
        100, "endpoints in one slice, so that one change rewrites few of them", metric="kedge_endpoint_slices_total"
    )

    # -- agent
    node_lease_s: float = bound(40.0, "the duration that a node's lease declares", metric="kedge_agent_contact_seconds")
    node_renew_s: float = bound(
        10.0, "pause between renewals of a node's lease, and the timeout of one", metric="kedge_agent_contact_seconds"
    )
    agent_contact_s: float = bound(
        30.0,
        "an agent without a renewal for this long stops at-most-one pods, well before its node may be declared lost",
        metric="kedge_agent_contact_seconds",
    )
    agent_proof_s: float = bound(
        2.0, "a proof that a pod may be started expires after this long", metric="kedge_agent_retries_total"
    )
    agent_retry_s: float = bound(1.0, "first pause after a failure; it doubles", metric="kedge_agent_retries_total")
    agent_retry_s_max: float = bound(30.0, "the longest one", metric="kedge_agent_retries_total")
    agent_restart_s: float = bound(
        10.0, "pause before a container's second restart; it doubles", metric="kedge_agent_starts_total"
    )
    agent_restart_s_max: float = bound(300.0, "the longest one", metric="kedge_agent_starts_total")
    agent_restart_reset_s: float = bound(
        600.0, "after a run of this length earlier failures no longer count", metric="kedge_agent_starts_total"
    )
    agent_audit_s: float = bound(
        60.0, "how often an agent looks for claims without a pod", metric="kedge_agent_audits_total"
    )
    agent_usage_s: float = bound(
        5.0,
        "usage is a rate over at least this long: over less, one burst looks like load",
        metric="kedge_agent_measurements_total",
    )
    agent_measure_s: float = bound(
        1.0,
        "time for a driver to report usage; a heartbeat waits no longer",
        metric="kedge_agent_measurements_total",
    )
    agent_refresh_s: float = bound(
        60.0,
        "how often the files of ConfigMaps and Secrets in running containers are brought up to date",
        metric="kedge_agent_refreshes_total",
    )
    agent_resize_s: float = bound(
        30.0,
        "how often an agent tries a resize again that it deferred; room that a pod frees is used at once",
        metric="kedge_agent_resizes_total",
    )
    agent_post_start_s: float = bound(
        120.0,
        "a postStart hook that takes longer has failed, and its container is restarted",
        metric="kedge_agent_hooks_total",
    )
    agent_stop_s_min: float = bound(
        2.0,
        "time between SIGTERM and SIGKILL after a preStop hook that took all of the grace",
        metric="kedge_agent_hooks_total",
    )
    agent_log_bytes_max: int = bound(
        16 * 1024 * 1024,
        "output kept of one process; a file may exceed it by the output of one second",
        metric="kedge_agent_pods",
    )
    agent_logs_max: int = bound(
        2, "processes of one container whose output is kept: the latest and the one before", metric="kedge_agent_pods"
    )
    agent_keeper_start_s: float = bound(
        20.0,
        "a keeper that does not serve by then has failed; the reason is in its log",
        metric="kedge_agent_retries_total",
    )
    agent_keeper_reply_s: float = bound(
        30.0,
        "a keeper that is paused or stuck must not hold up its agent for longer",
        metric="kedge_agent_retries_total",
    )
    agent_address_s: float = bound(
        60.0,
        "an address that was chosen for a pod is kept for this long without a process of it",
        metric="kedge_agent_pods",
    )
    agent_streams_max: int = bound(
        64, "open streams of logs, exec and attach of one agent", metric="kedge_agent_streams"
    )
    stream_buffer_bytes: int = bound(
        64 * 1024,
        "bytes of one direction of a stream in one process before its sender waits",
        metric="kedge_http_streams",
    )
    stream_message_bytes_max: int = bound(
        1024 * 1024, "one message of a WebSocket; clients send parts of 32 KiB", metric="kedge_agent_streams"
    )
    stream_connect_s: float = bound(
        5.0, "time for a connection between API server and agent to be made", metric="kedge_http_stream_failures_total"
    )
    stream_ping_s: float = bound(
        15.0, "pause between pings on a stream, which find a client that is gone", metric="kedge_agent_streams"
    )
    services_max: int = bound(
        250,
        "Services with an address on one node: its addresses are one block of 254",
        metric="kedge_service_addresses",
        most=254,
    )
    service_connections_max: int = bound(
        1_000, "open connections to Services through one agent", metric="kedge_service_connections_open"
    )
    service_connect_s: float = bound(
        3.0,
        "time for an endpoint to accept a connection before the next one is tried",
        metric="kedge_service_connections_total",
    )
    service_sync_s: float = bound(
        5.0, "a process that starts waits so long for the first list of Services", metric="kedge_service_addresses"
    )
    service_settle_s: float = bound(
        0.05,
        "pause after a change of endpoints, in which more of them arrive",
        metric="kedge_service_connections_total",
    )
    service_retry_s: float = bound(
        5.0,
        "pause before a port that could not be listened on is tried again",
        metric="kedge_service_connections_total",
    )

    # -- authorization
    access_users_max: int = bound(
        4_096, "users whose rules are remembered; then they are looked up again", metric="kedge_access_answers"
    )
    access_answers_max: int = bound(
        65_536, "remembered decisions of all users; then they are made again", metric="kedge_access_answers"
    )
    access_combinations_max: int = bound(
        1_000,
        "verbs times groups times resources that the check of one new role examines, so that it does not block the"
        " event loop for long",
        metric="kedge_access_combinations",
    )

    # -- certificates
    certificate_s_max: float = bound(
        31_536_000.0,
        "longest time of a certificate that a request gets; a longer or no request gets this",
        metric="kedge_service_certificates_total",
        least=10.0,
    )
    certificate_check_s: float = bound(
        60.0,
        "pause between looks at the own certificates of a component or server: a clock may be set while it sleeps",
        metric="kedge_certificate_left_seconds",
    )
    signing_request_done_s: float = bound(
        3600.0,
        "time that a signed, denied or failed request is kept, for its caller and for readers",
        metric="kedge_service_credentials_expired_total",
    )
    signing_request_pending_s: float = bound(
        86_400.0,
        "time that a request waits for its approval",
        metric="kedge_service_credentials_expired_total",
    )

    # -- tokens of ServiceAccounts
    token_s_min: float = bound(
        600.0,
        "shortest time of a token: a shorter one would end before its files are brought up to date",
        metric="kedge_service_tokens_total",
    )
    token_s_max: float = bound(
        365 * 86_400.0,
        "longest time of a token; a longer request gets this",
        metric="kedge_service_tokens_total",
    )

    # -- http, priority and fairness
    http_lease_seats_max: int = bound(
        64, "renewals and heartbeats of agents and components under way at once", metric="kedge_http_flow_used"
    )
    http_plane_seats_max: int = bound(
        256,
        "other requests of agents, controllers and schedulers; each has at most client_in_flight_max",
        metric="kedge_http_flow_used",
    )
    http_admin_seats_max: int = bound(64, "requests of administrators under way", metric="kedge_http_flow_used")
    http_workload_seats_max: int = bound(
        32, "requests of ServiceAccounts under way: enough to share a sync", metric="kedge_http_flow_used"
    )
    http_other_seats_max: int = bound(32, "requests of all other users under way", metric="kedge_http_flow_used")
    http_list_bytes_max: int = bound(
        16 << 20,
        "bytes of lists under way in each level; a larger list runs alone. Each list writes in every turn of the loop",
        metric="kedge_http_flow_used",
    )
    http_list_bytes_unknown: int = bound(
        4 << 20, "assumed size of a list that was not sent before", metric="kedge_http_list_sizes"
    )
    http_list_sizes_max: int = bound(
        1_024, "lists whose last size is remembered, the most recent ones", metric="kedge_http_list_sizes"
    )
    http_turn_units_max: int = bound(
        64, "work begun in one turn of the loop, in units of about 100 µs", metric="kedge_http_flow_waiting"
    )
    http_lease_turn_units_max: int = bound(
        6, "the same while a renewal is under way: it takes about six turns", metric="kedge_http_flow_waiting"
    )
    http_waiting_max: int = bound(
        1_024, "requests that wait in each lane of a level; more get 429", metric="kedge_http_flow_refused_total"
    )
    http_flow_waiting_max: int = bound(
        256,
        "the same of one user, of the ServiceAccounts of one namespace, or of callers at one address",
        metric="kedge_http_flow_refused_total",
    )
    http_wait_s_max: float = bound(
        15.0,
        "a request that waited this long gets 429: its client may have given up",
        metric="kedge_http_flow_wait_seconds",
    )
    http_store_check_s: float = bound(
        0.5,
        "/readyz and /healthz ask the store again after this time: anyone may send them",
        metric="kedge_http_flow_waiting",
    )
    http_watches_max: int = bound(
        3_500, "open watches; the rest of the connections is for requests", metric="kedge_http_watches_refused_total"
    )
    http_user_watches_max: int = bound(1_500, "open watches of one user", metric="kedge_http_watches_refused_total")

    # -- http
    http_connections_max: int = bound(
        4_000, "open connections; each holds about 42 KiB with TLS", metric="kedge_http_connections"
    )
    http_peer_connections_max: int = bound(
        2_000,
        "open connections from one address, so that two addresses at least are served",
        metric="kedge_http_connections_refused_total",
    )
    http_header_bytes_max: int = bound(
        64 * 1024,
        "headers of one request, so that a client cannot fill memory with them",
        metric="kedge_http_unreadable_total",
    )
    http_url_bytes_max: int = bound(
        16 * 1024,
        "one URL; the longest that a Kubernetes client sends are selectors",
        metric="kedge_http_unreadable_total",
    )
    http_body_bytes_max: int = bound(
        3 * 1024 * 1024, "one body, as in Kubernetes; an object is smaller still", metric="kedge_http_unreadable_total"
    )
    http_yaml_bytes_max: int = bound(
        256 * 1024,
        "one body of YAML, which is read on the event loop and many times slower than JSON; kubectl sends JSON",
        metric="kedge_http_requests_total",
    )
    http_pipelined_max: int = bound(
        16,
        "requests of one connection that wait for the reply before theirs; no Kubernetes client pipelines",
        metric="kedge_http_unreadable_total",
    )
    http_batch_calls_max: int = bound(
        64,
        "calls of one batch of kedge's own clients: they are begun in one turn of the loop",
        metric="kedge_http_requests_total",
    )
    http_request_s: float = bound(
        30.0,
        "from the first byte of a request to its last; slower clients get 408",
        metric="kedge_http_unreadable_total",
    )
    http_handshake_s: float = bound(
        10.0, "time for a TLS handshake, in which a connection counts as open", metric="kedge_http_handshakes"
    )
    http_first_request_s: float = bound(
        60.0,
        "a connection that never had a request is closed after this; clients that open some in advance use them sooner",
        metric="kedge_http_connections",
    )
    http_head_s: float = bound(
        10.0,
        "from the first byte of a request to the end of its headers; slower clients get 408",
        metric="kedge_http_unreadable_total",
    )
    http_body_check_s: float = bound(
        5.0, "how often it is checked that a body still arrives", metric="kedge_http_unreadable_total"
    )
    http_body_check_bytes_min: int = bound(
        4_096,
        "bytes that must have arrived since the check before, unless the body is whole; slower clients get 408",
        metric="kedge_http_unreadable_total",
    )
    http_idle_s: float = bound(
        300.0, "a connection without a request is closed after this", metric="kedge_http_connections"
    )
    http_lingering_s: float = bound(
        0.5,
        "a client that still sends when it is refused has this time to read why; closed at once, it sees only a reset",
        metric="kedge_http_connections",
    )
    http_tls_buffer_bytes: int = bound(
        16 * 1024,
        "read buffer of one TLS connection: one record; asyncio's own 256 KiB make 280 MB of 1,000 watches",
        metric="kedge_http_connections",
    )
    http_write_buffer_bytes: int = bound(
        256 * 1024, "unsent bytes of one connection before its writer waits", metric="kedge_http_connections"
    )
    http_list_blocks_bytes_max: int = bound(
        32 * 1024 * 1024,
        "bytes of lists that are kept as JSON for the next list of the same objects",
        metric="kedge_http_list_blocks_bytes",
    )
    http_stalled_s: float = bound(
        60.0,
        "a client that leaves replies unread must read a quarter of its buffer in this time, or is cut off",
        metric="kedge_http_stalled_total",
    )
    http_streams_max: int = bound(
        256, "streams of logs, exec and attach that one server passes on to agents", metric="kedge_http_streams"
    )
    http_stopping_s: float = bound(
        1.0,
        "after SIGTERM clients with an idle connection may still send a request, which gets 503 instead of a reset",
        metric="kedge_http_connections",
    )
    http_drain_s: float = bound(
        20.0, "requests under way may take this long to finish after SIGTERM", metric="kedge_http_connections"
    )

    # -- audit
    audit_file_bytes_max: int = bound(
        32 << 20, "one file of the audit log; then another is begun", metric="kedge_audit_bytes"
    )
    audit_files_max: int = bound(
        8, "files of the audit log; past it the oldest is removed", metric="kedge_audit_files", least=2
    )
    audit_sync_s: float = bound(
        0.5, "a kill or a power failure may lose this much of the audit log", metric="kedge_audit_write_seconds"
    )
    audit_pending_bytes_max: int = bound(
        8 << 20,
        "entries that wait for the disk; past it they are dropped, and past half of it a strict log refuses writes",
        metric="kedge_audit_pending_bytes",
    )
    audit_body_bytes_max: int = bound(
        64 << 10,
        "a body in an entry; a larger one is left out",
        metric="kedge_audit_bodies_left_out_total",
    )
    audit_objects_max: int = bound(
        256,
        "objects that the entry of one deletecollection lists; it has the number of the others",
        metric="kedge_audit_pending_bytes",
    )
    audit_close_s: float = bound(
        10.0, "a stop waits this long for a slow disk to take the last entries", metric="kedge_audit_dropped_total"
    )


ORDER = (
    ("lease_retry_s", "lease_renew_s", "a holder needs several attempts to renew"),
    ("lease_renew_s", "lease_s", "a holder stops before it may be replaced"),
    ("store_request_s", "lease_renew_s", "a renewal must survive one request without a reply"),
    ("node_renew_s", "node_suspect_s", "one missed renewal proves nothing"),
    ("node_suspect_s", "node_unknown_s", "a node is suspected first"),
    ("node_unknown_s", "node_lost_s", "a node is unknown before it is lost"),
    ("node_suspect_s", "node_blind_s", "a shorter gap in observation suspects no node"),
    ("agent_contact_s", "node_lost_s", "an agent stops at-most-one pods before its node may be declared lost"),
    ("node_renew_s", "agent_contact_s", "an agent renews before it stops its pods"),
)
"""Pairs of limits of which the first must be below the second, and why."""


def misordered(limits: Limits) -> Iterator[tuple[str, str, str]]:
    """Pairs that contradict each other: the one that must be lower, the other, the reason.

    A first pause and its longest (`X` and `X_max`) are such a pair too, and may be equal.
    """
    for lower, higher, reason in ORDER:
        if getattr(limits, lower) >= getattr(limits, higher):
            yield lower, higher, reason
    names = {each.name for each in fields(limits)}
    for name in sorted(names):
        longest = f"{name}_max"
        if longest in names and getattr(limits, name) > getattr(limits, longest):
            yield name, longest, "the first pause is not longer than the longest"
