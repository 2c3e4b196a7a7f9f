"""The figures of the scenarios and recorded days are the recorded ones, to the last digit.

`write.py` says when they may be recorded anew.
"""

import json

import pytest

from tests.planning.workload.real import real
from tests.recorded.figures import CASES, DAYS
from tests.recorded.figures_adapter import figures_of
from tests.recorded.files import FIGURES, FOLDER

QUICK = ("burst", "backlog")


def assert_as_recorded(scenario: str, policy: str) -> None:
    known = json.loads((FOLDER / FIGURES).read_text())
    (recorded,) = [one["figures"] for one in known if (one["scenario"], one["policy"]) == (scenario, policy)]
    traces = real("servegen_client_rates_600s.parquet").parent if scenario in DAYS else None
    assert figures_of(scenario, 0, policy, traces) == recorded


@pytest.mark.whole
def test_the_figures_of_a_scenario_are_the_recorded_ones() -> None:
    assert_as_recorded(*QUICK)


@pytest.mark.long
@pytest.mark.parametrize(("scenario", "policy"), [case for case in CASES if case != QUICK])
def test_the_figures_are_the_recorded_ones(scenario: str, policy: str) -> None:
    assert_as_recorded(scenario, policy)
