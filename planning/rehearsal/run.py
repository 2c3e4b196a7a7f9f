"""One play of a workload, live or simulated, in the same columns."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]
QUANTILES = (0.5, 0.9, 0.99)
STAGES = ("lane", "engine", "decode")


@dataclass(frozen=True, slots=True)
class Run:
    """Columns by the request's number; NaN where it did not happen. Seconds.

    `ttft_s` is the client's; `stages_s` holds what the gateway saw: in the lane, from placement to first byte, from first byte to last. `lane` is the
    number of the lane by length, -1 where unknown. `itl_s`: quantiles (`QUANTILES`) and mean of the time between tokens over all requests.
    """

    ttft_s: Column
    stages_s: dict[str, Column]
    lane: NDArray[np.int64]
    itl_s: dict[str, float]
    failed: int

    def figures(self, lanes: tuple[str, ...]) -> dict[str, float]:
        """All that is compared, by name: `ttft/all/p50`, `ttft/short/p99`, `stage/lane/mean`, `itl/p50`; NaN where there are too few requests."""
        found: dict[str, float] = {}
        for name, chosen in self._groups(lanes):
            for level in QUANTILES:
                found[f"ttft/{name}/{label(level)}"] = _quantile(self.ttft_s[chosen], level)
        for stage in STAGES:
            found[f"stage/{stage}/mean"] = _mean(self.stages_s[stage])
        return found | {f"itl/{name}": value for name, value in self.itl_s.items()}

    def _groups(self, lanes: tuple[str, ...]) -> list[tuple[str, NDArray[np.bool_]]]:
        every = np.ones(len(self.ttft_s), dtype=np.bool_)
        return [("all", every), *((name, self.lane == number) for number, name in enumerate(lanes))]


def label(level: float) -> str:
    """A quantile's name: p50, p99."""
    return f"p{100 * level:g}"


def _quantile(values: Column, level: float) -> float:
    """NaN where fewer than ten are beyond it: one request more or less would move it."""
    known = values[~np.isnan(values)]
    return float(np.quantile(known, level)) if len(known) * (1 - level) >= 2 else math.nan


def _mean(values: Column) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan
