"""What arrives, as the plan counts it: a worksheet's streams with their rates by region and hour, and their requests in
bands of alike lengths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import numpy as np

from cluster.spec import ClusterSpec
from planning.simulator.workload import Workload
from planning.workload.arrivals import HOUR_S, FloatArray
from planning.workload.lengths import IntArray
from planning.workload.trace import LARGEST_HASH, Trace, TraceError, no_prefixes
from planning.workload.traces import read_requests
from planning.worksheet import DemandStream, TokenLengths, TraceSource, Worksheet
from planning.worksheet.demand import DAY_HOURS, WEEK_HOURS

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


@dataclass(frozen=True, slots=True, eq=False)
class RequestStream:
    """A worksheet's stream: requests/s by region of origin, an hour each, with growth; its SLO; its lengths. `notes`:
    what was assumed."""

    name: str
    model: str
    traffic_class: str
    rates: Mapping[str, tuple[float, ...]]
    lengths: Lengths2D
    ttft_s: float
    itl_s: float | None
    attainment: float
    residency: frozenset[str] | None = None
    notes: tuple[str, ...] = ()

    def mean_tokens(self) -> tuple[float, float]:
        """Of a prompt, and of an answer."""
        return float(self.lengths.prompts.mean()), float(self.lengths.outputs.mean())


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """The requests of a stream that wait in one lane of the spec and fit the same groups: at most `longest` tokens of
    prompt and answer together. `share`: of the stream's requests."""

    name: str
    stream: RequestStream
    lane: str
    longest: int
    share: float
    lengths: Lengths2D

    @property
    def input_tokens(self) -> float:
        """The mean of a prompt, cached tokens with it."""
        return float(self.lengths.prompts.mean())

    @property
    def uncached_tokens(self) -> float:
        """The mean that has to be prefilled."""
        return float((self.lengths.prompts - self.lengths.cached).mean())

    @property
    def output_tokens(self) -> float:
        """The mean of an answer."""
        return float(self.lengths.outputs.mean())

    def demand(self) -> dict[str, tuple[float, ...]]:
        """Requests/s by region of origin and hour."""
        return {region: tuple(self.share * rate for rate in rates) for region, rates in self.stream.rates.items()}


def streams_of(sheet: Worksheet, spec: ClusterSpec) -> tuple[RequestStream, ...]:
    """The worksheet's streams, all of one number of hours: a week where one of them has a week. Raises TraceError."""
    found = [_stream(one, spec, number) for number, one in enumerate(sheet.demand)]
    hours = max(len(rates) for stream in found for rates in stream.rates.values())
    return tuple(_of_hours(stream, hours) for stream in found)


def bands_of(stream: RequestStream, spec: ClusterSpec, contexts: Sequence[int]) -> tuple[tuple[Band, ...], float]:
    """A stream's bands by the spec's lanes and by the `contexts` of the groups that may serve it, and the share of its
    requests that fit none."""
    lengths, bounds = stream.lengths, sorted(set(contexts))
    total = lengths.prompts + lengths.outputs
    lane_tokens = total - lengths.cached
    uppers = np.array([float(lane.up_to_tokens or np.inf) for lane in spec.lanes])
    lane = np.searchsorted(uppers, lane_tokens)
    context = np.searchsorted(np.array(bounds), total)
    found = []
    for number, one in enumerate(spec.lanes):
        first = True
        for place, longest in enumerate(bounds):
            chosen = np.flatnonzero((lane == number) & (context == place))
            if not len(chosen):
                continue
            over = "" if first else f", over {bounds[place - 1]:,} tokens"
            part = Lengths2D(lengths.prompts[chosen], lengths.cached[chosen], lengths.outputs[chosen])
            name = f"{stream.name}: {one.name}{over}"
            found.append(Band(name, stream, one.name, longest, len(chosen) / len(lengths), part))
            first = False
    return tuple(found), float((context == len(bounds)).mean())


