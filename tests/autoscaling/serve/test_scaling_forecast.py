"""A forecast among what a model's scaling goes by, and its failing."""

from pathlib import Path

from autoscaling.log import inputs_of
from autoscaling.signals.signals import Forecast, Signals
from deployments.decisions import Input
from tests.autoscaling.serve.scaling_harness import Run
from tests.autoscaling.setups import entries_of, replayed
from tests.autoscaling.test_from_spec import COSTS


class Foretold:
    """Expects always the same."""

    seen = 0
    failed = False

    def look(self, signals: Signals) -> None:
        self.seen += 1

    def forecast(self, unix_s: float) -> Forecast | None:
        return Forecast(unix_s, 3_600.0, (1e6,), (0.0,))


def test_a_forecast_is_an_input_and_stands_in_the_log(run: Run, tmp_path: Path) -> None:
    forecaster = Foretold()
    harness = run(ready=1, forecaster=forecaster, maximum=4, costs=str(COSTS))
    harness.cell.burst(60)
    for _ in range(3):
        harness.turn()
    assert forecaster.seen == 3
    assert replayed(entries_of(tmp_path)).difference is None
    last = entries_of(tmp_path)[-1]
    assert isinstance(last, Input)
    forecast = inputs_of(last).signals.forecast
    assert forecast is not None
    assert forecast.work_per_s == (1e6,)


def test_a_failing_forecast_holds_the_number_and_is_an_alarm(run: Run, tmp_path: Path) -> None:
    forecaster = Foretold()
    harness = run(ready=3, policy="fixed", count=1, forecaster=forecaster)
    forecaster.failed = True
    state = harness.turn()
    assert (state.requested, state.reason, state.alarms) == (3, "forecast_failed", ("forecast_failed",))
    assert replayed(entries_of(tmp_path)).difference is None
    forecaster.failed = False
    state = harness.turn()
    assert (state.requested, state.reason, state.alarms) == (1, "steady", ())
