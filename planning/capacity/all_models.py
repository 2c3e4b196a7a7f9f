"""Places all models. They share nothing but quotas, so each has its own search (`search.py`), and the one that may be
furthest from its optimum goes on first.

Where the models together want more of a quota than there is, its GPUs get a price, and each model is placed in what the
others leave. What the searches cannot close is left to the solver: each model's program, or the whole one where quotas
tie the models.
"""

import math
from dataclasses import dataclass, field, replace

from planning.capacity.parts import ModelPart, gpus_by_quota, largest_first
from planning.capacity.prices import WHOLE_COLUMNS, shared_prices
from planning.capacity.problem import Problem, Quota
from planning.capacity.program import Counts, Shares, build, counts_of, shares_of
from planning.capacity.search import ModelSearch
from planning.capacity.solver import Deadline, relax, solve

_RELAXED, _BEGUN = 0.4, 0.3
"""Of the time that is left, for the relaxed programs, and then for the models' first placements."""
_RELAXED_S = 1.0
"""By the wall, at least, for each model's: a placement has a gap then."""
_OWN = 0.5
"""Of the gap that is asked for, where the solver stops at a model's program."""
_SMALL_COLUMNS, _DIRECT = 1_500, 0.3
"""Programs of so few columns in all are first left to the solver as they are, for a share of the time."""


@dataclass(frozen=True, slots=True)
class FoundPlacement:
    """Replicas by (site, kind, hour), reserved ones with hour -1; shares by (route, hour); US dollars over the period,
    and what no placement costs less than. Without a cost: `proved` says that there is no placement."""

    replicas: Counts = field(default_factory=dict)
    shares: Shares = field(default_factory=dict)
    cost_usd: float = math.inf
    bound_usd: float = 0.0
    proved: bool = False

    @property
    def gap(self) -> float:
        """How much cheaper the optimum may be, as a share of the cost."""
        if self.cost_usd == math.inf:
            return math.inf
        return (self.cost_usd - self.bound_usd) / self.cost_usd if self.cost_usd else 0.0


