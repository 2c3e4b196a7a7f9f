"""How long kernels take on a GPU of which only the data sheet is known.

    matrix product   launch + (read^a + compute^a)^(1/a),   read = bytes / (MEMORY * bandwidth)
                                                            compute = 2 * max(rows, ROWS) * weights / (COMPUTE * FLOP/s)
    decodes          launch + KV bytes / (KV_MEMORY * bandwidth)
    prompts          launch + pairs * FLOP of a pair / (PAIRS * FLOP/s), and CHAIN_S for each key that a tile reads
    element-wise     launch + bytes / (MEMORY * bandwidth)

The constants of matrix products minimize the mean |log error| over vLLM's bf16 products on four GPUs (A100, H100,
L40S, RTX PRO 6000) with at least 8 Mi weights, as measured by ai-dynamo/aiconfigurator 095f58a5 (2026-08); each GPU
counts the same. Fitted to three of them, they predict the fourth with a mean error of 13 % (A100), 10 % (H100), 15 %
(L40S) and 10 % (RTX PRO 6000). Attention's come from the same source's
attention tables, `CHAIN_S` and `TILE_ROWS` from the profiles of an RTX PRO 6000.
"""

from dataclasses import dataclass

from cluster.hardware import Gpu

LAUNCH_S = 2.7e-6
MEMORY = 0.89
COMPUTE = 0.83
BLEND = 1.76
ROWS = 102.0
"""Matrix products: seconds before the first byte, shares of bandwidth and FLOP/s, the exponent a, and the rows that a
smaller batch is padded to."""
NVFP4_MEMORY = 0.6
"""Products of 4-bit weights with a scale for each 16 of them."""
QUANTIZE_S = 2.5e-6
"""Activations that are quantized while the engine runs (in blocks or groups) take a kernel of their own for each
product."""
EXPERT_COMPUTE, EXPERT_ROWS = 0.6 * COMPUTE, 16.0
"""The same for experts, whose batches are small and uneven: vLLM's kernel takes tiles of 16 rows then. The share is a
guess."""

KV_MEMORY = 0.82
"""Large batches on the four GPUs reach 0.77, 0.90, 0.75 and 0.83."""
HOPPER_FP8_KV_MEMORY = 0.5
"""A Hopper GPU reads 8-bit keys and values hardly faster than 16-bit ones."""
DECODE_LAUNCH_S = 1e-5
DECODE_EACH_S = 0.15e-6
PROMPT_LAUNCH_S = 8e-6
PAIRS = 0.6
"""Prompts of 8,192 tokens and more reach 0.56, 0.64, 0.52 and 0.63 of the FLOP/s."""
CHAIN_S = 0.021e-6
"""A tile reads its keys one after the other: 21 ns each (attention of an RTX PRO 6000 beside prompts)."""
TILE_ROWS = 64
"""Rows that FlashAttention 2 computes for a decode beside a prompt, whatever it needs. Version 3 (Hopper) puts the
heads of a group into one tile."""
HOPPER, BLACKWELL = 90, 100
SMALL_KERNEL_S = 2.5e-6


@dataclass(frozen=True, slots=True)
class Roof:
    """A GPU's rates for products of one precision."""

    gpu: Gpu
    flops: float
    memory: float = MEMORY

    def matrix_s(self, rows: float, weight_bytes: float, weights: float, moved_bytes: float) -> float:
        """A product with `weights` elements in `weight_bytes`; `moved_bytes`: of inputs and outputs. Without a
        launch."""
        return self._product_s(2 * max(rows, ROWS) * weights / COMPUTE, weight_bytes + moved_bytes)

    def experts_s(self, rows: float, weight_bytes: float, weights: float, moved_bytes: float) -> float:
        """The same for experts of `weights` elements in all; `rows`: of each of them."""
        return self._product_s(2 * max(rows, EXPERT_ROWS) * weights / EXPERT_COMPUTE, weight_bytes + moved_bytes)

    def _product_s(self, flop: float, moved_bytes: float) -> float:
        read_s, compute_s = moved_bytes / (self.memory * self.gpu.memory_bytes_per_s), flop / self.flops
        return float((read_s**BLEND + compute_s**BLEND) ** (1 / BLEND))

    def move_s(self, moved_bytes: float) -> float:
        return moved_bytes / (MEMORY * self.gpu.memory_bytes_per_s)
