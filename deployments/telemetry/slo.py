"""Whether requests met their class's SLOs, by their ledgers, where the answers are sent; and beside that prompts in the
prefix cache by lane, the round trip to clients, who owns what, and which models have a replica.

The first token is judged as `scheduling/tally.py` judges it for autoscaling: it met the SLO if it came in time, and
missed it if it came later or never (rejected for want of capacity, given up, lost). A request whose client left in
time, or that was refused for its client's own doing (4xx), is neither. The time between tokens is judged by its mean,
as `scheduling/itl_cap.py` does, but as the gateway saw it: waiting for a client that does not read is not counted.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Protocol

from cluster.spec import ClusterSpec, TrafficClass
from deployments.telemetry import table
from deployments.telemetry.exposition import Distribution, MetricCounts
from deployments.telemetry.ledger import Ledger, RequestOutcome
from deployments.telemetry.metrics import MAX_TENANTS
from deployments.telemetry.table import Sample


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
    done = ledger.usage
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


class ServiceLevels:
    """Fed once a request as its ledger closes, and read when Prometheus asks. What is met and missed is there from the
    start, as zeros, for each of `models` and each class of the spec in force."""

    service: ServedModels

    def __init__(self, models: Iterable[str]) -> None:
        self._models = tuple(models)
        self._classes: dict[str, TrafficClass] = {}
        self._of: ClusterSpec | None = None
        self._judged: Counter[tuple[str, str, str, str]] = Counter()
        self._tokens, self._rtts = MetricCounts(table.LANE_TOKENS), Distribution(table.CLIENT_RTT)

    def observe(self, ledger: Ledger) -> None:
        if ledger.home or ledger.model not in self._models:
            return
        model, spec = ledger.model, self.service.spec
        if spec is not self._of:
            self._of, self._classes = spec, {one.name: one for one in spec.classes}
        if (of := self._classes.get(ledger.traffic_class)) is not None:
            self._judge(model, of.name, "ttft", ttft_met(ledger, of.ttft_ms / 1e3))
            if of.itl_ms is not None:
                self._judge(model, of.name, "itl", itl_met(ledger, of.itl_ms / 1e3))
        if ledger.client_rtt_s is not None:
            self._rtts.observe((model,), ledger.client_rtt_s)
        if (done := ledger.usage) is not None and ledger.lane is not None:
            self._tokens.values[model, ledger.lane, "in"] += done.prompt_tokens
            self._tokens.values[model, ledger.lane, "cached"] += done.cached_tokens

    def judged(self, model: str) -> Iterator[tuple[str, str, float, float, int, int]]:
        """Of each class each SLO (`ttft`, `itl`): its limit in ms, its attainment, how many met and missed it."""
        for one in self.service.spec.classes:
            for slo, limit_ms in (("ttft", one.ttft_ms), ("itl", one.itl_ms)):
                if limit_ms is not None:
                    met, missed = (self._judged[model, one.name, slo, result] for result in ("met", "missed"))
                    yield one.name, slo, limit_ms, one.attainment, met, missed

    def samples(self) -> Iterator[Sample]:
        spec = self.service.spec
        for model in self._models:
            for name, slo, _, attainment, met, missed in self.judged(model):
                yield table.SLO_TARGET, (model, name, slo), attainment
                yield table.SLO_REQUESTS, (model, name, slo, "met"), met
                yield table.SLO_REQUESTS, (model, name, slo, "missed"), missed
            yield table.MODEL_READY, (model,), float(self.service.is_served(model))
            yield table.MODEL_MIN_REPLICAS, (model,), spec.min_replicas(spec.model(model))
            yield table.MODEL_INFO, (model, spec.model(model).owner or ""), 1
        for tenant in spec.tenants[:MAX_TENANTS]:
            yield table.TENANT_INFO, (tenant.name, tenant.owner or ""), 1
        yield from self._tokens.samples()
        yield from self._rtts.samples()

    def _judge(self, model: str, traffic_class: str, slo: str, met: bool | None) -> None:
        if met is not None:
            self._judged[model, traffic_class, slo, "met" if met else "missed"] += 1
