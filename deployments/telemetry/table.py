"""The table of metrics: what each is called, which process exports it, its labels, what it says. `docs/metrics.md` and
what is exported (`exposition.py`) follow from it; a new metric is an entry here, and a line where its value is known.

`python -m deployments.telemetry.table` prints the tables of `docs/metrics.md`.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial

PROMPT_BOUNDS = (64, 256, 1_024, 4_096, 16_384, 65_536)
TTFT_BOUNDS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 300)
ITL_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5),
)
E2E_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
RTT_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
STEP_BOUNDS_S = (0.002, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)
LAG_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
READ_BOUNDS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
UNACCOUNTED_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.1)
COSINE_BOUNDS = (0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 0.999)
ERROR_BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


class MetricKind(StrEnum):
    """The value of a counter's name ends with `_total`."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Exporter(StrEnum):
    """Who exports a metric, on a `/metrics` of its own. The directory counts for the whole cell; the gateway of the
    lowest id tells it."""

    GATEWAY = "Each gateway"
    OWNER = "The model's owner"
    ONE = "One gateway of the cell"
    ENGINE = "Each replica, on its engine's port"
    BOTH = "Each gateway and each replica"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """`labels` in their order; `bounds` are a histogram's."""

    kind: MetricKind
    exporter: Exporter
    short_name: str
    labels: tuple[str, ...]
    text: str
    bounds: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """As Prometheus' client wants it: without a counter's `_total`."""
        return f"raylane_{self.short_name}"

    @property
    def about(self) -> tuple[str, str, tuple[str, ...]]:
        """What an instrument of Prometheus' client is made of."""
        return self.name, self.text, self.labels

    @property
    def shown(self) -> str:
        """The name that Prometheus has; of a histogram, its beginning."""
        return f"{self.name}_total" if self.kind is MetricKind.COUNTER else self.name

    @property
    def row(self) -> str:
        """Its line in `docs/metrics.md`."""
        labels = ", ".join(f"`{label}`" for label in self.labels)
        return f"| `{self.shown}` | {self.kind} | {labels} | {self.text} |"


Sample = tuple[Metric, tuple[str, ...], float | list[float]]
"""Its labels' values, and its own. Of a histogram: the counts between its bounds and above them, last the sum of all
values."""

_counter, _gauge, _histogram = (partial(Metric, kind) for kind in MetricKind)
_GATEWAY, _OWNER, _ONE, _ENGINE, _BOTH = Exporter
_MODEL, _LANE, _PEER = ("model",), ("model", "lane"), ("model", "peer")
_SLO = ("model", "class", "slo")
_LENGTH, _TENANT, _ENDED = ("model", "prompt_bucket"), ("tenant", "model"), ("kind", "model", "cause")
_BILL = ("model", "group", "region", "tenant", "class", "share")

