"""The gateway's Prometheus metrics. Counters and histograms are fed once a request, when its ledger closes; gauges
are read at scrape time.

Labels: `model` (served models only, so their number is bounded) and `prompt_bucket`. The tokens are the engine's own
counts.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deployments.scheduling import Snapshot
from deployments.telemetry.buckets import E2E_BOUNDS_S, ITL_BOUNDS_S, LAG_BOUNDS_S, TTFT_BOUNDS_S, prompt_bucket
from deployments.telemetry.ledger import Ledger, Stage

_BY_LENGTH = ("model", "prompt_bucket")
_READ_BOUNDS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
MAX_TENANTS = 100
"""So many tenants, in the order in which they came, have a label value of their own; the rest are `other`."""


class RequestMetrics:
    """What is counted of each request. `paths` are those that have a label of their own: a client can make up any
    number of others."""

    def __init__(self, registry: CollectorRegistry, paths: Iterable[str]) -> None:
        self._paths = frozenset(paths)

        def histogram(
            name: str, text: str, bounds: tuple[float, ...], labels: tuple[str, ...] = _BY_LENGTH
        ) -> Histogram:
            return Histogram(name, text, labels, buckets=bounds, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        self.ttft = histogram(
            "raylane_ttft_seconds",
            "From arrival to the first token (of a whole answer: as the engine tells).",
            TTFT_BOUNDS_S,
        )
        self.itl = histogram("raylane_itl_seconds", "Between two pieces of a streamed answer.", ITL_BOUNDS_S)
        self.tpot = histogram("raylane_tpot_seconds", "Per output token after the first.", ITL_BOUNDS_S)
        self.e2e = histogram("raylane_e2e_seconds", "From a request's arrival to the end of its answer.", E2E_BOUNDS_S)
        self.queue_wait = histogram("raylane_queue_wait_seconds", "In the lane, until placed.", TTFT_BOUNDS_S)
        self.stages = histogram(
            "raylane_stage_seconds", "Wall time by stage of the ledger.", TTFT_BOUNDS_S, ("model", "stage")
        )
        self.unaccounted = histogram(
            "raylane_unaccounted_seconds",
            "Wall time that no stage explains.",
            (0.0005, 0.001, 0.002, 0.005, 0.01, 0.1),
            ("model",),
        )
        self.requests = counter(
            "raylane_requests", "Requests by how they ended.", "model", "path", "outcome", "status", "error"
        )
        self.tokens = counter(
            "raylane_tokens", "Tokens by the engine's own count: in, out, cached (a part of in).", "model", "kind"
        )
        self.resubmitted = counter(
            "raylane_resubmitted",
            "Requests placed again since their replica or its engine had died, by why.",
            "model",
            "reason",
        )
        self.tenant_requests = counter(
            "raylane_tenant_requests", "Requests of each tenant.", "tenant", "model", "outcome"
        )
        self.tenant_tokens = counter(
            "raylane_tenant_tokens", "Tokens of each tenant: in, out.", "tenant", "model", "kind"
        )
        self.read = histogram(
            "raylane_read_seconds", "CPU time to read a body and estimate its tokens.", _READ_BOUNDS_S, ("model",)
        )
        self.prompt_error = histogram(
            "raylane_prompt_estimate_error_ratio",
            "|estimated - counted| / counted prompt tokens.",
            (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1),
            ("model",),
        )
        self._tenants: set[str] = set()
        self.no_usage = counter(
            "raylane_requests_without_usage", "Requests whose engine statistics never came.", "model"
        )

    def observe(self, ledger: Ledger) -> None:
        model = ledger.model or "unknown"
        path = ledger.path if ledger.path in self._paths else "other"
        self.requests.labels(model, path, ledger.outcome.value, str(ledger.status), ledger.error or "").inc()
        tenant = self._tenant(ledger.tenant)
        if tenant:
            self.tenant_requests.labels(tenant, model, ledger.outcome.value).inc()
        if ledger.submitted_s is None:
            return
        if ledger.resubmitted:
            self.resubmitted.labels(model, ledger.resubmitted).inc()
        self.read.labels(model).observe(ledger.read_s)
        by_length = (model, prompt_bucket(_prompt_tokens(ledger)))
        self.queue_wait.labels(*by_length).observe(ledger.lane_s)
        self.e2e.labels(*by_length).observe(ledger.wall_s)
        if ledger.ttft_s is not None and ledger.status < 400:
            self.ttft.labels(*by_length).observe(ledger.ttft_s)
        if ledger.tpot_s is not None:
            self.tpot.labels(*by_length).observe(ledger.tpot_s)
        itl = self.itl.labels(*by_length)
        for gap in ledger.itl:
            itl.observe(gap)
        self._observe_stages(model, ledger)
        self._count_tokens(model, ledger)

    def _observe_stages(self, model: str, ledger: Ledger) -> None:
        stages: Mapping[Stage, float] = ledger.stages()
        for stage, seconds in stages.items():
            self.stages.labels(model, stage.value).observe(seconds)
        self.unaccounted.labels(model).observe(abs(ledger.unaccounted_s))

    def _count_tokens(self, model: str, ledger: Ledger) -> None:
        done = ledger.finished
        if done is None:
            if ledger.placed_s is not None:
                self.no_usage.labels(model).inc()
            return
        if done.sequences and ledger.expected_prompt_tokens:
            counted = max(1.0, done.prompt_tokens / done.sequences)
            self.prompt_error.labels(model).observe(abs(ledger.expected_prompt_tokens - counted) / counted)
        if tenant := self._tenant(ledger.tenant):
            self.tenant_tokens.labels(tenant, model, "in").inc(done.prompt_tokens)
            self.tenant_tokens.labels(tenant, model, "out").inc(done.output_tokens)
        self.tokens.labels(model, "in").inc(done.prompt_tokens)
        self.tokens.labels(model, "out").inc(done.output_tokens)
        self.tokens.labels(model, "cached").inc(done.cached_tokens)

    def _tenant(self, name: str) -> str:
        if name in self._tenants or not name:
            return name
        if len(self._tenants) >= MAX_TENANTS:
            return "other"
        self._tenants.add(name)
        return name


def _prompt_tokens(ledger: Ledger) -> int:
    """The length of one prompt, by the engine's count where it gave one (over all sequences), else as it was
    expected."""
    done = ledger.finished
    return round(done.prompt_tokens / done.sequences) if done and done.sequences else ledger.expected_prompt_tokens


class LaneGauges(Collector):
    """Gauges straight from the schedulers' snapshots, as they are when Prometheus asks."""

    def __init__(self, snapshots: Callable[[], Mapping[str, Snapshot]]) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterable[Metric]:
        snapshots = self._snapshots()
        return (*_of_lanes(snapshots), *_of_rates(snapshots), *_of_leases(snapshots), *_of_suspects(snapshots))


