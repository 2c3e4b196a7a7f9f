"""Draws the requests of a traffic file. Pure but for ServeGen's tables, which are read.

Every stream in every region is drawn by itself, from a seed of its own, and their requests are laid together in time: a
stream that is added or taken out leaves the others as they were.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planning.workload.arrivals import FloatArray, RateCurve, WallClock, day_rate, renewal_arrivals
from planning.workload.lengths import IntArray, parse_lengths
from planning.workload.servegen import ServeGenError, drawn_trace, read_tables
from planning.workload.trace import Labels, Trace, joined
from planning.workload.traffic.file import (
    MAX_REQUESTS,
    WEEKDAYS,
    ServeGen,
    Share,
    SharedPrefix,
    Tenants,
    TrafficError,
    TrafficFile,
    TrafficRegion,
    TrafficStream,
)
from planning.workload.traffic.talks import drawn_turns, hashed


def zipf_weights(count: int, exponent: float) -> FloatArray:
    """Weights that fall with the rank: 1 / rank^exponent."""
    return 1.0 / np.arange(1, count + 1, dtype=np.float64) ** exponent


def drawn_numbers(weights: FloatArray, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`count` positions in `weights`, each as often as its weight says."""
    edges = np.cumsum(weights)
    drawn: NDArray[np.int64] = np.minimum(
        np.searchsorted(edges, rng.random(count) * edges[-1], side="right"), len(weights) - 1
    )
    return drawn


def drawn_labels(shares: Sequence[Share], count: int, rng: np.random.Generator) -> Labels | None:
    """`count` names by their shares; None where there are no names."""
    if not shares:
        return None
    weights = np.array([share.share for share in shares])
    return Labels(tuple(share.name for share in shares), drawn_numbers(weights, count, rng).astype(np.int32))


def drawn_tenants(tenants: Tenants | None, count: int, rng: np.random.Generator) -> Labels | None:
    """`count` tenants; None where the file has none."""
    if tenants is None or tenants.count is None:
        return drawn_labels(tenants.names, count, rng) if tenants else None
    names = tuple(f"tenant-{rank}" for rank in range(1, tenants.count + 1))
    return Labels(names, drawn_numbers(zipf_weights(tenants.count, tenants.zipf), count, rng).astype(np.int32))


_HERE = TrafficRegion(name="-")


def draw(traffic: TrafficFile, seed: int | None = None) -> Trace:
    """The requests of a traffic file, by its own seed or another one. Raises TrafficError where there would be none, or
    far too many."""
    seed = traffic.seed if seed is None else seed
    regions = traffic.regions or (_HERE,)
    whole = sum(region.share for region in regions)
    rates = {
        (number, place): _rate(traffic, stream, region, region.share / whole)
        for number, stream in enumerate(traffic.streams)
        for place, region in enumerate(regions)
    }
    expected = sum(rate.expected_requests for rate in rates.values())
    if expected > MAX_REQUESTS:
        raise TrafficError(
            "the traffic", [f"streams: {expected:.3g} requests are expected; allowed: at most {MAX_REQUESTS}"]
        )
    parts = [
        _drawn(traffic, number, place, rate, np.random.default_rng([seed, number, place]))
        for (number, place), rate in rates.items()
    ]
    if traffic.servegen is not None:
        parts.append(
            _described(traffic.servegen, traffic.duration_s, np.random.default_rng([seed, len(traffic.streams)]))
        )
    return _together([part for part in parts if len(part)])


def _rate(traffic: TrafficFile, stream: TrafficStream, region: TrafficRegion, share: float) -> RateCurve:
    clock = WallClock(traffic.start.hour + region.hour_offset, WEEKDAYS.index(traffic.start.day))
    return day_rate(
        stream.rate.knots(),
        traffic.duration_s,
        clock,
        stream.rate.weekdays.factors(),
        stream.spikes,
        share / (stream.sessions.turns if stream.sessions else 1.0),
    )


def _drawn(traffic: TrafficFile, number: int, place: int, rate: RateCurve, rng: np.random.Generator) -> Trace:
    """One stream in one region."""
    stream, sessions = traffic.streams[number], traffic.streams[number].sessions
    starts = renewal_arrivals(rate, stream.gaps, stream.shape, rng)
    talks = len(starts)
    text = _texts(stream.prefix, talks, rng)
    prefix_tokens = np.where(text >= 0, stream.prefix.tokens if stream.prefix else 0, 0)
    turns = drawn_turns(
        starts, prefix_tokens, parse_lengths(stream.prompt), parse_lengths(stream.output), sessions, rng
    )
    classes, tenants = drawn_labels(stream.classes, talks, rng), drawn_tenants(stream.tenants, talks, rng)
    text_chunks = stream.prefix.tokens // traffic.chunk_tokens if stream.prefix else 0
    count = len(turns.talk)
    whole = Trace(
        turns.arrived_s,
        turns.prompt_tokens,
        turns.output_tokens,
        tenant=None if tenants is None else tenants.take(turns.talk),
        traffic_class=None if classes is None else classes.take(turns.talk),
        model=_all(stream.model, count) if stream.model else None,
        region=_all(traffic.regions[place].name, count) if traffic.regions else None,
        session=turns.talk if sessions else None,
        prefixes=hashed(turns, text, text_chunks, traffic.chunk_tokens, number, place, talks=sessions is not None),
    ).at(turns.arrived_s)
    return whole.take(np.flatnonzero(whole.arrived_s < traffic.duration_s))


def _texts(prefix: SharedPrefix | None, talks: int, rng: np.random.Generator) -> IntArray:
    """Which system prompt each conversation begins with; -1: none."""
    if prefix is None:
        return np.full(talks, -1, dtype=np.int64)
    chosen = drawn_numbers(zipf_weights(prefix.count, prefix.zipf), talks, rng)
    return np.where(rng.random(talks) < prefix.share, chosen, -1)


def _all(name: str, count: int) -> Labels:
    return Labels((name,), np.zeros(count, dtype=np.int32))


def _described(desired: ServeGen, duration_s: float, rng: np.random.Generator) -> Trace:
    try:
        tables = read_tables(desired.folder, desired.model)
        trace = drawn_trace(
            tables, desired.from_s, desired.from_s + duration_s, desired.rate_scale, rng, maximum=MAX_REQUESTS
        )
    except ServeGenError as error:
        raise TrafficError("servegen", [str(error)]) from error
    return replace(trace, traffic_class=_all(desired.traffic_class, len(trace))) if desired.traffic_class else trace


def _together(parts: list[Trace]) -> Trace:
    """The parts as one trace, with sessions that differ between parts."""
    if not parts:
        raise TrafficError(
            "the traffic",
            ["duration_s, streams.rate: not one request was drawn; allowed: a longer time or a higher rate"],
        )
    numbered, first = [], 0
    for part in parts:
        if part.session is not None:
            numbered.append(replace(part, session=part.session + first))
            first += int(part.session.max()) + 1
        else:
            numbered.append(part)
    return joined(numbered)
