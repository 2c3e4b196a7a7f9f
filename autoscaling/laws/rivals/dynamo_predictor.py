"""Dynamo's predictors of the next interval that need no library: the last value, and a Kalman filter of a level with a trend.

Follows ai-dynamo/dynamo, `components/src/dynamo/planner/core/load/predictors.py` (commit 260b6ae9412cea46626b25b11407fbebd30e5cb0). The default
there is pmdarima's automatic ARIMA, which predicts the last value itself until it has five, whenever they are all alike, and whenever its fit fails;
prophet is the other that needs a library. Leading zeros are skipped, so that a deployment that nobody uses yet does not count as history.
"""

from enum import StrEnum


class Predictor(StrEnum):
    """How the next interval is predicted."""

    CONSTANT = "constant"
    """As the last was."""
    KALMAN = "kalman"
    """A level and its trend, filtered."""


class Series:
    """One quantity, interval by interval. `q_level`, `q_trend` and `r` are the variances of the level's and the trend's steps and of a
    measurement."""

    def __init__(self, predictor: Predictor, q_level: float, q_trend: float, r: float) -> None:
        self._predictor = predictor
        self._q_level, self._q_trend, self._r = q_level, q_trend, r
        self._last: float | None = None
        self._level = self._trend = 0.0
        self._variance = (1_000.0, 0.0, 1_000.0)
        """Of the level, of both together, of the trend."""
        self._ahead = False

    def add(self, value: float) -> None:
        """The interval that ended had this."""
        if self._last is None:
            if value:
                self._last = self._level = value
            return
        self._last = value
        if not self._ahead:
            self._predict()
        self._correct(value)
        self._ahead = False

    def next(self) -> float:
        """What the interval that begins is predicted to have."""
        if self._last is None or self._predictor is Predictor.CONSTANT:
            return self._last or 0.0
        if not self._ahead:
            self._predict()
            self._ahead = True
        return self._level

    def _predict(self) -> None:
        level, both, trend = self._variance
        self._level += self._trend
        self._variance = (level + 2 * both + trend + self._q_level, both + trend, trend + self._q_trend)

    def _correct(self, value: float) -> None:
        level, both, trend = self._variance
        error, total = value - self._level, level + self._r
        self._level += level / total * error
        self._trend += both / total * error
        self._variance = (level - level * level / total, both - level * both / total, trend - both * both / total)