def _of_lanes(snapshots: Mapping[str, Snapshot]) -> Iterable[Metric]:
    waiting = GaugeMetricFamily("raylane_waiting_requests", "Requests that wait.", labels=("model", "lane"))
    work = GaugeMetricFamily("raylane_waiting_tokens", "Work that waits, in tokens.", labels=("model", "lane"))
    oldest = GaugeMetricFamily("raylane_oldest_wait_seconds", "How long the head has waited.", labels=("model", "lane"))
    seconds = GaugeMetricFamily(
        "raylane_waiting_seconds", "Work that waits, in seconds at the measured rate.", labels=("model", "lane")
    )
    eta = GaugeMetricFamily(
        "raylane_expected_wait_seconds",
        "The wait that a request would be told now.",
        labels=("model", "lane", "level"),
    )
    wait_estimates = CounterMetricFamily(
        "raylane_wait_estimates",
        "Waits that were told, by whether their p95 held.",
        labels=("model", "lane", "held"),
    )
    for model, snapshot in snapshots.items():
        for lane in snapshot.lanes:
            waiting.add_metric((model, lane.name), lane.waiting)
            work.add_metric((model, lane.name), lane.work_tokens)
            oldest.add_metric((model, lane.name), lane.oldest_wait_s)
            if lane.work_s is not None:
                seconds.add_metric((model, lane.name), lane.work_s)
            for level, wait_s in zip(("p50", "p95"), lane.eta_s or (), strict=False):
                eta.add_metric((model, lane.name, level), wait_s)
            for held, count in (
                ("yes", lane.covered),
                ("no", lane.estimated - lane.covered),
                ("cancelled", lane.censored),
            ):
                wait_estimates.add_metric((model, lane.name, held), count)
    return waiting, work, seconds, oldest, eta, wait_estimates


