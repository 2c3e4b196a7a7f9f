"""The models that are served: where their weights come from, and how the engine runs them or is simulated."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue, create_model, model_validator

from cluster.group_key import DEFAULT_GROUP
from cluster.spec.autoscaling import Autoscaling
from cluster.spec.base import Name, OptionalPath, Seconds, Section, check_unique
from cluster.spec.engine import (
    NAME_MARK,
    Context,
    Cpus,
    Dtype,
    EventTokens,
    KvBytes,
    KvDtype,
    LoraAdapter,
    MemoryShare,
    ModelName,
    Parts,
    Quantization,
    Sequences,
    Simulated,
    Speculative,
    StepTokens,
)
from cluster.spec.schedule import BoundsSchedule
from cluster.spec.starts import StartSeconds

_RESERVED = frozenset(
    {
        "api_key", "api_server_count", "config", "data_parallel_backend", "disable_log_stats",
        "distributed_executor_backend", "grpc", "grpc_port", "headless", "host", "lora_modules", "middleware",
        "model", "model_tag", "nnodes", "node_rank", "port", "root_path", "runner",
        "served_model_name", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "uds",
    }
)  # fmt: skip
"""Arguments of vLLM that `extra` may not set: raylane answers for where a replica listens, what it serves and how it
spreads over processes."""


def _not_of_the_spec(extra: dict[str, JsonValue]) -> dict[str, JsonValue]:
    for key in extra:
        if key in _RESERVED:
            raise ValueError(f"{key} = {extra[key]!r}: set by raylane; allowed: another argument of vLLM")
        if key in EngineSettings.model_fields:
            raise ValueError(f"{key} = {extra[key]!r}: allowed: beside `extra`, as the key settings.{key}")
    return extra


Extra = Annotated[dict[str, JsonValue], AfterValidator(_not_of_the_spec)]


class EngineSettings(Section):
    """How one replica of the engine runs. Names and meanings are vLLM's; None leaves vLLM's own default in force.

    `max_num_batched_tokens` is the token budget of one step, `stream_interval` the tokens in each event of a stream
    after the first event, which has one. `max_num_seqs`, the token budget and `kv_cache_memory_bytes`, the KV cache's
    size (instead of a share of the GPU's memory), are those of one data-parallel rank. `cpus`: the cores that Ray
    reserves for a replica (None: `Model.cpus`), `extra`: further vLLM engine arguments by their Python name.
    """

    dtype: Dtype = "auto"
    quantization: Quantization | None = None
    kv_cache_dtype: KvDtype = "auto"
    max_model_len: Context
    max_num_seqs: Sequences = 256
    max_num_batched_tokens: StepTokens = 2_048
    stream_interval: EventTokens = 1
    chunked_prefill: bool = True
    prefix_caching: bool = True
    enforce_eager: bool = False
    tensor_parallel_size: Parts = 1
    pipeline_parallel_size: Parts = 1
    data_parallel_size: Parts = 1
    enable_expert_parallel: bool = False
    gpu_memory_utilization: MemoryShare = 0.9
    kv_cache_memory_bytes: KvBytes | None = None
    speculative: Speculative | None = None
    max_loras: Annotated[int, Field(ge=1, le=256)] = 4
    max_lora_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] = 16
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    chat_template: str | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    cpus: Cpus | None = None
    extra: Extra = Field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Worker processes of one replica; on GPUs each has one of them."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size


_CLIENTS_NOTICE = {"stream_interval", "max_loras", "max_lora_rank", "chat_template", "seed"}
_CLIENTS_NOTICE |= {"tool_call_parser", "reasoning_parser"}
_OPTIONAL: dict[str, Any] = {
    name: (kind | None, None) for name, kind in EngineSettings.__annotations__.items() if name not in _CLIENTS_NOTICE
}


class GroupSettings(create_model("_GroupSettings", __base__=Section, **_OPTIONAL)):  # type: ignore[misc]
    """The engine settings that a group has of its own; None: the model's. `extra` replaces the model's.

    What a client can notice (parsers, chat template, adapters, seed) is the model's alone, so that it does not matter
    which group answers.
    """


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
    `min` (0: none without traffic) and `max`; `schedule`: other bounds at some times of the week, never above `max`."""

    count: Annotated[int, Field(ge=0, le=10_000)] = 1
    min: Annotated[int, Field(ge=0, le=10_000)] = 1
    max: Annotated[int, Field(ge=1, le=10_000)] | None = None
    schedule: BoundsSchedule | None = None

    @model_validator(mode="after")
    def _are_in_order(self) -> "ReplicasSpec":
        if self.max is not None and not self.min <= self.count <= self.max:
            raise ValueError(f"count = {self.count}, min = {self.min}, max = {self.max}: allowed: min <= count <= max")
        if self.max is None and self.min not in (self.count, ReplicasSpec.model_fields["min"].default):
            raise ValueError(f"min = {self.min} with count = {self.count}: allowed: with `max`, or min = count")
        for entry in () if self.schedule is None else self.schedule.entries:
            lowest, highest = self.min if entry.min is None else entry.min, self.max if entry.max is None else entry.max
            if highest is not None and not lowest <= highest <= (self.max or highest):
                raise ValueError(
                    f"schedule.entries.{entry.name}: min = {lowest}, max = {highest} with `replicas.max` = {self.max}: "
                    "allowed: min <= max <= replicas.max (what an entry does not give is as in `replicas`)"
                )
        return self

    @property
    def lowest(self) -> int:
        """The lowest `min` at any time of the week."""
        entries = () if self.schedule is None else self.schedule.entries
        return min([self.min, *(entry.min for entry in entries if entry.min is not None)])


class Group(Section):
    """A group of replicas of a model that are equal: of one pool in each region, with one set of engine settings
    (`docs/groups.md`).

    What is None is the model's. `settings` overrides single engine settings; `simulated`, `replicas`, `autoscaling` and
    `start` replace the model's sections whole.
    """

    name: Name
    regions: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    pool: Name | None = None
    source: str | None = None
    settings: GroupSettings = GroupSettings()
    simulated: Simulated | None = None
    replicas: ReplicasSpec | None = None
    autoscaling: Autoscaling | None = None
    start: StartSeconds | None = None


_OF_A_GROUP = ("regions", "pool", "source", "simulated", "replicas", "autoscaling", "start")
_CPUS = {"vllm": 1.0, "simulated": 0.01}
"""Cores that Ray reserves for a replica by default. A simulated replica sleeps most of the time
(`docs/simulator.md`)."""


class FallbackRoute(Section):
    """The model `to` answers requests of these `classes` (None: all) that this one cannot answer in time
    (`docs/pressure.md`)."""

    to: ModelName
    classes: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None


class Model(Section):
    """One served model: its `source` is `demo` (the shipped demo model), a local folder, a hub name, or
    `s3://bucket/prefix`.

    `load: cache` fetches the files into the node's cache (`artifacts`) before the engine starts; `load: stream` has the
    engine read the weights straight from the source, by vLLM's loader `runai_streamer`.
    With `engine: simulated` nothing is loaded: `source` names what is imitated, and `simulated` says how. `autoscaling`
    replaces the cluster's section for this model. `step_log` (a folder) gets a file a replica with a line for each step
    of its engine: what `raylane calibrate` fits the costs of steps from. `start`: how long each phase of a start takes,
    where that is known before one was seen. `owner`: who answers for the model, a label of metrics and alerts.

    `residency`: the only regions that may serve it (None: all); it runs in no other.

    `groups`: kinds of replicas that serve the model together; without any it has one, named `group`. `lanes`: the
    groups that serve a lane, by the lane's name, in the order in which they are tried; all groups for a lane that is
    not named. A `view` is the model as one group runs it: with the group's settings, and without `groups`.

    `aliases`: other names by which clients may ask for it. `fallback`: the models that answer in its place where a
    request would wait for longer than its patience; the first route for the request's class counts.
    """

    name: ModelName
    source: str
    aliases: tuple[ModelName, ...] = ()
    fallback: tuple[FallbackRoute, ...] = ()
    load: Literal["cache", "stream"] = "cache"
    task: Literal["generate", "embed"] = "generate"
    engine: Literal["vllm", "simulated"] = "vllm"
    simulated: Simulated | None = None
    settings: EngineSettings
    health: Health = Health()
    replicas: ReplicasSpec = ReplicasSpec()
    autoscaling: Autoscaling | None = None
    regions: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    residency: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    pool: Name | None = None
    adapters: tuple[LoraAdapter, ...] = ()
    step_log: OptionalPath = None
    start: StartSeconds | None = None
    owner: Name | None = None
    groups: tuple[Group, ...] = ()
    lanes: dict[Name, Annotated[tuple[Name, ...], Field(min_length=1)]] = Field(default_factory=dict)
    group: Name = DEFAULT_GROUP

    @model_validator(mode="after")
    def _is_what_it_says(self) -> "Model":
        _check_engine(self)
        check_unique("groups.name", (group.name for group in self.groups))
        for group in self.groups:
            try:
                _check_engine(self.view(group))
            except ValueError as error:
                raise ValueError(f"groups.{group.name}: {error}") from None
        if self.groups and self.group != DEFAULT_GROUP:
            raise ValueError(f"group = {self.group!r}: allowed only without `groups`, which have names of their own")
        if self.lanes and not self.groups:
            raise ValueError("lanes: allowed only with `groups`; it says which of them serve a lane")
        return self

    def view(self, group: Group) -> "Model":
        given = {name: value for name in _OF_A_GROUP if (value := getattr(group, name)) is not None}
        settings = self.settings.model_copy(update={name: value for name, value in group.settings if value is not None})
        one = {"settings": settings, "group": group.name, "groups": (), "lanes": {}}
        return self.model_copy(update={**given, **one})

    @property
    def views(self) -> tuple["Model", ...]:
        """One view for each group; a model without groups is its own view."""
        return tuple(self.view(group) for group in self.groups) or (self,)

    @property
    def group_key(self) -> str:
        """What names the replicas of a view: the model's name, with `@GROUP` where the group is not the default."""
        return self.name if self.group == DEFAULT_GROUP else f"{self.name}@{self.group}"

    @property
    def where(self) -> str:
        """Where the spec speaks of the view, for messages."""
        return f"models.{self.name}" if self.group == DEFAULT_GROUP else f"models.{self.name}.groups.{self.group}"

    @property
    def cpus(self) -> float:
        """The cores that Ray reserves for a replica."""
        return _CPUS[self.engine] if self.settings.cpus is None else self.settings.cpus

    def fallback_of(self, traffic_class: str) -> str | None:
        """The model that answers requests of that class in its place, if any."""
        routes = (route.to for route in self.fallback if route.classes is None or traffic_class in route.classes)
        return next(routes, None)

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names that a client may ask for: the model's own, its aliases, then its adapters'."""
        return (self.name, *self.aliases, *(adapter.name for adapter in self.adapters))

    @property
    def cached_sources(self) -> tuple[str, ...]:
        """Those of `sources` that are fetched before the engine starts."""
        if self.groups:
            return tuple(dict.fromkeys(source for view in self.views for source in view.cached_sources))
        return self.sources[1:] if self.load == "stream" else self.sources

    @property
    def sources(self) -> tuple[str, ...]:
        """Where all its files come from: its own, its adapters', its draft's; its groups', too. A simulated model has
        none."""
        if self.groups:
            return tuple(dict.fromkeys(source for view in self.views for source in view.sources))
        if self.simulated is not None:
            return ()
        speculative = self.settings.speculative
        draft = () if speculative is None or speculative.model is None else (speculative.model,)
        return (self.source, *(adapter.source for adapter in self.adapters), *draft)

    @property
    def local_paths(self) -> dict[str, str]:
        """The files and folders that its nodes must have, by the spec's keys for them."""
        template, speculative, simulated = self.settings.chat_template, self.settings.speculative, self.simulated
        sources = {
            "source": self.source if simulated is None else None,
            "settings.speculative.model": None if speculative is None else speculative.model,
            **{f"adapters.{one.name}.source": one.source for one in self.adapters},
        }
        named = {
            "autoscaling.costs": None if self.autoscaling is None else self.autoscaling.costs,
            "simulated.costs": None if simulated is None else simulated.costs,
            # A file, or the template itself, as vLLM tells them apart.
            "settings.chat_template": None if template is None or {*"{}\n"} & {*template} else template,
            **{key: source for key, source in sources.items() if source is not None and source.startswith(LOCAL)},
        }
        return {f"{self.where}.{key}": path for key, path in named.items() if path is not None}


LOCAL = ("/", "./", "../", "~")
"""So begins the source of a model in a local folder."""


def _check_engine(model: Model) -> None:
    """Raises ValueError where keys contradict the engine."""
    for alias in model.aliases:
        if alias.endswith(NAME_MARK) != (model.engine == "simulated"):
            raise ValueError(
                f"aliases = {alias!r}: allowed: names that end in {NAME_MARK} for simulated engines, and for no others"
            )
    marked = model.name.endswith(NAME_MARK)
    if model.engine == "vllm":
        if model.simulated is not None:
            raise ValueError(
                "engine = 'vllm' with a `simulated` section: set `engine: simulated`, or remove the section"
            )
        if marked:
            raise ValueError(
                f"name = {model.name!r}: allowed: a name that does not end in {NAME_MARK}; only simulated engines "
                "have that ending"
            )
        if model.load == "stream" and not model.source.startswith(("s3://", *LOCAL)):
            raise ValueError(
                f"load = 'stream' with source = {model.source!r}: allowed: an s3:// prefix or a local folder; else "
                "load: cache"
            )
        settings, tokens = model.settings, model.settings.max_num_batched_tokens
        if tokens < settings.max_num_seqs:
            raise ValueError(
                f"settings.max_num_batched_tokens = {tokens}: allowed: at least max_num_seqs = {settings.max_num_seqs}"
            )
        if not settings.chunked_prefill and tokens < settings.max_model_len:
            raise ValueError(
                f"settings.max_num_batched_tokens = {tokens}: allowed without chunked_prefill: at least max_model_len "
                f"= {settings.max_model_len}"
            )
        return
    if model.simulated is None:
        raise ValueError(
            "engine = 'simulated' without a `simulated` section: add the section; it must name a cost file (`costs`)"
        )
    if not marked:
        raise ValueError(f"name = {model.name!r}: allowed: for a simulated engine, a name that ends in {NAME_MARK}")
    for key, given in (
        ("task: embed", model.task == "embed"),
        ("adapters", model.adapters),
        ("settings.speculative", model.settings.speculative),
    ):
        if given:
            raise ValueError(
                f"{key}: not supported with engine = 'simulated', which generates text without adapters or drafts; "
                "remove it"
            )
