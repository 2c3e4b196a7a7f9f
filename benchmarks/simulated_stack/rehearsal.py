"""The same arrivals in the simulator's cell, with the same spec and costs: what `raylane simulate` would have said."""

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulated_stack.schedule import Schedule
from cluster.spec import ClusterSpec
from deployments.engine_model.cost_file import CostFile
from deployments.scheduling.policy import binding_of, policy_of
from planning.simulator.cell import Cell, CellSettings
from planning.simulator.workload import plain_workload


def rehearse(spec: ClusterSpec, costs: CostFile, schedule: Schedule) -> tuple[NDArray[np.float64], list[str]]:
    """TTFT (NaN: none) and lane of each request."""
    model = spec.models[0]
    work = plain_workload(schedule.arrived_s, schedule.prompt_tokens, schedule.output_tokens, spec.classes[0].ttft_ms / 1e3, bounded=False)
    settings = CellSettings(
        model.replicas.count, costs.limits(), policy_of(spec), binding_of(spec), model.settings.max_model_len, spec.patience_s(spec.classes[0])
    )
    out = Cell(settings, costs.cost_model(), work).run()
    return out.ttft_s, [spec.lanes[lane].name if lane >= 0 else "" for lane in out.lane]
