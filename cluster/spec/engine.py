"""The parts of which a model's engine is described: how it is simulated, its adapters and drafts, and the ranges of its
settings."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from cluster.spec.base import RelativePath, Section

NAME_MARK = "-simulated"
"""How the name of a simulated model ends, and no other's: whoever asks for one has to write the word."""


class Simulated(Section):
    """How a simulated engine answers (`docs/simulator.md`).

    `costs` is the path of a cost file, relative to the spec's own file. `speed`: a factor on the speed of the costs. An
    answer without `max_tokens` has a log-normal length of median `answer_tokens` and deviation `answer_sigma` (0:
    always the median), seeded by the request's `seed` or else by its id. `start_up_s`: seconds until a replica serves,
    in addition to the start of its process.
    """

    costs: RelativePath
    speed: Annotated[float, Field(gt=0, le=1_000)] = 1.0
    answer_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = 200
    answer_sigma: Annotated[float, Field(ge=0, le=4)] = 0.8
    start_up_s: Annotated[float, Field(ge=0, le=86_400)] = 0.0


ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")]
"""What a client writes in `model`: a name of up to 128 letters, digits, dots, dashes, underscores and slashes."""


class LoraAdapter(Section):
    """A LoRA adapter, served under its own `name` beside its base model."""

    name: ModelName
    source: str


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


Dtype = Literal["auto", "bfloat16", "float16", "float32"]
Quantization = Literal[
    "awq", "awq_marlin", "gptq", "gptq_marlin", "fp8", "compressed-tensors", "bitsandbytes", "modelopt", "mxfp4"
]
KvDtype = Literal["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"]
Context = Annotated[int, Field(ge=16, le=10_485_760)]
Sequences = Annotated[int, Field(ge=1, le=4_096)]
StepTokens = Annotated[int, Field(ge=16, le=1_048_576)]
EventTokens = Annotated[int, Field(ge=1, le=4_096)]
Parts = Annotated[int, Field(ge=1, le=16)]
MemoryShare = Annotated[float, Field(gt=0, le=1)]
KvBytes = Annotated[int, Field(ge=1 << 20, le=1 << 42)]
"""Of one rank; no GPU has 4 TiB (`Gpu.memory_bytes`), and few nodes do."""
Cpus = Annotated[float, Field(gt=0, le=256)]
