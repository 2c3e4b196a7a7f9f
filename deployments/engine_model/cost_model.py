"""How long an engine's step takes, from what the step computes.

    step of decodes = dense(tokens) + sequence(sequences) + decode(decodes) + kv_read * KV tokens read
    step that prefills = dense(tokens) + sequence(sequences)
                         + sum over prompts of (prompt(chunk) + past_read * past + context * chunk * past)
                         + decodes * (mixed_decode + mixed_token * prompt tokens) + mixed_kv_read * KV tokens read by
                         decodes

`tokens` are all tokens of the step (a decoding sequence has one), `sequences` those for which it samples. `dense` holds
all that depends on the number of tokens alone: matrix products, experts, the exchange between GPUs, the host's work.
Attention has other costs in steps that prefill, because engines run other kernels then: decodes beside a prompt
cost up to twice as much. Where a profile shows how prompts and decodes share the GPU, `OneKernel` has the second
equation's attention instead. `dense`, `sequence`, `prompt` and `decode` are piecewise linear: a GPU's matrix products
take the same time up to some batch and grow from there; a fitted model has two knots, a table has many. While only
decodes run their number is constant and the KV grows by one token a sequence and step, so a run of k steps has a closed
form:

    run(k) = k * (base + slope * kv) + slope * n * k * (k - 1) / 2,        slope = kv_read, n sequences, kv tokens at
    its start

All times in seconds.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated

from pydantic import Field

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Checked where a cost file is read or made (`cost_file.py`)."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds by a size, piecewise linear: beyond its last two knots as between them, and constant before its first.
    `at` ascends."""

    at: tuple[NotNegative, ...]
    seconds: tuple[NotNegative, ...]

    def __post_init__(self) -> None:
        at, seconds = self.at, self.seconds
        if len(at) != len(seconds) or not at or any(a >= b for a, b in pairwise(at)):
            raise ValueError(
                f"a curve needs as many values as knots, and knots that ascend; got {at[:5]} and {seconds[:5]}"
            )

    def __call__(self, x: float) -> float:
        at, seconds = self.at, self.seconds
        if x <= at[0] or len(at) == 1:
            return seconds[0]
        high = min(bisect_left(at, x), len(at) - 1)
        low = high - 1
        return seconds[low] + (seconds[high] - seconds[low]) * (x - at[low]) / (at[high] - at[low])

    def times(self, factor: float) -> "Curve":
        return Curve(self.at, tuple(factor * each for each in self.seconds))


