"""Random requests and engines to hold the engine model against vLLM's scheduler, and the record of a run."""

import math
from dataclasses import dataclass, field

import hypothesis.strategies as st

from deployments.engine_model.limits import EngineModelLimits, Speculation

BLOCK = 16
LONGEST = 800
"""Tokens of a request, at most."""


_OFF_GRID_S = math.pi * 1e-4
"""Else the next turn of one may come at the very end of another's step, where rounding decides which is first."""


@dataclass(frozen=True, slots=True)
class Script:
    """A request as the test knows it: all of its tokens, so many of prompt, of which others may have the first
    `shared`. `then`: what a client sends `after_s` after the answer has come."""

    tokens: tuple[int, ...]
    prompt: int
    shared: int = 0
    priority: int = 0
    open_ended: bool = False
    then: "Script | None" = None
    after_s: float = 0.0

    @property
    def output(self) -> int:
        return len(self.tokens) - self.prompt


@dataclass(frozen=True, slots=True)
class Step:
    """A step that ran: its sequences, by number, with their tokens; who was preempted since the one before; and the
    tokens that those which began or resumed found in the prefix cache."""

    began_s: float
    tokens: dict[int, int]
    preempted: frozenset[int]
    found: dict[int, int]


@dataclass(slots=True)
class Record:
    """A run: when each request came, in their order, its script; its steps; and when each ended."""

    arrived: list[tuple[float, Script]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    finished_s: dict[int, float] = field(default_factory=dict)


@st.composite
def limits_of_engines(draw: st.DrawFn) -> EngineModelLimits:
    sequences, chunked = draw(st.integers(1, 16)), draw(st.integers(0, 7)) > 0
    return EngineModelLimits(
        sequences,
        draw(st.integers(max(16, sequences), 400)) if chunked else LONGEST,
        draw(st.sampled_from([LONGEST + BLOCK, 2 * LONGEST]) | st.integers(LONGEST + BLOCK, 4 * LONGEST)),
        BLOCK,
        chunk_tokens=BLOCK,
        prefix_caching=draw(st.booleans()),
        async_scheduling=draw(st.booleans()),
        long_prefill_tokens=draw(st.sampled_from([0, 0, 0, 24, 100])) if chunked else 0,
        chunked_prefill=chunked,
        speculation=draw(st.none() | st.none() | speculations()),
    )


@st.composite
def speculations(draw: st.DrawFn) -> Speculation:
    acceptance = draw(st.lists(st.floats(0, 1), min_size=1, max_size=5))
    return Speculation(tuple(sorted(acceptance, reverse=True)), draw(st.sampled_from([0, len(acceptance)])))


@st.composite
def scripts(draw: st.DrawFn, number: int, start: tuple[int, ...] | None = None, turns: int = 2) -> Script:
    """A request, which may share its beginning with others, and may be followed by another turn."""
    shared = start
    if shared is None:
        text = draw(st.integers(0, 2))
        shared = tuple(range(100_000 * text, 100_000 * text + draw(st.sampled_from([0, 0, 5, 32, 70, 160]))))
    own = draw(st.integers(0 if shared else 1, 20) | st.integers(1, 200))
    output = draw(st.integers(1, 3) | st.integers(1, 90) | st.integers(100, 240))
    first = 1_000_000 * (number + 1) + 10_000 * turns
    tokens = shared + tuple(range(first, first + own + output))
    then, after_s = None, 0.0
    if turns and len(tokens) < LONGEST - 440 and draw(st.integers(0, 3)) == 0:
        then, after_s = draw(scripts(number, tokens, turns - 1)), draw(st.floats(1e-4, 0.3)) + _OFF_GRID_S
    return Script(tokens, len(tokens) - output, len(shared), draw(PRIORITY), draw(st.booleans()), then, after_s)


PRIORITY = st.shared(st.sampled_from([0, 2]), key="priorities").flatmap(lambda most: st.integers(0, most))


@st.composite
def workloads(draw: st.DrawFn) -> list[tuple[float, Script]]:
    gaps = draw(st.lists(st.sampled_from([0.0, 0.002, 0.01, 0.05]) | st.floats(0, 0.3), min_size=1, max_size=25))
    at_s, found = 0.0, []
    for number, gap in enumerate(gaps):
        at_s += gap
        found.append((at_s, draw(scripts(number))))
    return found
