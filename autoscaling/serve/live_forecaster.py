"""The forecast of one model's arriving work in the controller, as the spec in force says (`autoscaling.forecast`).

Arrivals are recorded in the run's folder even without a forecast, so that a later forecast, or a restart, has them at
once.
"""

import logging
import threading
from pathlib import Path

from autoscaling.forecast.forecaster import Forecaster
from autoscaling.forecast.history import History, HistoryError, Recorder, read_history, write_history
from autoscaling.forecast.seasonal import SeasonalForecaster
from autoscaling.log import log_name
from autoscaling.serve.facts import ModelFacts
from autoscaling.signals.signals import Forecast, Signals

log = logging.getLogger("raylane.scaling")


def forecaster_of(facts: ModelFacts, folder: Path) -> Forecaster:
    """Follows the spec in force; `folder` is that of the logs."""
    return LiveForecaster(facts, folder / f"{log_name(facts.model.group_key)}.arrivals.json")


class LiveForecaster:
    """See the module's docstring. A thread writes the files, so no disk delays a decision."""

    def __init__(self, facts: ModelFacts, path: Path) -> None:
        self._facts = facts
        self._path = path
        self._recorder = Recorder(_kept(path))
        self._seasonal = SeasonalForecaster(
            recorder=self._recorder
        )  # which looks through this recorder, and not by itself
        self._closed = self._recorder.closed
        self._writing = threading.Lock()
        self._kept_until = 0
        self._reported = 0

    @property
    def failed(self) -> bool:
        """Whether a forecast is wanted and the last one failed."""
        return self._enabled and self._seasonal.failed

    def look(self, signals: Signals) -> None:
        self._recorder.look(signals.unix_s, signals.epoch, signals.arrived_work)
        if self._recorder.closed != self._closed:
            self._closed = self._recorder.closed
            threading.Thread(
                target=self._keep, args=(self._recorder.history,), name="raylane-arrivals", daemon=True
            ).start()

    def forecast(self, unix_s: float) -> Forecast | None:
        """The forecast from that time of day on; None if the spec wants none, or there is too little history."""
        if not self._enabled:
            return None
        seasonal = self._seasonal
        found = seasonal.forecast(unix_s)
        if seasonal.failures > self._reported:
            self._reported = seasonal.failures
            log.error(
                "the forecast of model %s failed (%d failures so far): %s",
                self._facts.model.group_key,
                seasonal.failures,
                seasonal.error,
            )
        return found

    @property
    def _enabled(self) -> bool:
        return self._facts.setup.forecast == "seasonal"

    def _keep(self, history: History) -> None:
        until = history.first + len(history)
        with self._writing:
            if until <= self._kept_until:
                return  # a later thread was faster
            try:
                write_history(self._path, history)
                self._kept_until = until
            except OSError as error:
                log.warning(
                    "arrivals at model %s cannot be written to %s: %s", self._facts.model.group_key, self._path, error
                )


def _kept(path: Path) -> History | None:
    try:
        return read_history(path) if path.exists() else None
    except HistoryError as error:
        log.warning("the history of arrivals cannot be read: %s", error)
        return None
