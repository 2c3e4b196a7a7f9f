"""What a search comes to: the front, the proposal, and what it is expected to change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planning.simulator.report.facts import Price
from planning.tune.choice import Chosen, Ground, choose
from planning.tune.played import Exact, Played
from planning.tune.trial import Trial, front
from planning.tune.trust import Trust

SCHEMA_VERSION = 1
DAY_S = 86_400.0
_WORTH = 0.01
"""A proposal that saves less than this and mends no promise is none."""


@dataclass(frozen=True)
class Advice:
    """`before` is what the spec says now. `seconds`: how long was searched; `span_s`: what the traffic stands for."""

    model: str
    policy: str
    promises: Mapping[str, float]
    span_s: float
    trials: Sequence[Trial]
    before: Trial
    chosen: Chosen
    price: Price
    trust: Trust
    seconds: float

    @property
    def front(self) -> list[Trial]:
        """Of the runs of the whole, the ones that no other beats; the cheapest first."""
        return front(self.trials, self.promises)

    @property
    def looked_at(self) -> int:
        """Settings of which there was a first look."""
        return sum(trial.draft is not None for trial in self.trials)

    @property
    def finished(self) -> list[Trial]:
        """Settings with which all of the traffic was played."""
        return [trial for trial in self.trials if trial.finished]

    @property
    def worth_it(self) -> bool:
        """Whether the proposal is any better than what there is."""
        before, after = played(self.before), played(self.chosen.trial)
        if self.chosen.trial is self.before:
            return False
        mends = before.slack(self.promises) < 0 and after.slack(self.promises) > before.slack(self.promises)
        return mends or after.replica_hours < (1 - _WORTH) * before.replica_hours

    @property
    def keeps(self) -> bool:
        """Whether the proposal kept every promise on this traffic."""
        return self.chosen.ground is not Ground.NEAREST

    def hours_a_day(self, trial: Trial) -> float:
        """GPU-hours (replica-hours where no GPU is known) a day."""
        return played(trial).replica_hours * self.price.per_replica * DAY_S / self.span_s

    def usd_a_day(self, trial: Trial) -> float | None:
        """None without a price."""
        return None if self.price.usd_per_hour is None else self.hours_a_day(trial) * self.price.usd_per_hour

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        shown = {trial.name: trial for trial in (self.before, *self.front, self.chosen.trial)}
        return {
            "schema": SCHEMA_VERSION,
            "model": self.model,
            "policy": self.policy,
            "promises": dict(self.promises),
            "span_s": self.span_s,
            "seconds": self.seconds,
            "looked_at": self.looked_at,
            "played": len(self.finished),
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
        }

    def _trial(self, trial: Trial) -> dict[str, Any]:
        exact, of_whole = played(trial), exact_of(trial)
        return {
            "settings": None if trial.candidate is None else dict(trial.candidate.settings),
            "replicas_min": None if trial.candidate is None else trial.candidate.least,
            "attainment": exact.attainment,
            "by_class": {name: exact.attained(name) for name in exact.classes},
            "hours_a_day": self.hours_a_day(trial),
            "usd_a_day": self.usd_a_day(trial),
            "mean_replicas": of_whole.score.mean_replicas,
            "changes": of_whole.score.changes,
            "flaps": of_whole.score.flaps,
            "ttft_p99_s": of_whole.score.ttft_p99_s,
            "at_most": of_whole.at_most,
        }


def advise(
    model: str, policy: str, promises: Mapping[str, float], span_s: float, trials: Sequence[Trial], price: Price, trust: Trust, seconds: float
) -> Advice:
    """From a search's trials, the spec's own settings first. Raises ValueError where none was played to its end."""
    return Advice(model, policy, promises, span_s, trials, trials[0], choose(trials, promises), price, trust, seconds)


def played(trial: Trial) -> Played:
    """The run of the whole."""
    assert trial.exact is not None
    return trial.exact


def exact_of(trial: Trial) -> Exact:
    """What only a run of the whole tells."""
    found = played(trial).exact
    assert found is not None
    return found