# Requests, counted once as their ledger closes.
TTFT = _histogram(
    _GATEWAY,
    "ttft_seconds",
    _LENGTH,
    "From arrival to the first token. Of an answer that is not streamed: until the engine has produced the first token "
    "of each sequence.",
    TTFT_BOUNDS_S,
)
ITL = _histogram(
    _GATEWAY, "itl_seconds", _LENGTH, "Between two events of a stream, of `stream_interval` tokens each.", ITL_BOUNDS_S
)
TPOT = _histogram(_GATEWAY, "tpot_seconds", _LENGTH, "Per output token after the first.", ITL_BOUNDS_S)
E2E = _histogram(_GATEWAY, "e2e_seconds", _LENGTH, "From arrival to the end of the answer.", E2E_BOUNDS_S)
QUEUE_WAIT = _histogram(_GATEWAY, "queue_wait_seconds", _LENGTH, "In the lane, until placed.", TTFT_BOUNDS_S)
STAGES = _histogram(_GATEWAY, "stage_seconds", (*_MODEL, "stage"), "Time by stage of a request.", TTFT_BOUNDS_S)
UNACCOUNTED = _histogram(
    _GATEWAY, "unaccounted_seconds", _MODEL, "Time of a request that no stage explains.", UNACCOUNTED_BOUNDS_S
)
READ = _histogram(_GATEWAY, "read_seconds", _MODEL, "CPU time to read a body and estimate its tokens.", READ_BOUNDS_S)
PROMPT_ERROR = _histogram(
    _GATEWAY,
    "prompt_estimate_error_ratio",
    _MODEL,
    "Error of the estimated prompt tokens, relative to those that the engine counted.",
    ERROR_BOUNDS,
)
REQUESTS = _counter(
    _GATEWAY, "requests", (*_MODEL, "path", "outcome", "status", "error"), "Requests, by how they ended."
)
RESUBMITTED = _counter(
    _GATEWAY,
    "resubmitted",
    (*_MODEL, "reason"),
    "Requests placed again because their replica (`replica_lost`) or its engine (`engine_died`) died before the client "
    "had received a byte.",
)
DEGRADED = _counter(
    _GATEWAY,
    "degraded",
    (*_MODEL, "class", "rung", "reason"),
    "Requests that got less than they asked for of the model: `clamp` (a shorter answer), `fallback` (another model "
    "answered), `shed` (none).",
)
EXTERNAL_REQUESTS = _counter(
    _GATEWAY,
    "external_requests",
    (*_MODEL, "outcome"),
    "Requests that were meant for the external tier: `answered`; `broke` after their answer had begun; `failed` or "
    "`refused` by it; kept from it by the tenant's `budget` or the `breaker`.",
)
TOKENS = _counter(
    _GATEWAY, "tokens", (*_MODEL, "kind"), "Tokens that the engine counted: `in`, `out`, `cached` (a part of `in`)."
)
LANE_TOKENS = _counter(
    _GATEWAY, "lane_tokens", (*_LANE, "kind"), "Prompt tokens: `in`, `cached` (held by a prefix cache)."
)
CLIENT_RTT = _histogram(
    _GATEWAY,
    "client_rtt_seconds",
    _MODEL,
    "Round trip to the client as a request ended, by the kernel (Linux); behind a load balancer it is the balancer's.",
    RTT_BOUNDS_S,
)
SLO_REQUESTS = _counter(
    _GATEWAY,
    "slo_requests",
    (*_SLO, "result"),
    "Requests that `met` or `missed` an SLO (`ttft`, `itl`) of their class: the first token came in time, the mean "
    "time between tokens was at most `itl_ms`. 0 from the start. A client that left in time, or got a 4xx, is neither.",
)
SLO_TARGET = _gauge(_GATEWAY, "slo_target_ratio", _SLO, "The share that is to meet it (`attainment`).")
MODEL_READY = _gauge(_GATEWAY, "model_ready", _MODEL, "1 while a replica takes requests.")
MODEL_MIN_REPLICAS = _gauge(_GATEWAY, "model_min_replicas", _MODEL, "The fewest that it may have; 0: it may have none.")
MODEL_INFO = _gauge(_GATEWAY, "model_info", (*_MODEL, "owner"), "1; who owns the model, for rules to join.")
TENANT_INFO = _gauge(_GATEWAY, "tenant_info", ("tenant", "owner"), "1; who owns the tenant.")
NO_USAGE = _counter(_GATEWAY, "requests_without_usage", _MODEL, "Requests whose engine statistics never came.")
TENANT_REQUESTS = _counter(
    _GATEWAY,
    "tenant_requests",
    (*_TENANT, "outcome"),
    "Requests by tenant; the first hundred have their own label, the rest are `other`.",
)
TENANT_TOKENS = _counter(
    _GATEWAY, "tenant_tokens", (*_TENANT, "kind"), "Tokens by tenant: `in`, `out`, `cached` (a part of `in`)."
)
CACHE_LOOKUPS = _counter(
    _GATEWAY,
    "cache_lookups",
    (*_MODEL, "result"),
    "Requests for which a kept answer was looked for, with `gateway.cache`: `hit`, `alike` (that to an alike first "
    "turn), `miss`. Those answered are in no histogram of latency.",
)
CACHE_SIMILARITY = _histogram(
    _GATEWAY,
    "cache_similarity_ratio",
    (*_MODEL, "marks"),
    "The cosine of a first turn and the nearest kept one, with all else the same; whether their numbers, names and "
    "negations are `equal` or `differ`.",
    COSINE_BOUNDS,
)
CACHE_SHADOW_HITS = _counter(
    _GATEWAY, "cache_shadow_hits", _MODEL, "First turns that would have been answered, were `semantic.serve` on."
)
CACHE_SAVED = _counter(
    _GATEWAY,
    "cache_saved_tokens",
    (*_MODEL, "kind"),
    "Tokens that no engine had to work for, since an answer was kept: `in`, `out`, as the engine had counted them.",
)
CACHE_BYTES = _gauge(_GATEWAY, "cache_bytes", (), "Answers that are kept, or being written down.")

