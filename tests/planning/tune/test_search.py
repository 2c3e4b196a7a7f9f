"""The search, against a plant in closed form whose best settings are known; its clock is moved by what it runs."""

import math
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pytest

from autoscaling.policies.settings import Range
from planning.tune.choice import Ground, choose
from planning.tune.search import Budget, Search, SearchError
from planning.tune.space import Space
from planning.tune.trial import Candidate, Exact, TrialResult, TuningTrial, front
from planning.tune.trial_runner import OutOfTime, TrialRunner

pytestmark = pytest.mark.whole

SLOS = {"interactive": 0.99}
SPACE = Space(
    {"cover": Range(0.5, 8.0, log=True), "fill": Range(0.3, 1.0), "idle": Range(0.0, 1.0)}, (1, 3), {"kept": True}
)
OWN = Candidate({"kept": True, "cover": 7.0, "fill": 0.35, "idle": 0.9}, 3)
DEFAULTS = Candidate({"kept": True, "cover": 3.0, "fill": 0.6, "idle": 0.5}, 1)


def truth(candidate: Candidate) -> tuple[float, float]:
    """Hours and the share missed: cover costs and helps, fill saves and hurts beyond 0.8, idling only costs."""
    cover, fill, idle = (float(candidate.settings[name] or 0) for name in ("cover", "fill", "idle"))
    hours = (20 + 10 * cover) / fill * (1 + 0.5 * idle) + 5 * candidate.minimum
    missed = 0.05 * math.exp(-cover) + 0.2 * max(0.0, fill - 0.8) ** 2 + 0.0005
    return hours, missed


@dataclass
class Formula:
    """Runs by the formula; first looks are off by some per cent, the same for the same settings."""

    now: float = 0.0
    looks: list[Candidate] = field(default_factory=list)
    runs: list[Candidate | None] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def draft(self, candidate: Candidate, deadline_s: float, max_hours: float = math.inf) -> TrialResult:
        self._spend(1.0, deadline_s)
        self.looks.append(candidate)
        hours, missed = truth(candidate)
        off = 0.03 * math.sin(1e3 * hours)
        outcome = TrialResult(
            {"interactive": (10_000.0, 10_000 * (1 - min(1.0, missed * (1 + 5 * off))))}, 0.9 * hours * (1 + off)
        )
        return (
            TrialResult(outcome.classes, outcome.replica_hours, stopped=True)
            if outcome.replica_hours > max_hours
            else outcome
        )

    def exact(
        self, candidate: Candidate | None, deadline_s: float, max_hours: float = math.inf, to_the_end: bool = False
    ) -> TrialResult:
        self._spend(5.0, deadline_s)
        self.runs.append(candidate)
        hours, missed = truth(OWN if candidate is None else candidate)
        kept = 10_000 * (1 - missed)
        slots = {"interactive": (np.full(10, 1_000.0), np.full(10, kept / 10))}
        return TrialResult(
            {"interactive": (10_000.0, kept)}, hours, Exact(1.0, 0, 0, 1.0, slots, 300.0, np.ones(3), 0.0)
        )

    def _spend(self, seconds: float, deadline_s: float) -> None:
        self.now += seconds
        if self.now > deadline_s:
            raise OutOfTime


def searched(budget: Budget, own: Candidate | None = OWN, seed: int = 0) -> tuple[Formula, list[TuningTrial]]:
    plant = Formula()
    return plant, search_of(plant, budget, seed).run(own, DEFAULTS)


def search_of(plant: Formula, budget: Budget, seed: int = 0) -> Search:
    return Search(cast(TrialRunner, plant), SPACE, SLOS, budget, plant.clock, seed=seed)


def best_known() -> float:
    """The fewest hours that meet the SLO."""
    covers, fills = np.meshgrid(np.geomspace(0.5, 8, 400), np.linspace(0.3, 1, 400))
    hours = (20 + 10 * covers) / fills + 5
    missed = 0.05 * np.exp(-covers) + 0.2 * np.maximum(0, fills - 0.8) ** 2 + 0.0005
    return float(hours[missed <= 0.01].min())


def test_it_comes_near_the_best_from_bad_settings() -> None:
    _, trials = searched(Budget(300.0))
    found = choose(trials, SLOS)
    assert found.ground is Ground.SURE
    assert found.trial.exact is not None
    assert found.trial.exact.replica_hours < 1.06 * best_known()
    assert truth(OWN)[0] > 3 * best_known()


def test_the_specs_settings_and_the_defaults_come_first_and_time_is_kept() -> None:
    plant, trials = searched(Budget(120.0))
    assert [trial.name for trial in trials[:2]] == ["spec", "defaults"]
    assert plant.runs[:2] == [OWN, DEFAULTS]
    assert plant.looks[:2] == [OWN, DEFAULTS]
    assert 110.0 < plant.now <= 120.0
    assert len(plant.runs) > 3


def test_so_many_settings_and_no_more_and_the_same_ones_again() -> None:
    (first, tried), (second, _) = (searched(Budget(1e6, 30)) for _ in range(2))
    assert first.looks == second.looks
    assert first.runs == second.runs
    assert len(tried) == 30
    other, _ = searched(Budget(1e6, 30), seed=1)
    assert other.looks != first.looks


def test_a_fixed_number_is_only_played_to_compare_with() -> None:
    _, trials = searched(Budget(1e6, 20), None)
    assert trials[0].candidate is None
    assert trials[0].draft is None
    assert choose(trials, SLOS).trial is not trials[0]


@pytest.mark.parametrize(("own", "seconds"), [(OWN, 3.0), (None, 3.0), (None, 8.0)])
def test_without_time_for_one_run_with_settings_it_says_so(own: Candidate | None, seconds: float) -> None:
    """That the fixed number was run is not enough: nothing can be proposed from that."""
    plant = Formula()
    with pytest.raises(SearchError, match=r"no simulation .* within 0.\d+ minutes; allowed: more time"):
        search_of(plant, Budget(seconds)).run(own, DEFAULTS)
    assert len(plant.runs) == (seconds > 5)


def test_the_front_has_no_point_that_another_beats() -> None:
    _, trials = searched(Budget(200.0))
    line = [
        (trial.exact.replica_hours, trial.exact.merit(SLOS)) for trial in front(trials, SLOS) if trial.exact is not None
    ]
    assert line == sorted(line)
    assert [merit for _, merit in line] == sorted(merit for _, merit in line)
    assert choose(trials, SLOS).trial in front(trials, SLOS)
