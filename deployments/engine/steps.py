"""How long an engine's steps take, beside what its cost file expects of them without drafts.

A step's time is that between the outputs of two steps, where the engine had work in between.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from cluster.spec import Model
from deployments.engine.step_log import StepLine
from deployments.engine_model.cost_file import CostFileError, read_cost_file
from deployments.engine_model.cost_model import Chunk, CostModel
from deployments.engine_model.fits import cost_of
from deployments.telemetry import table
from deployments.telemetry.exposition import Distribution
from deployments.telemetry.table import Sample


class StepTimes:
    """`expected_s`: what the cost file expects of the steps that were timed; None without one."""

    def __init__(self, cost: CostModel | None = None) -> None:
        self.kv_tokens = 0
        """What the engine's KV cache holds. Steps before it is known are not counted: the engine warms up."""
        self._took_s = Distribution(table.ENGINE_STEP)
        self._took_s.observe(())
        self.expected_s = None if cost is None else 0.0
        self._cost = cost
        self._last_s: float | None = None

    def simulated(self, steps_s: Iterable[float]) -> None:
        """Steps took so long, as their costs want it."""
        for step_s in steps_s:
            self._took(step_s)
            if self.expected_s is not None:
                self.expected_s += step_s

    def ended(self, now: float, idle: bool, step: StepLine | None) -> None:
        """A step's outputs arrived at `now`; `idle`: nothing is left to do. `step`: what it was, where it is known."""
        last_s, self._last_s = self._last_s, None if idle else now
        if last_s is None or not self.kv_tokens:
            return
        self._took(now - last_s)
        if self._cost is None or self.expected_s is None or step is None:
            return
        prompts, decodes = step.prompts, step.decodes
        chunks = [Chunk(step.prompt_tokens // prompts, 0)] * prompts if prompts else []
        if prompts + decodes:
            self.expected_s += self._cost.step_s(chunks, decodes, step.kv_usage * self.kv_tokens, prompts)

    def samples(self) -> Iterator[Sample]:
        yield from self._took_s.samples()
        if self.expected_s is not None:
            yield table.ENGINE_EXPECTED_STEP, (), self.expected_s

    def _took(self, seconds: float) -> None:
        self._took_s.observe((), seconds)


def step_times_of(model: Model) -> StepTimes:
    """With the cost file that the model itself names, if it can be read (`spec check` says why not)."""
    named = known_costs(model)
    if named is None:
        return StepTimes()
    try:
        return StepTimes(cost_of(model, read_cost_file(Path(named))))
    except CostFileError:
        return StepTimes()


def known_costs(model: Model) -> str | None:
    """The cost file that a replica knows of: its model's own."""
    own = None if model.autoscaling is None else model.autoscaling.costs
    return own or (None if model.simulated is None else model.simulated.costs)
