"""The facts of a moment at which nobody can read the owner's books. Pure."""

import math

from autoscaling.signals.signals import Signals


def unseen(at_s: float, unix_s: float, applied: int) -> Signals:
    """Nothing is known but the number of replicas: infinitely old."""
    return Signals(at_s, unix_s, math.inf, 0, applied, 0, None, (), (), (), 0, 0.0, 0, 0)
