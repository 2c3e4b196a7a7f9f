"""What a spec asks of its engine that the simulator does not model: found before an answer is given, and said with
it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from cluster.spec import ClusterSpec, Model
from deployments.engine_model.cost_file import CostFile
from deployments.engine_model.fits import speculation_of
from planning.fit.architecture import read_architecture
from planning.fit.of_spec import config_of


class UnmodelledKind(StrEnum):
    """What is not modelled."""

    SPECULATION = "speculation"
    LORA = "lora"
    PIPELINE_PARALLEL = "pipeline_parallel"
    DATA_PARALLEL = "data_parallel"
    CONTEXT_PARALLEL = "context_parallel"
    DISAGGREGATION = "disaggregation"
    OFFLOADING = "offloading"
    SLIDING_WINDOW = "sliding_window"
    EMBEDDING = "embedding"
    IMAGES = "images"
    SCHEDULING_ARGUMENT = "scheduling_argument"
    ARCHITECTURE_UNKNOWN = "architecture_unknown"
    OTHER_ARGUMENT = "other_argument"
    COSTS = "costs"
    OTHER_REGIONS = "other_regions"


@dataclass(frozen=True, slots=True)
class Unmodelled:
    """`where`: the key of the spec, or the file, that asks for it. `effect`: how the answer differs from what would be
    measured."""

    kind: UnmodelledKind
    where: str
    effect: str

    def __str__(self) -> str:
        return f"{self.where}: {self.effect}"


_K = UnmodelledKind
_PIPELINE = "stages are simulated as one engine: bubbles between them are not counted, steps take longer than shown"
_RANKS = (
    "ranks are simulated as one engine with an even share each: that one of them is full while others have room, or "
    "does not hold the prefix that another has cached, is not counted"
)
_ARGUMENTS: Mapping[str, tuple[UnmodelledKind, str]] = {
    **dict.fromkeys(
        ("prefill_context_parallel_size", "decode_context_parallel_size"),
        (_K.CONTEXT_PARALLEL, "the exchange of partial attention is not counted; the KV cache holds more than shown"),
    ),
    "kv_transfer_config": (
        _K.DISAGGREGATION,
        "every replica prefills and decodes here: the transfer of KV between engines is not counted",
    ),
    **dict.fromkeys(
        ("kv_offloading_size", "kv_offloading_backend", "cpu_offload_gb", "offload_backend"),
        (_K.OFFLOADING, "weights and KV are taken to be in the GPU's memory: transfers to and from the host are free"),
    ),
    "speculative_config": (_K.SPECULATION, "each step gives one token a sequence: answers come sooner than shown"),
    "enable_lora": (_K.LORA, "requests for adapters cost as much as those for the base model; they cost more"),
    **dict.fromkeys(
        (
            "scheduler_cls",
            "long_prefill_token_threshold_adaptive",
            "max_num_scheduled_tokens",
            "max_num_active_seqs",
            "max_num_queued_reqs",
            "prefill_schedule_interval",
            "scheduler_reserve_full_isl",
            "num_gpu_blocks_override",
            "enable_dbo",
        ),
        (_K.SCHEDULING_ARGUMENT, "the simulated engine schedules as vLLM does without it"),
    ),
}
"""vLLM's arguments that change what a step does, or when: by their Python names."""
_COVERED = frozenset(
    (
        *(
            "async_scheduling",
            "block_size",
            "long_prefill_token_threshold",
            "enable_prefix_caching",
            "enable_chunked_prefill",
        ),
        *("attention_backend", "moe_backend", "linear_backend", "optimization_level"),
        *("compilation_config", "cudagraph_capture_sizes", "max_cudagraph_capture_size", "disable_custom_all_reduce"),
        *("hf_overrides", "quantization_config", "structured_outputs_config", "limit_mm_per_prompt", "logprobs_mode"),
        *("generation_config", "override_generation_config", "load_format", "model_loader_extra_config", "revision"),
        *("tokenizer", "tokenizer_mode", "tokenizer_revision", "trust_remote_code", "download_dir", "hf_token"),
        *("disable_log_stats", "max_logprobs", "distributed_executor_backend", "renderer_num_workers"),
    )
)
"""Arguments that are read elsewhere, whose effect is in the costs of steps (if those are of an engine with the same
ones), or that change neither what a step computes nor when."""


