"""What a search comes to: the front, the proposal, and what it is expected to change; and whether a proposal may rest
on the simulator: only as far as its error on this deployment is known, and small.

Someone on call who sets what a tool proposes acts on the tool's figures. Where nobody has compared the simulator with
this deployment, or it was off by more than what the proposal is about, its figures are guesses, and a guess must not
look like advice: it is refused, with a code of its own so that a pipeline stops there, and shown only to those who ask
for it all the same (`--anyway`), with the warning in it. Live runs that differ among themselves excuse nothing here: an
error that is not known well is not small.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deployments.telemetry.published_error import Published
from deployments.wire import to_json
from planning.report.facts import Price
from planning.tune.choice import Chosen, Ground
from planning.tune.gains import Gain
from planning.tune.trial import Exact, TrialResult, TuningTrial, front
from planning.uncertainty import CostRange, Range

MAX_TTFT, MAX_CAPACITY = 0.2, 0.1
"""How far the p90 of TTFT may be off at any load, and the capacity (shares)."""
_FIGURE = "ttft/all/p90"


@dataclass(frozen=True, slots=True)
class Trust:
    """`doubts`: why the simulator's figures are not to be relied on; none: they are. `error`: what is known of it, in
    words."""

    doubts: tuple[str, ...]
    error: str


def judge(published: Published | None, model: str) -> Trust:
    """Judges what a rehearsal published."""
    if published is None:
        missing = "no published error: nobody has compared the simulator with this deployment"
        return Trust((missing,), "unknown: never rehearsed")
    doubts = (
        [] if published.model == model else [f"the published error is of model {published.model!r}, not of {model!r}"]
    )
    found = [(at.load, figure.error) for at in published.loads for figure in at.figures if figure.name == _FIGURE]
    if not found:
        doubts.append(f"the published error has no figure {_FIGURE!r}")
    doubts += [
        f"TTFT p90 at {load:g} x capacity is off by {error:+.1%}; allowed: {MAX_TTFT:.0%}"
        for load, error in found
        if abs(error) > MAX_TTFT
    ]
    if abs(published.capacity_error) > MAX_CAPACITY:
        doubts.append(f"the capacity is off by {published.capacity_error:+.1%}; allowed: {MAX_CAPACITY:.0%}")
    loads = ", ".join(f"{error:+.1%} at {load:g} x capacity" for load, error in found) or "not reported"
    reported = (
        f"TTFT p90 {loads}; capacity {published.capacity_error:+.1%}; rehearsed {published.measured_at[:10]} on "
        f"{published.replicas} replica(s)"
    )
    return Trust(tuple(doubts), reported)


SCHEMA_VERSION = 1
DAY_S = 86_400.0
_WORTH = 0.01
"""A proposal that saves less than this and fixes no SLO is none."""


@dataclass(frozen=True, slots=True)
class TrialRange:
    """The lowest and the highest figures of one trial, over the costs and both ends of their range: attainment by
    class, replica-hours, TTFT p99."""

    attained: Mapping[str, Range]
    replica_hours: Range
    ttft_p99_s: Range


def trial_range(trial: TuningTrial, ends: Sequence[TrialResult]) -> TrialRange:
    """Of a finished trial, and of runs of the whole traffic with its settings and the costs at their ends."""
    runs = [trial.whole, *ends]
    late = [run.exact.ttft_p99_s for run in runs if run.exact is not None]
    hours = [run.replica_hours for run in runs]
    attained = {name: [run.attained(name) for run in runs] for name in runs[0].classes}
    return TrialRange(
        {name: (min(shares), max(shares)) for name, shares in attained.items()},
        (min(hours), max(hours)),
        (min(late), max(late)),
    )


@dataclass(frozen=True, slots=True)
class Check:
    """The spec's own settings (`before`) and those chosen (`after`) on another trace, which stands for `span_s`."""

    trace: str
    span_s: float
    before: TrialResult
    after: TrialResult

    def missed(self, slos: Mapping[str, float]) -> list[str]:
        """The classes that missed their SLO there."""
        return [name for name in self.after.classes if self.after.attained(name) < slos[name]]


