"""The forecaster that a spec names (`autoscaling.forecast`), for whoever plays traffic. The controller's own is `autoscaling/serve/foresight.py`."""

from autoscaling.forecast.history import History
from autoscaling.signals.forecaster import Forecaster


def make_forecaster(name: str, history: History | None = None) -> Forecaster | None:
    """A new one that knows that history; None for `none`. Raises ValueError for a name that there is not."""
    if name == "none":
        return None
    if name != "seasonal":
        raise ValueError(f"forecast = {name!r}; allowed: none, seasonal")
    from autoscaling.forecast.seasonal import SeasonalForecaster  # takes seconds to import, which only forecasts need

    return SeasonalForecaster(history)
