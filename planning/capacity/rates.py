"""The highest request rate that replicas of a group hold within their SLOs, found with the simulator.

Requests of a sample arrive as a Poisson process, in an open loop, at the scheduler and the engines that run live; what
the gateway and the host add is in the costs (`front`, `back_s`). At a rate, the runs of all seeds are judged together:

    held(rate) = for each class: met >= its share, ITL met >= its share, where it has one
                 and (turned away + growth of what waits) <= LOST of the arrivals

The first part of a run, in which the engines fill, and the last, in which they empty, are not judged. Each seed draws
the same requests and the same gaps at every rate, scaled, so that bisection compares like with like. Pure, and the same
every time.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from cluster.spec import ClusterSpec, Model
from deployments.engine_model.cost_file import CostFile
from deployments.engine_model.cost_model import CostModel, slowed
from deployments.engine_model.fits import limits_for
from deployments.engine_model.replica_rate import best_point
from deployments.scheduling.policy import binding_of, policy_of
from planning.capacity.judging import RateBound, RateRun, RateSlo, lost_share, ttft_within, worst_margin
from planning.capacity.sampling import poisson
from planning.memo import Memo, key_of, simulator_hash
from planning.simulator.cell import CellSettings, CellSimulator
from planning.simulator.workload import Workload
from planning.uncertainty import CostRange

_STAYS, _SLOS = 10.0, 10.0
"""A run lasts so many stays of a request in the engine, and so many times the longest TTFT, at least."""
_STEP, _RANGE_STEP = 1.35, 1.05
"""Between two rates until one is held and one is not, without and with a good guess."""
_LOWEST = 1e-3
"""Of what the engines could take: below that, no rate is held."""


@dataclass(frozen=True, slots=True)
class RateSearch:
    """How hard to look: `requests` of each run at least and at most, one run for each seed, and the relative width of
    the last bracket."""

    requests: int = 1_500
    max_requests: int = 20_000
    seeds: tuple[int, ...] = (0, 1, 2)
    tolerance: float = 0.01


@dataclass(frozen=True, slots=True)
class HeldRate:
    """Requests/s, of all replicas together; 0: even a lone request misses. `low` and `high`: with the costs at the high
    and the low end of their range. `bound`: what breaks first. `ttft_s`: at that
    rate, the TTFT that each class's share of requests stays within."""

    per_s: float
    low: float
    high: float
    bound: RateBound
    ttft_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Judged:
    """The runs at one rate. `margin`: how far the tightest requirement is from being broken; negative: it is.
    `completed`: requests/s that neither piled up nor were turned away."""

    rate: float
    margin: float
    bound: RateBound
    ttft_s: Mapping[str, float]
    completed: float


def cell_of(spec: ClusterSpec, model: Model, cost: CostFile, replicas: int) -> CellSettings:
    """So many replicas of a model, or of the view of one of its groups, in its first region."""
    pool = spec.pool_of(model, spec.regions_of(model)[0])
    return CellSettings(
        replicas,
        limits_for(model, pool, cost),
        policy_of(spec),
        binding_of(spec),
        model.settings.max_model_len,
        spec.gateway.timeouts.queue_wait_s,
        patience_s={one.name: spec.patience_s(one) for one in spec.classes},
    )


def highest_rate(
    cell: CellSettings,
    cost: CostModel,
    sample: Workload,
    slos: Mapping[str, RateSlo],
    *,
    search: RateSearch | None = None,
    costs: CostRange | None = None,
    memo: Memo | None = None,
) -> HeldRate:
    """The highest rate that the cell holds. `costs`: the range of the costs, for the range of the rate; without it the
    range is the rate itself. `memo`: results of earlier calls, by all that they depend on. `sample`: one request at
    least, each of a class that has an SLO."""
    search = search or RateSearch()
    key = _key(cell, cost, sample, slos, search, costs)
    known = None if memo is None else memo.get_as(HeldRate, key)
    if known is not None:
        return known
    found = _Finder(cell, cost, sample, slos, search).highest()
    low = high = found.rate
    if costs is not None and found.rate:
        low, high = (
            _Finder(cell, slowed(cost, factor), sample, slos, search).highest(found.rate / factor).rate
            for factor in (costs.high, costs.low)
        )
    held = HeldRate(found.rate, min(low, found.rate), max(high, found.rate), found.bound, found.ttft_s)
    if memo is not None:
        memo.put(key, {"replicas": cell.replicas}, asdict(held))
    return held


