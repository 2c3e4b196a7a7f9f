"""Runs traffic with settings: the production scheduler, the production policy and autoscaler, in the simulator. Ends
runs that are not worth their time: what they have missed or cost already can not be made good.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoscaling.forecast.forecaster import Forecaster, make_forecaster
from autoscaling.forecast.history import History, history_of_requests
from autoscaling.from_spec import ScalingSetup, is_paced, policy_choice
from autoscaling.scaler.decision import Limit
from autoscaling.shadow.contest import CountChange, flaps
from planning.simulator.bins import Bins
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.outcome import SimulationOutcome
from planning.simulator.scaling import SimulatedScaling
from planning.simulator.workload import Workload
from planning.tune.case import Part, TuningCase, parts_of, whole
from planning.tune.trial import Candidate, Exact, TrialResult

_EVERY_S = 600.0
"""Of simulated time."""


class OutOfTime(Exception):
    """The time for trying is over: what was running is thrown away."""


class Halted(Exception):
    """A run was ended at second `at_s` of it."""

    def __init__(self, at_s: float) -> None:
        super().__init__(at_s)
        self.at_s = at_s


@dataclass(frozen=True, slots=True)
class Stop:
    """When to end a run: at `deadline_s` of the clock; at more than `missed` requests of a class (by its number)
    that miss the SLO, at more than `hours` of replicas."""

    deadline_s: float
    missed: tuple[float, ...]
    hours: float = math.inf


@dataclass(frozen=True, slots=True)
class Watch:
    """Give it to a `CellSimulator` as `sample`. `codes`: the class of each request by number. Raises OutOfTime or
    Halted out of the run."""

    stop: Stop
    clock: Callable[[], float]
    slo_s: NDArray[np.float64]
    codes: NDArray[np.int64]

    def __call__(self, cell: CellSimulator, until_s: float) -> float:
        if self.clock() > self.stop.deadline_s:
            raise OutOfTime
        if math.isinf(until_s):
            return until_s
        if hours_so_far(cell, until_s) > self.stop.hours:
            raise Halted(until_s)
        out = cell.outcome
        came = int(np.searchsorted(out.arrived_s, until_s - self.slo_s.max(initial=0.0)))
        late = ~(out.ttft_s[:came] <= self.slo_s[:came])
        missed = np.bincount(self.codes[:came], weights=late, minlength=len(self.stop.missed))
        if any(count > maximum for count, maximum in zip(missed.tolist(), self.stop.missed, strict=True)):
            raise Halted(until_s)
        return until_s + _EVERY_S


def hours_so_far(cell: CellSimulator, now: float) -> float:
    return sum(min(replica.ended_s, now) - replica.started_s for replica in cell.fleet.replicas) / 3600


SLOT_S = 1_800.0
_STEP_S = 300.0
_FILLED = 0.7
"""How full the replicas are that a part in the middle of the traffic begins with."""
_DRAFT_PERIOD_S = 5.0
_DRAFT_PERIODS = 12
"""In a first look a policy is asked at most every five seconds, and at least so many times while a replica starts."""
_BEYOND = 0.05
"""A run is hopeless when so much more than the SLO allows is missed: near enough to see what less would do."""


@dataclass(frozen=True, slots=True)
class _Requests:
    """Those of a part, and the class of each by number."""

    work: Workload
    codes: NDArray[np.int64]


def tried(setup: ScalingSetup, candidate: Candidate, period_s: float) -> ScalingSetup:
    """The setup with the candidate's settings in it, asked every `period_s` where the policy has no pace of its own."""
    policy = policy_choice(setup.policy.name, candidate.settings, period_s)
    return replace(setup, policy=policy, bounds=replace(setup.bounds, minimum=candidate.minimum))


