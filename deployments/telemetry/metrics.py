"""What is measured of requests: the gateway's counters and histograms for Prometheus, fed once a request as its ledger
closes, the bounds that histograms share, and a window of the latest TTFTs.

Labels: `model` (served models only, so their number is bounded) and `prompt_bucket`. The tokens are the engine's own
counts. What is read at scrape time is in `gateway/operators`.
"""

import asyncio
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from deployments.telemetry import table
from deployments.telemetry.exposition import Distribution, MetricCounts
from deployments.telemetry.ledger import EXTERNAL, Ledger, RequestOutcome
from deployments.telemetry.table import PROMPT_BOUNDS, Sample

_PROMPT_LABELS = (*(f"le_{bound}" for bound in PROMPT_BOUNDS), f"gt_{PROMPT_BOUNDS[-1]}")


def prompt_bucket(prompt_tokens: int) -> str:
    """The `prompt_bucket` label of a prompt: `le_256` holds 65 to 256 tokens."""
    return _PROMPT_LABELS[bisect_left(PROMPT_BOUNDS, prompt_tokens)]


MAX_VALUES = 10_000


class ValueWindow:
    """Keeps the last `maximum` values with their times (seconds)."""

    def __init__(self, span_s: float, maximum: int = MAX_VALUES) -> None:
        self._span_s = span_s
        self._times = np.full(maximum, -np.inf)
        self._values = np.zeros(maximum)
        self._next = 0

    def add(self, value: float, now: float) -> None:
        """Adds a value; beyond `maximum` the oldest goes."""
        self._times[self._next], self._values[self._next] = now, value
        self._next = (self._next + 1) % len(self._times)

    def quantiles(self, levels: Sequence[float], now: float) -> tuple[int, list[float]]:
        """How many values the last `span_s` seconds brought, and their quantiles (empty without values)."""
        recent = self._values[self._times >= now - self._span_s]
        return len(recent), [float(value) for value in np.quantile(recent, levels)] if len(recent) else []


STATUS_SPAN_S = 60.0
_PERCENTILES = tuple(number / 100 for number in range(101))


class RecentTtfts:
    """The times to first token of the last minute, by model, as this gateway's clients saw them."""

    def __init__(self, models: Iterable[str]) -> None:
        self._by_model = {name: ValueWindow(STATUS_SPAN_S) for name in models}

    def observe(self, ledger: Ledger) -> None:
        guest = ledger.home  # its client is another cell's
        ok = ledger.outcome is RequestOutcome.OK and not guest
        if ok and ledger.ttft_s is not None and ledger.model in self._by_model:
            self._by_model[ledger.model].add(ledger.ttft_s, time.monotonic())

    def percentiles(self, model: str) -> tuple[int, tuple[float, ...]]:
        """How many requests the last minute brought, and the percentiles of their times, 0 to 100 (empty without
        any)."""
        requests, found = self._by_model[model].quantiles(_PERCENTILES, time.monotonic())
        return requests, tuple(found)


MAX_TENANTS = 100
"""So many tenants, in the order in which they came, have a label value of their own; the rest are `other`."""


