"""Two running sides, taken in turns: rounds at fixed concurrencies, and single requests spaced out.

Both sides get the same requests in the same order, each round new ones, so that no prefix cache helps. Who goes first
changes from round to round, so that a slow drift of the machine favours nobody. The client is `raylane bench`'s own, in
this process. Concurrencies are given as numbers or as multiples of the engine's `max_num_seqs`.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness import in_turns, median_interval
from cli.bench.answer import Sample
from cli.bench.client import BenchClient
from cli.bench.load import drawn_load, run
from cli.bench.prompts import Prompts, RequestOptions, Vocabulary
from cli.bench.results import RunRecord, Spread, spread
from planning.workload.lengths import Fixed


def parse_points(text: str, max_num_seqs: int) -> tuple[int, ...]:
    """The concurrencies in `8,32,4x`, where `4x` is four times `max_num_seqs`. Raises ValueError."""
    return tuple(_point(part.strip(), max_num_seqs) for part in text.split(","))


def requests_for(concurrency: int, requests_per_s: float, round_s: float) -> int:
    """Requests of one round that lasts about `round_s`: whole waves of `concurrency`, at least two of them, so that the
    ends weigh little."""
    waves = max(2, round(requests_per_s * round_s / concurrency))
    return waves * concurrency


def _point(part: str, max_num_seqs: int) -> int:
    digits = part.removesuffix("x")
    if not digits.isdigit() or int(digits) == 0:
        raise ValueError(
            f"{part!r} is not a point; allowed: a concurrency (32) or a multiple of max_num_seqs (4x), with commas"
        )
    return int(digits) * (max_num_seqs if part.endswith("x") else 1)


_PAUSE_S = 0.3
"""Between two turns, so that the work of one has ended everywhere before the other's begins."""
_SINGLES_BEFORE = 5
"""Spaced requests of each side that are sent first and not counted."""


@dataclass(frozen=True, slots=True)
class ComparisonShape:
    """What a comparison is made of. `round_s` is about how long a turn is, `single_every_s` the time from one spaced
    request to the next; those are always streamed."""

    prompt_tokens: int = 64
    output_tokens: int = 64
    rounds: int = 5
    round_s: float = 10.0
    singles: int = 200
    single_every_s: float = 0.15
    stream: bool = True


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """A shape, and what its requests are made of."""

    shape: ComparisonShape
    model: str
    vocabulary: Vocabulary

    def prompts(self, seed: int, stream: bool = True) -> Prompts:
        """A fresh source of requests; the same seed gives the same ones."""
        return Prompts(self.vocabulary, RequestOptions(self.model, "completions", stream, ignore_eos=True), seed)


@dataclass(frozen=True, slots=True)
class ComparisonSide:
    """A side of a contest: its name, and clients that are connected to it: one whose answers are streamed, one that
    gets them whole."""

    name: str
    client: BenchClient
    whole: BenchClient


@asynccontextmanager
async def contender(name: str, url: str) -> AsyncIterator[ComparisonSide]:
    """The side at `url`."""
    async with BenchClient(url, "completions") as client, BenchClient(url, "completions", stream=False) as whole:
        yield ComparisonSide(name, client, whole)


async def contest_point(
    ours: ComparisonSide, rival: ComparisonSide, concurrency: int, plan: ComparisonPlan
) -> dict[str, Any]:
    """The rounds at one concurrency, and the median of the per-round ratios of output tokens a second (ours to the
    rival's)."""
    rates = [await _warm_up(side, concurrency, plan) for side in (ours, rival)]
    requests = requests_for(concurrency, min(rates), plan.shape.round_s)
    rounds = []
    for number in range(plan.shape.rounds):
        order = in_turns((ours, rival), number)
        figures = {
            side.name: await _turn(side, concurrency, requests, plan, seed=_seed(rival.name, concurrency, number))
            for side in order
        }
        ratio = figures[ours.name]["tokens_per_s"] / max(figures[rival.name]["tokens_per_s"], 1e-9)
        rounds.append({"first": order[0].name, "ratio": round(ratio, 4), **figures})
    return {
        "concurrency": concurrency,
        "requests_per_round": requests,
        "ratio": median_interval([each["ratio"] for each in rounds]).as_json(),
        "rounds": rounds,
    }


async def contest_singles(ours: ComparisonSide, rival: ComparisonSide, plan: ComparisonPlan) -> dict[str, Any]:
    """Single requests, one each `single_every_s`, the sides in turns: TTFT of both, and the median of the pairs'
    differences.

    Spaced, since a closed loop of one client meets the engine's wake-up after a short idle time at random.
    """
    shape = plan.shape
    prompts = {side.name: plan.prompts(_seed(rival.name, 1, 0)) for side in (ours, rival)}
    samples: dict[str, list[Sample]] = {ours.name: [], rival.name: []}
    loop = asyncio.get_running_loop()
    due = loop.time()
    for _ in range(shape.singles + _SINGLES_BEFORE):
        for side in (ours, rival):
            await asyncio.sleep(max(0.0, due - loop.time()))
            due = loop.time() + shape.single_every_s
            samples[side.name].append(
                await side.client.send(prompts[side.name].body(shape.prompt_tokens, shape.output_tokens))
            )
    counted = {name: taken[_SINGLES_BEFORE:] for name, taken in samples.items()}
    pairs = [(a.ttft_s, b.ttft_s) for a, b in zip(counted[ours.name], counted[rival.name], strict=True)]
    differences = [(a - b) * 1_000 for a, b in pairs if a is not None and b is not None]
    return {
        "failed": sum(sample.failure is not None for taken in counted.values() for sample in taken),
        "ttft_ms": {name: _ttft(taken) for name, taken in counted.items()},
        "ttft_difference_ms": median_interval(differences).as_json() if differences else None,
    }


def _ttft(samples: list[Sample]) -> Spread:
    return spread(np.array([sample.ttft_s for sample in samples if sample.ttft_s is not None]))


async def _warm_up(side: ComparisonSide, concurrency: int, plan: ComparisonPlan) -> float:
    """Two waves; returns the requests a second."""
    record = await _run(side, concurrency, 2 * concurrency, plan, seed=_seed(side.name, concurrency, -1))
    return record.ok / max(record.elapsed_s, 1e-3)


async def _turn(
    side: ComparisonSide, concurrency: int, requests: int, plan: ComparisonPlan, seed: int
) -> dict[str, Any]:
    await asyncio.sleep(_PAUSE_S)
    record = await _run(side, concurrency, requests, plan, seed)
    ttft = spread(record.ttft_s)
    return {
        "tokens_per_s": round(record.output_tokens / max(record.elapsed_s, 1e-9), 2),
        "elapsed_s": round(record.elapsed_s, 3),
        "failed": record.failed,
        "failures": dict(record.failures),
        "ttft_p50_ms": ttft["p50"],
        "ttft_p99_ms": ttft["p99"],
        "e2e_p50_ms": spread(record.e2e_s)["p50"],
    }


async def _run(side: ComparisonSide, concurrency: int, requests: int, plan: ComparisonPlan, seed: int) -> RunRecord:
    client, shape = side.client if plan.shape.stream else side.whole, plan.shape
    load = drawn_load(
        Fixed(shape.prompt_tokens), Fixed(shape.output_tokens), seed, concurrency=concurrency, requests=requests
    )
    record = RunRecord()
    await run(client, plan.prompts(seed, client.stream), load, record)
    return record


def _seed(*parts: object) -> int:
    """The same seed for the same parts in every process (Python's own hash of strings is not)."""
    return zlib.crc32(repr(parts).encode())
