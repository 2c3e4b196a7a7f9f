"""How long requests wait inside the engine, from the gateway's trace file, in steps of the engine. Pure."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from planning.workload.arrivals import FloatArray


@dataclass(frozen=True, slots=True)
class EngineQueue:
    """The 99th percentile of the engine's own queue time; the 99th percentile of a step (the time per output token of a request is the mean of its
    steps); and the first in units of the median step."""

    requests: int
    queued_p99_s: float
    step_p50_s: float
    step_p99_s: float

    @property
    def steps(self) -> float:
        """The queue time in median steps."""
        return self.queued_p99_s / self.step_p50_s if self.step_p50_s else float("nan")

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return {**asdict(self), "steps": self.steps}


def engine_queue(lines: Iterable[str], since_unix_s: float) -> EngineQueue:
    """The engine's queue over the requests of a trace file that arrived after a moment and were served."""
    queued, steps = [], []
    for line in lines:
        record: dict[str, Any] = json.loads(line)
        if record["arrived_s"] >= since_unix_s and "engine_queue" in record["stages_s"]:
            queued.append(record["stages_s"]["engine_queue"])
            if record["tpot_s"]:
                steps.append(record["tpot_s"])
    return of_times(queued, steps)


def of_times(queued_s: Sequence[float] | FloatArray, steps_s: Sequence[float] | FloatArray) -> EngineQueue:
    """From each request's time in the engine's queue, and its mean step."""
    if not len(queued_s) or not len(steps_s):
        return EngineQueue(0, 0.0, 0.0, 0.0)
    return EngineQueue(len(queued_s), float(np.quantile(queued_s, 0.99)), float(np.median(steps_s)), float(np.quantile(steps_s, 0.99)))
