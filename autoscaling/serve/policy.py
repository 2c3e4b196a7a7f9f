"""The policy class that Ray Serve's controller makes of a model's `AutoscalingConfig` (`deployments/app.py`), and asks
at every tick.

Traps of Serve 2.60 that shape it: it runs in the controller's only loop, so it neither waits nor raises (an exception
would stop the scaling of every application); this module alone is pickled by value, so it holds nothing but this class;
a policy is made anew at every deploy and restart, so what it knows is elsewhere (the log), and its thread must end with
it; a number that goes from many to none is applied in two ticks (`handover.py`); with no replica and requests counted
by Serve's own handles Serve would decide by itself, but no request to an engine passes through a handle.
"""

import threading
import weakref
from typing import Any

from ray.serve.config import AutoscalingContext

from autoscaling.serve.handover import Handover
from autoscaling.serve.worker import ScalingTask, start_worker


class ServePolicy:
    """One model's. `spec` is JSON, and holds at least that model and its region; `run_dir` gets the decision log."""

    def __init__(self, spec: str, model: str, region: str, run_dir: str) -> None:
        self._handover = Handover()
        stop = threading.Event()
        weakref.finalize(self, stop.set)
        self.thread = start_worker(ScalingTask(spec, model, region, run_dir), self._handover, stop)

    def __call__(self, ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """The number that was decided last, at once; before the first decision the number that there is."""
        return self._handover.tick(ctx.target_num_replicas), {}
