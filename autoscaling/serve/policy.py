"""The policy class that Ray Serve's controller creates from a model's `AutoscalingConfig` (`deployments/app.py`) and
asks at every tick.

Its form follows from Serve 2.60. It runs in the controller's only loop, so it neither waits nor raises: an exception
would stop the scaling of every application. Only this module is pickled by value, so it holds only this class. A policy
is created again at every deploy and restart, so its knowledge is stored elsewhere (the log), and its thread must end
with it. A number that goes from many to none is applied in two ticks (`handover.py`). With no replica and requests
counted by Serve's own handles Serve would decide by itself, but no request to an engine passes through a handle.
"""

import threading
import weakref
from typing import Any

from ray.serve.config import AutoscalingContext

from autoscaling.serve.handover import Handover
from autoscaling.serve.worker import ScalingTask, start_worker


class ServePolicy:
    """The policy of one model or one group of it, by its `Model.group_key`. `spec`: JSON with at least that model and
    its region; `run_dir`: for the decision log; `estimate`: a cost file's content, from data sheets, for a model that
    names none."""

    def __init__(self, spec: str, model: str, region: str, run_dir: str, estimate: str = "") -> None:
        self._handover = Handover()
        stop = threading.Event()
        weakref.finalize(self, stop.set)
        self.thread = start_worker(ScalingTask(spec, model, region, run_dir, estimate), self._handover, stop)

    def __call__(self, ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """The last decision's number; before the first decision, the current number."""
        return self._handover.tick(ctx.target_num_replicas), {}
