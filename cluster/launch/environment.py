"""The environment variables of Ray's processes, on this machine and on every node of a cluster. None holds a secret:
the token is in a file."""

RAY_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    # Ray then ends the children that a killed worker leaves.
    "RAY_process_group_cleanup_enabled": "true",
    # A replica whose process hangs (SIGSTOP, a driver's fault) cannot be asked to end; without this Serve asks for
    # minutes.
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray runs its workers at niceness 15: an engine must not yield to whatever else the machine does.
    "RAY_worker_niceness": "0",
    # Serve would give a model up after three starts that failed. Ours wait longer each time (`starts/tracker.py`).
    "RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT": "1000000",
    # On a small machine Ray's housekeeping competes with the engine: ours happens half as often or less, and nothing of
    # ours waits for it.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.3",
    "RAY_raylet_report_resources_period_milliseconds": "500",
    "RAY_gcs_pull_resource_loads_period_milliseconds": "5000",
    "RAY_enable_metrics_collection": "false",
}

JOINED_ENVIRONMENT = {
    # How long a node waits for the head before it ends itself, with its replicas and their streams (seconds; Ray's
    # default is 60). They need no head: half a day for somebody to replace it, and an alert (infra/alerts/slo.yaml).
    "RAY_gcs_rpc_server_reconnect_timeout_s": "43200",
    # How long a node that joins waits for a head that reads its store again (seconds).
    "RAY_gcs_server_port_wait_time_s": "120",
    # The head gives a node up when five checks in a row, 3 s apart, had no answer in this time: after 40 s, by Ray's
    # default after 65 s. A node that is given up loses its replicas even if it comes back, so this is not shorter than
    # what gateways wait for an unresponsive replica (LOST_AFTER_S of `gateway/feeds.py`). A pause of half a minute (a
    # machine that moves, a network that looks for another way, a busy head) costs nothing, and one answer in time
    # starts the count again. Threads of gRPC answer, no Python: no garbage collection delays them.
    "RAY_health_check_timeout_ms": "5000",
}
"""What the nodes of a cluster of several also have."""
