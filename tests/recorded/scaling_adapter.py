"""The autoscaler behind the recorded words: plain JSON in, plain JSON out.

This module alone knows the names of the classes and fields that decide on the number of replicas
(`scheduler_adapter.py` does so for the scheduler).
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from autoscaling.policies.policy import ReplicaProfile
from autoscaling.scaler.autoscaler import Autoscaler, PacedScaler
from autoscaling.scaler.decision import Bounds, ScalingDecision
from autoscaling.signals.signals import Forecast, Signals, unseen
from benchmarks.policies.rivals import make_policy
from deployments.cell.control import Control, ControlKind
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from deployments.lane_stats import LaneStats
from deployments.scheduling.replica import ReplicaStatus
from deployments.scheduling.snapshot import FlowStats, ReplicaStats, Snapshot

Plain = dict[str, Any]
OF_A_FLOW = ("lane", "class", "arrived", "work", "prompt_tokens", "in_time", "late", "slo_s")


_OLD_WORDS = {"unresponsive": "silent", "policy_failed": "law_failed"}


def recorded_word(word: str) -> str:
    """The word that the recording has for a value of today."""
    return _OLD_WORDS.get(word, word)


class RecordedAutoscaler:
    """One autoscaler with a new policy, asked at each reading as a live one is."""

    def __init__(self, policy: Plain, bounds: Plain, replica: Plain) -> None:
        self._autoscaler = Autoscaler(
            make_policy(policy["name"], policy["settings"], _replica_profile(replica)), _bounds(bounds)
        )
        self._paced = PacedScaler(self._autoscaler)

    def rebound(self, bounds: Plain) -> None:
        """The bounds of the spec have changed."""
        self._autoscaler.bounds = _bounds(bounds)
        self._paced.hurry()

    def decide(self, facts: Plain, controls: list[Plain]) -> Plain:
        """The decision of one reading."""
        reported = tuple(Control(ControlKind(one["kind"]), one["replicas"], one["until_unix_s"]) for one in controls)
        return _decision(self._paced.decide(_signals(facts), reported))

    def decide_unseen(self, at_s: float, unix_s: float, applied: int, controls: list[Plain]) -> Plain:
        """...of one at which nobody can read the scheduler's books."""
        reported = tuple(Control(ControlKind(one["kind"]), one["replicas"], one["until_unix_s"]) for one in controls)
        return _decision(self._autoscaler.decide(unseen(at_s, unix_s, applied), reported))


def decided(entries: Iterable[Plain]) -> Iterator[Plain]:
    """The same facts with the decisions of this version."""
    autoscaler: RecordedAutoscaler | None = None
    for entry in entries:
        if "run" in entry:
            autoscaler = RecordedAutoscaler(entry["policy"], entry["bounds"], entry["replica"])
            yield entry
            continue
        assert autoscaler is not None
        if "bounds" in entry:
            autoscaler.rebound(entry["bounds"])
            yield entry
        elif "unseen" in entry:
            yield entry | {"decision": autoscaler.decide_unseen(**entry["unseen"])}
        else:
            yield entry | {"decision": autoscaler.decide(entry["facts"], entry["controls"])}


def _replica_profile(replica: Plain) -> ReplicaProfile:
    cost = None
    if replica["measured"]:
        cost = CostModel(line(0.022, 1.2e-4), line(0.0, 2e-4), plain_attention(2e-8, 1e-10))
    limits = EngineModelLimits(replica["sequences"], replica["step_tokens"], replica["kv_tokens"])
    return ReplicaProfile(limits, replica["decode_weight"], cost, replica["start_up_s"])


def _bounds(given: Plain) -> Bounds:
    named = {"minimum": given["min"], "maximum": given["max"], "unresponsive_s": given["silent_s"]}
    named |= {name: math.inf if given[name] is None else given[name] for name in ("up_per_min", "down_per_min")}
    same = ("ceiling", "stale_s", "unschedulable_s", "retry_s")
    return Bounds(**named, **{name: given[name] for name in same})


_STATUS = {"silent": ReplicaStatus.UNRESPONSIVE}


def _snapshot(given: Plain) -> Snapshot:
    of_a_replica = ("sequences", "kv_tokens", "prefill_tokens", "max_sequences", "max_kv_tokens", "tpot_s")
    replicas = (
        ReplicaStats(
            replica_id=one["name"],
            status=_STATUS.get(one["state"]) or ReplicaStatus(one["state"]),
            leases=one["sequences"],
            prefill_tokens_per_s=0.0,
            held_by=None,
            **{name: one[name] for name in of_a_replica},
        )
        for one in given["replicas"]
    )
    lanes = (
        LaneStats(one["name"], one["waiting"], one["work"], None, one["oldest_wait_s"], None, None, 0, 0, 0)
        for one in given["lanes"]
    )
    return Snapshot(
        lanes=tuple(lanes),
        replicas=tuple(replicas),
        flows=tuple(FlowStats(*(one[name] for name in OF_A_FLOW)) for one in given["flows"]),
        **dict.fromkeys(("submitted", "placed", "adopted", "promoted"), 0),
        **dict.fromkeys(("tokens_per_s", "output_error", "other_lane")),
        endings={},
        rejections={},
        prefix_trust=0.0,
        **{name: given[name] for name in ("finished", "finished_work", "counted", "output_tokens")},
    )


def _signals(given: Plain) -> Signals:
    forecast = given["forecast"]
    same = ("at_s", "unix_s", "age_s", "epoch", "applied", "starting", "schedulable", "forecast_failed")
    return Signals(
        **{name: given[name] for name in same},
        snapshot=_snapshot(given),
        attainment={one["class"]: one["attainment"] for one in given["flows"]},
        forecast=None
        if forecast is None
        else Forecast(forecast["at_s"], forecast["step_s"], tuple(forecast["work_per_s"]), tuple(forecast["error"])),
    )


def _decision(decision: ScalingDecision) -> Plain:
    return {
        "requested": decision.requested,
        "reason": recorded_word(decision.reason),
        "wanted": decision.desired,
        "motive": None if decision.policy_reason is None else recorded_word(decision.policy_reason.value),
        "limit": None if decision.limit is None else recorded_word(decision.limit.value),
        "concern": None if decision.concern is None else decision.concern.value,
        "failed": decision.error is not None,
        "figures": [value if abs(value) < 1e300 else str(value) for value in decision.terms.values()],
    }
