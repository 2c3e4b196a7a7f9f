"""The true load over time, in replicas' worth: what the traffic takes at full batches, known afterwards."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoscaling.laws.law import Plant
from deployments.engine_model.cost_model import CostModel
from deployments.engine_model.replica_rate import rate_at
from planning.simulator.workload import Workload

_SMOOTHED_S = 300.0


@dataclass(frozen=True)
class Load:
    """In replicas' worth, averaged over five minutes; a value each `step_s`."""

    step_s: float
    replicas: NDArray[np.float64]

    def __call__(self, at_s: float) -> float:
        """At that second."""
        return float(self.replicas[min(len(self.replicas) - 1, max(0, int(at_s / self.step_s)))])


def load_of(arrived_s: NDArray[np.float64], replica_s: NDArray[np.float64], span_s: float, step_s: float = 60.0) -> Load:
    """From requests that each take so many seconds of a full replica."""
    count = max(1, int(np.ceil(span_s / step_s)))
    step = np.minimum((arrived_s / step_s).astype(np.int64), count - 1)
    rate = np.bincount(step, weights=replica_s, minlength=count) / step_s
    width = min(count, max(1, round(_SMOOTHED_S / step_s)))
    weight = np.convolve(np.ones(count), np.ones(width), mode="same")
    return Load(step_s, np.convolve(rate, np.ones(width), mode="same")[:count] / weight[:count])


def load_on(work: Workload, plant: Plant, cost: CostModel, span_s: float) -> Load:
    """Of that traffic on such replicas."""
    prompt, output = work.prompt_tokens.astype(np.float64), work.output_tokens.astype(np.float64)
    tokens = prompt + plant.decode_weight * output
    per_replica = rate_at(plant.limits, cost, max(1.0, float(prompt.mean())), max(1.0, float(output.mean()))) * float(tokens.mean())
    return load_of(work.arrived_s, tokens / max(per_replica, 1e-9), span_s)
