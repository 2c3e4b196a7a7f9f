"""What arrives, as the plan counts it: a worksheet's streams with their rates by region and hour, and their requests in
bands of alike lengths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np

from cluster.spec import ClusterSpec
from planning.plans.samples import CHUNK_TOKENS, Lengths2D, cached_of, recorded, sampled
from planning.simulator.workload import Workload
from planning.workload.arrivals import FloatArray
from planning.workload.lengths import IntArray
from planning.workload.trace import LARGEST_HASH
from planning.worksheet.demand import DemandStream
from planning.worksheet.sheet import Worksheet


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
    found = [_stream(one, spec, sheet.time_zone) for one in sheet.demand]
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
            name = f"{stream.name}: {one.name}{over}"
            found.append(Band(name, stream, one.name, longest, len(chosen) / len(lengths), lengths.take(chosen)))
            first = False
    return tuple(found), float((context == len(bounds)).mean())


def workload_of_bands(
    parts: Sequence[tuple[Band, float, float]], seconds: float, seed: int
) -> tuple[Workload, IntArray]:
    """Requests that come as a Poisson process, in the order of time, and the part that each is of: of each band so many
    a second; its TTFT is cut by a network's round trip (seconds)."""
    rng = np.random.default_rng(seed)
    times, drawn = zip(*(_drawn(band, rate, seconds, rng) for band, rate, _ in parts), strict=True)
    arrived = np.concatenate(times)
    order = np.argsort(arrived, kind="stable")
    prompts, cached, outputs = (
        np.concatenate([getattr(one, name) for one in drawn])[order] for name in ("prompts", "cached", "outputs")
    )
    of_part = np.repeat(np.arange(len(parts)), [len(one) for one in drawn])[order]
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


def _drawn(band: Band, rate: float, seconds: float, rng: np.random.Generator) -> tuple[FloatArray, Lengths2D]:
    count = int(rng.poisson(rate * seconds))
    chosen = rng.integers(0, len(band.lengths), size=count)
    return rng.random(count) * seconds, band.lengths.take(chosen)


def _text(name: str, chunks: int) -> tuple[int, ...]:
    """The hashes of a stream's shared beginning."""
    salt = crc32(name.encode()) << 24
    return tuple((salt + number) & LARGEST_HASH for number in range(chunks))


def _stream(one: DemandStream, spec: ClusterSpec, zone: str) -> RequestStream:
    of_class = next(cls for cls in spec.classes if cls.name == one.traffic_class)
    ttft_ms = of_class.ttft_ms if one.slo.ttft_ms is None else one.slo.ttft_ms
    itl_ms = of_class.itl_ms if one.slo.itl_ms is None else one.slo.itl_ms
    notes: tuple[str, ...] = ()
    if one.trace is not None:
        rates, lengths, notes = recorded(one, one.trace, spec, zone)
    else:
        assert one.rates is not None
        assert one.input_tokens is not None
        assert one.output_tokens is not None
        rates = {rate.region: rate.hourly() for rate in one.rates}
        rng = np.random.default_rng(0)  # the same for all: streams that are alike have the same rates
        prompts, outputs = (sampled(tokens, rng) for tokens in (one.input_tokens, one.output_tokens))
        lengths = Lengths2D(prompts, cached_of(prompts, one.prefix_share), outputs)
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


def _of_hours(stream: RequestStream, hours: int) -> RequestStream:
    rates = {region: figures * (hours // len(figures)) for region, figures in stream.rates.items()}
    return replace(stream, rates=rates)