class TrialRunner:
    """Of one case. `clock` tells seconds, for those who limit a run."""

    def __init__(self, case: TuningCase, clock: Callable[[], float]) -> None:
        self.case = case
        self.load = case.load()
        self._clock = clock
        self._whole = whole(case.span_s)[0]
        names = [case.work.traffic_class[index] for index in range(len(case.work))]
        self.classes = tuple(sorted(set(names)))
        numbers = {name: number for number, name in enumerate(self.classes)}
        self._codes = np.array([numbers[name] for name in names], dtype=np.int64)
        self._counts = np.bincount(self._codes, minlength=len(self.classes)).astype(np.float64)
        self._parts = parts_of(self.load, case.span_s)
        self._requests: dict[Part, _Requests] = {}
        slower_s = min(_DRAFT_PERIOD_S, case.setup.replica_profile.start_up_s / _DRAFT_PERIODS)
        self._draft_period_s = max(case.setup.period_s, slower_s if is_paced(case.setup.policy.name) else 0.0)

    def draft(self, candidate: Candidate, deadline_s: float, max_hours: float = math.inf) -> TrialResult:
        """A first look: an estimate from parts of the traffic. Raises OutOfTime."""
        total = TrialResult(dict.fromkeys(self.classes, (0.0, 0.0)), 0.0)
        seen_s = 0.0
        for part in self._parts:
            stop = Stop(deadline_s, self._may_miss(total, part.weight), (max_hours - total.replica_hours) / part.weight)
            total = _sum(total, self._run(candidate, part, self._draft_period_s, stop), part.weight)
            seen_s += part.weight * (part.to_s - part.from_s)
            if total.stopped:
                return replace(total, replica_hours=total.replica_hours * self.case.span_s / seen_s)
        return total

    def exact(
        self, candidate: Candidate | None, deadline_s: float, max_hours: float = math.inf, to_the_end: bool = False
    ) -> TrialResult:
        """All of it, `to_the_end` however bad it is; None: with the fixed number of replicas. Raises OutOfTime."""
        nothing = TrialResult(dict.fromkeys(self.classes, (0.0, 0.0)), 0.0)
        may_miss = (math.inf,) * len(self.classes) if to_the_end else self._may_miss(nothing, 1.0)
        return self._run(candidate, self._whole, self.case.setup.period_s, Stop(deadline_s, may_miss, max_hours))

    def _may_miss(self, so_far: TrialResult, weight: float) -> tuple[float, ...]:
        """How many requests of each class a part may miss before the whole is hopeless."""
        missed = (requests - kept for requests, kept in (so_far.classes[name] for name in self.classes))
        shares = (1.0 - self.case.setup.attainment[name] + _BEYOND for name in self.classes)
        return tuple(
            (share * count - gone) / weight
            for share, count, gone in zip(shares, self._counts.tolist(), missed, strict=True)
        )

    def _run(self, candidate: Candidate | None, part: Part, period_s: float, stop: Stop) -> TrialResult:
        case, requests = self.case, self._of(part)
        from_s, work = part.from_s - part.lead_s, requests.work
        span_s = part.to_s - from_s
        watch = Watch(stop, self._clock, work.ttft_slo_s, requests.codes)
        cell = CellSimulator(self._settings(candidate, from_s, span_s, period_s), case.cost, work, sample=watch)
        try:
            out = cell.run()
        except Halted as halted:
            hours = hours_so_far(cell, halted.at_s) / max(halted.at_s, 1.0) * (part.to_s - part.from_s)
            return TrialResult(self._counted(cell.outcome, requests, part.lead_s, halted.at_s), hours, stopped=True)
        hours = (
            sum(max(0.0, min(life.ended_s, span_s) - max(life.started_s, part.lead_s)) for life in out.lifetimes) / 3600
        )
        exact = self._exact(out, cell, hours) if part == self._whole and period_s == case.setup.period_s else None
        return TrialResult(self._counted(out, requests, part.lead_s, math.inf), hours, exact)

    def _settings(self, candidate: Candidate | None, from_s: float, span_s: float, period_s: float) -> CellSettings:
        case = self.case
        if candidate is None:
            return replace(case.cell, replicas=case.fixed or case.cell.replicas)
        setup = tried(case.setup, candidate, period_s)
        scaling = SimulatedScaling(
            setup.autoscaler(),
            span_s,
            setup.attainment,
            case.start_unix_s + from_s,
            self._forecaster(from_s),
        )
        bounds = setup.bounds.at(case.start_unix_s + from_s)
        begin = case.cell.replicas if from_s <= 0 else math.ceil(self.load(from_s) / _FILLED)
        return replace(case.cell, replicas=min(bounds.maximum, max(bounds.minimum, begin)), scaling=scaling)

    def _forecaster(self, from_s: float) -> Forecaster | None:
        """With what came before, that of the traffic itself too."""
        case = self.case
        if case.setup.forecast == "none":
            return None
        work = case.work
        before = int(np.searchsorted(work.arrived_s, from_s))
        weighed = work.prompt_tokens[:before] + case.setup.replica_profile.decode_weight * work.output_tokens[:before]
        began_s = case.start_unix_s
        arrived_s = began_s + np.concatenate(([0.0], work.arrived_s[:before]))
        today = history_of_requests(arrived_s, np.concatenate(([0.0], weighed)), began_s + from_s)
        return make_forecaster(case.setup.forecast, case.history if not len(today) else _joined(case.history, today))

    def _of(self, part: Part) -> _Requests:
        if part not in self._requests:
            from_s = part.from_s - part.lead_s
            work = self.case.work if part == self._whole else self.case.work.between(from_s, part.to_s)
            first = int(np.searchsorted(self.case.work.arrived_s, from_s))
            self._requests[part] = _Requests(work, self._codes[first : first + len(work)])
        return self._requests[part]

    def _counted(
        self, out: SimulationOutcome, requests: _Requests, from_s: float, until_s: float
    ) -> Mapping[str, tuple[float, float]]:
        scored = (out.arrived_s >= from_s) & (out.arrived_s < until_s)
        kept = scored & (np.nan_to_num(out.ttft_s, nan=np.inf) <= requests.work.ttft_slo_s)
        count = len(self.classes)
        came, in_time = (
            np.bincount(requests.codes, weights=chosen, minlength=count).tolist() for chosen in (scored, kept)
        )
        return {name: (came[number], in_time[number]) for number, name in enumerate(self.classes)}

    def _exact(self, out: SimulationOutcome, cell: CellSimulator, replica_hours: float) -> Exact:
        case = self.case
        slo_s, span_s = case.work.ttft_slo_s, case.span_s
        kept = np.nan_to_num(out.ttft_s, nan=np.inf) <= slo_s
        slots, bins = Bins(SLOT_S, int(span_s / SLOT_S) + 1), Bins(_STEP_S, max(1, math.ceil(span_s / _STEP_S)))
        slot = slots.of(out.arrived_s)
        by_class = {}
        for number, name in enumerate(self.classes):
            own = slot[self._codes == number]
            requests = np.bincount(own, minlength=slots.count).astype(np.float64)
            in_time = np.bincount(own, weights=kept[self._codes == number], minlength=slots.count).astype(np.float64)
            by_class[name] = (requests, in_time)
        begins, ends = (np.array([getattr(life, name) for life in out.lifetimes]) for name in ("started_s", "ended_s"))
        replicas = bins.spread(begins, ends, ends - begins) / _STEP_S
        reasons = cell.scaling.reasons if cell.scaling is not None else {}
        cut = sum(reasons.get(limit.value, 0) for limit in (Limit.MAX_REPLICAS, Limit.COST_CEILING))
        changes = [CountChange(one.at_s, one.applied, one.requested) for one in out.scalings if one.changes]
        known = out.ttft_s[~np.isnan(out.ttft_s)]
        return Exact(
            3600 * replica_hours / span_s,
            len(changes),
            flaps(changes, self.load),
            float(np.quantile(known, 0.99)) if len(known) else math.nan,
            by_class,
            _STEP_S,
            replicas,
            cut / max(1, sum(reasons.values())),
        )


def _sum(total: TrialResult, more: TrialResult, weight: float) -> TrialResult:
    classes = {
        name: (requests + weight * more.classes[name][0], kept + weight * more.classes[name][1])
        for name, (requests, kept) in total.classes.items()
    }
    return TrialResult(classes, total.replica_hours + weight * more.replica_hours, stopped=more.stopped)


def _joined(before: History, after: History) -> History:
    """One after the other, the unknown between them."""
    if not len(before):
        return after
    gap = after.first - before.first - len(before)
    return History(
        before.first, (*before.rates[: len(before) + min(0, gap)], *([math.nan] * max(0, gap)), *after.rates)
    )
