"""Which settings are proposed, and why: the cheapest that surely meet every SLO, else that kept them, else the
nearest."""

import numpy as np
import pytest

from planning.tune.choice import Ground, choose, sure_slack
from planning.tune.trial import Candidate, Exact, TrialResult, TuningTrial
from tests.planning.tune.test_search import SLOS


def trial(name: str, hours: float, missed: list[float]) -> TuningTrial:
    """A day of slots of 1,000 requests; that many of each are missed."""
    requests, kept = np.full(len(missed), 1_000.0), 1_000 - np.array(missed)
    exact = Exact(1.0, 0, 0, 1.0, {"interactive": (requests, kept)}, 300.0, np.ones(3), 0.0)
    return TuningTrial(
        name,
        Candidate({}, 1),
        exact=TrialResult({"interactive": (float(requests.sum()), float(kept.sum()))}, hours, exact),
    )


EVEN = trial("even", 100.0, [8.0] * 48)
BURST = trial("burst", 80.0, [0.0] * 47 + [380.0])
BROKEN = trial("broken", 10.0, [30.0] * 48)
WORSE = trial("worse", 5.0, [90.0] * 48)


def test_misses_that_come_in_one_burst_are_less_sure() -> None:
    assert EVEN.exact is not None
    assert BURST.exact is not None
    assert BURST.exact.slack(SLOS) > EVEN.exact.slack(SLOS)
    assert sure_slack(BURST.exact, SLOS) < 0 <= sure_slack(EVEN.exact, SLOS)


@pytest.mark.parametrize(
    ("trials", "name", "ground"),
    [
        ([EVEN, BURST, BROKEN], "even", Ground.SURE),
        ([BURST, BROKEN], "burst", Ground.KEPT),
        ([WORSE, BROKEN], "broken", Ground.NEAREST),
    ],
)
def test_the_cheapest_that_keeps_its_promise(trials: list[TuningTrial], name: str, ground: Ground) -> None:
    chosen = choose(trials, SLOS)
    assert (chosen.trial.name, chosen.ground) == (name, ground)
