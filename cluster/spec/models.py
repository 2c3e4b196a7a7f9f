"""The models that are served: where their weights come from and how the engine runs them."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from cluster.spec.base import Name, Seconds, Section

ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")]
"""What a client writes in `model`: a name of up to 128 letters, digits, dots, dashes, underscores and slashes."""


class Speculative(Section):
    """Speculative decoding: a draft `model` (folder or hub name) or `ngram`, and how many tokens are proposed a step."""

    method: Literal["draft_model", "ngram", "eagle", "eagle3", "mtp"]
    model: str | None = None
    num_speculative_tokens: Annotated[int, Field(ge=1, le=32)] = 3

    @model_validator(mode="after")
    def _needs_a_model(self) -> "Speculative":
        if self.method in ("draft_model", "eagle", "eagle3") and self.model is None:
            raise ValueError(f"method {self.method!r} needs `model`: the folder or hub name of the draft")
        return self


class LoraAdapter(Section):
    """A LoRA adapter, served under its own `name` beside its base model."""

    name: ModelName
    source: str


class EngineSettings(Section):
    """How one replica of the engine runs. Names and meanings are vLLM's; None leaves vLLM's own default in force.

    `max_num_batched_tokens` is the token budget of one step, `kv_cache_memory_bytes` the KV cache's size (instead of a share of the GPU's memory),
    `cpus` the cores that Ray books for a replica, `extra` further vLLM engine arguments by their Python name.
    """

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    quantization: Literal["awq", "awq_marlin", "gptq", "gptq_marlin", "fp8", "compressed-tensors", "bitsandbytes", "modelopt", "mxfp4"] | None = None
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"] = "auto"
    max_model_len: Annotated[int, Field(ge=16, le=10_485_760)]
    max_num_seqs: Annotated[int, Field(ge=1, le=4_096)] = 256
    max_num_batched_tokens: Annotated[int, Field(ge=16, le=1_048_576)] = 2_048
    chunked_prefill: bool = True
    prefix_caching: bool = True
    enforce_eager: bool = False
    tensor_parallel_size: Annotated[int, Field(ge=1, le=16)] = 1
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    kv_cache_memory_bytes: Annotated[int, Field(ge=1 << 20)] | None = None
    speculative: Speculative | None = None
    max_loras: Annotated[int, Field(ge=1, le=256)] = 4
    max_lora_rank: Annotated[int, Field(ge=8, le=512)] = 16
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    chat_template: str | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    cpus: Annotated[float, Field(gt=0, le=256)] = 1.0
    extra: dict[str, JsonValue] = Field(default_factory=dict)


class Health(Section):
    """When a replica counts as unhealthy: `stall_s` without an engine step while work is unfinished; asked every `period_s`, at most `timeout_s`."""

    stall_s: Seconds = 30.0
    period_s: Seconds = 5.0
    timeout_s: Seconds = 10.0
    startup_s: Seconds = 900.0


class Replicas(Section):
    """How many replicas run: a fixed number until the autoscaling policies land."""

    count: Annotated[int, Field(ge=0, le=10_000)] = 1


class Model(Section):
    """One served model: its `source` is `demo` (the shipped demo model), a local folder, or a hub name."""

    name: ModelName
    source: str
    task: Literal["generate", "embed"] = "generate"
    engine: Literal["vllm"] = "vllm"
    settings: EngineSettings
    health: Health = Health()
    replicas: Replicas = Replicas()
    regions: tuple[Name, ...] | None = None
    pool: Name | None = None
    adapters: tuple[LoraAdapter, ...] = ()

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names that a client may ask for: the model's own, then its adapters'."""
        return (self.name, *(adapter.name for adapter in self.adapters))

    @property
    def sources(self) -> tuple[str, ...]:
        """Where all its files come from: its own, its adapters', its draft's."""
        speculative = self.settings.speculative
        draft = () if speculative is None or speculative.model is None else (speculative.model,)
        return (self.source, *(adapter.source for adapter in self.adapters), *draft)
