"""Requests that stand for a stream: lengths at evenly spaced quantiles of what a worksheet says, or drawn from a trace
or from what a gateway recorded; with recorded rates by region and hour."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cluster.spec import ClusterSpec
from deployments.traffic.counts import Period
from planning.drift.recording import RecordingError, is_recording, read_recording, recorded_streams
from planning.workload.arrivals import HOUR_S, FloatArray
from planning.workload.lengths import IntArray
from planning.workload.trace import Prefixes, Trace, TraceError
from planning.workload.traces import read_requests
from planning.worksheet.demand import DAY_HOURS, WEEK_HOURS, DemandStream, TokenLengths, TraceSource

SAMPLE = 8_192
"""Requests that stand for a stream's lengths."""
HourlyRates = dict[str, tuple[float, ...]]
"""Requests/s by region of origin, an hour each."""
CHUNK_TOKENS = 16
"""Of a shared prefix: vLLM's default block."""


@dataclass(frozen=True, slots=True)
class Lengths2D:
    """Requests that are equally likely: tokens of the prompt, of them those that a prefix cache holds, and of the
    answer."""

    prompts: IntArray
    cached: IntArray
    outputs: IntArray

    def __len__(self) -> int:
        return len(self.prompts)

    def take(self, chosen: IntArray) -> "Lengths2D":
        """The requests of these numbers."""
        return Lengths2D(self.prompts[chosen], self.cached[chosen], self.outputs[chosen])


def cached_of(prompts: IntArray, share: float) -> IntArray:
    """Of each prompt the whole chunks that a cache holds: at least one token is always computed."""
    held = np.minimum((share * prompts).astype(np.int64), prompts - 1)
    return held // CHUNK_TOKENS * CHUNK_TOKENS


def sampled(tokens: TokenLengths, rng: np.random.Generator) -> IntArray:
    """`SAMPLE` lengths at evenly spaced quantiles, in random order."""
    at = (np.arange(SAMPLE) + 0.5) / SAMPLE
    if tokens.values is not None:
        weights = np.array(tokens.weights or (1.0,) * len(tokens.values))
        order = np.argsort(tokens.values)
        edges = np.cumsum(weights[order]) / weights.sum()
        drawn = np.array(tokens.values)[order][np.minimum(np.searchsorted(edges, at), len(edges) - 1)]
    else:
        assert tokens.mean is not None
        normal = _normal_quantiles(at)
        drawn = np.exp(np.log(tokens.mean) - tokens.sigma**2 / 2 + tokens.sigma * normal)
    found: IntArray = rng.permutation(np.maximum(np.rint(drawn), 1).astype(np.int64))
    return found


def _normal_quantiles(at: FloatArray) -> FloatArray:
    from scipy.special import ndtri  # half a second to import

    found: FloatArray = ndtri(at)
    return found


def recorded(
    one: DemandStream, source: TraceSource, spec: ClusterSpec, time_zone: str
) -> tuple[HourlyRates, Lengths2D, tuple[str, ...]]:
    """Rates and lengths of the stream in a trace, a traffic file, or a gateway's recording of its traffic, and what was
    assumed. Raises TraceError."""
    if is_recording(Path(source.file)):
        return _of_recording(one, source, spec, time_zone)
    return _of_trace(one, source, spec)


def _of_recording(
    one: DemandStream, source: TraceSource, spec: ClusterSpec, time_zone: str
) -> tuple[HourlyRates, Lengths2D, tuple[str, ...]]:
    try:
        streams = recorded_streams(read_recording(Path(source.file), Period.HOUR), time_zone=time_zone)
    except (RecordingError, ValueError) as error:
        raise TraceError(f"{source.file}: {error}") from error
    own = [each for each in streams if (each.stream.model, each.stream.traffic_class) == (one.model, one.traffic_class)]
    if not own:
        raise TraceError(
            f"{source.file}: no request of {one.model} and class {one.traffic_class}; allowed: one and more"
        )
    home = _Home(source, spec)
    rates: HourlyRates = {}
    for each in own:
        _add(rates, home.region(each.stream.region), [source.scale * rate for rate in each.hourly])
    rng = np.random.default_rng(0)
    prompts, outputs = (
        sampled(_weighted(pair for each in own for pair in getattr(each, which)), rng) for which in ("prompt", "output")
    )
    weights = [sum(count for _, count in each.prompt) for each in own]
    share = one.prefix_share
    if "prefix_share" not in one.model_fields_set:
        share = float(np.average([each.prefix_share for each in own], weights=weights))
    return rates, Lengths2D(prompts, cached_of(prompts, share), outputs), home.notes


def _weighted(pairs: Iterable[tuple[int, int]]) -> TokenLengths:
    listed = sorted(pairs)
    values, counts = zip(*listed, strict=True)
    return TokenLengths(values=values, weights=tuple(np.array(counts) / sum(counts)))


class _Home:
    """Which region requests count for; `notes` says it of those that name none of the spec's."""

    def __init__(self, source: TraceSource, spec: ClusterSpec) -> None:
        self._file = source.file
        self._home = source.region or spec.regions[0].name
        self._known = [region.name for region in spec.regions]
        self.notes: tuple[str, ...] = ()

    def region(self, name: str) -> str:
        if name in self._known:
            return name
        where = f"from {name!r}" if name else "without a region"
        self.notes = (*self.notes, f"{self._file}: requests {where} count for {self._home}")
        return self._home


