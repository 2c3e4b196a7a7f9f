"""How good a way of scaling was in one simulated run: SLOs met, replica-hours, flaps, recovery. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoscaling.shadow.contest import CountChange, flaps
from planning.simulator.outcome import SimulationOutcome


@dataclass(frozen=True, slots=True)
class Score:
    """`attainment`: the share of all requests whose first token came in time (rejected, expired and lost ones did not),
    by lane too.

    `replica_hours` are paid from each replica's start, its start-up with it, to its end, within the time that is
    scored; `usd` by the price of one. `changes` of the number of replicas, `flaps` among them
    (`autoscaling/shadow/contest.py`); `recovery_s`: the longest time with attainment below the target.
    `ttft_p99_s` is NaN where nobody was answered.
    """

    requests: int
    attainment: float
    by_lane: Mapping[str, float]
    replica_hours: float
    usd: float
    mean_replicas: float
    changes: int
    flaps: int
    recovery_s: float
    rejected: int
    expired: int
    failed: int
    ttft_p99_s: float


def score(
    out: SimulationOutcome,
    slo_s: NDArray[np.float64],
    lanes: Sequence[str],
    until_s: float,
    target: float,
    load: Callable[[float], float],
    usd_per_replica_hour: float,
) -> Score:
    """Scores second 0 to `until_s`. `target`: the SLO's attainment; `load`: the true load at a time, in
    replicas' worth."""
    met = np.nan_to_num(out.ttft_s, nan=np.inf) <= slo_s
    hours = sum(max(0.0, min(life.ended_s, until_s) - min(life.started_s, until_s)) for life in out.lifetimes) / 3600
    changes = [CountChange(one.at_s, one.applied, one.requested) for one in out.scalings if one.changes]
    known = out.ttft_s[~np.isnan(out.ttft_s)]
    return Score(
        requests=len(met),
        attainment=float(met.mean()) if len(met) else 1.0,
        by_lane={
            name: float(met[out.lane == index].mean()) for index, name in enumerate(lanes) if (out.lane == index).any()
        },
        replica_hours=hours,
        usd=hours * usd_per_replica_hour,
        mean_replicas=3600 * hours / until_s if until_s else 0.0,
        changes=len(changes),
        flaps=flaps(changes, load),
        recovery_s=recovery_s(out.arrived_s, met, target),
        rejected=int(out.rejected.sum()),
        expired=int(out.expired.sum()),
        failed=int(out.failed.sum()),
        ttft_p99_s=float(np.quantile(known, 0.99)) if len(known) else float("nan"),
    )


BIN_S = 10.0


def recovery_s(arrived_s: NDArray[np.float64], met: NDArray[np.bool_], attainment: float) -> float:
    """Seconds, in bins of `BIN_S`; a bin without arrivals goes on with what the one before was."""
    if not len(arrived_s):
        return 0.0
    bins = (arrived_s // BIN_S).astype(np.int64)
    bins -= bins.min()
    total = np.bincount(bins)
    good = np.bincount(bins, weights=met)
    longest = run = 0
    broken = False
    for count, kept_count in zip(total.tolist(), good.tolist(), strict=True):
        if count:
            broken = kept_count < attainment * count
        run = run + 1 if broken else 0
        longest = max(longest, run)
    return longest * BIN_S
