"""The autoscaler behind the recorded words: plain JSON in, plain JSON out.

This module alone knows the names of the classes and fields that decide on the number of replicas (`scheduler_adapter.py` does so for the scheduler).
"""

import math
from typing import Any

from autoscaling.laws.law import Plant
from autoscaling.laws.registry import make_law
from autoscaling.scaler.autoscaler import Autoscaler, PacedScaler
from autoscaling.scaler.decision import Bounds, Decision
from autoscaling.signals.signals import FlowSignal, Forecast, LaneSignal, Latencies, ReplicaSignal, ReplicaState, Signals
from deployments.cell.control import Control, ControlKind
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import Limits

Plain = dict[str, Any]


class RecordedAutoscaler:
    """One autoscaler with a new policy, asked at each reading as a live one is."""

    def __init__(self, policy: Plain, bounds: Plain, replica: Plain) -> None:
        self._autoscaler = Autoscaler(make_law(policy["name"], policy["settings"], _plant(replica)), _bounds(bounds))
        self._paced = PacedScaler(self._autoscaler)

    @property
    def period_s(self) -> float:
        """How often the policy wants to be asked."""
        return self._autoscaler.law.period_s

    @property
    def latency_span_s(self) -> float:
        """Over how many seconds it wants latencies; 0: not at all."""
        return self._autoscaler.law.latency_span_s

    def rebound(self, bounds: Plain) -> None:
        """The bounds of the spec have changed."""
        self._autoscaler.bounds = _bounds(bounds)
        self._paced.hurry()

    def decide(self, facts: Plain, controls: list[Plain]) -> Plain:
        """The decision of one reading."""
        told = tuple(Control(ControlKind(one["kind"]), one["replicas"], one["until_unix_s"]) for one in controls)
        return _decision(self._paced.decide(_signals(facts), told))

    def decide_unseen(self, at_s: float, unix_s: float, applied: int, controls: list[Plain]) -> Plain:
        """...of one at which nobody can read the scheduler's books."""
        told = tuple(Control(ControlKind(one["kind"]), one["replicas"], one["until_unix_s"]) for one in controls)
        unseen = Signals(at_s, unix_s, math.inf, 0, applied, 0, None, (), (), (), 0, 0.0, 0, 0)
        return _decision(self._autoscaler.decide(unseen, told))


def _plant(replica: Plain) -> Plant:
    cost = None
    if replica["measured"]:
        cost = CostModel(line(0.022, 1.2e-4), line(0.0, 2e-4), plain_attention(2e-8, 1e-10))
    limits = Limits(replica["sequences"], replica["step_tokens"], replica["kv_tokens"])
    return Plant(limits, replica["decode_weight"], cost, replica["start_up_s"])


def _bounds(given: Plain) -> Bounds:
    numbers = {name: float("inf") if given[name] is None else given[name] for name in ("up_per_min", "down_per_min")}
    return Bounds(
        least=given["min"],
        most=given["max"],
        ceiling=given["ceiling"],
        up_per_min=numbers["up_per_min"],
        down_per_min=numbers["down_per_min"],
        stale_s=given["stale_s"],
        silent_s=given["silent_s"],
        unschedulable_s=given["unschedulable_s"],
        retry_s=given["retry_s"],
    )


def _signals(given: Plain) -> Signals:
    latencies, forecast = given["latencies"], given["forecast"]
    return Signals(
        at_s=given["at_s"],
        unix_s=given["unix_s"],
        age_s=given["age_s"],
        epoch=given["epoch"],
        applied=given["applied"],
        starting=given["starting"],
        schedulable=given["schedulable"],
        replicas=tuple(
            ReplicaSignal(
                one["name"],
                ReplicaState(one["state"]),
                one["sequences"],
                one["max_sequences"],
                one["kv_tokens"],
                one["max_kv_tokens"],
                one["prefill_tokens"],
                one["tpot_s"],
            )
            for one in given["replicas"]
        ),
        lanes=tuple(LaneSignal(one["name"], one["waiting"], one["work"], one["oldest_wait_s"]) for one in given["lanes"]),
        flows=tuple(
            FlowSignal(
                one["lane"],
                one["class"],
                one["arrived"],
                one["work"],
                one["prompt_tokens"],
                one["in_time"],
                one["late"],
                one["slo_s"],
                one["attainment"],
            )
            for one in given["flows"]
        ),
        finished=given["finished"],
        finished_work=given["finished_work"],
        counted=given["counted"],
        output_tokens=given["output_tokens"],
        latencies=None
        if latencies is None
        else Latencies(
            latencies["span_s"],
            latencies["requests"],
            latencies["ttft_p50_s"],
            latencies["ttft_p90_s"],
            latencies["ttft_p99_s"],
            latencies["tpot_p90_s"],
        ),
        forecast=None
        if forecast is None
        else Forecast(forecast["at_s"], forecast["step_s"], tuple(forecast["work_per_s"]), tuple(forecast["error"])),
        forecast_failed=given["forecast_failed"],
    )


def _decision(decision: Decision) -> Plain:
    return {
        "requested": decision.requested,
        "reason": decision.reason,
        "wanted": decision.wanted,
        "motive": None if decision.motive is None else decision.motive.value,
        "limit": None if decision.limit is None else decision.limit.value,
        "concern": None if decision.concern is None else decision.concern.value,
        "failed": decision.error is not None,
        "figures": [value if abs(value) < 1e300 else str(value) for value in decision.terms.values()],
    }
