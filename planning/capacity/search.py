"""Searches one model's placement, and raises a lower bound of its cost: a branch and bound over what is reserved.

What is reserved is all that ties the hours together. A box says how many replicas may be reserved at each site. With a
price by site and hour for what is reserved, the hours fall apart (Lagrangian decomposition; Guignard and Kim,
Mathematical Programming 39, 1987):

    sum over hours of min(cost + price of the hour * reserved in it)
        + sum over sites of (price for all hours - sum of the hours' prices) * reserved  <=  cost of any placement

where what is reserved lies in the box, in each hour by itself, and each hour has whole replicas. The hours' prices are
dual values of the relaxed program of the first box. Its parts keep them, so that only those hours are solved again
whose answer is not in the part. What the relaxed program of a box reserves is what a placement is tried with, rounded.
The box with the lowest bound is split next, where its hours agree the least.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planning.capacity.hours import Effort, HourPlan, HourProgram, Reserved, Taken
from planning.capacity.parts import ModelPart
from planning.capacity.prices import GpuPrices, add_prices, of_part, whole_price, worth_of
from planning.capacity.problem import PriceKind, Problem
from planning.capacity.program import MAX_REPLICAS, Counts, Program, Shares
from planning.capacity.solver import Deadline, Solved, relax

_PRICED = 0.6
"""Of a model's time at the beginning, for its first bound."""
_FINE, _HARD = 0.05, 5.0
"""Of the gap that is asked for, what the search of all hours may leave; and so many times that in an hour that binds,
which takes the solver twenty times as long as another."""
_ROUND = 1e-6


@dataclass(frozen=True, slots=True)
class ModelPlacement:
    """Reserved replicas by site, a plan for each hour, and the cost; `priced_usd` with the prices of GPUs."""

    reserved: Reserved
    plans: tuple[HourPlan, ...]
    cost_usd: float
    priced_usd: float


@dataclass(frozen=True, slots=True)
class PricedHour:
    """The bound of an hour's cost at prices of what is reserved, and what it reserves, by site; None: it is not
    known."""

    prices: Mapping[int, float]
    bound_usd: float
    reserved: Reserved | None

    def holds(self, box: "Box", prices: Mapping[int, float]) -> bool:
        """Whether it is an answer in the box, too."""
        reserved = self.reserved
        if reserved is None or any(not box.lower[one] <= reserved.get(one, 0) <= box.upper[one] for one in prices):
            return False
        return all(math.isclose(usd, self.prices[one], rel_tol=_ROUND, abs_tol=_ROUND) for one, usd in prices.items())


@dataclass(frozen=True, slots=True)
class Box:
    """The least and most replicas that are reserved, by site. `reserved`: what its relaxed program reserves; `worth`:
    US dollars of one of them, by (site, hour). `hours`: by themselves; of the box that it is a part of until they are
    solved, which is when `apart_usd` says how much they differ from `reserved`, by site. No placement in it is cheaper
    than the bound."""

    bound_usd: float
    lower: Mapping[int, int]
    upper: Mapping[int, int]
    reserved: Mapping[int, float]
    worth: Mapping[tuple[int, int], float]
    hours: tuple[PricedHour, ...] = ()
    apart_usd: Mapping[int, float] | None = None