# The gateway itself.
LOOP_LAG = _histogram(
    _GATEWAY,
    "event_loop_lag_seconds",
    (),
    "Delay of the event loop; above 50 ms the gateway is the bottleneck.",
    LAG_BOUNDS_S,
)
DIRECTORY_AGE = _gauge(
    _GATEWAY,
    "directory_age_seconds",
    (),
    "How long ago the directory, which is on Ray's head, last answered; up to 5 s while all is well.",
)
LOG_FAILING = _gauge(_BOTH, "log_failing", ("log",), "1 while a log cannot be written.")
LOG_LINES_LOST = _counter(_BOTH, "log_lines_lost", ("log",), "Lines of a log that could not be written.")
OWNER_EPOCH = _gauge(
    _GATEWAY, "owner_epoch", _MODEL, "The epoch under which this gateway owns the model; 0: it does not."
)
OWNER_KNOWN = _gauge(_GATEWAY, "owner_known", _MODEL, "1 while this gateway can reach an owner.")
TAKEOVERS = _counter(_GATEWAY, "takeovers", _MODEL, "How often this gateway became the owner.")
HANDED_ON = _counter(_GATEWAY, "handed_on", _MODEL, "Waiting requests passed to a new owner.")
RECONCILED = _counter(_GATEWAY, "reconciled_leases", _MODEL, "Leases corrected by a replica's report.")
LOST_REQUESTS = _counter(
    _GATEWAY, "lost_requests", _MODEL, "Running requests that died with their gateway, as their replicas report."
)
LOST_TOKENS = _counter(_GATEWAY, "lost_tokens", _MODEL, "The tokens booked for them.")

# The scheduler's state at the moment of the scrape.
WAITING_REQUESTS = _gauge(_OWNER, "waiting_requests", _LANE, "Requests that wait.")
WAITING_TOKENS = _gauge(_OWNER, "waiting_tokens", _LANE, "Work that waits, in tokens.")
WAITING_SECONDS = _gauge(_OWNER, "waiting_seconds", _LANE, "Work that waits, divided by the measured rate.")
OLDEST_WAIT = _gauge(_OWNER, "oldest_wait_seconds", _LANE, "How long the lane's head has waited.")
EXPECTED_WAIT = _gauge(
    _OWNER, "expected_wait_seconds", (*_LANE, "level"), "The wait estimate that a new request would get: `p50`, `p95`."
)
WAIT_ESTIMATES = _counter(
    _OWNER,
    "wait_estimates",
    (*_LANE, "held"),
    "Wait estimates: `yes` if the wait was within the p95, `no` if it was longer, `cancelled` if the request was "
    "cancelled or no replica answered for a part of the wait. `yes / (yes + no)` should be near 0.95.",
)
PROMOTED = _counter(_OWNER, "promoted", _MODEL, "Requests placed after their lane's `max_wait_s`.")
SERVICE_RATE = _gauge(_OWNER, "service_tokens_per_second", _MODEL, "The measured service rate, in booked tokens.")
OUTPUT_ERROR = _gauge(
    _OWNER,
    "output_estimate_error_ratio",
    _MODEL,
    "Mean error of the expected output tokens, relative to the real ones.",
)
OTHER_LANE = _gauge(
    _OWNER, "other_lane_ratio", _MODEL, "The share of requests that turned out to belong to another lane."
)
PREFIX_TRUST = _gauge(_OWNER, "prefix_trust_ratio", _MODEL, "How much of the cache credit proved real.")
LEASES = _gauge(_OWNER, "leases", (*_MODEL, "replica", "state"), "Leases held now.")
BOOKED_KV_TOKENS = _gauge(_OWNER, "booked_kv_tokens", (*_MODEL, "replica"), "KV tokens booked by leases.")
LEASES_ENDED = _counter(
    _OWNER,
    "leases_ended",
    (*_MODEL, "ending"),
    "Leases that ended, by how.",
)
REJECTIONS = _counter(_OWNER, "rejections", (*_LANE, "cause"), "Requests turned away.")
REPLICA_GROUP = _gauge(
    _OWNER, "replica_group", (*_MODEL, "group", "replica"), "1 for each replica of a model with several groups."
)
GROUP_RATE = _gauge(
    _OWNER, "group_tokens_per_second", (*_MODEL, "group"), "The measured service rate of a group, in booked tokens."
)
GROUP_FINISHED = _counter(_OWNER, "group_finished_requests", (*_MODEL, "group"), "Requests that finished on a group.")
GROUP_WAITING = _gauge(
    _OWNER,
    "group_waiting_requests",
    (*_LANE, "groups"),
    "Requests that wait, by their lane and the groups that may serve them, in order.",
)
SUSPECTS = _gauge(
    _OWNER,
    "suspects",
    (*_MODEL, "standing"),
    "Request bodies that a replica was running when it died: `suspect`, or `banned` after two deaths.",
)
WAITING_ASIDE = _gauge(_OWNER, "waiting_aside", _MODEL, "Requests that wait until a suspect has been tried.")
QUERIES_OF_DEATH = _counter(
    _OWNER, "queries_of_death", _MODEL, "Request bodies banned after two replicas died running them."
)

