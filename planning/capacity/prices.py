"""What the relaxed program's dual values say: what a GPU of a quota costs, and what a reserved replica is worth in each
hour."""

from collections.abc import Mapping, Sequence

import numpy as np

from planning.capacity.parts import ModelPart
from planning.capacity.problem import PriceKind, Problem, Quota
from planning.capacity.program import Program, build
from planning.capacity.solver import Solved, relax

GpuPrices = Mapping[tuple[Quota, int], float]
"""US dollars of one GPU by (quota, hour): what the quotas that models share cost. Absent: nothing."""
Worth = Mapping[tuple[int, int], float]
"""US dollars of one reserved replica by (site, hour)."""
WHOLE_COLUMNS = 100_000
"""A program of more columns is neither relaxed nor searched as a whole."""
_ROUND = 1e-6


def worth_of(program: Program, duals: Sequence[float]) -> Worth:
    """What a replica that is reserved is worth in each hour, by the rows of the hour."""
    ends = np.diff([*program.starts, len(program.index)])
    rows = np.repeat(np.arange(len(ends)), ends)
    sites = {column: site for (site, kind, _), column in program.counts.items() if kind is PriceKind.RESERVED}
    index, value = np.array(program.index), np.array(program.value)
    found: dict[tuple[int, int], float] = {}
    for entry in np.flatnonzero(np.isin(index, list(sites))).tolist():
        row = int(rows[entry])
        key = sites[int(index[entry])], program.hours[row]
        found[key] = found.get(key, 0.0) + float(value[entry]) * duals[row]
    return found


def shared_prices(
    problem: Problem, programs: Sequence[Program], relaxed: Sequence[Solved], limit_s: float
) -> tuple[GpuPrices, float]:
    """The prices of GPUs, and a lower bound. No prices where the models keep within all quotas without, or where the
    whole is too large to be relaxed."""
    alone = sum(one.bound for one in relaxed)
    used: dict[tuple[Quota, int], float] = {}
    for program, solved in zip(programs, relaxed, strict=True):
        if solved.values is None:
            return {}, alone
        for key, row in program.quotas.items():
            used[key] = used.get(key, 0.0) + program.activity(row, solved.values)
    if all(gpus <= quota.free(hour) + _ROUND for (quota, hour), gpus in used.items()):
        return {}, alone
    if sum(len(program.cost) for program in programs) > WHOLE_COLUMNS:
        return {}, alone
    whole = build(problem)
    solved, duals = relax(whole, limit_s=limit_s)
    if solved.values is None:
        return {}, solved.bound if solved.proved else alone
    return {key: -duals[row] for key, row in whole.quotas.items() if duals[row] < 0}, solved.bound


def add_prices(problem: Problem, part: ModelPart, program: Program, gpus: GpuPrices) -> None:
    """Adds the prices of GPUs to the costs of a model's program."""
    for (number, kind, hour), column in program.counts.items() if gpus else ():
        site = problem.sites[part.sites[number]]
        covered = (usd for (quota, when), usd in gpus.items() if hour in (-1, when) and quota.covers(site, kind))
        program.cost[column] += site.gpus * sum(covered)


def whole_price(problem: Problem, number: int, gpus: GpuPrices) -> float:
    """US dollars of a replica of a site that is reserved for all hours, with its GPUs."""
    site = problem.sites[number]
    covered = (usd for (quota, _), usd in gpus.items() if quota.covers(site, PriceKind.RESERVED))
    return site.prices[PriceKind.RESERVED] * sum(problem.weights) + site.gpus * sum(covered)


def of_part(part: ModelPart, worth: Worth) -> dict[tuple[int, int], float]:
    """Worth by the whole problem's sites, from worth by a part's."""
    return {(part.sites[number], hour): usd for (number, hour), usd in worth.items()}
