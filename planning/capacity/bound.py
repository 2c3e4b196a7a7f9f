"""A lower bound of the cost that the relaxed program cannot see: whole replicas in each model and hour.

What is reserved couples the hours, and quotas couple the models. With a price for each, the program falls apart into
one for each model and hour (Lagrangian decomposition; Guignard and Kim, Mathematical Programming 39, 1987):

    sum over models and hours of min(cost + share of the reserved price * reserved + price of GPUs * GPUs)
        - sum of price of GPUs * quota                                                 <= cost of any placement

The prices are the relaxed program's dual values. With them the sum over relaxed parts is the relaxed cost, so the sum
over whole ones is at least that.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planning.capacity.parts import ModelPart, at_hour
from planning.capacity.problem import PriceKind, Problem, Quota
from planning.capacity.program import Program, build
from planning.capacity.solver import Solved, relax, solve


@dataclass(frozen=True, slots=True)
class HourPrices:
    """`reserved`: US dollars of one reserved replica, by (site, hour); `gpus`: of one GPU, by (quota, hour)."""

    reserved: Mapping[tuple[int, int], float]
    gpus: Mapping[tuple[Quota, int], float]

    @classmethod
    def of(cls, problem: Problem, program: Program, duals: Sequence[float]) -> "HourPrices":
        """From the relaxed program's dual values."""
        gpus = {key: max(0.0, -duals[row]) for key, row in program.quotas.items()}
        columns = {column: site for (site, kind, _), column in program.counts.items() if kind is PriceKind.RESERVED}
        ends = np.diff([*program.starts, len(program.index)])
        rows = np.repeat(np.arange(len(ends)), ends)
        quotas = np.zeros(len(ends), dtype=np.bool_)
        quotas[list(program.quotas.values())] = True
        index, value = np.array(program.index), np.array(program.value)
        chosen = np.flatnonzero(np.isin(index, list(columns)) & ~quotas[rows])
        reserved = {(site, hour): 0.0 for site in columns.values() for hour in range(problem.hours)}
        for entry in chosen.tolist():
            row = int(rows[entry])
            reserved[columns[int(index[entry])], program.hours[row]] += float(value[entry]) * duals[row]
        return cls(_within(problem, reserved, gpus), gpus)


def _within(
    problem: Problem, reserved: Mapping[tuple[int, int], float], gpus: Mapping[tuple[Quota, int], float]
) -> dict[tuple[int, int], float]:
    """The hours' prices of a reserved replica, which may add up to what it costs for all hours, and its quotas."""
    found = {}
    for number in dict.fromkeys(site for site, _ in reserved):
        site = problem.sites[number]
        whole = site.prices[PriceKind.RESERVED] * sum(problem.weights)
        whole += sum(usd * site.gpus for (quota, _), usd in gpus.items() if quota.covers(site, PriceKind.RESERVED))
        own = [max(0.0, reserved[number, hour]) for hour in range(problem.hours)]
        left = (whole - sum(own)) / problem.hours
        for hour, usd in enumerate(own):
            found[number, hour] = usd + left if left >= 0 else usd * whole / sum(own)
    return found


def lower_bound(problem: Problem, program: Program, gap: float, limit_s: float) -> float:
    """The bound; the relaxed cost where time does not suffice, and 0 where not even that is found. Each part is solved
    to `gap`."""
    until = time.monotonic() + limit_s
    relaxed, duals = relax(program, limit_s=limit_s)
    if relaxed.values is None:
        return 0.0
    relaxed_usd, prices = relaxed.bound, HourPrices.of(problem, program, duals)
    total = -sum(usd * quota.free(hour) for (quota, hour), usd in prices.gpus.items())
    parts = [ModelPart.of(problem, model) for model in problem.models]
    to_do = len(parts) * problem.hours
    for part in parts:
        for hour in range(problem.hours):
            left_s = until - time.monotonic()
            if left_s <= 0:
                return relaxed_usd
            total += _part_bound(problem, part, hour, prices, gap, left_s / to_do)
            to_do -= 1
    return max(total, relaxed_usd)


def _part_bound(problem: Problem, part: ModelPart, hour: int, prices: HourPrices, gap: float, limit_s: float) -> float:
    own = at_hour(problem, part, hour)
    weight = own.weights[0]
    sites = []
    for number, site in zip(part.sites, own.sites, strict=True):
        paid: dict[PriceKind, float] = {}
        for kind, usd in site.prices.items():
            if kind is PriceKind.RESERVED:
                paid[kind] = prices.reserved[number, hour] / weight
                continue
            covered = (quota for quota in problem.quotas if quota.covers(site, kind))
            paid[kind] = usd + sum(prices.gpus[quota, hour] for quota in covered) * site.gpus / weight
        sites.append(replace(site, prices=paid))
    solved: Solved = solve(build(replace(own, sites=tuple(sites))), gap=gap, limit_s=limit_s)
    return solved.bound
