"""One policy through one run of a scenario, and the baseline that knows the expected load."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar

import numpy as np

from autoscaling.policies.policy import DesiredReplicas, PolicyReason, ReplicaProfile, ScalingPolicy
from autoscaling.policies.settings import Value
from autoscaling.scaler.decision import Bounds
from autoscaling.signals.signals import Signals
from benchmarks.policies.engines import Serving
from benchmarks.policies.faults import NO_FAULTS, Faults, MisledAutoscaler, inflict
from benchmarks.policies.rivals import make_policy
from benchmarks.policies.scoring import Score, score
from deployments.engine_model.cost_model import slowed
from deployments.engine_model.engine import EngineModel
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.outcome import SimulationOutcome
from planning.simulator.scaling import SimulatedScaling
from planning.simulator.workload import Workload
from planning.tune.case import LoadCurve

KNOWN_RATE = "known_rate"
_USD_PER_REPLICA_HOUR = 2.5
_BIN_S = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class ScenarioRun:
    """One run. Times are in seconds from its start.

    `load`: the expected load, in replicas; the known-rate baseline uses it. `followed`: the part of it that replicas
    can follow (None: all); two changes of the number within ten minutes without a change of that part are a flap.
    `target`: the attainment that the SLO asks for. `start_up_s`: of each replica; policies know it beforehand.
    `faults`: what goes wrong. `blind_s`: from when until when policies see nothing, so that their number stays (as the
    autoscaler does where facts are old). `slow_s`: from then on one replica runs at half speed: the successor of one
    that fails.
    """

    serving: Serving
    workload: Workload
    load: LoadCurve
    target: float
    bounds: Bounds
    replicas: int
    until_s: float
    start_up_s: float = 60.0
    followed: LoadCurve | None = None
    faults: Faults = NO_FAULTS
    blind_s: tuple[float, float] | None = None
    slow_s: float | None = None


class PolicyFailedError(RuntimeError):
    """A policy failed at a decision; the message names the policy and the error. The autoscaler keeps the number then,
    so the score would be that of a number that nobody chose."""


def score_of(run: ScenarioRun, policy: str, settings: Mapping[str, Value], slower: float | None = None) -> Score:
    """A policy of the registry, or the known-rate baseline. `slower`: it knows the costs of the engine's steps, by this
    factor (1: exactly); None: it has no cost file, as most users. Raises PolicyError, or PolicyFailedError."""
    if policy == KNOWN_RATE:
        return scored(run, known_rate(run, float(settings["factor"] or 1.0)))
    made = make_policy(policy, settings, replica_profile_of(run, slower))
    out = outcome_of(run, made if run.blind_s is None else _BlindPolicy(made, *run.blind_s))
    failed = next((one.error for one in out.scalings if one.error is not None), None)
    if failed is not None:
        raise PolicyFailedError(f"policy {policy!r} failed at a decision: {failed}")
    return scored(run, out)


def replica_profile_of(run: ScenarioRun, slower: float | None = 1.0) -> ReplicaProfile:
    """What a policy knows beforehand: the engine, its costs (None: not those), and the start-up time."""
    serving = run.serving
    limits = serving.limits.with_prefixes(run.workload.chunk_tokens)
    cost = None if slower is None else slowed(serving.cost, slower)
    return ReplicaProfile(limits, serving.policy.decode_weight, cost, run.start_up_s)


def outcome_of(run: ScenarioRun, policy: ScalingPolicy) -> SimulationOutcome:
    column, serving = run.workload.traffic_class, run.serving
    classes = {column[index] for index in range(len(column))}
    autoscaler, targets = MisledAutoscaler(policy, run.bounds), dict.fromkeys(classes, run.target)
    scaling = SimulatedScaling(autoscaler, run.until_s, targets)
    settings = CellSettings(
        run.replicas,
        serving.limits.with_prefixes(run.workload.chunk_tokens),
        serving.policy,
        start_up_s=run.start_up_s,
        scaling=scaling,
    )
    cell = CellSimulator(settings, serving.cost, run.workload)
    inflict(run.faults, cell, autoscaler)
    if run.slow_s is not None:
        cell.at(run.slow_s, lambda now: _succeeded_by_a_slow_one(cell, now))
    return cell.run()


def _succeeded_by_a_slow_one(cell: CellSimulator, now: float) -> None:
    """The oldest replica fails. Its successor, which starts, takes twice as long for each step."""
    oldest = next(one for one in cell.fleet.replicas if one.serves)
    cell.fleet.fail(oldest, now)
    cell.fleet.replicas[-1].engine = EngineModel(oldest.kind.limits, slowed(oldest.kind.cost, 2.0))


class _BlindPolicy:
    """Any policy that is not asked for a while."""

    name: ClassVar[str] = "blind"

    def __init__(self, policy: ScalingPolicy, from_s: float, to_s: float) -> None:
        self._policy, self._from_s, self._to_s = policy, from_s, to_s
        self.period_s = policy.period_s

    def decide(self, signals: Signals) -> DesiredReplicas:
        if self._from_s <= signals.at_s < self._to_s:
            return DesiredReplicas(signals.applied, PolicyReason.STEADY)
        return self._policy.decide(signals)


def scored(run: ScenarioRun, out: SimulationOutcome) -> Score:
    lanes = [lane.name for lane in run.serving.policy.lanes]
    load = run.load if run.followed is None else run.followed
    return score(out, run.workload.ttft_slo_s, lanes, run.until_s, run.target, load, _USD_PER_REPLICA_HOUR)


class _SchedulePolicy:
    """From `at_s[i]` on the number is `replicas[i]`; the first is at second 0."""

    name: ClassVar[str] = "schedule"
    period_s = 1.0

    def __init__(self, at_s: list[float], replicas: list[int]) -> None:
        self._at_s, self._replicas = at_s, replicas

    def decide(self, signals: Signals) -> DesiredReplicas:
        return DesiredReplicas(self._replicas[bisect_right(self._at_s, signals.at_s) - 1], PolicyReason.STEADY)


def known_rate(run: ScenarioRun, factor: float) -> SimulationOutcome:
    """The baseline that knows the expected load, including the future, but not the arrivals: `factor` times the load of
    each ten seconds, rounded up, each replica requested one start-up time before it is needed. Level by level, gaps
    shorter than a start are filled, because ending a replica and starting another costs more than keeping it."""
    middles = ((np.arange(math.ceil(run.until_s / _BIN_S)) + 0.5) * _BIN_S).tolist()
    load = np.array([max(run.load(at_s - _BIN_S / 4), run.load(at_s + _BIN_S / 4)) for at_s in middles])
    needed = np.clip(np.ceil(factor * load - 1e-9), run.bounds.minimum, run.bounds.maximum)
    steps: Counter[float] = Counter({0.0: 0})
    for level in range(1, int(needed.max()) + 1):
        there = np.concatenate(([False], needed >= level, [False]))
        edges = (np.flatnonzero(there[1:] != there[:-1]) * _BIN_S).tolist()
        spans: list[tuple[float, float]] = []
        for begin_s, end_s in zip(edges[::2], edges[1::2], strict=True):
            if spans and begin_s - spans[-1][1] <= run.start_up_s:
                begin_s = spans.pop()[0]
            spans.append((begin_s, end_s))
        for begin_s, end_s in spans:
            steps[max(0.0, begin_s - run.start_up_s)] += 1
            steps[end_s] -= 1
    at_s_of = sorted(steps)
    bounds = replace(run.bounds, up_per_min=math.inf, down_per_min=math.inf, unresponsive_s=1e-6)
    policy = _SchedulePolicy(at_s_of, list(accumulate(steps[at_s] for at_s in at_s_of)))
    return outcome_of(replace(run, bounds=bounds), policy)
