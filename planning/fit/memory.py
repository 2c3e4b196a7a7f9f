"""The memory of a replica's GPUs, as vLLM accounts for it (`determine_available_memory`):

    KV pool = total memory * gpu_memory_utilization - weights - the activations' peak - what is not torch's

vLLM runs a forward pass over `max_num_batched_tokens` and the sampler over `max_num_seqs` full rows of logits before it
sizes the pool; the larger of the two is the peak. A model of images first encodes as many of the largest size as a step
may have, and keeps what they became. Constants that are in no source code are checked on logs of an H100.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from cluster.hardware import Gpu
from cluster.spec.models import EngineSettings
from planning.fit.architecture import Architecture, Layer, Matrix
from planning.fit.quantization import ONLINE, Quantization

GIB = 1 << 30
SORTED_LOGIT_BYTES = 38
"""Of one logit at the sampler's peak where it sorts: 16-bit and 32-bit copies (6), sorted values and indices (12),
and the sort's own buffers (20: what four models of three vocabularies in the H100 logs agree on within 2 %)."""
LOGIT_BYTES = 18
"""The same where no kernel sorts (vLLM 0.32: Triton or FlashInfer): copies (6), probabilities, noise, one to spare."""
NON_TORCH_BYTES = int(0.135 * GIB)
"""CUDA libraries' own memory on one GPU: 0.13 to 0.14 GiB in the H100 logs."""
NCCL_BYTES = {1: 0, 2: 358_612_992, 3: 411_041_792}
"""More of it where GPUs exchange data, by their number (3: or more): the systems table of ai-dynamo/aiconfigurator,
August 2026."""
CONTEXT_BYTES = int(0.45 * GIB)
"""A CUDA context, which `gpu_memory_utilization` has to leave free."""
GRAPH_BYTES = 256 << 10
"""Of one captured CUDA graph, for a layer and a batch size. A guess, checked on nothing; vLLM 0.32 takes graphs from
the pool, earlier versions did not."""
BATCHES_IN_FLIGHT = 2
"""Steps that asynchronous scheduling may have under way: tokens of which a sliding window keeps the blocks."""
_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}


@dataclass(frozen=True, slots=True)
class Parallel:
    """How many GPUs share one copy of the model: `tensor` split each matrix, `pipeline` the layers, `data` are copies
    of the attention that share one set of experts. `experts`: whole experts are on GPUs, instead of a slice of each."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    experts: bool = False

    @property
    def expert_gpus(self) -> int:
        """GPUs that share a layer's experts: those of all data-parallel ranks (`FusedMoEParallelConfig.make`)."""
        return self.tensor * self.data

    @property
    def expert_ranks(self) -> int:
        """GPUs that whole experts are spread over."""
        return self.expert_gpus if self.experts else 1

    @property
    def expert_slices(self) -> int:
        """GPUs that have a slice of each expert."""
        return 1 if self.experts else self.expert_gpus

    @property
    def gpus(self) -> int:
        return self.expert_gpus * self.pipeline


@dataclass(frozen=True, slots=True)
class Plan:
    """A model with these settings on that GPU, and the sizes that follow."""

    model: Architecture
    settings: EngineSettings
    gpu: Gpu
    quantization: Quantization | None
    element: int
    kv_element: int

    @property
    def block_tokens(self) -> int:
        """Of one block of the KV cache."""
        given = self.settings.extra.get("block_size")
        return given if isinstance(given, int) and given > 0 else 16

    @property
    def parallel(self) -> Parallel:
        given = self.settings
        return Parallel(
            given.tensor_parallel_size,
            given.pipeline_parallel_size,
            given.data_parallel_size,
            given.enable_expert_parallel,
        )

    def weight_bytes(self, name: str, matrix: Matrix) -> float:
        """Of one GPU's part of a matrix."""
        inputs, outputs, count, parallel = matrix.inputs, matrix.outputs, matrix.count, self.parallel
        parts = parallel.tensor
        if matrix.of_experts:
            parts = parallel.expert_slices
            count = ceil(count * parts / parallel.expert_gpus)
        if matrix.split == "inputs":
            inputs = ceil(inputs / parts)
        elif matrix.split == "outputs":
            outputs = ceil(outputs / parts)
        elif matrix.split == "kv":
            outputs = ceil(self.model.kv_heads / parts) * self.model.head_size
        if self.quantization is None or not self.quantization.covers(name):
            return count * inputs * outputs * self.element
        if self.quantization.method == "mxfp4":
            inputs, outputs = _padded(matrix, inputs, outputs)
        return count * self.quantization.bytes_of(inputs, outputs)

    def layer_bytes(self, index: int) -> float:
        layer = self.model.layers[index]
        return layer.vectors * self.element + sum(
            self.weight_bytes(f"model.layers.{index}.{matrix.name}", matrix) for matrix in layer.matrices
        )

    def page_bytes(self) -> int:
        """One block of one layer."""
        elements = self.model.kv_elements(self.settings.tensor_parallel_size)
        return self.block_tokens * (elements * self.kv_element + self.model.latent_bytes)