# Operators and autoscalers. Of a model with several groups, `model` is `MODEL@GROUP`.
CONTROL = _gauge(_OWNER, "control", (*_MODEL, "kind"), "Replicas that an operator holds (at least) or pins (exactly).")
CONTROL_UNTIL = _gauge(_OWNER, "control_until_seconds", (*_MODEL, "kind"), "When that ends (Unix time).")
LADDER_STEPS = _gauge(_OWNER, "ladder_steps", _MODEL, "Steps of the ladder that are in force.")
CORDONED = _gauge(_OWNER, "cordoned_replicas", _MODEL, "Replicas that an operator keeps new work off.")
OPERATOR_ACTS = _counter(
    _OWNER, "operator_acts", (*_MODEL, "kind"), "Commands that operators gave, as the audit has them."
)
REPLICAS = _gauge(
    _OWNER,
    "replicas",
    (*_MODEL, "state"),
    "Replicas as their autoscaler sees them: `requested`, `applied`, `ready`, `starting`.",
)
SCALING_DECIDED = _gauge(
    _OWNER, "scaling_decided_seconds", _MODEL, "When the autoscaler last decided something new (Unix time)."
)
SCALING_DECISIONS = _counter(_OWNER, "scaling_decisions", (*_MODEL, "reason"), "Its decisions.")
SCALING_ALARMS = _counter(_OWNER, "scaling_alarms", (*_MODEL, "kind"), "What was wrong when it decided.")
SCALING_OVERFLOW = _gauge(
    _OWNER,
    "scaling_overflow",
    (*_MODEL, "group"),
    "The share of a group's demand that it cannot carry, which the next group is to carry; only of models with several "
    "groups.",
)

# What the directory counts for the whole cell.
DEPARTURES = _counter(
    _ONE,
    "departures",
    (*_ENDED, "planned"),
    "Replicas, gateways, controllers and directories that ended.",
)
DEPARTED_REQUESTS = _counter(
    _ONE,
    "departed_requests",
    (*_ENDED, "fate"),
    "Requests that ran there: `broken` (the client got an error or a reset) or `placed_again`.",
)
DEPARTED_TOKENS = _counter(_ONE, "departed_tokens", _ENDED, "The tokens booked for them.")
STARTING = _gauge(_ONE, "starting_replicas", (*_MODEL, "phase"), "Replicas that start now.")
STARTS = _counter(_ONE, "starts", _MODEL, "Starts that went well.")
START_SECONDS = _counter(_ONE, "start_seconds", (*_MODEL, "phase"), "The summed time of all starts that went well.")
LAST_START = _gauge(_ONE, "last_start_seconds", (*_MODEL, "phase"), "The time of the model's last start.")
FAILED_STARTS = _counter(_ONE, "failed_starts", (*_MODEL, "phase"), "Starts that failed.")
COST_USD = _counter(_ONE, "cost_usd", _BILL, "What the settled hours cost.")
COST_SECONDS = _counter(_ONE, "cost_replica_seconds", _BILL, "The replica-seconds of the settled hours.")
COST_TOKENS = _counter(_ONE, "cost_tokens", (*_BILL, "kind"), "The tokens of the settled hours: `prompt`, `output`.")

# Peer cells.
HAND_OVERS = _counter(
    _GATEWAY, "hand_overs", (*_PEER, "reason"), "Requests of this gateway's clients that a peer took, by why they went."
)
HOPS_REJECTED = _counter(_GATEWAY, "hops_rejected", (*_PEER, "reason"), "Requests that a peer did not take.")
HOPS_BROKEN = _counter(
    _GATEWAY,
    "hops_broken",
    (*_PEER, "stage"),
    "Hops whose peer was lost, by how far they were: `offered`, `taken`, `answering`.",
)
HOPS_IN_FLIGHT = _gauge(_GATEWAY, "hops_in_flight", ("peer",), "Requests that the peer has now.")
GUESTS = _counter(_GATEWAY, "guests", _PEER, "Requests of peers that were taken here.")
GUESTS_REFUSED = _counter(_OWNER, "guests_refused", (*_MODEL, "reason"), "Requests of peers that were refused.")
STAYS = _counter(_OWNER, "stays", (*_MODEL, "reason"), "Requests that stayed at home when they came, by why.")
DIGEST_AGE = _gauge(_OWNER, "digest_age_seconds", _PEER, "How old the peer's last digest is.")
PEER_RTT = _gauge(_OWNER, "peer_rtt_seconds", _PEER, "The round trip to the peer.")
DIGESTS_UNANSWERED = _counter(_GATEWAY, "digests_unanswered", ("peer",), "Questions for a digest without an answer.")
DIGEST_REFUSALS = _counter(_GATEWAY, "digest_refusals", ("peer", "reason"), "Digests that were not believed.")
PEER_CALLS_REFUSED = _counter(_GATEWAY, "peer_calls_refused", ("peer", "reason"), "Calls that are no peer's.")

