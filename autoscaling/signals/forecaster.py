"""Who foretells the arrival of work: beside a law, which takes the forecast as an input like any other. Driven live and in the simulator alike."""

from typing import Protocol

from autoscaling.signals.signals import Forecast, Signals


class Forecaster(Protocol):
    """Foretells the arrival of work from what it was told."""

    @property
    def failed(self) -> bool:
        """Whether there should be a forecast, and there is none because something went wrong: an alarm, and nothing is taken away meanwhile."""
        ...

    def look(self, signals: Signals) -> None:
        """Takes a moment into account."""
        ...

    def forecast(self, unix_s: float) -> Forecast | None:
        """What is expected from that time of day on; None while nobody can know."""
        ...