def line(intercept: float, slope: float) -> Curve:
    """intercept + slope * x, for x >= 0."""
    return Curve((0.0, 1.0), (intercept, intercept + slope))


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a prompt that one step prefills, after `past` tokens of it that are in the KV cache."""

    tokens: int
    past: int


@dataclass(frozen=True, slots=True)
class Surface:
    """Seconds by decodes and by the KV tokens of each of them: bilinear between its knots and beyond the last two of
    each; constant below the first. `seconds` has one row for each of `decodes`."""

    decodes: tuple[NotNegative, ...]
    kv_tokens: tuple[NotNegative, ...]
    seconds: tuple[tuple[NotNegative, ...], ...]

    def __post_init__(self) -> None:
        if len(self.seconds) != len(self.decodes) or min(len(self.decodes), len(self.kv_tokens)) < 2:
            raise ValueError(
                f"a surface needs a row for each number of decodes, and two of both; got {len(self.seconds)} rows"
            )
        Curve(self.decodes, self.decodes)
        for row in self.seconds:
            Curve(self.kv_tokens, row)

    def __call__(self, decodes: float, kv_tokens: float) -> float:
        row, along = _between(self.decodes, decodes)
        column, across = _between(self.kv_tokens, kv_tokens)
        low, high = self.seconds[row], self.seconds[row + 1]
        first = low[column] + (low[column + 1] - low[column]) * across
        second = high[column] + (high[column + 1] - high[column]) * across
        return first + (second - first) * along

    def times(self, factor: float) -> "Surface":
        return Surface(
            self.decodes, self.kv_tokens, tuple(tuple(factor * each for each in row) for row in self.seconds)
        )


def _between(at: tuple[float, ...], x: float) -> tuple[int, float]:
    """The knot before x, and how far x is to the next one, as a share; 0 below the first."""
    if x <= at[0]:
        return 0, 0.0
    low = min(bisect_left(at, x), len(at) - 1) - 1
    return low, (x - at[low]) / (at[low + 1] - at[low])


@dataclass(frozen=True, slots=True)
class OneKernel:
    """Attention of a step that prefills, where one kernel has the prompts and the decodes (FlashAttention's for
    sequences of any length):

        seconds = launch + sqrt(longest^2 + work^2)
        work    = sum over prompts of busy + beside(decodes, KV tokens of each) + decodes * prompt tokens * empty
        alone   = prompt(chunk) + past(chunk) * past
        busy    = min(alone, pair * max(chunk, TILE) * (past + chunk / 2))
        longest = max(sqrt(alone^2 - busy^2) of a prompt, chain * KV tokens of a decode)

    A GPU is not full with one small prompt: its tiles read their keys one after the other, beside which the rest of the
    GPU has room (`longest`). What fills it adds up (`work`). A prompt alone takes `launch + alone`. `prompt` leaves the
    launch out; `empty` are the tiles that the kernel's grid has for decodes and does not need.
    """

    launch_s: NotNegative
    prompt: Curve
    past: Curve
    pair_s: NotNegative
    chain_s: NotNegative
    empty_s: NotNegative
    beside: Surface

    def seconds(self, chunks: Iterable[Chunk], decodes: int, kv_tokens: float) -> float:
        work, longest, tokens = 0.0, 0.0, 0
        for chunk in chunks:
            alone = self.prompt(chunk.tokens) + self.past(chunk.tokens) * chunk.past
            busy = min(alone, self.pair_s * max(chunk.tokens, TILE) * (chunk.past + chunk.tokens / 2))
            work += busy
            longest = max(longest, alone * alone - busy * busy)
            tokens += chunk.tokens
        if decodes:
            each = kv_tokens / decodes
            work += self.beside(decodes, each) + self.empty_s * decodes * tokens
            longest = max(longest, (self.chain_s * each) ** 2)
        return self.launch_s + math.sqrt(longest + work * work)

    def times(self, factor: float) -> "OneKernel":
        return OneKernel(
            factor * self.launch_s,
            self.prompt.times(factor),
            self.past.times(factor),
            factor * self.pair_s,
            factor * self.chain_s,
            factor * self.empty_s,
            self.beside.times(factor),
        )


TILE = 128
"""Queries that one block of FlashAttention's kernel takes; a shorter chunk costs as much."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Seconds of attention: see the module's equations. `decode` is by the number of decodes, `prompt` by the tokens of
    a chunk, the rest by their unit. `one_kernel`: instead of `prompt` and what follows, in the second equation."""

    decode: Curve
    prompt: Curve
    kv_read_s: NotNegative
    past_read_s: NotNegative
    context_s: NotNegative
    mixed_decode_s: NotNegative
    mixed_token_s: NotNegative
    mixed_kv_read_s: NotNegative
    one_kernel: OneKernel | None = None

    def __post_init__(self) -> None:
        for name in UNITS:
            if not getattr(self, name) >= 0:
                raise ValueError(f"no cost is negative; got {name}={getattr(self, name)}")


UNITS = ("kv_read_s", "past_read_s", "context_s", "mixed_decode_s", "mixed_token_s", "mixed_kv_read_s")
"""The fields of `Attention` that are seconds by a unit."""


def plain_attention(kv_read_s: float, context_s: float) -> Attention:
    """Attention that costs the same beside a prompt as alone, and nothing but what is read and multiplied."""
    return Attention(line(0.0, 0.0), half_square(context_s), kv_read_s, 0.0, context_s, 0.0, 0.0, kv_read_s)


def half_square(unit_s: float) -> Curve:
    """unit_s * x * x / 2, within 1 % from 64 on: what a chunk's tokens have to do with each other."""
    knots = (0.0, *(64.0 * 2 ** (step / 4) for step in range(61)))
    return Curve(knots, tuple(unit_s * x * x / 2 for x in knots))


_NOTHING = line(0.0, 0.0)


