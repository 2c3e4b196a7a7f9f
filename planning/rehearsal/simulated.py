"""The simulator's side of a rehearsal: a play of requests, and the capacity, by the costs that are on trial."""

from dataclasses import replace

import numpy as np

from deployments.engine_model.cost_model import CostModel
from planning.rehearsal.run import QUANTILES, Run, label
from planning.simulator.cell import Cell, CellSettings
from planning.simulator.outcome import Outcome
from planning.simulator.workload import Workload

EDGE = 0.1
"""The first and the last tenth of a closed loop are left out: it fills up and empties there."""


def simulated_run(settings: CellSettings, cost: CostModel, workload: Workload) -> Run:
    """One play."""
    return as_run(Cell(settings, cost, workload).run())


def as_run(out: Outcome) -> Run:
    """A simulated outcome in the columns of a rehearsal."""
    stages = {"lane": out.placed_s - out.arrived_s, "engine": out.first_s - out.placed_s, "decode": out.finished_s - out.first_s}
    gaps = float(np.nansum(np.where(np.isnan(out.finished_s), np.nan, out.output_tokens - 1)))
    itl = {label(level): value for level, value in out.itl_s.items() if level in QUANTILES}
    itl["mean"] = float(np.nansum(stages["decode"])) / gaps if gaps else float("nan")
    failed = int((out.rejected | out.expired | out.failed).sum())
    return Run(out.ttft_s, stages, out.lane.astype(np.int64), itl, failed)


def simulated_capacity(settings: CellSettings, cost: CostModel, workload: Workload, clients: int) -> float:
    """Requests a second that so many clients in a closed loop get through."""
    out = Cell(replace(settings, clients=clients), cost, workload).run()
    ended = np.sort(out.finished_s[~np.isnan(out.finished_s)])
    return throughput(ended)


def throughput(ended_s: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float:
    """Requests a second, without the edges, of ascending times. Raises ValueError for too few."""
    low, high = int(len(ended_s) * EDGE), int(len(ended_s) * (1 - EDGE))
    if high - low < 10:
        raise ValueError(f"{len(ended_s)} requests ended; needed: more to tell a capacity")
    return float((high - 1 - low) / (ended_s[high - 1] - ended_s[low]))
