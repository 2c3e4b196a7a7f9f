"""The gateway's Prometheus metrics. Counters and histograms are fed once a request, when its ledger closes; gauges are read at scrape time.

Labels: `model` (served models only, so their number is bounded) and `prompt_bucket`. The tokens are the engine's own counts.
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deployments.scheduling import Snapshot
from deployments.telemetry.buckets import E2E_BOUNDS_S, ITL_BOUNDS_S, TTFT_BOUNDS_S, prompt_bucket
from deployments.telemetry.ledger import Ledger, Stage

_BY_LENGTH = ("model", "prompt_bucket")


class RequestMetrics:
    """What is counted of each request. `paths` are those that have a label of their own: a client can make up any number of others."""

    def __init__(self, registry: CollectorRegistry, paths: Iterable[str]) -> None:
        self._paths = frozenset(paths)

        def histogram(name: str, text: str, bounds: tuple[float, ...], labels: tuple[str, ...] = _BY_LENGTH) -> Histogram:
            return Histogram(name, text, labels, buckets=bounds, registry=registry)

        self.ttft = histogram("raylane_ttft_seconds", "From a request's arrival to the first byte of its answer.", TTFT_BOUNDS_S)
        self.itl = histogram("raylane_itl_seconds", "Between two pieces of a streamed answer.", ITL_BOUNDS_S)
        self.tpot = histogram("raylane_tpot_seconds", "Per output token after the first.", ITL_BOUNDS_S)
        self.e2e = histogram("raylane_e2e_seconds", "From a request's arrival to the end of its answer.", E2E_BOUNDS_S)
        self.queue_wait = histogram("raylane_queue_wait_seconds", "In the lane, until placed.", TTFT_BOUNDS_S)
        self.stages = histogram("raylane_stage_seconds", "Wall time by stage of the ledger.", TTFT_BOUNDS_S, ("model", "stage"))
        self.unaccounted = histogram(
            "raylane_unaccounted_seconds", "Wall time that no stage explains.", (0.0005, 0.001, 0.002, 0.005, 0.01, 0.1), ("model",)
        )
        self.requests = Counter("raylane_requests", "Requests by how they ended.", ("model", "path", "outcome", "status", "error"), registry=registry)
        self.tokens = Counter(
            "raylane_tokens", "Tokens by the engine's own count: in, out, cached (a part of in).", ("model", "kind"), registry=registry
        )
        self.no_usage = Counter("raylane_requests_without_usage", "Requests whose engine statistics never came.", ("model",), registry=registry)

    def observe(self, ledger: Ledger) -> None:
        """Counts a closed ledger."""
        model = ledger.model or "unknown"
        path = ledger.path if ledger.path in self._paths else "other"
        self.requests.labels(model, path, ledger.outcome.value, str(ledger.status), ledger.error or "").inc()
        if ledger.submitted_s is None:
            return
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
        self.tokens.labels(model, "in").inc(done.prompt_tokens)
        self.tokens.labels(model, "out").inc(done.output_tokens)
        self.tokens.labels(model, "cached").inc(done.cached_tokens)


def _prompt_tokens(ledger: Ledger) -> int:
    """The length of one prompt, by the engine's count where it gave one (over all sequences), else as it was expected."""
    done = ledger.finished
    return round(done.prompt_tokens / done.sequences) if done and done.sequences else ledger.expected_prompt_tokens


class LaneGauges(Collector):
    """Gauges straight from the schedulers' snapshots, as they are when Prometheus asks."""

    def __init__(self, snapshots: Callable[[], Mapping[str, Snapshot]]) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterable[Metric]:
        """The families, one sample a model (and lane, replica, or ending)."""
        waiting = GaugeMetricFamily("raylane_waiting_requests", "Requests that wait.", labels=("model", "lane"))
        work = GaugeMetricFamily("raylane_waiting_tokens", "Work that waits, in tokens.", labels=("model", "lane"))
        oldest = GaugeMetricFamily("raylane_oldest_wait_seconds", "How long the head has waited.", labels=("model", "lane"))
        leases = GaugeMetricFamily("raylane_leases", "Leases held now.", labels=("model", "replica", "state"))
        kv = GaugeMetricFamily("raylane_booked_kv_tokens", "KV tokens booked by leases.", labels=("model", "replica"))
        ended = CounterMetricFamily("raylane_leases_ended", "Leases that ended, by how.", labels=("model", "ending"))
        rejected = CounterMetricFamily("raylane_rejections", "Requests turned away, by cause.", labels=("model", "cause"))
        for model, snapshot in self._snapshots().items():
            for lane in snapshot.lanes:
                waiting.add_metric((model, lane.name), lane.waiting)
                work.add_metric((model, lane.name), lane.tokens)
                oldest.add_metric((model, lane.name), lane.oldest_wait_s)
            for replica in snapshot.replicas:
                leases.add_metric((model, replica.replica_id, replica.status), replica.leases)
                kv.add_metric((model, replica.replica_id), replica.kv_tokens)
            for ending, count in snapshot.endings.items():
                ended.add_metric((model, ending), count)
            for cause, count in snapshot.rejections.items():
                rejected.add_metric((model, cause), count)
        return (waiting, work, oldest, leases, kv, ended, rejected)
