"""What an engine can hold."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineModelLimits:
    """vLLM's max_num_seqs, max_num_batched_tokens (no fewer), the tokens that its KV blocks hold, and those of a block.

    `chunk_tokens`: tokens of one hash of a prompt's prefix, a multiple of a block's; 0: no prefix caching.
    `async_scheduling`: the engine schedules a step while the one before it runs (vLLM's default on GPUs).
    """

    sequences: int
    step_tokens: int
    kv_tokens: int
    block_tokens: int = 16
    chunk_tokens: int = 0
    async_scheduling: bool = False

    def __post_init__(self) -> None:
        if self.step_tokens < self.sequences:
            raise ValueError(f"max_num_batched_tokens={self.step_tokens}: at least max_num_seqs={self.sequences}")
        if self.chunk_tokens % self.block_tokens:
            raise ValueError(f"chunk_tokens={self.chunk_tokens}: a multiple of block_tokens={self.block_tokens}")
