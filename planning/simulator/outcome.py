"""What became of each simulated request, as columns; of the cell as a whole; and the figures of some requests, as a
dashboard would show them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from autoscaling.scaler.decision import ScalingDecision
from cluster.spec import DEFAULT_GROUP
from deployments.scheduling import RejectCause
from planning.simulator.bins import Column
from planning.simulator.workload import WorkloadColumn

CAUSES = tuple(RejectCause)


@dataclass(frozen=True, slots=True)
class Life:
    """A replica's life, for the account of GPU-hours: it is paid for from `started_s` to `ended_s`."""

    started_s: float
    ready_s: float
    ended_s: float
    drained_s: float = math.inf
    """When it began to drain."""
    group: str = DEFAULT_GROUP


@dataclass(slots=True)
class SimulationOutcome:
    """Seconds from the start; NaN where it did not happen. `lane` is the index of the lane by length, -1 before any;
    `cause` that of `CAUSES` for a request that was turned away, -1 for others; `expired_s` when one gave up waiting in
    its lane."""

    arrived_s: Column
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    placed_s: Column
    first_s: Column
    finished_s: Column
    engine_queued_s: Column
    """How long it waited inside the engine before its prefill began."""
    lane: NDArray[np.int8]
    replica: NDArray[np.int32]
    cause: NDArray[np.int8]
    expired_s: Column
    failed: NDArray[np.bool_]
    """Lost with its replica."""
    promoted: NDArray[np.bool_]
    eta_p95_s: Column
    itl_s: dict[float, float] = field(default_factory=dict)
    """Quantiles of the time between tokens, over all engines."""
    ended_s: float = 0.0
    preemptions: int = 0
    lifetimes: tuple[Life, ...] = ()
    """Of the replicas, in the order in which they started."""
    scalings_of: Mapping[str, tuple[ScalingDecision, ...]] = field(default_factory=dict)
    """What the autoscaler of each group decided: what changed the number of replicas, its reason or the policy's
    concern."""
    cached_tokens: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Of each prompt, those that its engine's prefix cache held."""

    @classmethod
    def empty(
        cls, arrived_s: Column, prompt_tokens: NDArray[np.int64], output_tokens: NDArray[np.int64]
    ) -> "SimulationOutcome":
        """Nothing has happened yet."""
        count = len(arrived_s)

        def unknown() -> Column:
            return np.full(count, np.nan)

        return cls(
            arrived_s,
            prompt_tokens,
            output_tokens,
            placed_s=unknown(),
            first_s=unknown(),
            finished_s=unknown(),
            engine_queued_s=unknown(),
            expired_s=unknown(),
            eta_p95_s=unknown(),
            lane=np.full(count, -1, dtype=np.int8),
            replica=np.full(count, -1, dtype=np.int32),
            cause=np.full(count, -1, dtype=np.int8),
            failed=np.zeros(count, dtype=np.bool_),
            promoted=np.zeros(count, dtype=np.bool_),
            cached_tokens=np.zeros(count, dtype=np.int64),
        )

    @property
    def scalings(self) -> tuple[ScalingDecision, ...]:
        """The decisions on all groups, in the order of time."""
        found = [one for decisions in self.scalings_of.values() for one in decisions]
        return tuple(found if len(self.scalings_of) == 1 else sorted(found, key=lambda one: one.at_s))

    @property
    def rejected(self) -> NDArray[np.bool_]:
        """Turned away: on arrival, or when its wait for a replica was known to be in vain."""
        return self.cause >= 0

    @property
    def expired(self) -> NDArray[np.bool_]:
        """Gave up waiting in the lane."""
        return ~np.isnan(self.expired_s)

    @property
    def replica_s(self) -> float:
        """Replica-seconds that are paid for: from each one's start, its start-up with it, to its end."""
        return sum(life.ended_s - life.started_s for life in self.lifetimes)

    @property
    def replica_s_of(self) -> dict[str, float]:
        """The same for each group that had replicas."""
        found: dict[str, float] = {}
        for life in self.lifetimes:
            found[life.group] = found.get(life.group, 0.0) + life.ended_s - life.started_s
        return found

    @property
    def ttft_s(self) -> Column:
        """Time to first token."""
        return self.first_s - self.arrived_s

    @property
    def tpot_s(self) -> Column:
        """Time per output token after the first; NaN for answers of one token."""
        after_first = self.output_tokens - 1
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot: Column = np.where(after_first > 0, (self.finished_s - self.first_s) / after_first, np.nan)
        return tpot

    @property
    def prefix_hits(self) -> float:
        """The share of the prefilled prompt tokens that prefix caches held; NaN where nothing was prefilled."""
        tokens = float(self.prompt_tokens[~np.isnan(self.first_s)].sum())
        return float(self.cached_tokens.sum()) / tokens if tokens else math.nan

    @property
    def queued_s(self) -> Column:
        """In the lane."""
        return self.placed_s - self.arrived_s


