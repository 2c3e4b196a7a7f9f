"""A calibration's cost file: the fit, its error on steps that it was not fitted to, the host's part, and what was not
covered. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from cluster.spec import Model
from deployments.engine_model.cost_file import (
    CalibrationRecord,
    CostBasis,
    CostFile,
    CostSource,
    HostCosts,
    cost_file,
)
from deployments.engine_model.cost_model import Chunk, CostModel
from deployments.engine_model.fits import async_scheduling
from deployments.engine_model.limits import EngineModelLimits
from planning.costs.front import LoneRequest, ProbeWindow, front_and_back, lone_back_s
from planning.costs.residuals import held_out, likely_bias, not_covered, split
from planning.costs.step_fit import Fitted, fit_steps
from planning.costs.steps import EngineSteps, samples

MACHINE = 0.05
"""The time of the same steps differs by up to this from one run to the next, either way (docs/simulator.md)."""
KERNELS = (0.85, 1.20)
"""A data sheet's range of a step's kernels (`provenance.py`)."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """What was measured: the engines' steps; requests that were alone (`alone_s`: what one takes around its steps, at
    the median), and `windows` of those beside others. `skipped`: the levels that were left out, and why."""

    logs: tuple[EngineSteps, ...]
    alone_s: float
    alone: tuple[LoneRequest, ...]
    windows: tuple[ProbeWindow, ...]
    answered: int
    failed: int
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoneKernels:
    """What the data sheet gives the kernels of a step of one decode, and of one that prefills a single token; the
    blocks of the model."""

    decode_s: float
    prefill_s: float
    blocks: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was found."""

    file: CostFile
    fitted: Fitted


def calibration(model: Model, gpu: bool, measured: Measurements, note: str, kernels: LoneKernels | None) -> Calibration:
    """Fits what was measured. `kernels`: None where GPU or architecture are not known. Raises ValueError where there is
    too little to fit."""
    steps = tuple(sample for log in measured.logs for sample in samples(log))
    fitted = fit_steps(steps)
    kept, held = split(steps)
    residuals = held_out(fit_steps(kept).model, held)
    facts = measured.logs[0].facts
    back_s = lone_back_s(measured.alone, measured.logs)
    front, back_s = front_and_back(measured.alone_s, measured.windows, measured.logs, back_s)
    costs = CostModel(fitted.model.dense, fitted.model.sequence, fitted.model.attention, front, back_s)
    limits = EngineModelLimits(
        facts.max_num_seqs,
        facts.max_num_batched_tokens,
        facts.kv_tokens,
        facts.block_tokens,
        async_scheduling=async_scheduling(model, gpu),
    )
    missing = (
        *measured.skipped,
        *not_covered(steps, facts, model.settings.max_model_len),
        *not_probed(model),
    )
    record = CalibrationRecord(
        steps=len(steps),
        residuals=residuals,
        host=_host(costs, kernels),
        not_covered=missing,
    )
    off = min(0.9, max(MACHINE, likely_bias(residuals)))
    source = CostSource(part="steps", basis=CostBasis.CALIBRATED, share=1.0, low=1 - off, high=1 + off)
    file = cost_file(model.name, "this machine", "measured", limits, costs, fitted.error, note, [source])
    return Calibration(file.model_copy(update={"calibration": record}), fitted)


def _host(costs: CostModel, kernels: LoneKernels | None) -> HostCosts:
    step_s, prefill_s = costs.base_s(1), costs.step_s([Chunk(1, 0)], 0, 0, 1)
    host = block = None
    if kernels is not None:
        low, high = KERNELS
        host = (max(0.0, step_s - high * kernels.decode_s), max(0.0, step_s - low * kernels.decode_s))
        more_s = prefill_s - step_s - (kernels.prefill_s - kernels.decode_s)
        sure_s = MACHINE * (prefill_s + step_s)
        block = (max(0.0, more_s - sure_s) / kernels.blocks, max(0.0, more_s + sure_s) / kernels.blocks)
    return HostCosts(
        step_s=step_s,
        prefill_step_s=prefill_s - step_s,
        kernels_s=kernels.decode_s if kernels else None,
        host_step_s=host,
        host_block_s=block,
        blocks=kernels.blocks if kernels else None,
    )


def not_probed(model: Model) -> Iterator[str]:
    """What changes a step's time and no probe asks for: first what this model has."""
    settings = model.settings
    if settings.speculative is not None:
        yield "speculation: probes are random tokens, of which drafts guess fewer or more than of the traffic's"
    if model.adapters:
        yield "LoRA adapters: probes ask for the base model"
    if settings.tensor_parallel_size > 1:
        yield f"other numbers of GPUs than {settings.tensor_parallel_size} in a replica"
    else:
        yield "several GPUs in a replica"
    if settings.prefix_caching:
        yield "prefix cache hits: no two probes begin alike"
    yield "guided output, log probabilities, penalties and images: probes are plain completions of text"
