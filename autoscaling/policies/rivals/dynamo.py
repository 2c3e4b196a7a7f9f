"""Dynamo's planner with both of its loops, for engines that prefill and decode: a forecast sets a floor, the load steps
above it.

Every 180 s, with requests, isl and osl of the next interval as predicted from those before (`dynamo_throughput.py`):

    floor = ceil(demand / rate),    demand = requests / 180 s,  at most 8 away from what runs
    rate  = the largest B / (osl * t) with t(B) <= itl_s and the TTFT of a prompt beside B others <= ttft_s;  that of B
          = 1 where none is

Every 5 s, unless a change is under way (applied != ready replicas: it waits), over all n replicas:

    TTFT = time to prefill what is queued there and one more prompt;    ITL = a step with its KV, one request more, and
    the usual prompts beside it
    up:    n + 1 where every replica's TTFT > ttft_s, or every one's ITL > itl_s
    down:  n - 1 where on every replica, with its load times n / (n - 1), all of these hold:
               TTFT - own < 0.8 * (ttft_s - own), own: a prompt's TTFT behind an empty queue;    ITL < 0.8 * itl_s;
               KV + queue < what fits
    never below the floor

Follows ai-dynamo/dynamo, `components/src/dynamo/planner/core/`: `load_scaling.py` (commit
0c6da1ec762c848fe31cef804e70d171eef4d622, mode `agg`, optimization target `sla`), `throughput_scaling.py` and
`perf_model/agg.py` (commit 518a70279da932774915f3b039b6978f9b1057f8 and later), with the carrying on of lengths through
idle intervals of `plugins/builtins/local_planner.py` (commit 8504b503ecde9be823908be664508b3e95acf01d); defaults of
`config/defaults.py`, except that both loops are on and the target is the SLA: by default the target is throughput
there, which leaves the load loop alone with thresholds of KV usage.

Its regression of step times on prompts and KV, seeded by a profile and tuned by what engines report, is our calibrated
cost model here. Its engines hold the queue: requests in our lanes are spread evenly over the replicas that are ready.
Where no costs are known it changes nothing, as it does before its model is fitted. Left out: separate prefill and
decode pools, budgets of GPUs and power, the hit rate of the prefix cache, speculative decoding.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from autoscaling.policies.policy import DesiredReplicas, PolicyEntry, PolicyReason, ReplicaProfile
from autoscaling.policies.rivals.dynamo_load import LoadSettings, LoadStep, step_wish
from autoscaling.policies.rivals.dynamo_throughput import Predictor, Series, TrafficWindow
from autoscaling.policies.rivals.hpa import ceil
from autoscaling.policies.settings import NotNegative, Positive, Range, Share, require_order
from autoscaling.signals.signals import Signals
from deployments.engine_model.replica_rate import best_point, working_point


@dataclass(frozen=True, slots=True)
class DynamoSettings:
    """`ttft_s` and `itl_s`: the SLA. `down_sensitivity`: the part of it that the replicas which stay may use up after a
    step down."""

    ttft_s: Positive = 0.5
    itl_s: Positive = 0.05
    down_sensitivity: Share = 0.8
    throughput_interval_s: float = 180.0
    load_interval_s: Positive = 5.0
    min_replicas: Annotated[int, Field(ge=1)] = 1
    max_change: Annotated[int, Field(gt=0)] = 8
    predictor: Predictor = Predictor.CONSTANT
    kalman_q_level: NotNegative = 1.0
    kalman_q_trend: NotNegative = 0.1
    kalman_r: Positive = 10.0

    def __post_init__(self) -> None:
        require_order(self, "load_interval_s", "throughput_interval_s")


class Dynamo:
    name: ClassVar[str] = "dynamo"

    def __init__(self, settings: DynamoSettings, replica_profile: ReplicaProfile) -> None:
        self.period_s = settings.load_interval_s
        self.latency_span_s = 0.0
        self._settings = settings
        self._replica_profile = replica_profile
        self._load = LoadSettings(settings.ttft_s, settings.itl_s, settings.down_sensitivity)
        self._traffic = TrafficWindow()
        noise = (settings.kalman_q_level, settings.kalman_q_trend, settings.kalman_r)
        self._requests, self._isl, self._osl = (Series(settings.predictor, *noise) for _ in range(3))
        self._floor = settings.min_replicas
        self._floor_terms: dict[str, float] = {}

    def decide(self, signals: Signals) -> DesiredReplicas:
        """One tick of the load loop, and of the throughput loop where its interval is over."""
        self._traffic.look(signals)
        if self._traffic.seconds(signals.at_s) >= self._settings.throughput_interval_s:
            self._forecast(signals)
        applied, minimum = signals.applied, self._settings.min_replicas
        if applied < minimum:
            return DesiredReplicas(
                minimum, PolicyReason.WAKE if applied == 0 else PolicyReason.STEADY, self._floor_terms
            )
        if self._replica_profile.cost is None or signals.ready != applied:
            return DesiredReplicas(applied, PolicyReason.STEADY, self._floor_terms)
        step = step_wish(
            self._load,
            self._replica_profile.limits,
            self._replica_profile.cost,
            signals,
            self._traffic.isl,
            self._traffic.osl,
        )
        number = max(applied + step.change, minimum, self._floor)
        terms = {**self._floor_terms, "floor": float(self._floor), "ttft_s": step.ttft_s, "itl_s": step.itl_s}
        return DesiredReplicas(number, _policy_reason(number, applied, step), terms)

    def _forecast(self, signals: Signals) -> None:
        interval = self._traffic.close(signals)
        if interval is None:
            return
        self._requests.add(interval.requests)
        self._isl.add(interval.isl)
        self._osl.add(interval.osl)
        isl, osl = self._isl.next(), self._osl.next()
        demand = self._requests.next() / interval.seconds
        rate = self._rate(isl, osl) if isl > 0 and osl > 0 else 0.0
        current = signals.ready
        wish = max(ceil(demand / rate), self._settings.min_replicas) if rate > 0 else current
        change = self._settings.max_change
        self._floor = max(min(max(wish, current - change), current + change), self._settings.min_replicas)
        self._floor_terms = {"demand_per_s": demand, "rate_per_s": rate}

    def _rate(self, isl: float, osl: float) -> float:
        """Requests a second of one replica at the SLA, or of one request at a time where the SLA cannot be kept; 0:
        unknown."""
        limits, cost = self._replica_profile.limits, self._replica_profile.cost
        if cost is None:
            return 0.0
        point = best_point(limits, cost, isl, osl, self._settings.itl_s, self._settings.ttft_s, output_cv=0.0)
        point = point or working_point(limits, cost, 1, isl, osl, output_cv=0.0)
        return 0.0 if point is None or not math.isfinite(point.requests_per_s) else point.requests_per_s


def _policy_reason(number: int, applied: int, step: LoadStep) -> PolicyReason:
    if number > applied:
        return PolicyReason.LATENCY if step.change > 0 and number == applied + step.change else PolicyReason.FORECAST
    if number < applied:
        return PolicyReason.CONSOLIDATE
    if step.change < 0:
        return PolicyReason.FORECAST
    return PolicyReason.NO_ROOM if step.refused else PolicyReason.STEADY


ENTRY = PolicyEntry(
    "dynamo",
    DynamoSettings,
    Dynamo,
    "Dynamo's planner: a floor from a forecast every three minutes, steps of one every five seconds",
    {
        "ttft_s": Range(0.05, 10, log=True),
        "itl_s": Range(0.005, 0.5, log=True),
        "down_sensitivity": Range(0.2, 1.0),
        "throughput_interval_s": Range(30, 900, log=True),
        "max_change": Range(1, 64, log=True, integer=True),
    },
    principal=("ttft_s", "itl_s", "down_sensitivity"),
    slo="ttft_s",
)
