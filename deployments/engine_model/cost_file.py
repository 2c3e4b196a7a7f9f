"""The cost model as a file: what a calibration (or a table) found, for which engine, and on what it rests. JSON,
version 1."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cluster.files import read_json, write_json
from deployments.engine_model.cost_model import Attention, CostModel, Curve
from deployments.engine_model.limits import EngineModelLimits

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CostFileError(ValueError):
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


class EngineLimits(_Section):
    """What the engine can hold."""

    max_num_seqs: Positive
    max_num_batched_tokens: Positive
    kv_tokens: Positive
    block_tokens: Positive = 16
    async_scheduling: bool | None = None
    """Of the engine that was measured; None: unknown, or none was."""


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

    def cost_model(self) -> CostModel:
        costs = self.attention
        curves = (self.dense, self.sequence, costs.decode, costs.prompt, self.front)
        dense, sequence, decode, prompt, front = (Curve(points.at, points.seconds) for points in curves)
        units = costs.model_dump(exclude={"decode", "prompt"})
        return CostModel(dense, sequence, Attention(decode, prompt, **units), front, self.back_s)

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
    units = {name: getattr(attention, name) for name in AttentionCosts.model_fields if name not in ("decode", "prompt")}
    return CostFile(
        model=model,
        hardware=hardware,
        basis=basis,
        engine=engine,
        dense=dense,
        sequence=sequence,
        attention=AttentionCosts(decode=decode, prompt=prompt, **units),
        front=front,
        back_s=cost.back_s,
        error=error,
        note=note,
    )


def read_cost_file(path: Path) -> CostFile:
    """The file's content. Raises CostFileError."""
    return read_json(path, CostFile, CostFileError)


def write_cost_file(path: Path, content: CostFile) -> None:
    write_json(path, content)
