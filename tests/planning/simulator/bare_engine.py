"""An engine alone, first come first served, as `vllm serve` runs it: to check the engine and its costs against a
measured run."""

import math

from deployments.engine_model.cost_model import CostModel
from deployments.engine_model.engine import EngineModel
from deployments.engine_model.limits import EngineModelLimits
from deployments.engine_model.sequence import Sequence
from planning.simulator.outcome import SimulationOutcome
from planning.simulator.workload import Workload


def run_engine(limits: EngineModelLimits, cost: CostModel, workload: Workload) -> SimulationOutcome:
    """Runs a workload on one engine."""
    engine, out = (
        EngineModel(limits, cost),
        SimulationOutcome.empty(workload.arrived_s, workload.prompt_tokens, workload.output_tokens),
    )
    arrivals = workload.arrived_s.tolist()
    index = 0
    while index < len(arrivals) or engine.next_s < math.inf:
        if index < len(arrivals) and arrivals[index] <= engine.next_s:
            engine.add(
                Sequence(index, int(out.prompt_tokens[index]), 0, int(out.output_tokens[index])), arrivals[index]
            )
            out.placed_s[index] = arrivals[index]
            index += 1
            continue
        now = engine.next_s
        boundary = engine.advance()
        for sequence in boundary.first:
            out.first_s[_index(sequence)] = now + cost.back_s
        for sequence in boundary.finished:
            out.finished_s[_index(sequence)] = now + cost.back_s
        out.ended_s = now
    out.itl_s = {share: engine.itl.quantile(share) for share in (0.5, 0.9, 0.99)}
    out.preemptions = engine.preemptions
    return out


def _index(sequence: Sequence) -> int:
    assert isinstance(sequence.tag, int)
    return sequence.tag