@dataclass(frozen=True)
class Advice:
    """`trials`: the spec's own settings first. `seconds`: how long was searched; `span_s`: what the traffic stands for.
    `costs`: the range of the costs, and `ranges` what it makes of the spec's own settings and of those chosen, by
    name. `gains`: what each change of the proposal is worth."""

    model: str
    policy: str
    slos: Mapping[str, float]
    span_s: float
    trials: Sequence[TuningTrial]
    chosen: Chosen
    price: Price
    trust: Trust
    seconds: float
    costs: CostRange | None = None
    ranges: Mapping[str, TrialRange] = field(default_factory=dict)
    gains: Sequence[Gain] = ()
    check: Check | None = None

    @property
    def before(self) -> TuningTrial:
        """What the spec says now."""
        return self.trials[0]

    @property
    def front(self) -> list[TuningTrial]:
        """Of the runs of the whole, the ones that no other beats; the cheapest first."""
        return front(self.trials, self.slos)

    @property
    def looked_at(self) -> int:
        return sum(trial.draft is not None for trial in self.trials)

    @property
    def finished(self) -> list[TuningTrial]:
        """Settings with which all of the traffic was run."""
        return [trial for trial in self.trials if trial.finished]

    @property
    def worth_it(self) -> bool:
        """Whether the proposal is any better than what there is."""
        before, after = self.before.whole, self.chosen.trial.whole
        if self.chosen.trial is self.before:
            return False
        improves = before.slack(self.slos) < 0 and after.slack(self.slos) > before.slack(self.slos)
        return improves or after.replica_hours < (1 - _WORTH) * before.replica_hours

    @property
    def keeps(self) -> bool:
        return self.chosen.ground is not Ground.NEAREST

    def hours_a_day(self, trial: TuningTrial) -> float:
        """GPU-hours (replica-hours where no GPU is known) a day."""
        return self.a_day(trial.whole.replica_hours)

    def a_day(self, replica_hours: float, span_s: float | None = None) -> float:
        """GPU-hours a day, from the replica-hours of a run of `span_s`, by default that of the traffic tuned on."""
        return replica_hours * self.price.per_replica * DAY_S / (span_s or self.span_s)

    @property
    def at_risk(self) -> list[str]:
        """The classes whose SLO the chosen settings meet, but not with the costs at both ends of their range."""
        found = self.ranges.get(self.chosen.trial.name)
        kept = self.chosen.trial.whole
        return [
            name
            for name, (low, _) in (found.attained.items() if found else ())
            if low < self.slos[name] <= kept.attained(name)
        ]

    def usd_a_day(self, trial: TuningTrial) -> float | None:
        return None if self.price.usd_per_hour is None else self.hours_a_day(trial) * self.price.usd_per_hour

    def as_json(self) -> dict[str, Any]:
        shown = {trial.name: trial for trial in (self.before, *self.front, self.chosen.trial)}
        return {
            "schema": SCHEMA_VERSION,
            "model": self.model,
            "policy": self.policy,
            "slos": dict(self.slos),
            "span_s": self.span_s,
            "seconds": self.seconds,
            "looked_at": self.looked_at,
            "outcome": len(self.finished),
            "hours": self.price.hours,
            "usd_per_hour": self.price.usd_per_hour,
            "trials": {name: self._trial(trial) for name, trial in shown.items()},
            "before": self.before.name,
            "front": [trial.name for trial in self.front],
            "chosen": self.chosen.trial.name,
            "ground": self.chosen.ground.value,
            "worth_it": self.worth_it,
            "simulator_error": self.trust.error,
            "doubts": list(self.trust.doubts),
            "costs_range": to_json(self.costs),
            "at_risk": self.at_risk,
            "gains": [
                {
                    "setting": gain.setting,
                    "now": gain.now,
                    "proposed": gain.proposed,
                    "kept": gain.kept,
                    "saves_hours_a_day": self.a_day(gain.saves),
                    "by_class_without": dict(gain.attained),
                }
                for gain in self.gains
            ],
            "check": None if self.check is None else self._check(self.check),
        }

    def _check(self, check: Check) -> dict[str, Any]:
        def figures(run: TrialResult) -> dict[str, Any]:
            by_class = {name: run.attained(name) for name in run.classes}
            return {"by_class": by_class, "hours_a_day": self.a_day(run.replica_hours, check.span_s)}

        return {
            "trace": check.trace,
            "before": figures(check.before),
            "after": figures(check.after),
            "missed": check.missed(self.slos),
        }

    def _trial(self, trial: TuningTrial) -> dict[str, Any]:
        exact, of_whole = trial.whole, exact_of(trial)
        return {
            "settings": None if trial.candidate is None else dict(trial.candidate.settings),
            "replicas_min": None if trial.candidate is None else trial.candidate.minimum,
            "attainment": exact.attainment,
            "by_class": {name: exact.attained(name) for name in exact.classes},
            "hours_a_day": self.hours_a_day(trial),
            "usd_a_day": self.usd_a_day(trial),
            "mean_replicas": of_whole.mean_replicas,
            "changes": of_whole.changes,
            "flaps": of_whole.flaps,
            "ttft_p99_s": of_whole.ttft_p99_s,
            "at_most": of_whole.at_most,
            "range": self._range(trial),
        }

    def _range(self, trial: TuningTrial) -> dict[str, Any] | None:
        found = self.ranges.get(trial.name)
        if found is None:
            return None
        hours = [self.a_day(hours) for hours in found.replica_hours]
        return {"by_class": to_json(found.attained), "hours_a_day": hours, "ttft_p99_s": list(found.ttft_p99_s)}


def exact_of(trial: TuningTrial) -> Exact:
    found = trial.whole.exact
    assert found is not None
    return found
