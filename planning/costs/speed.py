"""How fast a machine was in a while, against its calibration: the time that its steps took over the time that the costs say.

Machines that others share are not always as fast: on ours, steps of the same content took up to 15 % longer from one quarter of an hour to the next.
Near the capacity a queue turns some per cent of speed into any error of a wait, so a rehearsal tells the two apart.
"""

from collections.abc import Iterable

from deployments.engine_model.cost_model import Chunk, CostModel
from planning.costs.steps import StepSample


def predicted_s(cost: CostModel, sample: StepSample) -> float:
    """The time that the costs give a measured step; its prompts' shares are taken to be equal."""
    prompts = sample.prompts
    chunks = [Chunk(sample.prompt_tokens // prompts, 0 if index else sample.past_tokens) for index in range(prompts)]
    return cost.step_s(chunks, sample.decodes, sample.kv_read_tokens, prompts)


def slowness(cost: CostModel, samples: Iterable[StepSample]) -> float:
    """Measured over predicted time, of all steps together. Raises ValueError without steps."""
    measured = predicted = 0.0
    for sample in samples:
        measured += sample.seconds
        predicted += predicted_s(cost, sample)
    if not predicted:
        raise ValueError("no measured steps")
    return measured / predicted
