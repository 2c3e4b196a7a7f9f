"""The models that are served: where their weights come from, and how the engine runs them or is simulated."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, ValidationInfo, field_validator, model_validator

from cluster.spec.autoscaling import Autoscaling
from cluster.spec.base import Name, Seconds, Section, beside_the_spec
from cluster.spec.starts import StartSeconds

NAME_MARK = "-simulated"
"""How the name of a simulated model ends, and no other's: whoever asks for one has to write the word."""


class Simulated(Section):
    """How a simulated engine answers (`docs/simulator.md`).

    `costs` is the path of a cost file, relative to the spec's own file. `tokens_per_chunk`: tokens in each event of a
    stream after the first event, which has one. A real engine sends one token per event; a laptop cannot relay that for
    forty GPUs. `speed`: a factor on the speed of the costs. An answer without `max_tokens` has a log-normal length of
    median `answer_tokens` and deviation `answer_sigma` (0: always the median), seeded by the request's `seed` or else
    by its id. `start_up_s`: seconds until a replica serves, in addition to the start of its process.
    """

    costs: Annotated[str, Field(min_length=1)]
    tokens_per_chunk: Annotated[int, Field(ge=1, le=4_096)] = 64
    speed: Annotated[float, Field(gt=0, le=1_000)] = 1.0
    answer_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = 200
    answer_sigma: Annotated[float, Field(ge=0, le=4)] = 0.8
    start_up_s: Annotated[float, Field(ge=0, le=86_400)] = 0.0

    @field_validator("costs")
    @classmethod
    def _is_beside_the_spec(cls, costs: str, info: ValidationInfo) -> str:
        return beside_the_spec(costs, info)


ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")]
"""What a client writes in `model`: a name of up to 128 letters, digits, dots, dashes, underscores and slashes."""