def _of_rates(snapshots: Mapping[str, Snapshot]) -> Iterable[Metric]:
    promoted = CounterMetricFamily(
        "raylane_promoted", "Requests placed after their lane's max_wait_s.", labels=("model",)
    )
    rate = GaugeMetricFamily(
        "raylane_service_tokens_per_second", "The measured service rate, in booked tokens.", labels=("model",)
    )
    error = GaugeMetricFamily(
        "raylane_output_estimate_error_ratio", "Mean |expected - real| / real output tokens.", labels=("model",)
    )
    other = GaugeMetricFamily(
        "raylane_other_lane_ratio", "Requests that turned out to belong to another lane.", labels=("model",)
    )
    trust = GaugeMetricFamily(
        "raylane_prefix_trust_ratio", "How much of the cache credit proved real.", labels=("model",)
    )
    for model, snapshot in snapshots.items():
        promoted.add_metric((model,), snapshot.promoted)
        for family, value in (
            (rate, snapshot.tokens_per_s),
            (error, snapshot.output_error),
            (other, snapshot.other_lane),
        ):
            if value is not None:
                family.add_metric((model,), value)
        trust.add_metric((model,), snapshot.prefix_trust)
    return promoted, rate, error, other, trust


def _of_leases(snapshots: Mapping[str, Snapshot]) -> Iterable[Metric]:
    leases = GaugeMetricFamily("raylane_leases", "Leases held now.", labels=("model", "replica", "state"))
    kv = GaugeMetricFamily("raylane_booked_kv_tokens", "KV tokens booked by leases.", labels=("model", "replica"))
    ended = CounterMetricFamily("raylane_leases_ended", "Leases that ended, by how.", labels=("model", "ending"))
    rejected = CounterMetricFamily(
        "raylane_rejections", "Requests turned away, by lane and cause.", labels=("model", "lane", "cause")
    )
    for model, snapshot in snapshots.items():
        for replica in snapshot.replicas:
            leases.add_metric((model, replica.replica_id, replica.status), replica.leases)
            kv.add_metric((model, replica.replica_id), replica.kv_tokens)
        for ending, count in snapshot.endings.items():
            ended.add_metric((model, ending), count)
        for (lane_name, cause), count in snapshot.rejections.items():
            rejected.add_metric((model, lane_name, cause), count)
    return leases, kv, ended, rejected


def _of_suspects(snapshots: Mapping[str, Snapshot]) -> Iterable[Metric]:
    suspects = GaugeMetricFamily(
        "raylane_suspects", "Bodies that ran when replicas died, by their standing.", labels=("model", "standing")
    )
    aside = GaugeMetricFamily(
        "raylane_waiting_aside", "Requests of suspects, which wait aside of the lanes.", labels=("model",)
    )
    bans = CounterMetricFamily(
        "raylane_queries_of_death", "Bodies at which two replicas died, which are refused.", labels=("model",)
    )
    for model, snapshot in snapshots.items():
        banned = sum(one.banned for one in snapshot.suspects)
        suspects.add_metric((model, "banned"), banned)
        suspects.add_metric((model, "suspect"), len(snapshot.suspects) - banned)
        aside.add_metric((model,), snapshot.aside)
        bans.add_metric((model,), snapshot.bans)
    return suspects, aside, bans


PERIOD_S = 0.1


class LoopLag:
    """Measures the running loop for as long as `run` is not cancelled."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._histogram = Histogram(
            "raylane_event_loop_lag_seconds", "How late a timer fired.", buckets=LAG_BOUNDS_S, registry=registry
        )

    async def run(self) -> None:
        """Sleeps a period at a time and notes how much longer it took."""
        while True:
            start = time.monotonic()
            await asyncio.sleep(PERIOD_S)
            self._histogram.observe(max(0.0, time.monotonic() - start - PERIOD_S))