class _Finder:
    """Bisection of the rate of one cell."""

    def __init__(
        self, cell: CellSettings, cost: CostModel, sample: Workload, slos: Mapping[str, RateSlo], search: RateSearch
    ) -> None:
        self._cell = replace(cell, limits=cell.limits.with_prefixes(sample.chunk_tokens))
        self._cost = cost
        self._sample = sample
        self._slos = slos
        self._search = search
        prompt, output = sample.prompt_tokens, sample.output_tokens.astype(np.float64)
        spread = float(output.std() / output.mean())
        point = best_point(cell.limits, cost, float(prompt.mean()), float(output.mean()), output_cv=spread)
        if point is None:
            raise ValueError(
                f"requests of {prompt.mean():.0f} and {output.mean():.0f} tokens on average: they do not fit the "
                f"{cell.limits.kv_tokens} tokens of the KV cache"
            )
        self._full = cell.replicas * point.requests_per_s
        stay_s = point.sequences / point.requests_per_s
        run_s = max(_STAYS * stay_s, _SLOS * max(slo.ttft_s for slo in slos.values()))
        self._count = round(min(max(search.requests, run_s * self._full), search.max_requests))

    def highest(self, guess: float | None = None) -> _Judged:
        """The highest rate that is held; what breaks is of the lowest that is not."""
        step = _STEP if guess is None else _RANGE_STEP
        at = self._judge(guess or 0.8 * self._full)
        held, broken = (at, None) if at.margin >= 0 else (None, at)
        while held is None:
            if at.rate < _LOWEST * self._full:
                return replace(at, rate=0.0)
            at = self._judge(at.rate / step)
            held, broken = (at, broken) if at.margin >= 0 else (None, at)
            step *= step
        while broken is None:
            at = self._judge(at.rate * step)
            held, broken = (at, None) if at.margin >= 0 else (held, at)
        while broken.rate > (1 + self._search.tolerance) * held.rate:
            at = self._judge(math.sqrt(held.rate * broken.rate))
            held, broken = (at, broken) if at.margin >= 0 else (held, at)
        rate = min(held.rate, broken.completed) if broken.bound is RateBound.CAPACITY else held.rate
        return replace(held, rate=rate, bound=broken.bound)

    def _judge(self, rate: float) -> _Judged:
        """All seeds, or the first ones that decide."""
        runs: list[RateRun] = []
        for seed in self._search.seeds:
            runs.append(self._run(rate, seed))
            found = worst_margin(runs, self._slos)
            if abs(found.margin) > found.decisive:
                break
        ttft_s = {one: ttft_within(runs, one, slo) for one, slo in self._slos.items()}
        completed = rate * (1 - sum(map(lost_share, runs)) / len(runs))
        return _Judged(rate, found.margin, found.bound, ttft_s, completed)

    def _run(self, rate: float, seed: int) -> "RateRun":
        work = poisson(self._sample, rate, self._count, seed)
        return RateRun(work, CellSimulator(self._cell, self._cost, work).run())


def _key(
    cell: CellSettings,
    cost: CostModel,
    sample: Workload,
    slos: Mapping[str, RateSlo],
    search: RateSearch,
    costs: CostRange | None,
) -> str:
    """Of all that a rate depends on, the simulator's code among it."""
    costs_of = (cost.dense, cost.sequence, cost.attention, cost.front, cost.back_s, cost.draft, cost.ranks)
    columns = (sample.prompt_tokens, sample.output_tokens, sample.max_tokens, sample.ttft_slo_s, sample.session)
    digest = hashlib.sha256()
    for column in columns:
        digest.update(b"" if column is None else column.tobytes())
    for number in range(len(sample)):
        digest.update(repr((sample.tenant[number], sample.traffic_class[number], sample.prefix[number])).encode())
    asked = repr((cell, costs_of, sorted(slos.items()), search, costs))
    return key_of(simulator_hash(), asked, sample.chunk_tokens, digest.hexdigest())
