"""A scenario's requests: kinds of requests (classes, SLOs and lengths, drawn independently), streams of them at
changing rates, and the expected load.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planning.gauntlet.serving import LoadCurve, Serving, full_rate, load_of
from planning.simulator.workload import Workload, plain_workload
from planning.workload.arrivals import GapKind, RateCurve, renewal_arrivals
from planning.workload.lengths import IntArray, LogNormal
from planning.workload.trace import Labels

_PROBED = 1_200


@dataclass(frozen=True, slots=True)
class RequestKind:
    """`share`: of the requests; `slo_s`: of the first token; lengths stay within `max_prompt` and `max_output`."""

    traffic_class: str
    slo_s: float
    share: float
    prompt: LogNormal
    output: LogNormal
    max_prompt: int
    max_output: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """Columns of equal length; `kind` is the index in the mix."""

    kind: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    slo_s: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RequestMix:
    """Shares add up to 1."""

    kinds: tuple[RequestKind, ...]

    def draw(self, count: int, rng: np.random.Generator) -> Drawn:
        chosen = rng.choice(len(self.kinds), size=count, p=[kind.share for kind in self.kinds])
        prompt, output = np.ones(count, dtype=np.int64), np.ones(count, dtype=np.int64)
        for number, kind in enumerate(self.kinds):
            own = chosen == number
            prompt[own] = np.minimum(kind.prompt.sample(int(own.sum()), rng), kind.max_prompt)
            output[own] = np.minimum(kind.output.sample(int(own.sum()), rng), kind.max_output)
        return Drawn(chosen, prompt, output, np.array([kind.slo_s for kind in self.kinds])[chosen])

    def heavier(self, factor: float) -> "RequestMix":
        """The same requests with prompts `factor` times as long."""
        return RequestMix(
            tuple(
                RequestKind(
                    kind.traffic_class,
                    kind.slo_s,
                    kind.share,
                    LogNormal(factor * kind.prompt.mean, kind.prompt.sigma),
                    kind.output,
                    round(factor * kind.max_prompt),
                    kind.max_output,
                )
                for kind in self.kinds
            )
        )


INTERACTIVE = RequestKind("interactive", 2.0, 0.92, LogNormal(800, 0.7), LogNormal(320, 0.7), 2_400, 1_500)
DOCUMENT = RequestKind("document", 10.0, 0.08, LogNormal(6_000, 0.4), LogNormal(250, 0.5), 16_000, 1_000)
CHATS = RequestMix((INTERACTIVE, DOCUMENT))
"""Mostly chat with an SLO of 2 s, and some long documents with one of 10 s."""


@lru_cache
def rate_of(serving: Serving, mix: RequestMix) -> float:
    """Requests a second of such traffic that fill one replica. Measured once in a process."""
    drawn = mix.draw(_PROBED, np.random.default_rng(7))
    return full_rate(
        serving, plain_workload(np.zeros(_PROBED), drawn.prompt_tokens, drawn.output_tokens, bounded=False)
    )


Knots = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class LoadStream:
    """Requests of `mix`. `knots`: (second, load in replicas), joined by lines; the same second twice is a jump. `shape`
    1: Poisson, below 1: in bursts."""

    mix: RequestMix
    knots: Knots
    kind: GapKind = "gamma"
    shape: float = 1.0


def drawn(
    serving: Serving, streams: Sequence[LoadStream], until_s: float, rng: np.random.Generator
) -> tuple[Workload, LoadCurve]:
    """All requests until `until_s`, and the expected load."""
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
    codes = [
        np.array([names.index(kind.traffic_class) for kind in mix.kinds], dtype=np.int32)[own.kind]
        for mix, _, own in parts
    ]
    arrived_s = np.concatenate([times for _, times, _ in parts])
    order = np.argsort(arrived_s, kind="stable")
    prompt, output = (
        np.concatenate([getattr(own, name) for _, _, own in parts])[order]
        for name in ("prompt_tokens", "output_tokens")
    )
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


def rate_through(knots: Knots, per_replica: float, until_s: float) -> RateCurve:
    """Requests a second over time, constant before the first knot and after the last."""
    at = [0.0, *(at_s for at_s, _ in knots), until_s]
    load = [knots[0][1], *(replicas for _, replicas in knots), knots[-1][1]]
    pieces = [(a, b, x, y) for a, b, x, y in zip(at, at[1:], load, load[1:], strict=False) if a < b <= until_s]
    edges = np.array([pieces[0][0], *(end for _, end, _, _ in pieces)])
    left, right = (per_replica * np.array([piece[side] for piece in pieces]) for side in (2, 3))
    before = np.concatenate([[0.0], np.cumsum((left + right) / 2 * np.diff(edges))])
    return RateCurve(edges, left, right, before)
