"""What each change of a proposal gains, against the plant in closed form of the search's tests."""

import pytest

from planning.tune.choice import Ground, choose
from planning.tune.gains import gains
from planning.tune.trial import Candidate, TrialResult, TuningTrial
from tests.planning.tune.test_search import OWN, SLOS, Formula

GOOD = Candidate({"kept": True, "cover": 1.9, "fill": 0.8, "idle": 0.9}, 1)


def run(candidate: Candidate) -> TrialResult:
    return Formula().exact(candidate, 1e9)


def proposal(candidate: Candidate) -> TuningTrial:
    return TuningTrial("7", candidate, exact=run(candidate))


def test_each_change_has_the_hours_that_it_saves() -> None:
    chosen = choose([proposal(GOOD)], SLOS)
    found = gains(chosen, OWN, [], SLOS, run)
    assert found.chosen == chosen
    assert [gain.setting for gain in found.found] == ["cover", "fill", "replicas.min"]
    assert all(gain.kept and gain.saves > 0 for gain in found.found)
    fill = next(gain for gain in found.found if gain.setting == "fill")
    without = run(Candidate({**GOOD.settings, "fill": 0.35}, 1))
    assert fill.saves == pytest.approx(without.replica_hours - run(GOOD).replica_hours)
    assert (fill.now, fill.proposed) == (0.35, 0.8)


def test_a_change_that_costs_hours_and_keeps_no_slo_is_taken_back() -> None:
    chosen = choose([proposal(Candidate({**GOOD.settings, "idle": 1.0}, 1))], SLOS)
    found = gains(chosen, OWN, [], SLOS, run)
    assert [gain.setting for gain in found.found if not gain.kept] == ["idle"]
    assert found.chosen.trial.candidate == GOOD
    assert found.chosen.trial in found.runs


def test_a_change_that_keeps_the_slo_stays_though_it_costs_hours() -> None:
    now = Candidate({**GOOD.settings, "cover": 0.6}, 1)  # which misses the SLO
    found = gains(choose([proposal(GOOD)], SLOS), now, [], SLOS, run)
    (cover,) = found.found
    assert cover.kept
    assert cover.saves < 0
    assert cover.attained["interactive"] < SLOS["interactive"]
    assert found.chosen.ground is Ground.SURE


def test_what_was_run_is_not_run_again() -> None:
    own = TuningTrial("spec", OWN, exact=run(OWN))
    one = Candidate({**OWN.settings, "fill": 0.351}, 3)
    formula = Formula()
    found = gains(choose([proposal(one)], SLOS), OWN, [own], SLOS, lambda candidate: formula.exact(candidate, 1e9))
    assert not formula.runs
    assert found.chosen.trial is own, "all that was proposed gains nothing"
