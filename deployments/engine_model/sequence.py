"""A sequence in a simulated engine."""

import math
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


class BlockRange:
    """Consecutive full blocks in the KV cache: the chunk's of the hash `key` from its block `start` on; without a key,
    one sequence's from its block `start` on. So many sequences hold it."""

    __slots__ = ("blocks", "key", "start", "users")

    def __init__(self, key: int | None, start: int, blocks: int) -> None:
        self.key = key
        self.start = start
        self.blocks = blocks
        self.users = 1


class Sequence:
    """One request's sequence: `prompt` tokens in, `output` tokens to be generated. `tag` is the caller's.

    `prefix` holds the hashes of the leading chunks (`EngineModelLimits.chunk_tokens` each) of its prompt, and of its
    answer after it as far as they are known, by which the engine's prefix cache knows them; `cached` are the prompt
    tokens that were found there, or that the caller says are. `priority`: the lower goes first, as in vLLM.
    `open_ended`: the engine learns of its end from its last token (an end-of-sequence token, a stop word), and not from
    the request's `max_tokens`.
    """

    __slots__ = (
        "added_s",
        "begun_s",
        "cached",
        "came",
        "decodes",
        "done",
        "finish_step",
        "first_s",
        "found",
        "full",
        "gone",
        "held",
        "known",
        "last",
        "left",
        "open_ended",
        "order",
        "output",
        "own",
        "past",
        "planned",
        "prefix",
        "priority",
        "prompt",
        "room",
        "start_step",
        "tag",
    )

    def __init__(
        self,
        tag: Any,
        prompt: int,
        cached: int,
        output: int,
        prefix: tuple[int, ...] = (),
        priority: int = 0,
        open_ended: bool = False,
    ) -> None:
        self.tag = tag
        self.prompt = prompt
        self.output = output
        self.prefix = prefix
        self.priority = priority
        self.open_ended = open_ended
        self.added_s = 0.0
        """When the engine got it."""
        self.came = 0
        """Its number, by the order in which the engine got them."""
        self.cached = min(cached, prompt - 1)
        self.left = prompt - self.cached
        """Tokens to prefill before the next one is sampled."""
        self.past = self.cached
        """Tokens in the KV cache when it began to decode, or as far as it is prefilled."""
        self.done = 0
        """Tokens sampled before it began to decode (again), and in the end all."""
        self.known = 0
        """Tokens whose blocks the prefix cache knew a step ago, once it decodes no more."""
        self.planned = 0
        """With drafts: tokens that it has if all of those that are verified are accepted."""
        self.last = False
        """With drafts: whether nothing but its last token was left for its last step."""
        self.room = 0
        """Tokens that it has blocks for, where those are more than it has."""
        self.held: list[BlockRange] = []
        """What it holds of the prefix cache."""
        self.own: list[BlockRange] = []
        """What it alone had there, and gave up when it was preempted."""
        self.found = 0
        """Blocks that it found there when it began."""
        self.full = 0
        """Its leading blocks that are in `held`."""
        self.order = 0
        self.decodes = False
        """Whether it is in each step, for one token."""
        self.start_step = 0
        self.finish_step = 0
        self.begun_s: float | None = None
        """When its prefill first began."""
        self.first_s: float | None = None
        self.gone = False

    @property
    def queued_s(self) -> float:
        """How long it waited inside the engine before its prefill first began; 0 while it waits."""
        return 0.0 if self.begun_s is None else self.begun_s - self.added_s
