"""The placement problem as a mixed-integer program, in HiGHS' form (Huangfu and Hall 2018; https://highs.dev).

For each hour, integers count the replicas of each site and price kind; one integer for a site counts what is reserved
for all hours. Shares say where each lane's demand goes; origins and sites between which there is no difference count as
one (`routes.py`):

    minimise    sum of weight * price * replicas  +  cost of what crosses regions
    demand      shares of a lane, its origins and hour = 1
    capacity    load of the sites <= utilisation * replicas    load: share * demand / rate of one replica
    loss        the same with shares of their own, full rates, and no site in the lost region, in the binding hours
    quota, spot share, failures: see `Limits`
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import highspy
import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from planning.capacity.problem import PriceKind, Problem
from planning.capacity.routes import AlikeRoutes, Route, alike_routes, divided
from planning.workload.arrivals import HOUR_S

MAX_REPLICAS = 100_000
_ROUND = 1e-6


@dataclass(slots=True)
class Program:
    """Columns and rows, and what each column means.

    `counts`: columns of replicas by (site, kind, hour); reserved ones are of hour -1. `flows`: columns of shares by
    (routes, hour). `unserved`: (lane's title, origin) that no site may serve.
    `unprotected`: (lane's title, origin, region) that cannot survive the loss of the region. `common`: columns that
    count in all hours.
    """

    counts: dict[tuple[int, PriceKind, int], int] = field(default_factory=dict)
    flows: dict[tuple[AlikeRoutes, int], int] = field(default_factory=dict)
    unserved: dict[tuple[str, str], None] = field(default_factory=dict)
    unprotected: dict[tuple[str, str, str], None] = field(default_factory=dict)
    common: set[int] = field(default_factory=set)
    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    index: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)

    def column(self, cost: float, upper: float, *, integer: bool, common: bool = False) -> int:
        """Adds a column from 0 to `upper`; its number. `common`: it counts in all hours."""
        if common:
            self.common.add(len(self.cost))
        self.cost.append(cost)
        self.upper.append(upper)
        self.integer.append(integer)
        return len(self.cost) - 1

    def row(self, lower: float, upper: float, terms: Iterable[tuple[int, float]]) -> None:
        """Adds a row of (column, coefficient)."""
        self.starts.append(len(self.index))
        for column, coefficient in terms:
            self.index.append(column)
            self.value.append(coefficient)
        self.row_lower.append(lower)
        self.row_upper.append(upper)

    def replicas(self, site: int, hour: int) -> list[int]:
        """The columns that add up to a site's replicas in an hour."""
        return [
            self.counts[key]
            for kind in PriceKind
            if (key := (site, kind, -1 if kind is PriceKind.RESERVED else hour)) in self.counts
        ]

    def parts(self, fixed: Mapping[int, float]) -> list[tuple["Program", list[int]]]:
        """What has no row in common where some columns are fixed: hours without anything reserved for all of them,
        models. Each part with its columns' numbers here."""
        count, ends = len(self.cost), [*self.starts, len(self.index)][1:]
        sizes = np.array(ends, dtype=np.int64) - np.array(self.starts, dtype=np.int64)
        rows = np.repeat(np.arange(len(sizes)), sizes)
        index, free = np.array(self.index, dtype=np.int64), np.ones(count, dtype=np.bool_)
        free[list(fixed)] = False
        kept = free[index]
        links = coo_array((kept[kept], (index[kept], count + rows[kept])), shape=(count + len(ends),) * 2)
        labels = connected_components(links, directed=False)[1].tolist()
        found: dict[int, tuple[Program, list[int]]] = {}
        numbers: dict[int, int] = {}
        for column in np.flatnonzero(free).tolist():
            part, columns = found.setdefault(labels[column], (Program(), []))
            common = column in self.common
            numbers[column] = part.column(
                self.cost[column], self.upper[column], integer=self.integer[column], common=common
            )
            columns.append(column)
        if not found:
            return []
        first = next(iter(found.values()))
        for row, (begin, end) in enumerate(zip(self.starts, ends, strict=True)):
            terms = list(zip(self.index[begin:end], self.value[begin:end], strict=True))
            moved = sum(value * fixed[column] for column, value in terms if column in fixed)
            part, _ = found.get(labels[count + row], first)  # a row without a free column may still be broken
            part.row(
                self.row_lower[row] - moved,
                self.row_upper[row] - moved,
                ((numbers[column], value) for column, value in terms if column in numbers),
            )
        return list(found.values())

    def to_highs(self, *, relaxed: bool = False) -> highspy.HighsLp:
        """`relaxed`: as a linear program."""
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), len(self.row_lower)
        lp.col_cost_ = np.array(self.cost, dtype=np.float64)
        lp.col_lower_ = np.zeros(len(self.cost))
        lp.col_upper_ = np.array(self.upper, dtype=np.float64)
        lp.row_lower_ = np.array(self.row_lower, dtype=np.float64)
        lp.row_upper_ = np.array(self.row_upper, dtype=np.float64)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array([*self.starts, len(self.index)], dtype=np.int32)
        lp.a_matrix_.index_ = np.array(self.index, dtype=np.int32)
        lp.a_matrix_.value_ = np.array(self.value, dtype=np.float64)
        if not relaxed:
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            lp.integrality_ = [kinds[integer] for integer in self.integer]
        return lp


Counts = dict[tuple[int, PriceKind, int], int]
Shares = dict[tuple[Route, int], float]


def counts_of(program: Program, values: Sequence[float]) -> Counts:
    """Replicas by (site, kind, hour); what is reserved has hour -1."""
    return {key: count for key, column in program.counts.items() if (count := round(values[column]))}


def shares_of(problem: Problem, program: Program, values: Sequence[float]) -> Shares:
    """Shares of each lane's demand, by (route, hour)."""
    found: Shares = {}
    for (routes, hour), column in program.flows.items():
        share = values[column]
        if share > _ROUND:
            replicas = {site: sum(values[each] for each in program.replicas(site, hour)) for site in routes.sites}
            for route, part in divided(problem, routes, hour, share, replicas):
                found[route, hour] = found.get((route, hour), 0.0) + part
    return found


def build(problem: Problem, *, apart: bool = False) -> Program:
    """The whole program. `apart`: each model has the quotas for itself, so that models have no row in common."""
    program = Program()
    limits, all_routes = problem.limits, alike_routes(problem, range(len(problem.lanes)))
    _count_columns(program, problem)
    for hour in range(problem.hours):
        shares = _share_columns(program, problem, all_routes, range(len(problem.lanes)), hour)
        _capacity_rows(program, problem, shares, hour, limits.utilisation, limits.failures)
        for routes, column in shares.items():
            program.flows[routes, hour] = column
        _limit_rows(program, problem, hour, apart)
    if limits.survive_region:
        _loss_rows(program, problem)
    return program


def _count_columns(program: Program, problem: Problem) -> None:
    for number, site in enumerate(problem.sites):
        for kind, price in site.prices.items():
            if kind is PriceKind.RESERVED:
                cost = price * problem.hours
                program.counts[number, kind, -1] = program.column(cost, MAX_REPLICAS, integer=True, common=True)
                continue
            for hour in range(problem.hours):
                program.counts[number, kind, hour] = program.column(price, MAX_REPLICAS, integer=True)


def _share_columns(
    program: Program,
    problem: Problem,
    all_routes: list[AlikeRoutes],
    lanes: Iterable[int],
    hour: int,
    lost: str | None = None,
) -> dict[AlikeRoutes, int]:
    """Columns of shares, and the rows that make them add up to the whole demand."""
    shares: dict[AlikeRoutes, int] = {}
    rows: dict[tuple[int, tuple[str, ...]], list[int]] = {}
    served: set[tuple[int, str]] = set()
    for routes in all_routes:
        served.update((routes.lane, origin) for origin in routes.origins)
        demand = routes.demand(problem, hour)
        if demand <= 0:
            continue
        cost = routes.usd_per_request * demand * HOUR_S
        shares[routes] = program.column(cost, 1.0, integer=False)
        rows.setdefault(routes.requests, []).append(shares[routes])
    for columns in rows.values():
        program.row(1.0, 1.0, ((column, 1.0) for column in columns))
    for number in lanes:
        lane = problem.lanes[number]
        for origin, rates in lane.demand.items():
            if rates[hour] > 0 and (number, origin) not in served:
                if lost is None:
                    program.unserved[lane.title, origin] = None
                else:
                    program.unprotected[lane.title, origin, lost] = None
    return shares


def _capacity_rows(
    program: Program,
    problem: Problem,
    shares: Mapping[AlikeRoutes, int],
    hour: int,
    utilisation: float,
    failures: int = 0,
) -> None:
    loads: dict[tuple[int, ...], list[tuple[int, float]]] = {}
    for routes, column in shares.items():
        loads.setdefault(routes.sites, []).append((column, routes.demand(problem, hour) / routes.rate))
    for sites, terms in loads.items():
        replicas = [column for site in sites for column in program.replicas(site, hour)]
        program.row(-math.inf, 0.0, [*terms, *((column, -utilisation) for column in replicas)])
        if failures:
            used, whole = program.column(0.0, 1.0, integer=True), sum(program.upper[c] * load for c, load in terms)
            spare = [(used, float(failures)), *((column, -1.0) for column in replicas)]
            program.row(-math.inf, 0.0, [*terms, *spare])
            program.row(-math.inf, 0.0, [*terms, (used, -whole)])


def _limit_rows(program: Program, problem: Problem, hour: int, apart: bool) -> None:
    for quota in problem.quotas:
        terms: dict[str, list[tuple[int, float]]] = {}
        for number, site in enumerate(problem.sites):
            if (site.region, site.gpu) == (quota.region, quota.gpu):
                columns = _of_kind(program, number, hour, quota.price_kind)
                terms.setdefault(site.model if apart else "", []).extend((one, float(site.gpus)) for one in columns)
        for each in terms.values():
            program.row(-math.inf, float(quota.gpus), each)
    share = problem.limits.spot_share
    if share >= 1:
        return
    for model in dict.fromkeys(site.model for site in problem.sites):
        sites = [number for number, site in enumerate(problem.sites) if site.model == model]
        spot = {column for number in sites for column in _of_kind(program, number, hour, PriceKind.SPOT)}
        every = [column for number in sites for column in program.replicas(number, hour)]
        program.row(-math.inf, 0.0, [(column, (1.0 if column in spot else 0.0) - share) for column in every])


def _of_kind(program: Program, site: int, hour: int, kind: PriceKind | None) -> list[int]:
    if kind is None:
        return program.replicas(site, hour)
    key = (site, kind, -1 if kind is PriceKind.RESERVED else hour)
    return [program.counts[key]] if key in program.counts else []


def _loss_rows(program: Program, problem: Problem) -> None:
    """Losses are met with full rates, and need no spare for failures at the same time."""
    for model in problem.models:
        lanes = [number for number, lane in enumerate(problem.lanes) if lane.model == model]
        hours = problem.binding_hours(model)
        for lost in problem.regions:
            all_routes = alike_routes(problem, lanes, lost) if hours else []
            for hour in hours:
                shares = _share_columns(program, problem, all_routes, lanes, hour, lost)
                _capacity_rows(program, problem, shares, hour, 1.0)