def _padded(matrix: Matrix, inputs: int, outputs: int) -> tuple[int, int]:
    """The tiles of vLLM's MXFP4 expert kernels: the model's width in 256, an expert's in 64 (`oracle/mxfp4.py`)."""
    wide, narrow = (outputs, inputs) if matrix.name.endswith("down_proj") else (inputs, outputs)
    wide, narrow = ceil(wide / 256) * 256, ceil(narrow / 64) * 64
    return (narrow, wide) if matrix.name.endswith("down_proj") else (wide, narrow)


def plan_of(model: Architecture, settings: EngineSettings, gpu: Gpu) -> Plan:
    element = _DTYPE_BYTES.get(settings.dtype, 0) or min(2, _DTYPE_BYTES.get(model.dtype.removeprefix("torch."), 2))
    quantization = model.quantization or ONLINE.get(settings.quantization or "")
    kv_element = element
    if settings.kv_cache_dtype.startswith("fp8"):
        kv_element = 1
    elif settings.kv_cache_dtype == "auto" and quantization is not None and quantization.kv_bytes:
        kv_element = quantization.kv_bytes
    return Plan(model, settings, gpu, quantization, element, kv_element)


def batch_defaults(gpu: Gpu) -> tuple[int, int]:
    """Tokens and sequences of a step that vLLM's server takes by itself (`EngineArgs.get_batch_defaults`)."""
    if gpu.total_bytes >= 160 * GIB:
        return 16_384, 1_024
    if gpu.total_bytes >= 70 * GIB and not gpu.name.lower().startswith("a100"):
        return 8_192, 1_024
    return 2_048, 256


def stage_layers(layers: int, stages: int) -> list[range]:
    """The layers of each pipeline stage: what does not divide goes to the stages before the last (`get_pp_indices`)."""
    counts = [layers // stages] * stages
    for back in range(2, layers % stages + 2):
        counts[-back] += 1
    starts = [sum(counts[:stage]) for stage in range(stages)]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]


@dataclass(frozen=True, slots=True)
class StageMemory:
    layers: range
    weights: int
    activation: int
    non_torch: int
    pool: int
    blocks: int


