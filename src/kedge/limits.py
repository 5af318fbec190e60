"""Every bound, by name: its default, the reason for it, and the metric that shows how near it is.

Limits come with `Env`, so each host can have its own. A bound that is not here does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

_N = TypeVar("_N", int, float)


def bound(default: _N, reason: str, *, metric: str) -> _N:
    """Declare one limit. `metric` is the name of the series to watch beside it."""
    value: _N = field(default=default, metadata={"reason": reason, "metric": metric})
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Units and qualifiers come last in each name. Replace single ones with `dataclasses.replace`."""

    # -- store
    commit_ops_max: int = bound(
        120, "etcd refuses a transaction of more than 128 operations", metric="kedge_store_commit_ops"
    )
    commit_bytes_max: int = bound(
        1_400_000, "etcd refuses a request of more than 1.5 MiB", metric="kedge_store_commit_bytes"
    )
    commit_queue_max: int = bound(
        10_000, "commits waiting for one sync; past this they are shed", metric="kedge_store_commit_queue"
    )
    sync_ops_max: int = bound(
        1_000, "writes that share one sync, so that it does not hold the loop for long", metric="kedge_store_sync_ops"
    )
    sync_bytes_max: int = bound(
        4_000_000,
        "bytes that share one sync, likewise; one commit may be that large alone",
        metric="kedge_store_sync_bytes",
    )
    history_commits_max: int = bound(
        100_000, "old versions live in memory beside the new ones", metric="kedge_store_history_commits"
    )
    history_s: float = bound(
        300.0, "a watcher that was away longer lists again, as in Kubernetes", metric="kedge_store_history_age_seconds"
    )
    compact_every_s: float = bound(
        5.0, "little and often, so that no compaction is long", metric="kedge_store_compaction_seconds"
    )
    compact_rows_max: int = bound(
        500,
        "rows one slice of a compaction may delete before the loop runs on",
        metric="kedge_store_compaction_seconds",
    )
    wal_pages_max: int = bound(
        250, "pages in the write-ahead log before they are moved to the database", metric="kedge_store_wal_pages"
    )
    backup_rows_max: int = bound(
        500, "rows one slice of a backup may write before the loop runs on", metric="kedge_store_backup_seconds"
    )
    alarm_s: float = bound(
        60.0,
        "an alarm that came and went is shown this long, so that somebody sees it",
        metric="kedge_store_alarms_total",
    )
    sync_hold_s_alarm: float = bound(
        0.1, "a sync holds the event loop; lease renewals wait behind it", metric="kedge_store_sync_seconds"
    )
    watch_backlog_max: int = bound(
        10_000, "changes a watcher may be behind before it is cut off", metric="kedge_store_watch_backlog"
    )
    watch_batch_max: int = bound(
        1_000,
        "changes handed to a watcher at once, so that one does not hold the loop",
        metric="kedge_store_watch_batch",
    )
    watch_progress_s: float = bound(
        1.0, "an idle watcher hears how far history has moved this often", metric="kedge_store_watch_progress_total"
    )
    watch_fence_progress_s: float = bound(
        0.05,
        "after a lease changed hands every idle watcher hears so this soon: a new leader waits for it",
        metric="kedge_store_watch_progress_total",
    )
    watch_future_wait_s: float = bound(
        3.0,
        "a watch or read past the newest revision waits this long, then fails",
        metric="kedge_store_future_waits_total",
    )
    store_request_s: float = bound(
        5.0, "a remote store that has not answered by then has an unknown outcome", metric="kedge_store_request_seconds"
    )
    store_connect_s: float = bound(
        1.0, "an endpoint that has not accepted by then is passed over", metric="kedge_store_request_seconds"
    )
    store_reconnect_s_max: float = bound(
        2.0, "pause before a broken watch of the remote store is begun again", metric="kedge_store_reconnects_total"
    )
    store_silence_s: float = bound(
        1.0,
        "a remote watch silent for this long is checked against a read; behind for as long again, it is moved",
        metric="kedge_store_reconnects_total",
    )
    store_watch_lag_max: int = bound(
        256, "revisions a remote watch may be behind before it is told in bulk", metric="kedge_store_reconnects_total"
    )
    store_page_bytes_max: int = bound(
        8 << 20,
        "a big list comes from a remote store in pages of about this size",
        metric="kedge_store_request_seconds",
    )
    store_page_objects_max: int = bound(10_000, "objects in one such page", metric="kedge_store_request_seconds")

    # -- service
    proof_attempts_max: int = bound(
        16, "lost races a write may lose before its caller is told of contention", metric="kedge_service_proof_attempts"
    )
    object_cache_max: int = bound(
        20_000, "decoded objects kept, so that one revision is decoded once", metric="kedge_service_object_cache"
    )
    ledger_cache_max: int = bound(
        10_000, "ledgers kept as read, so that a bind does not decode every claim", metric="kedge_service_ledger_cache"
    )
    operation_window_s: float = bound(
        600.0, "a repeat of an operation id inside it gets the first outcome", metric="kedge_service_operations"
    )
    operations_max: int = bound(
        100_000, "operation ids remembered; under load the window shrinks instead", metric="kedge_service_operations"
    )
    list_page_max: int = bound(
        10_000,
        "objects one page of a selected list may scan before it is handed out",
        metric="kedge_service_list_scanned",
    )
    admission_rounds_max: int = bound(
        2,
        "passes over the mutating policies while they still change each other's work",
        metric="kedge_service_admission_rounds",
    )
    generated_name_attempts_max: int = bound(
        8, "names drawn for one generateName before giving up", metric="kedge_service_generated_names"
    )
    namespace_quotas_max: int = bound(
        16,
        "quotas of one sort in a namespace: a write pays them all, and must fit in one commit",
        metric="kedge_service_namespace_quotas",
    )
    gang_members_max: int = bound(
        1_000, "members of one gang: its record names each of them", metric="kedge_service_gang_members"
    )
    gang_chunk_max: int = bound(
        12,
        "members of a gang that reserve in one commit: each costs six operations, and the quotas come on top",
        metric="kedge_service_gang_chunk",
    )

    # -- leases
    lease_s: float = bound(
        15.0, "a holder that was not seen to renew for so long may be replaced", metric="kedge_runtime_leading"
    )
    lease_renew_s: float = bound(
        10.0,
        "a holder that could not renew for so long stops, before it may be replaced",
        metric="kedge_runtime_renewal_seconds",
    )
    lease_retry_s: float = bound(
        2.0, "pause between renewals, and between looks of those who wait", metric="kedge_runtime_renewal_seconds"
    )

    # -- client
    client_in_flight_max: int = bound(
        32, "many keys that fail at once must not become a storm of requests", metric="kedge_client_in_flight"
    )
    client_attempts_max: int = bound(
        5, "then the caller changes its state instead of trying for ever", metric="kedge_client_attempts_total"
    )
    client_deadline_s: float = bound(
        30.0, "past it the intent is old: the caller decides anew", metric="kedge_client_request_seconds"
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
        2.0, "how long an open breaker holds requests off, before one may probe", metric="kedge_client_breaker_open"
    )

    # -- watcher and cache
    watch_backoff_s: float = bound(
        0.2, "the first pause before a watch or list is tried again; it doubles", metric="kedge_watch_backoff_seconds"
    )
    watch_backoff_s_max: float = bound(
        30.0,
        "the longest such pause, so that a blip of many does not become a storm",
        metric="kedge_watch_backoff_seconds",
    )
    watch_healthy_s: float = bound(
        30.0,
        "a stream that lived this long is healthy: its earlier failures are forgotten",
        metric="kedge_watch_backoff_seconds",
    )
    watch_request_s: float = bound(
        60.0, "a page or a new stream that has not come by then is given up", metric="kedge_watch_list_seconds"
    )
    watch_probe_s: float = bound(
        5.0,
        "how often the authority is asked how far it is; a stream behind that answer for as long again is dead",
        metric="kedge_watch_probes_total",
    )
    watch_silence_s: float = bound(
        15.0,
        "a stream that says nothing, and cannot be probed, for this long is dead",
        metric="kedge_watch_transitions_total",
    )
    watch_slice_max: int = bound(
        256, "events taken from a stream before the rest of the process may run", metric="kedge_watch_events_total"
    )
    relist_page_max: int = bound(2_000, "objects asked for in one page of a list", metric="kedge_watch_pages_total")
    relist_every_s: float = bound(
        900.0,
        "a stream may lose an event and never know: now and then the cache is compared",
        metric="kedge_watch_transitions_total",
    )
    tombstones_max: int = bound(10_000, "deleted objects a cache remembers", metric="kedge_cache_tombstones")
    tombstone_s: float = bound(600.0, "how long it remembers them", metric="kedge_cache_tombstones")
    received_log_max: int = bound(
        10_000,
        "what a cache was given, kept in order so that a decision can be run again",
        metric="kedge_cache_received_log",
    )
    received_pinned_max: int = bound(
        50_000,
        "the same while kept records pin it; past this the oldest pins are lost",
        metric="kedge_cache_received_log",
    )
    cache_wait_s: float = bound(
        10.0, "how long a reader waits for a revision, unless it says otherwise", metric="kedge_cache_waiting"
    )
    floor_relist_s: float = bound(
        5.0,
        "a floor unmet for this long: the cache's watcher is asked to list again",
        metric="kedge_cache_floor_relists_total",
    )
    floor_wait_s: float = bound(
        30.0, "a floor unmet for this long fails its key, which is tried again later", metric="kedge_cache_floors"
    )
    floor_objects_max: int = bound(
        64,
        "objects a key's floors name one by one; more wait for the newest revision instead",
        metric="kedge_cache_floors",
    )

    # -- controllers
    resync_every_s: float = bound(
        600.0,
        "a wake-up may be missed and nobody know: now and then every key is looked at",
        metric="kedge_runtime_resyncs_total",
    )
    stop_s: float = bound(
        15.0, "how long a stop waits for what runs, before it is cancelled", metric="kedge_runtime_stop_pending"
    )

    # -- queue
    queue_keys_max: int = bound(
        200_000,
        "keys queued or running; past it adds are refused, and a resync is owed when there is room",
        metric="kedge_queue_keys",
    )
    queue_wakes_max: int = bound(
        8, "different wake-ups kept for one run; of the rest only the number", metric="kedge_queue_wakes_dropped_total"
    )
    queue_backoff_s: float = bound(
        0.1, "the first pause of a key that failed; it doubles, with jitter", metric="kedge_queue_backoff_seconds"
    )
    queue_backoff_s_max: float = bound(
        60.0, "the longest one: so late may a key notice that its trouble is over", metric="kedge_queue_backoff_seconds"
    )
    queue_aging_s: float = bound(
        30.0, "a key ready for longer goes before higher priorities, now and then", metric="kedge_queue_oldest_seconds"
    )
    queue_aged_every: int = bound(
        4, "at most one item in so many is given away for its age", metric="kedge_queue_aged_total"
    )
    queue_service_s_min: float = bound(
        0.001, "what a run costs its tenant at least, however short it is", metric="kedge_queue_service_seconds_total"
    )
    queue_debt_s_max: float = bound(
        10.0,
        "how far a tenant may be charged ahead of the others: one endless run must not banish it",
        metric="kedge_queue_service_seconds_total",
    )
    queue_slow_s: float = bound(
        0.05,
        "a tenant whose runs are longer on average may not take every worker",
        metric="kedge_queue_service_seconds_total",
    )
    queue_slow_share_max: float = bound(
        0.75, "of the workers, for all such tenants together; 1 reserves none", metric="kedge_queue_slow_running"
    )
    queue_resync_spread_s: float = bound(
        60.0, "keys of one resync are spread over so long, so that none is a storm", metric="kedge_queue_resyncs_total"
    )
    queue_resync_burst: int = bound(
        1_000, "keys a resync adds before the loop runs on", metric="kedge_queue_resyncs_total"
    )
    queue_loop_runs_max: int = bound(
        10, "runs in a row for nothing, put down to one wake-up, that make a loop", metric="kedge_queue_loops_total"
    )
    queue_loop_echoes_max: int = bound(
        30,
        "likewise for runs that write anew, each woken by the last one's write: steps may look like that for a while",
        metric="kedge_queue_loops_total",
    )
    queue_loop_gap_s: float = bound(
        5.0, "runs that change nothing and are further apart are no loop", metric="kedge_queue_looping"
    )
    queue_fight_gap_s: float = bound(
        600.0, "runs that write the same again and are further apart are no fight", metric="kedge_queue_looping"
    )
    queue_loop_hold_s: float = bound(
        0.5, "the first pause of a looping key; it doubles, with jitter", metric="kedge_queue_holds_total"
    )
    queue_loop_hold_s_max: float = bound(60.0, "the longest one", metric="kedge_queue_holds_total")
    queue_loop_memory: int = bound(
        16, "fingerprints of a key's last writes and inputs that are kept", metric="kedge_queue_histories"
    )
    queue_loop_keys_max: int = bound(
        20_000, "keys whose last runs are remembered, the latest first", metric="kedge_queue_histories"
    )

    # -- decisions
    decisions_kept_max: int = bound(
        10_000,
        "records in memory, each with the versions it read; older ones are in the log",
        metric="kedge_decisions_held",
    )
    decisions_sample_every: int = bound(
        16,
        "of the records that no rule keeps, one in so many is kept all the same",
        metric="kedge_decisions_kept_total",
    )
    decision_rows_max: int = bound(
        20_000,
        "rows of controller, verb, kind and field that are counted; what needs more is one row, `other`",
        metric="kedge_decisions_rows",
    )
    decision_writers_max: int = bound(
        100_000, "versions whose decision can be looked up; the newest", metric="kedge_decisions_writers"
    )
    decision_windows_max: int = bound(
        64, "windows open at once: each is asked about every decision", metric="kedge_decisions_windows"
    )
    decision_window_s_max: float = bound(
        86_400.0, "a window that nobody closes ends all the same", metric="kedge_decisions_windows"
    )
    decision_log_bytes_max: int = bound(
        256 << 20,
        "what the log may take of the disk; past it the oldest segment goes",
        metric="kedge_decisions_log_bytes",
    )
    decision_log_segment_bytes_max: int = bound(
        16 << 20,
        "one segment: little enough to lose at once, enough to write a version once for many records",
        metric="kedge_decisions_log_segment_bytes",
    )
    decision_log_record_bytes_max: int = bound(
        2 << 20,
        "what one record may add; a larger one is kept without the objects it read, and says so",
        metric="kedge_decisions_log_stripped_total",
    )
    decision_log_pending_bytes_max: int = bound(
        1 << 20,
        "bytes not yet written; past it a record is written by whoever adds it",
        metric="kedge_decisions_log_pending_bytes",
    )
    decision_log_sync_s: float = bound(
        1.0, "so much of the log may be lost with the machine's power", metric="kedge_decisions_log_sync_seconds"
    )

    # -- workloads
    pod_burst: int = bound(
        100,
        "pods one look at a workload may make or end, so that others get their turn",
        metric="kedge_workload_acts_total",
    )
    drain_s: float = bound(
        10.0,
        "a surplus replica that nobody confirmed to be drained is deleted after so long",
        metric="kedge_workload_acts_total",
    )
    ghost_look_s: float = bound(
        5.0,
        "how often to look whether a copy that was deleted by force has ended; only for those that ask for at-most-one",
        metric="kedge_workload_ghosts_total",
    )
    job_backoff_s: float = bound(
        10.0, "the pause of a Job after its first failed pod in a row; it doubles", metric="kedge_workload_acts_total"
    )
    job_backoff_s_max: float = bound(600.0, "the longest such pause", metric="kedge_workload_acts_total")
    job_uncounted_max: int = bound(
        500, "ended pods a Job's status names while they are being counted", metric="kedge_workload_uncounted_total"
    )

    # -- autoscaler and rollouts
    autoscaler_look_s: float = bound(
        15.0, "pause between two looks at an autoscaler, as in Kubernetes", metric="kedge_autoscaler_plans_total"
    )
    autoscaler_unserved_max: int = bound(
        10,
        "replicas asked for beyond those that are ready: whatever is behind, more of it is not made",
        metric="kedge_autoscaler_plans_total",
    )
    autoscaler_cooldown_s: float = bound(
        15.0, "pause after a change of size before more is asked for", metric="kedge_autoscaler_plans_total"
    )
    autoscaler_tolerance_milli: int = bound(
        100, "a tenth off the target is on target, as in Kubernetes", metric="kedge_autoscaler_plans_total"
    )
    autoscaler_sample_s: float = bound(
        60.0, "usage measured longer ago is missing", metric="kedge_autoscaler_plans_total"
    )
    autoscaler_start_s: float = bound(
        300.0,
        "in its first minutes a pod's usage counts only once it was measured while the pod was ready",
        metric="kedge_autoscaler_plans_total",
    )
    autoscaler_history_max: int = bound(
        32, "pieces of the past in an autoscaler's status; older ones are merged", metric="kedge_autoscaler_plans_total"
    )
    autoscaler_cache_age_s: float = bound(
        45.0, "caches older than this give no reason to add", metric="kedge_autoscaler_plans_total"
    )
    rollout_look_s: float = bound(
        5.0, "pause between two looks at a rollout that is under way", metric="kedge_rollout_plans_total"
    )
    rollout_regress_s: float = bound(
        30.0,
        "a regression that lasts so long is one: rollouts make pods wait for a moment",
        metric="kedge_rollout_plans_total",
    )

    # -- scheduler
    scheduler_shapes_max: int = bound(
        256,
        "shapes of pods whose masks and scores are kept; each holds a few bytes a node",
        metric="kedge_scheduler_shapes",
    )
    scheduler_changes_max: int = bound(
        4_096,
        "changed rows remembered for shapes that were not asked for; one further behind starts anew",
        metric="kedge_scheduler_changes",
    )
    scheduler_repair_max: int = bound(
        32, "rows repaired one by one; with more, all are computed at once", metric="kedge_scheduler_repairs"
    )
    scheduler_top_max: int = bound(
        5, "nodes whose scores an explanation lists with their parts", metric="kedge_scheduler_explanations"
    )
    scheduler_backoff_s: float = bound(
        0.5, "the first pause of a pod whose attempt failed; it doubles, with jitter", metric="kedge_scheduler_pending"
    )
    scheduler_backoff_s_max: float = bound(10.0, "the longest one", metric="kedge_scheduler_pending")
    scheduler_flush_s: float = bound(
        300.0,
        "a pod that waited so long for what could help it is tried anyhow: a hint may be wrong",
        metric="kedge_scheduler_flush_age_seconds",
    )
    scheduler_binds_max: int = bound(
        256, "binds under way: enough to share syncs, few enough to be undone", metric="kedge_scheduler_binds_in_flight"
    )
    scheduler_burst_max: int = bound(
        128,
        "attempts in a row before the rest of the process may run, of which one that comes to nothing counts for eight:"
        " with fewer, pods that come many at once outrun the scheduler",
        metric="kedge_scheduler_attempt_seconds",
    )
    scheduler_assumed_s: float = bound(
        30.0,
        "a bind that was made and is not seen in the cache by then is read at the authority",
        metric="kedge_scheduler_assumed",
    )
    scheduler_refusals_max: int = bound(
        5, "refusals of one pod by one node before the pair is quarantined", metric="kedge_scheduler_quarantined"
    )
    scheduler_quarantine_s: float = bound(
        300.0, "how long such a pair is not tried again", metric="kedge_scheduler_quarantined"
    )
    scheduler_explained_s: float = bound(
        10.0,
        "a pod's condition and Event are written again no sooner: the counts in them change with every node",
        metric="kedge_scheduler_told_total",
    )

    # -- nodes
    node_suspect_s: float = bound(
        20.0,
        "a node silent for so long gets no new pods: two renewals were missed, which proves nothing",
        metric="kedge_nodes",
    )
    node_unknown_s: float = bound(
        40.0, "silent for so long, what runs there is unknown: its pods get no work", metric="kedge_nodes"
    )
    node_lost_s: float = bound(
        120.0,
        "silent for so long it may be given up: its agent stopped what asks for at-most-one long before",
        metric="kedge_nodes",
    )
    node_blind_s: float = bound(
        45.0,
        "an observer whose sight was broken for longer starts to count silence anew; above node_suspect_s",
        metric="kedge_nodes_blind_total",
    )
    zone_blind_min: int = bound(
        3, "nodes of a zone that must be silent at once before the zone, not they, is suspected", metric="kedge_nodes"
    )
    zone_blind_share: float = bound(
        0.55, "share of a zone's nodes that must be silent at once, likewise", metric="kedge_nodes"
    )
    node_loss_every_s: float = bound(
        10.0, "pause between two nodes of one zone that are given up", metric="kedge_nodes_lost_total"
    )
    node_drain_retry_s: float = bound(
        5.0, "pause before a drain asks again for what a budget refused", metric="kedge_node_acts_total"
    )

    # -- upkeep
    orphan_s: float = bound(
        40.0,
        "what seems orphaned must seem so for this long before it is asked about: others may be at it",
        metric="kedge_repairs_total",
    )
    repair_every_s: float = bound(
        60.0, "how often accounts are compared with what they account for", metric="kedge_repairs_total"
    )
    finalizer_stuck_s: float = bound(
        300.0,
        "a deletion that waits for a finalizer for longer is reported: its controller may be gone",
        metric="kedge_finalizers_stuck",
    )
    namespace_retry_s: float = bound(
        5.0, "pause before a namespace that is not empty yet is looked at again", metric="kedge_namespaces_ending"
    )
    budget_again_s: float = bound(
        1.0, "a budget waits for the pods it names to be seen leaving, and looks again", metric="kedge_budgets_allowed"
    )
    slice_endpoints_max: int = bound(
        100, "endpoints in one slice, so that one change rewrites few of them", metric="kedge_endpoint_slices"
    )

    # -- agent
    node_lease_s: float = bound(
        40.0, "what a node's lease says of itself: for how long it speaks", metric="kedge_agent_contact_seconds"
    )
    node_renew_s: float = bound(
        10.0, "pause between renewals of a node's lease, and the time for one", metric="kedge_agent_contact_seconds"
    )
    agent_contact_s: float = bound(
        30.0,
        "a node that renewed nothing for so long stops what asks for at-most-one, well before it may be called lost",
        metric="kedge_agent_contact_seconds",
    )
    agent_proof_s: float = bound(
        2.0, "a proof that a pod may be started is too old after so long", metric="kedge_agent_retries_total"
    )
    agent_retry_s: float = bound(1.0, "first pause after something failed", metric="kedge_agent_retries_total")
    agent_retry_s_max: float = bound(30.0, "the longest one", metric="kedge_agent_retries_total")
    agent_restart_s: float = bound(
        10.0, "pause before a container's second restart; it doubles", metric="kedge_agent_starts_total"
    )
    agent_restart_s_max: float = bound(300.0, "the longest one", metric="kedge_agent_starts_total")
    agent_restart_reset_s: float = bound(
        600.0, "one that ran for so long has its earlier failures forgiven", metric="kedge_agent_starts_total"
    )
    agent_audit_s: float = bound(
        60.0, "how often an agent looks for claims that nothing stands for", metric="kedge_agent_audits_total"
    )
    agent_usage_s: float = bound(
        5.0,
        "usage is a rate over at least so long: over less, one burst looks like load",
        metric="kedge_agent_measurements_total",
    )
    agent_measure_s: float = bound(
        1.0,
        "time for a driver to say what its processes use; a heartbeat waits no longer for it",
        metric="kedge_agent_measurements_total",
    )
    scheduler_preempt_max: int = bound(
        100,
        "places compared when room is made for a pod: more are seldom better",
        metric="kedge_scheduler_preempted_total",
    )
    gang_wait_s: float = bound(
        60.0, "a gang that is not whole by then gives its places back", metric="kedge_scheduler_gangs_total"
    )

    # -- http
    http_connections_max: int = bound(
        4_000, "open connections; each holds about 42 KiB with TLS", metric="kedge_http_connections"
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
    http_request_s: float = bound(
        30.0,
        "from the first byte of a request to its last; slower clients get 408",
        metric="kedge_http_unreadable_total",
    )
    http_idle_s: float = bound(
        300.0, "a connection without a request is closed after this", metric="kedge_http_connections"
    )
    http_write_buffer_bytes: int = bound(
        256 * 1024, "unsent bytes of one connection before its writer waits", metric="kedge_http_connections"
    )
    http_drain_s: float = bound(
        20.0, "requests under way may take this long to finish after SIGTERM", metric="kedge_http_connections"
    )
