"""How long an engine's step takes, from what the step computes.

    step of decodes = dense(tokens) + sequence(sequences) + decode(decodes) + kv_read * KV tokens read step that
    prefills = dense(tokens) + sequence(sequences) + sum over prompts of (prompt(chunk) + past_read * past + context *
    chunk * past)
                         + decodes * (mixed_decode + mixed_token * prompt tokens) + mixed_kv_read * KV tokens read by
                         decodes

`tokens` are all tokens of the step (a decoding sequence has one), `sequences` those for which it samples. Attention is
told apart by whether the step prefills, because engines run other kernels then: decodes beside a prompt cost up to
twice as much. `dense`, `sequence`, `prompt` and `decode` are piecewise linear: a GPU's matrix products take the same
time up to some batch and grow from there; a fitted model has two knots, a table has many. While only decodes run their
number is constant and the KV grows by one token a sequence and step, so a run of k steps has a closed form:

    run(k) = k * (base + slope * kv) + slope * n * k * (k - 1) / 2,        slope = kv_read, n sequences, kv tokens at
    its start

All times in seconds.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Curve:
    """A piecewise-linear function, beyond its last two knots as between them, and constant before its first. `at`
    ascends."""

    at: tuple[float, ...]
    value: tuple[float, ...]

    def __post_init__(self) -> None:
        if (
            len(self.at) != len(self.value)
            or not self.at
            or any(a >= b for a, b in zip(self.at, self.at[1:], strict=False))
        ):
            raise ValueError(
                f"a curve needs as many values as knots, and knots that ascend; got {self.at[:5]} and {self.value[:5]}"
            )

    def __call__(self, x: float) -> float:
        at, value = self.at, self.value
        if x <= at[0] or len(at) == 1:
            return value[0]
        high = min(bisect_left(at, x), len(at) - 1)
        low = high - 1
        return value[low] + (value[high] - value[low]) * (x - at[low]) / (at[high] - at[low])


def line(intercept: float, slope: float) -> Curve:
    """intercept + slope * x, for x >= 0."""
    return Curve((0.0, 1.0), (intercept, intercept + slope))


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a prompt that one step prefills, after `past` tokens of it that are in the KV cache."""

    tokens: int
    past: int


@dataclass(frozen=True, slots=True)
class Attention:
    """Seconds of attention: see the module's equations. `decode` is by the number of decodes, `prompt` by the tokens of
    a chunk, the rest by their unit."""

    decode: Curve
    prompt: Curve
    kv_read_s: float
    past_read_s: float
    context_s: float
    mixed_decode_s: float
    mixed_token_s: float
    mixed_kv_read_s: float

    def __post_init__(self) -> None:
        for name in self.__slots__[2:]:
            if not getattr(self, name) >= 0:
                raise ValueError(f"no cost is negative; got {name}={getattr(self, name)}")


def plain_attention(kv_read_s: float, context_s: float) -> Attention:
    """Attention that costs the same beside a prompt as alone, and nothing but what is read and multiplied."""
    return Attention(line(0.0, 0.0), half_square(context_s), kv_read_s, 0.0, context_s, 0.0, 0.0, kv_read_s)


def half_square(unit_s: float) -> Curve:
    """unit_s * x * x / 2, within 1 % from 64 on: what a chunk's tokens have to do with each other."""
    knots = (0.0, *(64.0 * 2 ** (step / 4) for step in range(61)))
    return Curve(knots, tuple(unit_s * x * x / 2 for x in knots))


_NOTHING = line(0.0, 0.0)


class CostModel:
    """The cost of steps, and what a request takes outside of them: `front` from its placement until the engine has it
    (HTTP, tokenising), by how many sequences run on the replica then, and `back_s` from a step's end until its tokens
    are with the client."""

    def __init__(
        self, dense: Curve, sequence: Curve, attention: Attention, front: Curve = _NOTHING, back_s: float = 0.0
    ) -> None:
        if not back_s >= 0:
            raise ValueError(f"no cost is negative; got back_s={back_s}")
        self.dense = dense
        self.sequence = sequence
        self.attention = attention
        self.front = front
        self.back_s = back_s
        self._bases: dict[int, float] = {}

    def step_s(self, chunks: Iterable[Chunk], decodes: int, kv_tokens: float, completing: int) -> float:
        """A step of `chunks` (of which `completing` end their prompt and are sampled) and `decodes` sequences that read
        `kv_tokens`."""
        attention = self.attention
        tokens, seconds = 0, 0.0
        for chunk in chunks:
            tokens += chunk.tokens
            seconds += (
                attention.prompt(chunk.tokens)
                + (attention.past_read_s + attention.context_s * chunk.tokens) * chunk.past
            )
        if not tokens:
            return self.base_s(decodes) + attention.kv_read_s * kv_tokens
        sampled = decodes + completing
        seconds += (
            self.dense(tokens + decodes)
            + (attention.mixed_decode_s + attention.mixed_token_s * tokens) * decodes
            + attention.mixed_kv_read_s * kv_tokens
        )
        return seconds + (self.sequence(sampled) if sampled else 0.0)

    def base_s(self, decodes: int) -> float:
        """A step of so many decodes, without what it reads of the KV cache."""
        base = self._bases.get(decodes)
        if base is None:
            base = self._bases[decodes] = self.dense(decodes) + self.sequence(decodes) + self.attention.decode(decodes)
        return base

    def run_s(self, steps: int, decodes: int, kv_tokens: float) -> float:
        """A run of so many steps of nothing but decodes."""
        slope = self.attention.kv_read_s
        return steps * (self.base_s(decodes) + slope * kv_tokens) + slope * decodes * steps * (steps - 1) / 2

    def steps_in(self, seconds: float, decodes: int, kv_tokens: float) -> int:
        """How many steps of a run have begun after so many seconds: the least k >= 1 with run(k) >= seconds."""
        slope = self.attention.kv_read_s * decodes / 2
        first = self.base_s(decodes) + self.attention.kv_read_s * kv_tokens - slope
        if slope * seconds < 1e-9 * first * first:  # the square root would only add noise
            steps = math.ceil(seconds / first - 1e-9)
        else:
            steps = math.ceil((math.sqrt(first * first + 4 * slope * seconds) - first) / (2 * slope) - 1e-9)
        return max(1, steps)


def table(points: Sequence[tuple[float, float]]) -> Curve:
    ordered = sorted(points)
    return Curve(tuple(x for x, _ in ordered), tuple(y for _, y in ordered))


def slowed(cost: CostModel, factor: float) -> CostModel:
    """The costs of a machine that takes so many times as long for everything."""

    def times(curve: Curve) -> Curve:
        return Curve(curve.at, tuple(factor * value for value in curve.value))

    attention = cost.attention
    units = (factor * getattr(attention, name) for name in Attention.__slots__[2:])
    slow = Attention(times(attention.decode), times(attention.prompt), *units)
    return CostModel(times(cost.dense), times(cost.sequence), slow, times(cost.front), factor * cost.back_s)