class ModelSearch:
    """`program`: the model's, for all hours. `gap`: share of the cost that is asked for. `best`: None where nothing was
    found yet. `possible`: False where there is no placement."""

    def __init__(self, problem: Problem, part: ModelPart, program: Program, gpus: GpuPrices, gap: float) -> None:
        self.part, self.program = part, program
        self.best: ModelPlacement | None = None
        self.possible = True
        self._problem, self._gap, self._gpus = problem, gap, gpus
        self._columns = {
            part.sites[number]: column
            for (number, kind, _), column in program.counts.items()
            if kind is PriceKind.RESERVED
        }
        add_prices(problem, part, program, gpus)
        self._prices = {site: whole_price(problem, site, gpus) for site in self._columns}
        self._hours = [HourProgram(problem, part, hour, gpus) for hour in range(problem.hours)]
        self._boxes: list[tuple[float, int, Box]] = []
        self._count = 0
        self._closed_usd = math.inf
        self._relaxed_usd = 0.0
        self._used: dict[int, int] = {}
        """The most that any hour reserved by itself."""
        self._worth: Mapping[tuple[int, int], float] = {}
        self._bounds = [0.0] * len(self._hours)
        """Of the first box's hours at the prices `_worth`."""
        self._tried: set[tuple[tuple[int, int], ...]] = set()

    @property
    def bound_usd(self) -> float:
        """No placement is cheaper, with the prices of GPUs."""
        known = math.inf if self.best is None else self.best.priced_usd
        return min(known, self._closed_usd, self._boxes[0][0] if self._boxes else math.inf)

    @property
    def open_usd(self) -> float:
        """What the placement may cost more than the best."""
        return math.inf if self.best is None else self.best.priced_usd - self.bound_usd

    def begin(self, relaxed: tuple[Solved, Sequence[float]] | None, taken: Taken, until: Deadline) -> None:
        """The first bound, and a first placement: with what the relaxed program reserves, or else as much as any hour
        by itself, or nothing. `relaxed`: without prices of GPUs."""
        upper = {site: min(MAX_REPLICAS, _max_replicas(self._problem, site)) for site in self._columns}
        box = self._box(dict.fromkeys(upper, 0), upper, 0.0, until, None if self._gpus else relaxed)
        priced = None if box is None else self._priced(box, until.part(_PRICED))
        if box is None or priced is None:
            self.possible = False
            return
        self._push(priced)
        for reserved in (box.reserved, self._used, {}):
            self.place(reserved, taken, until)
            if self.best is not None:
                break

    def step(self, taken: Taken, until: Deadline) -> bool:
        """Solves the hours of the box with the lowest bound, and tries a placement; or splits the box. False: nothing
        is left to search."""
        if not self._boxes or self.open_usd <= 0:
            return False
        box = heapq.heappop(self._boxes)[2]
        if box.apart_usd is None:
            priced = self._priced(box, until)
            if priced is not None:
                self._push(priced)
            self.place(box.reserved, taken, until)
            return True
        apart = {site: usd for site, usd in box.apart_usd.items() if box.upper[site] > box.lower[site]}
        site = max(apart, key=apart.__getitem__, default=None)
        if site is None or apart[site] <= 0:
            self._closed_usd = min(self._closed_usd, box.bound_usd)
            return True
        middle = min(max(math.floor(box.reserved.get(site, 0.0) + _ROUND), box.lower[site]), box.upper[site] - 1)
        for lower, upper in ((box.lower, {**box.upper, site: middle}), ({**box.lower, site: middle + 1}, box.upper)):
            part = self._box(lower, upper, box.bound_usd, until)
            if part is not None:
                self._push(replace(part, hours=box.hours))
        return True

    def place(self, reserved: Mapping[int, float], taken: Taken, until: Deadline) -> None:
        """Solves all hours with that many reserved replicas, rounded, unless that was tried before."""
        whole = self._within_quotas(reserved, taken)
        key = tuple(sorted(whole.items()))
        if key in self._tried:
            return
        self._tried.add(key)
        weights = sum(self._problem.weights)
        cost = sum(n * self._problem.sites[site].prices[PriceKind.RESERVED] * weights for site, n in whole.items())
        priced = sum(n * self._prices[site] for site, n in whole.items())
        rest = [self._bound_with(number, whole) for number in range(len(self._hours))]
        plans: list[HourPlan] = []
        for number, hour in enumerate(self._hours):
            if self.best and priced + sum(rest[number:]) >= self.best.priced_usd:
                return
            plan = hour.with_reserved(whole, taken, self._effort(number, until))
            if plan is None:
                return
            plans.append(plan)
            cost, priced = cost + plan.cost_usd, priced + plan.priced_usd
        if self.best is None or cost < self.best.cost_usd:
            self.best = ModelPlacement(whole, tuple(plans), cost, priced)

    def replicas(self) -> Counts:
        """Of the best placement; what is reserved has hour -1."""
        if self.best is None:
            return {}
        found: Counts = {(site, PriceKind.RESERVED, -1): count for site, count in self.best.reserved.items()}
        for hour, plan in enumerate(self.best.plans):
            for (site, kind), count in plan.replicas.items():
                if kind is not PriceKind.RESERVED:
                    found[site, kind, hour] = count
        return found

    def shares(self) -> Shares:
        """Of the best placement, by (route, hour)."""
        if self.best is None:
            return {}
        found: Shares = {}
        for hour, plan in zip(self._hours, self.best.plans, strict=True):
            found |= hour.shares(plan)
        return found

    def release(self) -> None:
        """The program gets back the whole of what can be reserved."""
        for column in self._columns.values():
            self.program.lower[column], self.program.upper[column] = 0.0, MAX_REPLICAS

    def _push(self, box: Box) -> None:
        self._count += 1
        heapq.heappush(self._boxes, (box.bound_usd, self._count, box))

    def _box(
        self,
        lower: Mapping[int, int],
        upper: Mapping[int, int],
        bound_usd: float,
        until: Deadline,
        relaxed: tuple[Solved, Sequence[float]] | None = None,
    ) -> Box | None:
        """A box with its relaxed program; None: no placement is in it."""
        for site, column in self._columns.items():
            self.program.lower[column], self.program.upper[column] = float(lower[site]), float(upper[site])
        solved, duals = relaxed or relax(self.program, limit_s=until.wall_s())
        if solved.values is None:
            return None if solved.proved else Box(bound_usd, lower, upper, dict(lower), {})
        reserved = {site: solved.values[column] for site, column in self._columns.items()}
        worth = of_part(self.part, worth_of(self.program, duals))
        self._relaxed_usd = self._relaxed_usd or solved.bound
        return Box(max(bound_usd, solved.bound), lower, upper, reserved, worth)

    def _priced(self, box: Box, until: Deadline) -> Box | None:
        """The box with a bound of whole replicas by hour. None: no placement is in it."""
        prices = self._hourly(box)
        if box.hours:
            prices = {(site, number): usd for number, one in enumerate(box.hours) for site, usd in one.prices.items()}
        hours = self._solved(box, prices, until)
        if hours is None:
            return None
        if not self._worth:
            self._worth, self._bounds = prices, [hour.bound_usd for hour in hours]
        apart_usd = dict.fromkeys(self._columns, 0.0)
        for known in hours:
            if known.reserved is None:
                continue
            for site in self._columns:
                count = known.reserved.get(site, 0)
                apart_usd[site] += abs(count - box.reserved[site]) * self._prices[site] / len(hours)
                self._used[site] = max(self._used.get(site, 0), count)
        bound_usd = max(box.bound_usd, self._bound(box, hours))
        return replace(box, bound_usd=bound_usd, hours=hours, apart_usd=apart_usd)

    def _solved(
        self, box: Box, prices: Mapping[tuple[int, int], float], until: Deadline
    ) -> tuple[PricedHour, ...] | None:
        """All hours at those prices; None: one of them has no answer in the box."""
        hours = []
        for number, hour in enumerate(self._hours):
            own = {site: prices[site, number] for site in self._columns}
            if box.hours and box.hours[number].holds(box, own):
                hours.append(box.hours[number])
                continue
            bound, plan = hour.at_prices(own, box.lower, box.upper, self._effort(number, until))
            if bound == math.inf:
                return None
            hours.append(PricedHour(own, bound, None if plan is None else plan.reserved))
        return tuple(hours)

    def _bound(self, box: Box, hours: Sequence[PricedHour]) -> float:
        """What the hours cost at least, and what is reserved beyond their prices: by the site as few as may be where
        the hours pay less than its price, and as many where they pay more."""
        found = sum(hour.bound_usd for hour in hours)
        for site, price in self._prices.items():
            left = price - sum(hour.prices[site] for hour in hours)
            found += left * (box.lower[site] if left >= 0 else box.upper[site])
        return found

    def _hourly(self, box: Box) -> dict[tuple[int, int], float]:
        """Prices by hour: what the relaxed program says. What they leave of a site's price is divided equally, and what
        they are above it where any number can be reserved."""
        found: dict[tuple[int, int], float] = {}
        hours = range(len(self._hours))
        for site, price in self._prices.items():
            own = [box.worth.get((site, hour), 0.0) for hour in hours]
            left = price - sum(own)
            if left < 0 and box.upper[site] < MAX_REPLICAS:
                left = 0.0
            found |= {(site, hour): usd + left / len(hours) for hour, usd in zip(hours, own, strict=True)}
        return found

    def _effort(self, number: int, until: Deadline) -> Effort:
        left, usd = len(self._hours) - number, 0.0 if self.best is None else self.best.priced_usd
        usd = usd or (self._boxes[0][0] if self._boxes else self._relaxed_usd)
        fine = _FINE * (_HARD if self._hours[number].binds else 1.0)
        return Effort(fine * self._gap * usd / len(self._hours), until.wall_s(1 / left))

    def _bound_with(self, number: int, reserved: Reserved) -> float:
        """A lower bound of what an hour costs with that many reserved replicas."""
        worth = sum(self._worth.get((site, number), 0.0) * count for site, count in reserved.items())
        return max(0.0, self._bounds[number] - worth)

    def _within_quotas(self, reserved: Mapping[int, float], taken: Taken) -> dict[int, int]:
        """Whole replicas, and fewer where they go over what others leave of a quota: of the site that has the most."""
        whole = {site: round(count) for site, count in reserved.items() if round(count) > 0}
        for quota in self._problem.quotas:
            sites = [site for site in whole if quota.covers(self._problem.sites[site], PriceKind.RESERVED)]
            if sites:
                used = taken.get(quota) or [0] * self._problem.hours
                free = min(quota.free(hour) - gpus for hour, gpus in enumerate(used))
                while sum(whole[site] * self._problem.sites[site].gpus for site in sites) > max(0, free):
                    whole[max(sites, key=whole.__getitem__)] -= 1
        return {site: count for site, count in whole.items() if count}


def _max_replicas(problem: Problem, number: int) -> int:
    """Replicas of a site that can be reserved for all hours."""
    site = problem.sites[number]
    quotas = [quota for quota in problem.quotas if quota.covers(site, PriceKind.RESERVED)]
    free = [quota.free(hour) // site.gpus for quota in quotas for hour in range(problem.hours)]
    return max(0, min(free, default=MAX_REPLICAS))
