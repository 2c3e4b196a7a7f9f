"""The inputs of the throughput loop of Dynamo's planner: what it measures of the traffic in each interval, and its
predictors of the next interval.

The predictors follow ai-dynamo/dynamo, `components/src/dynamo/planner/core/load/predictors.py` (commit
260b6ae9412cea46626b25b11407fbebd30e5cb0), as far as they need no library: the last value, and a Kalman filter of a
level with a trend. The default there is pmdarima's automatic ARIMA, which predicts the last value itself until it has
five, whenever they are all alike, and whenever its fit fails; prophet is the other that needs a library. Leading zeros
are skipped, so that a deployment that nobody uses yet does not count as history.
"""

from dataclasses import dataclass
from enum import StrEnum

from autoscaling.signals.signals import Signals


@dataclass(frozen=True, slots=True)
class TrafficInterval:
    """`requests` came in `seconds`, of `isl` tokens of prompt on average; those that ended had `osl` of output."""

    seconds: float
    requests: int
    isl: float
    osl: float


@dataclass(frozen=True, slots=True)
class _Counts:
    at_s: float
    epoch: int
    requests: int
    prompt_tokens: int
    ended: int
    output_tokens: int


class TrafficWindow:
    """The open interval, counted by the scheduler, and the mean lengths of the last requests that were seen."""

    def __init__(self) -> None:
        self._opened: _Counts | None = None
        self.isl = 0.0
        self.osl = 0.0

    def look(self, signals: Signals) -> None:
        """Counts on. A scheduler that started again opens a new interval."""
        now = _counts(signals)
        if self._opened is None or self._opened.epoch != now.epoch:
            self._learn(now.requests, now.prompt_tokens, now.ended, now.output_tokens)
            self._opened = now
            return
        since = self._opened
        self._learn(
            now.requests - since.requests,
            now.prompt_tokens - since.prompt_tokens,
            now.ended - since.ended,
            now.output_tokens - since.output_tokens,
        )

    def close(self, signals: Signals) -> TrafficInterval | None:
        """Ends the interval and opens the next; None where it has no length. Requests of an idle one are taken to be as
        long as the last."""
        since, now = self._opened, _counts(signals)
        self._opened = now
        if since is None or now.at_s <= since.at_s:
            return None
        return TrafficInterval(now.at_s - since.at_s, max(0, now.requests - since.requests), self.isl, self.osl)

    def seconds(self, now: float) -> float:
        return 0.0 if self._opened is None else now - self._opened.at_s

    def _learn(self, requests: int, prompt_tokens: int, ended: int, output_tokens: int) -> None:
        if requests > 0 and prompt_tokens > 0:
            self.isl = prompt_tokens / requests
        if ended > 0 and output_tokens > 0:
            self.osl = output_tokens / ended


def _counts(signals: Signals) -> _Counts:
    prompt_tokens = sum(flow.prompt_tokens for flow in signals.flows)
    return _Counts(
        signals.at_s,
        signals.epoch,
        signals.arrived,
        prompt_tokens,
        signals.snapshot.counted,
        signals.snapshot.output_tokens,
    )


class Predictor(StrEnum):
    CONSTANT = "constant"
    """As the last was."""
    KALMAN = "kalman"
    """A level and its trend, filtered."""


class Series:
    """One quantity, interval by interval. `q_level`, `q_trend` and `r` are the variances of the level's and the trend's
    steps and of a measurement."""

    def __init__(self, predictor: Predictor, q_level: float, q_trend: float, r: float) -> None:
        self._predictor = predictor
        self._q_level, self._q_trend, self._r = q_level, q_trend, r
        self._last: float | None = None
        self._level = self._trend = 0.0
        self._variance = (1_000.0, 0.0, 1_000.0)
        """Of the level, of both together, of the trend."""
        self._ahead = False

    def add(self, value: float) -> None:
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