@dataclass(frozen=True, slots=True)
class Figures:
    """Of some requests. Times in milliseconds over those that were answered; `answered_in_time`: the share whose first
    token came within its SLO, over all that the scheduler was given, where one that it rejected, or that expired,
    counts as missed. Those that were rejected before (too long for the context) are in `requests` and `rejected`
    alone."""

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


def figures(name: str, out: SimulationOutcome, slo_s: NDArray[np.float64], chosen: NDArray[np.bool_]) -> Figures:
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


def figures_of(
    out: SimulationOutcome, slo_s: NDArray[np.float64], lanes: Sequence[str], rejected_before: int = 0
) -> list[Figures]:
    """The figures by lane, and the last of all requests, with those that were rejected before the scheduler saw
    them."""
    whole = figures("all", out, slo_s, np.ones(len(out.arrived_s), dtype=np.bool_))
    whole = replace(whole, requests=whole.requests + rejected_before, rejected=whole.rejected + rejected_before)
    return [*(figures(name, out, slo_s, out.lane == number) for number, name in enumerate(lanes)), whole]


@dataclass(frozen=True, slots=True)
class ClassShare:
    """A traffic class of a run: its requests, and the share of them in time. `itl_in_time`: the share of its answers of
    more than one token whose mean time between tokens was within the class's `itl_ms`; NaN without answers, or without
    `itl_ms`."""

    name: str
    requests: int
    in_time: float
    itl_in_time: float = math.nan


def class_shares(
    out: SimulationOutcome, slo_s: Column, classes: WorkloadColumn[str], itl_s: Mapping[str, float]
) -> tuple[ClassShare, ...]:
    """The traffic classes of a run, by name; `classes` is that of each request, `itl_s` the time between tokens that
    some aim at."""
    in_time, tpot = np.nan_to_num(out.ttft_s, nan=np.inf) <= slo_s, out.tpot_s
    names, number = np.unique(np.array(classes, dtype=object).astype(str), return_inverse=True)
    found = []
    for index, name in enumerate(map(str, names)):
        own = number == index
        answered = tpot[own & ~np.isnan(tpot)]
        even = float((answered <= itl_s[name]).mean()) if name in itl_s and len(answered) else math.nan
        found.append(ClassShare(name, int(own.sum()), float(in_time[own].mean()), even))
    return tuple(found)


def rejections_of(out: SimulationOutcome) -> dict[str, int]:
    """The requests that the scheduler rejected, by cause."""
    return {cause.value: count for number, cause in enumerate(CAUSES) if (count := int((out.cause == number).sum()))}


def _quantiles(values: NDArray[np.float64], levels: tuple[float, ...]) -> list[float]:
    known = values[~np.isnan(values)]
    return [float(value) for value in np.quantile(known, levels)] if len(known) else [float("nan")] * len(levels)
