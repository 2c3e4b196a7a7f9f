"""The highest rate of a group for a band of requests: by the simulator, or by an equation where only a first estimate
is needed; and how the cost of a request is shared by its prompt and its answer."""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path

import numpy as np

from deployments.accounting.facts import AttemptUsage, Count
from deployments.accounting.pricing import StepPricing
from deployments.engine_model.replica_rate import WorkingPoint, best_point
from planning.capacity.judging import RateBound, RateSlo
from planning.capacity.rates import RateSearch, cell_of, highest_rate
from planning.memo import Memo
from planning.plans.offers import GroupOffer
from planning.plans.traffic import Band, workload_of_bands

QUICK = RateSearch(requests=500, max_requests=1_500, seeds=(0, 1), tolerance=0.04)
"""Rates to about 5 %: the plan is simulated afterwards, and corrected."""
THOROUGH = RateSearch()
_SAMPLE = 2_048
"""Requests of a band's sample that rates are found with."""


@dataclass(frozen=True, slots=True)
class GroupRate:
    """Requests/s of one replica, among `replicas` that share the requests. `low` and `high`: with the costs of steps at
    their ends, where that was looked at. `bound`: what a higher rate breaks. `ttft_s`: the TTFT of the SLO's share of
    the requests."""

    per_replica: float
    low: float
    high: float
    bound: RateBound
    ttft_s: float
    replicas: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class RateJob:
    """The rate of a band on so many replicas of a group, with so many seconds of the TTFT for the network."""

    offer: GroupOffer
    band: Band
    replicas: int = 1
    network_s: float = 0.0

    @property
    def signature(self) -> bytes:
        """All that the rate depends on, for bands of streams that differ in their names alone."""
        stream, lengths = self.band.stream, self.band.lengths
        slo = (stream.traffic_class, stream.ttft_s, stream.itl_s, stream.attainment, self.network_s, self.replicas)
        digest = sha256(repr((self.offer.model, self.offer.group, slo)).encode())
        for column in (lengths.prompts, lengths.cached, lengths.outputs):
            digest.update(column.tobytes())
        return digest.digest()

    def __str__(self) -> str:
        return f"the highest rate of {self.offer} for {self.band.name}{' from other regions' if self.network_s else ''}"


RateOf = Callable[[RateJob], GroupRate]


def rates_in(jobs: Sequence[RateJob], rate: RateOf, workers: int, report: Callable[[str], None]) -> list[GroupRate]:
    """The rates of all jobs, on so many processes. `report` gets the job that begins, or that has ended."""
    found: list[GroupRate] = []
    began_s = time.monotonic()

    def place() -> str:
        done, left = len(found), len(jobs) - len(found)
        more_s = left * (time.monotonic() - began_s) / done if done else 0.0
        return f"{done} of {len(jobs)} rates" + (f", about {more_s:.0f} s more" if done and left else "")

    if workers <= 1 or len(jobs) <= 1:
        for job in jobs:
            report(f"{job} ({place()})")
            found.append(rate(job))
        return found
    with ProcessPoolExecutor(workers, get_context("spawn"), end_with_parent) as pool:
        # Ctrl-C reaches every process of a terminal: the workers inherit the mask, and this process ends them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            # Not `map`, which cancels what is left: the pool's thread dies of that when it finds its workers gone.
            results = [pool.submit(rate, job) for job in jobs]
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            for job, result in zip(jobs, results, strict=True):
                found.append(result.result())
                report(f"{job} ({place()})")
        except BaseException:
            for process in active_children():
                process.terminate()
            raise
    return found


def end_with_parent() -> None:
    """A worker would wait for ever for a parent that was killed."""

    def wait() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class RateSource:
    """Finds rates with the simulator. `ranged`: with the range that the costs leave. `memo`: a file of earlier
    results."""

    def __init__(self, search: RateSearch = QUICK, ranged: bool = False, memo: Path | None = None) -> None:
        self._search, self._ranged, self._path = search, ranged, memo
        self._memo = Memo(memo)

    def __reduce__(self) -> tuple[object, ...]:
        return RateSource, (self._search, self._ranged, self._path)

    def __call__(self, job: RateJob) -> GroupRate:
        """Raises ValueError for requests that do not fit the KV cache."""
        offer, band, replicas, network_s = job.offer, job.band, job.replicas, job.network_s
        stream = band.stream
        sample, _ = workload_of_bands([(_thinned(band), 1.0, network_s)], float(_SAMPLE), 0)
        slo = RateSlo(stream.ttft_s - network_s, stream.attainment, stream.itl_s)
        held = highest_rate(
            cell_of(offer.spec, offer.view, offer.cost, replicas),
            offer.step_costs,
            sample,
            {stream.traffic_class: slo},
            search=self._search,
            costs=offer.cost_range if self._ranged else None,
            memo=self._memo,
        )
        each = (held.per_s / replicas, held.low / replicas, held.high / replicas)
        return GroupRate(*each, held.bound, held.ttft_s[stream.traffic_class], replicas)


def _thinned(band: Band) -> Band:
    """The same with at most `_SAMPLE` lengths."""
    if len(band.lengths) <= _SAMPLE:
        return band
    chosen = np.linspace(0, len(band.lengths) - 1, _SAMPLE).astype(np.int64)
    return replace(band, lengths=band.lengths.take(chosen))


def working_point_of(offer: GroupOffer, band: Band) -> WorkingPoint | None:
    """The engine at the highest rate by the equation of `engine_model/replica_rate.py`, within the SLOs but without
    waits; None where a lone request misses."""
    outputs = band.lengths.outputs
    spread = float(outputs.std() / outputs.mean())
    return best_point(
        offer.limits,
        offer.step_costs,
        band.uncached_tokens,
        band.output_tokens,
        band.stream.itl_s,
        band.stream.ttft_s,
        spread,
    )


def estimated_rate(offer: GroupOffer, band: Band) -> float:
    """Requests/s of a replica by the equation; 0: none."""
    point = working_point_of(offer, band)
    return 0.0 if point is None else point.requests_per_s


def input_share(offer: GroupOffer, band: Band) -> float:
    """Of the work of a mean request, the share of its prompt: as a bill shares it by the step model
    (`deployments/accounting/pricing.py`), beside as many requests as run at the highest rate."""
    point = working_point_of(offer, band)
    batch = 1 if point is None else max(1, point.decodes)
    prompt, output = max(1, round(band.input_tokens)), max(1, round(band.output_tokens))
    cached = min(prompt - 1, round(band.input_tokens - band.uncached_tokens))
    usage = AttemptUsage("", "", offer.model, "", "", 0, 0, Count.ENGINE, prompt, cached, output)
    pricing = StepPricing(offer.step_costs, offer.limits.step_tokens, offer.costs_file)
    work = pricing.work(usage, batch, prompt + output / 2)
    return work.prefill / (work.prefill + work.decode) if work.prefill + work.decode else 1.0
