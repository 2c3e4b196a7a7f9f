"""Searches one model's placement, and raises a lower bound of its cost: a branch and bound over what is reserved.

What is reserved is all that ties the hours together. A box says how many replicas may be reserved at each site. With a
price by site and hour for what is reserved, the hours fall apart (Lagrangian decomposition; Guignard and Kim,
Mathematical Programming 39, 1987):

    sum over hours of min(cost + price of the hour * reserved in it)
        + sum over sites of (price for all hours - sum of the hours' prices) * reserved  <=  cost of any placement

where what is reserved lies in the box, in each hour by itself, and each hour has whole replicas. The hours' prices are
dual values of the relaxed program of the first box. Its parts keep them, so that only those hours are solved again
whose answer is not in the part. What the relaxed program of a box reserves is what a placement is tried with, rounded.
The box with the lowest bound is split next, where its hours agree the least. Between boxes, the best placement's
neighbours are tried: one replica more or fewer reserved, or at another site.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from planning.capacity.boxes import Box, ModelPlacement, PricedHour, neighbours
from planning.capacity.hours import Effort, HourPlan, HourProgram, Reserved, Taken
from planning.capacity.parts import ModelPart, max_reserved, whole_within_quotas
from planning.capacity.prices import GpuPrices, add_prices, of_part, whole_price, worth_of
from planning.capacity.problem import PriceKind, Problem
from planning.capacity.program import MAX_REPLICAS, Counts, Program, Shares
from planning.capacity.solver import Deadline, Solved, relax

_PRICED = 0.6
"""Of the time of a step, for a bound; the rest is for a placement."""
_LOOSE, _TIMES = 0.5, 3
"""A box's hours are searched again, so many times, where they leave more than this share of what is open."""
_FINE, _HARD = 0.05, 5.0
"""Of the gap that is asked for, what the search of all hours may leave; and so many times that in an hour that binds,
which takes the solver twenty times as long as another."""
_ROUND = 1e-6


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
        self._order = sorted(range(problem.hours), key=lambda number: self._hours[number].binds)
        """Of the hours: what the easy ones leave of their time is for those that bind."""
        self._boxes: list[tuple[float, int, Box]] = []
        self._count = 0
        self._closed_usd = math.inf
        self._relaxed_usd = 0.0
        self._used: dict[int, int] = {}
        """The most that any hour reserved by itself."""
        self._worth: Mapping[tuple[int, int], float] = {}
        self._bounds = [0.0] * len(self._hours)
        """Of the first box's hours at the prices `_worth`."""
        self._pause, self._boxes_left = 1, 1
        """How many boxes are solved until the next neighbour of the best placement is tried: twice as many after each
        that was not better."""
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
        """The relaxed program's bound, and a first placement, for which each hour only dives: with what the relaxed
        program reserves, or nothing, or as much as any hour by itself. `relaxed`: without prices of GPUs."""
        upper = {site: max_reserved(self._problem, site) for site in self._columns}
        box = self._box(dict.fromkeys(upper, 0), upper, 0.0, until, None if self._gpus else relaxed)
        if box is not None:
            for reserved in (box.reserved, {}):
                if self.best is None:
                    self.place(reserved, taken, until, dives=True)
            if self.best is None:
                box = self._priced(box, until.part(_PRICED))
        if box is None:
            self.possible = False
            return
        self._push(box)
        for reserved in (box.reserved, self._used, {}):
            if self.best is None:
                self.place(reserved, taken, until)

    def step(self, taken: Taken, until: Deadline) -> bool:
        """Solves the hours of the box with the lowest bound, and tries a placement; or splits the box; or tries to
        reserve nearly what the best placement does. False: nothing is left to search."""
        if not self._boxes or (self.best is not None and self._boxes[0][0] >= (1 - _ROUND) * self.best.priced_usd):
            return False
        if self._boxes_left <= 0 and self._try_near(taken, until):
            return True
        box = heapq.heappop(self._boxes)[2]
        loose_usd = sum(hour.slack_usd for hour in box.hours)
        if box.apart_usd is None or (box.times < _TIMES and loose_usd > _LOOSE * self.open_usd):
            priced = self._priced(box, until.part(_PRICED))
            if priced is not None:
                self._push(priced)
            self.place(box.reserved, taken, until)
            self._boxes_left -= 1
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

    def place(self, reserved: Mapping[int, float], taken: Taken, until: Deadline, *, dives: bool = False) -> None:
        """Solves all hours with that many reserved replicas, rounded, unless that was tried before. `dives`: as
        well as diving does, and quickly."""
        whole = whole_within_quotas(self._problem, reserved, taken)
        key = tuple(sorted(whole.items()))
        if key in self._tried:
            return
        if not dives:
            self._tried.add(key)
        weights = sum(self._problem.weights)
        cost = sum(n * self._problem.sites[site].prices[PriceKind.RESERVED] * weights for site, n in whole.items())
        priced = sum(n * self._prices[site] for site, n in whole.items())
        rest = [self._bound_with(number, whole) for number in self._order]
        plans: dict[int, HourPlan] = {}
        for place, number in enumerate(self._order):
            if self.best and (until.late or priced + sum(rest[place:]) >= self.best.priced_usd):
                return
            plan = self._hours[number].with_reserved(whole, taken, replace(self._effort(place, until), dives=dives))
            if plan is None:
                return
            plans[number] = plan
            cost, priced = cost + plan.cost_usd, priced + plan.priced_usd
        if self.best is None or cost < self.best.cost_usd:
            self.best = ModelPlacement(whole, tuple(plans[number] for number in range(len(plans))), cost, priced)

    def _try_near(self, taken: Taken, until: Deadline) -> bool:
        """Places the neighbour of the best placement that may cost the least. False: there is none."""
        assert self.best is not None
        found = []
        for near in neighbours(self.best.reserved, self._used):
            if tuple(sorted(near.items())) not in self._tried:
                hours = sum(self._bound_with(number, near) for number in self._order)
                found.append((hours + sum(count * self._prices[site] for site, count in near.items()), near))
        bound_usd, near = min(found, key=lambda one: one[0], default=(math.inf, {}))
        if bound_usd >= self.best.priced_usd:
            return False
        known = self.best
        self.place(near, taken, until)
        self._tried.add(tuple(sorted(near.items())))
        self._pause = 1 if self.best is not known else 2 * self._pause
        self._boxes_left = self._pause
        return True

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
        return replace(box, bound_usd=bound_usd, hours=hours, apart_usd=apart_usd, times=box.times + 1)

    def _solved(
        self, box: Box, prices: Mapping[tuple[int, int], float], until: Deadline
    ) -> tuple[PricedHour, ...] | None:
        """All hours at those prices; None: one of them has no answer in the box."""
        hours: dict[int, PricedHour] = {}
        for place, number in enumerate(self._order):
            own, effort = {site: prices[site, number] for site in self._columns}, self._effort(place, until)
            known = box.hours[number] if box.hours and box.hours[number].holds(box, own) else None
            if known and (known.slack_usd <= effort.slack_usd or box.apart_usd is None):
                hours[number] = known
                continue
            bound, plan, slack_usd = self._hours[number].at_prices(own, box.lower, box.upper, effort)
            if bound == math.inf:
                return None
            if known and bound < known.bound_usd:
                bound, slack_usd = known.bound_usd, max(0.0, slack_usd + bound - known.bound_usd)
            hours[number] = PricedHour(own, bound, None if plan is None else plan.reserved, slack_usd)
        return tuple(hours[number] for number in range(len(hours)))

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

    def _effort(self, place: int, until: Deadline) -> Effort:
        """For the hour at a place of the order."""
        hours, usd = len(self._hours), 0.0 if self.best is None else self.best.priced_usd
        usd = usd or (self._boxes[0][0] if self._boxes else self._relaxed_usd)
        fine = _FINE * (_HARD if self._hours[self._order[place]].binds else 1.0)
        return Effort(fine * self._gap * usd / hours, until.part(1 / (hours - place)))

    def _bound_with(self, number: int, reserved: Reserved) -> float:
        """A lower bound of what an hour costs with that many reserved replicas."""
        worth = sum(self._worth.get((site, number), 0.0) * count for site, count in reserved.items())
        return max(0.0, self._bounds[number] - worth)