def _add(rates: HourlyRates, region: str, hourly: Iterable[float]) -> None:
    figures = tuple(hourly)
    before = rates.get(region, (0.0,) * len(figures))
    rates[region] = tuple(a + b for a, b in zip(before, figures, strict=True))


def _of_trace(
    one: DemandStream, source: TraceSource, spec: ClusterSpec
) -> tuple[HourlyRates, Lengths2D, tuple[str, ...]]:
    whole = read_requests(Path(source.file))
    used = np.ones(len(whole), dtype=np.bool_)
    others: list[str] = []
    for key, own, labels, known in (
        ("model", one.model, whole.model, spec.models),
        ("class", one.traffic_class, whole.traffic_class, spec.classes),
    ):
        if labels is not None and {each.name for each in known}.intersection(labels.used()):
            used &= np.array([name == own for name in labels.names])[labels.codes]
        elif labels is not None and any(labels.used()):
            others.append(f"{source.file}: names no {key} of the spec: all requests count for {own}")
    trace = whole.take(np.flatnonzero(used))
    if len(trace) < 2:
        which = f"{one.model} and class {one.traffic_class}"
        raise TraceError(f"{source.file}: {len(trace)} requests of {which}; allowed: two and more")
    rates, notes = _rates(trace, whole, source, spec)
    notes = (*others, *notes)
    chosen = np.random.default_rng(0).permutation(len(trace))[:SAMPLE]
    prompts, outputs = trace.prompt_tokens[chosen], trace.output_tokens[chosen]
    cached = cached_of(prompts, one.prefix_share)
    if trace.prefixes is not None and "prefix_share" not in one.model_fields_set:
        cached = repeated(trace.prefixes, trace.prompt_tokens)[chosen]
        share = cached.sum() / prompts.sum()
        said = f"{share:.0%} of the prompt tokens came before in the trace, and count as cached"
        notes = (*notes, f"{one.name}: {said}; prefix_share says otherwise")
    return rates, Lengths2D(prompts, cached, outputs), notes


def repeated(prefixes: Prefixes, prompts: IntArray) -> IntArray:
    """Of each prompt the tokens of the leading chunks that an earlier one had: what a cache without a limit holds, in
    whole chunks of `CHUNK_TOKENS`."""
    request = np.repeat(np.arange(len(prefixes)), prefixes.counts)
    ends = np.cumsum(prefixes.counts)
    place = np.arange(len(request)) - np.repeat(ends - prefixes.counts, prefixes.counts)
    _, first, which = np.unique(
        prefixes.hashes[prefixes.starts[request] + place], return_index=True, return_inverse=True
    )
    came_before = request[first][which] < request
    tokens = prefixes.chunk_tokens * np.bincount(request[came_before], minlength=len(prefixes))
    found: IntArray = np.minimum(tokens, prompts - 1) // CHUNK_TOKENS * CHUNK_TOKENS
    return found


def _rates(trace: Trace, whole: Trace, source: TraceSource, spec: ClusterSpec) -> tuple[HourlyRates, tuple[str, ...]]:
    """Those of the trace, which is a part of the `whole` one: that one says when requests could come."""
    span_s = whole.span_s
    hours = WEEK_HOURS if span_s >= (WEEK_HOURS - 1) * HOUR_S else DAY_HOURS
    home = _Home(source, spec)
    names = ("",) if trace.region is None else trace.region.names
    codes = np.zeros(len(trace), dtype=np.int32) if trace.region is None else trace.region.codes
    found: HourlyRates = {}
    for code, name in enumerate(names):
        if (codes == code).any():
            begin_s = float(whole.arrived_s[0])
            _add(found, home.region(name), _hourly(trace.arrived_s[codes == code], begin_s, span_s, hours, source))
    notes = home.notes
    if span_s < (DAY_HOURS - 1) * HOUR_S:
        notes = (*notes, f"{source.file}: covers {span_s / HOUR_S:.1f} h: all hours have its mean rate")
    return found, notes


def _hourly(arrived_s: FloatArray, begin_s: float, span_s: float, hours: int, source: TraceSource) -> tuple[float, ...]:
    """By the seconds of each hour that the trace covers; its mean where they are less than half of one."""
    mean = len(arrived_s) / span_s
    if span_s < (DAY_HOURS - 1) * HOUR_S:
        return (source.scale * mean,) * hours
    edges_s = np.clip(HOUR_S * np.arange(math.ceil((begin_s + span_s) / HOUR_S) + 1), begin_s, begin_s + span_s)
    of_day = (np.arange(len(edges_s) - 1) + source.start_hour) % hours
    counts = np.bincount(of_day[(arrived_s / HOUR_S).astype(np.int64)], minlength=hours)
    covered_s = np.bincount(of_day, weights=np.diff(edges_s), minlength=hours)
    rates = np.where(covered_s >= HOUR_S / 2, counts / np.maximum(covered_s, 1.0), mean)
    return tuple((source.scale * rates).tolist())
