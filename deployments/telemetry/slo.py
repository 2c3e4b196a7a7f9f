"""Whether requests met their class's SLOs, by their ledgers, where the answers are sent; and beside that prompts in the
prefix cache by lane, the round trip to clients, who owns what, and which models have a replica.

The first token is judged as `scheduling/tally.py` judges it for autoscaling: it met the SLO if it came in time, and
missed it if it came later or never (rejected for want of capacity, given up, lost). A request whose client left in
time, or that was refused for its client's own doing (4xx), is neither. The time between tokens is judged by its mean,
as `scheduling/itl_cap.py` does, but as the gateway saw it: waiting for a client that does not read is not counted.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import accumulate
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.spec import ClusterSpec, TrafficClass
from deployments.telemetry.ledger import Ledger, RequestOutcome

RTT_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
MAX_TENANTS = 100


def ttft_met(ledger: Ledger, slo_s: float) -> bool | None:
    """None: neither met nor missed. The time runs from when the request was submitted to its model's scheduler."""
    if ledger.submitted_s is None:
        return None
    due_s = ledger.submitted_s + slo_s
    if ledger.status < 400 and (ttft_s := ledger.ttft_s) is not None:
        return ledger.arrived_s + ttft_s <= due_s
    if ledger.outcome is RequestOutcome.FAILED:
        return False
    late = ledger.outcome is RequestOutcome.CANCELLED and (ledger.ended_s or 0.0) > due_s
    return False if late else None


def itl_met(ledger: Ledger, slo_s: float) -> bool | None:
    """None for an answer of one token, or one without the engine's own count."""
    done = ledger.finished
    if done is None or done.sequences < 1 or ledger.status >= 400 or ledger.first_byte_s is None:
        return None
    after_first = done.output_tokens / done.sequences - 1
    waited_s = ledger.engine_wait_s if ledger.stream else done.decode_s
    return waited_s <= slo_s * after_first if after_first > 0 else None


class ServedModels(Protocol):
    """What is known of the models."""

    @property
    def spec(self) -> ClusterSpec:
        """In force."""

    def is_served(self, model: str) -> bool:
        """Whether it has a ready replica."""


class ServiceLevels(Collector):
    """Fed once a request as its ledger closes, and read when Prometheus asks. What is met and missed is there from the
    start, as zeros, for each of `models` and each class of the spec in force."""

    service: ServedModels

    def __init__(self, models: Iterable[str]) -> None:
        self._models = tuple(models)
        self._classes: dict[str, TrafficClass] = {}
        self._of: ClusterSpec | None = None
        self._judged: Counter[tuple[str, str, str, bool]] = Counter()
        self._tokens: Counter[tuple[str, str, str]] = Counter()
        self._rtts: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * (len(RTT_BOUNDS_S) + 2))
        """By model: how many took up to each bound, those above, and last the sum of all (seconds)."""

    def observe(self, ledger: Ledger) -> None:
        if ledger.home or ledger.model not in self._models:
            return
        model, spec = ledger.model, self.service.spec
        if spec is not self._of:
            self._of, self._classes = spec, {one.name: one for one in spec.classes}
        if (of := self._classes.get(ledger.traffic_class)) is not None:
            if (met := ttft_met(ledger, of.ttft_ms / 1e3)) is not None:
                self._judged[model, of.name, "ttft", met] += 1
            if of.itl_ms is not None and (met := itl_met(ledger, of.itl_ms / 1e3)) is not None:
                self._judged[model, of.name, "itl", met] += 1
        if ledger.client_rtt_s is not None:
            counts = self._rtts[model]
            counts[bisect_left(RTT_BOUNDS_S, ledger.client_rtt_s)] += 1
            counts[-1] += ledger.client_rtt_s
        if ledger.finished is not None and ledger.lane is not None:
            self._tokens[model, ledger.lane, "in"] += ledger.finished.prompt_tokens
            self._tokens[model, ledger.lane, "cached"] += ledger.finished.cached_tokens

    def collect(self) -> Iterable[Metric]:
        spec, slo = self.service.spec, ("model", "class", "slo")
        judged = CounterMetricFamily(
            "raylane_slo_requests", "Requests that met or missed an SLO of their class.", labels=(*slo, "result")
        )
        target = GaugeMetricFamily("raylane_slo_target_ratio", "The share that is to meet it.", labels=slo)
        served = GaugeMetricFamily("raylane_model_ready", "1 while a replica takes requests.", labels=("model",))
        least = GaugeMetricFamily("raylane_model_min_replicas", "0: it may have none.", labels=("model",))
        owner = GaugeMetricFamily("raylane_model_info", "1; who owns the model.", labels=("model", "owner"))
        tenants = GaugeMetricFamily("raylane_tenant_info", "1; who owns the tenant.", labels=("tenant", "owner"))
        for model in self._models:
            for one in spec.classes:
                for name in ("ttft", "itl") if one.itl_ms is not None else ("ttft",):
                    target.add_metric((model, one.name, name), one.attainment)
                    for result, met in (("met", True), ("missed", False)):
                        judged.add_metric((model, one.name, name, result), self._judged[model, one.name, name, met])
            served.add_metric((model,), float(self.service.is_served(model)))
            least.add_metric((model,), spec.min_replicas(spec.model(model)))
            owner.add_metric((model, spec.model(model).owner or ""), 1)
        for tenant in spec.tenants[:MAX_TENANTS]:
            tenants.add_metric((tenant.name, tenant.owner or ""), 1)
        return judged, target, served, least, owner, tenants, self._lane_tokens(), self._client_rtts()

    def _lane_tokens(self) -> Metric:
        found = CounterMetricFamily(
            "raylane_lane_tokens", "Prompt tokens: in, cached (a part of in).", labels=("model", "lane", "kind")
        )
        for labels, count in self._tokens.items():
            found.add_metric(labels, count)
        return found

    def _client_rtts(self) -> Metric:
        text = "Round trip to the client, or its balancer, as a request ended."
        found = HistogramMetricFamily("raylane_client_rtt_seconds", text, labels=("model",))
        names = [*(str(float(bound)) for bound in RTT_BOUNDS_S), "+Inf"]
        for model, (*counts, total) in self._rtts.items():
            found.add_metric((model,), list(zip(names, accumulate(counts), strict=True)), total)
        return found