def stage_of(plan: Plan, layers: range) -> StageMemory:
    settings, model = plan.settings, plan.model
    first, last = layers.start == 0, layers.stop == len(model.layers)
    words = ceil(model.vocabulary / settings.tensor_parallel_size) * model.hidden * plan.element
    around = (
        words * ((first or (last and model.tied)) + (last and not model.tied))
        + first * model.vision.weights * plan.element
    )
    weights = int(sum(plan.layer_bytes(index) for index in layers) + around + model.rope * plan.element)
    forward = max((_forward_bytes(plan, model.layers[index]) for index in layers), default=0)
    rows = plan.settings.max_num_seqs * model.vocabulary if last else 0
    carried = plan.settings.max_num_batched_tokens * model.hidden * plan.element
    encoder, kept = _encoder_bytes(plan) if first else (0, 0)
    sorting = max(encoder, kept + max(forward, rows * SORTED_LOGIT_BYTES + carried))
    graphs = 0 if settings.enforce_eager else GRAPH_BYTES * len(layers) * _captures(plan.settings.max_num_seqs)
    non_torch = NON_TORCH_BYTES + NCCL_BYTES[min(3, settings.ranks)]
    # Earlier versions sort and leave the graphs out, 0.32 does neither: the larger of the two is safe for both.
    unsorted = max(encoder, kept + max(forward, rows * LOGIT_BYTES + carried))
    taken = weights + max(sorting, unsorted + graphs) + non_torch
    pool = settings.kv_cache_memory_bytes or int(plan.gpu.total_bytes * settings.gpu_memory_utilization) - taken
    block = plan.page_bytes() * _grouped(plan, layers)[0]
    return StageMemory(layers, weights, sorting, non_torch, pool, max(0, pool // block))


def _forward_bytes(plan: Plan, layer: Layer) -> int:
    """Tensors that a layer holds at once in the largest step: the stream, its residual, and one part's own. Experts
    compute the tokens of all data-parallel ranks."""
    model, parts = plan.model, plan.settings.tensor_parallel_size
    attention = ceil(model.heads / parts) * model.head_size * 2 + 2 * ceil(model.kv_heads / parts) * model.head_size
    dense = 3 * ceil(layer.width / parts)
    one_expert = 3 * ceil(layer.expert_width / plan.parallel.expert_slices) + model.hidden
    experts = plan.settings.data_parallel_size * layer.experts_a_token * one_expert
    return plan.settings.max_num_batched_tokens * plan.element * (3 * model.hidden + max(attention, dense + experts))


def _encoder_bytes(plan: Plan) -> tuple[int, int]:
    """Of a vision tower over the most images that a step encodes, and of their tokens, which are kept while the decoder
    runs (`profile_run`, `MultiModalBudget`)."""
    vision, settings = plan.model.vision, plan.settings
    limits = settings.extra.get("limit_mm_per_prompt")
    if not vision.tokens or (isinstance(limits, Mapping) and limits.get("image") == 0):
        return 0, 0
    waiting = settings.max_num_seqs * max(1, settings.max_model_len // vision.tokens)
    images = max(1, min(waiting, settings.max_num_batched_tokens // vision.tokens))
    held = vision.beside + ceil(vision.inner / settings.tensor_parallel_size)
    kept = images * vision.tokens * plan.model.hidden * plan.element
    return images * vision.patches * held * plan.element, kept


def _captures(sequences: int) -> int:
    """Batch sizes with a graph: 1, 2, 4, every 8th, every 16th from 256, up to 512 and twice `max_num_seqs`."""
    largest = min(512, 2 * sequences)
    return sum(size <= largest for size in (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)))


def _grouped(plan: Plan, layers: range) -> tuple[int, int, int]:
    """Layers that share a block of the pool, groups of full layers, groups of windowed ones (`get_kv_cache_groups`)."""
    windowed = sum(plan.model.layers[index].window is not None for index in layers)
    full = len(layers) - windowed
    size = max(1, min(full, windowed) if full and windowed else len(layers))
    return size, ceil(full / size), ceil(windowed / size)


def sequence_blocks(plan: Plan, layers: range, tokens: int) -> int:
    """Blocks of the pool that a sequence of so many tokens takes."""
    _, full, windowed = _grouped(plan, layers)
    needed = ceil(max(1, tokens) / plan.block_tokens)
    return max(1, full * needed + windowed * min(needed, _window_blocks(plan, layers, plan.settings.max_model_len)))


def _window_blocks(plan: Plan, layers: range, length: int) -> int:
    window = max((plan.model.layers[index].window or 0 for index in layers), default=0)
    kept = min(window - 1 + BATCHES_IN_FLIGHT * plan.settings.max_num_batched_tokens, length)
    return ceil(kept / plan.block_tokens) + 1


def needed_bytes(plan: Plan, layers: range, length: int) -> int:
    """What one sequence takes, and the block that is never handed out (`check_enough_kv_cache_memory`)."""
    size, _, _ = _grouped(plan, layers)
    windowed = sum(plan.model.layers[index].window is not None for index in layers)
    full = (len(layers) - windowed) * ceil(length / plan.block_tokens)
    return plan.page_bytes() * (full + (windowed and windowed * _window_blocks(plan, layers, length)) + size)
