"""A sequence in a simulated engine."""

import math
from dataclasses import dataclass, field
from typing import Any


class ItlHistogram:
    """Bins 2 % wide from 10 us on."""

    MIN_S = 1e-5
    RATIO = 1.02

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def add(self, seconds: float, count: int) -> None:
        bin_ = max(0, int(math.log(max(seconds, self.MIN_S) / self.MIN_S) / math.log(self.RATIO)))
        self.counts[bin_] = self.counts.get(bin_, 0) + count

    def merge(self, other: "ItlHistogram") -> None:
        for bin_, count in other.counts.items():
            self.counts[bin_] = self.counts.get(bin_, 0) + count

    def quantile(self, share: float) -> float:
        """The length that `share` of the gaps do not exceed, in seconds; NaN without gaps."""
        desired, seen = share * sum(self.counts.values()), 0
        for bin_ in sorted(self.counts):
            seen += self.counts[bin_]
            if seen >= desired:
                return float(self.MIN_S * self.RATIO ** (bin_ + 0.5))
        return math.nan


@dataclass(eq=False, slots=True)
class BlockRange:
    """Consecutive full blocks in the KV cache: the chunk's of the hash `key` from its block `start` on; without a key,
    one sequence's from its block `start` on. So many sequences hold it."""

    key: int | None
    start: int
    blocks: int
    users: int = 1


@dataclass(eq=False, slots=True)
class Sequence:
    """One request's sequence: `prompt` tokens in, `output` tokens to be generated. `tag` is the caller's.

    `prefix` holds the hashes of the leading chunks (`EngineModelLimits.chunk_tokens` each) of its prompt, and of its
    answer after it as far as they are known, by which the engine's prefix cache knows them; `cached` are the prompt
    tokens that were found there, or that the caller says are. `priority`: the lower goes first, as in vLLM.
    `open_ended`: the engine learns of its end from its last token (an end-of-sequence token, a stop word), and not from
    the request's `max_tokens`.
    """

    tag: Any
    prompt: int
    cached: int
    output: int
    prefix: tuple[int, ...] = ()
    priority: int = 0
    open_ended: bool = False
    added_s: float = 0.0
    """When the engine got it."""
    came: int = 0
    """Its number, by the order in which the engine got them."""
    left: int = field(init=False)
    """Tokens to prefill before the next one is sampled."""
    past: int = field(init=False)
    """Tokens in the KV cache when it began to decode, or as far as it is prefilled."""
    done: int = 0
    """Tokens sampled before it began to decode (again), and in the end all."""
    known: int = 0
    """Tokens whose blocks the prefix cache knew a step ago, once it decodes no more."""
    planned: int = 0
    """With drafts: tokens that it has if all of those that are verified are accepted."""
    last: bool = False
    """With drafts: whether nothing but its last token was left for its last step."""
    room: int = 0
    """Tokens that it has blocks for, where those are more than it has."""
    held: list[BlockRange] = field(default_factory=list)
    """What it holds of the prefix cache."""
    own: list[BlockRange] = field(default_factory=list)
    """What it alone had there, and gave up when it was preempted."""
    found: int = 0
    """Blocks that it found there when it began."""
    full: int = 0
    """Its leading blocks that are in `held`."""
    order: int = 0
    decodes: bool = False
    """Whether it is in each step, for one token."""
    start_step: int = 0
    finish_step: int = 0
    begun_s: float | None = None
    """When its prefill first began."""
    first_s: float | None = None
    gone: bool = False

    def __post_init__(self) -> None:
        self.cached = min(self.cached, self.prompt - 1)
        self.left, self.past = self.prompt - self.cached, self.cached

    @property
    def queued_s(self) -> float:
        """How long it waited inside the engine before its prefill first began; 0 while it waits."""
        return 0.0 if self.begun_s is None else self.begun_s - self.added_s
