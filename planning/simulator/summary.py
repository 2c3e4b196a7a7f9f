"""A simulated run in figures: by lane and in all, as a dashboard would show it."""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from planning.simulator.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Figures:
    """Of some requests. Times in milliseconds over those that were answered; `answered_in_time` over all: the share whose first token came within its
    SLO, where a rejected or expired one counts as missed."""

    name: str
    requests: int
    rejected: int
    expired: int
    failed: int
    promoted: int
    ttft_p50_ms: float
    ttft_p90_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float
    queued_mean_ms: float
    answered_in_time: float

    def as_json(self) -> dict[str, object]:
        """Plain values; what does not exist is None."""
        return {key: None if isinstance(value, float) and np.isnan(value) else value for key, value in asdict(self).items()}


def figures(name: str, out: Outcome, slo_s: NDArray[np.float64], chosen: NDArray[np.bool_]) -> Figures:
    """The figures of the chosen requests."""
    ttft, tpot, queued = out.ttft_s[chosen], out.tpot_s[chosen], out.queued_s[chosen]
    p50, p90, p99 = (1e3 * value for value in _quantiles(ttft, (0.5, 0.9, 0.99)))
    in_time = np.nan_to_num(ttft, nan=np.inf) <= slo_s[chosen]
    return Figures(
        name,
        int(chosen.sum()),
        int(out.rejected[chosen].sum()),
        int(out.expired[chosen].sum()),
        int(out.failed[chosen].sum()),
        int(out.promoted[chosen].sum()),
        p50,
        p90,
        p99,
        1e3 * _quantiles(tpot, (0.5,))[0],
        1e3 * (float(np.nanmean(queued)) if np.isfinite(queued).any() else float("nan")),
        float(in_time.mean()) if len(in_time) else float("nan"),
    )


def _quantiles(values: NDArray[np.float64], levels: tuple[float, ...]) -> list[float]:
    known = values[~np.isnan(values)]
    return [float(value) for value in np.quantile(known, levels)] if len(known) else [float("nan")] * len(levels)