def workload_of_bands(
    parts: Sequence[tuple[Band, float, float]], seconds: float, seed: int
) -> tuple[Workload, IntArray]:
    """Requests that come as a Poisson process, in the order of time, and the part that each is of: of each band so many
    a second; its TTFT is cut by a network's round trip (seconds)."""
    rng = np.random.default_rng(seed)
    columns = [_drawn(band, rate, seconds, rng) for band, rate, _ in parts]
    arrived = np.concatenate([column[0] for column in columns])
    order = np.argsort(arrived, kind="stable")
    prompts, cached, outputs = (np.concatenate([column[which] for column in columns])[order] for which in (1, 2, 3))
    of_part = np.concatenate([np.full(len(column[0]), number) for number, column in enumerate(columns)])[order]
    slo_s = np.array([max(1e-3, band.stream.ttft_s - rtt_s) for band, _, rtt_s in parts])
    classes = [band.stream.traffic_class for band, _, _ in parts]
    chunks = int(cached.max(initial=0)) // CHUNK_TOKENS
    texts = [_text(band.stream.name, chunks) for band, _, _ in parts]
    prefix = tuple(
        texts[part][: held // CHUNK_TOKENS] for part, held in zip(of_part.tolist(), cached.tolist(), strict=True)
    )
    count = len(order)
    work = Workload(
        arrived[order],
        prompts,
        outputs,
        np.zeros(count, dtype=np.int64),
        slo_s[of_part] if count else np.zeros(0),
        ("",) * count,
        tuple(classes[part] for part in of_part.tolist()),
        prefix,
        CHUNK_TOKENS if any(prefix) else 0,
    )
    return work, of_part


def _drawn(
    band: Band, rate: float, seconds: float, rng: np.random.Generator
) -> tuple[FloatArray, IntArray, IntArray, IntArray]:
    count = int(rng.poisson(rate * seconds))
    chosen = rng.integers(0, len(band.lengths), size=count)
    lengths = band.lengths
    return (
        rng.random(count) * seconds,
        lengths.prompts[chosen],
        lengths.cached[chosen],
        lengths.outputs[chosen],
    )


def _text(name: str, chunks: int) -> tuple[int, ...]:
    """The hashes of a stream's shared beginning."""
    salt = crc32(name.encode()) << 24
    return tuple((salt + number) & LARGEST_HASH for number in range(chunks))


def _stream(one: DemandStream, spec: ClusterSpec, number: int) -> RequestStream:
    of_class = next(cls for cls in spec.classes if cls.name == one.traffic_class)
    ttft_ms = of_class.ttft_ms if one.slo.ttft_ms is None else one.slo.ttft_ms
    itl_ms = of_class.itl_ms if one.slo.itl_ms is None else one.slo.itl_ms
    notes: tuple[str, ...] = ()
    if one.trace is not None:
        rates, lengths, notes = _recorded(one, one.trace, spec)
    else:
        assert one.rates is not None
        assert one.input_tokens is not None
        assert one.output_tokens is not None
        rates = {rate.region: rate.hourly() for rate in one.rates}
        rng = np.random.default_rng(number)
        prompts, outputs = (_sampled(tokens, rng) for tokens in (one.input_tokens, one.output_tokens))
        lengths = Lengths2D(prompts, _cached(prompts, one.prefix_share), outputs)
    return RequestStream(
        one.name,
        one.model,
        one.traffic_class,
        {region: tuple(one.factor * rate for rate in hours) for region, hours in rates.items()},
        lengths,
        ttft_ms / 1e3,
        None if itl_ms is None else itl_ms / 1e3,
        of_class.attainment if one.slo.attainment is None else one.slo.attainment,
        None if one.residency is None else frozenset(one.residency),
        notes,
    )


def _cached(prompts: IntArray, share: float) -> IntArray:
    """Of each prompt the whole chunks that a cache holds: at least one token is always computed."""
    held = np.minimum((share * prompts).astype(np.int64), prompts - 1)
    return held // CHUNK_TOKENS * CHUNK_TOKENS


def _sampled(tokens: TokenLengths, rng: np.random.Generator) -> IntArray:
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


def _recorded(
    one: DemandStream, source: TraceSource, spec: ClusterSpec
) -> tuple[HourlyRates, Lengths2D, tuple[str, ...]]:
    trace = read_requests(Path(source.file))
    if trace.model is not None and one.model in trace.model.used():
        named = np.array([name == one.model for name in trace.model.names])
        trace = trace.take(np.flatnonzero(named[trace.model.codes]))
    if trace.traffic_class is not None and one.traffic_class in trace.traffic_class.used():
        named = np.array([name == one.traffic_class for name in trace.traffic_class.names])
        trace = trace.take(np.flatnonzero(named[trace.traffic_class.codes]))
    if len(trace) < 2:
        raise TraceError(f"{source.file}: {len(trace)} requests of {one.model}; allowed: two and more")
    rates, notes = _rates(trace, source, spec)
    chosen = np.random.default_rng(0).permutation(len(trace))[:SAMPLE]
    prompts, outputs = trace.prompt_tokens[chosen], trace.output_tokens[chosen]
    prefixes = trace.prefixes or no_prefixes(len(trace), CHUNK_TOKENS)
    if one.prefix_share == 0 and len(prefixes.hashes):
        notes = (*notes, f"{one.name}: the trace's prefixes are not used; give prefix_share")
    return rates, Lengths2D(prompts, _cached(prompts, one.prefix_share), outputs), notes


def _rates(
    trace: Trace, source: TraceSource, spec: ClusterSpec
) -> tuple[dict[str, tuple[float, ...]], tuple[str, ...]]:
    span_s = trace.span_s
    hours = WEEK_HOURS if span_s >= (WEEK_HOURS - 1) * HOUR_S else DAY_HOURS
    home = source.region or spec.regions[0].name
    known = [region.name for region in spec.regions]
    names = ("",) if trace.region is None else trace.region.names
    codes = np.zeros(len(trace), dtype=np.int32) if trace.region is None else trace.region.codes
    found: dict[str, tuple[float, ...]] = {}
    notes = []
    for code, name in enumerate(names):
        if not (codes == code).any():
            continue
        region = name if name in known else home
        if name not in known:
            notes.append(f"{source.file}: requests {f'from {name!r}' if name else 'without a region'} count for {home}")
        hourly = _hourly(trace.arrived_s[codes == code], span_s, hours, source)
        before = found.get(region, (0.0,) * hours)
        found[region] = tuple(a + b for a, b in zip(before, hourly, strict=True))
    if span_s < (DAY_HOURS - 1) * HOUR_S:
        notes.append(f"{source.file}: covers {span_s / HOUR_S:.1f} h, less than a day: all hours have its mean rate")
    return found, tuple(dict.fromkeys(notes))


def _hourly(arrived_s: FloatArray, span_s: float, hours: int, source: TraceSource) -> tuple[float, ...]:
    if span_s < (DAY_HOURS - 1) * HOUR_S:
        return (source.scale * len(arrived_s) / span_s,) * hours
    whole = max(1, round(span_s / HOUR_S))
    slot = np.minimum((arrived_s / HOUR_S).astype(np.int64), whole - 1)
    counts = np.bincount(slot, minlength=whole).astype(np.float64)
    of_day = (np.arange(whole) + source.start_hour) % hours
    seen = np.bincount(of_day, minlength=hours)
    sums = np.bincount(of_day, weights=counts, minlength=hours)
    mean = counts.mean()
    return tuple(
        float(source.scale * (sums[hour] / seen[hour] if seen[hour] else mean) / HOUR_S) for hour in range(hours)
    )


def _of_hours(stream: RequestStream, hours: int) -> RequestStream:
    rates = {region: figures * (hours // len(figures)) for region, figures in stream.rates.items()}
    return replace(stream, rates=rates)
