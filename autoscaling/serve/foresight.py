"""Which forecaster a model's scaling has in the controller, by its spec (`autoscaling.forecast`)."""

from autoscaling.serve.facts import Facts
from autoscaling.signals.forecaster import Forecaster


def forecaster_of(facts: Facts) -> Forecaster | None:
    """None: laws get no forecast."""
    return None