# Files that commands publish.
SIMULATOR_ERROR_KNOWN = _gauge(
    _GATEWAY, "simulator_error_known", (), "1: `raylane rehearse` has published its error (`gateway.simulator_error`)."
)
SIMULATOR_ERROR = _gauge(
    _GATEWAY, "simulator_error_ratio", (*_MODEL, "load", "figure"), "The simulator's error: simulated / live - 1."
)
SIMULATOR_SPREAD = _gauge(
    _GATEWAY, "simulator_live_spread_ratio", (*_MODEL, "load", "figure"), "How far the live runs were apart."
)
SIMULATOR_CAPACITY_ERROR = _gauge(_GATEWAY, "simulator_capacity_error_ratio", _MODEL, "Simulated / live capacity - 1.")
DRIFT_KNOWN = _gauge(
    _GATEWAY,
    "drift_known",
    (),
    "1: traffic was compared with a worksheet (`raylane plan --against live --publish`, `gateway.drift`).",
)
DRIFT_COMPARED = _gauge(_GATEWAY, "drift_compared_seconds", (), "Until when traffic was compared (Unix time).")
DRIFT_RATIO = _gauge(
    _GATEWAY,
    "drift_ratio",
    (*_MODEL, "class", "region", "quantity"),
    "Observed / expected of each figure that is off the worksheet now.",
)

# Replicas: what vLLM does not count itself.
ENGINE_EXCHANGES = _gauge(_ENGINE, "engine_exchanges_open", (), "HTTP exchanges that this replica is serving.")
ENGINE_FINISHED = _counter(
    _ENGINE,
    "engine_exchanges_finished",
    ("status",),
    "HTTP exchanges that have ended, by HTTP status (499: the client left first).",
)
ENGINE_TOKENS = _counter(
    _ENGINE,
    "engine_tokens",
    ("kind",),
    "Tokens of the sequences that finished: `prompt` (once for each sequence), `cached`, `output`.",
)
ENGINE_STATE = _gauge(_ENGINE, "engine_state", ("state",), "1 for the state that this replica is in.")
ENGINE_DRAINS = _counter(_ENGINE, "engine_drains", ("reason",), "1 once this replica drains.")
ENGINE_START = _gauge(
    _ENGINE, "engine_start_seconds", (*_MODEL, "phase"), "The replica's own start, without the wait for a node."
)
ENGINE_LOOP_LAG = _gauge(_ENGINE, "engine_loop_lag_seconds", (), "How late the event loop ran its last timer.")
ENGINE_STEP = _histogram(_ENGINE, "engine_step_seconds", (), "How long the engine's steps take.", STEP_BOUNDS_S)
ENGINE_EXPECTED_STEP = _counter(
    _ENGINE,
    "engine_expected_step_seconds",
    (),
    "What the cost file expects of the same steps, without drafts (only with `autoscaling.costs` of the model, or "
    "a simulated engine's).",
)
GPU_BUSY = _gauge(
    _ENGINE, "engine_gpu_utilization_ratio", ("gpu",), "The share of time in which a kernel ran, every ten seconds."
)
GPU_MEMORY = _gauge(
    _ENGINE, "engine_gpu_memory_used_bytes", ("gpu",), "Memory of the GPU in use, whoever uses it; absent without GPUs."
)
SIMULATED_LATE = _histogram(
    _ENGINE,
    "simulated_late_seconds",
    (),
    "How late a turn of the simulated engine came: what its times are off by.",
    LAG_BOUNDS_S,
)

METRICS = tuple(one for one in vars().copy().values() if isinstance(one, Metric))


def tables() -> str:
    """Those of `docs/metrics.md`: a part for each exporter."""
    parts = []
    for exporter in Exporter:
        rows = [metric.row for metric in METRICS if metric.exporter is exporter]
        parts.append(
            "\n".join([f"## {exporter}", "", "| metric | kind | labels | meaning |", "|---|---|---|---|", *rows])
        )
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(tables())
