"""What an engine can hold."""

import itertools
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Speculation:
    """A draft. `acceptance`: for each token that it proposes in a step, the share of steps in which that token and all
    before it are accepted. `lookahead`: tokens for which it takes blocks beyond those that are verified."""

    acceptance: tuple[float, ...]
    lookahead: int = 0

    def __post_init__(self) -> None:
        bounded = (1.0, *self.acceptance, 0.0)
        if not self.acceptance or any(before < after for before, after in itertools.pairwise(bounded)):
            raise ValueError(f"acceptance={self.acceptance}: shares from 1 to 0, none larger than the one before it")


@dataclass(frozen=True, slots=True)
class EngineModelLimits:
    """vLLM's max_num_seqs, max_num_batched_tokens (no fewer), the tokens that its KV blocks hold, and those of a block.

    With `prefix_caching` a preempted sequence finds again what it had, and others find what they share:
    `chunk_tokens` are the tokens of one hash of their prefixes, a multiple of a block's, or a part of it; 0: nothing is
    known of what they share (`with_prefixes`). `async_scheduling`: the engine
    schedules a step while the one before it runs (vLLM's default on GPUs). `long_prefill_tokens`: at most so many of
    one prompt in a step while there are other requests; 0: no such limit. Without `chunked_prefill` a prompt begins
    where a step has room for all of it.
    """

    sequences: int
    step_tokens: int
    kv_tokens: int
    block_tokens: int = 16
    chunk_tokens: int = 0
    prefix_caching: bool = False
    async_scheduling: bool = False
    long_prefill_tokens: int = 0
    speculation: Speculation | None = None
    chunked_prefill: bool = True

    def __post_init__(self) -> None:
        if self.step_tokens < self.sequences:
            raise ValueError(f"max_num_batched_tokens={self.step_tokens}: at least max_num_seqs={self.sequences}")
        if self.chunk_tokens and not _fit(self.chunk_tokens, self.block_tokens):
            raise ValueError(
                f"chunk_tokens={self.chunk_tokens}: a multiple of block_tokens={self.block_tokens}, or a part of it"
            )

    def with_prefixes(self, chunk_tokens: int) -> "EngineModelLimits":
        """The same for a workload with hashes of so many tokens; those that do not fit blocks tell nothing."""
        return replace(self, chunk_tokens=chunk_tokens if chunk_tokens and _fit(chunk_tokens, self.block_tokens) else 0)

    @property
    def chunk_blocks(self) -> int:
        """Blocks that one hash of a prefix stands for, where it is no part of one."""
        return max(1, self.chunk_tokens // self.block_tokens)

    def known(self, prefix: tuple[int, ...]) -> tuple[int, ...]:
        """The hashes of a prefix by which the engine finds blocks. Each stands for all before it, too, so of several
        in a block the last one does."""
        if not self.chunk_tokens:
            return ()
        per_block = self.block_tokens // self.chunk_tokens
        return prefix[per_block - 1 :: per_block] if per_block > 1 else prefix


def _fit(chunk_tokens: int, block_tokens: int) -> bool:
    return chunk_tokens % block_tokens == 0 or block_tokens % chunk_tokens == 0
