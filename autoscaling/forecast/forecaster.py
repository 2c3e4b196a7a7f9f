"""The contract of a forecast of arriving work, and the forecaster that a spec names."""

from typing import Protocol

from autoscaling.forecast.history import History
from autoscaling.signals.signals import Forecast, Signals


class Forecaster(Protocol):
    """Forecasts arriving work from what it has seen."""

    @property
    def failed(self) -> bool:
        """Whether a forecast failed. It raises an alarm, and no replica is removed meanwhile."""
        ...

    def look(self, signals: Signals) -> None: ...

    def forecast(self, unix_s: float) -> Forecast | None:
        """The forecast from that time of day on; None while there is too little history."""
        ...


def make_forecaster(name: str, history: History | None = None) -> Forecaster | None:
    """A new one with that history; None for `none`. Raises ValueError for an unknown name."""
    if name == "none":
        return None
    if name != "seasonal":
        raise ValueError(f"forecast = {name!r}; allowed: none, seasonal")
    from autoscaling.forecast.seasonal import SeasonalForecaster  # takes seconds to import, which only forecasts need

    return SeasonalForecaster(history)
