"""What a search knows: placements, priced hours, and the boxes of what may be reserved. `search.py` searches."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planning.capacity.hours import HourPlan, Reserved

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
    """The bound of an hour's cost at prices of what is reserved, and what it reserves, by site, in an answer that costs
    `slack_usd` more; None: it is not known."""

    prices: Mapping[int, float]
    bound_usd: float
    reserved: Reserved | None
    slack_usd: float = 0.0

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
    solved, which is when `apart_usd` says how much they differ from `reserved`, by site. `times`: how often they were
    solved. No placement in it is cheaper than the bound."""

    bound_usd: float
    lower: Mapping[int, int]
    upper: Mapping[int, int]
    reserved: Mapping[int, float]
    worth: Mapping[tuple[int, int], float]
    hours: tuple[PricedHour, ...] = ()
    apart_usd: Mapping[int, float] | None = None
    times: int = 0


def neighbours(reserved: Reserved, used: Mapping[int, int]) -> Iterator[dict[int, int]]:
    """One reserved replica more, or fewer, or at another site; of the sites that are used."""
    sites = sorted({site for both in (reserved, used) for site, count in both.items() if count})
    for less in (None, *(site for site in sites if reserved.get(site, 0))):
        for more in (None, *sites):
            if less != more:
                near = dict(reserved)
                for site, change in ((less, -1), (more, 1)):
                    if site is not None:
                        near[site] = near.get(site, 0) + change
                yield {site: count for site, count in near.items() if count}
