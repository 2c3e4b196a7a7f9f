"""Whether an engine starts, and what it then holds: its GPUs' memory, and each reason for which vLLM would refuse."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cluster.hardware import QUANTIZATIONS, Gpu
from cluster.spec.models import EngineSettings
from planning.fit.architecture import Architecture
from planning.fit.memory import (
    CONTEXT_BYTES,
    GIB,
    Plan,
    StageMemory,
    needed_bytes,
    plan_of,
    sequence_blocks,
    stage_layers,
    stage_of,
)
from planning.fit.quantization import ONLINE


@dataclass(frozen=True, slots=True)
class Fit:
    """What one GPU holds, in bytes: of the pipeline stage with the smallest pool.

    `kv_bytes_per_token`: of the whole model. `blocks`: of the pool; `sequence_blocks`: how many of them a sequence
    of so many tokens takes. `refusals`: why the engine would not start, each with the setting, its value and what is
    allowed; empty where it does.
    """

    weights_bytes: int
    activation_bytes: int
    non_torch_bytes: int
    total_bytes: int
    pool_bytes: int
    kv_bytes_per_token: int
    blocks: int
    max_model_len: int
    sequence_blocks: Callable[[int], int]
    refusals: tuple[str, ...]

    @property
    def starts(self) -> bool:
        """Whether the engine would start."""
        return not self.refusals

    def sequences(self, tokens: int) -> int:
        """How many sequences of so many tokens the pool holds at once."""
        return self.blocks // self.sequence_blocks(tokens)

    @property
    def kv_tokens(self) -> int:
        """How many tokens the pool holds, in sequences of `max_model_len`."""
        return int(self.blocks / self.sequence_blocks(self.max_model_len) * self.max_model_len)


def fit(model: Architecture, settings: EngineSettings, gpu: Gpu) -> Fit:
    """What the engine takes and holds, and whether it starts."""
    plan = plan_of(model, settings, gpu)
    refusals = [*_config_refusals(plan)]
    stages = [stage_of(plan, layers) for layers in stage_layers(len(model.layers), settings.pipeline_parallel_size)]
    tightest = min(stages, key=lambda stage: stage.blocks)
    if settings.pipeline_parallel_size <= len(model.layers):
        refusals += next(filter(None, ([*_memory_refusals(plan, stage)] for stage in stages)), [])
    return Fit(
        weights_bytes=tightest.weights,
        activation_bytes=tightest.activation,
        non_torch_bytes=tightest.non_torch,
        total_bytes=gpu.total_bytes,
        pool_bytes=tightest.pool,
        kv_bytes_per_token=len(model.layers) * (model.kv_elements() * plan.kv_element + model.latent_bytes),
        blocks=tightest.blocks,
        max_model_len=plan.settings.max_model_len,
        sequence_blocks=lambda tokens: sequence_blocks(plan, tightest.layers, tokens),
        refusals=tuple(refusals),
    )


def _config_refusals(plan: Plan) -> Iterator[str]:
    model, settings, parts = plan.model, plan.settings, plan.settings.tensor_parallel_size
    length, tokens, sequences = settings.max_model_len, settings.max_num_batched_tokens, settings.max_num_seqs
    if model.heads % parts:
        yield f"tensor_parallel_size = {parts}: allowed: one that divides the {model.heads} attention heads"
    elif not model.latent and max(parts, model.kv_heads) % min(parts, model.kv_heads):
        yield f"tensor_parallel_size = {parts}: allowed: a divisor or a multiple of the {model.kv_heads} KV heads"
    yield from _width_refusals(plan)
    if settings.enable_expert_parallel and not any(layer.experts_a_token for layer in model.layers):
        yield "enable_expert_parallel = True: the model has no experts; allowed: false"
    if (stages := settings.pipeline_parallel_size) > len(model.layers):
        yield f"pipeline_parallel_size = {stages}: allowed: at most the {len(model.layers)} layers"
    if model.longest is not None and length > model.longest:
        yield f"max_model_len = {length}: allowed: at most {model.longest}, what the model's config.json derives"
    if tokens < sequences:
        yield f"max_num_batched_tokens = {tokens}: allowed: at least max_num_seqs = {sequences}"
    if not settings.chunked_prefill and tokens < length:
        allowed = f"at least max_model_len = {length}"
        yield f"max_num_batched_tokens = {tokens}: allowed without chunked prefill: {allowed}"
    yield from _quantization_refusals(plan)


def _width_refusals(plan: Plan) -> Iterator[str]:
    settings, layers = plan.settings, plan.model.layers
    widths = {(layer.width, settings.tensor_parallel_size) for layer in layers}
    widths |= {(layer.expert_width, plan.parallel.expert_slices) for layer in layers}
    block = plan.quantization.block if plan.quantization else 0
    for width, parts in sorted(widths):
        sliced = f"tensor_parallel_size = {settings.tensor_parallel_size}"
        if parts != settings.tensor_parallel_size:
            sliced += f" x data_parallel_size = {settings.data_parallel_size}"
        if width % parts:
            yield f"{sliced}: allowed: one that divides the feed-forward width {width}"
        elif block and (width // parts) % block:
            yield f"{sliced}: FP8 blocks of {block} do not divide {width} / {parts}; allowed: fewer GPUs"


_SAME = {"awq_marlin": "awq", "gptq_marlin": "gptq", "modelopt_fp4": "modelopt"}


def _quantization_refusals(plan: Plan) -> Iterator[str]:
    asked, found, gpu = plan.settings.quantization, plan.quantization, plan.gpu
    own = plan.model.quantization
    if asked is not None and own is None and asked not in ONLINE:
        yield f"quantization = {asked!r}: the checkpoint is not quantized; allowed: fp8, or none"
    if asked is not None and own is not None and _SAME.get(asked, asked) != _SAME.get(own.method, own.method):
        yield f"quantization = {asked!r}: allowed: {own.method}, as the checkpoint's config.json says, or none"
    if found is not None and not gpu.runs(found.method):
        required = QUANTIZATIONS[found.method]
        yield f"{found.method} on {gpu.title}, capability {gpu.capability / 10}: allowed: {required / 10} or more"
    if plan.settings.dtype == "bfloat16" and gpu.capability < 80:
        yield f"dtype = bfloat16 on {gpu.title}: allowed: float16, since it has no BF16"


def _memory_refusals(plan: Plan, stage: StageMemory) -> Iterator[str]:
    total, share = plan.gpu.total_bytes, plan.settings.gpu_memory_utilization
    given, free = plan.settings.kv_cache_memory_bytes, total - CONTEXT_BYTES
    if stage.weights > free:
        need = f"{_gib(stage.weights)} of weights on each GPU"
        yield f"out of memory while loading: {need}; allowed: at most {_gib(free)} of {plan.gpu.title}"
    elif not given and total * share > free:
        yield f"gpu_memory_utilization = {share}: allowed: at most {free / total:.3f}, as a CUDA context takes the rest"
    elif stage.weights + stage.activation + stage.non_torch > free:
        sizes = f"{_gib(stage.weights)} of weights and a peak of {_gib(stage.activation)} beside them"
        text = f"out of memory while profiling: {sizes}"
        yield f"{text}; allowed: {_gib(free)}, so lower max_num_seqs or max_num_batched_tokens"
    elif given and (held := stage.weights + stage.activation + stage.non_torch) + stage.pool > free:
        text = f"kv_cache_memory_bytes = {given}: allowed: at most {int(free - held)}"
        yield f"{text}, what {plan.gpu.title} has left beside {_gib(held)}"
    elif stage.pool <= 0:
        text = f"gpu_memory_utilization = {share}: no memory is left for the KV cache ({_gib(stage.pool)})"
        yield f"{text}; allowed: a higher share, more GPUs, or a lower max_num_seqs"
    elif (needed := needed_bytes(plan, stage.layers, plan.settings.max_model_len)) > stage.pool:
        sizes = f"one such sequence takes {_gib(needed)} of KV cache, the pool has {_gib(stage.pool)}"
        text = f"max_model_len = {plan.settings.max_model_len}: {sizes}"
        yield f"{text}; allowed: at most {_longest(plan, stage)}"


def _longest(plan: Plan, stage: StageMemory) -> int:
    """The longest sequence that the stage's pool holds; 0 where it holds none."""
    low, high = 0, plan.settings.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needed_bytes(plan, stage.layers, middle) <= stage.pool else (low, middle - 1)
    return low


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"
