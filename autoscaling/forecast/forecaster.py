"""The contract of a forecast of arriving work, an input of scaling policies like any other; and the forecaster that a
spec names."""

from typing import Protocol

from autoscaling.forecast.history import History
from autoscaling.signals.signals import Forecast, Signals


class Forecaster(Protocol):
    """Foretells the arrival of work from what it was told."""

    @property
    def failed(self) -> bool:
        """Whether there should be a forecast, and there is none because something went wrong: an alarm, and nothing is
        taken away meanwhile."""
        ...

    def look(self, signals: Signals) -> None: ...

    def forecast(self, unix_s: float) -> Forecast | None:
        """What is expected from that time of day on; None while nobody can know."""
        ...


def make_forecaster(name: str, history: History | None = None) -> Forecaster | None:
    """A new one that knows that history; None for `none`. Raises ValueError for a name that there is not."""
    if name == "none":
        return None
    if name != "seasonal":
        raise ValueError(f"forecast = {name!r}; allowed: none, seasonal")
    from autoscaling.forecast.seasonal import SeasonalForecaster  # takes seconds to import, which only forecasts need

    return SeasonalForecaster(history)