def unmodelled(model: Model, cost: CostFile | None = None, spec: ClusterSpec | None = None) -> tuple[Unmodelled, ...]:
    """What the model's settings, its adapters and its `config.json` ask for that is not modelled, and what the costs of
    steps leave out or approximate. `spec`: of a command that simulates one cell, whatever regions it has."""
    notes = () if cost is None else (Unmodelled(_K.COSTS, "the costs", note) for note in cost.unmodelled)
    regions = () if spec is None else _of_regions(model, spec)
    return (*_of_settings(model, cost), *_of_arguments(model), *_of_config(model), *notes, *regions)


def unmodelled_of(views: Iterable[Model], costs: Mapping[str, CostFile], spec: ClusterSpec) -> tuple[Unmodelled, ...]:
    """The same of all groups of a model, each with its costs; what several have in common once."""
    return tuple(dict.fromkeys(one for view in views for one in unmodelled(view, costs[view.group], spec)))


def _of_regions(model: Model, spec: ClusterSpec) -> Iterator[Unmodelled]:
    first, *others = spec.regions_of(model)
    if others:
        handed = "" if spec.peering is None else "; nothing is handed over"
        effect = f"the cell in {first.name} alone is simulated, with all requests of the trace{handed}"
        yield Unmodelled(_K.OTHER_REGIONS, "regions", effect)


def _of_settings(model: Model, cost: CostFile | None) -> Iterator[Unmodelled]:
    settings, where = model.settings, model.where
    if settings.speculative is not None and (cost is None or speculation_of(model, cost) is None):
        yield Unmodelled(_K.SPECULATION, f"{where}.settings.speculative", _ARGUMENTS["speculative_config"][1])
    if settings.pipeline_parallel_size > 1:
        yield Unmodelled(_K.PIPELINE_PARALLEL, f"{where}.settings.pipeline_parallel_size", _PIPELINE)
    if settings.data_parallel_size > 1:
        yield Unmodelled(_K.DATA_PARALLEL, f"{where}.settings.data_parallel_size", _RANKS)
    if model.adapters:
        yield Unmodelled(_K.LORA, f"models.{model.name}.adapters", _ARGUMENTS["enable_lora"][1])
    if model.task == "embed":
        yield Unmodelled(_K.EMBEDDING, f"models.{model.name}.task", "the engine is simulated as if it generated tokens")


def _of_arguments(model: Model) -> Iterator[Unmodelled]:
    where, others = f"{model.where}.settings.extra", []
    for name, value in model.settings.extra.items():
        known = _ARGUMENTS.get(name)
        if known is None:
            others += [] if name in _COVERED else [name]
        elif value and (value is True or value != 1):  # one of anything is what there is without the argument
            yield Unmodelled(known[0], f"{where}.{name}", known[1])
    if others:
        effect = "the simulator does not read it" if len(others) == 1 else "the simulator does not read them"
        yield Unmodelled(_K.OTHER_ARGUMENT, f"{where}: {', '.join(others)}", effect)


def _of_config(model: Model) -> Iterator[Unmodelled]:
    try:
        config = config_of(model)
        layers = read_architecture(config).layers
    except (ValueError, OSError) as error:
        effect = "whether layers have sliding windows, and what else they do, is not known"
        yield Unmodelled(_K.ARCHITECTURE_UNKNOWN, str(error), effect)
        return
    windows = sorted({layer.window for layer in layers if layer.window is not None})
    if windows and windows[0] < model.settings.max_model_len:
        count = sum(layer.window is not None for layer in layers)
        effect = (
            f"{count} of {len(layers)} layers read at most {windows[0]:,} tokens of the past, and are simulated as if "
            "they read all of it: long prompts and their answers come sooner than shown"
        )
        yield Unmodelled(_K.SLIDING_WINDOW, "config.json: sliding_window", effect)
    if config.get("vision_config"):
        effect = "images are not simulated: only prompts of text are"
        yield Unmodelled(_K.IMAGES, "config.json: vision_config", effect)