class PlacementSearch:
    """`gap`: the share of the cost that is asked for."""

    def __init__(self, problem: Problem, gap: float, until: Deadline) -> None:
        self._problem, self._gap, self._until = problem, gap, until
        self._parts = [ModelPart.of(problem, model) for model in largest_first(problem)]
        self._programs = [build(part.problem) for part in self._parts]
        self._searches: list[ModelSearch] = []
        self._relaxed_usd, self._discount_usd, self._shared = 0.0, 0.0, False

    @property
    def unserved(self) -> tuple[tuple[str, str], ...]:
        """(lane's title, origin) that no site may serve."""
        return tuple(one for program in self._programs for one in program.unserved)

    @property
    def unprotected(self) -> tuple[tuple[str, str, str], ...]:
        """(lane's title, origin, region) that no other region may serve while that one is lost."""
        return tuple(one for program in self._programs for one in program.unprotected)

    def search(self) -> FoundPlacement:
        """The best placement that was found in time."""
        direct = FoundPlacement()
        if sum(len(program.cost) for program in self._programs) <= _SMALL_COLUMNS:
            direct = self._whole(direct, _DIRECT)
            if direct.gap <= self._gap or (direct.proved and direct.cost_usd == math.inf):
                return direct
        if not self._begin():
            return FoundPlacement(proved=True)
        if any(search.best is None for search in self._searches):
            return self._whole(replace(direct, bound_usd=max(direct.bound_usd, self._relaxed_usd)))
        going = list(self._searches)
        while going and self._until.left_s and self._sum().gap > self._gap:
            search = max(going, key=lambda one: one.open_usd)
            share = search.open_usd / (sum(one.open_usd for one in going) or 1.0)
            if not search.step(self._taken(search), self._until.part(share)):
                going.remove(search)
        found = self._sum()
        found = replace(
            found,
            replicas={key: count for search in self._searches for key, count in search.replicas().items()},
            shares={key: share for search in self._searches for key, share in search.shares().items()},
        )
        if found.gap > self._gap and self._until.left_s:
            found = self._whole(found) if self._shared else self._apart(found)
        return found if found.cost_usd <= direct.cost_usd else replace(direct, bound_usd=found.bound_usd)

    def _begin(self) -> bool:
        """Relaxes the programs, and gives each model its first bound and placement; False: there is no placement."""
        relaxed = []
        for number, program in enumerate(self._programs):
            found = relax(program, limit_s=max(_RELAXED_S, self._until.wall_s(_RELAXED / (len(self._parts) - number))))
            if found[0].values is None and found[0].proved:
                return False
            relaxed.append(found)
        gpus, self._relaxed_usd = shared_prices(
            self._problem, self._programs, [one for one, _ in relaxed], self._until.wall_s(_RELAXED)
        )
        self._discount_usd = sum(usd * quota.free(hour) for (quota, hour), usd in gpus.items())
        self._shared = bool(gpus)
        begun = self._until.part(_BEGUN)
        for number, (part, program) in enumerate(zip(self._parts, self._programs, strict=True)):
            search = ModelSearch(self._problem, part, program, gpus, self._gap)
            taken = self._taken(search)
            self._searches.append(search)
            share = begun.part(1 / (len(self._parts) - number))
            search.begin(None if gpus else relaxed[number], taken, share)
            if not search.possible:
                return False
        return True

    def _sum(self) -> FoundPlacement:
        """The cost and the bound of all models."""
        bound_usd = sum(search.bound_usd for search in self._searches) - self._discount_usd
        cost_usd = sum(search.best.cost_usd for search in self._searches if search.best)
        return FoundPlacement(cost_usd=cost_usd, bound_usd=max(bound_usd, self._relaxed_usd))

    def _taken(self, search: ModelSearch) -> dict[Quota, list[int]]:
        """What the other models use of the quotas, by hour."""
        others = {key: count for one in self._searches if one is not search for key, count in one.replicas().items()}
        return gpus_by_quota(self._problem, others)

    def _whole(self, found: FoundPlacement, share: float = 1.0) -> FoundPlacement:
        """The solver's answer to the program of all models, from a placement on."""
        if sum(len(program.cost) for program in self._programs) > WHOLE_COLUMNS and found.cost_usd < math.inf:
            return found
        program = build(self._problem)
        start = {column: float(found.replicas.get(key, 0)) for key, column in program.counts.items()}
        known = start if found.cost_usd < math.inf else None
        solved = solve(program, gap=self._gap, limit_s=self._until.wall_s(share), start=known)
        bound_usd = max(found.bound_usd, solved.bound)
        if solved.values is None or solved.cost >= found.cost_usd:
            return replace(found, bound_usd=bound_usd, proved=solved.proved)
        shares = shares_of(self._problem, program, solved.values)
        return FoundPlacement(counts_of(program, solved.values), shares, solved.cost, bound_usd)

    def _apart(self, found: FoundPlacement) -> FoundPlacement:
        """The solver's answers to the programs of each model, with the whole quotas, where that is within them."""
        replicas, shares, cost_usd, bound_usd = dict(found.replicas), dict(found.shares), 0.0, 0.0
        for number, (part, program, search) in enumerate(zip(self._parts, self._programs, self._searches, strict=True)):
            assert search.best is not None
            search.release()
            start = {
                column: float(found.replicas.get((part.sites[site], kind, hour), 0))
                for (site, kind, hour), column in program.counts.items()
            }
            limit_s = self._until.wall_s(1 / (len(self._parts) - number))
            solved = solve(program, gap=_OWN * self._gap, limit_s=limit_s, start=start)
            bound_usd += max(solved.bound, search.bound_usd)
            if solved.values is None or solved.cost >= search.best.cost_usd:
                cost_usd += search.best.cost_usd
                continue
            cost_usd += solved.cost
            own = set(part.sites)
            replicas = {key: count for key, count in replicas.items() if key[0] not in own}
            shares = {key: share for key, share in shares.items() if key[0].site not in own}
            for (site, kind, hour), count in counts_of(program, solved.values).items():
                replicas[part.sites[site], kind, hour] = count
            for (route, hour), share in shares_of(part.problem, program, solved.values).items():
                shares[part.route(route), hour] = share
        bound_usd = max(bound_usd, found.bound_usd)
        if cost_usd >= found.cost_usd or not _within_quotas(self._problem, replicas):
            return replace(found, bound_usd=bound_usd)
        return FoundPlacement(replicas, shares, cost_usd, bound_usd)


def _within_quotas(problem: Problem, replicas: Counts) -> bool:
    used = gpus_by_quota(problem, replicas)
    return all(gpus <= quota.free(hour) for quota, by_hour in used.items() for hour, gpus in enumerate(by_hour))