class RequestMetrics:
    """What is counted of each request. `paths` are those that have a label of their own: a client can make up any
    number of others.

    A request that is handed over to a peer counts once in each of the two: at its home as a client saw it, and its
    tokens where the engine counted them.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = frozenset(paths)
        self._tenants: set[str] = set()
        self._ttft, self._itl = Distribution(table.TTFT), Distribution(table.ITL)
        self._tpot, self._e2e = Distribution(table.TPOT), Distribution(table.E2E)
        self._queue_wait, self._stages = Distribution(table.QUEUE_WAIT), Distribution(table.STAGES)
        self._unaccounted, self._read = Distribution(table.UNACCOUNTED), Distribution(table.READ)
        self._prompt_error = Distribution(table.PROMPT_ERROR)
        self._requests, self._resubmitted = MetricCounts(table.REQUESTS), MetricCounts(table.RESUBMITTED)
        self._degraded = MetricCounts(table.DEGRADED)
        self._tokens, self._no_usage = MetricCounts(table.TOKENS), MetricCounts(table.NO_USAGE)
        self._tenant_requests, self._tenant_tokens = (
            MetricCounts(table.TENANT_REQUESTS),
            MetricCounts(table.TENANT_TOKENS),
        )

    def samples(self) -> Iterable[Sample]:
        found = (one for one in vars(self).values() if isinstance(one, MetricCounts | Distribution))
        return chain.from_iterable(one.samples() for one in found)

    def observe(self, ledger: Ledger) -> None:
        model = ledger.model or "unknown"
        if ledger.home:
            self._count_engine_tokens(model, ledger)
            return
        path = ledger.path if ledger.path in self._paths else "other"
        self._requests.values[model, path, ledger.outcome, str(ledger.status), ledger.error or ""] += 1
        if tenant := self._tenant(ledger.tenant):
            self._tenant_requests.values[tenant, model, ledger.outcome] += 1
        if ledger.submitted_s is None:
            return
        for one in ledger.degraded:
            self._degraded.values[one.model, ledger.traffic_class, one.rung, one.reason] += 1
        if ledger.resubmitted:
            self._resubmitted.values[model, ledger.resubmitted] += 1
        of_model, by_length = (model,), (model, prompt_bucket(_prompt_tokens(ledger)))
        wall_s, ttft_s, tpot_s, stages = ledger.wall_s, ledger.ttft_s, ledger.tpot_s, ledger.stages()
        self._read.observe(of_model, ledger.read_s)
        self._queue_wait.observe(by_length, ledger.lane_s)
        self._e2e.observe(by_length, wall_s)
        if ttft_s is not None and ledger.status < 400:
            self._ttft.observe(by_length, ttft_s)
        if tpot_s is not None:
            self._tpot.observe(by_length, tpot_s)
        self._itl.observe(by_length, *ledger.itl)
        for stage, seconds in stages.items():
            self._stages.observe((model, stage), seconds)
        self._unaccounted.observe(of_model, abs(wall_s - sum(stages.values())))
        self._count_tokens(model, tenant, ledger)

    def _count_tokens(self, model: str, tenant: str, ledger: Ledger) -> None:
        done = ledger.usage
        if done is None:
            if ledger.placed_s is not None and ledger.pick != EXTERNAL:
                self._no_usage.values[model,] += 1
            return
        if ledger.peer is None:
            self._count_engine_tokens(model, ledger)
        if done.sequences and ledger.expected_prompt_tokens:
            counted = max(1.0, done.prompt_tokens / done.sequences)
            self._prompt_error.observe((model,), abs(ledger.expected_prompt_tokens - counted) / counted)
        if tenant:
            self._tenant_tokens.values[tenant, model, "in"] += done.prompt_tokens
            self._tenant_tokens.values[tenant, model, "out"] += done.output_tokens
            self._tenant_tokens.values[tenant, model, "cached"] += done.cached_tokens

    def _count_engine_tokens(self, model: str, ledger: Ledger) -> None:
        """Where the engine is that counted them."""
        if (done := ledger.usage) is not None:
            self._tokens.values[model, "in"] += done.prompt_tokens
            self._tokens.values[model, "out"] += done.output_tokens
            self._tokens.values[model, "cached"] += done.cached_tokens

    def _tenant(self, name: str) -> str:
        if name in self._tenants or not name:
            return name
        if len(self._tenants) >= MAX_TENANTS:
            return "other"
        self._tenants.add(name)
        return name


def _prompt_tokens(ledger: Ledger) -> int:
    """The length of one prompt, by the engine's count where it gave one (over all sequences), else as it was
    expected."""
    done = ledger.usage
    return round(done.prompt_tokens / done.sequences) if done and done.sequences else ledger.expected_prompt_tokens


PERIOD_S = 0.1


class LoopLag:
    """Measures the running loop for as long as `run` is not cancelled."""

    def __init__(self) -> None:
        self._lag = Distribution(table.LOOP_LAG)
        self.samples = self._lag.samples

    async def run(self) -> None:
        """Sleeps a period at a time and notes how much longer it took."""
        while True:
            start = time.monotonic()
            await asyncio.sleep(PERIOD_S)
            self._lag.observe((), max(0.0, time.monotonic() - start - PERIOD_S))
