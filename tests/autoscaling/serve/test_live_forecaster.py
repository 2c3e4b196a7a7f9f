"""What the controller foretells: nothing unless the spec in force wants it; what arrived is kept over a restart; a
broken file is no obstacle."""

import time
from pathlib import Path

import pytest

from autoscaling.forecast.history import A_DAY, STEP_S, History, HistoryError, read_history, write_history
from autoscaling.serve.facts import ModelFacts
from autoscaling.serve.live_forecaster import LiveForecaster, forecaster_of
from tests.autoscaling.forecast.made import MONDAY, history, moment, recorded
from tests.autoscaling.setups import spec_of


def facts(forecast: str) -> ModelFacts:
    return ModelFacts(spec_of(forecast=forecast).model_dump_json(), "m", "here")


def live_forecaster(folder: Path, forecast: str = "seasonal") -> LiveForecaster:
    found = forecaster_of(facts(forecast), folder)
    assert isinstance(found, LiveForecaster)
    return found


def kept_file(folder: Path) -> Path:
    """The one that holds what arrived, once it is there."""
    deadline = time.monotonic() + 30
    while not (found := list(folder.glob("*.arrivals.json"))):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found[0]


def look_at(live_forecaster: LiveForecaster, from_s: float, steps: int) -> None:
    for number in range(steps + 1):
        at_s = from_s + number * STEP_S
        live_forecaster.look(moment(at_s, 5.0 * number * STEP_S))


def test_a_history_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_history(path, History(7, (1.5, float("nan"), 0.0)))
    found = read_history(path)
    assert (found.first, found.rates[0], found.rates[2]) == (7, 1.5, 0.0)
    assert found.rates[1] != found.rates[1]
    path.write_text('{"first": 1, "rates": [-1]}')
    with pytest.raises(HistoryError, match=r"a.json: rates.0 = -1"):
        read_history(path)


def test_what_arrives_is_kept_though_nobody_wants_a_forecast(tmp_path: Path) -> None:
    none = live_forecaster(tmp_path, "none")
    look_at(none, MONDAY, 3)
    assert none.forecast(MONDAY + 3 * STEP_S) is None
    assert not none.failed
    path = kept_file(tmp_path)
    deadline = time.monotonic() + 30
    while len(read_history(path)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert read_history(path).rates == pytest.approx((5.0,) * 3)


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    first = live_forecaster(tmp_path)
    look_at(first, MONDAY, 1)
    path = kept_file(tmp_path)
    write_history(path, history(recorded(2 * A_DAY)))
    again = live_forecaster(tmp_path)
    found = again.forecast(MONDAY + 2 * A_DAY * STEP_S)
    assert found is not None
    assert not again.failed
    look_at(again, MONDAY + 2 * A_DAY * STEP_S, 1)
    later = again.forecast(MONDAY + (2 * A_DAY + 1) * STEP_S)
    assert later is not None
    assert later.at_s == found.at_s + STEP_S


def test_a_spec_that_wants_one_later_has_it_at_once(tmp_path: Path) -> None:
    one = facts("none")
    write_history(kept_name(tmp_path), history(recorded(2 * A_DAY)))
    found = forecaster_of(one, tmp_path)
    now = MONDAY + 2 * A_DAY * STEP_S
    assert found.forecast(now) is None
    assert one.follow(spec_of(forecast="seasonal").model_dump_json())
    assert found.forecast(now) is not None


def kept_name(folder: Path) -> Path:
    """Where it keeps what arrives."""
    look_at(live_forecaster(folder, "none"), MONDAY, 1)
    return kept_file(folder)


def test_a_broken_file_is_no_obstacle(tmp_path: Path) -> None:
    kept_name(tmp_path).write_text("no JSON")
    found = live_forecaster(tmp_path)
    assert found.forecast(MONDAY) is None
    assert not found.failed


def test_a_failing_library_is_told_and_no_exception(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_history(kept_name(tmp_path), history(recorded(2 * A_DAY)))
    found = live_forecaster(tmp_path)
    found._seasonal._foretelling = lambda rates, steps: 1 / 0  # type: ignore[assignment,return-value]
    assert found.forecast(MONDAY + 2 * A_DAY * STEP_S) is None
    assert found.failed
    assert "the forecast of model m failed (1 failures so far): ZeroDivisionError" in caplog.text
