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
from deployments.engine_model.cost_model import Attention, CostModel, Curve, NotNegative
from deployments.engine_model.limits import EngineModelLimits, Speculation

Positive = Annotated[int, Field(ge=1)]
_NOTHING = Curve((0.0,), (0.0,))


class CostFileError(InputError):
    """A cost file that cannot be used; the message names file, key and value."""


class _Section(BaseModel):
    """The curves in it are the cost model's own, and are checked like the rest."""

    model_config = ConfigDict(extra="forbid", frozen=True, revalidate_instances="always")


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
    token instead, and `host_block_s` the host's likely range of it in each of the model's `blocks`."""

    step_s: NotNegative
    prefill_step_s: float
    kernels_s: NotNegative | None = None
    host_step_s: tuple[NotNegative, NotNegative] | None = None
    host_block_s: tuple[NotNegative, NotNegative] | None = None
    blocks: Positive | None = None


class CalibrationRecord(_Section):
    """How a calibration went: measured steps, residuals of held-out ones by part, the host's part, and what no probe
    reached, in words."""

    steps: Positive
    residuals: tuple[PartResidual, ...]
    host: HostCosts
    not_covered: tuple[str, ...]


class EngineLimits(_Section):
    """What the engine can hold: each of its `data_ranks` data-parallel ranks."""

    max_num_seqs: Positive
    max_num_batched_tokens: Positive
    kv_tokens: Positive
    block_tokens: Positive = 16
    data_ranks: Positive = 1
    async_scheduling: bool | None = None
    """Of the engine that was measured; None: unknown, or none was."""


class SpeculationCosts(_Section):
    """A draft, as it was measured with one `method` of speculative decoding. `acceptance`: for each token that it
    proposes in a step, the share of steps in which that token and all before it were accepted (vLLM counts them:
    `vllm:spec_decode_num_accepted_tokens_per_pos` by `vllm:spec_decode_num_drafts`). `draft`: seconds that proposing
    adds to a step, by how many sequences decode in it."""

    method: str
    acceptance: Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=1, max_length=32)]
    draft: Curve

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
    dense: Curve
    sequence: Curve
    attention: Attention
    front: Curve = _NOTHING
    back_s: NotNegative = 0.0
    error: NotNegative | None = None
    note: str = ""
    sources: tuple[CostSource, ...] = ()
    unmodelled: tuple[str, ...] = ()
    speculation: SpeculationCosts | None = None
    calibration: CalibrationRecord | None = None

    @model_validator(mode="after")
    def _takes_time(self) -> "CostFile":
        if self.dense(1.0) <= 0:
            raise ValueError("dense = 0 for a step of one token: allowed: above 0")
        return self

    def likely(self) -> tuple[float, float]:
        """Multiples of a step's time between which the true one likely is: the parts' errors, taken as independent.

        Without sources nothing is known: (1, 1).
        """
        parts = [(source.share, 1 - source.low, source.high - 1) for source in self.sources]
        down, up = (sqrt(sum((part[0] * part[side]) ** 2 for part in parts)) for side in (1, 2))
        return 1 - down, 1 + up

    def cost_model(self) -> CostModel:
        draft = _NOTHING if self.speculation is None else self.speculation.draft
        ranks = self.engine.data_ranks
        return CostModel(self.dense, self.sequence, self.attention, self.front, self.back_s, draft, ranks)

    @property
    def of_gpu(self) -> bool:
        """Whether the engine runs on a GPU, as far as the file tells: data sheets and profiles are of GPUs."""
        return self.basis != "measured" or bool(self.engine.async_scheduling)

    def limits(self) -> EngineModelLimits:
        """The engine's limits, with vLLM's default of asynchronous scheduling where none is known: on, on GPUs. Ranks
        count as one engine that holds what all of them hold, and takes no more of a prompt at once than one of them."""
        engine, known, ranks = self.engine, self.engine.async_scheduling, self.engine.data_ranks
        return EngineModelLimits(
            ranks * engine.max_num_seqs,
            ranks * engine.max_num_batched_tokens,
            ranks * engine.kv_tokens,
            engine.block_tokens,
            async_scheduling=self.of_gpu if known is None else known,
            long_prefill_tokens=engine.max_num_batched_tokens if ranks > 1 else 0,
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
    """`limits`: of one data-parallel rank."""
    engine = EngineLimits(
        max_num_seqs=limits.sequences,
        max_num_batched_tokens=limits.step_tokens,
        kv_tokens=limits.kv_tokens,
        block_tokens=limits.block_tokens,
        data_ranks=cost.ranks,
        async_scheduling=limits.async_scheduling if basis == "measured" else None,
    )
    return CostFile(
        model=model,
        hardware=hardware,
        basis=basis,
        engine=engine,
        dense=cost.dense,
        sequence=cost.sequence,
        attention=cost.attention,
        front=cost.front,
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
