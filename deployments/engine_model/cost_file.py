"""The cost model as a file: what a calibration (or a table) found, for which engine, and on what it rests. JSON,
version 1."""

from collections.abc import Iterable
from enum import StrEnum
from math import sqrt
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cluster.errors import InputError
from cluster.files import read_json, write_json
from deployments.engine_model.cost_model import UNITS, Attention, CostModel, Curve, OneKernel, Surface
from deployments.engine_model.limits import EngineModelLimits, Speculation

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CostFileError(InputError):
    """A cost file that cannot be used; the message names file, key and value."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CurvePoints(_Section):
    """A piecewise-linear function: seconds at ascending sizes."""

    at: tuple[NotNegative, ...]
    seconds: tuple[NotNegative, ...]

    @model_validator(mode="after")
    def _is_a_curve(self) -> "CurvePoints":
        Curve(self.at, self.seconds)
        return self


class SurfacePoints(_Section):
    """Seconds by decodes (one row each) and by the KV tokens of each of them (`cost_model.py`, `Surface`)."""

    decodes: tuple[NotNegative, ...]
    kv_tokens: tuple[NotNegative, ...]
    seconds: tuple[tuple[NotNegative, ...], ...]

    @model_validator(mode="after")
    def _is_a_surface(self) -> "SurfacePoints":
        self.surface()
        return self

    def surface(self) -> Surface:
        return Surface(self.decodes, self.kv_tokens, self.seconds)


class OneKernelCosts(_Section):
    """Seconds of attention where prompts and decodes share a kernel (`cost_model.py`, `OneKernel`)."""

    launch_s: NotNegative
    prompt: CurvePoints
    past: CurvePoints
    pair_s: NotNegative
    chain_s: NotNegative
    empty_s: NotNegative
    beside: SurfacePoints

    @classmethod
    def of(cls, kernel: OneKernel) -> "OneKernelCosts":
        beside = kernel.beside
        return cls(
            launch_s=kernel.launch_s,
            prompt=CurvePoints(at=kernel.prompt.at, seconds=kernel.prompt.value),
            past=CurvePoints(at=kernel.past.at, seconds=kernel.past.value),
            pair_s=kernel.pair_s,
            chain_s=kernel.chain_s,
            empty_s=kernel.empty_s,
            beside=SurfacePoints(decodes=beside.x, kv_tokens=beside.y, seconds=beside.value),
        )

    def kernel(self) -> OneKernel:
        prompt, past = (Curve(points.at, points.seconds) for points in (self.prompt, self.past))
        return OneKernel(self.launch_s, prompt, past, self.pair_s, self.chain_s, self.empty_s, self.beside.surface())


class AttentionCosts(_Section):
    """Seconds of attention, by unit (`cost_model.py`)."""

    decode: CurvePoints
    prompt: CurvePoints
    kv_read_s: NotNegative
    past_read_s: NotNegative
    context_s: NotNegative
    mixed_decode_s: NotNegative
    mixed_token_s: NotNegative
    mixed_kv_read_s: NotNegative
    one_kernel: OneKernelCosts | None = None


class CostBasis(StrEnum):
    """Where a part of the costs comes from, from the surest on."""

    CALIBRATED = "calibrated here"
    PROFILE = "profile of this GPU"
    OTHER_PROFILE = "profile of another GPU"
    DATA_SHEET = "data sheet"


class CostSource(_Section):
    """What a part of a step's time rests on. `share`: of the time of a busy step. `low` and `high`: the true time is
    likely between these multiples of it."""

    part: str
    basis: CostBasis
    share: Annotated[float, Field(ge=0, le=1)]
    low: Annotated[float, Field(gt=0, le=1)]
    high: Annotated[float, Field(ge=1, le=10)]
    note: str = ""


class PartResidual(_Section):
    """How far predictions were off for steps that the costs were not fitted to. `share`: of the time of all such steps;
    `bias`: of their total time; `error`, `p90`: of a single step, the mean and what nine of ten do not exceed."""

    part: str
    steps: Positive
    share: Annotated[float, Field(ge=0, le=1)]
    bias: float
    error: NotNegative
    p90: NotNegative


class HostCosts(_Section):
    """Seconds that are not, or not only, the GPU's. `step_s`: a step of one decode with an empty KV cache, and
    `host_step_s` the host's likely range of it: what is left beside `kernels_s`, its kernels by the data sheet (None:
    the GPU or the model's architecture is not known). `prefill_step_s`: how much longer a step is that prefills one
    token instead, and `host_block_s` the host's likely range of it in each of the model's `blocks`. `front_s`,
    `back_s`: around the steps of a request that is alone."""

    step_s: NotNegative
    prefill_step_s: float
    kernels_s: NotNegative | None = None
    host_step_s: tuple[NotNegative, NotNegative] | None = None
    host_block_s: tuple[NotNegative, NotNegative] | None = None
    blocks: Positive | None = None
    front_s: NotNegative
    back_s: NotNegative


class CalibrationRecord(_Section):
    """How a calibration went: measured steps, residuals of held-out ones by part, the host's part, and what no probe
    reached, in words."""

    steps: Positive
    residuals: tuple[PartResidual, ...]
    host: HostCosts
    not_covered: tuple[str, ...]


class EngineLimits(_Section):
    """What the engine can hold."""

    max_num_seqs: Positive
    max_num_batched_tokens: Positive
    kv_tokens: Positive
    block_tokens: Positive = 16
    async_scheduling: bool | None = None
    """Of the engine that was measured; None: unknown, or none was."""


class SpeculationCosts(_Section):
    """A draft, as it was measured with one `method` of speculative decoding. `acceptance`: for each token that it
    proposes in a step, the share of steps in which that token and all before it were accepted (vLLM counts them:
    `vllm:spec_decode_num_accepted_tokens_per_pos` by `vllm:spec_decode_num_drafts`). `draft`: seconds that proposing
    adds to a step, by how many sequences decode in it."""

    method: str
    acceptance: Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=1, max_length=32)]
    draft: CurvePoints

    @model_validator(mode="after")
    def _falls(self) -> "SpeculationCosts":
        Speculation(self.acceptance)
        return self


class CostFile(_Section):
    """Seconds of a step by what it computes (`cost_model.py`). `basis`: on what the figures rest; only `measured` ones
    may give advice unasked.

    `error` is the mean relative error of the step times that it was fitted from, None where there were none.
    """

    version: Literal[1] = 1
    model: str
    hardware: str
    basis: Literal["measured", "profile", "roofline"]
    engine: EngineLimits
    dense: CurvePoints
    sequence: CurvePoints
    attention: AttentionCosts
    front: CurvePoints = CurvePoints(at=(0.0,), seconds=(0.0,))
    back_s: NotNegative = 0.0
    error: NotNegative | None = None
    note: str = ""
    sources: tuple[CostSource, ...] = ()
    unmodelled: tuple[str, ...] = ()
    speculation: SpeculationCosts | None = None
    calibration: CalibrationRecord | None = None

    def likely(self) -> tuple[float, float]:
        """Multiples of a step's time between which the true one likely is: the parts' errors, taken as independent.

        Without sources nothing is known: (1, 1).
        """
        parts = [(source.share, 1 - source.low, source.high - 1) for source in self.sources]
        down, up = (sqrt(sum((part[0] * part[side]) ** 2 for part in parts)) for side in (1, 2))
        return 1 - down, 1 + up

    def cost_model(self) -> CostModel:
        costs = self.attention
        curves = (self.dense, self.sequence, costs.decode, costs.prompt, self.front)
        dense, sequence, decode, prompt, front = (Curve(points.at, points.seconds) for points in curves)
        units = {name: getattr(costs, name) for name in UNITS}
        kernel = costs.one_kernel.kernel() if costs.one_kernel is not None else None
        attention = Attention(decode, prompt, **units, one_kernel=kernel)
        points = self.speculation.draft if self.speculation is not None else CurvePoints(at=(0.0,), seconds=(0.0,))
        return CostModel(dense, sequence, attention, front, self.back_s, Curve(points.at, points.seconds))

    @property
    def of_gpu(self) -> bool:
        """Whether the engine runs on a GPU, as far as the file tells: data sheets and profiles are of GPUs."""
        return self.basis != "measured" or bool(self.engine.async_scheduling)

    def limits(self) -> EngineModelLimits:
        """The engine's limits, with vLLM's default of asynchronous scheduling where none is known: on, on GPUs."""
        engine, known = self.engine, self.engine.async_scheduling
        return EngineModelLimits(
            engine.max_num_seqs,
            engine.max_num_batched_tokens,
            engine.kv_tokens,
            engine.block_tokens,
            async_scheduling=self.of_gpu if known is None else known,
        )


def cost_file(
    model: str,
    hardware: str,
    basis: Literal["measured", "profile", "roofline"],
    limits: EngineModelLimits,
    cost: CostModel,
    error: float | None = None,
    note: str = "",
    sources: Iterable[CostSource] = (),
    unmodelled: Iterable[str] = (),
) -> CostFile:
    engine = EngineLimits(
        max_num_seqs=limits.sequences,
        max_num_batched_tokens=limits.step_tokens,
        kv_tokens=limits.kv_tokens,
        block_tokens=limits.block_tokens,
        async_scheduling=limits.async_scheduling if basis == "measured" else None,
    )
    attention = cost.attention
    curves = (cost.dense, cost.sequence, attention.decode, attention.prompt, cost.front)
    dense, sequence, decode, prompt, front = (CurvePoints(at=curve.at, seconds=curve.value) for curve in curves)
    units = {name: getattr(attention, name) for name in UNITS}
    kernel = OneKernelCosts.of(attention.one_kernel) if attention.one_kernel is not None else None
    return CostFile(
        model=model,
        hardware=hardware,
        basis=basis,
        engine=engine,
        dense=dense,
        sequence=sequence,
        attention=AttentionCosts(decode=decode, prompt=prompt, **units, one_kernel=kernel),
        front=front,
        back_s=cost.back_s,
        error=error,
        note=note,
        sources=tuple(sources),
        unmodelled=tuple(unmodelled),
    )


def read_cost_file(path: Path) -> CostFile:
    """The file's content. Raises CostFileError."""
    return read_json(path, CostFile, CostFileError)


def write_cost_file(path: Path, content: CostFile) -> None:
    write_json(path, content)