class Speculative(Section):
    """Speculative decoding: a draft `model` (folder or hub name) or `ngram`, and how many tokens are proposed a
    step."""

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

    `max_num_batched_tokens` is the token budget of one step, `kv_cache_memory_bytes` the KV cache's size (instead of a
    share of the GPU's memory), `cpus` the cores that Ray reserves for a replica (None: `Model.cpus`), `extra` further
    vLLM engine arguments by their Python name.
    """

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    quantization: (
        Literal[
            "awq", "awq_marlin", "gptq", "gptq_marlin", "fp8", "compressed-tensors", "bitsandbytes", "modelopt", "mxfp4"
        ]
        | None
    ) = None
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"] = "auto"
    max_model_len: Annotated[int, Field(ge=16, le=10_485_760)]
    max_num_seqs: Annotated[int, Field(ge=1, le=4_096)] = 256
    max_num_batched_tokens: Annotated[int, Field(ge=16, le=1_048_576)] = 2_048
    chunked_prefill: bool = True
    prefix_caching: bool = True
    enforce_eager: bool = False
    tensor_parallel_size: Annotated[int, Field(ge=1, le=16)] = 1
    pipeline_parallel_size: Annotated[int, Field(ge=1, le=16)] = 1
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    kv_cache_memory_bytes: Annotated[int, Field(ge=1 << 20)] | None = None
    speculative: Speculative | None = None
    max_loras: Annotated[int, Field(ge=1, le=256)] = 4
    max_lora_rank: Annotated[int, Field(ge=8, le=512)] = 16
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    chat_template: str | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    cpus: Annotated[float, Field(gt=0, le=256)] | None = None
    extra: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Worker processes of one replica; on GPUs each has one of them."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


class Health(Section):
    """When a replica counts as unhealthy: it had work, but took no engine step for `stall_s`. Serve asks every
    `period_s` and waits at most `timeout_s` for the answer.

    Serve replaces a replica after three missing answers, so a process that hangs for 30 s is kept.
    """

    stall_s: Seconds = 30.0
    period_s: Seconds = 5.0
    timeout_s: Seconds = 15.0
    startup_s: Seconds = 900.0


class ReplicasSpec(Section):
    """The number of replicas: `count` at the start, and always if the policy is `fixed`. Other policies keep it between
    `min` (0: none without traffic) and `max`."""

    count: Annotated[int, Field(ge=0, le=10_000)] = 1
    min: Annotated[int, Field(ge=0, le=10_000)] = 1
    max: Annotated[int, Field(ge=1, le=10_000)] | None = None

    @model_validator(mode="after")
    def _are_in_order(self) -> "ReplicasSpec":
        if self.max is not None and not self.min <= self.count <= self.max:
            raise ValueError(f"count = {self.count}, min = {self.min}, max = {self.max}: allowed: min <= count <= max")
        return self


_CPUS = {"vllm": 1.0, "simulated": 0.01}
"""Cores that Ray reserves for a replica by default. A simulated replica sleeps most of the time
(`docs/simulator.md`)."""


class Model(Section):
    """One served model: its `source` is `demo` (the shipped demo model), a local folder, a hub name, or
    `s3://bucket/prefix`.

    `load: cache` fetches the files into the node's cache (`artifacts`) before the engine starts; `load: stream` has the
    engine read the weights straight from the source, by vLLM's loader `runai_streamer`.
    With `engine: simulated` nothing is loaded: `source` names what is imitated, and `simulated` says how. `autoscaling`
    replaces the cluster's section for this model. `step_log` (a folder) gets a file a replica with a line for each step
    of its engine: what `raylane calibrate` fits the costs of steps from. `start`: how long each phase of a start takes,
    where that is known before one was seen.
    """

    name: ModelName
    source: str
    load: Literal["cache", "stream"] = "cache"
    task: Literal["generate", "embed"] = "generate"
    engine: Literal["vllm", "simulated"] = "vllm"
    simulated: Simulated | None = None
    settings: EngineSettings
    health: Health = Health()
    replicas: ReplicasSpec = ReplicasSpec()
    autoscaling: Autoscaling | None = None
    regions: tuple[Name, ...] | None = None
    pool: Name | None = None
    adapters: tuple[LoraAdapter, ...] = ()
    step_log: str | None = None
    start: StartSeconds | None = None

    @field_validator("step_log")
    @classmethod
    def _is_beside_the_spec(cls, path: str | None, info: ValidationInfo) -> str | None:
        return beside_the_spec(path, info) if path else None

    @model_validator(mode="after")
    def _is_what_it_says(self) -> "Model":
        marked = self.name.endswith(NAME_MARK)
        if self.engine == "vllm":
            if self.simulated is not None:
                raise ValueError(
                    "engine = 'vllm' with a `simulated` section: set `engine: simulated`, or remove the section"
                )
            if marked:
                raise ValueError(
                    f"name = {self.name!r}: allowed: a name that does not end in {NAME_MARK}; only simulated engines "
                    "have that ending"
                )
            if self.load == "stream" and not self.source.startswith(("s3://", "/", "./", "../", "~")):
                raise ValueError(
                    f"load = 'stream' with source = {self.source!r}: allowed: an s3:// prefix or a local folder; else "
                    "load: cache"
                )
            return self
        if self.simulated is None:
            raise ValueError(
                "engine = 'simulated' without a `simulated` section: add the section; it must name a cost file "
                "(`costs`)"
            )
        if not marked:
            raise ValueError(f"name = {self.name!r}: allowed: for a simulated engine, a name that ends in {NAME_MARK}")
        for key, given in (
            ("task: embed", self.task == "embed"),
            ("adapters", self.adapters),
            ("settings.speculative", self.settings.speculative),
        ):
            if given:
                raise ValueError(
                    f"{key}: not supported with engine = 'simulated', which generates text without adapters or drafts; "
                    "remove it"
                )
        return self

    @property
    def cpus(self) -> float:
        """The cores that Ray reserves for a replica."""
        return _CPUS[self.engine] if self.settings.cpus is None else self.settings.cpus

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names that a client may ask for: the model's own, then its adapters'."""
        return (self.name, *(adapter.name for adapter in self.adapters))

    @property
    def cached_sources(self) -> tuple[str, ...]:
        """Those of `sources` that are fetched before the engine starts."""
        return self.sources[1:] if self.load == "stream" else self.sources

    @property
    def sources(self) -> tuple[str, ...]:
        """Where all its files come from: its own, its adapters', its draft's. A simulated model has none."""
        if self.simulated is not None:
            return ()
        speculative = self.settings.speculative
        draft = () if speculative is None or speculative.model is None else (speculative.model,)
        return (self.source, *(adapter.source for adapter in self.adapters), *draft)
