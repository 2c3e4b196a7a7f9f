"""Draws a scenario's requests: streams of a mix at a rate that changes, laid together; with the load that was to be expected. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planning.gauntlet.load import Load, load_of
from planning.gauntlet.mix import Mix, rate_of
from planning.gauntlet.serving import Serving
from planning.simulator.workload import Workload
from planning.workload.labels import Labels
from planning.workload.rate import Rate
from planning.workload.renewal import GapKind, renewal_arrivals

Knots = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests of `mix`. `knots`: (second, replicas' worth of load), joined by lines; the same second twice is a jump. `shape` 1: Poisson, below 1 in
    bursts (`renewal.py`)."""

    mix: Mix
    knots: Knots
    kind: GapKind = "gamma"
    shape: float = 1.0


def drawn(serving: Serving, streams: Sequence[Stream], until_s: float, rng: np.random.Generator) -> tuple[Workload, Load]:
    """All their requests until `until_s`, and the load that was expected."""
    parts, loads = [], []
    for stream in streams:
        per_replica = rate_of(serving, stream.mix)
        rate = rate_through(stream.knots, per_replica, until_s)
        loads.append(load_of(rate.expected, per_replica, until_s))
        arrived_s = renewal_arrivals(rate, stream.kind, stream.shape, rng)
        parts.append((stream.mix, arrived_s, stream.mix.draw(len(arrived_s), rng)))
    load = loads[0]
    for more in loads[1:]:
        load = load.plus(more)
    names = sorted({kind.traffic_class for mix, _, _ in parts for kind in mix.kinds})
    codes = [np.array([names.index(kind.traffic_class) for kind in mix.kinds], dtype=np.int32)[own.kind] for mix, _, own in parts]
    arrived_s = np.concatenate([times for _, times, _ in parts])
    order = np.argsort(arrived_s, kind="stable")
    prompt, output = (np.concatenate([getattr(own, name) for _, _, own in parts])[order] for name in ("prompt_tokens", "output_tokens"))
    slo_s = np.concatenate([own.slo_s for _, _, own in parts])[order]
    count = len(order)
    work = Workload(
        arrived_s[order],
        prompt,
        output,
        np.zeros(count, dtype=np.int64),
        slo_s,
        ("",) * count,
        Labels(tuple(names), np.concatenate(codes)[order]),
        ((),) * count,
    )
    return work, load


def rate_through(knots: Knots, per_replica: float, until_s: float) -> Rate:
    """Requests a second over time; before the first knot and after the last as there."""
    at = [0.0, *(at_s for at_s, _ in knots), until_s]
    load = [knots[0][1], *(replicas for _, replicas in knots), knots[-1][1]]
    pieces = [(a, b, x, y) for a, b, x, y in zip(at, at[1:], load, load[1:], strict=False) if a < b <= until_s]
    edges = np.array([pieces[0][0], *(end for _, end, _, _ in pieces)])
    left, right = (per_replica * np.array([piece[side] for piece in pieces]) for side in (2, 3))
    before = np.concatenate([[0.0], np.cumsum((left + right) / 2 * np.diff(edges))])
    return Rate(edges, left, right, before)