@dataclass(frozen=True)
class CostModel:
    """The cost of steps, and what a request takes outside of them: `front` from its placement until the engine has it
    (HTTP, tokenising), by how many sequences run on the replica then, and `back_s` from a step's end until its tokens
    are with the client. `draft`: what proposing tokens adds to a step, by how many sequences decode in it.

    The costs are of one rank. Of `ranks` data-parallel ones, which step together, the fullest decides: decodes and
    their KV are spread evenly, a chunk of a prompt stays whole."""

    dense: Curve
    sequence: Curve
    attention: Attention
    front: Curve = _NOTHING
    back_s: float = 0.0
    draft: Curve = _NOTHING
    ranks: int = 1
    _bases: dict[int, float] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.back_s >= 0:
            raise ValueError(f"no cost is negative; got back_s={self.back_s}")

    def step_s(
        self, chunks: Iterable[Chunk], decodes: int, kv_tokens: float, completing: int, drafted: int = 0
    ) -> float:
        """A step of `chunks` (of which `completing` end their prompt and are sampled) and `decodes` sequences that read
        `kv_tokens`, which verifies `drafted` tokens of theirs; with them, the draft proposes the next ones."""
        ranks = self.ranks
        if ranks == 1:
            return self._rank_s(chunks, decodes, kv_tokens, completing, drafted)
        shares = -(-decodes // ranks), kv_tokens / ranks, -(-completing // ranks), -(-drafted // ranks)
        return self._rank_s(_of_fullest(chunks, ranks), *shares)

    def _rank_s(
        self, chunks: Iterable[Chunk], decodes: int, kv_tokens: float, completing: int, drafted: int = 0
    ) -> float:
        if drafted:
            chunks = tuple(chunks)
            tokens, sampled = decodes + sum(chunk.tokens for chunk in chunks), decodes + completing
            verified = self.dense(tokens + drafted) - self.dense(tokens)
            verified += self.sequence(sampled + drafted) - self.sequence(sampled) + self.draft(decodes)
            return self._rank_s(chunks, decodes, kv_tokens, completing) + verified
        attention = self.attention
        tokens, seconds = 0, 0.0
        if attention.one_kernel is not None:
            chunks = tuple(chunks)
            tokens = sum(chunk.tokens for chunk in chunks)
            if tokens:
                seconds = attention.one_kernel.seconds(chunks, decodes, kv_tokens) + self.dense(tokens + decodes)
        else:
            for chunk in chunks:
                tokens += chunk.tokens
                seconds += (
                    attention.prompt(chunk.tokens)
                    + (attention.past_read_s + attention.context_s * chunk.tokens) * chunk.past
                )
            if tokens:
                seconds += (
                    self.dense(tokens + decodes)
                    + (attention.mixed_decode_s + attention.mixed_token_s * tokens) * decodes
                    + attention.mixed_kv_read_s * kv_tokens
                )
        if not tokens:
            return self._rank_base_s(decodes) + attention.kv_read_s * kv_tokens
        sampled = decodes + completing
        return seconds + (self.sequence(sampled) if sampled else 0.0)

    def base_s(self, decodes: int) -> float:
        """A step of so many decodes, without what it reads of the KV cache."""
        return self._rank_base_s(-(-decodes // self.ranks))

    @property
    def kv_read_s(self) -> float:
        """What one more KV token of the decodes adds to a step."""
        return self.attention.kv_read_s / self.ranks

    def _rank_base_s(self, decodes: int) -> float:
        base = self._bases.get(decodes)
        if base is None:
            base = self._bases[decodes] = self.dense(decodes) + self.sequence(decodes) + self.attention.decode(decodes)
        return base

    def run_s(self, steps: int, decodes: int, kv_tokens: float) -> float:
        """A run of so many steps of nothing but decodes."""
        slope = self.kv_read_s
        return steps * (self.base_s(decodes) + slope * kv_tokens) + slope * decodes * steps * (steps - 1) / 2

    def steps_in(self, seconds: float, decodes: int, kv_tokens: float) -> int:
        """How many steps of a run have begun after so many seconds: the least k >= 1 with run(k) >= seconds."""
        slope = self.kv_read_s * decodes / 2
        first = self.base_s(decodes) + self.kv_read_s * kv_tokens - slope
        if slope * seconds < 1e-9 * first * first:  # the square root would only add noise
            steps = math.ceil(seconds / first - 1e-9)
        else:
            steps = math.ceil((math.sqrt(first * first + 4 * slope * seconds) - first) / (2 * slope) - 1e-9)
        return max(1, steps)


def _of_fullest(chunks: Iterable[Chunk], ranks: int) -> list[Chunk]:
    """The chunks of the rank with the most tokens: longest first, each goes to the rank with the fewest."""
    held: list[list[Chunk]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for chunk in sorted(chunks, key=lambda one: one.tokens, reverse=True):
        rank = tokens.index(min(tokens))
        held[rank].append(chunk)
        tokens[rank] += chunk.tokens
    return held[tokens.index(max(tokens))]


def table(points: Sequence[tuple[float, float]]) -> Curve:
    ordered = sorted(points)
    return Curve(tuple(x for x, _ in ordered), tuple(y for _, y in ordered))


def slowed(cost: CostModel, factor: float) -> CostModel:
    """The costs of a machine that takes so many times as long for everything."""
    attention = cost.attention
    kernel = attention.one_kernel
    units = {name: factor * getattr(attention, name) for name in UNITS}
    slow = Attention(
        attention.decode.times(factor),
        attention.prompt.times(factor),
        **units,
        one_kernel=None if kernel is None else kernel.times(factor),
    )
    curves = (cost.dense, cost.sequence, cost.front, cost.draft)
    dense, sequence, front, draft = (curve.times(factor) for curve in curves)
    return CostModel(dense, sequence, slow, front, factor * cost.back_s, draft, cost.ranks)
