"""The seasonal forecast, by day and by week. It learns while it serves.

Its standard errors are corrected by the errors of its own earlier forecasts of the next half hour, because an
autoregression knows neither the uncertainty of its coefficients nor the heavy tails of traffic.

    error = the fit's error * max(1, sqrt(EWMA of ((rate - forecast) / the fit's error)^2))
"""

import math
from collections.abc import Callable
from enum import StrEnum

import numpy as np

from autoscaling.forecast.autoregression import MIN, foretell
from autoscaling.forecast.history import STEP_S, FloatArray, History, Recorder, known
from autoscaling.signals.signals import Forecast, Signals

STEPS = 18
"""Three hours."""
_JUDGED = 3
_WEIGHT = 0.02
_LARGEST = 9.0
"""The square root of this is the largest counted error of a single forecast, in standard errors."""

Foretelling = Callable[[FloatArray, int], tuple[FloatArray, FloatArray]]


class ForecastState(StrEnum):
    LEARNING = "learning"
    """Less than a day is known."""
    READY = "ready"
    FAILED = "failed"
    """The fit raised an error, or its result was not finite: no forecast until the next step."""


class SeasonalForecaster:
    """See `Forecaster`. It fits when a step of ten minutes is over, not more often.

    It continues a `history`, or reads a `recorder` that something else fills. `failures` counts failed fits, and
    `error` is the last message, for metrics and alarms. It can be pickled between any two calls.
    """

    def __init__(
        self, history: History | None = None, foretelling: Foretelling = foretell, recorder: Recorder | None = None
    ) -> None:
        self.state = ForecastState.LEARNING
        self.failures = 0
        self.error: str | None = None
        self._recorder = recorder or Recorder(history)
        self._foretelling = foretelling
        self._made_after: int | None = None
        self._made: Forecast | None = None
        self._reported: dict[int, list[tuple[float, float]]] = {}
        self._surprise = 1.0

    @property
    def failed(self) -> bool:
        return self.state is ForecastState.FAILED

    def look(self, signals: Signals) -> None:
        self._recorder.look(signals.unix_s, signals.epoch, signals.arrived_work)

    def forecast(self, unix_s: float) -> Forecast | None:
        """The forecast from the current step on; None while there is too little history, or if the last forecast no
        longer reaches `unix_s`."""
        closed = self._recorder.closed
        if closed is not None and closed != self._made_after:
            self._make(closed)
            self._made_after = closed
        made = self._made
        return made if made is not None and unix_s < made.at_s + made.step_s * len(made.work_per_s) else None

    def _make(self, closed: int) -> None:
        self._made = None
        try:
            history = self._recorder.history
            self._judge(closed, history.rates[-1])
            rates = known(history)
            if len(rates) < MIN:
                self.state = ForecastState.LEARNING
                return
            mean, error = self._foretelling(rates, STEPS)
        except Exception as problem:  # whatever goes wrong here, scaling must go on without
            self.failures += 1
            self.state, self.error = ForecastState.FAILED, f"{type(problem).__name__}: {problem}"
            return
        self.state = ForecastState.READY
        for ahead in range(_JUDGED):
            self._reported.setdefault(closed + 1 + ahead, []).append((float(mean[ahead]), float(error[ahead])))
        wider = error * math.sqrt(max(1.0, self._surprise))
        self._made = Forecast((closed + 1) * STEP_S, STEP_S, tuple(mean.tolist()), tuple(wider.tolist()))

    def _judge(self, closed: int, rate: float) -> None:
        """Compares the forecast of the step that is over with its rate."""
        for mean, error in self._reported.pop(closed, ()):
            if error > 0 and not np.isnan(rate):
                off = min(_LARGEST, (rate - mean) ** 2 / error**2)
                self._surprise += _WEIGHT * (off - self._surprise)
        for step in [step for step in self._reported if step <= closed]:
            del self._reported[step]
