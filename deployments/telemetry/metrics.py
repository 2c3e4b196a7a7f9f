"""What is measured of requests: the gateway's counters and histograms for Prometheus, fed once a request as its ledger
closes, the bounds that histograms share, and a window of the latest TTFTs.

Labels: `model` (served models only, so their number is bounded) and `prompt_bucket`. The tokens are the engine's own
counts. What is read at scrape time is in `gateway/operators`.
"""

import asyncio
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from deployments.telemetry.ledger import Ledger, RequestOutcome

PROMPT_BOUNDS = (64, 256, 1_024, 4_096, 16_384, 65_536)
TTFT_BOUNDS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 300)
ITL_BOUNDS_S = (
    0.001,
    0.0025,
    0.005,
    0.0075,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    1,
    2,
    5,
)
E2E_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
LAG_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)

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


class RecentTtfts:
    """The times to first token of the last minute, by model, as this gateway's clients saw them."""

    def __init__(self, models: Iterable[str]) -> None:
        self._by_model = {name: ValueWindow(STATUS_SPAN_S) for name in models}

    def observe(self, ledger: Ledger) -> None:
        guest = ledger.home  # its client is another cell's
        ok = ledger.outcome is RequestOutcome.OK and not guest
        if ok and ledger.ttft_s is not None and ledger.model in self._by_model:
            self._by_model[ledger.model].add(ledger.ttft_s, time.monotonic())

    def quantiles(self, model: str, levels: Sequence[float]) -> tuple[int, list[float]]:
        """How many requests the last minute brought, and the quantiles of their times (empty without any)."""
        return self._by_model[model].quantiles(levels, time.monotonic())


class _Counts(Collector):
    """Counters by their labels' values. One loop adds to them and shows them, so that they need none of the locks and
    checks for which prometheus_client's own take several calls an addition: a request would pay for a hundred."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self._about = (name, text, labels)
        self.values: Counter[tuple[str, ...]] = Counter()

    def collect(self) -> Iterable[CounterMetricFamily]:
        name, text, labels = self._about
        family = CounterMetricFamily(name, text, labels=labels)
        for values, count in self.values.items():
            family.add_metric(values, count)
        yield family


class _Distribution(Collector):
    """Histograms by their labels' values, like `_Counts`."""

    def __init__(self, name: str, text: str, bounds: tuple[float, ...], *labels: str) -> None:
        self._about = (name, text, labels)
        self._bounds = bounds
        self._bands: dict[tuple[str, ...], list[float]] = {}
        """The counts between the bounds, and above them; last the sum of all values."""

    def observe(self, labels: tuple[str, ...], *values: float) -> None:
        bands = self._bands.get(labels)
        if bands is None:
            bands = self._bands[labels] = [0.0] * (len(self._bounds) + 2)
        for value in values:
            bands[bisect_left(self._bounds, value)] += 1
            bands[-1] += value

    def collect(self) -> Iterable[HistogramMetricFamily]:
        name, text, labels = self._about
        family = HistogramMetricFamily(name, text, labels=labels)
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for values, (*counts, total) in self._bands.items():
            family.add_metric(values, list(zip(names, accumulate(counts), strict=True)), total)
        yield family


_BY_LENGTH = ("model", "prompt_bucket")
_READ_BOUNDS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
_UNACCOUNTED_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.1)
_ERROR_BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
MAX_TENANTS = 100
"""So many tenants, in the order in which they came, have a label value of their own; the rest are `other`."""


class RequestMetrics:
    """What is counted of each request. `paths` are those that have a label of their own: a client can make up any
    number of others.

    A request that is handed over to a peer counts once in each of the two: at its home as a client saw it, and its
    tokens where the engine counted them.
    """

    def __init__(self, registry: CollectorRegistry, paths: Iterable[str]) -> None:
        self._paths = frozenset(paths)
        self._tenants: set[str] = set()

        def histogram(name: str, text: str, bounds: tuple[float, ...], *labels: str) -> _Distribution:
            registry.register(found := _Distribution(name, text, bounds, *labels))
            return found

        def counter(name: str, text: str, *labels: str) -> _Counts:
            registry.register(found := _Counts(name, text, *labels))
            return found

        self._ttft = histogram(
            "raylane_ttft_seconds",
            "From arrival to the first token (of a whole answer: as the engine tells).",
            TTFT_BOUNDS_S,
            *_BY_LENGTH,
        )
        self._itl = histogram(
            "raylane_itl_seconds", "Between two pieces of a streamed answer.", ITL_BOUNDS_S, *_BY_LENGTH
        )
        self._tpot = histogram("raylane_tpot_seconds", "Per output token after the first.", ITL_BOUNDS_S, *_BY_LENGTH)
        self._e2e = histogram(
            "raylane_e2e_seconds", "From a request's arrival to the end of its answer.", E2E_BOUNDS_S, *_BY_LENGTH
        )
        self._queue_wait = histogram(
            "raylane_queue_wait_seconds", "In the lane, until placed.", TTFT_BOUNDS_S, *_BY_LENGTH
        )
        self._stages = histogram(
            "raylane_stage_seconds", "Wall time by stage of the ledger.", TTFT_BOUNDS_S, "model", "stage"
        )
        self._unaccounted = histogram(
            "raylane_unaccounted_seconds", "Wall time that no stage explains.", _UNACCOUNTED_BOUNDS_S, "model"
        )
        self._requests = counter(
            "raylane_requests", "Requests by how they ended.", "model", "path", "outcome", "status", "error"
        )
        self._tokens = counter(
            "raylane_tokens", "Tokens by the engine's own count: in, out, cached (a part of in).", "model", "kind"
        )
        self._resubmitted = counter(
            "raylane_resubmitted",
            "Requests placed again since their replica or its engine had died, by why.",
            "model",
            "reason",
        )
        self._tenant_requests = counter(
            "raylane_tenant_requests", "Requests of each tenant.", "tenant", "model", "outcome"
        )
        self._tenant_tokens = counter(
            "raylane_tenant_tokens", "Tokens of each tenant: in, out, cached (a part of in).", "tenant", "model", "kind"
        )
        self._read = histogram(
            "raylane_read_seconds", "CPU time to read a body and estimate its tokens.", _READ_BOUNDS_S, "model"
        )
        self._prompt_error = histogram(
            "raylane_prompt_estimate_error_ratio",
            "|estimated - counted| / counted prompt tokens.",
            _ERROR_BOUNDS,
            "model",
        )
        self._no_usage = counter(
            "raylane_requests_without_usage", "Requests whose engine statistics never came.", "model"
        )

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
        done = ledger.finished
        if done is None:
            if ledger.placed_s is not None:
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
        if (done := ledger.finished) is not None:
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
    done = ledger.finished
    return round(done.prompt_tokens / done.sequences) if done and done.sequences else ledger.expected_prompt_tokens


PERIOD_S = 0.1


class LoopLag:
    """Measures the running loop for as long as `run` is not cancelled."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._histogram = Histogram(
            "raylane_event_loop_lag_seconds", "How late a timer fired.", buckets=LAG_BOUNDS_S, registry=registry
        )

    async def run(self) -> None:
        """Sleeps a period at a time and notes how much longer it took."""
        while True:
            start = time.monotonic()
            await asyncio.sleep(PERIOD_S)
            self._histogram.observe(max(0.0, time.monotonic() - start - PERIOD_S))
